//! The architectures, and what distinguishes them (spec/architectures.md 4).

use std::fmt;

use serde::Serialize;

use super::rope::RopeKind;
use crate::{Error, Result, ops::gated_norm::Activation};

/// A model architecture that we run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// Llama, and Mixtral if the file has experts.
    Llama,
    /// Qwen3, dense.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
    /// Qwen3.5 and later, dense: gated delta net and gated attention.
    Qwen35,
    /// Qwen3.5 and later with experts, one of them shared.
    Qwen35Moe,
    /// Qwen3.8-Flash-Next: hyper-connections, n-gram embedding, sparse attention.
    Qwen4Exp,
}

impl Arch {
    /// Every architecture.
    pub const ALL: [Self; 6] =
        [Self::Llama, Self::Qwen3, Self::Qwen3Moe, Self::Qwen35, Self::Qwen35Moe, Self::Qwen4Exp];

    /// The architecture of this name in `general.architecture`.
    ///
    /// # Errors
    /// A name that is unknown or not supported yet.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|arch| arch.name() == name).ok_or_else(|| {
            Error::Model(match name {
                "qwen3next" => format!("architecture `{name}` is not supported yet"),
                _ => {
                    let known = Self::ALL.map(Self::name).join(", ");
                    format!("architecture `{name}` is not supported; supported are {known}")
                }
            })
        })
    }

    /// The name in `general.architecture`, and before the dot of this architecture's keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3moe",
            Self::Qwen35 => "qwen35",
            Self::Qwen35Moe => "qwen35moe",
            Self::Qwen4Exp => "qwen4exp",
        }
    }

    /// Whether layers of gated delta net alternate with gated attention. Such files may also have
    /// draft (MTP) blocks.
    pub const fn is_hybrid(self) -> bool {
        matches!(self, Self::Qwen35 | Self::Qwen35Moe | Self::Qwen4Exp)
    }

    /// Whether query and key heads are normed before they are rotated.
    pub const fn has_qk_norm(self) -> bool {
        !matches!(self, Self::Llama)
    }

    /// Whether the feed-forward network has experts; `None` if the file decides.
    pub const fn has_experts(self) -> Option<bool> {
        match self {
            Self::Llama => None,
            Self::Qwen3 | Self::Qwen35 => Some(false),
            Self::Qwen3Moe | Self::Qwen35Moe | Self::Qwen4Exp => Some(true),
        }
    }

    /// Whether there is an expert that every token uses.
    pub const fn has_shared_expert(self) -> bool {
        matches!(self, Self::Qwen35Moe | Self::Qwen4Exp)
    }

    /// Whether projections may have biases.
    pub const fn has_biases(self) -> bool {
        matches!(self, Self::Llama)
    }

    /// Whether a file may divide the rotary frequencies by `rope_freqs`.
    pub const fn has_rope_factors(self) -> bool {
        matches!(self, Self::Llama)
    }

    /// Which dimensions rotate together. The converter permuted Llama's query and key rows so
    /// that neighbours do.
    pub const fn rope_kind(self) -> RopeKind {
        match self {
            Self::Llama => RopeKind::Norm,
            _ => RopeKind::Neox,
        }
    }

    /// The name of the norm before the feed-forward network, where blocks have norms.
    pub const fn ffn_norm(self) -> &'static str {
        match self.is_hybrid() {
            true => "post_attention_norm",
            false => "ffn_norm",
        }
    }

    /// Whether several residual streams take the place of one, and what mixes them that of norms.
    pub const fn has_streams(self) -> bool {
        matches!(self, Self::Qwen4Exp)
    }

    /// What the output gate of the gated delta net goes through; no key says so.
    pub const fn delta_gate(self) -> Activation {
        match self {
            Self::Qwen4Exp => Activation::Sigmoid,
            _ => Activation::Silu,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
