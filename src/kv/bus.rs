//! The price of reading keys and values over the bus.

use crate::gpu::AdapterKind;

/// Bytes a second that PCIe 4.0 with 16 lanes gives (spec/kv-offload.md 4): assumed, not measured.
const PCIE: f64 = 26.5e9;

/// What to tell a user of whose full `context` so many `tokens` are cached in host memory, where
/// layers that attend to all have `bytes` of each: nothing where there are no such layers or the
/// device has no other memory than the host's.
pub fn warning(device: AdapterKind, bytes: u64, tokens: u32, context: u32) -> Option<String> {
    if device.shares_memory() || bytes == 0 || tokens == 0 {
        return None;
    }
    let all = bytes * u64::from(tokens);
    let ms = |bytes: u64| bytes as f64 / PCIE * 1e3;
    Some(format!(
        "every decoded token reads all keys and values, those in host memory over the bus: \
         {bytes} bytes x {tokens} tokens there at the full context of {context} = {all} bytes, \
         {:.1} ms a token, {:.2} ms for every 1024 tokens of depth, at the 26.5 GB/s assumed of \
         PCIe 4.0 x16",
        ms(all),
        ms(bytes * 1024)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arithmetic_is_told_where_there_is_a_bus() {
        // The hybrid model of spec/kv-offload.md 1.
        let text = warning(AdapterKind::Discrete, 20_480, 128 << 10, 256 << 10).unwrap();
        for part in [
            "20480 bytes x 131072 tokens there at the full context of 262144 = 2684354560 bytes",
            "101.3 ms a token",
            "0.79 ms for every 1024",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(warning(AdapterKind::Integrated, 20_480, 4096, 4096), None);
        assert_eq!(warning(AdapterKind::Discrete, 0, 4096, 4096), None);
        assert_eq!(warning(AdapterKind::Discrete, 20_480, 0, 4096), None);
    }
}
