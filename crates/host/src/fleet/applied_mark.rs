//! How far a store has applied the purges of its fleet.
//!
//! Owns: [`AppliedMark`]. Leaves to others: what the rules in it say (`rules_record`), and where it is kept (the store).

use super::rules_record::RulesRecord;

/// What a store has applied: all purges of a fleet up to a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AppliedMark {
    /// The identity of the fleet; 0 if the store is of none, or has forgotten it.
    pub fleet: u128,
    /// The revision.
    pub revision: u64,
    /// The rules of the store's objects when all these purges were applied.
    pub rules: RulesRecord,
}

impl AppliedMark {
    /// The mark of a store that knows no fleet.
    pub const NONE: AppliedMark = AppliedMark { fleet: 0, revision: 0, rules: RulesRecord::NONE };
}
