//! A client's side of one token.
//!
//! Owns: the level that is held, the request for more, what is being given back, and what the kernel may have in its
//! page cache meanwhile. Promises: nothing is admitted that the level does not allow; while a level is given back, only
//! the kernel's own reads and writes of pages are admitted, and pages that were read then are invalidated before it is
//! gone; a recall that comes before its grant waits for it.
//!
//! The kernel locks a page while it reads it, and an invalidation waits for that lock. So a read that the invalidation
//! in progress may wait for is served under the level that is being given back; one that it does not touch waits for
//! the next grant. Each pass invalidates only what was read during the one before, so that there is an end.

use std::ops::Range;

use super::{Why, level};

/// What came of a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It is to be done now.
    Begin,
    /// It waits for its grant, which is on its way; [`Holding::granted`] gives it back.
    Later,
    /// It is answered at once: this level is held under that grant.
    Answer(u8),
    /// It is about a grant that a later one replaced.
    Ignore,
}

/// A recall: the number of the grant, the level that is wanted of it, and why.
pub type Recalled = (u64, u8, Why);

/// What the kernel's pages have to do with a level that is given back.
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
    /// Its reads and writes of pages that are in work.
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

    /// Nothing is held, on its way, or being given back.
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
        // That grant was lost with its connection, or nobody waits for it any more: what is held is held under it.
        self.sequence = sequence;
        let is_done = match why {
            Why::Conflict => self.level <= wanted,
            Why::Commit => self.level < level::WRITE,
        };
        if is_done { Heard::Answer(self.level) } else { Heard::Begin }
    }

    /// The level that a read of pages needs: where a program may have the file mapped for writing, stores into what is
    /// read are not seen.
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

    /// The kernel reads pages, in bytes of the file: whether it may. Then [`page_call_ended`](Self::page_call_ended)
    /// follows.
    pub fn begin_page_read(&mut self, range: Range<u64>) -> bool {
        // What is being given back may be of a lower level, if a writer came meanwhile: the page goes with the others.
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

    /// The kernel writes pages back: whether it may.
    pub fn begin_page_write(&mut self) -> bool {
        let is_admitted = self.level == level::WRITE;
        if is_admitted {
            self.has_pages = true;
            self.page_calls += 1;
        }
        is_admitted
    }

    /// A read or write of pages is done.
    pub fn page_call_ended(&mut self) {
        self.page_calls -= 1;
    }

    /// Reads and writes of pages are in work.
    pub fn is_paging(&self) -> bool {
        self.page_calls > 0
    }

    /// Programs are admitted no more. Returns what the kernel is to invalidate first.
    pub fn begin_giving(&mut self) -> Vec<Range<u64>> {
        let everything = vec![Range { start: 0, end: u64::MAX }];
        let pass = if self.has_pages { everything } else { Vec::new() };
        self.giving = Some(Giving { pass: pass.clone(), again: Vec::new() });
        pass
    }

    /// The kernel has invalidated what it was told; what it reads from now on waits.
    pub fn end_pass(&mut self) {
        if let Some(giving) = &mut self.giving {
            giving.pass.clear();
        }
    }

    /// What the kernel is to invalidate next, after no page is being read. Nothing: the level can go.
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

    /// The level is lowered; this is to be told to the server.
    pub fn given(&mut self, level: u8) {
        self.level = self.level.min(level);
        self.giving = None;
        self.has_pages = false;
    }
}
