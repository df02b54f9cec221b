//! Committing a purge: its place in the order of sequences.
//!
//! Owns: the generation of a purge, whether it needs a rule at all, and that the rule holds in memory before it is on
//! disk. It is decided under the lock of the queue: objects committed before are among the names, and later ones are
//! compared with its rule. Leaves to others: the calls (`purging`), the rules (`purges`), and making them durable
//! (`writer`).

use crate::disk::span::Span;
use crate::format::PurgeRecord;
use crate::index::held_names::Standing;
use crate::names::key::PrimaryHash;
use crate::names::tag::TagHash;
use crate::purge::rules as purges;
use crate::put::commit::Puts;

/// What is purged.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    Key(PrimaryHash),
    /// All keys that begin with this many bytes of this hash.
    Prefix(PrimaryHash, u16),
    Tag(TagHash),
    All,
}

/// The first result of a purge.
pub(crate) enum Begun {
    /// No version of it exists, and none can come back: it is done.
    Absent,
    /// Its rule holds in memory, and is to be made durable.
    Holds(PurgeRecord),
    /// There are too many rules; it purges nothing yet.
    Full,
}

impl Puts {
    /// Draws the generation of a purge and adds its rule, if there is room for it, and unless it needs none and may be
    /// left out.
    pub fn begin_purge(&self, target: Target, may_leave_out: bool) -> Begun {
        self.intake.queue.ordered(|waiting_bytes| {
            let generation = self.state.draw();
            let everywhere = purge_position(&self.span, waiting_bytes);
            let record = match target {
                Target::Key(primary) => match self.standing(primary) {
                    // A store that takes no more writes says so.
                    Standing::Absent if may_leave_out && self.state.stopped().is_none() => return Begun::Absent,
                    // It is noted, and forgotten with the oldest segments.
                    Standing::Absent if self.state.stopped().is_none() => purges::key_record(primary, generation, 0),
                    Standing::Through(last) => purges::key_record(primary, generation, last.min(everywhere)),
                    Standing::Absent | Standing::Anywhere => purges::key_record(primary, generation, everywhere),
                },
                Target::Prefix(hash, length) => purges::prefix_record(hash, length, generation, everywhere),
                Target::Tag(tag) => purges::tag_record(tag, generation, everywhere),
                Target::All => purges::all_record(generation, everywhere),
            };
            self.intake.admission.doubt.purge_begins();
            if self.state.purges.try_add(&record, self.purge_rules_max) {
                return Begun::Holds(record);
            }
            self.intake.admission.doubt.purges_are_durable(1);
            Begun::Full
        })
    }

    /// The possible locations of versions of a key that are older than a generation drawn before.
    fn standing(&self, primary: PrimaryHash) -> Standing {
        // A fill notes its name when it is committed, and ends after that.
        if self.fills.is_running(primary) {
            return Standing::Anywhere;
        }
        self.state.names.standing(primary, self.span.head())
    }
}

/// The last segment epoch into which the `waiting_bytes` may be written, except those being packed: the newest segment
/// that can hold an object that is purged now.
///
/// Appends leave less than half of a segment empty, so what waits takes at most twice its bytes.
fn purge_position(span: &Span, waiting_bytes: u64) -> u64 {
    span.head() + (2 * waiting_bytes).div_ceil(span.layout.segment_bytes)
}
