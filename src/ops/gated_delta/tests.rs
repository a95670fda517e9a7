//! Both forms against the recurrence in f64.

use super::*;
use crate::{
    gpu::{DeviceOptions, Gpu, Restrictions},
    ops::{
        reference::{Deviation, gated_delta::Case},
        testing::{TestDevice, assert_close, each_device},
    },
};
use std::ops::Range;

fn shape(key_heads: u32, value_heads: u32, head_dim: u32) -> GatedDelta {
    GatedDelta { key_heads, value_heads, head_dim, map: HeadMap::Tiled }
}

impl Case {
    fn upload(&self, t: &TestDevice) -> Layer {
        self.upload_part(t, 0..self.n)
    }

    /// The tokens `range`, with the state that the first starts from.
    fn upload_part(&self, t: &TestDevice, range: Range<usize>) -> Layer {
        let (v, d) = (self.shape.value_heads as usize, self.shape.head_dim as usize);
        let part = |values: &[f32], width: usize| {
            t.upload(&values[range.start * width..range.end * width], width)
        };
        Layer {
            shape: self.shape,
            n: range.len() as u32,
            u: part(&self.u, self.shape.conv_dim() as usize),
            gates: part(&self.gates(), 2 * v),
            dt_bias: t.upload(&self.dt_bias, v),
            ssm_a: t.upload(&self.ssm_a, v),
            state: t.upload(&self.state, d),
            o: t.scratch(range.len(), v * d),
        }
    }

    /// With activations `factor` times as large.
    fn times(mut self, factor: f32) -> Self {
        for values in [&mut self.u, &mut self.alpha, &mut self.beta] {
            values.iter_mut().for_each(|v| *v *= factor);
        }
        self
    }

    /// Output and final state of all tokens, `size` at a time.
    fn run_in_parts(
        &self,
        t: &TestDevice,
        scratch: &GatedDeltaScratch,
        size: usize,
    ) -> (Vec<f32>, Vec<f32>) {
        println!("parts of {size}");
        let state = t.upload(&self.state, self.shape.head_dim as usize);
        let mut out = Vec::new();
        for first in (0..self.n).step_by(size) {
            let layer = self.upload_part(t, first..(first + size).min(self.n));
            t.run(|rec| {
                let inputs = layer.inputs();
                record(rec, &self.shape, &inputs, &state, scratch, &layer.o, layer.n)
            });
            out.extend(t.read(&layer.o));
        }
        (out, t.read(&state))
    }

    /// Both forms.
    fn check(&self, t: &TestDevice, tolerance: f64) {
        self.check_forms(t, &[Form::Steps, Form::Chunks], tolerance);
    }

    /// The form that cooperative matrices have.
    fn check_matrices(&self, t: &TestDevice, tolerance: f64) {
        self.check_forms(t, &[Form::Chunks], tolerance);
    }

