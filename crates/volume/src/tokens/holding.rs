//! One token, on the client's side.
//!
//! Owns: the level that is held, a request for a higher one, the giving back of a level, and which pages the kernel may
//! have cached in the meantime. Promises: only calls that the level allows are admitted. While a level is being given
//! back, only the kernel's own reads and writes of pages are admitted; pages that are read in the meantime are
//! invalidated before the level is gone. A recall that arrives before its grant waits for the grant.
//!
//! The kernel locks a page while it reads it, and an invalidation waits for that lock. So a read of pages that the
//! present invalidation may wait for is served under the old level; a read of other pages waits for the next grant.
//! Pages that were read during an invalidation are invalidated in the next pass. A range of a pass whose invalidation
//! has ended is not read again under the old level, so the next pass has only pages that were read while their own
//! invalidation was in progress. The ranges become smaller with each pass, down to a page, whose invalidation is short:
//! so a program that uses the pages all the time reads few of them again, and the passes end. A truncation that the kernel has begun holds the writing of pages up until it is answered,
//! so it is admitted during an invalidation, too.

use std::ops::Range;

use super::{RecallReason, level};

/// The longest range of pages that are invalidated in one piece in the second pass; in each further pass it is a quarter
/// of that, down to [`PIECE_BYTES_MIN`]. *Units*: bytes.
const PIECE_BYTES_MAX: u64 = 64 << 10;
/// The smallest bound on such a piece: a page. *Units*: bytes.
const PIECE_BYTES_MIN: u64 = 4 << 10;

/// The outcome of a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecallOutcome {
    /// The recall must be carried out now.
    Begin,
    /// The grant of the recall has not arrived yet. The recall is kept until [`TokenHolding::granted`] or
    /// [`TokenHolding::failed`] returns it.
    Later,
    /// The held level is already low enough, so the recall can be answered at once, with that level.
    Answer(u8),
    /// A later grant replaced the grant of the recall.
    Ignore,
}

/// A recall: the number of the grant, the level to lower to, and why.
pub type Recalled = (u64, u8, RecallReason);

/// The kernel's pages to invalidate while a level is being given back.
#[derive(Debug, Default)]
struct PageInvalidation {
    /// The ranges of this pass whose invalidation has not ended.
    pass: Vec<Range<u64>>,
    /// The ranges that were read since, and are invalidated next.
    again: Vec<Range<u64>>,
    /// The bound on a range of the next pass. *Units*: bytes.
    piece_bytes: u64,
}

/// One token, as its client sees it.
#[derive(Debug, Default)]
pub struct TokenHolding {
    level: u8,
    sequence: u64,
    /// Grants up to this number may have been returned, before this state was made or because no call wanted them.
    returned_to: u64,
    /// The level that was requested and not granted yet.
    acquiring: Option<u8>,
    early: Vec<Recalled>,
    giving: Option<PageInvalidation>,
    /// Whether the kernel may have pages of the file.
    has_pages: bool,
    /// The number of the kernel's reads and writes of pages, and of truncations during an invalidation, in progress.
    page_calls: usize,
    /// The number of handles with which programs may map the file for writing.
    writers: usize,
}

impl TokenHolding {
    /// Makes the state of a token of which nothing is held. An earlier state of it may have been forgotten, after its
    /// grant was returned; the number of that grant is at most `returned_to`.
    pub fn after(returned_to: u64) -> TokenHolding {
        TokenHolding { returned_to, ..TokenHolding::default() }
    }

    /// Returns the level.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Returns the number of the last grant.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether nothing is held, requested, or being given back.
    pub fn is_idle(&self) -> bool {
        self.level == level::NONE && self.acquiring.is_none() && self.giving.is_none()
    }

    /// Whether a request for a token has no answer yet.
    pub fn is_acquiring(&self) -> bool {
        self.acquiring.is_some()
    }

    /// Whether the kernel may have pages of the file.
    pub fn has_pages(&self) -> bool {
        self.has_pages
    }

    /// Whether a call of a program that needs `level` is admitted.
    pub fn admits(&self, level: u8) -> bool {
        self.level >= level && self.giving.is_none()
    }

