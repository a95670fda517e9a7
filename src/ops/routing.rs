//! Router: softmax over all experts, top-k, renormalised weights (spec/architectures.md 1.5).

use super::{Tensor, reduction_width};
use crate::{
    Error, Result,
    gpu::{Buf, Grid, Memory, MemoryKind, Recorder},
    shader::Variant,
};

/// Which experts each token goes to, best first, and with what weights.
#[derive(Clone, Debug)]
pub struct Routing {
    /// u32 `[n][k]`: expert of each slot.
    pub ids: Buf,
    /// `[n][k]`: weight of each slot.
    pub weights: Tensor,
    /// What every token gets besides, in models that have it.
    pub shared: Option<SharedExpert>,
}

/// The shared expert as one more slot.
#[derive(Clone, Debug)]
pub struct SharedExpert {
    /// `[n][1]`: its weight.
    pub gate: Tensor,
    /// `[n][n_embd]`: its output.
    pub out: Tensor,
}

impl Routing {
    /// Room for `max_n` tokens of `k` experts; content unspecified.
    ///
    /// # Errors
    /// [`Error::Device`] when it exceeds a binding or memory is short.
    pub fn new(gpu: &dyn Memory, max_n: u32, k: u32) -> Result<Self> {
        let bytes = u64::from(max_n) * u64::from(k) * 4;
        let ids = gpu.alloc("expert ids", bytes, MemoryKind::Scratch)?;
        let weights = Tensor::scratch(gpu, "expert weights", max_n, k)?;
        Ok(Self { ids, weights, shared: None })
    }

    /// The same with a shared expert of `n_embd` values.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_shared(self, gpu: &dyn Memory, n_embd: u32) -> Result<Self> {
        let rows = self.weights.rows;
        let shared = SharedExpert {
            gate: Tensor::scratch(gpu, "shared gate", rows, 1)?,
            out: Tensor::scratch(gpu, "shared out", rows, n_embd)?,
        };
        Ok(Self { shared: Some(shared), ..self })
    }
}

/// Experts that fit the shader's table in workgroup memory.
const MAX_EXPERTS: u32 = 2048;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    n: u32,
    experts: u32,
    stride: u32,
    scale: f32,
}

