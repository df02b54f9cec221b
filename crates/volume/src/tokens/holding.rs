//! One token, on the client's side.
//!
//! Owns: the level that is held, a request for a higher one, the giving back of a level, and which pages the kernel may
//! have cached in the meantime. Promises: only calls that the level allows are admitted. While a level is being given
//! back, only the kernel's own reads and writes of pages are admitted; pages that are read in the meantime are
//! invalidated before the level is gone. A recall that arrives before its grant waits for the grant.
//!
//! The kernel locks a page while it reads it, and an invalidation waits for that lock. So a read of pages that the
//! present invalidation may wait for is served under the old level; a read of other pages waits for the next grant.
//! Pages that were read during an invalidation are invalidated in the next pass. Each pass is of pages of the pass
//! before, so the passes end.

use std::ops::Range;

use super::{Why, level};

/// The outcome of a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The recall must be carried out now.
    Begin,
    /// The grant of the recall has not arrived yet. The recall is kept until [`Holding::granted`] or
    /// [`Holding::failed`] returns it.
    Later,
    /// The held level is already low enough, so the recall can be answered at once, with that level.
    Answer(u8),
    /// A later grant replaced the grant of the recall.
    Ignore,
}

/// A recall: the number of the grant, the level to lower to, and why.
pub type Recalled = (u64, u8, Why);

/// The kernel's pages to invalidate while a level is being given back.
#[derive(Debug, Default)]
struct Giving {
    /// The ranges that are being invalidated now.
    pass: Vec<Range<u64>>,
    /// The ranges that were read since, and are invalidated next.
    again: Vec<Range<u64>>,
}

/// One token, as its client sees it.
#[derive(Debug, Default)]
pub struct Holding {
    level: u8,
    sequence: u64,
    /// The level that was requested and not granted yet.
    acquiring: Option<u8>,
    early: Vec<Recalled>,
    giving: Option<Giving>,
    /// Whether the kernel may have pages of the file.
    has_pages: bool,
    /// The number of the kernel's reads and writes of pages in progress.
    page_calls: usize,
    /// The number of handles with which programs may map the file for writing.
    writers: usize,
}

impl Holding {
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

    /// Records that a request was granted. Returns the recalls that arrived before the grant.
    pub fn granted(&mut self, level: u8, sequence: u64) -> Vec<Recalled> {
        self.acquiring = None;
        if sequence > self.sequence {
            (self.level, self.sequence) = (level, sequence);
        }
        std::mem::take(&mut self.early)
    }

    /// Records that a request failed. Returns the recalls that arrived before.
    pub fn failed(&mut self) -> Vec<Recalled> {
        self.acquiring = None;
        std::mem::take(&mut self.early)
    }

    /// Handles a recall.
    pub fn recalled(&mut self, recalled: Recalled) -> Heard {
        let (sequence, wanted, why) = recalled;
        if sequence > self.sequence && self.acquiring.is_some() {
            self.early.push(recalled);
            return Heard::Later;
        }
        if sequence < self.sequence {
            return Heard::Ignore;
        }
        // If the recall names a grant that is later than the last one received, that later grant was lost with its
        // connection, or no call waits for it any more. The level that is held now is treated as its level.
        self.sequence = sequence;
        let is_done = match why {
            Why::Conflict => self.level <= wanted,
            Why::Commit => self.level < level::WRITE,
        };
        if is_done { Heard::Answer(self.level) } else { Heard::Begin }
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

    /// Notes that a read or write of pages has ended.
    pub fn page_call_ended(&mut self) {
        self.page_calls -= 1;
    }

    /// Whether reads or writes of pages are in progress.
    pub fn is_paging(&self) -> bool {
        self.page_calls > 0
    }

    /// Stops admitting calls of programs. Returns the ranges that the kernel must invalidate first.
    pub fn begin_giving(&mut self) -> Vec<Range<u64>> {
        let everything = vec![Range { start: 0, end: u64::MAX }];
        let pass = if self.has_pages { everything } else { Vec::new() };
        self.giving = Some(Giving { pass: pass.clone(), again: Vec::new() });
        pass
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
        giving.pass = std::mem::take(&mut giving.again);
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
