//! Every family of kernels against its f64 reference, at shapes of real models.

mod attention;
mod delta;
mod experts;
mod hyper;
mod indexer;
mod norms;
mod products;
mod rope;
mod rows;
mod sparse;

use super::lab::Lab;
use crate::{Result, ops::reference::Deviation};

/// Runs kernels, compares what they give.
type Compare = dyn Fn(&Lab) -> Result<Vec<Deviation>>;

/// What a family of kernels makes of random inputs, compared with the reference.
pub(super) struct KernelCheck {
    pub(super) name: String,
    run: Box<Compare>,
}

impl KernelCheck {
    fn new(
        name: impl Into<String>,
        run: impl Fn(&Lab) -> Result<Vec<Deviation>> + 'static,
    ) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// The worst deviation of all that is compared.
    pub(super) fn run(&self, lab: &Lab) -> Result<Deviation> {
        let all = (self.run)(lab)?.into_iter();
        let worst = all.max_by(|a, b| a.share().total_cmp(&b.share()));
        Ok(worst.unwrap_or_else(|| Deviation::of("nothing", [f64::NAN], [0.0], 0.0)))
    }
}

/// All that apply to a device.
pub(super) fn checks(lab: &Lab) -> Vec<KernelCheck> {
    let families = [
        products::checks(),
        experts::checks(),
        norms::checks(),
        rope::checks(),
        attention::checks(lab.gpu.caps().host_buffers),
        sparse::checks(lab.gpu.caps().host_buffers),
        indexer::checks(),
        delta::checks(),
        hyper::checks(),
        rows::checks(),
    ];
    families.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gpu::{DeviceOptions, Gpu},
        kv::KvType,
        shader::listed,
    };

    /// Every check finds one wrong value in what is read back and tells where it is, and no shader
    /// that the device can run is left out.
    #[test]
    fn a_device_that_lies_is_found_out() {
        let options = DeviceOptions { poison: true, ..DeviceOptions::default() };
        let gpu = Gpu::open(&options).unwrap();
        let mut lab = Lab { gpu, cache: (KvType::F16, KvType::F16), falsify: None };
        let lies: [fn(&mut Vec<f32>); 2] =
            [|values| values[0] = f32::NAN, |values| values[0] += 0.01];
        for check in checks(&lab) {
            lab.falsify = None;
            let honest = check.run(&lab).unwrap();
            assert!(honest.ok(), "{}: {honest}", check.name);
            for (i, lie) in lies.iter().enumerate() {
                lab.falsify = Some(*lie);
                let found = check.run(&lab).unwrap();
                assert!(!found.ok(), "{}: lie {i} passes: {found}", check.name);
                let text = found.to_string();
                assert!(text.contains("[0] is ") && text.contains("limit"), "{text}");
            }
        }
        let used = lab.gpu.kernel_names();
        let caps = lab.gpu.caps();
        let counts = |shader: &&str| match *shader {
            "f16_rows" => caps.matrices.is_some(),
            shader if shader.starts_with("coop_") => caps.matrices.is_some(),
            "attention_prefill" | "gated_delta_chunk" | "gated_delta_scan" => {
                caps.matrices.is_none()
            }
            "gated_delta_step" => !caps.software,
            "gated_delta_columns" => caps.software,
            "quantise" => caps.int_dot,
            "host_rows" => caps.host_buffers,
            _ => true,
        };
        let wanted = listed().iter().map(|variant| variant.shader()).filter(counts);
        let unused =
            |shader: &&str| !used.iter().any(|name| name.split(' ').next() == Some(*shader));
        assert_eq!(wanted.filter(unused).collect::<Vec<_>>(), [""; 0]);
    }
}
