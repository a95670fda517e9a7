//! Dequantisers against stored blocks (bit for bit) and against known answers.

use super::*;
use safetensors::SafeTensors;

const VECTORS: &[u8] = include_bytes!("../../tests/fixtures/quants/vectors.safetensors");

#[test]
fn stored_blocks_dequantise_exactly() {
    let vectors = SafeTensors::deserialize(VECTORS).unwrap();
    let mut types = 0;
    for &ty in BlockType::ALL {
        let Ok(raw) = vectors.tensor(&format!("{ty}.raw")) else { continue };
        let expected = vectors.tensor(&format!("{ty}.f32")).unwrap();
        let (expected, _) = expected.data().as_chunks::<4>();
        let mut got = vec![0.0; expected.len()];
        dequantise(ty, raw.data(), &mut got).unwrap();
        for (i, (got, bytes)) in got.iter().zip(expected).enumerate() {
            let expected = f32::from_le_bytes(*bytes);
            assert_eq!(got.to_bits(), expected.to_bits(), "{ty}[{i}]: {got} is not {expected}");
        }
        types += 1;
    }
    assert_eq!(types, 23, "every type of the fixture is checked");
}

/// A type, the bytes where its f16 fields d and m start, and the answers of spec/gguf.md 3.4:
/// y_0, y_1, y_17, y_last, sum of y, sum of (i + 1) * y_i.
type Known = (BlockType, &'static [usize], &'static [usize], [f64; 6]);

#[test]
fn known_answer_blocks() {
    use BlockType::*;
    let known: &[Known] = &[
        (Q4_0, &[q4_0::D], &[], [0.75, -1., -2., -2., -8.25, -199.75]),
        (Q4_1, &[q4_1::D], &[q4_1::M], [3.375, 1.625, 2.375, 2.375, 60.25, 932.5]),
        (Q5_0, &[q5_0::D], &[], [3.75, 2., -3.5, 0.5, -11.25, -296.25]),
        (Q5_1, &[q5_1::D], &[q5_1::M], [4.375, 2.625, 6.875, 2.875, 129.25, 2078.]),
        (Q8_0, &[q8_0::D], &[], [-17.25, 1., -27., -27.5, -12., -172.]),
        (Q2K, &[q2_k::D], &[q2_k::DMIN], [2., 4.25, 0.125, -0.875, 510.75, 62747.5]),
        (Q3K, &[q3_k::D], &[], [-1.75, 3.5, -1., -6., 58.5, 8686.5]),
        (Q4K, &[q4_k::D], &[q4_k::DMIN], [23.125, 0.375, 0.375, -2.875, 13338., 1842342.]),
        (Q5K, &[q5_k::D], &[q5_k::DMIN], [75.125, 0.375, 0.375, -2.875, 27518., 3726126.]),
        (Q6K, &[q6_k::D], &[], [40.25, -11.5, 25., 72., -3711., -407032.]),
        (Iq4Nl, &[iq4_nl::D], &[], [9.5, -12.25, -31.75, -31.75, -120.25, -3019.]),
        (Iq4Xs, &[iq4_xs::D], &[], [-754., 181.25, 275.5, -187.5, -1612.5, 220762.75]),
        (Mxfp4, &[], &[], [0.125, -0.1875, -0.1875, -0.1875, 1.5625, 39.125]),
        (Iq2Xxs, &[iq2_xxs::D], &[], [-30.90625, -30.90625, 5.75, -17.96875, -74.5625, 9403.5]),
        (Iq2Xs, &[iq2_xs::D], &[], [5.75, -17.96875, 24.21875, 7.75, 166.4375, 7310.15625]),
        (Iq2S, &[iq2_s::D], &[], [-1.75, -5.46875, 12.09375, -12.09375, -62.875, -1470.1875]),
        (Iq3Xxs, &[iq3_xxs::D], &[], [-74.25, -60.75, 33.75, 60.75, 485.375, 105293.125]),
        (Iq3S, &[iq3_s::D], &[], [-8.75, -1.75, 1.75, 19.25, 40.5, -3459.5]),
        (Iq1S, &[iq1_s::D], &[], [0.15625, 0.15625, 1.40625, -1.09375, -18.25, -2951.]),
        (Iq1M, &[], &[], [0.65625, -0.84375, 1.96875, -2.53125, -15.25, -1727.]),
        (Nvfp4, &[], &[], [-0.84375, 1.125, -640., 0.0078125, 1510.4453125, 35656.62890625]),
    ];
    for &(ty, d, m, expected) in known {
        let mut block: Vec<u8> = (0..ty.block_bytes()).map(|k| (73 * k + 41) as u8).collect();
        for &at in d {
            block[at..at + 2].copy_from_slice(&0x3400u16.to_le_bytes());
        }
        for &at in m {
            block[at..at + 2].copy_from_slice(&0x3000u16.to_le_bytes());
        }
        match ty {
            Mxfp4 => block[mxfp4::E] = 124,
            Iq1M => iq1_m::set_d(&mut block, half::f16::from_bits(0x3400)),
            _ => {}
        }
        let mut y = vec![0.0; ty.block_elements()];
        dequantise(ty, &block, &mut y).unwrap();
        let y: Vec<f64> = y.into_iter().map(f64::from).collect();
        let weighted = y.iter().enumerate().map(|(i, y)| (i + 1) as f64 * y).sum();
        let got = [y[0], y[1], y[17], y[y.len() - 1], y.iter().sum(), weighted];
        assert_eq!(got, expected, "{ty}");
    }
}

#[test]
fn ids_and_names_round_trip() {
    for &ty in BlockType::ALL {
        assert_eq!(BlockType::from_id(ty.id()), Some(ty));
        assert_eq!(ty.to_string(), ty.name());
    }
    for removed in [4, 5, 31, 32, 33, 36, 37, 38, 43, u32::MAX] {
        assert_eq!(BlockType::from_id(removed), None);
    }
}

#[test]
fn rows_hold_whole_blocks() {
    assert_eq!(BlockType::Q6K.row_bytes(512), Some(420));
    assert_eq!(BlockType::Q6K.row_bytes(500), None);
    assert_eq!(BlockType::F32.row_bytes(u64::MAX), None);
}

#[test]
fn wrong_lengths_and_types_are_errors() {
    let mut y = [0.0; 32];
    let short = dequantise(BlockType::Q8_0, &[0; 33], &mut y).unwrap_err();
    assert!(short.to_string().contains("33 bytes of Q8_0"));
    let unknown = dequantise(BlockType::I32, &[0; 128], &mut y).unwrap_err();
    assert!(unknown.to_string().contains("I32"));
}

#[test]
fn mxfp4_exponent_255_is_not_a_number() {
    let mut y = [0.0; 32];
    dequantise(BlockType::Mxfp4, &[255; 17], &mut y).unwrap();
    assert!(y.iter().all(|y| y.is_nan()));
}
