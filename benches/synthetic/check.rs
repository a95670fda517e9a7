//! Which sizes make a model that runs.

use engine::plan::Weights;

use super::{ATTENTION_INTERVAL, Geometry};

/// Tokens of the fixture whose tokenizer is taken.
const TOKENS: u32 = 640;
/// Most experts that are routed to.
const MAX_EXPERTS: u32 = 2048;
/// Largest head of softmax attention.
const MAX_HEAD_DIM: u32 = 512;
/// Heads of the gated delta net.
const STATE_SIZES: [u32; 5] = [16, 32, 64, 128, 256];

impl Geometry {
    /// Whether the engine runs such a model.
    ///
    /// # Errors
    /// A sentence that names the flag of `make_model` whose size makes no model that runs.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { layers, heads, kv_heads, head_dim, n_rot, key_heads, value_heads, .. } = *self;
        let Self { state_size, experts, experts_used, .. } = *self;
        // Height and time each turn one pair at least; the indexer's heads rotate too.
        let most_rot = self.streams.map_or(head_dim, |streams| head_dim.min(streams.index_dim));
        let within = |n: u32, least: u32, most: u32| {
            let fault = || format!("is {n}, not {least} to {most}");
            (!(least..=most).contains(&n)).then(fault)
        };
        let multiple = |n: u32, of: u32, what: &str| {
            let fault = || format!("is {n}, which is no multiple of {of}{what}");
            (n == 0 || !n.is_multiple_of(of)).then(fault)
        };
        // Rows of smaller blocks are the least that a type falls back to.
        let block = match self.weights {
            Weights::Type(ty) => ty.block_elements().min(32) as u32,
            _ => 32,
        };
        let rows = |n| multiple(n, block, ", the weights of a block");
        let faults = [
            ("--layers", within(layers, ATTENTION_INTERVAL, 1024)),
            ("--vocab", within(self.vocab, TOKENS, u32::MAX)),
            ("--embd", within(self.embd, 1, 1 << 20).or_else(|| rows(self.embd))),
            ("--kv-heads", within(kv_heads, 1, 1 << 10)),
            ("--heads", within(heads, 1, 1 << 10)),
            ("--heads", multiple(heads, kv_heads.max(1), ", the heads of keys")),
            ("--head-dim", within(head_dim, 8, MAX_HEAD_DIM).or_else(|| multiple(head_dim, 8, ""))),
            ("--heads times --head-dim", rows(heads.saturating_mul(head_dim))),
            ("--rot", within(n_rot, 4, most_rot).or_else(|| multiple(n_rot, 2, ""))),
            ("--key-heads", within(key_heads, 1, 1 << 10)),
            ("--value-heads", within(value_heads, 1, 1 << 10)),
            ("--value-heads", multiple(value_heads, key_heads.max(1), ", the heads of keys")),
            (
                "--state-size",
                (!STATE_SIZES.contains(&state_size))
                    .then(|| format!("is {state_size}, none of {STATE_SIZES:?}")),
            ),
            ("--value-heads times --state-size", rows(value_heads.saturating_mul(state_size))),
            ("--experts", within(experts, 1, MAX_EXPERTS)),
            ("--experts-used", within(experts_used, 1, experts)),
            ("--expert-ff", within(self.expert_ff, 1, 1 << 20).or_else(|| rows(self.expert_ff))),
        ];
        let first = faults.into_iter().find_map(|(flag, fault)| Some((flag, fault?)));
        first.map_or(Ok(()), |(flag, fault)| Err(format!("{flag} {fault}")))
    }
}
