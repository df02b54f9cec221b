//! The trend of one attribute over one period: cuts the samples into sublists, averages each sublist, and computes
//! Kendall's tau.
//!
//! Owns: the arithmetic. Promises: averages that are equal before rounding count as equal. Averages are fixed-point
//! integers until they are reported: a forward distance has 16 bits, the fraction of an average has 31 more, and a sum
//! has at most 2^16 terms, so it fits in 64 bits. An average is rounded down twice, each time by less than one unit, so
//! averages that are equal before rounding differ by at most one unit afterwards. Different averages practically always
//! differ by more. Leaves to others: the meaning of a trend.
//!
//! Most samples are not sorted, because an average depends only on which samples are in its sublist. One pass counts
//! and sums the samples in buckets of about equal attribute values. A bucket that is inside one sublist adds its sum to
//! that sublist; the sum of a bucket with only one value can be divided between sublists. Only the samples of the few
//! other buckets, in which a sublist ends, are gathered and sorted. Likewise, the average over all samples with one
//! value is only needed if samples with this value are on both sides of a cut.

use super::{FORWARD_BITS, SUBLISTS_MAX, SublistAverages, unpack};

/// The number of bits of an average's fraction while averages are summed.
const FRACTION_BITS: u32 = 31;
/// There are 2^`STEP_BITS` buckets for the attribute values between two consecutive powers of two.
const STEP_BITS: u32 = 4;
/// The number of buckets: one more than the index of the bucket for the largest attribute value that a sample's word
/// can hold.
const BUCKETS: usize = (64 - (FORWARD_BITS + STEP_BITS) as usize + 1) << STEP_BITS;
/// Each of the first `EXACT_BUCKETS` buckets has only one value.
const EXACT_BUCKETS: usize = 2 << STEP_BITS;
/// The low `SUM_BITS` bits of a bucket's word hold the sum of its forward distances, and the bits above hold the number
/// of its samples. The sum fits, because there are at most 2^16 samples, each below 2^16.
const SUM_BITS: u32 = 32;
/// Replaces the word of a bucket whose samples must be gathered and sorted.
const CUT: u64 = u64::MAX;

/// The result for one attribute: the average of each sublist, and the trend of these averages.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttributeTrend {
    pub(super) averages: SublistAverages,
    /// From -1 (falls throughout) to 1 (rises throughout); 0 if there are no averages.
    pub(super) tau: f64,
}

impl AttributeTrend {
    /// Cuts samples by their attribute into `sublists` lists, whose lengths differ by at most one, and averages each
    /// list. If there are fewer samples than sublists, there are no averages. `scratch` is at least as long as the
    /// samples.
    pub(super) fn of(samples: &[u64], sublists: usize, scratch: &mut [u64]) -> AttributeTrend {
        let mut averages = SublistAverages::default();
        if samples.len() < sublists {
            return AttributeTrend { averages, tau: 0.0 };
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
        AttributeTrend { averages, tau: kendall_tau(&fixed[..sublists]) }
    }
}

/// The bucket of a sample, by the difference between its attribute value and the smallest one. Each difference below
/// [`EXACT_BUCKETS`] has its own bucket; above, there are 16 buckets between two powers of two.
#[inline]
fn bucket_of(word: u64, smallest: u64) -> usize {
    let value = (word >> FORWARD_BITS).wrapping_sub(smallest);
    let shift = (value | 1 << STEP_BITS).ilog2() - STEP_BITS;
    ((shift as usize) << STEP_BITS) + (value >> shift) as usize
}

/// The sum of the forward distances of each sublist, as a fixed-point number; the sublists end at `ends`.
fn sums(samples: &[u64], ends: &[usize], scratch: &mut [u64]) -> [u64; SUBLISTS_MAX] {
    let smallest = samples.iter().min().map_or(0, |word| word >> FORWARD_BITS);
    let mut buckets = [0_u64; BUCKETS];
    let mut last = 0;
    for &word in samples {
        let bucket = bucket_of(word, smallest);
        buckets[bucket] += 1 << SUM_BITS | unpack(word).1;
        last = last.max(bucket);
    }
    let mut sums = SublistSums { ends, sublist: 0, room: ends[0], whole: 0, sums: [0; SUBLISTS_MAX] };
    // If a sublist ends within a bucket whose values can differ, the samples of the bucket must be sorted. `cut` notes
    // the sublist and its free room at each such bucket; the samples are gathered below.
    let mut cut = [(0, 0); SUBLISTS_MAX];
    let mut cut_count = 0;
    for (bucket, word) in buckets[..=last].iter_mut().enumerate() {
        let (count, sum) = ((*word >> SUM_BITS) as usize, *word & ((1 << SUM_BITS) - 1));
        // Most buckets are inside one sublist or empty.
        if sums.add_whole(count, sum) {
            continue;
        }
        if bucket >= EXACT_BUCKETS {
            *word = CUT;
            cut[cut_count] = (sums.sublist, sums.room);
            cut_count += 1;
        }
        sums.add_cut(count, if bucket < EXACT_BUCKETS { (sum << FRACTION_BITS) / count as u64 } else { 0 });
    }
    sums.settle();
    if cut_count == 0 {
        return sums.sums;
    }
    let mut gathered = 0;
    for &word in samples {
        scratch[gathered] = word;
        gathered += usize::from(buckets[bucket_of(word, smallest)] == CUT);
    }
    let gathered = &mut scratch[..gathered];
    // The samples are sorted by value only, because the order of equal values does not matter. This also orders them by
    // bucket.
    gathered.sort_unstable_by_key(|word| word >> FORWARD_BITS);
    let mut cut = cut[..cut_count].iter();
    for bucket in gathered.chunk_by(|left, right| bucket_of(*left, smallest) == bucket_of(*right, smallest)) {
        let Some(&(sublist, room)) = cut.next() else { break };
        (sums.sublist, sums.room) = (sublist, room);
        for value in bucket.chunk_by(|left, right| left >> FORWARD_BITS == right >> FORWARD_BITS) {
            let sum = value.iter().map(|&word| unpack(word).1).sum();
            if !sums.add_whole(value.len(), sum) {
                sums.add_cut(value.len(), (sum << FRACTION_BITS) / value.len() as u64);
            }
        }
        sums.settle();
    }
    sums.sums
}

/// The sums of the sublists while samples are added in the order of their attribute.
struct SublistSums<'a> {
    /// The positions in the order of samples at which the sublists end.
    ends: &'a [usize],
    /// The sublist that is being filled, and the number of samples for which it still has room.
    sublist: usize,
    room: usize,
    /// The sum of the samples that [`SublistSums::add_whole`] has added and that `sums` does not include yet; it is not a
    /// fixed-point number.
    whole: u64,
    sums: [u64; SUBLISTS_MAX],
}

