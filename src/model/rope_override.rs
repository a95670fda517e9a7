//! What the user wants otherwise about rotary embedding than the file says (`--rope-*`, `--yarn-*`
//! of spec/cli-and-server.md 2).

use super::rope::{Rope, RopeScaling, Yarn};
use crate::{Error, Result};

/// Changes to a model's [`Rope`]; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RopeOverride {
    /// Kind of scaling.
    pub scaling: Option<ScalingKind>,
    /// How many times the trained context is wanted.
    pub factor: Option<f64>,
    /// Base of the frequencies.
    pub base: Option<f64>,
    /// See [`Yarn::original_context`].
    pub original_context: Option<u32>,
    /// See [`Yarn::ext_factor`].
    pub ext_factor: Option<f64>,
    /// See [`Yarn::attn_factor`].
    pub attn_factor: Option<f64>,
    /// See [`Yarn::beta_fast`].
    pub beta_fast: Option<f64>,
    /// See [`Yarn::beta_slow`].
    pub beta_slow: Option<f64>,
}

/// The kinds of [`RopeScaling`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are those of RopeScaling")]
pub enum ScalingKind {
    None,
    Linear,
    Yarn,
}

impl RopeOverride {
    /// Changes `rope`, that of a model trained for `trained_context` tokens. A factor alone stretches
    /// by the file's kind of scaling, or linearly where it has none.
    ///
    /// # Errors
    /// [`Error::Usage`] that names a flag whose value is out of range, missing or without effect.
    pub fn apply(&self, rope: &mut Rope, trained_context: u32) -> Result<()> {
        if let Some(base) = self.base {
            rope.base = within("--rope-freq-base", base, 1.0)?;
        }
        let factor = self.factor.map(|f| within("--rope-scale", f, 0.0)).transpose()?;
        let kind = self.scaling.unwrap_or(match (&rope.scaling, factor) {
            (RopeScaling::Yarn(_), _) => ScalingKind::Yarn,
            (RopeScaling::Linear { .. }, _) | (RopeScaling::None, Some(_)) => ScalingKind::Linear,
            (RopeScaling::None, None) => ScalingKind::None,
        });
        let factor = factor.or(match &rope.scaling {
            RopeScaling::None => None,
            RopeScaling::Linear { factor } => Some(*factor),
            RopeScaling::Yarn(yarn) => Some(yarn.factor),
        });
        let needed =
            || factor.ok_or_else(|| Error::Usage("--rope-scaling needs --rope-scale".into()));
        let scaling = match kind {
            ScalingKind::None => RopeScaling::None,
            ScalingKind::Linear => RopeScaling::Linear { factor: needed()? },
            ScalingKind::Yarn => {
                let usual = match &rope.scaling {
                    RopeScaling::Yarn(yarn) => Yarn { factor: needed()?, ..yarn.clone() },
                    _ => Yarn::new(needed()?, trained_context),
                };
                RopeScaling::Yarn(self.yarn(usual)?)
            }
        };
        if kind != ScalingKind::Yarn && self.changes_yarn() {
            return Err(Error::Usage("--yarn-* flags need --rope-scaling yarn".into()));
        }
        rope.scaling = scaling;
        Ok(())
    }

    fn changes_yarn(&self) -> bool {
        self.original_context.is_some()
            || [self.ext_factor, self.attn_factor, self.beta_fast, self.beta_slow]
                .iter()
                .any(Option::is_some)
    }

    fn yarn(&self, usual: Yarn) -> Result<Yarn> {
        if self.original_context == Some(0) {
            return Err(Error::Usage("--yarn-orig-ctx is 0, but must be above 0".into()));
        }
        // llama.cpp's -1 asks for the usual value.
        let or = |flag, value: Option<f64>, usual, above| match value {
            Some(value) if value != -1.0 => within(flag, value, above),
            _ => Ok(usual),
        };
        Ok(Yarn {
            factor: usual.factor,
            original_context: self.original_context.unwrap_or(usual.original_context),
            ext_factor: or("--yarn-ext-factor", self.ext_factor, usual.ext_factor, -f64::EPSILON)?,
            attn_factor: or("--yarn-attn-factor", self.attn_factor, usual.attn_factor, 0.0)?,
            beta_fast: or("--yarn-beta-fast", self.beta_fast, usual.beta_fast, 0.0)?,
            beta_slow: or("--yarn-beta-slow", self.beta_slow, usual.beta_slow, 0.0)?,
        })
    }
}

