//! The rule that decides which records without the header of their append are valid.
//!
//! Owns: this rule. The sequence of such a record must be between the sequences before and after it. If no append is
//! before the record in its segment, and a later open wrote the next append, there is one more condition: the next
//! append must state that the record was flushed. The reason is that an open finds a segment only by an intact append
//! in it. Leaves to others: finding the records (`segment`).

use crate::format::open_count_of;

/// The append after a hole.
#[derive(Clone, Copy)]
pub struct NextAppend {
    /// The offset in the segment, in bytes.
    pub offset: u64,
    pub first_sequence: u64,
    pub flushed_sequence: u64,
}

/// The surroundings of records that are found without their append's header: the last sequence before them, and the
/// next append.
#[derive(Clone, Copy)]
pub struct HeaderlessContext {
    pub last_sequence: u64,
    pub next: Option<NextAppend>,
    /// Whether the records are at the start of the segment, with no append before them.
    pub begins_segment: bool,
}

impl HeaderlessContext {
    /// Whether a record of this sequence is valid.
    pub fn counts(&self, sequence: u64) -> bool {
        let Some(next) = self.next else { return sequence > self.last_sequence };
        // The last condition is for this case: a crash tore the first and only append of the segment. The next open did
        // not find the segment, used older versions, and wrote the segment again from its start. If the first append of
        // that open is now lost as well, the records that the open did not see must not reappear.
        let is_of_later_open = open_count_of(next.first_sequence) > open_count_of(sequence);
        let was_unseen = self.begins_segment && is_of_later_open && sequence > next.flushed_sequence;
        sequence > self.last_sequence && sequence < next.first_sequence && !was_unseen
    }
}
