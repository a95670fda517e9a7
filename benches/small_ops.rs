//! Speed of what a step of Qwen3.8-Flash-Next does besides products, attention and the delta rule, for
//! one token and for a part of a prompt. What an op moves stays in caches here, as it does in a step.
//!
//!     LP_NUM_THREADS=$(nproc) LP_NATIVE_VECTOR_WIDTH=256 cargo bench --bench small_ops -- kv_write
//!
//! (Cargo turns threads off and vectors to 128 bits for the sake of tests on software Vulkan.)

mod random;
mod timing;

use engine::{
    Result,
    gpu::{Buf, Gpu, Heap, MemoryKind, Recorder, Restrictions},
    kv::{IndexLayer, IndexShape, IndexStep, KvLayer, KvStep, KvType},
    model::rope::RopeKind,
    ops::{
        Matrix, Routing, Source, Tensor, causal_conv, embed_rows,
        gated_norm::{self, Activation},
        hyper_inject::{self, Injection, Streams, Weighing},
        hyper_mix, index_write, kv_write,
        ple_gate::{self, PleNorms},
        qk_rope::{self, Heads},
        quantise, rms_norm,
        rope::{HeadNorm, RopeTable, Rotation},
        routing, top_logits,
    },
    quant::BlockType,
};
use timing::{Bench, Work};

const EMBD: u32 = 2560;
const STREAMS: u32 = 4;
const VOCAB: u32 = 248_320;
const EXPERTS: u32 = 512;
/// Experts a token.
const K: u32 = 10;
/// Query heads, kv heads and the size of both.
const HEADS: [u32; 2] = [24, 2];
const HEAD_DIM: u32 = 256;
const N_ROT: u32 = 64;
/// Heads of v in the delta rule, their size, and channels of its convolution.
const DELTA: [u32; 3] = [48, 128, 10_240];
const INDEX: IndexShape = IndexShape { heads: 4, head_dim: 128, ratio: 4, budget: 2048 };
const EPS: f32 = 1e-6;
/// Runs in a recording: those of one are too short to time.
const TIMES: u32 = 32;

fn main() -> Result<()> {
    let bench = Bench::open(Restrictions { int_dot: Some(true), ..Restrictions::default() })?;
    for n in [1, 256] {
        let small = Small { bench: &bench, n };
        small.norms()?;
        small.streams()?;
        small.routing()?;
        small.convolution()?;
        small.rope()?;
        small.cache()?;
        small.index()?;
        small.embedding()?;
    }
    let logits = tensor(&bench.gpu, 1, VOCAB)?;
    let choice = top_logits::buffer(&bench.gpu)?;
    let op = |rec: &mut Recorder| top_logits::record(rec, &logits, &choice);
    times(&bench, "top_logits", Some(f64::from(VOCAB) * 4.0), &op)
}

/// Prints the line of an op of which `record` adds one run; `bytes` as of [`Work`].
fn times(
    bench: &Bench,
    name: &str,
    bytes: Option<f64>,
    record: &dyn Fn(&mut Recorder) -> Result<()>,
) -> Result<()> {
    let mut rec = Recorder::new(&bench.gpu);
    (0..TIMES).try_for_each(|_| record(&mut rec))?;
    bench.line(name, &rec.finish()?, TIMES, Work { bytes, ..Work::default() })
}

/// Values from -1 to 1, with room for their form as whole numbers.
fn tensor(gpu: &Gpu, rows: u32, width: u32) -> Result<Tensor> {
    let made = Tensor::factor(gpu, "x", rows, width, 8)?;
    gpu.upload(&made.buf, 0, bytemuck::cast_slice(&random::values(rows * width)))?;
    Ok(made)
}

fn words(gpu: &Gpu, words: impl Iterator<Item = u32>) -> Result<Buf> {
    let words: Vec<u32> = words.collect();
    let buf = gpu.alloc("words", words.len() as u64 * 4, MemoryKind::Scratch)?;
    gpu.upload(&buf, 0, bytemuck::cast_slice(&words))?;
    Ok(buf)
}

/// Ops on this many tokens.
struct Small<'a> {
    bench: &'a Bench,
    n: u32,
}

