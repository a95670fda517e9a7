//! Activations as whole numbers, for products with matrices in bytes (`shaders/shared/quantise.wgsl`).

use super::Tensor;
use crate::{
    Result,
    gpu::{Grid, Recorder},
    shader::Variant,
};

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    total: u32,
}

const WORKGROUP: u64 = 64;

/// Makes the form as whole numbers of the first `n` rows of x, if x has one for so many.
///
/// # Errors
/// Too many workgroups.
pub fn record(rec: &mut Recorder, x: &Tensor, n: u32) -> Result<()> {
    let Some(whole) = x.whole(n) else { return Ok(()) };
    let total = n * (x.width / 4);
    let grid = Grid::Flat(u64::from(total).div_ceil(WORKGROUP));
    let bindings = [(&x.buf).into(), whole.into()];
    rec.dispatch("quantise", &Variant::new("quantise"), &bindings, &Params { total }, grid)
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::{each_device, random};

    #[test]
    fn any_size_of_values() {
        each_device(|t| {
            let mut x = random(1, 5 * 96);
            // Blocks of large, tiny, equal and mixed values, and one of zeros.
            x[..32].iter_mut().for_each(|v| *v *= 1e6);
            x[32..64].iter_mut().for_each(|v| *v *= 1e-25);
            x[64..96].fill(-3.0);
            x[96..128].fill(0.0);
            x[130] = 1e6;
            t.assert_whole(&t.factor(&x, 96));
        });
    }
}
