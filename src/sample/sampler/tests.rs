//! What is drawn, and how often, by the definition of each step.

use proptest::prelude::*;

use super::*;

/// No filter, no penalty: the plain softmax.
fn plain() -> SamplingParams {
    SamplingParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 1,
        ..Default::default()
    }
}

fn draws(params: &SamplingParams, context: &[u32], logits: &[f32], count: usize) -> Vec<u32> {
    let mut sampler = Sampler::new(params.clone()).unwrap();
    context.iter().for_each(|&t| sampler.accept(t));
    (0..count).map(|_| sampler.sample(logits).unwrap()).collect()
}

/// Share of each token among many draws.
fn shares(params: &SamplingParams, context: &[u32], logits: &[f32]) -> Vec<f64> {
    const DRAWS: usize = 20_000;
    let mut counts = vec![0.0; logits.len()];
    for token in draws(params, context, logits, DRAWS) {
        counts[token as usize] += 1.0 / DRAWS as f64;
    }
    counts
}

/// f64 softmax at a temperature, for comparison.
fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|&x| (f64::from(x) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// 20,000 draws stay within about 5 standard errors of each probability.
fn assert_close(shares: &[f64], expected: &[f64]) {
    for (i, (share, p)) in shares.iter().zip(expected).enumerate() {
        let tolerance = 5.0 * (p * (1.0 - p) / 20_000.0).sqrt() + 1e-9;
        assert!((share - p).abs() <= tolerance, "token {i}: drawn {share}, expected {p}");
    }
}

const LOGITS: [f32; 6] = [1.0, -0.5, 2.0, f32::NEG_INFINITY, 0.0, 1.5];

#[test]
fn draws_follow_the_softmax_at_each_temperature() {
    for temperature in [0.3, 0.8, 1.0, 2.5] {
        let params = SamplingParams { temperature, ..plain() };
        let expected = softmax(&LOGITS, temperature.into());
        assert_close(&shares(&params, &[], &LOGITS), &expected);
    }
}

#[test]
fn every_filter_cuts_what_its_rule_says() {
    // Probabilities at temperature 1, by falling logit: 2: .42, 5: .25, 0: .15, 4: .06, 1: .03.
    let cut = |params: SamplingParams| {
        let shares = shares(&params, &[], &LOGITS);
        (0..LOGITS.len()).filter(|&i| shares[i] > 0.0).collect::<Vec<_>>()
    };
    assert_eq!(cut(plain()), [0, 1, 2, 4, 5]);
    assert_eq!(cut(SamplingParams { top_k: 2, ..plain() }), [2, 5]);
    assert_eq!(cut(SamplingParams { top_p: 0.8, ..plain() }), [0, 2, 5]);
    assert_eq!(cut(SamplingParams { min_p: 0.3, ..plain() }), [0, 2, 5]);
    assert_eq!(cut(SamplingParams { top_n_sigma: 1.0, ..plain() }), [2, 5]);
    let typical = cut(SamplingParams { typical_p: 0.2, ..plain() });
    assert_eq!(typical, [5], "its surprise, ln 4, is the closest to the entropy");
}

#[test]
fn top_p_is_taken_of_what_top_k_left_and_before_temperature() {
    // Among the best three the shares are .51, .31, .19: .8 needs two of them, and the
    // temperature of 5, which would flatten them, comes later.
    let params = SamplingParams { top_k: 3, top_p: 0.8, temperature: 5.0, ..plain() };
    let kept = softmax(&[2.0, 1.5], 5.0);
    assert_close(&shares(&params, &[], &LOGITS), &[0.0, 0.0, kept[0], 0.0, 0.0, kept[1]]);
}

#[test]
fn penalties_and_bias_shift_the_distribution() {
    let context = [2, 2, 1];
    let shifted = |changes: [f32; 6]| {
        let logits: Vec<f32> = LOGITS.iter().zip(changes).map(|(x, d)| x + d).collect();
        softmax(&logits, 1.0)
    };
    let check = |params: SamplingParams, changes| {
        assert_close(&shares(&params, &context, &LOGITS), &shifted(changes));
    };
    let presence = SamplingParams { presence_penalty: 0.7, ..plain() };
    check(presence, [0.0, -0.7, -0.7, 0.0, 0.0, 0.0]);
    let frequency = SamplingParams { frequency_penalty: 0.7, ..plain() };
    check(frequency, [0.0, -0.7, -1.4, 0.0, 0.0, 0.0]);
    let repeat = SamplingParams { repeat_penalty: 2.0, ..plain() };
    check(repeat, [0.0, -0.5, -1.0, 0.0, 0.0, 0.0]);
    let short = SamplingParams { presence_penalty: 0.7, repeat_last_n: 1, ..plain() };
    check(short, [0.0, -0.7, 0.0, 0.0, 0.0, 0.0]);
    let off = SamplingParams { presence_penalty: 0.7, repeat_last_n: 0, ..plain() };
    check(off, [0.0; 6]);
    let bias = SamplingParams { logit_bias: vec![(4, 2.0), (2, f32::NEG_INFINITY)], ..plain() };
    check(bias, [0.0, 0.0, f32::NEG_INFINITY, 0.0, 2.0, 0.0]);
}

#[test]
fn greedy_takes_the_lowest_id_on_ties_after_bias_and_penalties() {
    let greedy = SamplingParams { temperature: 0.0, ..plain() };
    assert_eq!(draws(&greedy, &[], &[1.0, 3.0, 3.0], 1), [1]);
    let negative = SamplingParams { temperature: -1.0, ..plain() };
    assert_eq!(draws(&negative, &[], &[1.0, 3.0, 3.0], 1), [1]);
    let penalised = SamplingParams { presence_penalty: 1.0, ..greedy.clone() };
    assert_eq!(draws(&penalised, &[1], &[1.0, 3.0, 3.0], 1), [2]);
    let biased = SamplingParams { logit_bias: vec![(0, 5.0)], ..greedy.clone() };
    assert_eq!(draws(&biased, &[], &[1.0, 3.0, 3.0], 1), [0]);
    let is_greedy = |params| Sampler::new(params).unwrap().is_greedy();
    assert!(is_greedy(greedy));
    assert!(!is_greedy(penalised) && !is_greedy(biased) && !is_greedy(plain()));
}

#[test]
fn the_seed_alone_decides() {
    let logits: Vec<f32> = (0..5000).map(|i| (i * 37 % 101) as f32 / 40.0).collect();
    let fixed = SamplingParams { seed: 42, ..plain() };
    assert_eq!(draws(&fixed, &[], &logits, 20), draws(&fixed, &[], &logits, 20));
    let other = SamplingParams { seed: 43, ..plain() };
    assert_ne!(draws(&fixed, &[], &logits, 20), draws(&other, &[], &logits, 20));

    let mut random = Sampler::new(SamplingParams { seed: -1, ..plain() }).unwrap();
    let drawn: Vec<u32> = (0..20).map(|_| random.sample(&logits).unwrap()).collect();
    let again = SamplingParams { seed: random.seed() as i64, ..plain() };
    assert_eq!(drawn, draws(&again, &[], &logits, 20));
    let seeds: std::collections::HashSet<u64> = (0..4)
        .map(|_| Sampler::new(SamplingParams { seed: -1, ..plain() }).unwrap().seed())
        .collect();
    assert!(seeds.len() > 1);
}

/// One set of parameters for each field that takes part in the choice.
fn each_field() -> Vec<SamplingParams> {
    let mut sets = vec![
        SamplingParams::default(),
        plain(),
        SamplingParams { top_k: 3, ..plain() },
        SamplingParams { top_k: -1, ..plain() },
        SamplingParams { top_p: 0.5, ..plain() },
        SamplingParams { top_p: 0.0, ..plain() },
        SamplingParams { min_p: 0.5, ..plain() },
        SamplingParams { typical_p: 0.5, ..plain() },
        SamplingParams { top_n_sigma: 0.5, ..plain() },
        SamplingParams { repeat_penalty: 1.5, ..plain() },
        SamplingParams { repeat_penalty: 0.5, repeat_last_n: -1, ..plain() },
        SamplingParams { presence_penalty: 1.0, ..plain() },
        SamplingParams { frequency_penalty: -1.0, ..plain() },
        SamplingParams { logit_bias: vec![(0, 1.0), (1, f32::NEG_INFINITY)], ..plain() },
        SamplingParams { temperature: 1e-30, ..plain() },
        SamplingParams { temperature: 1e30, ..plain() },
    ];
    let greedy: Vec<_> =
        sets.iter().map(|s| SamplingParams { temperature: 0.0, ..s.clone() }).collect();
    sets.extend(greedy);
    sets
}

#[test]
fn logits_that_allow_no_choice_are_errors_under_every_filter() {
    let inf = f32::INFINITY;
    let bad: [&[f32]; 6] = [
        &[f32::NAN, 1.0, 2.0],
        &[1.0, 2.0, f32::NAN],
        &[1.0, inf, 2.0],
        &[inf, inf],
        &[-inf, -inf, -inf],
        &[f32::NAN, inf, -inf],
    ];
    for params in each_field() {
        let mut sampler = Sampler::new(params.clone()).unwrap();
        sampler.accept(0);
        for logits in bad {
            let error = sampler.sample(logits).unwrap_err();
            assert!(matches!(error, Error::Sampling(_)), "{params:?} {logits:?}: {error}");
        }
        assert_eq!(sampler.sample(&[-inf, -inf, 1.0]).unwrap(), 2, "usable after an error");
    }
}

#[test]
fn no_logits_and_bias_outside_the_vocabulary_are_errors() {
    assert!(matches!(argmax(&[]), Err(Error::Sampling(_))));
    let params = SamplingParams { logit_bias: vec![(3, 1.0)], ..plain() };
    let error = Sampler::new(params).unwrap().sample(&[0.0; 3]).unwrap_err();
    assert!(error.to_string().contains("token 3"), "{error}");
    let ban = SamplingParams { logit_bias: vec![(0, f32::NEG_INFINITY)], ..plain() };
    assert!(Sampler::new(ban).unwrap().sample(&[0.0]).is_err());
}

/// The `n` largest of `logits` and what equals one of them, by token.
fn top(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let mut sorted = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let least = sorted.get(n - 1).copied().unwrap_or(f32::MIN).max(f32::MIN);
    (0..).zip(logits.iter().copied()).filter(|(_, logit)| *logit >= least).collect()
}

#[test]
fn what_takes_all_logits_is_known() {
    let decisive = |params| {
        let mut sampler = Sampler::new(params).unwrap();
        [1, 2, 2, 5].into_iter().for_each(|token| sampler.accept(token));
        sampler.decisive()
    };
    assert_eq!(decisive(SamplingParams::default()), Some(40));
    assert_eq!(decisive(plain()), None);
    let penalised = SamplingParams { presence_penalty: 1.0, ..Default::default() };
    assert_eq!(decisive(penalised.clone()), Some(43));
    assert_eq!(decisive(SamplingParams { temperature: 0.0, ..penalised.clone() }), Some(4));
    assert_eq!(decisive(SamplingParams { repeat_last_n: 2, ..penalised.clone() }), Some(42));
    for raising in [
        SamplingParams { presence_penalty: -0.1, ..Default::default() },
        SamplingParams { frequency_penalty: -0.1, ..Default::default() },
        SamplingParams { repeat_penalty: 0.9, ..Default::default() },
        SamplingParams { logit_bias: vec![(1, -1.0)], ..Default::default() },
        SamplingParams { top_n_sigma: 1.0, ..Default::default() },
    ] {
        assert_eq!(decisive(raising), None);
    }
}

proptest! {
    #[test]
    fn the_decisive_logits_give_the_same_tokens(
        // Few distinct values, so that ties are common.
        logits in prop::collection::vec((-30..30i32).prop_map(|x| x as f32 / 2.0), 60..400),
        banned in prop::collection::vec(any::<bool>(), 60..400),
        context in prop::collection::vec(0..60u32, 0..20),
        (top_k, seed) in (1..50i32, 0..1000i64),
        penalties in prop_oneof![Just([1.0, 0.0, 0.0]), Just([1.3, 0.7, 0.2])],
        temperature in prop_oneof![Just(0.0f32), Just(0.7), Just(3.0)],
    ) {
        let mut logits = logits;
        for (logit, banned) in logits.iter_mut().zip(&banned).skip(1) {
            if *banned { *logit = f32::NEG_INFINITY; }
        }
        let [repeat_penalty, presence_penalty, frequency_penalty] = penalties;
        let params = SamplingParams {
            temperature,
            top_k,
            seed,
            repeat_penalty,
            presence_penalty,
            frequency_penalty,
            ..Default::default()
        };
        let mut all = Sampler::new(params).unwrap();
        context.iter().for_each(|&token| all.accept(token));
        let mut few = all.clone();
        for _ in 0..8 {
            let decisive = few.decisive().unwrap();
            for more in [0, 17] {
                let top = top(&logits, decisive + more);
                let drawn = few.clone().sample_top(&top).unwrap();
                prop_assert_eq!(drawn, all.clone().sample(&logits).unwrap());
            }
            let token = all.sample(&logits).unwrap();
            few.sample_top(&top(&logits, decisive)).unwrap();
            all.accept(token);
            few.accept(token);
        }
    }

    #[test]
    fn a_possible_token_is_chosen_or_an_error_given(
        logits in prop::collection::vec(any::<f32>(), 0..50),
        context in prop::collection::vec(0..60u32, 0..20),
    ) {
        for params in each_field() {
            let mut sampler = Sampler::new(params).unwrap();
            context.iter().for_each(|&t| sampler.accept(t));
            if let Ok(token) = sampler.sample(&logits) {
                prop_assert!(logits[token as usize] > f32::NEG_INFINITY);
            }
        }
    }

    #[test]
    fn a_tiny_temperature_agrees_with_argmax(
        logits in prop::collection::vec(-50..50i32, 1..400)
    ) {
        let logits: Vec<f32> = logits.into_iter().map(|x| x as f32).collect();
        let best = logits[argmax(&logits).unwrap() as usize];
        for params in [plain(), SamplingParams::default()] {
            let params = SamplingParams { temperature: 1e-6, ..params };
            let token = draws(&params, &[], &logits, 1)[0];
            prop_assert_eq!(logits[token as usize], best);
        }
    }
}
