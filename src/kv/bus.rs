//! The price of reading keys and values over the bus.

use crate::gpu::AdapterKind;

/// Bytes a second that PCIe 4.0 with 16 lanes gives (spec/kv-offload.md 4): assumed, not measured.
const PCIE: f64 = 26.5e9;

/// What to tell a user whose cache has gone to host memory, of which every decoded token reads
/// `bytes` for each token of the context in layers that attend to all: nothing where there are no
/// such layers or the device has no other memory than the host's.
pub fn warning(device: AdapterKind, bytes: u64, context: u32) -> Option<String> {
    let shared = matches!(device, AdapterKind::Integrated | AdapterKind::Software);
    if shared || bytes == 0 {
        return None;
    }
    let all = bytes * u64::from(context);
    let ms = all as f64 / PCIE * 1e3;
    Some(format!(
        "keys and values are in host memory and every decoded token reads all of them: at the full \
         context up to {bytes} bytes x {context} tokens = {all} bytes, {ms:.1} ms a token at the \
         26.5 GB/s assumed of PCIe 4.0 x16"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arithmetic_is_told_where_there_is_a_bus() {
        // The hybrid model of spec/kv-offload.md 1.
        let text = warning(AdapterKind::Discrete, 20_480, 128 << 10).unwrap();
        assert!(
            text.contains("20480 bytes x 131072 tokens = 2684354560 bytes, 101.3 ms"),
            "{text}"
        );
        assert_eq!(warning(AdapterKind::Integrated, 20_480, 4096), None);
        assert_eq!(warning(AdapterKind::Discrete, 0, 4096), None);
    }
}
