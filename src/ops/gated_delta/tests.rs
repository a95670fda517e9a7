//! Both forms against the recurrence in f64.

use super::*;
use crate::ops::testing::{TestDevice, assert_close, each_device, random};

/// A layer's inputs on the host.
struct Case {
    shape: GatedDelta,
    n: usize,
    u: Vec<f32>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
    dt_bias: Vec<f32>,
    ssm_a: Vec<f32>,
    state: Vec<f32>,
}

fn shape(key_heads: u32, value_heads: u32, head_dim: u32) -> GatedDelta {
    GatedDelta { key_heads, value_heads, head_dim, map: HeadMap::Tiled }
}

impl Case {
    /// Random values with a state to start from; decays are around `exp(-decay)`.
    fn new(shape: GatedDelta, n: usize, decay: f32) -> Self {
        let (v, d) = (shape.value_heads as usize, shape.head_dim as usize);
        Self {
            shape,
            n,
            u: random(1, n * shape.conv_dim() as usize),
            alpha: random(2, n * v).iter().map(|a| a * 3.0).collect(),
            beta: random(3, n * v).iter().map(|b| b * 4.0).collect(),
            dt_bias: random(4, v),
            ssm_a: random(5, v).iter().map(|a| -decay * (a + 1.5)).collect(),
            state: random(6, v * d * d),
        }
    }

    /// Output and final state.
    fn reference(&self) -> (Vec<f64>, Vec<f64>) {
        let (kh, vh) = (self.shape.key_heads as usize, self.shape.value_heads as usize);
        let d = self.shape.head_dim as usize;
        let mut state: Vec<f64> = self.state.iter().map(|s| f64::from(*s)).collect();
        let mut out = vec![0.0; self.n * vh * d];
        for (t, row) in self.u.chunks(self.shape.conv_dim() as usize).enumerate() {
            for h in 0..vh {
                let key_head = match self.shape.map {
                    HeadMap::Tiled => h % kh,
                    HeadMap::Grouped => h / (vh / kh),
                };
                let values = |start: usize| row[start..start + d].iter().map(|v| f64::from(*v));
                let unit = |start: usize| {
                    let norm = (values(start).map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
                    values(start).map(|v| v / norm).collect::<Vec<f64>>()
                };
                let (q, k) = (unit(key_head * d), unit((kh + key_head) * d));
                let v: Vec<f64> = values((2 * kh + h) * d).collect();
                let at = |x: &[f32]| f64::from(x[t * vh + h]);
                let softplus = (at(&self.alpha) + f64::from(self.dt_bias[h])).exp().ln_1p();
                let decay = (softplus * f64::from(self.ssm_a[h])).exp();
                let beta = 1.0 / (1.0 + (-at(&self.beta)).exp());
                let s = &mut state[h * d * d..(h + 1) * d * d];
                for j in 0..d {
                    let known: f64 = (0..d).map(|i| decay * s[i * d + j] * k[i]).sum();
                    let delta = beta * (v[j] - known);
                    for i in 0..d {
                        s[i * d + j] = decay * s[i * d + j] + k[i] * delta;
                    }
                    let dot: f64 = (0..d).map(|i| s[i * d + j] * q[i]).sum();
                    out[(t * vh + h) * d + j] = dot / (d as f64).sqrt();
                }
            }
        }
        (out, state)
    }

    fn upload(&self, t: &TestDevice) -> Layer {
        let (v, d) = (self.shape.value_heads as usize, self.shape.head_dim as usize);
        Layer {
            shape: self.shape,
            n: self.n as u32,
            u: t.upload(&self.u, self.shape.conv_dim() as usize),
            alpha: t.upload(&self.alpha, v),
            beta: t.upload(&self.beta, v),
            dt_bias: t.upload(&self.dt_bias, v),
            ssm_a: t.upload(&self.ssm_a, v),
            state: t.upload(&self.state, d),
            o: t.scratch(self.n, v * d),
        }
    }

    /// Both forms, or the chunked one alone for long inputs.
    fn check(&self, t: &TestDevice, tolerance: f64) {
        let (want, want_state) = self.reference();
        for form in [Form::Steps, Form::Chunks] {
            let layer = self.upload(t);
            layer.run(t, form);
            println!("{form:?}: {:?}, {} tokens", self.shape, self.n);
            assert_close(&t.read(&layer.o), &want, tolerance);
            assert_close(&t.read(&layer.state), &want_state, tolerance);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Steps,
    Chunks,
}

/// A layer's inputs, state and output on the device.
struct Layer {
    shape: GatedDelta,
    n: u32,
    u: Tensor,
    alpha: Tensor,
    beta: Tensor,
    dt_bias: Tensor,
    ssm_a: Tensor,
    state: Tensor,
    o: Tensor,
}

impl Layer {
    fn inputs(&self) -> Inputs<'_> {
        Inputs {
            u: &self.u,
            alpha: &self.alpha,
            beta: &self.beta,
            dt_bias: &self.dt_bias,
            ssm_a: &self.ssm_a,
        }
    }

    fn run(&self, t: &TestDevice, form: Form) {
        let (shape, inputs, o) = (&self.shape, self.inputs(), &self.o);
        t.run(|rec| match form {
            Form::Steps => step::record(rec, shape, &inputs, &self.state, o, self.n),
            Form::Chunks => {
                let scratch = GatedDeltaScratch::new(&t.gpu, shape, self.n.max(64))?;
                assert!(!scratch.is_empty());
                chunk::record(rec, shape, &inputs, &self.state, &scratch, o, self.n)
            }
        });
    }
}

const LENGTHS: [usize; 13] = [1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 130, 200];

#[test]
fn every_length() {
    each_device(|t| {
        for n in LENGTHS {
            Case::new(shape(2, 4, 32), n, 0.2).check(t, 1e-5);
        }
    });
}

#[test]
fn every_head_width_and_sharing() {
    each_device(|t| {
        for d in [16, 32, 64, 128, 256] {
            Case::new(shape(1, 2, d), 70, 0.2).check(t, 1e-5);
        }
        for (k, v) in [(2, 2), (2, 4), (3, 9), (16, 48)] {
            for map in [HeadMap::Tiled, HeadMap::Grouped] {
                Case::new(GatedDelta { map, ..shape(k, v, 16) }, 20, 0.2).check(t, 1e-5);
            }
        }
    });
}

#[test]
fn more_workgroups_than_one_dimension_holds() {
    each_device(|t| Case::new(shape(101, 303, 16), 3, 0.2).check(t, 1e-5));
}

#[test]
fn decay_from_none_to_total() {
    each_device(|t| {
        for decay in [0.0, 1e-5, 1e-2, 1.0, 30.0, 1e3, 1e9] {
            Case::new(shape(2, 4, 16), 130, decay).check(t, 1e-5);
        }
    });
}