    fn check_forms(&self, t: &TestDevice, forms: &[Form], tolerance: f64) {
        let (want, want_state) = self.reference();
        for &form in forms {
            let layer = self.upload(t);
            layer.run(t, form);
            println!("{form:?}: {:?}, {} tokens", self.shape, self.n);
            for (name, got, want) in [("o", &layer.o, &want), ("state", &layer.state, &want_state)]
            {
                let deviation = Deviation::of(name, t.read(got), want.iter().copied(), tolerance);
                println!("{name}: {deviation}");
                assert!(deviation.ok(), "{deviation}");
            }
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
    gates: Tensor,
    dt_bias: Tensor,
    ssm_a: Tensor,
    state: Tensor,
    o: Tensor,
}

impl Layer {
    fn inputs(&self) -> Inputs<'_> {
        Inputs { u: &self.u, gates: &self.gates, dt_bias: &self.dt_bias, ssm_a: &self.ssm_a }
    }

    fn run(&self, t: &TestDevice, form: Form) {
        let (shape, inputs, o) = (&self.shape, self.inputs(), &self.o);
        t.run(|rec| match form {
            Form::Steps => step::record(rec, shape, &inputs, &self.state, o, self.n.into()),
            Form::Chunks => {
                let scratch = GatedDeltaScratch::new(&t.gpu, shape, self.n.max(64))?;
                assert!(!scratch.is_empty());
                chunk::record(rec, shape, &inputs, &self.state, &scratch, o, self.n)
            }
        });
    }
}

#[test]
fn every_length() {
    each_device(|t| {
        for n in [1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 130, 200] {
            Case::new(shape(2, 4, 32), n, 0.2).check(t, 1e-5);
        }
    });
}

#[test]
fn for_software() {
    let t = TestDevice::software();
    for (d, n) in [(16, 1), (32, 5), (128, 2), (256, 1)] {
        Case::new(shape(2, 4, d), n, 0.2).check(&t, 1e-5);
    }
    let grouped = GatedDelta { map: HeadMap::Grouped, ..shape(3, 9, 16) };
    Case::new(grouped, 20, 0.2).check(&t, 1e-5);
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

/// Sums of decays are large then, and their differences small.
#[test]
fn weak_decay_after_total_decay() {
    each_device(|t| {
        let mut case = Case::new(shape(2, 4, 16), 130, 1e3);
        for alpha in &mut case.alpha {
            *alpha = if *alpha > 1.0 { 20.0 } else { -11.0 + *alpha };
        }
        case.check(t, 1e-5);
    });
}

#[test]
fn activations_of_a_million_stay_finite() {
    each_device(|t| {
        for n in [1, 16, 17, 70] {
            Case::new(shape(1, 2, 32), n, 0.2).times(1e6).check(t, 1e-5);
        }
    });
}

#[test]
fn thousands_of_tokens_stay_close() {
    each_device(|t| {
        for decay in [0.0, 1e-3] {
            Case::new(shape(1, 2, 16), 4000, decay).check(t, 2e-5);
        }
    });
}

/// Whatever a prompt is cut into, and in whichever form the parts run.
#[test]
fn parts_of_any_size_continue_one_another() {
    each_device(|t| {
        let case = Case::new(shape(2, 4, 16), 200, 0.05);
        let (want, want_state) = case.reference();
        let scratch = GatedDeltaScratch::new(&t.gpu, &case.shape, 128).expect("scratch");
        for size in [1, 3, 32, 33, 64, 65, 127, 200] {
            let (out, state) = case.run_in_parts(t, &scratch, size);
            assert_close(&out, &want, 1e-5);
            assert_close(&state, &want_state, 1e-5);
        }
    });
}

/// What 11 bits of each factor leave, in a sequence of any length. Measured: up to 8.1e-4.
const ROUNDED: f64 = 2e-3;

#[test]
fn cooperative_matrices_take_every_length_and_sharing() {
    let Some(t) = TestDevice::with_matrices() else { return };
    for n in [1, 2, 15, 16, 17, 63, 64, 65, 130, 600] {
        Case::new(shape(1, 2, 64), n, 0.2).check_matrices(&t, ROUNDED);
    }
    for map in [HeadMap::Tiled, HeadMap::Grouped] {
        for (k, v) in [(1, 1), (2, 6)] {
            let shape = GatedDelta { map, ..shape(k, v, 128) };
            Case::new(shape, 100, 0.2).check_matrices(&t, ROUNDED);
        }
    }
}

#[test]
fn cooperative_matrices_take_decays_from_none_to_total() {
    let Some(t) = TestDevice::with_matrices() else { return };
    for decay in [0.0, 1e-5, 1e-2, 1.0, 30.0, 1e3, 1e9] {
        Case::new(shape(1, 2, 64), 130, decay).check_matrices(&t, ROUNDED);
    }
}

#[test]
fn cooperative_matrices_take_values_of_any_size() {
    let Some(t) = TestDevice::with_matrices() else { return };
    for size in [1e-30, 1e6, 1e30] {
        let mut case = Case::new(shape(1, 2, 128), 150, 0.2);
        for row in case.u.chunks_mut(case.shape.conv_dim() as usize) {
            row[2 * 128..].iter_mut().for_each(|v| *v *= size);
        }
        case.state.iter_mut().for_each(|v| *v *= size);
        let (want, want_state) = case.reference();
        let layer = case.upload(&t);
        layer.run(&t, Form::Chunks);
        for (got, want) in [(&layer.o, want), (&layer.state, want_state)] {
            let largest = want.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            let got: Vec<f32> =
                t.read(got).iter().map(|v| (f64::from(*v) / largest) as f32).collect();
            let want: Vec<f64> = want.iter().map(|v| v / largest).collect();
            assert_close(&got, &want, ROUNDED);
        }
    }
}

#[test]
fn cooperative_matrices_take_activations_of_a_million() {
    let Some(t) = TestDevice::with_matrices() else { return };
    for n in [17, 130] {
        Case::new(shape(1, 2, 64), n, 0.2).times(1e6).check_matrices(&t, ROUNDED);
    }
}

/// Each token replaces what the one before has written.
#[test]
fn cooperative_matrices_tell_similar_keys_apart() {
    let Some(t) = TestDevice::with_matrices() else { return };
    let mut case = Case::new(shape(1, 2, 64), 200, 1e-3);
    case.beta.iter_mut().for_each(|b| *b = 8.0);
    let row = case.shape.conv_dim() as usize;
    for i in row..case.u.len() {
        if (64..128).contains(&(i % row)) {
            case.u[i] = case.u[i % row] + 0.1 * case.u[i];
        }
    }
    case.check_matrices(&t, 2.0 * ROUNDED);
}

/// Of one chunk; in the next they are forgotten.
#[test]
fn cooperative_matrices_recover_from_large_values() {
    let Some(t) = TestDevice::with_matrices() else { return };
    let mut case = Case::new(shape(1, 2, 64), 192, 30.0);
    let row = case.shape.conv_dim() as usize;
    case.u[..64 * row].iter_mut().for_each(|v| *v *= 1e6);
    let (want, want_state) = case.reference();
    let layer = case.upload(&t);
    layer.run(&t, Form::Chunks);
    let late = 128 * layer.o.width as usize;
    assert_close(&t.read(&layer.o)[late..], &want[late..], ROUNDED);
    assert_close(&t.read(&layer.state), &want_state, ROUNDED);
}

#[test]
fn cooperative_matrices_stay_close_over_thousands_of_tokens() {
    let Some(t) = TestDevice::with_matrices() else { return };
    for decay in [0.0, 1e-3] {
        Case::new(shape(1, 1, 64), 4000, decay).check_matrices(&t, ROUNDED);
    }
}

#[test]
fn cooperative_matrices_continue_parts_of_any_size() {
    let Some(t) = TestDevice::with_matrices() else { return };
    let case = Case::new(shape(1, 2, 64), 200, 0.05);
    let (want, want_state) = case.reference();
    let scratch = GatedDeltaScratch::new(&t.gpu, &case.shape, 128).expect("scratch");
    for size in [3, 33, 64, 65, 127, 200] {
        let (out, state) = case.run_in_parts(&t, &scratch, size);
        assert_close(&out, &want, ROUNDED);
        assert_close(&state, &want_state, ROUNDED);
    }
}

#[test]
fn used_scratch_changes_nothing() {
    let with_matrices = TestDevice::with_matrices();
    let both = |test: &dyn Fn(&TestDevice)| {
        each_device(test);
        with_matrices.iter().for_each(test);
    };
    both(&|t| {
        let case = Case::new(shape(1, 2, 64), 130, 0.2);
        let scratch = GatedDeltaScratch::new(&t.gpu, &case.shape, 192).expect("scratch");
        let run = |n: usize| {
            let layer = case.upload_part(t, 0..n);
            t.run(|rec| {
                let (inputs, state) = (layer.inputs(), &layer.state);
                record(rec, &case.shape, &inputs, state, &scratch, &layer.o, layer.n)
            });
            (t.read(&layer.o), t.read(&layer.state))
        };
        let fresh = run(70);
        run(130);
        assert_eq!(run(70), fresh);
    });
}

#[test]
fn without_room_for_a_chunk_all_goes_token_by_token() {
    let restrict = Restrictions { max_binding: Some(16 << 10), ..Default::default() };
    let options = DeviceOptions { restrict, poison: true, ..Default::default() };
    let t = TestDevice { name: "small bindings", gpu: Gpu::open(&options).expect("a device") };
    let case = Case::new(shape(1, 1, 16), 70, 0.2);
    let (want, layer) = (case.reference().0, case.upload(&t));
    let scratch = GatedDeltaScratch::new(&t.gpu, &case.shape, 70).expect("scratch");
    t.run(|rec| {
        let (inputs, state) = (layer.inputs(), &layer.state);
        record(rec, &case.shape, &inputs, state, &scratch, &layer.o, layer.n)
    });
    assert!(scratch.is_empty());
    assert_close(&t.read(&layer.o), &want, 1e-5);
}

#[test]
fn wrong_shapes_are_named() {
    each_device(|t| {
        let case = Case::new(shape(2, 4, 16), 3, 0.2);
        let layer = case.upload(t);
        let scratch = GatedDeltaScratch::new(&t.gpu, &case.shape, 3).expect("scratch");
        let fault = |shape: GatedDelta, n: u32| {
            let mut rec = Recorder::new(&t.gpu);
            let inputs = layer.inputs();
            record(&mut rec, &shape, &inputs, &layer.state, &scratch, &layer.o, n)
                .expect_err("refused")
                .to_string()
        };
        assert!(fault(shape(2, 4, 48), 3).contains("heads of 48"));
        assert!(fault(shape(3, 4, 16), 3).contains("4 value heads"));
        assert!(fault(shape(0, 4, 16), 3).contains("0 key heads"));
        assert!(fault(shape(2, 4, 32), 3).contains("u is 3 x 128"));
        assert!(fault(shape(2, 4, 16), 4).contains("wanted 4 x 128"));
    });
}
