//! The heaviest keys of a stream, in bounded memory: a Space-Saving summary.
//!
//! Owns: the summary, and merging several into one list. A summary has at most [`KEYS_MAX`] keys. A key that is not in
//! a full summary takes the place of the lightest one and inherits its weight as an error. So a key that comes often
//! stays, and one that comes once is soon replaced. Exact counters would need a place for each key that ever came.
//!
//! What holds after a stream whose weights add up to W:
//! 1. With at most [`KEYS_MAX`] different keys every weight is exact.
//! 2. The true weight of a key is at least `weight - error_max` and at most `weight`, and `error_max` is at most
//!    W / `KEYS_MAX`.
//! 3. Every key whose true weight is more than W / `KEYS_MAX` is in the summary.
//! 4. A merged list keeps the bounds of 2, where W is the sum over all summaries.
//!
//! *Cost*: a key is found by its hash among at most [`KEYS_MAX`], and the lightest is found by looking at all weights, which
//! lie side by side: a fraction of a microsecond, for what asks an origin. *Source*: Metwally, Agrawal, El Abbadi: Efficient Computation of
//! Frequent and Top-k Elements in Data Streams (ICDT 2005); merging: Agarwal and others: Mergeable Summaries (PODS
//! 2012).

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

/// The number of keys of a summary.
pub(crate) const KEYS_MAX: usize = 256;
/// What of a key is kept. *Units*: bytes.
pub(crate) const KEY_BYTES_MAX: usize = 512;

/// A key of a merged list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeavyKey {
    /// At most [`KEY_BYTES_MAX`] bytes.
    pub key: Box<[u8]>,
    /// An upper bound of its true weight.
    pub weight: u64,
    /// The most by which `weight` exceeds the true one.
    pub error_max: u64,
    /// What was counted beside the weight since the key came into the summary.
    pub beside: u64,
}

impl HeavyKey {
    /// The weight that the key has at least.
    pub fn at_least(&self) -> u64 {
        self.weight.saturating_sub(self.error_max)
    }
}

/// A Space-Saving summary.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpaceSaving {
    /// The hash and the weight of each key, in the order of `keys`. They are what is looked through.
    hashes: Vec<u64>,
    weights: Vec<u64>,
    keys: Vec<KnownKey>,
}

/// What else is known of a key of a summary.
#[derive(Debug, Clone)]
struct KnownKey {
    key: Box<[u8]>,
    error_max: u64,
    beside: u64,
}

impl SpaceSaving {
    /// Adds weight to a key, of which the first [`KEY_BYTES_MAX`] bytes count, and something beside it.
    pub fn add(&mut self, key: &[u8], weight: u64, beside: u64) {
        let key = &key[..key.len().min(KEY_BYTES_MAX)];
        let hash = xxh3_64(key);
        let same = |(index, other): (usize, &u64)| (*other == hash && *self.keys[index].key == *key).then_some(index);
        if let Some(index) = self.hashes.iter().enumerate().find_map(same) {
            self.weights[index] = self.weights[index].saturating_add(weight);
            let known = &mut self.keys[index];
            known.beside = known.beside.saturating_add(beside);
            return;
        }
        if weight == 0 {
            return;
        }
        if self.keys.len() < KEYS_MAX {
            self.hashes.push(hash);
            self.weights.push(weight);
            self.keys.push(KnownKey { key: key.into(), error_max: 0, beside });
            return;
        }
        let error_max = self.floor();
        if let Some(index) = self.weights.iter().position(|known| *known == error_max) {
            self.hashes[index] = hash;
            self.weights[index] = error_max.saturating_add(weight);
            self.keys[index] = KnownKey { key: key.into(), error_max, beside };
        }
    }

    /// The most that a key weighs that is not in the summary.
    fn floor(&self) -> u64 {
        match self.keys.len() < KEYS_MAX {
            true => 0,
            false => self.weights.iter().copied().min().unwrap_or(0),
        }
    }
}

