//! A client's side of one token.
//!
//! Owns: the level that is held, the request for more, what is being given back, and what the kernel may have in its
//! page cache meanwhile. Promises: only what the level allows is admitted. While a level is being given back, only the
//! kernel's own reads and writes of pages are admitted, and pages that were read meanwhile are invalidated before the
//! level is gone. A recall that arrives before its grant waits for the grant.
//!
//! The kernel locks a page while it reads it, and an invalidation waits for that lock. So a read of pages that the
//! present invalidation may wait for is served under the old level; a read of other pages waits for the next grant.
//! Each pass invalidates only what was read during the previous pass, so the passes end.

use std::ops::Range;

use super::{Why, level};

/// The outcome of a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It is to be done now.
    Begin,
    /// The grant has not arrived yet; [`Holding::granted`] returns the recall.
    Later,
    /// It is answered at once: this level is held under that grant.
    Answer(u8),
    /// It is about a grant that a later one replaced.
    Ignore,
}

/// A recall: the number of the grant, the level to lower to, and why.
pub type Recalled = (u64, u8, Why);

/// The kernel's pages while a level is being given back.
#[derive(Debug, Default)]
struct Giving {
    /// What is being invalidated now.
    pass: Vec<Range<u64>>,
    /// What was read since, and is invalidated next.
    again: Vec<Range<u64>>,
}

/// One token of a client.
#[derive(Debug, Default)]
pub struct Holding {
    level: u8,
    sequence: u64,
    /// The level that was requested and not granted yet.
    acquiring: Option<u8>,
    early: Vec<Recalled>,
    giving: Option<Giving>,
    /// The kernel may have pages of the file.
    has_pages: bool,
    /// Its reads and writes of pages in progress.
    page_calls: usize,
    /// Handles that programs may map for writing.
    writers: usize,
}

impl Holding {
    /// The level.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// The number of the last grant.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether nothing is held, requested, or being given back.
    pub fn is_idle(&self) -> bool {
        self.level == level::NONE && self.acquiring.is_none() && self.giving.is_none()
    }

    /// A request is on its way.
    pub fn is_acquiring(&self) -> bool {
        self.acquiring.is_some()
    }

    /// The kernel may have pages.
    pub fn has_pages(&self) -> bool {
        self.has_pages
    }

    /// Whether a call of a program may do what needs `level`.
    pub fn admits(&self, level: u8) -> bool {
        self.level >= level && self.giving.is_none()
    }

    /// Whether a request is to be sent for `level`: then it is on its way until [`granted`](Self::granted) or
    /// [`failed`](Self::failed).
    pub fn wants(&mut self, level: u8) -> bool {
        let is_wanted = self.giving.is_none() && self.level < level && self.acquiring.is_none();
        if is_wanted {
            self.acquiring = Some(level);
        }
        is_wanted
    }

    /// A request was granted. Returns the recalls that came before.
    pub fn granted(&mut self, level: u8, sequence: u64) -> Vec<Recalled> {
        self.acquiring = None;
        if sequence > self.sequence {
            (self.level, self.sequence) = (level, sequence);
        }
        std::mem::take(&mut self.early)
    }

    /// A request failed. Returns the recalls that came before.
    pub fn failed(&mut self) -> Vec<Recalled> {
        self.acquiring = None;
        std::mem::take(&mut self.early)
    }

    /// The server recalls.
    pub fn recalled(&mut self, recalled: Recalled) -> Heard {
        let (sequence, wanted, why) = recalled;
        if sequence > self.sequence && self.acquiring.is_some() {
            self.early.push(recalled);
            return Heard::Later;
        }
        if sequence < self.sequence {
            return Heard::Ignore;
        }
        // That grant was lost with its connection, or its waiter is gone. What is held now counts under its number.
        self.sequence = sequence;
        let is_done = match why {
            Why::Conflict => self.level <= wanted,
            Why::Commit => self.level < level::WRITE,
        };
        if is_done { Heard::Answer(self.level) } else { Heard::Begin }
    }

    /// The level that a read of pages needs. If a program may have the file mapped for writing, this is `WRITE`,
    /// because its stores into these pages are not reported.
    pub fn page_level(&self) -> u8 {
        if self.writers > 0 { level::WRITE } else { level::READ }
    }

    /// One more handle with which a program may map the file for writing. Returns whether the kernel may have pages
    /// that were read under a lower level than they need from now on.
    pub fn add_writer(&mut self) -> bool {
        self.writers += 1;
        self.has_pages && self.level < level::WRITE
    }

    /// One less.
    pub fn remove_writer(&mut self) {
        self.writers = self.writers.saturating_sub(1);
    }

    /// Whether the kernel may read these pages (in bytes of the file). If so,
    /// [`page_call_ended`](Self::page_call_ended) must follow.
    pub fn begin_page_read(&mut self, range: Range<u64>) -> bool {
        // If a writer came meanwhile, the old level may be too low for this page; but the page is invalidated with the
        // others.
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

    /// A read or write of pages has ended.
    pub fn page_call_ended(&mut self) {
        self.page_calls -= 1;
    }

    /// Whether reads or writes of pages are in progress.
    pub fn is_paging(&self) -> bool {
        self.page_calls > 0
    }

    /// Stops admitting programs. Returns what the kernel must invalidate first.
    pub fn begin_giving(&mut self) -> Vec<Range<u64>> {
        let everything = vec![Range { start: 0, end: u64::MAX }];
        let pass = if self.has_pages { everything } else { Vec::new() };
        self.giving = Some(Giving { pass: pass.clone(), again: Vec::new() });
        pass
    }

    /// The kernel has finished the invalidation; its further reads wait.
    pub fn end_pass(&mut self) {
        if let Some(giving) = &mut self.giving {
            giving.pass.clear();
        }
    }

    /// What the kernel must invalidate next; called when no page is being read. `None`: the level can be given back.
    pub fn next_pass(&mut self) -> Vec<Range<u64>> {
        let Some(giving) = &mut self.giving else { return Vec::new() };
        giving.pass = std::mem::take(&mut giving.again);
        giving.pass.clone()
    }

    /// The session is over, and with it every level. Returns whether the kernel may have pages.
    pub fn lose(&mut self) -> bool {
        (self.level, self.giving) = (level::NONE, None);
        std::mem::take(&mut self.has_pages)
    }

    /// Lowers the level; returns what the server must be told.
    pub fn given(&mut self, level: u8) {
        self.level = self.level.min(level);
        self.giving = None;
        self.has_pages = false;
    }
}
