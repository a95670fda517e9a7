//! Figures of repeated measurements.

/// `amount` per second; none where nothing was done or no time passed.
pub fn rate(amount: f64, seconds: f64) -> Option<f64> {
    let rate = amount / seconds;
    (amount > 0.0 && seconds > 0.0 && rate.is_finite()).then_some(rate)
}

/// Mean and spread of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation, of one sample less; 0 for one alone.
    pub deviation: f64,
    /// How many there are.
    pub count: usize,
}

impl Spread {
    /// Of `samples`; none of none.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let count = samples.len();
        if count == 0 {
            return None;
        }
        let mean = samples.iter().sum::<f64>() / count as f64;
        let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
        let deviation = (squares / (count - 1).max(1) as f64).sqrt();
        Some(Self { mean, deviation, count })
    }

    /// The standard error of the mean, relative to it.
    pub(super) fn relative_error(&self) -> f64 {
        match self.mean > 0.0 {
            true => self.deviation / (self.count as f64).sqrt() / self.mean,
            false => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known fault: zero tokens, zero time and one repetition gave NaN or infinity.
    #[test]
    fn nothing_is_ever_nan_or_infinite() {
        assert_eq!(rate(0.0, 1.0), None);
        assert_eq!(rate(1.0, 0.0), None);
        assert_eq!(rate(0.0, 0.0), None);
        assert_eq!(rate(1e300, 1e-300), None);
        assert_eq!(rate(6.0, 2.0), Some(3.0));
        assert_eq!(Spread::of(&[]), None);
        let one = Spread::of(&[5.0]).unwrap();
        assert_eq!((one.mean, one.deviation, one.relative_error()), (5.0, 0.0, 0.0));
        assert_eq!(Spread::of(&[0.0, 0.0]).unwrap().relative_error(), 0.0);
    }

    #[test]
    fn mean_and_deviation_of_a_sample() {
        let spread = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert!((spread.mean - 5.0).abs() < 1e-12);
        assert!((spread.deviation - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
    }
}
