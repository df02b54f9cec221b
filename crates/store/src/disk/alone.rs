//! Records found without the header of their append: which of them are valid.
//!
//! Owns: the rule for such records. Their sequence must be between the sequences before and after them. There is one
//! more condition, because an open finds a segment only by an intact append in it: if no append is before them in the
//! segment, and a later open wrote the next append, only records that this append states as flushed are valid. Leaves
//! to others: finding them (`segment`).

use crate::format::open_count_of;

/// The append after a hole.
#[derive(Clone, Copy)]
pub struct NextAppend {
    /// The offset in the segment, in bytes.
    pub offset: u64,
    pub first_sequence: u64,
    pub flushed_sequence: u64,
}

/// What surrounds records that are found without their append's header.
#[derive(Clone, Copy)]
pub struct Alone {
    pub last_sequence: u64,
    pub next: Option<NextAppend>,
    /// Whether they are at the start of the segment, with no append before them.
    pub begins_segment: bool,
}

impl Alone {
    /// Whether a record of this sequence is valid.
    pub fn counts(&self, sequence: u64) -> bool {
        let Some(next) = self.next else { return sequence > self.last_sequence };
        // This case: a crash tore the first and only append of the segment. The next open did not find the segment,
        // used the versions before it, and began the segment again. If its own first append is now lost as well, the
        // records that it did not see must not reappear.
        let is_of_later_open = open_count_of(next.first_sequence) > open_count_of(sequence);
        let was_unseen = self.begins_segment && is_of_later_open && sequence > next.flushed_sequence;
        sequence > self.last_sequence && sequence < next.first_sequence && !was_unseen
    }
}
