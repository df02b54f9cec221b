//! The trend of one attribute over one period: sublists, averages with equal values averaged, Kendall's tau.
//!
//! Owns: the arithmetic. Promises: averages that are equal as fractions count as equal. They are fixed-point integers
//! until they are reported: a forward distance has 16 bits, an average 31 more for its fraction, and a sum at most 2^16 of
//! them. An average is rounded down twice, by less than a unit each time, so that equal fractions differ by one unit at
//! most, and different ones, whose denominators are products of two lengths, practically always by more. Leaves to
//! others: what a trend means.
//!
//! The samples are not sorted: the averages need only know which sublist a sample is in. So samples are counted in
//! buckets of about equal attribute values; a bucket that lies within one sublist adds its sum to it, and only the
//! samples of the few buckets in which a cut falls are sorted. For the same reason only a value on both sides of a cut
//! needs its common average.

use super::{Averages, FORWARD_BITS, SUBLISTS_MAX, unpack};

/// Bits of an average's fraction while it is summed.
const FRACTION_BITS: u32 = 31;
/// There are 2 to this many buckets from a power of two to the next.
const STEP_BITS: u32 = 4;
/// One more than the bucket of the largest attribute value that a sample's word can hold.
const BUCKETS: usize = (64 - (FORWARD_BITS + STEP_BITS) as usize + 1) << STEP_BITS;
/// Stands for a sublist at buckets in which a cut falls.
const CUT: usize = SUBLISTS_MAX;

/// The averages of the sublists by one attribute, and their trend.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trend {
    pub(super) averages: Averages,
    /// From -1 (falls throughout) to 1 (rises throughout); 0 where there are no averages.
    pub(super) tau: f64,
}

impl Trend {
    /// Cuts samples by their attribute into `sublists` of equal length (to one) and averages each; fewer samples than
    /// sublists have no averages. `scratch` is at least as long as the samples.
    pub(super) fn of(samples: &[u64], sublists: usize, scratch: &mut [u64]) -> Trend {
        let mut averages = Averages::default();
        if samples.len() < sublists {
            return Trend { averages, tau: 0.0 };
        }
        let mut ends = [0; SUBLISTS_MAX];
        for (index, end) in ends[..sublists].iter_mut().enumerate() {
            *end = (index + 1) * samples.len() / sublists;
        }
        let mut fixed = sums(samples, &ends[..sublists], scratch);
        let mut start = 0;
        for (average, end) in fixed[..sublists].iter_mut().zip(ends) {
            *average /= (end - start) as u64;
            averages.push(*average as f64 / f64::from(1_u32 << FRACTION_BITS));
            start = end;
        }
        Trend { averages, tau: kendall_tau(&fixed[..sublists]) }
    }
}

/// The bucket of a sample, by its attribute value above the smallest: that itself below 32, and 16 buckets from each
/// power of two to the next.
#[inline]
fn bucket_of(word: u64, smallest: u64) -> usize {
    let value = (word >> FORWARD_BITS).wrapping_sub(smallest);
    let shift = (value | 1 << STEP_BITS).ilog2() - STEP_BITS;
    ((shift as usize) << STEP_BITS) + (value >> shift) as usize
}

/// The sums of the sublists' forward distances, fixed-point, where the sublists end at `ends`.
fn sums(samples: &[u64], ends: &[usize], scratch: &mut [u64]) -> [u64; SUBLISTS_MAX] {
    let smallest = samples.iter().min().map_or(0, |word| word >> FORWARD_BITS);
    let mut positions = [0_u32; BUCKETS];
    let mut last = 0;
    for &word in samples {
        let bucket = bucket_of(word, smallest);
        positions[bucket] += 1;
        last = last.max(bucket);
    }
    // From counts to positions, and the sublist of each bucket; CUT for those in which a cut falls.
    let mut sublist_of = [0_u8; BUCKETS];
    let (mut sublist, mut position) = (0, 0);
    for (bucket_position, bucket_sublist) in positions[..=last].iter_mut().zip(&mut sublist_of) {
        let count = *bucket_position as usize;
        if count == 0 {
            continue;
        }
        while position >= ends[sublist] {
            sublist += 1;
        }
        *bucket_sublist = if position + count <= ends[sublist] { sublist as u8 } else { CUT as u8 };
        *bucket_position = position as u32;
        position += count;
    }
    let mut whole = [0_u64; CUT + 1];
    let mut cut = 0;
    for &word in samples {
        let sublist = usize::from(sublist_of[bucket_of(word, smallest)]);
        whole[sublist] += unpack(word).1;
        scratch[cut] = word;
        cut += usize::from(sublist == CUT);
    }
    let mut sums = [0; SUBLISTS_MAX];
    for (sum, whole) in sums.iter_mut().zip(whole) {
        *sum = whole << FRACTION_BITS;
    }
    let cut = &mut scratch[..cut];
    // By value alone: often most are of one value, and their order is of no consequence.
    cut.sort_unstable_by_key(|word| word >> FORWARD_BITS);
    for bucket in cut.chunk_by(|left, right| bucket_of(*left, smallest) == bucket_of(*right, smallest)) {
        add_bucket(bucket, positions[bucket_of(bucket[0], smallest)] as usize, ends, &mut sums);
    }
    sums
}

