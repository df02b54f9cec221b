//! The choice of the span to which a key belongs.
//!
//! Owns: rendezvous hashing, weighted by the sizes of the spans when the store was created. Promises: the order of
//! spans for a key never changes, even if a span is replaced by one of another size (if a key moved to another span and
//! later moved back, old versions of its object would be found). If a span is lost, keys of other spans do not move.
//! Leaves to others: which spans are present.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::layout::SpanMember;

/// The order of spans for each key.
pub(super) struct SpanPlacement {
    seed: u64,
    /// The weight of each span, in the order of the spans' numbers.
    weights: Vec<f64>,
}

impl SpanPlacement {
    /// Makes the placement of a store from the common data of its spans.
    pub(super) fn new(common: &SpanMember) -> SpanPlacement {
        let weights = common.weights[..common.count as usize].iter().map(|weight| f64::from(*weight)).collect();
        SpanPlacement { seed: (common.set >> 64) as u64 ^ common.set as u64, weights }
    }

    /// The span of a key among the spans in `present`, and whether it stands in for an absent span; `None` if no span
    /// is present.
    pub(super) fn place(&self, primary: &[u8], present: u64) -> Option<(usize, bool)> {
        let hash = xxh3_64_with_seed(primary, self.seed);
        let mut first = (0, f64::MIN);
        let mut best = None;
        for (number, weight) in self.weights.iter().enumerate() {
            let score = score(hash, number as u64, *weight);
            if score > first.1 {
                first = (number, score);
            }
            if present >> number & 1 == 1 && best.is_none_or(|(_, other)| score > other) {
                best = Some((number, score));
            }
        }
        best.map(|(number, _)| (number, number != first.0))
    }
}

/// The score of a span for a key; the highest score wins. The score is pseudorandom for each pair of key and span, and
/// grows with the weight.
fn score(hash: u64, number: u64, weight: f64) -> f64 {
    let mixed = (hash ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    // This is uniformly distributed in (0, 1). With the logarithm below, the probability that a span wins is
    // proportional to its weight.
    let uniform = ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    weight / -uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(set: u128, sizes: &[u32]) -> SpanPlacement {
        let mut weights = SpanMember::SOLE.weights;
        weights[..sizes.len()].copy_from_slice(sizes);
        SpanPlacement::new(&SpanMember { set, number: 0, count: sizes.len() as u32, weights })
    }

    fn counts(placement: &SpanPlacement, present: u64) -> Vec<u32> {
        let mut counts = vec![0; placement.weights.len()];
        for key in 0..30_000_u32 {
            counts[placement.place(&key.to_le_bytes(), present).expect("one is there").0] += 1;
        }
        counts
    }

    #[test]
    fn keys_are_shared_out_by_size() {
        let placement = placement(7, &[100, 200, 300]);
        for (count, wanted) in counts(&placement, 0b111).into_iter().zip([5000_u32, 10_000, 15_000]) {
            assert!(count.abs_diff(wanted) < 400, "{count} of {wanted}");
        }
    }

    /// A loss moves the keys of the lost span alone.
    #[test]
    fn span_loss_moves_its_keys() {
        let placement = placement(1 << 70, &[1, 1, 1]);
        for key in 0..3000_u32 {
            let whole = placement.place(&key.to_le_bytes(), 0b111).expect("all are there");
            let less = placement.place(&key.to_le_bytes(), 0b101).expect("two are there");
            assert!(!whole.1);
            assert_eq!(less, if whole.0 == 1 { (less.0, true) } else { whole });
        }
        assert_eq!(placement.place(b"key", 0), None);
    }
}
