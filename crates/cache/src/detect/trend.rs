//! The trend of one attribute over one period: sublists, averages with equal values averaged, Kendall's tau.
//!
//! Owns: the arithmetic. Promises: averages that are equal as fractions count as equal. They are fixed-point integers
//! until they are reported: a forward distance has 16 bits, an average 31 more for its fraction, and a sum at most 2^16 of
//! them. An average is rounded down twice, by less than a unit each time, so that equal fractions differ by one unit at
//! most, and different ones, whose denominators are products of two lengths, practically always by more. Leaves to
//! others: what a trend means.
//!
//! The samples are not sorted: the averages need only know which sublist a sample is in, so it is enough to select the
//! sample at each cut. And only a value that lies on both sides of a cut needs its common average, as a value within
//! one sublist adds the same to its sum in any case.

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
    /// Cuts samples by their attribute into `sublists` of equal length (to one) and averages each; fewer samples than
    /// sublists have no averages. Leaves the samples in an order of its own.
    pub(super) fn of(samples: &mut [u64], sublists: usize) -> Trend {
        let mut averages = Averages::default();
        if samples.len() < sublists {
            return Trend { averages, tau: 0.0 };
        }
        let cut = |index: usize| index * samples.len() / sublists;
        let mut ends = [0; SUBLISTS_MAX];
        for (index, end) in ends[..sublists].iter_mut().enumerate() {
            *end = cut(index + 1);
        }
        let ends = &ends[..sublists];
        select(samples, ends, 0);

        let mut fixed = [0; SUBLISTS_MAX];
        let mut start = 0;
        for (average, &end) in fixed.iter_mut().zip(ends) {
            *average = of_all(&samples[start..end]) << FRACTION_BITS;
            start = end;
        }
        share_values_on_cuts(samples, ends, &mut fixed);
        let mut start = 0;
        for (average, &end) in fixed.iter_mut().zip(ends) {
            *average /= (end - start) as u64;
            averages.push(*average as f64 / f64::from(1_u32 << FRACTION_BITS));
            start = end;
        }
        Trend { averages, tau: kendall_tau(&fixed[..sublists]) }
    }
}

/// Puts samples between the cuts between which they would be were they sorted, halving the cuts at each step; `ends` are
/// positions from `base`, the last one the end of the samples.
fn select(samples: &mut [u64], ends: &[usize], base: usize) {
    if ends.len() < 2 {
        return;
    }
    let middle = ends.len() / 2 - 1;
    let position = ends[middle] - base;
    samples.select_nth_unstable(position);
    let (left, right) = samples.split_at_mut(position);
    select(left, &ends[..=middle], base);
    select(right, &ends[middle + 1..], ends[middle]);
}

/// Where a cut falls within one attribute value, replaces what the value's samples add to the sums on both sides by the
/// value's average.
fn share_values_on_cuts(samples: &[u64], ends: &[usize], sums: &mut [u64; SUBLISTS_MAX]) {
    let mut shared = None;
    let mut start = 0;
    for window in ends.windows(2) {
        let (left, right) = (&samples[start..window[0]], &samples[window[0]..window[1]]);
        start = window[0];
        let largest = left.iter().max().map(|word| word >> FORWARD_BITS);
        let smallest = right.iter().min().map(|word| word >> FORWARD_BITS);
        let (Some(value), true) = (largest, largest == smallest) else { continue };
        if shared.replace(value) == Some(value) {
            continue;
        }
        let (count, sum) = of_value(samples, value);
        let average = (sum << FRACTION_BITS) / count;
        let mut start = 0;
        for (total, &end) in sums.iter_mut().zip(ends) {
            let (count, sum) = of_value(&samples[start..end], value);
            *total = *total - (sum << FRACTION_BITS) + count * average;
            start = end;
        }
    }
}

/// The sum of the forward distances. It wraps, as do those below, to be computed several at a time; it cannot overflow,
/// being at most 2^16 times 2^16.
fn of_all(samples: &[u64]) -> u64 {
    samples.iter().fold(0, |sum: u64, &word| sum.wrapping_add(unpack(word).1))
}

/// How many samples have an attribute value, and the sum of their forward distances.
fn of_value(samples: &[u64], value: u64) -> (u64, u64) {
    samples.iter().fold((0_u64, 0_u64), |(count, sum), &word| {
        let (of_word, forward) = unpack(word);
        let mask = u64::from(of_word == value).wrapping_neg();
        (count.wrapping_sub(mask), sum.wrapping_add(forward & mask))
    })
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
        samples.iter().rev().map(|(value, forward)| value << FORWARD_BITS | forward).collect()
    }

    #[test]
    fn sublists_of_distinct_values_average_their_own_samples() {
        let trend = Trend::of(&mut words(&[(1, 10), (2, 20), (3, 30), (4, 50)]), 2);
        assert_eq!(*trend.averages, [15.0, 40.0]);
        assert_eq!(trend.tau, 1.0);
    }

    #[test]
    fn equal_values_have_no_trend_however_they_are_cut() {
        let samples: Vec<(u64, u64)> = (0..499).map(|forward| (7, forward)).collect();
        let trend = Trend::of(&mut words(&samples), 5);
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
            assert_eq!(Trend::of(&mut words(&samples), 2).tau, 0.0, "20 quarters each, moved by {shift}");
        }
    }

    #[test]
    fn fewer_samples_than_sublists_have_no_averages() {
        let trend = Trend::of(&mut words(&[(1, 1), (2, 2), (3, 3), (4, 4)]), 5);
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
