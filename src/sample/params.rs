//! Sampling parameters: one table gives the complete set, the partial sets that a request, the
//! command line or a model file holds, and the defaults (spec/cli-and-server.md 3).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

macro_rules! parameters {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr,)*) => {
        /// A complete set of sampling parameters.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        pub struct SamplingParams { $($(#[$doc])* pub $name: $type,)* }

        /// The parameters that one source sets; the rest is left to the next source.
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        pub struct PartialSampling { $($(#[$doc])* pub $name: Option<$type>,)* }

        impl Default for SamplingParams {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl PartialSampling {
            /// What `self` sets, and where it sets nothing, what `weaker` sets. The order is
            /// request, command line, model file.
            pub fn or(self, weaker: Self) -> Self {
                Self { $($name: self.$name.or(weaker.$name),)* }
            }

            /// The complete set: what is still open takes its default.
            pub fn or_default(self) -> SamplingParams {
                SamplingParams { $($name: self.$name.unwrap_or($default),)* }
            }
        }
    };
}

parameters! {
    /// Divides the logits before the draw; 0 or less picks the largest logit.
    temperature: f32 = 0.8,
    /// Keeps the k largest logits; 0 or less keeps all.
    top_k: i32 = 40,
    /// Keeps the smallest set whose probabilities sum to p; 1 keeps all.
    top_p: f32 = 0.95,
    /// Keeps tokens with at least this fraction of the largest probability; 0 keeps all.
    min_p: f32 = 0.05,
    /// Keeps the tokens closest to the expected surprise that sum to p; 1 keeps all.
    typical_p: f32 = 1.0,
    /// Keeps logits within n standard deviations of the largest; 0 or less keeps all.
    top_n_sigma: f32 = -1.0,
    /// Seen tokens: positive logits are divided by it, the others multiplied; 0.01 to 100, 1 is off.
    repeat_penalty: f32 = 1.0,
    /// How many of the latest tokens the three penalties look at; 0: none, -1: all.
    repeat_last_n: i32 = 64,
    /// Subtracted from the logit of every seen token; -100 to 100.
    presence_penalty: f32 = 0.0,
    /// Subtracted from the logit of a seen token once per occurrence; -100 to 100.
    frequency_penalty: f32 = 0.0,
    /// Seed of the draws; -1 takes a random one.
    seed: i64 = -1,
    /// Added to the logits of single tokens (id, bias); minus infinity bans a token.
    logit_bias: Vec<(u32, f32)> = Vec::new(),
}

impl SamplingParams {
    /// Checks every range.
    ///
    /// # Errors
    /// [`Error::Usage`] that names the parameter and its flag, the value and the range.
    pub fn validate(&self) -> Result<()> {
        let finite = |x: f32| x.is_finite();
        let fraction = |x: f32| (0.0..=1.0).contains(&x);
        require("temperature", "--temp", self.temperature, finite, "be a finite number")?;
        require("top_p", "--top-p", self.top_p, fraction, "lie between 0 and 1")?;
        require("min_p", "--min-p", self.min_p, fraction, "lie between 0 and 1")?;
        require("typical_p", "--typical", self.typical_p, fraction, "lie between 0 and 1")?;
        require("top_n_sigma", "--top-nsigma", self.top_n_sigma, finite, "be a finite number")?;
        // What lies beyond overflows, or is no penalty but a ban, for which there is logit_bias.
        let factor = |x: f32| (0.01..=100.0).contains(&x);
        let difference = |x: f32| (-100.0..=100.0).contains(&x);
        let (name, flag) = ("repeat_penalty", "--repeat-penalty");
        require(name, flag, self.repeat_penalty, factor, "lie between 0.01 and 100")?;
        let at_least_minus_one = |n: i64| n >= -1;
        let (name, flag) = ("repeat_last_n", "--repeat-last-n");
        require(name, flag, self.repeat_last_n.into(), at_least_minus_one, "be -1 or more")?;
        let (name, flag) = ("presence_penalty", "--presence-penalty");
        require(name, flag, self.presence_penalty, difference, "lie between -100 and 100")?;
        let (name, flag) = ("frequency_penalty", "--frequency-penalty");
        require(name, flag, self.frequency_penalty, difference, "lie between -100 and 100")?;
        require("seed", "--seed", self.seed, at_least_minus_one, "be -1 or more")?;
        let bias = |x: f32| x.is_finite() || x == f32::NEG_INFINITY;
        for &(_, value) in &self.logit_bias {
            let range = "be finite or minus infinity";
            require("logit_bias", "--logit-bias", value, bias, range)?;
        }
        Ok(())
    }

    /// Whether any penalty can change a logit.
    pub(super) fn penalises(&self) -> bool {
        self.repeat_last_n != 0
            && (self.repeat_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }
}

fn require<T: Copy + fmt::Display>(
    name: &str,
    flag: &str,
    value: T,
    accept: impl Fn(T) -> bool,
    range: &str,
) -> Result<()> {
    if accept(value) {
        return Ok(());
    }
    Err(Error::Usage(format!("{name} ({flag}) is {value}, but must {range}")))
}

/// The effective set on one line, as printed once at the start of a run.
impl fmt::Display for SamplingParams {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.temperature <= 0.0 {
            write!(f, "temperature {} (greedy)", self.temperature)?;
        } else {
            write!(
                f,
                "temperature {}, top_k {}, top_p {}, min_p {}",
                self.temperature, self.top_k, self.top_p, self.min_p
            )?;
            if self.typical_p < 1.0 {
                write!(f, ", typical_p {}", self.typical_p)?;
            }
            if self.top_n_sigma > 0.0 {
                write!(f, ", top_n_sigma {}", self.top_n_sigma)?;
            }
        }
        if self.penalises() {
            write!(
                f,
                ", repeat_penalty {}, presence_penalty {}, frequency_penalty {} over {} tokens",
                self.repeat_penalty,
                self.presence_penalty,
                self.frequency_penalty,
                if self.repeat_last_n < 0 { "all".into() } else { self.repeat_last_n.to_string() },
            )?;
        }
        if !self.logit_bias.is_empty() {
            write!(f, ", logit_bias on {} tokens", self.logit_bias.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stronger_sources_win_field_by_field() {
        let request = PartialSampling { top_k: Some(1), ..Default::default() };
        let flags =
            PartialSampling { top_k: Some(2), temperature: Some(0.5), ..Default::default() };
        let file = PartialSampling {
            temperature: Some(1.0),
            min_p: Some(0.0),
            top_p: Some(0.9),
            ..Default::default()
        };
        let all = request.or(flags).or(file).or_default();
        assert_eq!(
            all,
            SamplingParams {
                top_k: 1,
                temperature: 0.5,
                min_p: 0.0,
                top_p: 0.9,
                ..Default::default()
            }
        );
    }

    #[test]
    fn a_request_names_fields_as_the_spec_does() {
        let json = r#"{"temperature": 0, "top_k": 3, "seed": 7, "logit_bias": [[5, -1.5]],
                       "repeat_last_n": -1, "model": "ignored"}"#;
        let request: PartialSampling = serde_json::from_str(json).unwrap();
        let expected = PartialSampling {
            temperature: Some(0.0),
            top_k: Some(3),
            seed: Some(7),
            logit_bias: Some(vec![(5, -1.5)]),
            repeat_last_n: Some(-1),
            ..Default::default()
        };
        assert_eq!(request, expected);
    }

    #[test]
    fn wrong_values_are_refused_by_name_of_the_flag() {
        let ok = SamplingParams::default();
        ok.validate().unwrap();
        let wrong = [
            ("--temp", SamplingParams { temperature: f32::NAN, ..ok.clone() }),
            ("--top-p", SamplingParams { top_p: 1.01, ..ok.clone() }),
            ("--top-p", SamplingParams { top_p: f32::NAN, ..ok.clone() }),
            ("--min-p", SamplingParams { min_p: -0.1, ..ok.clone() }),
            ("--typical", SamplingParams { typical_p: 2.0, ..ok.clone() }),
            ("--top-nsigma", SamplingParams { top_n_sigma: f32::INFINITY, ..ok.clone() }),
            ("--repeat-penalty", SamplingParams { repeat_penalty: 0.0, ..ok.clone() }),
            ("--repeat-last-n", SamplingParams { repeat_last_n: -2, ..ok.clone() }),
            ("--presence-penalty", SamplingParams { presence_penalty: f32::NAN, ..ok.clone() }),
            ("--repeat-penalty", SamplingParams { repeat_penalty: 1e-38, ..ok.clone() }),
            ("--presence-penalty", SamplingParams { presence_penalty: -3.4e38, ..ok.clone() }),
            ("--frequency-penalty", SamplingParams { frequency_penalty: 101.0, ..ok.clone() }),
            ("--frequency-penalty", SamplingParams { frequency_penalty: f32::NAN, ..ok.clone() }),
            ("--seed", SamplingParams { seed: -2, ..ok.clone() }),
            ("--logit-bias", SamplingParams { logit_bias: vec![(0, f32::INFINITY)], ..ok }),
        ];
        for (flag, params) in wrong {
            let error = params.validate().unwrap_err();
            assert_eq!(error.exit_status(), 2);
            assert!(error.to_string().contains(flag), "{error}");
        }
    }
}