    /// Whether a request for `level` must be sent; if so, it counts as sent until [`granted`](Self::granted) or
    /// [`failed`](Self::failed).
    pub fn wants(&mut self, level: u8) -> bool {
        let is_wanted = self.giving.is_none() && self.level < level && self.acquiring.is_none();
        if is_wanted {
            self.acquiring = Some(level);
        }
        is_wanted
    }

    /// Uses level *write*, which was requested and will be granted before anybody else can have it.
    pub fn hold_ahead(&mut self) {
        self.level = level::WRITE;
    }

    /// Whether level *write* is used and not granted yet.
    pub fn is_ahead(&self) -> bool {
        self.level == level::WRITE && self.acquiring.is_some()
    }

    /// Records that a request was granted. Returns the recalls that arrived before the grant. A grant that was returned
    /// does not count: a server answers with it until it has the return, and then it may be granted to others.
    pub fn granted(&mut self, level: u8, sequence: u64) -> Vec<Recalled> {
        self.acquiring = None;
        if sequence > self.sequence.max(self.returned_to) {
            (self.level, self.sequence) = (level, sequence);
        }
        std::mem::take(&mut self.early)
    }

    /// Records a grant that came without a request: another request is on the way, or the level is being given back.
    /// Returns whether it must be returned. It is not kept until that request is granted: the server may grant this only
    /// to a session whose recall waits for the return.
    pub fn unwanted(&mut self, sequence: u64) -> bool {
        if sequence <= self.sequence {
            return false;
        }
        self.returned_to = self.returned_to.max(sequence);
        self.early.retain(|recalled| recalled.0 > sequence);
        true
    }

    /// Records that a request failed. Returns the recalls that arrived before.
    pub fn failed(&mut self) -> Vec<Recalled> {
        self.acquiring = None;
        std::mem::take(&mut self.early)
    }

    /// Handles a recall.
    pub fn recalled(&mut self, recalled: Recalled) -> RecallOutcome {
        let (sequence, wanted, why) = recalled;
        if sequence > self.sequence.max(self.returned_to) && self.acquiring.is_some() {
            self.early.push(recalled);
            return RecallOutcome::Later;
        }
        if sequence < self.sequence {
            return RecallOutcome::Ignore;
        }
        // If the recall names a grant that is later than the last one received, that later grant was lost with its
        // connection, or no call waits for it any more. The level that is held now is treated as its level.
        self.sequence = sequence;
        let is_done = match why {
            RecallReason::Conflict => self.level <= wanted,
            RecallReason::Commit => self.level < level::WRITE,
        };
        if is_done { RecallOutcome::Answer(self.level) } else { RecallOutcome::Begin }
    }

    /// Returns the level that a read of pages needs. If a program may have the file mapped for writing, this is
    /// `WRITE`, because the program can change these pages without a call.
    pub fn page_level(&self) -> u8 {
        if self.writers > 0 { level::WRITE } else { level::READ }
    }

    /// Adds a handle with which a program may map the file for writing. Returns whether the kernel may have pages that
    /// were read under a lower level than is now needed.
    pub fn add_writer(&mut self) -> bool {
        self.writers += 1;
        self.has_pages && self.level < level::WRITE
    }

    /// Removes such a handle.
    pub fn remove_writer(&mut self) {
        self.writers = self.writers.saturating_sub(1);
    }

    /// Whether the kernel may read these pages (in bytes of the file). If so,
    /// [`page_call_ended`](Self::page_call_ended) must follow.
    pub fn begin_page_read(&mut self, range: Range<u64>) -> bool {
        // If such a handle was added in the meantime, the old level may be too low for this page; but the page is
        // invalidated with the others.
        let needed = if self.giving.is_some() { level::READ } else { self.page_level() };
        if self.level < needed {
            return false;
        }
        if let Some(giving) = &mut self.giving {
            if !giving.pass.iter().any(|part| part.start < range.end && range.start < part.end) {
                return false;
            }
            giving.again.push(range);
        }
        self.has_pages = true;
        self.page_calls += 1;
        true
    }

    /// Whether the kernel may write pages back.
    pub fn begin_page_write(&mut self) -> bool {
        let is_admitted = self.level == level::WRITE;
        if is_admitted {
            self.has_pages = true;
            self.page_calls += 1;
        }
        is_admitted
    }

