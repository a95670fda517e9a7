//! The kernels whose numbers follow from a model's shapes are listed with those of the two models that
//! matter: `examples/target_table` then sees the code that makes a token of theirs.

use super::{
    Matrix, MatrixPart, Routing, Tensor,
    experts::{self, ExpertScratch, Experts},
    gated_product::GateUp,
    product::{self, Epilogue},
    rms_norm, routing,
};
use crate::{
    gpu::{DeviceOptions, Gpu, Ledger, Memory, MemoryKind, Recorder, Restrictions},
    quant::BlockType,
    shader,
};

/// Sizes of a model, spec/architectures.md 4.3 and 4.5.
struct Sizes {
    embd: u32,
    experts: u32,
    /// Experts a token.
    k: u32,
    ff: u32,
    /// Of experts' down projections.
    down: &'static [BlockType],
    /// n_in and n_out of the other matrices.
    matrices: &'static [[u32; 2]],
}

use BlockType::{F32, Iq4Nl, Q4_0, Q4K, Q5_0, Q5_1, Q6K, Q8_0};

/// Qwen3.5-35B-A3B.
const PLAIN: Sizes = Sizes {
    embd: 2048,
    experts: 256,
    k: 8,
    ff: 512,
    down: &[Q8_0, Q4K, Q6K],
    matrices: &[
        // Attention: q with gate, k or v, out.
        [2048, 8192],
        [2048, 512],
        [4096, 2048],
        // Delta rule: qkv, gate, beta and alpha, out.
        [2048, 8192],
        [2048, 4096],
        [2048, 64],
        [4096, 2048],
        // Shared expert, head.
        [2048, 1024],
        [512, 2048],
        [2048, 248_320],
    ],
};

/// Qwen3.8-Flash-Next. Its experts are no whole blocks of K-quants wide.
const STREAMS: Sizes = Sizes {
    embd: 2560,
    experts: 512,
    k: 10,
    ff: 640,
    down: &[Q8_0, Q5_1, Q5_0, Q4_0, Iq4Nl],
    matrices: &[
        // Attention: q with gate, k or v, out, queries and keys of the indexer.
        [2560, 12_288],
        [2560, 512],
        [6144, 2560],
        [2560, 512],
        [2560, 128],
        // Delta rule: qkv, gate, beta and alpha, out.
        [2560, 10_240],
        [2560, 6144],
        [2560, 96],
        [6144, 2560],
        // Streams: down, up. N-grams: key, value.
        [10_240, 320],
        [320, 10_240],
        [2560, 10_240],
        [2560, 2560],
        // Shared expert, head.
        [2560, 1280],
        [640, 2560],
        [2560, 248_320],
    ],
};

/// Weights that are only planned.
fn matrix(ledger: &Ledger, ty: BlockType, [n_in, n_out, n_expert]: [u32; 3]) -> Matrix {
    let buf = ledger.alloc("weights", 16, MemoryKind::Weights).unwrap();
    let part = MatrixPart { buf, first_row: 0, rows: n_out * n_expert };
    let planes = ty.planes().expect("runs");
    Matrix { ty, n_in, n_out, n_expert, parts: vec![part], planes, in_f16: false }
}

/// Records what makes a token of `sizes` with experts of type `down`.
fn record(rec: &mut Recorder, ledger: &Ledger, sizes: &Sizes, down: BlockType) {
    let &Sizes { embd, experts, k, ff, matrices, .. } = sizes;
    let x = |width| Tensor::factor(ledger, "x", 1, width, 1).unwrap();
    let y = |width| Tensor::scratch(ledger, "y", 1, width).unwrap();
    let mut product = |ty, [n_in, n_out]: [u32; 2]| {
        let w = matrix(ledger, ty, [n_in, n_out, 1]);
        product::record(rec, "product", &w, &x(n_in), &y(n_out), 1, Epilogue::Store).unwrap();
    };
    for &shape in matrices {
        let fit = |ty: &&BlockType| shape[0].is_multiple_of(ty.block_elements() as u32);
        [Q8_0, Q4_0, Q5_0, Q4K, Q6K].iter().filter(fit).for_each(|ty| product(*ty, shape));
    }
    // The shared expert's gate is a row of the router's.
    product(F32, [embd, experts + 1]);
    let routing = Routing::new(ledger, 1, k).and_then(|r| r.with_shared(ledger, embd)).unwrap();
    routing::record(rec, &y(experts + 1), &routing, 1, k, 1.0).unwrap();
    let stack = Experts {
        gate_up: GateUp::of(matrix(ledger, Q8_0, [embd, 2 * ff, experts])),
        down: matrix(ledger, down, [ff, embd, experts]),
    };
    let scratch = ExpertScratch::new(ledger, 1, k, experts, ff, embd).unwrap();
    experts::record(rec, &stack, &x(embd), &routing, &scratch, &y(embd), 1).unwrap();
    rms_norm::record(rec, &y(embd), &y(embd), &x(embd), 1, 1e-6).unwrap();
}

/// Without subgroups of one size, as of AMD's GPUs.
#[test]
fn kernels_of_real_shapes_are_in_the_target_table() {
    for int_dot in [true, false] {
        let restrict = Restrictions {
            no_subgroup: true,
            int_dot: Some(int_dot),
            software: Some(false),
            ..Restrictions::default()
        };
        let gpu = Gpu::open(&DeviceOptions { restrict, ..DeviceOptions::default() }).unwrap();
        let ledger = Ledger::new(gpu.caps().clone());
        for sizes in [PLAIN, STREAMS] {
            let mut rec = Recorder::new(&gpu);
            sizes.down.iter().for_each(|down| record(&mut rec, &ledger, &sizes, *down));
            for variant in rec.variants() {
                assert!(shader::listed().contains(variant), "`{variant}` is not listed");
            }
            let has = |name: &str| rec.variants().any(|v| v.shader() == name);
            assert!(["mat_vec", "expert_down", "routing", "rms_norm"].into_iter().all(has));
        }
    }
}
