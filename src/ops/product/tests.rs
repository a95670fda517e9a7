//! Products of every type, shape and form against f64.

use super::*;
use crate::{
    gpu::Heap,
    ops::{
        Source,
        testing::{
            TestDevice, assert_close, each_device, each_form, in_turn, multiply, random, silu,
        },
    },
    quant::{BlockType, dequantise, random::random_weights},
};

fn types() -> impl Iterator<Item = BlockType> {
    BlockType::ALL.iter().copied().filter(|ty| ty.runs_on_gpu())
}

/// Widths to try: an odd number of blocks, and for floats any.
fn widths(ty: BlockType) -> &'static [usize] {
    match ty.block_elements() {
        1 => &[1, 70, 288],
        32 => &[288],
        64 => &[320],
        _ => &[768],
    }
}

/// Of f32.
fn check(t: &TestDevice, ty: BlockType, n_in: usize, n_out: usize, n: usize) {
    check_to(t, ty, n_in, n_out, n, 1e-5);
}

fn check_to(t: &TestDevice, ty: BlockType, n_in: usize, n_out: usize, n: usize, near: f64) {
    let x = random(n as u64, n * n_in);
    check_with(t, ty, n_out, n, &x, &t.upload(&x, n_in), near);
}

/// Of whole numbers, where the device multiplies them and n rows are few.
fn check_whole(t: &TestDevice, ty: BlockType, n_in: usize, n_out: usize, n: usize) {
    let x = random(n as u64, n * n_in);
    check_with(t, ty, n_out, n, &x, &t.factor(&x, n_in), WHOLE);
}

/// What rounding x to 16 bits may change.
const WHOLE: f64 = 5e-5;

fn check_with(
    t: &TestDevice,
    ty: BlockType,
    n_out: usize,
    n: usize,
    x: &[f32],
    x_t: &Tensor,
    tolerance: f64,
) {
    let n_in = x_t.width as usize;
    let (w, values) = t.weights(ty, [1, n_out, n_in]);
    let y = t.scratch(n, n_out);
    t.run(|rec| record(rec, "test", &w, x_t, &y, n as u32, Epilogue::Store));
    println!("{ty} {n_out} x {n_in}, {n} rows of x, whole: {}", x_t.whole.is_some());
    assert_close(&t.read(&y), &multiply(&values, x, n_in), tolerance);
}

#[test]
fn mat_vec_of_every_type() {
    each_form(|t, ty, whole| {
        for &n_in in widths(ty) {
            let check = if whole { check_whole } else { check };
            check(t, ty, n_in, 37, 1);
        }
    });
}

#[test]
fn mat_vec_for_software() {
    use BlockType::{Bf16, F32, Iq2Xxs, Q4K, Q6K, Q8_0};
    let t = TestDevice::software();
    // The others are in the models' tests.
    for ty in [F32, Bf16, Q8_0, Q4K, Q6K, Iq2Xxs] {
        for &n_in in widths(ty) {
            check(&t, ty, n_in, 37, 1);
        }
    }
    check(&t, Q4K, 256, 300, 3);
    check(&t, Q8_0, 64, 21, 8);
    check_epilogues(&t, 1, 1e-5);
    assert!(t.gpu.kernel_names().iter().any(|k| k.contains("mat_vec") && k.contains("LANES=1 ")));
}

#[test]
fn mat_vec_of_up_to_eight_rows() {
    each_device(|t| {
        for n in 2..=8 {
            check_whole(t, BlockType::Q4_0, 96, 21, n);
        }
        check(t, BlockType::Q8_0, 32, 5, 8);
        check(t, BlockType::Q4K, 256, 3, 4);
        check(t, BlockType::F32, 33, 3, 3);
    });
}

#[test]
fn a_row_does_not_depend_on_those_beside_it() {
    each_device(|t| {
        for ty in [BlockType::Q4K, BlockType::Q8_0] {
            let (w, _) = t.weights(ty, [1, 37, 768]);
            let x = random(5, 8 * 768);
            let y = |rows: &[f32]| {
                let (n, x) = (rows.len() / 768, t.upload(rows, 768));
                let y = t.scratch(n, 37);
                t.run(|rec| record(rec, "test", &w, &x, &y, n as u32, Epilogue::Store));
                t.read(&y)
            };
            let alone: Vec<f32> = x.chunks(768).flat_map(y).collect();
            for n in 2..=8 {
                assert!(y(&x[..n * 768]) == alone[..n * 37], "{ty}, {n} rows");
            }
        }
    });
}

#[test]
fn tiled_product_of_every_type() {
    in_turn(types(), |t, ty| {
        for &n_in in widths(ty) {
            check(t, ty, n_in, 70, 10);
        }
    });
}

#[test]
fn tiled_product_of_any_number_of_rows() {
    each_device(|t| {
        for n in [9, 16, 17, 33, 64, 65, 130] {
            check(t, BlockType::Q8_0, 64, 65, n);
            check(t, BlockType::F16, 40, 5, n);
        }
    });
}