/// Adds the samples of one bucket, sorted, the first at `position` of all, to the sums of the sublists in which they are.
fn add_bucket(bucket: &[u64], mut position: usize, ends: &[usize], sums: &mut [u64; SUBLISTS_MAX]) {
    let mut sublist = ends.iter().position(|&end| position < end).unwrap_or(0);
    for value in bucket.chunk_by(|left, right| left >> FORWARD_BITS == right >> FORWARD_BITS) {
        let sum: u64 = value.iter().map(|&word| unpack(word).1).sum();
        let average = (sum << FRACTION_BITS) / value.len() as u64;
        let value_end = position + value.len();
        while position < value_end {
            if position == ends[sublist] {
                sublist += 1;
            }
            let taken = value_end.min(ends[sublist]) - position;
            sums[sublist] += if taken == value.len() { sum << FRACTION_BITS } else { average * taken as u64 };
            position += taken;
        }
    }
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

/// The median over samples by backward distance of backward plus forward distance; `scratch` is at least as long.
pub(super) fn loop_length(samples: &[u64], scratch: &mut [u64]) -> Option<u64> {
    let sums = scratch.get_mut(..samples.len())?;
    for (sum, &word) in sums.iter_mut().zip(samples) {
        let (backward, forward) = unpack(word);
        *sum = backward + forward;
    }
    let middle = sums.len() / 2;
    (!sums.is_empty()).then(|| *sums.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(samples: &[(u64, u64)]) -> Vec<u64> {
        samples.iter().rev().map(|(value, forward)| value << FORWARD_BITS | forward).collect()
    }

    fn trend_of(words: &[u64], sublists: usize) -> Trend {
        Trend::of(words, sublists, &mut vec![0; words.len()])
    }

    #[test]
    fn buckets_ascend_with_values_and_the_largest_value_has_one() {
        let mut values: Vec<u64> = (0..100_000).chain((17..48).map(|shift| 1 << shift)).collect();
        values.extend((17..=48).map(|shift| (1 << shift) - 1));
        values.sort_unstable();
        let buckets: Vec<usize> = values.iter().map(|value| bucket_of(value << FORWARD_BITS, 0)).collect();
        assert!(buckets.is_sorted());
        assert!(buckets[..100_000].windows(2).all(|pair| pair[1] - pair[0] <= 1));
        assert!(buckets.iter().zip(&values).take(32).all(|(bucket, value)| *bucket as u64 == *value));
        assert_eq!(buckets.last(), Some(&(BUCKETS - 1)));
    }

    #[test]
    fn sublists_of_distinct_values_average_their_own_samples() {
        let trend = trend_of(&words(&[(1, 10), (2, 20), (3, 30), (4, 50)]), 2);
        assert_eq!(*trend.averages, [15.0, 40.0]);
        assert_eq!(trend.tau, 1.0);
    }

    #[test]
    fn equal_values_have_no_trend_however_they_are_cut() {
        let samples: Vec<(u64, u64)> = (0..499).map(|forward| (7, forward)).collect();
        let trend = trend_of(&words(&samples), 5);
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
            assert_eq!(trend_of(&words(&samples), 2).tau, 0.0, "20 quarters each, moved by {shift}");
        }
    }

    #[test]
    fn fewer_samples_than_sublists_have_no_averages() {
        let trend = trend_of(&words(&[(1, 1), (2, 2), (3, 3), (4, 4)]), 5);
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