/// `value`, if it is finite and above `least`.
fn within(flag: &str, value: f64, least: f64) -> Result<f64> {
    if value.is_finite() && value > least {
        return Ok(value);
    }
    Err(Error::Usage(format!("{flag} is {value}, but must be above {least:.0}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::rope::RopeKind;

    fn applied(scaling: RopeScaling, change: &RopeOverride) -> Result<Rope> {
        let mut rope = Rope { kind: RopeKind::Neox, n_rot: 64, base: 1e7, scaling };
        change.apply(&mut rope, 262_144).map(|()| rope)
    }

    #[test]
    fn nothing_changes_nothing() {
        let yarn = RopeScaling::Yarn(Yarn { beta_fast: 9.0, ..Yarn::new(4.0, 8192) });
        for scaling in [RopeScaling::None, RopeScaling::Linear { factor: 2.0 }, yarn] {
            let rope = applied(scaling.clone(), &RopeOverride::default()).unwrap();
            assert_eq!((rope.scaling, rope.base), (scaling, 1e7));
        }
    }

    #[test]
    fn a_factor_uses_the_kind_of_the_file_or_is_linear() {
        let twice = RopeOverride { factor: Some(2.0), ..Default::default() };
        let linear = RopeScaling::Linear { factor: 2.0 };
        assert_eq!(applied(RopeScaling::None, &twice).unwrap().scaling, linear);
        let file = RopeScaling::Yarn(Yarn::new(4.0, 8192));
        assert_eq!(applied(file, &twice).unwrap().scaling, RopeScaling::Yarn(Yarn::new(2.0, 8192)));
    }

    #[test]
    fn yarn_on_top_of_an_unscaled_file() {
        let change = RopeOverride {
            scaling: Some(ScalingKind::Yarn),
            factor: Some(4.0),
            base: Some(5e6),
            ext_factor: Some(-1.0),
            attn_factor: Some(0.5),
            beta_slow: Some(2.0),
            ..Default::default()
        };
        let rope = applied(RopeScaling::None, &change).unwrap();
        let yarn = Yarn { attn_factor: 0.5, beta_slow: 2.0, ..Yarn::new(4.0, 262_144) };
        assert_eq!((rope.scaling, rope.base), (RopeScaling::Yarn(yarn), 5e6));
        let off = RopeOverride { scaling: Some(ScalingKind::None), ..Default::default() };
        let file = RopeScaling::Yarn(Yarn::new(4.0, 8192));
        assert_eq!(applied(file, &off).unwrap().scaling, RopeScaling::None);
    }

    #[test]
    fn wrong_flags_are_named() {
        let base = RopeOverride::default();
        let yarn = RopeOverride {
            scaling: Some(ScalingKind::Yarn),
            factor: Some(2.0),
            ..Default::default()
        };
        for (flag, change) in [
            ("--rope-freq-base", RopeOverride { base: Some(0.0), ..base.clone() }),
            ("--rope-scale", RopeOverride { factor: Some(f64::NAN), ..base.clone() }),
            ("--rope-scale", RopeOverride { scaling: Some(ScalingKind::Yarn), ..base.clone() }),
            ("--yarn", RopeOverride { beta_fast: Some(1.0), ..base }),
            ("--yarn-ext-factor", RopeOverride { ext_factor: Some(-2.0), ..yarn.clone() }),
            ("--yarn-orig-ctx", RopeOverride { original_context: Some(0), ..yarn }),
        ] {
            let error = applied(RopeScaling::None, &change).unwrap_err();
            assert!(error.to_string().contains(flag), "{error}");
            assert_eq!(error.exit_status(), 2);
        }
    }
}