#[test]
fn more_rows_than_workgroups_in_one_dimension() {
    each_device(|t| {
        check(t, BlockType::Q4_0, 32, 20_011, 1);
        check(t, BlockType::Q4_0, 32, 20_011, 9);
    });
}

fn check_epilogues(t: &TestDevice, n: usize, near: f64) {
    let (w, values) = t.weights(BlockType::Q8_0, [1, 18, 64]);
    let (x, before) = (random(1, n * 64), random(2, n * 18));
    let x_t = t.upload(&x, 64);
    let v = multiply(&values, &x, 64);
    let run = |epilogue, y: &Tensor| {
        t.run(|rec| record(rec, "test", &w, &x_t, y, n as u32, epilogue));
        t.read(y)
    };
    let pairs = || v.iter().zip(&before).map(|(v, b)| (*v, f64::from(*b)));
    let add: Vec<_> = pairs().map(|(v, b)| b + v).collect();
    assert_close(&run(Epilogue::Add, &t.upload(&before, 18)), &add, near);
    let multiply: Vec<_> = pairs().map(|(v, b)| b * v).collect();
    assert_close(&run(Epilogue::Multiply, &t.upload(&before, 18)), &multiply, near);
    let gate: Vec<_> = v.iter().map(|v| silu(*v)).collect();
    assert_close(&run(Epilogue::Silu, &t.scratch(n, 18)), &gate, near);
    let gated: Vec<_> = v.chunks(2).map(|v| silu(v[0]) * v[1]).collect();
    assert_close(&run(Epilogue::Gated, &t.scratch(n, 9)), &gated, near);
}

#[test]
fn epilogues() {
    each_device(|t| {
        check_epilogues(t, 3, 1e-5);
        check_epilogues(t, 20, 1e-5);
    });
}

#[test]
fn a_split_matrix_gives_the_same_bits() {
    let (whole, small) = (TestDevice::with_binding(1 << 20), TestDevice::with_binding(32768));
    // One plane, three, and a table before them.
    for ty in [BlockType::F16, BlockType::Q3K, BlockType::Iq4Xs] {
        let n_in = *widths(ty).last().expect("a width");
        for n in [1, 10] {
            let [one, many] = [&whole, &small].map(|t| {
                let (w, _) = t.weights(ty, [1, 300, n_in]);
                let (x, y) = (t.factor(&random(5, n * n_in), n_in), t.scratch(n, 300));
                t.run(|rec| record(rec, "test", &w, &x, &y, n as u32, Epilogue::Store));
                (w.parts.len(), w.bytes(), t.read(&y))
            });
            assert!(one.0 == 1 && many.0 > 1, "{ty}: {} and {} parts", one.0, many.0);
            let planes = ty.planes().expect("runs");
            let (_, each) = planes.offsets(1);
            assert!(many.1 >= one.1 && many.1 < one.1 + each * many.0 as u64);
            assert_eq!(one.2, many.2, "{ty}, {n} rows of x");
        }
    }
}

#[test]
fn activations_of_a_million_stay_finite() {
    each_device(|t| {
        for n in [1, 9] {
            let x: Vec<f32> = random(3, n * 256).iter().map(|v| v * 1e6).collect();
            check_with(t, BlockType::Q6K, 4, n, &x, &t.upload(&x, 256), 1e-5);
            check_with(t, BlockType::Q6K, 4, n, &x, &t.factor(&x, 256), WHOLE);
        }
    });
}

#[test]
fn what_is_no_number_stays_none() {
    each_device(|t| {
        for (bad, whole) in [(f32::NAN, false), (f32::NAN, true), (f32::INFINITY, true)] {
            let mut x = random(3, 2 * 64);
            x[70] = bad;
            let (w, values) = t.weights(BlockType::Q8_0, [1, 4, 64]);
            let x_t = if whole { t.factor(&x, 64) } else { t.upload(&x, 64) };
            let y = t.scratch(2, 4);
            t.run(|rec| record(rec, "test", &w, &x_t, &y, 2, Epilogue::Store));
            let (good, spoilt) = (t.read(&y)[..4].to_vec(), t.read(&y)[4..].to_vec());
            assert_close(&good, &multiply(&values, &x[..64], 64), WHOLE);
            assert!(spoilt.iter().all(|v| !v.is_finite()), "{spoilt:?}");
        }
    });
}

/// How near products of f16 come: each factor is rounded by up to 2^-11 of itself, and Mesa's
/// llvmpipe rounds each product, too.
const F16: f64 = 2e-3;

#[test]
fn cooperative_matrices_make_the_same_of_every_type() {
    let Some(t) = TestDevice::with_matrices() else { return };
    for ty in types() {
        check_to(&t, ty, *widths(ty).last().expect("a width"), 140, 10, F16);
    }
    let used = t.gpu.kernel_names();
    for ty in types().filter(|ty| *ty != BlockType::F32) {
        let format = format!("format={}", ty.planes().expect("runs").format);
        let found = used.iter().any(|k| k.starts_with("coop_product") && k.contains(&format));
        assert!(found, "{ty}: {used:?}");
    }
}

