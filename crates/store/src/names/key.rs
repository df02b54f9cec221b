//! Keys of objects and their hashes.
//!
//! Owns: the maximum lengths of a key's parts, and the hash functions. A key has a primary part (the requested URL) and
//! a variant part (one of its representations); a purge of the primary part purges all variants. Hashes only decide
//! where an object is stored and looked up; whether keys are equal is always decided by comparing the whole keys.

use std::hash::Hasher;

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

/// The longest primary part, in bytes.
pub const PRIMARY_BYTES_MAX: usize = 8192;
/// The longest variant part, in bytes.
pub const VARIANT_BYTES_MAX: usize = 8192;

/// A borrowed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyRef<'a> {
    /// The requested resource, such as a URL.
    pub primary: &'a [u8],
    /// The variant of the resource; empty if there is only one.
    pub variant: &'a [u8],
}

impl<'a> KeyRef<'a> {
    /// Makes a key.
    pub fn new(primary: &'a [u8], variant: &'a [u8]) -> KeyRef<'a> {
        KeyRef { primary, variant }
    }

    /// Whether both parts are inside their bounds.
    pub fn is_bounded(&self) -> bool {
        self.primary.len() <= PRIMARY_BYTES_MAX && self.variant.len() <= VARIANT_BYTES_MAX
    }

    /// Copies the key into its own memory.
    pub fn to_owned(self) -> ObjectKey {
        let mut bytes = Vec::with_capacity(self.primary.len() + self.variant.len());
        bytes.extend_from_slice(self.primary);
        bytes.extend_from_slice(self.variant);
        ObjectKey { bytes: bytes.into(), primary_bytes: self.primary.len() }
    }
}

/// An owned key: both parts in one allocation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectKey {
    bytes: Bytes,
    primary_bytes: usize,
}

impl ObjectKey {
    /// Borrows the key.
    pub fn as_ref(&self) -> KeyRef<'_> {
        let (primary, variant) = self.bytes.split_at(self.primary_bytes);
        KeyRef { primary, variant }
    }

    /// The length of both parts together, in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether both parts are empty.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// The hasher of maps whose keys are already hashes, or parts of hashes.
#[derive(Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u32(&mut self, id: u32) {
        // The map also uses the highest bits of the hash, so both halves get the id.
        self.0 = u64::from(id) << 32 | u64::from(id);
    }
    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
    fn write_u128(&mut self, hash: u128) {
        // The hashes in one shard of the index have equal highest bits, so these bits are moved to the lower end.
        self.0 = (hash as u64).rotate_left(6);
    }
}

/// The hash of a whole key, or of one fragment of the object under this key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u128);

/// The hash of a key's primary part. The record of a purge by key has this hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrimaryHash(pub u128);

/// Hashes a key with the store's seed.
///
/// The hash of the whole key equals the hash of its primary part if the variant is empty.
pub fn hash_key(seed: u64, key: KeyRef<'_>) -> (PrimaryHash, KeyHash) {
    let primary = xxh3_128_with_seed(key.primary, seed);
    let whole = if key.variant.is_empty() {
        primary
    } else {
        primary ^ xxh3_128_with_seed(key.variant, seed ^ (primary as u64) ^ 0x9e37_79b9_7f4a_7c15)
    };
    (PrimaryHash(primary), KeyHash(whole))
}

/// Hashes the beginning of a key's primary part.
pub fn hash_prefix(seed: u64, prefix: &[u8]) -> PrimaryHash {
    PrimaryHash(xxh3_128_with_seed(prefix, seed))
}

/// Hashes the identity of a fragment: the hash `key` of its object's key, the generation under which the fragment was
/// written, and its number.
pub fn hash_fragment(key: KeyHash, generation: u64, number: u32) -> KeyHash {
    let mut bytes = [0u8; 28];
    bytes[..16].copy_from_slice(&key.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&generation.to_le_bytes());
    bytes[24..].copy_from_slice(&number.to_le_bytes());
    KeyHash(xxh3_128_with_seed(&bytes, xxh3_64_with_seed(b"fragment", generation)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_share_primary_hash_only() {
        let (plain_primary, plain) = hash_key(1, KeyRef::new(b"http://a/", b""));
        let (gzip_primary, gzip) = hash_key(1, KeyRef::new(b"http://a/", b"gzip"));
        assert_eq!(plain_primary, gzip_primary);
        assert_ne!(plain, gzip);
        assert_eq!(plain.0, plain_primary.0);
        assert_ne!(hash_key(2, KeyRef::new(b"http://a/", b"")).1, plain);
    }

    #[test]
    fn key_parts_stay_separate() {
        assert_ne!(hash_key(1, KeyRef::new(b"ab", b"c")).1, hash_key(1, KeyRef::new(b"a", b"bc")).1);
        assert_ne!(KeyRef::new(b"ab", b"c").to_owned(), KeyRef::new(b"a", b"bc").to_owned());
    }
}