impl Small<'_> {
    fn line(
        &self,
        name: &str,
        bytes: Option<f64>,
        record: &dyn Fn(&mut Recorder) -> Result<()>,
    ) -> Result<()> {
        times(self.bench, &format!("{name} n {}", self.n), bytes, record)
    }

    /// A row a token.
    fn rows(&self, width: u32) -> Result<Tensor> {
        tensor(&self.bench.gpu, self.n, width)
    }

    fn norms(&self) -> Result<()> {
        let n = self.n;
        let (x, y) = (self.rows(EMBD)?, self.rows(EMBD)?);
        let gamma = tensor(&self.bench.gpu, 1, EMBD)?;
        self.line("rms_norm", None, &|rec| rms_norm::record(rec, &x, &gamma, &y, n, EPS))?;
        if n <= 8 {
            self.line("quantise", None, &|rec| quantise::record(rec, &x, n))?;
        }
        let [heads, size, _] = DELTA;
        let [o, z, y] = [(); 3].map(|()| self.rows(heads * size));
        let (o, z, y, gamma) = (o?, z?, y?, tensor(&self.bench.gpu, 1, size)?);
        self.line("gated_norm", None, &|rec| {
            gated_norm::record(rec, &o, &z, &gamma, &y, n, EPS, Activation::Sigmoid)
        })
    }

    fn streams(&self) -> Result<()> {
        let (n, gpu) = (self.n, &self.bench.gpu);
        let [x, normed, gates] = [(); 3].map(|()| self.rows(STREAMS * EMBD));
        let (x, normed, gates) = (x?, normed?, gates?);
        let (gamma, rows) = (tensor(gpu, STREAMS, EMBD)?, tensor(gpu, STREAMS, STREAMS * EMBD)?);
        let (old, new) = (self.rows(STREAMS * STREAMS)?, self.rows(STREAMS * STREAMS)?);
        let (m, y) = (self.rows(EMBD)?, self.rows(EMBD)?);
        self.line("hyper_mix", None, &|rec| hyper_mix::record(rec, (&normed, &gates), &m, &y, n))?;
        self.line("hyper_inject", None, &|rec| {
            let streams = Streams { x: &x, gamma: &gamma, normed: &normed };
            let injection = Injection { parts: &old, y: &y };
            let weighing = Weighing { rows: &rows, parts: &new };
            hyper_inject::record(rec, streams, Some(injection), Some(weighing), n, EPS)
        })?;
        let norm = || tensor(gpu, 1, STREAMS * EMBD);
        let norms = PleNorms { key: norm()?, query: norm()?, conv: norm()? };
        self.line("ple_gate", None, &|rec| {
            ple_gate::record(rec, &gates, &m, &norms, &x, &normed, n, EPS)
        })
    }

    fn routing(&self) -> Result<()> {
        let (n, gpu) = (self.n, &self.bench.gpu);
        let logits = self.rows(EXPERTS + 1)?;
        let routing = Routing::new(gpu, n, K)?.with_shared(gpu, EMBD)?;
        // Of the shared expert only the weight is written.
        let bytes = f64::from(n * (EXPERTS + 1 + 2 * K + 1)) * 4.0;
        self.line("routing", Some(bytes), &|rec| routing::record(rec, &logits, &routing, n, K, 1.0))
    }

    fn convolution(&self) -> Result<()> {
        let (n, gpu, [_, _, channels]) = (self.n, &self.bench.gpu, DELTA);
        let (x, u) = (self.rows(channels)?, self.rows(channels)?);
        let (weight, tail) = (tensor(gpu, channels, 4)?, tensor(gpu, 3, channels)?);
        self.line("causal_conv", None, &|rec| causal_conv::record(rec, &x, &weight, &tail, &u, n))
    }

    /// The rotation of the step's tokens.
    fn rope_table(&self) -> Result<Tensor> {
        let pairs = 0..N_ROT / 2;
        let frequency = |i| 1e7_f64.powf(-2.0 * f64::from(i) / f64::from(N_ROT));
        let rope = RopeTable::new(pairs.map(frequency).collect(), 1.0);
        let table = rope.tensor(&self.bench.gpu, self.n)?;
        rope.write(&self.bench.gpu, 0, self.n, &table)?;
        Ok(table)
    }

    fn rope(&self) -> Result<()> {
        let (n, [count, _]) = (self.n, HEADS);
        let (q, y, table) =
            (self.rows(count * HEAD_DIM)?, self.rows(count * HEAD_DIM)?, self.rope_table()?);
        let gamma = tensor(&self.bench.gpu, 1, HEAD_DIM)?;
        self.line("qk_rope", None, &|rec| {
            let rotation = Rotation { table: &table, kind: RopeKind::Neox };
            let norm = HeadNorm { gamma: &gamma, eps: EPS };
            let heads = Heads { count, stride: HEAD_DIM };
            qk_rope::record(rec, (&q, heads), Some(norm), rotation, &y, n)
        })
    }

    fn cache(&self) -> Result<()> {
        let (n, gpu, [_, n_kv]) = (self.n, &self.bench.gpu, HEADS);
        let (k, v, table) =
            (self.rows(n_kv * HEAD_DIM)?, self.rows(n_kv * HEAD_DIM)?, self.rope_table()?);
        let (gamma, positions) = (tensor(gpu, 1, HEAD_DIM)?, words(gpu, 0..n)?);
        for ty in [KvType::F32, KvType::F16, KvType::Bf16, KvType::Q8_0, KvType::Q4_0] {
            let mut layer = KvLayer::new(gpu, n_kv, HEAD_DIM, ty, ty)?;
            layer.ensure(gpu, n, n, Heap::Device)?;
            let span = layer.span(0, n)?;
            let row = u64::from(n_kv * HEAD_DIM);
            let bytes = f64::from(n) * 2.0 * (row as f64 * 4.0 + ty.bytes(row) as f64);
            self.line(&format!("kv_write {}", ty.name()), Some(bytes), &|rec| {
                let step = KvStep { layer: &layer, positions: &positions, span, staging: None };
                let rotation = Rotation { table: &table, kind: RopeKind::Neox };
                let norm = HeadNorm { gamma: &gamma, eps: EPS };
                kv_write::record(rec, (&k, &v), Some(norm), rotation, step, n)
            })?;
        }
        Ok(())
    }

    fn index(&self) -> Result<()> {
        let (n, gpu, [_, n_kv]) = (self.n, &self.bench.gpu, HEADS);
        let mut kv = KvLayer::new(gpu, n_kv, HEAD_DIM, KvType::F16, KvType::F16)?;
        kv.ensure(gpu, n, n, Heap::Device)?;
        let mut layer = IndexLayer::new(INDEX, KvType::F16)?;
        layer.follow(gpu, &kv, n)?;
        let (keys, table) = (self.rows(INDEX.head_dim)?, self.rope_table()?);
        let (gamma, positions) = (tensor(gpu, 1, INDEX.head_dim)?, words(gpu, 0..n)?);
        let span = kv.span(0, n)?;
        // Of each token f32 to f16, of each block one more.
        let bytes = f64::from(n * INDEX.head_dim) * (6.0 + 2.0 / f64::from(INDEX.ratio));
        self.line("index_write", Some(bytes), &|rec| {
            let step = IndexStep { layer: &layer, positions: &positions, span };
            let blocks = Rotation { table: &table, kind: RopeKind::Neox };
            let norm = HeadNorm { gamma: &gamma, eps: EPS };
            index_write::record(rec, &keys, norm, blocks, step, n)
        })
    }

    fn embedding(&self) -> Result<()> {
        const ROWS: u32 = 4096;
        let (n, gpu) = (self.n, &self.bench.gpu);
        // Some rows a turn, far apart.
        let (ids, x) = (words(gpu, (0..n).map(|i| i * 1009 % ROWS))?, self.rows(EMBD)?);
        for &ty in BlockType::ALL.iter().filter(|ty| ty.runs_on_gpu()) {
            let name = format!("embed_rows {ty}");
            if !self.bench.wants(&format!("{name} n {n}")) {
                continue;
            }
            let rows = random::weights(ty, u64::from(EMBD) * u64::from(ROWS));
            let source = Source { ty, rows: &|_| &rows, factors: None, used: &|_| () };
            let table = Matrix::upload(gpu, Heap::Device, "table", [EMBD, ROWS, 1], source)?;
            let row = rows.len() as f64 / f64::from(ROWS) + f64::from(EMBD) * 4.0;
            self.line(&name, Some(f64::from(n) * row), &|rec| {
                embed_rows::record(rec, &table, &ids, &x, n)
            })?;
        }
        Ok(())
    }
}
