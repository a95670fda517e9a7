//! Dense and mixture-of-experts feed-forward, spec/architectures.md 1.5.

use super::{
    math::{Matrix, add_scaled, sigmoid, silu, softmax},
    weights::Weights,
};

/// `down·(silu(gate·x) ∘ up·x)`.
struct Expert {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

impl Expert {
    fn load(weights: &Weights, prefix: &str, suffix: &str) -> Self {
        let matrix = |name: &str| weights.matrix(&format!("{prefix}.ffn_{name}{suffix}.weight"));
        Self { gate: matrix("gate"), up: matrix("up"), down: matrix("down") }
    }

    fn step(&self, x: &[f64]) -> Vec<f64> {
        let (gate, up) = (self.gate.mul(x), self.up.mul(x));
        self.down.mul(&gate.iter().zip(&up).map(|(&gate, up)| silu(gate) * up).collect::<Vec<_>>())
    }
}

/// The weights of one layer's feed-forward part.
pub(crate) struct FeedForward(Kind);

enum Kind {
    Dense(Expert),
    Mixture { router: Matrix, top_k: usize, experts: Vec<Expert>, shared: Option<Shared> },
}

/// The expert every token uses, scaled by `sigmoid(gate·x)`.
struct Shared {
    gate: Matrix,
    expert: Expert,
}

/// What the router chose for one token.
#[derive(Clone)]
pub(crate) struct Routing {
    /// Expert and weight, by falling weight.
    pub(crate) chosen: Vec<(usize, f64)>,
    /// Distance in router logits between the last chosen and the first rejected expert.
    pub(crate) gap: f64,
}

impl FeedForward {
    /// Reads the layer whose tensors start with `prefix`: a mixture if it has a router.
    pub(crate) fn load(weights: &Weights, prefix: &str) -> Self {
        let tensor = |name: &str| format!("{prefix}.ffn_{name}.weight");
        if !weights.has(&tensor("gate_inp")) {
            return Self(Kind::Dense(Expert::load(weights, prefix, "")));
        }
        let matrices = |name: &str| weights.matrices(&tensor(name)).into_iter();
        let experts = matrices("gate_exps")
            .zip(matrices("up_exps"))
            .zip(matrices("down_exps"))
            .map(|((gate, up), down)| Expert { gate, up, down })
            .collect();
        Self(Kind::Mixture {
            router: weights.matrix(&tensor("gate_inp")),
            top_k: weights.count("expert_used_count"),
            experts,
            shared: weights.has(&tensor("gate_inp_shexp")).then(|| Shared {
                gate: weights.matrix(&tensor("gate_inp_shexp")),
                expert: Expert::load(weights, prefix, "_shexp"),
            }),
        })
    }

    /// One token; `None` where nothing is routed.
    pub(crate) fn step(&self, x: &[f64]) -> (Vec<f64>, Option<Routing>) {
        match &self.0 {
            Kind::Dense(expert) => (expert.step(x), None),
            Kind::Mixture { router, top_k, experts, shared } => {
                let routing = route(&router.mul(x), *top_k);
                let mut y = vec![0.0; x.len()];
                for &(expert, weight) in &routing.chosen {
                    add_scaled(&mut y, weight, &experts[expert].step(x));
                }
                if let Some(Shared { gate, expert }) = shared {
                    add_scaled(&mut y, sigmoid(gate.mul(x)[0]), &expert.step(x));
                }
                (y, Some(routing))
            }
        }
    }
}

/// Softmax over all experts, the best `top_k` (ties: lower index), renormalised.
fn route(logits: &[f64], top_k: usize) -> Routing {
    let p = softmax(logits);
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[b].total_cmp(&p[a]));
    let (best, rest) = order.split_at(top_k);
    let sum: f64 = best.iter().map(|&e| p[e]).sum();
    Routing {
        chosen: best.iter().map(|&e| (e, p[e] / sum)).collect(),
        gap: rest.first().map_or(f64::INFINITY, |&e| logits[best[top_k - 1]] - logits[e]),
    }
}
