//! Records found without the header of their append: which of them are believed.
//!
//! Owns: the rule. Their sequence fits between those before and after them. And as an open finds a segment by a whole
//! append in it: if none stands before them and a later open wrote the next one, they count only as far as that
//! append states as flushed. Leaves to others: finding them (`segment`).

use crate::format::open_count_of;

/// The append after a hole.
#[derive(Clone, Copy)]
pub struct NextAppend {
    /// In bytes from the start of the segment.
    pub offset: u64,
    pub first_sequence: u64,
    pub flushed_sequence: u64,
}

/// The bytes around records that are found without their append's header.
#[derive(Clone, Copy)]
pub struct Alone {
    pub last_sequence: u64,
    pub next: Option<NextAppend>,
    /// Whether no append of the segment is before them.
    pub begins_segment: bool,
}

impl Alone {
    /// Whether a record of this sequence is believed.
    pub fn counts(&self, sequence: u64) -> bool {
        let Some(next) = self.next else { return sequence > self.last_sequence };
        // A crash tore the first append of the segment, and there was no other. The open after it did not find the
        // segment, believed the versions before, and began the segment again. If its own first append is lost as well,
        // versions that it did not see must not come back.
        let is_of_later_open = open_count_of(next.first_sequence) > open_count_of(sequence);
        let was_unseen = self.begins_segment && is_of_later_open && sequence > next.flushed_sequence;
        sequence > self.last_sequence && sequence < next.first_sequence && !was_unseen
    }
}
