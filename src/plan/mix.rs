//! The types that a file's tensors have, where only a model's name is known (spec/gguf.md 4).

use crate::{Error, ngram, quant::BlockType};
use std::str::FromStr;

/// What file of a known model is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// The common 4-bit mix, Q4_K_M: Q4_K, with Q6_K for the output and, in half of the layers,
    /// for values (or queries, keys and values in one) and the last product of feed-forward
    /// networks.
    #[default]
    Mix,
    /// One type for everything that is ever quantised.
    Type(BlockType),
    /// The mix, scaled to a file of so many bytes.
    Bytes(u64),
}

const MIX: &str = "Q4_K_M";

impl Weights {
    /// The type of tensor `name`, whose dimensions are `dims`, of a model of `n_layer` layers.
    pub fn ty(self, name: &str, dims: &[u64; 4], n_layer: u32) -> BlockType {
        let wanted = match self {
            Self::Type(ty) => ty,
            // The table is 160 wide, which 4-bit K blocks do not divide.
            _ if name == ngram::TABLE => BlockType::Iq4Nl,
            _ if name == "output.weight" => BlockType::Q6K,
            _ if is_raised(name, n_layer) => BlockType::Q6K,
            _ => BlockType::Q4K,
        };
        match is_quantised(name, dims) {
            true => fitting(wanted, dims[0]),
            false if is_indexer(name) => BlockType::Bf16,
            false => BlockType::F32,
        }
    }

    /// The size of the file, where it is known.
    pub(super) fn file_bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl FromStr for Weights {
    type Err = Error;

    /// A type or the mix, by name and without regard to case.
    fn from_str(text: &str) -> Result<Self, Error> {
        let types = || BlockType::ALL.iter().filter(|ty| ty.planes().is_some());
        let found = types().find(|ty| ty.name().eq_ignore_ascii_case(text));
        match found {
            Some(ty) => Ok(Self::Type(*ty)),
            None if text.eq_ignore_ascii_case(MIX) => Ok(Self::Mix),
            None => {
                let known: Vec<_> = types().map(|ty| ty.name()).collect();
                let known = known.join(", ");
                Err(Error::Usage(format!("{text} is no type of weights; known are {MIX}, {known}")))
            }
        }
    }
}

/// Values and last products in the first and the last eighth of the layers and in every third
/// between, as llama.cpp rounds eighths.
fn is_raised(name: &str, n_layer: u32) -> bool {
    const PARTS: [&str; 5] = [
        "attn_v.weight",
        "attn_qkv.weight",
        "ffn_down.weight",
        "ffn_down_exps.weight",
        "ffn_down_shexp.weight",
    ];
    let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'))
    else {
        return false;
    };
    let eighth = n_layer / 8;
    let raised = |il: u32| il < eighth || il >= 7 * n_layer / 8 || (il - eighth) % 3 == 2;
    PARTS.contains(&part) && layer.parse().is_ok_and(raised)
}

fn is_indexer(name: &str) -> bool {
    name.ends_with("indexer.q_proj.weight") || name.ends_with("indexer.k_proj.weight")
}

fn is_quantised(name: &str, dims: &[u64; 4]) -> bool {
    let kept = ["ffn_gate_inp", "conv1d", "_inject", "norm"];
    dims[1] > 1 && !is_indexer(name) && !kept.iter().any(|part| name.contains(part))
}

/// `ty`, or what takes its place for rows of `width` values that its blocks do not divide.
fn fitting(ty: BlockType, width: u64) -> BlockType {
    if ty.row_bytes(width).is_some() {
        return ty;
    }
    let other = match ty {
        BlockType::Q2K | BlockType::Q3K => BlockType::Q4_0,
        BlockType::Q4K => BlockType::Q5_0,
        BlockType::Q5K => BlockType::Q5_1,
        BlockType::Q6K => BlockType::Q8_0,
        _ => BlockType::Iq4Nl,
    };
    if other.row_bytes(width).is_some() { other } else { BlockType::F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_the_mix() {
        let ty = |name, width| Weights::Mix.ty(name, &[width, 512, 1, 1], 48).name();
        assert_eq!(ty("output.weight", 2048), "Q6_K");
        assert_eq!(ty("blk.7.attn_q.weight", 2048), "Q4_K");
        assert_eq!(ty("blk.5.ffn_down_exps.weight", 640), "Q8_0");
        assert_eq!(ty("blk.6.ffn_down_exps.weight", 640), "Q5_0");
        let raised = |l: &u32| is_raised(&format!("blk.{l}.attn_v.weight"), 48);
        assert_eq!((0..48).filter(raised).count(), 6 + 6 + 12);
        let few: Vec<_> =
            (0..4).filter(|l| is_raised(&format!("blk.{l}.attn_v.weight"), 4)).collect();
        assert_eq!(few, [2, 3]);
        assert_eq!(ty("blk.4.attn_qkv.weight", 2048), "Q6_K");
        assert_eq!(ty("blk.4.ssm_alpha.weight", 2048), "Q4_K");
        assert_eq!(ty("blk.3.indexer.q_proj.weight", 2560), "BF16");
        assert_eq!(ty("blk.3.ffn_gate_inp.weight", 2560), "F32");
        assert_eq!(ty(ngram::TABLE, 160), "IQ4_NL");
        assert_eq!(Weights::Mix.ty("output_norm.weight", &[2560, 1, 1, 1], 48).name(), "F32");
    }

    #[test]
    fn names_of_types() {
        assert_eq!("q4_k_m".parse::<Weights>().unwrap(), Weights::Mix);
        assert_eq!("q8_0".parse::<Weights>().unwrap(), Weights::Type(BlockType::Q8_0));
        let text = "q9".parse::<Weights>().unwrap_err().to_string();
        assert!(text.contains("q9 is no") && text.contains("Q4_K_M, F32"), "{text}");
    }
}
