//! The trend of one attribute over one period: sublists, averages with equal values averaged, Kendall's tau.
//!
//! Owns: the arithmetic. Promises: averages of sublists that lie within one attribute value are equal to the last bit,
//! as they are fixed-point integers until they are reported: a forward distance has 16 bits, an average 31 more for its
//! fraction, and a sum at most 2^16 of them. Leaves to others: what a trend means.

use super::{Averages, FORWARD_BITS, unpack};

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
                    averages.push((sum / length) as f64 / f64::from(1_u32 << FRACTION_BITS));
                    sublist += 1;
                    end = cut(sublist + 1);
                    sum = 0;
                }
            }
        }
        Trend { averages, tau: kendall_tau(&averages) }
    }
}

/// The average forward distance of samples, fixed-point.
fn average_forward(samples: &[u64]) -> u64 {
    let sum: u64 = samples.iter().map(|&word| unpack(word).1).sum();
    (sum << FRACTION_BITS) / samples.len() as u64
}

/// Concordant minus discordant pairs over all pairs; equal values are neither.
fn kendall_tau(averages: &[f64]) -> f64 {
    let (mut balance, mut pairs) = (0_i32, 0_i32);
    for (index, left) in averages.iter().enumerate() {
        for right in &averages[index + 1..] {
            balance += i32::from(left < right) - i32::from(left > right);
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
    fn fewer_samples_than_sublists_have_no_averages() {
        let trend = Trend::of(&words(&[(1, 1), (2, 2), (3, 3), (4, 4)]), 5);
        assert!(trend.averages.is_empty());
        assert_eq!(trend.tau, 0.0);
    }

    #[test]
    fn tau_counts_pairs() {
        assert_eq!(kendall_tau(&[5.0, 4.0, 3.0, 2.0, 1.0]), -1.0);
        assert_eq!(kendall_tau(&[1.0, 3.0, 2.0, 5.0, 4.0]), 0.6);
        assert_eq!(kendall_tau(&[1.0, 1.0, 1.0, 1.0, 2.0]), 0.4);
    }
}
