//! The record of writes that a server may still lose.
//!
//! Owns: the number of writes in flight and of writes that no flush has covered. Promises: if a connection is lost
//! while there are such writes, all later writes and flushes fail. A new connection could reach a server that has lost
//! these writes, or that receives them only later. A flush on that connection would wrongly report them as safe.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The journal of one device. All clones share it.
#[derive(Clone, Default)]
pub(super) struct WriteJournal {
    state: Arc<Mutex<JournalState>>,
}

#[derive(Default)]
struct JournalState {
    in_flight: u64,
    /// The number of writes that were executed without being forced to the disk.
    executed: u64,
    /// The number of these, from the first one on, that a flush has covered.
    covered: u64,
    latched: Option<String>,
}

impl JournalState {
    /// The number of executed writes that no flush has covered.
    fn unflushed(&self) -> u64 {
        self.executed - self.covered
    }
}

impl WriteJournal {
    /// Records that a write, a zeroing or a discard begins. *Errors*: if the device refuses writes, the reason.
    pub fn begin(&self, fua: bool) -> Result<WriteToken, String> {
        let mut state = self.lock();
        if let Some(reason) = &state.latched {
            return Err(reason.clone());
        }
        state.in_flight += 1;
        Ok(WriteToken { journal: self.clone(), fua, is_done: false })
    }

    /// Returns what a flush covers if it begins now, for [`flushed`](Self::flushed). *Errors*: the reason why flushes
    /// are refused.
    pub fn begin_flush(&self) -> Result<u64, String> {
        let state = self.lock();
        match &state.latched {
            Some(reason) => Err(reason.clone()),
            None => Ok(state.executed),
        }
    }

    /// Records that the server has answered a flush; `covered` is what [`begin_flush`](Self::begin_flush) returned for
    /// it. Several flushes may cover the same writes, and may end in any order. *Errors*: the reason why the answer proves
    /// nothing: meanwhile another flush has failed, after which a server forgets what it could not store, or the server
    /// was lost and this is the answer of its successor.
    pub fn flushed(&self, covered: u64) -> Result<(), String> {
        let mut state = self.lock();
        if let Some(reason) = &state.latched {
            return Err(reason.clone());
        }
        state.covered = state.covered.max(covered);
        Ok(())
    }

    /// Refuses all writes and flushes from now on.
    pub fn latch(&self, reason: String) {
        self.lock().latched.get_or_insert(reason);
    }

    /// Records that a forced write has failed. Most servers force a write by a flush of everything, and their kernel reports
    /// only once that it has lost a write: maybe an earlier one, which no later flush would tell.
    pub fn force_failed(&self, reason: &str) {
        let mut state = self.lock();
        let unflushed = state.unflushed();
        if unflushed > 0 {
            let detail = format!(
                "a forced write failed ({reason}) with {unflushed} writes that no flush had covered: the server may have \
                 lost them; open the device again"
            );
            state.latched.get_or_insert(detail);
        }
    }

    /// Records that a connection has ended, for the reason `reason`.
    pub fn lost(&self, reason: &str) {
        let mut state = self.lock();
        if state.in_flight > 0 || state.unflushed() > 0 {
            let detail = format!(
                "a connection was lost ({reason}) with {} writes under way and {} that no flush had covered: it \
                 may have lost them; open the device again",
                state.in_flight,
                state.unflushed()
            );
            state.latched.get_or_insert(detail);
        }
    }

    /// The reason why writes are refused; `None` if writes are not refused.
    pub fn latched(&self) -> Option<String> {
        self.lock().latched.clone()
    }

    fn lock(&self) -> MutexGuard<'_, JournalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A write in flight.
pub(super) struct WriteToken {
    journal: WriteJournal,
    fua: bool,
    is_done: bool,
}

impl WriteToken {
    /// Whether the write is forced to the disk (FUA).
    pub fn is_forced(&self) -> bool {
        self.fua
    }

    /// Records that the server has executed or refused the write.
    pub fn answered(mut self, is_success: bool) {
        self.is_done = true;
        let mut state = self.journal.lock();
        state.in_flight -= 1;
        if is_success && !self.fua {
            state.executed += 1;
        }
    }
}

impl Drop for WriteToken {
    fn drop(&mut self) {
        if !self.is_done {
            self.journal.lock().in_flight -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a lost connection the journal latches only if a write may be lost.
    #[test]
    fn lost_connection_latches_unflushed_writes() {
        let journal = WriteJournal::default();
        journal.lost("nothing was written");
        assert_eq!(journal.latched(), None);
        journal.begin(true).unwrap().answered(true);
        journal.begin(false).unwrap().answered(false);
        journal.lost("all was forced or refused");
        assert_eq!(journal.latched(), None);
        journal.begin(false).unwrap().answered(true);
        let covered = journal.begin_flush().unwrap();
        journal.begin(false).unwrap().answered(true);
        journal.flushed(covered).unwrap();
        journal.lost("one write came after the flush began");
        assert!(journal.latched().unwrap().contains("0 writes under way and 1 that"));
        assert!(journal.begin(true).is_err() && journal.begin_flush().is_err());
    }

    /// A write after the start of two concurrent flushes is covered by neither of them.
    #[test]
    fn write_after_flush_start_is_uncovered() {
        let journal = WriteJournal::default();
        journal.begin(false).unwrap().answered(true);
        let (first, second) = (journal.begin_flush().unwrap(), journal.begin_flush().unwrap());
        journal.flushed(first).unwrap();
        journal.begin(false).unwrap().answered(true);
        journal.flushed(second).unwrap();
        journal.lost("no flush covers the second write");
        assert!(journal.latched().unwrap().contains("0 writes under way and 1 that"));
    }

    #[test]
    fn flush_beside_failed_flush_fails() {
        let journal = WriteJournal::default();
        journal.begin(false).unwrap().answered(true);
        let (failing, other) = (journal.begin_flush().unwrap(), journal.begin_flush().unwrap());
        journal.latch("a flush failed".to_owned());
        assert_eq!(
            (journal.flushed(other), journal.flushed(failing)),
            (Err("a flush failed".to_owned()), Err("a flush failed".to_owned()))
        );
    }

    #[test]
    fn failed_forced_write_stops_unflushed_writes() {
        let journal = WriteJournal::default();
        journal.force_failed("EIO");
        assert_eq!(journal.latched(), None);
        journal.begin(false).unwrap().answered(true);
        journal.force_failed("EIO");
        assert!(journal.latched().unwrap().contains("a forced write failed (EIO) with 1 writes"));
    }

    #[test]
    fn lost_connection_latches_write_in_flight() {
        let journal = WriteJournal::default();
        let token = journal.begin(false).unwrap();
        journal.lost("cut");
        drop(token);
        assert!(journal.latched().unwrap().contains("1 writes under way"));
    }
}