#[test]
fn cooperative_matrices_take_any_number_of_rows() {
    let Some(t) = TestDevice::with_matrices() else { return };
    for n in [9, 16, 17, 33, 64, 65, 130] {
        check_to(&t, BlockType::Q8_0, 64, 129, n, F16);
        check_to(&t, BlockType::F16, 40, 5, n, F16);
    }
    check_epilogues(&t, 20, F16);
}

/// How far a sum of products of f16 may be off. Of each product both factors and, by llvmpipe, itself
/// are rounded, by up to 2^-11 and evenly spread: a variance of 2^-22 / 3 each. Errors of products
/// are independent and sums are of f32, so six standard deviations are 6 * 2^-11 times the root of
/// the sum of squares. Small x lose up to 2^-29 of the row's largest besides (`f16_rows.wgsl`).
fn near_in_f16(w: &[f32], x: &[f32]) -> f64 {
    let terms = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
    let rounding = terms.map(|term| term * term).sum::<f64>().sqrt() * 6.0 / 2048.0;
    let largest = x.iter().fold(0.0, |m: f64, x| m.max(f64::from(*x).abs()));
    rounding + largest * w.iter().map(|w| f64::from(*w).abs()).sum::<f64>() / f64::from(1 << 29)
}

#[test]
fn cooperative_matrices_take_activations_of_any_size() {
    let Some(t) = TestDevice::with_matrices() else { return };
    let (n, width) = (12, 256);
    let (w, values) = t.weights(BlockType::Q6K, [1, 4, width]);
    // Each row of another size, 1e6 to 1e-6, a row of zeros, and one with a single large value.
    let mut x = random(3, n * width);
    for (row, x) in x.chunks_mut(width).enumerate() {
        let size = [1e6, 1e3, 1.0, 1e-3, 1e-6, 0.0][row % 6];
        x.iter_mut().for_each(|v| *v *= size);
    }
    x[2 * width] = 1e6;
    let (x_t, y) = (t.upload(&x, width), t.scratch(n, 4));
    t.run(|rec| record(rec, "test", &w, &x_t, &y, n as u32, Epilogue::Store));
    assert!(t.gpu.kernel_names().iter().any(|k| k.starts_with("coop_product")));
    let want = multiply(&values, &x, width);
    for (i, (got, want)) in t.read(&y).iter().zip(want).enumerate() {
        let near = near_in_f16(&values[i % 4 * width..][..width], &x[i / 4 * width..][..width]);
        assert!((f64::from(*got) - want).abs() <= near, "{got} is not {want} by {near}");
    }
}

/// Known fault: weights beyond the end of f16 became infinite.
#[test]
fn cooperative_matrices_leave_weights_beyond_f16_to_others() {
    let Some(t) = TestDevice::with_matrices() else { return };
    let (n, width) = (12, 256);
    let x = random(3, n * width);
    let x_t = t.upload(&x, width);
    // A scale, and the largest of the values in bf16.
    for (ty, at, bits) in [(BlockType::Q8_0, 0, 0x7bff_u16), (BlockType::Bf16, 2, 0x7180)] {
        let mut bytes = random_weights(ty, 7, 4 * width);
        bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        let mut values = vec![0.0; 4 * width];
        dequantise(ty, &bytes, &mut values).unwrap();
        let rows = |_| bytes.as_slice();
        let source = Source { ty, rows: &rows, factors: None, used: &|_| () };
        let shape = [width as u32, 4, 1];
        let w = Matrix::upload(&t.gpu, Heap::Device, "large", shape, source).unwrap();
        let y = t.scratch(n, 4);
        t.run(|rec| record(rec, "test", &w, &x_t, &y, n as u32, Epilogue::Store));
        assert_close(&t.read(&y), &multiply(&values, &x, width), 1e-5);
    }
}

#[test]
fn wrong_shapes_are_errors() {
    let t = TestDevice::with_binding(4096);
    let (w, _) = t.weights(BlockType::F32, [1, 4, 8]);
    let (stack, _) = t.weights(BlockType::F32, [2, 4, 8]);
    let (x, y) = (t.scratch(2, 8), t.scratch(2, 4));
    let mut rec = Recorder::new(&t.gpu);
    let mut fails = |w: &Matrix, x: &Tensor, y: &Tensor, n: u32, word: &str| {
        let e = record(&mut rec, "ffn_up", w, x, y, n, Epilogue::Store).unwrap_err();
        let text = e.to_string();
        assert!(text.contains("ffn_up") && text.contains(word), "{text}");
    };
    fails(&w, &y, &y, 1, "x is");
    fails(&w, &x, &x, 1, "y is");
    fails(&w, &x, &y, 3, "wanted 3");
    fails(&stack, &x, &y, 1, "stack of 2");
}
