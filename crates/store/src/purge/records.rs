//! Records of purges, as the log has them.
//!
//! Owns: making a record for each kind of purge, and the numbers of the kinds and of the effects. Leaves to others: the
//! bytes of a record (`format`), and what records mean for an object (`rules`, `purge_table`).

use crate::format::PurgeRecord;
use crate::names::key::PrimaryHash;
use crate::names::tag::TagHash;

/// The rule "purge by key" on disk.
pub const RULE_KEY: u8 = 1;
/// The rule "purge by tag" on disk.
pub const RULE_TAG: u8 = 2;
/// The rule "purge by prefix" on disk.
pub const RULE_PREFIX: u8 = 3;
/// The rule "purge everything" on disk.
pub const RULE_ALL: u8 = 4;

/// The effect of a purge on disk: its objects are gone.
pub const EFFECT_HARD: u8 = 0;
/// The effect of a soft purge on disk: its objects are stale.
pub const EFFECT_SOFT: u8 = 1;

/// What a purge does with the objects that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeEffect {
    /// No later get finds them.
    Hard,
    /// Later gets find them, and say that they are stale since this time
    /// ([`stale_since_s`](crate::StoredObject::stale_since_s)).
    Soft {
        /// The time in seconds since 1970; the store only keeps it.
        since_s: u32,
    },
}

/// The record of a purge by key.
pub fn key_record(primary: PrimaryHash, generation: u64, position: u64) -> PurgeRecord {
    record(RULE_KEY, primary.0, generation, position)
}

/// The record of a purge of all keys whose primary part begins with `prefix_bytes` bytes of this hash.
pub fn prefix_record(hash: PrimaryHash, prefix_bytes: u16, generation: u64, position: u64) -> PurgeRecord {
    PurgeRecord { prefix_bytes: prefix_bytes.into(), ..record(RULE_PREFIX, hash.0, generation, position) }
}

/// The record of a purge of all objects that have a tag.
pub fn tag_record(tag: TagHash, generation: u64, position: u64) -> PurgeRecord {
    record(RULE_TAG, tag.0.into(), generation, position)
}

/// The record of a purge of everything up to `generation`. Such a record is also made if purge records were lost.
pub fn all_record(generation: u64, position: u64) -> PurgeRecord {
    record(RULE_ALL, 0, generation, position)
}

/// The record of a purge with this effect instead of the usual one.
pub fn record_with(record: PurgeRecord, effect: PurgeEffect) -> PurgeRecord {
    match effect {
        PurgeEffect::Hard => PurgeRecord { effect: EFFECT_HARD, since_s: 0.into(), ..record },
        PurgeEffect::Soft { since_s } => PurgeRecord { effect: EFFECT_SOFT, since_s: since_s.into(), ..record },
    }
}

fn record(rule: u8, primary: u128, generation: u64, position: u64) -> PurgeRecord {
    PurgeRecord {
        rule,
        effect: EFFECT_HARD,
        prefix_bytes: 0.into(),
        since_s: 0.into(),
        generation: generation.into(),
        position: position.into(),
        primary_hash: primary.into(),
    }
}