    /// Whether a truncation is admitted although the level is being given back: while the kernel truncates a file, it
    /// writes no page back, and the invalidation waits for pages that it must write back first. So the truncation is
    /// done under the old level, as the writing of these pages. If so, [`page_call_ended`](Self::page_call_ended) must
    /// follow.
    pub fn begin_truncation(&mut self) -> bool {
        let is_admitted =
            self.level == level::WRITE && self.giving.as_ref().is_some_and(|giving| !giving.pass.is_empty());
        self.page_calls += usize::from(is_admitted);
        is_admitted
    }

    /// Notes that a read or write of pages, or a truncation, has ended.
    pub fn page_call_ended(&mut self) {
        self.page_calls -= 1;
    }

    /// Whether reads or writes of pages, or truncations under a level that is being given back, are in progress.
    pub fn is_paging(&self) -> bool {
        self.page_calls > 0
    }

    /// Stops admitting calls of programs. Returns the ranges that the kernel must invalidate first.
    pub fn begin_giving(&mut self) -> Vec<Range<u64>> {
        let everything = vec![Range { start: 0, end: u64::MAX }];
        let pass = if self.has_pages { everything } else { Vec::new() };
        self.giving = Some(PageInvalidation { pass: pass.clone(), again: Vec::new(), piece_bytes: PIECE_BYTES_MAX });
        pass
    }

    /// Notes that the kernel has invalidated a range of the pass; further reads of it wait.
    pub fn end_range(&mut self, range: &Range<u64>) {
        if let Some(giving) = &mut self.giving {
            giving.pass.retain(|part| part != range);
        }
    }

    /// Notes that the kernel has finished the invalidation; its further reads wait.
    pub fn end_pass(&mut self) {
        if let Some(giving) = &mut self.giving {
            giving.pass.clear();
        }
    }

    /// Returns the ranges that the kernel must invalidate next; called when no page is being read. An empty list: the
    /// level can be given back.
    pub fn next_pass(&mut self) -> Vec<Range<u64>> {
        let Some(giving) = &mut self.giving else { return Vec::new() };
        giving.pass = pieces(std::mem::take(&mut giving.again), giving.piece_bytes);
        giving.piece_bytes = (giving.piece_bytes / 4).max(PIECE_BYTES_MIN);
        giving.pass.clone()
    }

    /// Drops the level, because the session is over. Returns whether the kernel may have pages.
    pub fn lose(&mut self) -> bool {
        (self.level, self.giving) = (level::NONE, None);
        std::mem::take(&mut self.has_pages)
    }

    /// Lowers the level; the kernel has no pages any more.
    pub fn given(&mut self, level: u8) {
        self.level = self.level.min(level);
        self.giving = None;
        self.has_pages = false;
    }
}

