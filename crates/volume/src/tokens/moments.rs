//! At which moments the server knows the attributes of a file that a session writes to.
//!
//! The writer has the size and the time of the last write; the server has all other attributes. An answer that takes the
//! size from one moment and the number of names from another one shows a file that never was: a program writes and then
//! links, and a `stat` shows the new name without the write. So an answer is given only if the size is of a moment after
//! the question arrived, and if no other attribute has changed since that moment: it is the state of that moment.
//!
//! *Invariants*
//! 1. The size at the server is the writer's at the moment `exact`, or at a later one: a commit that was requested then
//!    is done, or the session got the token then, when nobody wrote.
//! 2. `changed` is the moment of the last change of another attribute.
//! 3. So an answer is of one moment if `exact` is after `changed`, or if nobody writes. Moments are counted; no two
//!    events have the same.

/// The maximum number of rounds of a question; the answer after the last one is given in any case.
const ROUNDS_MAX: u8 = 2;

/// The moments of a file, for the grant of its present writer. 0: not yet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FileMoments {
    /// The server has the size of this moment.
    pub exact: u64,
    /// Other attributes changed last.
    pub changed: u64,
}

impl FileMoments {
    /// Whether an answer that shows the file now is of one moment after `since`.
    pub fn are_one(self, since: u64) -> bool {
        self.exact > since && self.exact > self.changed
    }
}

/// How often a question has waited for the writers of the files that it shows. In the first round they commit, and keep
/// their tokens. If other attributes change meanwhile, they give their tokens back in the second one, as for a read. So
/// a question has two rounds at most: nobody writes to the file when the second one ends, and its answer is of one moment
/// although attributes changed in both.
///
/// Of several files (a listing), the first may be written again before the last is given back; and a name may be that of
/// another file in each round. The answer is given then, too, but not of one moment: a client never shows such attributes
/// to programs, because it gets no grant of them, and asks again for those of the one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LookRounds {
    /// The moment when the question arrived.
    pub(super) since: u64,
    count: u8,
}

impl LookRounds {
    /// Notes the moment at which the question arrived, the first time.
    pub(super) fn arrive(&mut self, moment: u64) {
        if self.since == 0 {
            self.since = moment;
        }
    }

    /// Whether it waits no more.
    pub(super) fn are_over(self) -> bool {
        self.count >= ROUNDS_MAX
    }

    /// Whether the next round needs the tokens back.
    pub(super) fn needs_tokens(self) -> bool {
        self.count > 0
    }

    pub(super) fn end_one(&mut self) {
        self.count += 1;
    }

    /// Returns the rounds of a question that waits for something else, after which the files may have changed.
    pub fn again(self) -> LookRounds {
        LookRounds { count: 0, ..self }
    }
}
