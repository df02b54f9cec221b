//! The trend of one attribute over one period: sublists, averages with equal values averaged, Kendall's tau.
//!
//! Owns: the arithmetic. Promises: averages that are equal as fractions count as equal. They are fixed-point integers
//! until they are reported: a forward distance has 16 bits, an average 31 more for its fraction, and a sum at most 2^16 of
//! them. An average is rounded down twice, by less than a unit each time, so that equal fractions differ by one unit at
//! most, and different ones, whose denominators are products of two lengths, practically always by more. Leaves to
//! others: what a trend means.

use super::{Averages, FORWARD_BITS, SUBLISTS_MAX, unpack};

/// Bits of an average's fraction while it is summed.
const FRACTION_BITS: u32 = 31;

/// The averages of the sublists by one attribute, and their trend.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trend {
    pub(super) averages: Averages,
    /// From -1 (falls throughout) to 1 (rises throughout); 0 where there are no averages.
    pub(super) tau: f64,
}

impl Trend {
    /// Cuts `sorted` samples into `sublists` of equal length (to one) and averages each; fewer samples than sublists
    /// have no averages.
    pub(super) fn of(sorted: &[u64], sublists: usize) -> Trend {
        let mut averages = Averages::default();
        if sorted.len() < sublists {
            return Trend { averages, tau: 0.0 };
        }
        let mut fixed = [0; SUBLISTS_MAX];
        let cut = |index: usize| index * sorted.len() / sublists;
        let (mut sublist, mut end, mut sum) = (0, cut(1), 0_u64);
        let mut position = 0;
        for value in sorted.chunk_by(|left, right| left >> FORWARD_BITS == right >> FORWARD_BITS) {
            let average = average_forward(value);
            let value_end = position + value.len();
            while position < value_end {
                let taken = value_end.min(end) - position;
                sum += average * taken as u64;
                position += taken;
                if position == end {
                    let length = (end - cut(sublist)) as u64;
                    fixed[sublist] = sum / length;
                    averages.push(fixed[sublist] as f64 / f64::from(1_u32 << FRACTION_BITS));
                    sublist += 1;
                    end = cut(sublist + 1);
                    sum = 0;
                }
            }
        }
        Trend { averages, tau: kendall_tau(&fixed[..sublists]) }
    }
}

/// The average forward distance of samples, fixed-point.
fn average_forward(samples: &[u64]) -> u64 {
    let sum: u64 = samples.iter().map(|&word| unpack(word).1).sum();
    (sum << FRACTION_BITS) / samples.len() as u64
}

/// Concordant minus discordant pairs over all pairs; equal values, to one unit, are neither.
fn kendall_tau(averages: &[u64]) -> f64 {
    let (mut balance, mut pairs) = (0_i32, 0_i32);
    for (index, left) in averages.iter().enumerate() {
        for right in &averages[index + 1..] {
            if left.abs_diff(*right) > 1 {
                balance += if left < right { 1 } else { -1 };
            }
            pairs += 1;
        }
    }
    if pairs == 0 { 0.0 } else { f64::from(balance) / f64::from(pairs) }
}

/// The median over samples by backward distance of backward plus forward distance.
pub(super) fn loop_length(samples: &[u64], sums: &mut Vec<u64>) -> Option<u64> {
    sums.clear();
    sums.extend(samples.iter().map(|&word| {
        let (backward, forward) = unpack(word);
        backward + forward
    }));
    if sums.is_empty() {
        return None;
    }
    let middle = sums.len() / 2;
    Some(*sums.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(samples: &[(u64, u64)]) -> Vec<u64> {
        let mut words: Vec<u64> = samples.iter().map(|(value, forward)| value << FORWARD_BITS | forward).collect();
        words.sort_unstable();
        words
    }

    #[test]
    fn sublists_of_distinct_values_average_their_own_samples() {
        let trend = Trend::of(&words(&[(1, 10), (2, 20), (3, 30), (4, 50)]), 2);
        assert_eq!(*trend.averages, [15.0, 40.0]);
        assert_eq!(trend.tau, 1.0);
    }

    #[test]
    fn equal_values_have_no_trend_however_they_are_cut() {
        let samples: Vec<(u64, u64)> = (0..499).map(|forward| (7, forward)).collect();
        let trend = Trend::of(&words(&samples), 5);
        assert_eq!(trend.averages.len(), 5);
        assert!(trend.averages.iter().all(|average| *average == trend.averages[0]));
        assert_eq!(trend.tau, 0.0);
    }

    #[test]
    fn averages_that_are_equal_as_fractions_have_no_trend() {
        // The first sublist averages 4 and three times 16/3, the second four times 5.
        let value_of_3 = [(2, 5), (2, 5), (2, 6)];
        let first: Vec<(u64, u64)> = [(1, 4)].into_iter().chain(value_of_3).collect();
        for shift in 0..100 {
            let mut samples: Vec<(u64, u64)> = first.iter().map(|(value, forward)| (*value, forward + shift)).collect();
            samples.extend([(3, 5 + shift), (4, 5 + shift), (5, 5 + shift), (6, 5 + shift)]);
            assert_eq!(Trend::of(&words(&samples), 2).tau, 0.0, "20 quarters each, moved by {shift}");
        }
    }

    #[test]
    fn fewer_samples_than_sublists_have_no_averages() {
        let trend = Trend::of(&words(&[(1, 1), (2, 2), (3, 3), (4, 4)]), 5);
        assert!(trend.averages.is_empty());
        assert_eq!(trend.tau, 0.0);
    }

    #[test]
    fn tau_counts_pairs() {
        assert_eq!(kendall_tau(&[50, 40, 30, 20, 10]), -1.0);
        assert_eq!(kendall_tau(&[10, 30, 20, 50, 40]), 0.6);
        assert_eq!(kendall_tau(&[10, 10, 11, 10, 20]), 0.4);
    }
}
