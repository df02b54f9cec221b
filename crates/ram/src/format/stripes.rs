//! A set of stripes, with one bit for each stripe.
//!
//! Owns: the set in memory, and its encoding (bit `s % 8` of byte `s / 8`). Promises: a stripe beyond the end is never
//! in the set.

/// A set of stripes of one device.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StripeSet {
    bytes: Vec<u8>,
    count: u64,
}

impl StripeSet {
    /// Makes the empty set for a device of `count` stripes.
    pub fn none(count: u64) -> StripeSet {
        StripeSet { bytes: vec![0; bytes_of(count)], count }
    }

    /// Decodes a set; bits beyond the end are ignored.
    pub(super) fn from_bytes(bytes: &[u8], count: u64) -> StripeSet {
        let mut set = StripeSet { bytes: bytes.to_vec(), count };
        set.bytes.resize(bytes_of(count), 0);
        if let (Some(last), bits @ 1..) = (set.bytes.last_mut(), count % 8) {
            *last &= (1 << bits) - 1;
        }
        set
    }

    /// Returns the encoded set.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether `stripe` is in the set.
    pub fn has(&self, stripe: u64) -> bool {
        stripe < self.count && self.bytes[(stripe / 8) as usize] & (1 << (stripe % 8)) != 0
    }

    /// Adds or removes `stripe`; returns whether that changed the set.
    pub fn set(&mut self, stripe: u64, is_member: bool) -> bool {
        if stripe >= self.count || self.has(stripe) == is_member {
            return false;
        }
        self.bytes[(stripe / 8) as usize] ^= 1 << (stripe % 8);
        true
    }

    /// Returns the stripes of the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let bytes = self.bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
        bytes
            .flat_map(|(at, byte)| (0..8).filter(move |bit| byte & (1 << bit) != 0).map(move |bit| at as u64 * 8 + bit))
    }
}

/// Returns the length of an encoded set of `count` stripes, in bytes.
pub(super) fn bytes_of(count: u64) -> usize {
    count.div_ceil(8) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stripe set is read back, and a stripe beyond the end is never in it.
    #[test]
    fn stripe_set_round_trips() {
        let mut set = StripeSet::none(11);
        assert!(set.set(0, true) && set.set(10, true) && !set.set(11, true) && !set.set(10, true));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 10]);
        assert_eq!(StripeSet::from_bytes(set.as_bytes(), 11), set);
        assert_eq!(StripeSet::from_bytes(&[0xff, 0xff], 11).iter().count(), 11);
        assert!(set.set(0, false) && !set.has(0) && !set.has(99));
    }
}
