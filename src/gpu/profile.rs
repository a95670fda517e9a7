//! Time per op, from GPU timestamps.

use super::Lap;
use std::collections::BTreeMap;

/// Time and dispatches of one op.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct OpTime {
    /// Dispatches.
    pub count: u64,
    /// Nanoseconds; 0 where the adapter has no timestamps.
    pub ns: f64,
}

/// Sums by op name.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Profile {
    /// Op name to its sums.
    pub ops: BTreeMap<&'static str, OpTime>,
}

impl Profile {
    /// Adds a dispatch.
    pub fn add(&mut self, (op, ns): Lap) {
        let sums = self.ops.entry(op).or_default();
        sums.count += 1;
        sums.ns += ns.unwrap_or_default();
    }
}