/// The keys of all summaries together whose weight is certain to be greatest, the greatest first: at most `count`.
pub(crate) fn heaviest(summaries: &[SpaceSaving], count: usize) -> Vec<HeavyKey> {
    let floors: u64 = summaries.iter().map(SpaceSaving::floor).fold(0, u64::saturating_add);
    let mut all: HashMap<&[u8], HeavyKey> = HashMap::new();
    for summary in summaries {
        let floor = summary.floor();
        for (known, weight) in summary.keys.iter().zip(&summary.weights) {
            // A key may weigh as much as the floor of every summary that does not have it.
            let sum = all.entry(&known.key).or_insert_with(|| HeavyKey {
                key: known.key.clone(),
                weight: floors,
                error_max: floors,
                beside: 0,
            });
            sum.weight = sum.weight.saturating_sub(floor).saturating_add(*weight);
            sum.error_max = sum.error_max.saturating_sub(floor).saturating_add(known.error_max);
            sum.beside = sum.beside.saturating_add(known.beside);
        }
    }
    let mut keys: Vec<HeavyKey> = all.into_values().collect();
    keys.sort_by(|a, b| (b.at_least(), b.weight).cmp(&(a.at_least(), a.weight)).then_with(|| a.key.cmp(&b.key)));
    keys.truncate(count);
    keys
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(stream: impl IntoIterator<Item = (String, u64)>) -> SpaceSaving {
        let mut summary = SpaceSaving::default();
        stream.into_iter().for_each(|(key, weight)| summary.add(key.as_bytes(), weight, 1));
        summary
    }

    #[test]
    fn few_keys_are_exact() {
        let stream = (0..10_000u64).map(|turn| ((turn % KEYS_MAX as u64).to_string(), turn + 1));
        let summary = of(stream);
        let keys = heaviest(&[summary], usize::MAX);
        assert_eq!(keys.len(), KEYS_MAX);
        for key in keys {
            let first: u64 = std::str::from_utf8(&key.key).expect("text").parse().expect("a number");
            let turns = (first..10_000).step_by(KEYS_MAX);
            let weight = turns.clone().map(|turn| turn + 1).sum::<u64>();
            assert_eq!((key.weight, key.error_max), (weight, 0), "{first}");
            assert_eq!(key.beside, turns.count() as u64);
        }
    }

    /// A stream in which key number k comes about 1/k as often as the first one, and as many keys that come once.
    fn skewed(seed: u64) -> Vec<(String, u64)> {
        let mut state = seed | 1;
        let mut stream = Vec::new();
        for turn in 0..100_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let share = (state >> 11) as f64 / (1u64 << 53) as f64;
            stream.push((format!("k{}", (20_000f64.powf(share)) as u64), 1));
            stream.push((format!("once{seed}-{turn}"), 1));
        }
        stream
    }

    #[test]
    fn skewed_stream_yields_heavy_keys() {
        let streams = [skewed(7), skewed(8), skewed(9)];
        let summaries = streams.clone().map(of);
        let mut exact: HashMap<String, u64> = HashMap::new();
        streams.iter().flatten().for_each(|(key, weight)| *exact.entry(key.clone()).or_default() += weight);
        let total: u64 = exact.values().sum();
        let found = heaviest(&summaries, usize::MAX);
        for (key, weight) in exact.iter().filter(|(_, weight)| **weight > total / KEYS_MAX as u64) {
            assert!(found.iter().any(|found| *found.key == *key.as_bytes()), "{key} with {weight} is lost");
        }
        let first: Vec<_> = found.iter().take(6).map(|key| String::from_utf8_lossy(&key.key).into_owned()).collect();
        let mut expected: Vec<_> = exact.into_iter().collect();
        expected.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
        assert_eq!(first, expected.into_iter().take(6).map(|(key, _)| key).collect::<Vec<_>>());
    }

    #[test]
    fn certain_weight_decides_the_order() {
        let mut summary = of((0..KEYS_MAX).map(|key| (key.to_string(), 10)));
        summary.add(b"certain", 1, 1);
        summary.add(b"5", 2, 1);
        let keys = heaviest(&[summary], KEYS_MAX);
        // The new key may weigh 11, and 1 of that is certain.
        assert_eq!((&*keys[0].key, keys[0].at_least(), keys[0].error_max), (&b"5"[..], 12, 0));
        let last = &keys[KEYS_MAX - 1];
        assert_eq!((&*last.key, last.weight, last.error_max), (&b"certain"[..], 11, 10));
    }

    #[test]
    fn key_in_all_summaries_is_exact() {
        let full = |own: &str| {
            let others = (1..KEYS_MAX).map(|key| (format!("{own}{key}"), 5));
            of(others.chain([("both".to_owned(), 100)]))
        };
        let keys = heaviest(&[full("a"), full("b"), full("c")], usize::MAX);
        assert_eq!((&*keys[0].key, keys[0].weight, keys[0].error_max), (&b"both"[..], 300, 0));
        // Two summaries may have forgotten as much of any other key as their lightest one weighs.
        assert!(keys[1..].iter().all(|key| (key.weight, key.error_max) == (15, 10)));
    }

    #[test]
    fn summary_is_bounded() {
        let mut summary = SpaceSaving::default();
        for number in 0..10_000u32 {
            let key = [number.to_le_bytes().as_slice(), &[b'x'; 5000]].concat();
            summary.add(&key, u64::MAX / 2, u64::MAX / 2);
        }
        let lengths = (summary.keys.len(), summary.hashes.len(), summary.weights.len());
        assert_eq!(lengths, (KEYS_MAX, KEYS_MAX, KEYS_MAX));
        assert!(summary.keys.iter().all(|known| known.key.len() == KEY_BYTES_MAX));
        summary.add(b"nothing", 0, 1);
        assert!(summary.keys.iter().all(|known| *known.key != *b"nothing"));
    }

    proptest! {
        /// The bounds of 2 and 4 hold whatever comes.
        #[test]
        fn bounds_hold(
            streams in prop::collection::vec(prop::collection::vec((0u16..2000, 1u64..100), 0..3000), 1..4),
        ) {
            let named = |(key, weight): &(u16, u64)| (key.to_string(), *weight);
            let summaries: Vec<SpaceSaving> = streams.iter().map(|stream| of(stream.iter().map(named))).collect();
            let mut exact: HashMap<String, u64> = HashMap::new();
            streams.iter().flatten().map(named).for_each(|(key, weight)| *exact.entry(key).or_default() += weight);
            let total: u64 = exact.values().sum();
            for found in heaviest(&summaries, usize::MAX) {
                let weight = exact[std::str::from_utf8(&found.key).expect("text")];
                prop_assert!(found.at_least() <= weight && weight <= found.weight, "{found:?} has {weight}");
                prop_assert!(found.error_max <= total / KEYS_MAX as u64);
            }
        }
    }
}
