//! Whether two settings differ, where the first was measured before and after the other.

use super::Spread;
use serde::Serialize;

/// Differences below this are not told from chance, however even the samples are.
const LEAST: f64 = 0.03;

/// Another setting's speed beside that of the first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// How much faster the other is, relative to the first's mean.
    pub difference: f64,
    /// How far the first's two measurements are apart, relative to their mean.
    pub drift: f64,
    /// Whether the difference is more than drift and spread explain.
    pub real: bool,
}

impl Comparison {
    /// Of the first setting's samples `before` and `after`, and the `other`'s in between
    /// (spec/cli-and-server.md 6.2); none where there is nothing to compare with.
    pub(super) fn of(before: &[f64], other: &[f64], after: &[f64]) -> Option<Self> {
        let (a1, a2) = (Spread::of(before)?.mean, Spread::of(after)?.mean);
        let first = Spread::of(&[before, after].concat()).filter(|first| first.mean > 0.0)?;
        let other = Spread::of(other)?;
        let difference = other.mean / first.mean - 1.0;
        let drift = (a1 - a2).abs() / first.mean;
        let errors = 2.0 * first.relative_error().hypot(other.relative_error());
        Some(Self {
            difference,
            drift,
            real: difference.abs() > LEAST.max(2.0 * drift).max(errors),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_to_exceed_what_the_first_differs_from_itself() {
        let of = |before, other, after| Comparison::of(&[before], &[other], &[after]).unwrap();
        assert!(of(10.0, 12.0, 10.1).real);
        let drifted = of(10.0, 12.0, 13.0);
        assert!(!drifted.real, "{drifted:?}");
        assert!((drifted.drift - 3.0 / 11.5).abs() < 1e-9);
        assert!(!of(10.0, 10.2, 10.0).real, "2 % is never told from chance");
        assert!(of(10.0, 8.0, 10.0).difference < 0.0);
    }

    #[test]
    fn spread_counts_and_nothing_is_compared_with_nothing() {
        let wide = [5.0, 15.0, 5.0, 15.0];
        assert!(!Comparison::of(&wide, &[11.0, 12.0], &wide).unwrap().real);
        assert_eq!(Comparison::of(&[], &[1.0], &[1.0]), None);
        assert_eq!(Comparison::of(&[0.0], &[1.0], &[0.0]), None);
    }
}
