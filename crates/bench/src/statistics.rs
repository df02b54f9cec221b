//! Medians of paired ratios with their intervals.
//!
//! Owns: the rules about noise. Two contenders run the same piece of a workload in direct succession; the ratio of the
//! two times is one pair. If the machine slows down, this affects both times. The interval is the percentile bootstrap
//! of the median [1]: samples of the pairs are drawn with replacement, [`DRAWS`] times. The seed is fixed, so the same
//! pairs always give the same interval.
//!
//! [1] B. Efron, R. Tibshirani: An Introduction to the Bootstrap, chapter 13. Chapman & Hall 1993.

use serde::Serialize;

use crate::random::SeededRandom;

/// The number of bootstrap samples.
const DRAWS: usize = 4000;
/// The share of the bootstrap medians that are inside the interval.
const CONFIDENCE: f64 = 0.95;

/// A figure with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct IntervalEstimate {
    /// The median.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl IntervalEstimate {
    /// A value without an interval.
    pub fn exactly(value: f64) -> IntervalEstimate {
        IntervalEstimate { value, low: value, high: value }
    }
}

/// The median of the values (the mean of the two middle ones for an even count); NaN without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// The median of some values with its bootstrap interval; NaN without values.
pub fn estimate(values: &[f64]) -> IntervalEstimate {
    let value = median(values);
    if values.len() < 2 {
        return IntervalEstimate { value, low: value, high: value };
    }
    let mut random = SeededRandom::new(values.len() as u64);
    let mut drawn = vec![0.0; values.len()];
    let mut medians: Vec<f64> = Vec::with_capacity(DRAWS);
    for _ in 0..DRAWS {
        drawn.fill_with(|| values[random.below(values.len() as u64) as usize]);
        medians.push(median(&drawn));
    }
    medians.sort_by(f64::total_cmp);
    let at = |share: f64| medians[((DRAWS - 1) as f64 * share).round() as usize];
    IntervalEstimate { value, low: at((1.0 - CONFIDENCE) / 2.0), high: at((1.0 + CONFIDENCE) / 2.0) }
}

/// The median of some values with their lower and upper quartile; NaN without values.
pub fn quartiles(values: &[f64]) -> IntervalEstimate {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
        let place = last as f64 * share;
        let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
        below + (above - below) * place.fract()
    };
    IntervalEstimate { value: at(0.5), low: at(0.25), high: at(0.75) }
}

/// The median of `numerators[i] / denominators[i]` with its interval.
pub fn paired_ratio(numerators: &[f64], denominators: &[f64]) -> IntervalEstimate {
    let ratios: Vec<f64> = numerators.iter().zip(denominators).map(|(left, right)| left / right).collect();
    estimate(&ratios)
}

/// The ratio of two sums of paired values with its interval: the sums are recomputed for each sample of the pairs.
pub fn ratio_of_sums(numerators: &[f64], denominators: &[f64]) -> IntervalEstimate {
    let pairs: Vec<(f64, f64)> = numerators.iter().copied().zip(denominators.iter().copied()).collect();
    let ratio = |pairs: &[(f64, f64)]| {
        let (over, under) = pairs.iter().fold((0.0, 0.0), |(over, under), pair| (over + pair.0, under + pair.1));
        over / under
    };
    let value = ratio(&pairs);
    if pairs.len() < 2 {
        return IntervalEstimate { value, low: value, high: value };
    }
    let mut random = SeededRandom::new(pairs.len() as u64);
    let mut drawn = pairs.clone();
    let mut ratios: Vec<f64> = Vec::with_capacity(DRAWS);
    for _ in 0..DRAWS {
        drawn.fill_with(|| pairs[random.below(pairs.len() as u64) as usize]);
        ratios.push(ratio(&drawn));
    }
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| ratios[((DRAWS - 1) as f64 * share).round() as usize];
    IntervalEstimate { value, low: at((1.0 - CONFIDENCE) / 2.0), high: at((1.0 + CONFIDENCE) / 2.0) }
}

/// The order of the contenders in a round: alternately forwards and backwards, so that a machine that slows down
/// favours no contender.
pub fn order(count: usize, round: usize) -> Vec<usize> {
    match round % 2 {
        0 => (0..count).collect(),
        _ => (0..count).rev().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_handles_even_and_empty() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn quartiles_are_interpolated() {
        assert_eq!(quartiles(&[5.0, 1.0, 3.0, 2.0, 4.0]), IntervalEstimate { value: 3.0, low: 2.0, high: 4.0 });
        assert_eq!(quartiles(&[1.0, 2.0]), IntervalEstimate { value: 1.5, low: 1.25, high: 1.75 });
        assert_eq!(quartiles(&[7.0]), IntervalEstimate { value: 7.0, low: 7.0, high: 7.0 });
        assert!(quartiles(&[]).value.is_nan());
    }

    #[test]
    fn ratios_are_taken_within_a_pair() {
        // The machine becomes ten times slower from pair to pair; the ratio stays the same.
        let ratio = paired_ratio(&[4.0, 40.0, 400.0], &[2.0, 20.0, 200.0]);
        assert_eq!(ratio, IntervalEstimate { value: 2.0, low: 2.0, high: 2.0 });
        assert_eq!(estimate(&[5.0]), IntervalEstimate { value: 5.0, low: 5.0, high: 5.0 });
    }

    /// The ratio is that of whole runs, and not the median of the pieces.
    #[test]
    fn ratio_of_sums_covers_whole_runs() {
        // Nine pieces take equally long, and one takes ten times as long.
        let (mut slow, fast) = (vec![2.0; 10], vec![1.0; 10]);
        slow[9] = 20.0;
        let found = ratio_of_sums(&slow, &fast);
        assert!((found.value - 3.8).abs() < 1e-9 && found.low < 2.5 && found.high > 5.0, "{found:?}");
        assert_eq!(paired_ratio(&slow, &fast).value, 2.0);
    }

    #[test]
    fn interval_matches_order_statistics() {
        // For ten distinct values the median's percentile interval is between the 2nd and the 9th of them.
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        let found = estimate(&values);
        assert_eq!(found.value, 5.5);
        assert!((2.0..=3.5).contains(&found.low) && (7.5..=9.0).contains(&found.high), "{found:?}");
        assert_eq!(found, estimate(&values));
    }

    /// The interval contains the true value about as often as it states.
    #[test]
    fn interval_covers_truth_as_stated() {
        let mut random = SeededRandom::new(3);
        let runs = 200;
        let covered = (0..runs)
            .filter(|_| {
                let values: Vec<f64> = (0..12).map(|_| random.log_normal(2.0, 0.3)).collect();
                let found = estimate(&values);
                found.low <= 2.0 && 2.0 <= found.high
            })
            .count();
        assert!((174..=199).contains(&covered), "{covered} of {runs}");
    }

    #[test]
    fn contenders_alternate_a_b_b_a() {
        assert_eq!([order(2, 0), order(2, 1), order(2, 2)].concat(), [0, 1, 1, 0, 0, 1]);
    }
}