/// Returns the ranges in order and without overlaps, in pieces of at most `piece_bytes`.
fn pieces(mut ranges: Vec<Range<u64>>, piece_bytes: u64) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut pieces: Vec<Range<u64>> = Vec::new();
    for Range { mut start, end } in ranges {
        if let Some(last) = pieces.last_mut().filter(|last| start <= last.end) {
            last.end = last.end.max(end.min(last.start.saturating_add(piece_bytes)));
            start = last.end;
        }
        while start < end {
            let stop = end.min(start.saturating_add(piece_bytes));
            pieces.push(start..stop);
            start = stop;
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn pages(from: u64, to: u64) -> Range<u64> {
        from * PAGE..to * PAGE
    }

    /// A holder with pages, whose token is recalled.
    fn giving() -> TokenHolding {
        let mut holding = TokenHolding::default();
        assert!(holding.wants(level::WRITE) && holding.granted(level::WRITE, 1).is_empty());
        assert!(holding.begin_page_read(pages(0, 4)));
        holding.page_call_ended();
        assert_eq!(holding.begin_giving().len(), 1);
        holding
    }

    #[test]
    fn reread_pages_invalidate_in_pieces() {
        let short = |ranges| pieces(ranges, 16 * PAGE);
        assert_eq!(short(vec![pages(9, 10), pages(0, 2), pages(1, 3), pages(0, 2)]), [pages(0, 3), pages(9, 10)]);
        assert_eq!(short(vec![pages(0, 10), pages(8, 40)]), [pages(0, 16), pages(16, 32), pages(32, 40)]);
        assert_eq!(short(vec![pages(0, 40), pages(2, 3)]), [pages(0, 16), pages(16, 32), pages(32, 40)]);
        assert_eq!(pieces(vec![pages(0, 2)], PAGE), [pages(0, 1), pages(1, 2)]);
    }

    /// Uses every page, as a program with a map does: those that the kernel does not have are read, if they may be.
    fn use_all(holding: &mut TokenHolding, cached: &mut [bool]) {
        for (page, is_cached) in cached.iter_mut().enumerate().filter(|(_, is_cached)| !**is_cached) {
            *is_cached = holding.begin_page_read(pages(page as u64, page as u64 + 1));
            if *is_cached {
                holding.page_call_ended();
            }
        }
    }

    /// A token is returned although programs use its pages all the time.
    #[test]
    fn busy_pages_release_token() {
        let (mut holding, mut cached, mut calls) = (giving(), vec![true; 100], 0_usize);
        let mut pass = vec![pages(0, 100)];
        for _ in 0..50 {
            for range in &pass {
                for page in range.start / PAGE..range.end / PAGE {
                    cached[page as usize] = false;
                    // The program is faster than the kernel, but not faster than the invalidation of every page.
                    calls += 1;
                    if !calls.is_multiple_of(3) {
                        use_all(&mut holding, &mut cached);
                    }
                }
                holding.end_range(range);
                use_all(&mut holding, &mut cached);
            }
            holding.end_pass();
            pass = holding.next_pass();
            if pass.is_empty() {
                return assert_eq!(cached, [false; 100], "no page is left that was read under the old level");
            }
        }
        panic!("{} pieces are left", pass.len());
    }

    /// The recall of a grant that no call wanted does not wait for a grant that comes after it.
    #[test]
    fn unwanted_grant_is_not_held() {
        let mut holding = TokenHolding::default();
        let recall = (7, level::NONE, RecallReason::Conflict);
        assert!(holding.wants(level::WRITE) && !holding.wants(level::READ));
        assert_eq!(holding.recalled(recall), RecallOutcome::Later, "it may be the grant of the request");
        assert!(holding.unwanted(7));
        assert_eq!(holding.recalled(recall), RecallOutcome::Answer(level::NONE));
        assert!(holding.granted(level::READ, 7).is_empty() && holding.level() == level::NONE, "it was returned");
        assert!(holding.wants(level::WRITE) && holding.granted(level::WRITE, 8).is_empty());
        assert!(holding.admits(level::WRITE) && !holding.unwanted(7), "a newer grant has replaced it");
    }

    /// A token that is used ahead admits calls before its grant, whose recall waits for it.
    #[test]
    fn token_ahead_admits_before_grant() {
        let mut holding = TokenHolding::default();
        assert!(holding.wants(level::WRITE));
        holding.hold_ahead();
        assert!(holding.admits(level::WRITE) && holding.is_ahead() && !holding.is_idle());
        let recall = (3, level::NONE, RecallReason::Conflict);
        assert_eq!(holding.recalled(recall), RecallOutcome::Later);
        assert_eq!(holding.granted(level::WRITE, 3), [recall]);
        assert!(!holding.is_ahead() && holding.recalled(recall) == RecallOutcome::Begin);
        // A new server is told of it before the grant, and answers for what an earlier one was told.
        let mut told = TokenHolding::default();
        assert!(told.wants(level::WRITE));
        told.hold_ahead();
        assert!(told.failed().is_empty() && told.admits(level::WRITE) && !told.is_ahead());
        assert_eq!(told.recalled((0, level::NONE, RecallReason::Conflict)), RecallOutcome::Begin);
    }

    #[test]
    fn truncation_is_admitted_during_invalidation() {
        let mut holding = giving();
        assert!(!holding.admits(level::WRITE) && holding.begin_truncation() && holding.is_paging());
        holding.page_call_ended();
        holding.end_pass();
        // The kernel waits for no page any more, and the level is about to go.
        assert!(!holding.begin_truncation() && holding.next_pass().is_empty());
        holding.given(level::NONE);
        assert!(!holding.begin_truncation());
    }
}
