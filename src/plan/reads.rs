//! What decoding a token reads, and what that costs at most (spec/kv-offload.md 1 and 4).

use serde::Serialize;

/// Depths that a plan shows, where the context is longer.
pub(super) const DEPTHS: [u32; 6] = [2048, 32_768, 131_072, 262_144, 1_048_576, 3_145_728];

/// Bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bandwidth {
    /// Of the device's memory.
    pub device: Option<f64>,
    /// Of host memory as the device reads it.
    pub bus: Option<f64>,
}

/// What decoding a token reads when it is the `depth`th of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reads {
    /// Tokens of the sequence, the one decoded included.
    pub depth: u32,
    /// Bytes of weights: of experts only those used.
    pub weights: u64,
    /// Bytes of state of fixed size, read and written.
    pub state: u64,
    /// Bytes of keys and values.
    pub kv: u64,
    /// Bytes of pooled index keys.
    pub index_pooled: u64,
    /// All of them.
    pub total: u64,
    /// Milliseconds that reading takes at the bandwidths given, a lower bound of a token's time.
    pub ms: Option<f64>,
    /// The upper bound of tokens a second that follows.
    pub tokens_per_second: Option<f64>,
}

/// Bytes read, where there are two figures on the device and on the host.
pub(super) struct Read {
    pub(super) depth: u32,
    pub(super) weights: [u64; 2],
    pub(super) state: u64,
    pub(super) kv: [u64; 2],
    pub(super) pooled: u64,
}

impl Read {
    /// The same with its cost, where the bandwidths that it takes are known.
    pub(super) fn cost(&self, bandwidth: Bandwidth) -> Reads {
        let Self { depth, weights, state, kv, pooled } = *self;
        let device = weights[0] + state + kv[0] + pooled;
        let host = weights[1] + kv[1];
        let seconds = |bytes: u64, rate: Option<f64>| match bytes {
            0 => Some(0.0),
            _ => rate.map(|rate| bytes as f64 / rate),
        };
        let time = seconds(device, bandwidth.device).zip(seconds(host, bandwidth.bus));
        let time = time.map(|(device, host)| device + host).filter(|time| *time > 0.0);
        Reads {
            depth,
            weights: weights.iter().sum(),
            state,
            kv: kv.iter().sum(),
            index_pooled: pooled,
            total: device + host,
            ms: time.map(|time| time * 1e3),
            tokens_per_second: time.map(f64::recip),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_heap_costs_its_own_bandwidth() {
        let read = Read { depth: 9, weights: [3000, 0], state: 500, kv: [0, 2000], pooled: 500 };
        let bandwidth = Bandwidth { device: Some(1e6), bus: Some(5e5) };
        let cost = read.cost(bandwidth);
        assert_eq!((cost.total, cost.weights, cost.kv), (6000, 3000, 2000));
        assert!((cost.ms.unwrap() - 8.0).abs() < 1e-9);
        assert!((cost.tokens_per_second.unwrap() - 125.0).abs() < 1e-9);
        let on_device = Read { kv: [2000, 0], ..read };
        let bandwidth = Bandwidth { bus: None, ..bandwidth };
        assert!((on_device.cost(bandwidth).ms.unwrap() - 6.0).abs() < 1e-9);
        let unknown = Read { kv: [0, 1], ..on_device };
        assert_eq!(unknown.cost(bandwidth).ms, None);
    }
}