impl SublistSums<'_> {
    /// Adds `count` samples with the sum `sum` if they all fit in one sublist; otherwise adds nothing and returns
    /// `false`.
    #[inline]
    fn add_whole(&mut self, count: usize, sum: u64) -> bool {
        if self.room == 0 && count > 0 {
            self.advance();
        }
        let is_whole = count <= self.room;
        if is_whole {
            self.room -= count;
            self.whole += sum;
        }
        is_whole
    }

    /// Adds `count` samples that each count as `average`, to as many sublists as they span.
    fn add_cut(&mut self, mut count: usize, average: u64) {
        while count > 0 {
            if self.room == 0 {
                self.advance();
            }
            let taken = count.min(self.room);
            self.sums[self.sublist] += average * taken as u64;
            self.room -= taken;
            count -= taken;
        }
    }

    /// Goes on to the next sublist, which exists because the caller has more samples to add.
    #[cold]
    fn advance(&mut self) {
        self.settle();
        self.sublist += 1;
        self.room = self.ends[self.sublist] - self.ends[self.sublist - 1];
    }

    fn settle(&mut self) {
        self.sums[self.sublist] += std::mem::take(&mut self.whole) << FRACTION_BITS;
    }
}

/// The difference between concordant and discordant pairs, divided by all pairs. A pair whose values differ by at most
/// one unit is neither.
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

/// The median of backward plus forward distance over `samples`; `None` if there are none, or if `scratch` is shorter
/// than `samples`.
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

    fn trend_of(words: &[u64], sublists: usize) -> AttributeTrend {
        AttributeTrend::of(words, sublists, &mut vec![0; words.len()])
    }

    /// Buckets ascend with values, and the largest value has one.
    #[test]
    fn buckets_ascend_with_values() {
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
    fn sublists_average_their_own_samples() {
        let trend = trend_of(&words(&[(1, 10), (2, 20), (3, 30), (4, 50)]), 2);
        assert_eq!(*trend.averages, [15.0, 40.0]);
        assert_eq!(trend.tau, 1.0);
    }

    #[test]
    fn equal_values_have_no_trend() {
        let samples: Vec<(u64, u64)> = (0..499).map(|forward| (7, forward)).collect();
        let trend = trend_of(&words(&samples), 5);
        assert_eq!(trend.averages.len(), 5);
        assert!(trend.averages.iter().all(|average| *average == trend.averages[0]));
        assert_eq!(trend.tau, 0.0);
    }

    #[test]
    fn equal_fractions_have_no_trend() {
        // The first sublist averages 4 and three times 16/3, the second averages four times 5, so both averages are 5.
        let value_of_3 = [(2, 5), (2, 5), (2, 6)];
        let first: Vec<(u64, u64)> = [(1, 4)].into_iter().chain(value_of_3).collect();
        for shift in 0..100 {
            let mut samples: Vec<(u64, u64)> = first.iter().map(|(value, forward)| (*value, forward + shift)).collect();
            samples.extend([(3, 5 + shift), (4, 5 + shift), (5, 5 + shift), (6, 5 + shift)]);
            assert_eq!(trend_of(&words(&samples), 2).tau, 0.0, "20 quarters each, moved by {shift}");
        }
    }

    #[test]
    fn few_samples_have_no_averages() {
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
