//! Rotary position embedding: which dimensions turn, and how fast (spec/architectures.md 1.2).

use std::f64::consts::PI;

use serde::Serialize;

use crate::kv::LONGEST;

/// How the heads of a model are rotated. A model that takes images gives each pair one of three
/// positions; for text all three are the token's, so plain partial rotation is exact.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rope {
    /// Which dimensions form a pair.
    pub kind: RopeKind,
    /// Leading dimensions of a head that rotate; even, at most `head_dim`.
    pub n_rot: u32,
    /// Base of the frequencies.
    pub base: f64,
    /// Stretching beyond the trained context.
    pub scaling: RopeScaling,
}

/// Which two dimensions of a head rotate together, `i` counting pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeKind {
    /// Neighbours: `(2i, 2i + 1)`.
    Norm,
    /// Halves: `(i, i + n_rot / 2)`.
    Neox,
}

/// How frequencies are stretched; from the first token on, whatever the context holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Slow frequencies divided, fast ones kept.
    Yarn(Yarn),
}

/// Parameters of YaRN.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Yarn {
    /// How many times the trained context is wanted.
    pub factor: f64,
    /// The trained context in tokens.
    pub original_context: u32,
    /// Weight of the unscaled frequencies; 1 is YaRN, 0 linear scaling.
    pub ext_factor: f64,
    /// Multiplies the magnitude.
    pub attn_factor: f64,
    /// Pairs that turn more often than this within the trained context keep their frequency.
    pub beta_fast: f64,
    /// Pairs that turn less often than this are divided by `factor`.
    pub beta_slow: f64,
}

impl Yarn {
    /// YaRN with its usual parameters.
    pub fn new(factor: f64, original_context: u32) -> Self {
        Self {
            factor,
            original_context,
            ext_factor: 1.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
        }
    }

    /// The pair indices between which frequencies go from kept to divided.
    fn range(&self, n_rot: u32, base: f64) -> (f64, f64) {
        let pair = |turns: f64| {
            let original = f64::from(self.original_context);
            f64::from(n_rot) * (original / (2.0 * PI * turns)).ln() / (2.0 * base.ln())
        };
        let low = pair(self.beta_fast).floor().max(0.0);
        let high = pair(self.beta_slow).ceil().min(f64::from(n_rot) - 1.0);
        (low, high)
    }

    /// What cosine and sine are multiplied by.
    fn magnitude(&self) -> f64 {
        let stretched = self.ext_factor != 0.0 && self.factor > 1.0;
        self.attn_factor * if stretched { 0.1 * self.factor.ln() + 1.0 } else { 1.0 }
    }
}

impl Rope {
    /// Tokens of context that a model trained for `trained` is good for: YaRN stretches it.
    pub fn reach(&self, trained: u32) -> u32 {
        let tokens = match &self.scaling {
            RopeScaling::None | RopeScaling::Linear { .. } => trained,
            // The conversion stops at the largest number.
            RopeScaling::Yarn(yarn) => {
                trained.max((f64::from(yarn.original_context) * yarn.factor) as u32)
            }
        };
        tokens.min(LONGEST)
    }

    /// The frequency of each of the `n_rot / 2` pairs in radians a token, and the magnitude that
    /// cosine and sine are multiplied by. `factors` is the tensor `rope_freqs.weight`, by whose
    /// values frequencies are divided.
    pub fn frequencies(&self, factors: Option<&[f32]>) -> (Vec<f64>, f64) {
        let n_rot = f64::from(self.n_rot);
        let divisor = |i: usize| factors.and_then(|f| f.get(i)).map_or(1.0, |&f| f64::from(f));
        let trained = (0..self.n_rot / 2)
            .map(|i| self.base.powf(-2.0 * f64::from(i) / n_rot) / divisor(i as usize));
        match &self.scaling {
            RopeScaling::None => (trained.collect(), 1.0),
            RopeScaling::Linear { factor } => (trained.map(|f| f / factor).collect(), 1.0),
            RopeScaling::Yarn(yarn) => {
                let (low, high) = yarn.range(self.n_rot, self.base);
                let stretched = trained.enumerate().map(|(i, f)| {
                    let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    let kept = yarn.ext_factor * (1.0 - ramp);
                    f * kept + f / yarn.factor * (1.0 - kept)
                });
                (stretched.collect(), yarn.magnitude())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope { kind: RopeKind::Neox, n_rot: 64, base: 1e7, scaling }
    }

    #[track_caller]
    fn close(a: f64, b: f64) {
        assert!((a / b - 1.0).abs() < 1e-7, "{a} is not {b}");
    }

    #[test]
    fn yarn_gives_the_values_of_the_spec() {
        let yarn = Yarn::new(4.0, 262_144);
        assert_eq!(yarn.range(64, 1e7), (14.0, 22.0));
        let (trained, one) = rope(RopeScaling::None).frequencies(None);
        let (f, magnitude) = rope(RopeScaling::Yarn(yarn)).frequencies(None);
        assert_eq!((f.len(), one), (32, 1.0));
        close(magnitude, 1.1386294);
        close(f[10], 6.4938163e-3);
        close(f[10], trained[10]);
        close(f[17], 1.3734975e-4);
        close(f[20], 1.8449223e-5);
        close(f[25], 8.4955208e-7);
        close(f[25], trained[25] / 4.0);
        close(Yarn::new(12.0, 262_144).magnitude(), 1.2484907);
    }

    #[test]
    fn yarn_stretches_the_context() {
        let reach = |yarn, trained| rope(RopeScaling::Yarn(yarn)).reach(trained);
        assert_eq!(reach(Yarn::new(12.0, 262_144), 262_144), 3_145_728);
        // A file may name the stretched context itself.
        assert_eq!(reach(Yarn::new(4.0, 32_768), 131_072), 131_072);
        assert_eq!(reach(Yarn::new(1e9, 32_768), 131_072), LONGEST);
        assert_eq!(rope(RopeScaling::None).reach(4096), 4096);
    }

    #[test]
    fn yarn_with_ext_factor_0_is_linear() {
        let yarn = Yarn { ext_factor: 0.0, ..Yarn::new(4.0, 262_144) };
        let linear = rope(RopeScaling::Linear { factor: 4.0 }).frequencies(None);
        assert_eq!(rope(RopeScaling::Yarn(yarn)).frequencies(None), linear);
        close(linear.0[0], 0.25);
    }

    #[test]
    fn attn_factor_multiplies_the_magnitude() {
        close(Yarn { attn_factor: 0.5, ..Yarn::new(4.0, 8192) }.magnitude(), 1.1386294 / 2.0);
        assert_eq!(Yarn::new(0.5, 8192).magnitude(), 1.0);
    }

    #[test]
    fn factors_divide() {
        let rope = Rope { kind: RopeKind::Norm, n_rot: 4, base: 100.0, scaling: RopeScaling::None };
        let (f, magnitude) = rope.frequencies(Some(&[1.0, 8.0]));
        assert_eq!(magnitude, 1.0);
        close(f[0], 1.0);
        close(f[1], 0.1 / 8.0);
    }
}