/// Routes the first `n` tokens: the `k` experts with the largest of `logits` `[n][E]` (ties: the
/// lower index) and `scale · p / Σ p` over them, with p the softmax over all E and the sum
/// clamped as llama.cpp does. A NaN logit comes last in the order and makes all weights of its
/// token NaN. With a shared expert, logits are `[n][E + 1]`: the sigmoid of the last is its weight.
///
/// # Errors
/// Shapes that do not fit, `k` of 0 or above E, or more than 2048 experts.
pub fn record(
    rec: &mut Recorder,
    logits: &Tensor,
    routing: &Routing,
    n: u32,
    k: u32,
    scale: f32,
) -> Result<()> {
    let shared = routing.shared.as_ref();
    let stride = logits.width;
    let experts = stride - u32::from(shared.is_some()).min(stride);
    logits.expect("routing", "logits", n, stride)?;
    routing.weights.expect("routing", "weights", n, k)?;
    if k == 0 || k > experts || experts > MAX_EXPERTS {
        return Err(Error::Shader(format!(
            "routing: top {k} of {experts} experts, at most {MAX_EXPERTS} are supported"
        )));
    }
    if routing.ids.size() < u64::from(n) * u64::from(k) * 4 {
        return Err(Error::Shader(format!("routing: ids have no room for {n} x {k}")));
    }
    let caps = rec.gpu().caps();
    let variant = Variant::new("routing")
        .flag("shared", shared.is_some())
        .flag("subgroup", caps.subgroup)
        .number("WG", reduction_width(experts, caps))
        .number("QUADS", experts.div_ceil(4))
        .number("SLOTS", k);
    let params = Params { n, experts, stride, scale };
    let mut bindings = vec![(&logits.buf).into(), (&routing.ids).into()];
    bindings.push((&routing.weights.buf).into());
    if let Some(SharedExpert { gate, .. }) = shared {
        gate.expect("routing", "gate", n, 1)?;
        bindings.push((&gate.buf).into());
    }
    rec.dispatch("routing", &variant, &bindings, &params, Grid::Flat(u64::from(n)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{
        reference,
        testing::{TestDevice, assert_close, each_device, random},
    };

    fn route(t: &TestDevice, logits: &[f32], experts: usize, k: u32) -> (Vec<u32>, Vec<f32>) {
        let n = (logits.len() / experts) as u32;
        let (logits, routing) =
            (t.upload(logits, experts), Routing::new(&t.gpu, n, k).expect("routing"));
        t.run(|rec| record(rec, &logits, &routing, n, k, 1.5));
        let bytes = t.gpu.read(&routing.ids, 0, u64::from(n * k) * 4).expect("read");
        (bytemuck::pod_collect_to_vec(&bytes), t.read(&routing.weights))
    }

    fn check(t: &TestDevice, logits: &[f32], experts: usize, k: u32) {
        let (ids, weights) = route(t, logits, experts, k);
        for (i, row) in logits.chunks(experts).enumerate() {
            let slots = i * k as usize..(i + 1) * k as usize;
            let (want_ids, want) = reference::routing::route(row, k as usize, 1.5);
            assert_eq!(ids[slots.clone()], want_ids, "token {i} of {experts} experts");
            assert_close(&weights[slots], &want, 1e-5);
        }
    }

    #[test]
    fn any_number_of_experts() {
        each_device(|t| {
            let cases = [(1, 1, 1), (3, 5, 5), (2, 16, 8), (7, 100, 6), (2, 128, 8), (3, 256, 8)];
            for (n, experts, k) in cases.into_iter().chain([(2, 512, 10), (1, 600, 17)]) {
                let logits: Vec<f32> =
                    random(experts as u64, n * experts).iter().map(|v| v * 9.0).collect();
                check(t, &logits, experts, k);
            }
        });
    }

    #[test]
    fn the_shared_experts_gate_is_the_last_logit() {
        each_device(|t| {
            let (experts, k, n) = (70, 5, 9);
            let logits: Vec<f32> = random(3, n * (experts + 1)).iter().map(|v| v * 20.0).collect();
            let routing = Routing::new(&t.gpu, n as u32, k).unwrap();
            let routing = routing.with_shared(&t.gpu, 8).unwrap();
            let logits_t = t.upload(&logits, experts + 1);
            t.run(|rec| record(rec, &logits_t, &routing, n as u32, k, 1.0));
            let rows = || logits.chunks(experts + 1);
            let gates = t.read(&routing.shared.as_ref().unwrap().gate);
            let want: Vec<_> = rows().map(|row| reference::sigmoid(row[experts].into())).collect();
            assert_close(&gates, &want, 1e-6);
            let of = |row: &[f32]| reference::routing::route(&row[..experts], k as usize, 1.0).1;
            assert_close(&t.read(&routing.weights), &rows().flat_map(of).collect::<Vec<_>>(), 1e-5);
        });
    }

    #[test]
    fn more_tokens_than_workgroups_of_one_dimension() {
        each_device(|t| check(t, &random(5, 301 * 8), 8, 2));
    }

    #[test]
    fn ties_go_to_the_lower_index() {
        each_device(|t| {
            check(t, &[1.0; 70], 70, 9);
            let steps: Vec<f32> = (0..130).map(|i| (i * 7 % 5) as f32).collect();
            check(t, &steps, 130, 40);
        });
    }

    #[test]
    fn far_apart_logits() {
        each_device(|t| {
            let logits: Vec<f32> = random(8, 3 * 64).iter().map(|v| v * 1e6).collect();
            check(t, &logits, 64, 8);
        });
    }

    #[test]
    fn unusable_logits_give_ids_in_range_and_nan_weights() {
        each_device(|t| {
            let mut logits = random(9, 4 * 20);
            logits[..20].fill(f32::NAN);
            logits[25] = f32::NAN;
            logits[47] = f32::INFINITY;
            let (ids, weights) = route(t, &logits, 20, 6);
            assert!(ids.iter().all(|i| *i < 20), "{ids:?}");
            assert_eq!(ids[..6], [0, 1, 2, 3, 4, 5]);
            assert!(!ids[6..12].contains(&5), "{ids:?}");
            assert_eq!(ids[12], 7);
            assert!(weights[..18].iter().all(|w| w.is_nan()), "{weights:?}");
            assert!(weights[18..].iter().all(|w| w.is_finite()), "{weights:?}");
        });
    }

    #[test]
    fn wrong_shapes_are_named() {
        each_device(|t| {
            let routing = Routing::new(&t.gpu, 1, 4).expect("routing");
            let mut rec = Recorder::new(&t.gpu);
            for (experts, k) in [(3, 4), (4, 5), (4000, 4)] {
                let logits = t.scratch(1, experts);
                let e = record(&mut rec, &logits, &routing, 1, k, 1.0).unwrap_err().to_string();
                assert!(e.contains("routing: "), "{e}");
            }
        });
    }
}
