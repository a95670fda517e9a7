//! What is measured: tests, and the settings that they are measured with.

use crate::kv::{KvHost, KvType};
use serde::Serialize;
use std::fmt;

/// What a test times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Kind {
    /// A prompt of so many tokens, in chunks.
    Prompt(u32),
    /// So many steps of one token, each the most probable one after the last.
    Generate(u32),
    /// A prompt of so many tokens and then so many steps, timed together.
    Both(u32, u32),
}

/// A test: one row for each setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Test {
    /// What is timed.
    pub kind: Kind,
    /// Tokens in the sequence before that, which are not timed.
    pub depth: u32,
}

impl Test {
    /// Tokens that are timed.
    pub fn tokens(&self) -> u32 {
        match self.kind {
            Kind::Prompt(n) | Kind::Generate(n) => n,
            Kind::Both(prompt, generate) => prompt.saturating_add(generate),
        }
    }
}

/// As llama-bench writes them: `pp512`, `tg128`, `pp512+tg128`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prompt(n) => write!(f, "pp{n}"),
            Self::Generate(n) => write!(f, "tg{n}"),
            Self::Both(prompt, generate) => write!(f, "pp{prompt}+tg{generate}"),
        }
    }
}

/// Likewise: `tg128 @ d4096`.
impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        match self.depth {
            0 => Ok(()),
            depth => write!(f, " @ d{depth}"),
        }
    }
}

/// What can be compared on one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Upper bound of `ubatch`.
    pub batch: u32,
    /// Tokens of a prefill step.
    pub ubatch: u32,
    /// Type of the cached keys.
    pub cache_k: KvType,
    /// Type of the cached values.
    pub cache_v: KvType,
    /// Which memory keys and values go to.
    pub kv_host: KvHost,
    /// Layers, from the first, whose experts are in host memory.
    pub experts_host: u32,
}

/// What distinguishes it in a picture or a list.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ubatch, cache_k, cache_v, kv_host, experts_host, .. } = self;
        write!(f, "ub{ubatch} {cache_k}/{cache_v} kv {}", super::stored::kv_host(*kv_host))?;
        match *experts_host {
            0 => Ok(()),
            u32::MAX => f.write_str(" experts host"),
            layers => write!(f, " experts of {layers} host"),
        }
    }
}

impl Setting {
    /// Every combination, the last list varying fastest.
    pub fn all(
        batch: &[u32],
        ubatch: &[u32],
        cache_k: &[KvType],
        cache_v: &[KvType],
        kv_host: &[KvHost],
        experts_host: &[u32],
    ) -> Vec<Self> {
        let mut all = Vec::new();
        for &batch in batch {
            for &ubatch in ubatch {
                for &cache_k in cache_k {
                    for &cache_v in cache_v {
                        for &kv_host in kv_host {
                            all.extend(experts_host.iter().map(|&experts_host| Self {
                                batch,
                                ubatch,
                                cache_k,
                                cache_v,
                                kv_host,
                                experts_host,
                            }));
                        }
                    }
                }
            }
        }
        all
    }
}

/// The order in which `n` settings are visited: the first before and after each other one.
pub(super) fn visits(n: usize) -> Vec<usize> {
    let others = (1..n).flat_map(|other| [other, 0]);
    [0].into_iter().filter(|_| n > 0).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_setting_brackets_every_other() {
        assert_eq!(visits(1), [0]);
        assert_eq!(visits(2), [0, 1, 0]);
        assert_eq!(visits(3), [0, 1, 0, 2, 0]);
        assert!(visits(0).is_empty());
    }

    #[test]
    fn tests_are_named_as_llama_bench_names_them() {
        let name = |kind, depth| Test { kind, depth }.to_string();
        assert_eq!(name(Kind::Prompt(512), 0), "pp512");
        assert_eq!(name(Kind::Generate(128), 131_072), "tg128 @ d131072");
        assert_eq!(name(Kind::Both(512, 128), 0), "pp512+tg128");
    }

    #[test]
    fn settings_are_all_combinations() {
        let all = Setting::all(
            &[2048],
            &[256, 512],
            &[KvType::F16, KvType::Q8_0],
            &[KvType::F16],
            &[KvHost::Auto],
            &[0, 3],
        );
        assert_eq!(all.iter().map(|s| s.experts_host).collect::<Vec<_>>(), [0, 3].repeat(4));
        let pairs: Vec<_> = all.iter().step_by(2).map(|s| (s.ubatch, s.cache_k)).collect();
        let (f16, q8) = (KvType::F16, KvType::Q8_0);
        assert_eq!(pairs, [(256, f16), (256, q8), (512, f16), (512, q8)]);
    }
}
