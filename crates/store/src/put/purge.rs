//! Committing a purge: its position in the order of sequences.
//!
//! Owns: the generation of a purge, and the decision whether the purge needs a rule. A rule is valid in memory before
//! it is on disk. The generation is drawn and the rule is added under the lock of the queue. So the noted names
//! (`index/held_names.rs`) include the name of every object that was committed before and may still exist, and every
//! object that is committed later is compared with the rule. Leaves to others: the calls (`api/purging.rs`), the rules
//! (`purge/rules.rs`), and making them durable (`write/purges.rs`).

use crate::disk::span::SpanDisk;
use crate::format::PurgeRecord;
use crate::index::held_names::NamePresence;
use crate::names::key::PrimaryHash;
use crate::names::tag::TagHash;
use crate::purge::records::{self, PurgeEffect, record_with};
use crate::put::commit::PutCommitter;

/// The objects to be purged.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PurgeTarget {
    Key(PrimaryHash),
    /// All keys whose first bytes have this hash; the number says how many bytes are hashed.
    Prefix(PrimaryHash, u16),
    Tag(TagHash),
    All,
}

/// The result of the first step of a purge, which draws its generation and adds its rule.
pub(crate) enum PurgeStart {
    /// No version of the key exists or can reappear: the purge is complete.
    Absent,
    /// The rule is valid in memory, and must now be made durable.
    Holds(PurgeRecord),
    /// There are too many rules; nothing is purged yet.
    Full,
}

impl PutCommitter {
    /// Draws the generation of a purge with this effect, and adds its rule if there is room. No rule is added if none
    /// is needed and `may_leave_out` is set.
    pub fn begin_purge(&self, target: PurgeTarget, effect: PurgeEffect, may_leave_out: bool) -> PurgeStart {
        self.intake.queue.ordered(|waiting_bytes| {
            let generation = self.state.draw();
            let everywhere = purge_position(&self.span, waiting_bytes);
            let record = match target {
                PurgeTarget::Key(primary) => match self.standing(primary) {
                    // If the store has stopped, this arm is not taken, so that the caller gets the error.
                    NamePresence::Absent if may_leave_out && self.state.stopped().is_none() => {
                        return PurgeStart::Absent;
                    }
                    // No segment has a version of the key, so the record gets position 0 and is forgotten as early as
                    // possible.
                    NamePresence::Absent if self.state.stopped().is_none() => {
                        records::key_record(primary, generation, 0)
                    }
                    NamePresence::Through(last) => records::key_record(primary, generation, last.min(everywhere)),
                    NamePresence::Absent | NamePresence::Anywhere => {
                        records::key_record(primary, generation, everywhere)
                    }
                },
                PurgeTarget::Prefix(hash, length) => records::prefix_record(hash, length, generation, everywhere),
                PurgeTarget::Tag(tag) => records::tag_record(tag, generation, everywhere),
                PurgeTarget::All => records::all_record(generation, everywhere),
            };
            let record = record_with(record, effect);
            self.intake.admission.doubt.purge_begins();
            if self.state.purges.try_add(&record, self.purge_rules_max) {
                return PurgeStart::Holds(record);
            }
            self.intake.admission.doubt.purges_are_durable(1);
            PurgeStart::Full
        })
    }

    /// Returns where older versions of a key may be. The caller must draw the generation of the purge before this call.
    fn standing(&self, primary: PrimaryHash) -> NamePresence {
        // A running fill may not have noted its name yet: a fill notes its name when it is committed, shortly before
        // its end.
        if self.fills.is_running(primary) {
            return NamePresence::Anywhere;
        }
        self.state.names.standing(primary, self.span.head())
    }
}

/// The last epoch into whose segment `waiting_bytes` may be written (entries being packed do not count). No later
/// segment can hold an object that a purge removes now.
///
/// Appends leave less than half of a segment empty, so waiting bytes need at most twice their size.
pub(crate) fn purge_position(span: &SpanDisk, waiting_bytes: u64) -> u64 {
    span.head() + (2 * waiting_bytes).div_ceil(span.layout.segment_bytes)
}
