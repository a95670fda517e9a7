//! How far values of a device are from those of the reference.

use std::fmt;

/// The largest error among some values, relative to the larger of 1 and the largest of the
/// reference.
#[derive(Clone, Debug)]
pub(crate) struct Deviation {
    /// What the values are.
    what: String,
    /// The value with the largest error.
    at: usize,
    got: f64,
    want: f64,
    error: f64,
    tolerance: f64,
}

impl Deviation {
    /// Compares value by value. A NaN where none is wanted is an infinite error, and so is a
    /// value too many or too few.
    pub(crate) fn of(
        what: impl Into<String>,
        got: impl IntoIterator<Item = impl Into<f64>>,
        want: impl IntoIterator<Item = impl Into<f64>>,
        tolerance: f64,
    ) -> Self {
        let got: Vec<f64> = got.into_iter().map(Into::into).collect();
        let want: Vec<f64> = want.into_iter().map(Into::into).collect();
        let scale = want.iter().fold(1.0, |m: f64, w| m.max(w.abs()));
        let mut worst =
            Self { what: what.into(), at: 0, got: 0.0, want: 0.0, error: -1.0, tolerance };
        for at in 0..got.len().max(want.len()) {
            let value = |of: &[f64]| of.get(at).copied().unwrap_or(f64::NAN);
            let (got, want) = (value(&got), value(&want));
            let error = (got - want).abs() / scale;
            let error = if error.is_nan() { f64::INFINITY } else { error };
            if error > worst.error {
                worst = Self { at, got, want, error, ..worst };
            }
        }
        worst.error = worst.error.max(0.0);
        worst
    }

    /// Whether the error is tolerable.
    pub(crate) fn ok(&self) -> bool {
        self.error <= self.tolerance
    }

    /// The error as a share of what is tolerable.
    pub(crate) fn share(&self) -> f64 {
        if self.ok() && self.tolerance == 0.0 { 0.0 } else { self.error / self.tolerance }
    }
}

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, at, got, want, error, tolerance } = self;
        match (self.ok(), *error) {
            (true, 0.0) => write!(f, "exact"),
            (true, _) => write!(f, "largest error {error:.1e}, limit {tolerance:.0e}"),
            (false, _) => write!(
                f,
                "{what}[{at}] is {got} instead of {want}: error {error:.1e}, limit {tolerance:.0e}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_value_is_told() {
        let d = Deviation::of("y", [1.0_f32, 2.5, 4.0], [1.0, 2.0, 4.0], 0.1);
        assert_eq!((d.at, d.error, d.ok()), (1, 0.125, false));
        assert_eq!(d.to_string(), "y[1] is 2.5 instead of 2: error 1.2e-1, limit 1e-1");
        let d = Deviation::of("y", [0.25_f32], [0.125], 0.5);
        assert!(d.ok() && d.share() == 0.25);
        assert_eq!(d.to_string(), "largest error 1.2e-1, limit 5e-1");
    }

    #[test]
    fn what_cannot_be_compared_is_wrong() {
        for (got, want) in [
            (&[f32::NAN][..], &[1.0][..]),
            (&[1.0], &[f64::NAN]),
            (&[f32::INFINITY], &[1.0]),
            (&[1.0], &[1.0, 2.0]),
            (&[1.0, 2.0], &[1.0]),
        ] {
            let d = Deviation::of("y", got.iter().copied(), want.iter().copied(), 1e9);
            assert!(!d.ok() && d.share() > 1.0, "{d}");
        }
        assert!(Deviation::of("y", [0_u32; 0], [0_u32; 0], 0.0).ok());
    }
}
