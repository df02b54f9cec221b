//! What all programs of a run share: the history, the files and directories that they know, and the description of the run.
//!
//! Leaves to others: the calls (`program`).

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nectary_block::Recorder;
use nectary_volume::protocol::{FileId, InodeAttributes};
use tokio::time::Instant;

use super::history::NamesHistory;
use super::tree::{ROOT, Tag, TreeOutcome};

/// The tags of what is made after a crash.
const AFTER_TAGS: u64 = 1_000_000;
/// The number of a volume's root.
pub const ROOT_ID: FileId = FileId { inode: 1, generation: 1 };

/// What all programs share.
pub struct NamesBoard {
    /// Whether hosts make and remove names themselves.
    pub are_names_local: bool,
    history: Mutex<NamesHistory>,
    start: Instant,
    pub tags: AtomicU64,
    pub values: AtomicU64,
    /// Directories and files that programs have made or found.
    pub directories: Mutex<BTreeMap<Tag, FileId>>,
    pub files: Mutex<BTreeMap<Tag, FileId>>,
    /// Directories that one program each uses most.
    pub homes: Mutex<Vec<(Tag, FileId)>>,
    story: Mutex<Option<Vec<String>>>,
    /// Gets a mark for each tick of the history.
    recorder: Option<Recorder>,
    /// For sessions and ticks at which calls ended, how many operations were answered and not known to be durable.
    unstored: Mutex<BTreeMap<(usize, u64), u64>>,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NamesBoard {
    /// Makes a board with the root, for a run that is recorded or not.
    pub fn new(is_told: bool, are_names_local: bool, recorder: Option<Recorder>) -> Arc<NamesBoard> {
        Arc::new(NamesBoard {
            are_names_local,
            homes: Mutex::default(),
            recorder,
            unstored: Mutex::default(),
            history: Mutex::new(NamesHistory::new(are_names_local)),
            start: Instant::now(),
            tags: AtomicU64::new(1),
            values: AtomicU64::new(1),
            directories: Mutex::new(BTreeMap::from([(ROOT, ROOT_ID)])),
            files: Mutex::default(),
            story: Mutex::new(is_told.then(Vec::new)),
        })
    }

    /// Makes a board for what is left after a crash at a tick of this one's history.
    pub fn after(&self, tick: u64) -> Arc<NamesBoard> {
        let history = lock(&self.history).until(tick, |session| self.unstored_of(session, tick));
        let since = history.since_start();
        Arc::new(NamesBoard {
            are_names_local: self.are_names_local,
            homes: Mutex::default(),
            history: Mutex::new(history),
            // The times go on.
            start: Instant::now().checked_sub(since).unwrap_or_else(Instant::now),
            tags: AtomicU64::new(AFTER_TAGS),
            values: AtomicU64::new(AFTER_TAGS),
            directories: Mutex::new(lock(&self.directories).clone()),
            files: Mutex::new(lock(&self.files).clone()),
            story: Mutex::default(),
            recorder: None,
            unstored: Mutex::default(),
        })
    }

    /// Returns how many operations were answered and not known to be durable at a tick.
    pub fn unstored_at(&self, tick: u64) -> u64 {
        let sessions = lock(&self.history).sessions();
        (0..sessions).map(|session| self.unstored_of(session, tick)).sum()
    }

    fn unstored_of(&self, session: usize, tick: u64) -> u64 {
        lock(&self.unstored).range((session, 0)..=(session, tick)).next_back().map_or(0, |(_, count)| *count)
    }

    /// Ends a call of a session. `unstored`: how many of its operations are answered now, and not known to be durable.
    pub fn end(&self, (session, call): (usize, usize), outcome: TreeOutcome, unstored: Option<u64>) {
        let tick = self.history(|history| {
            history.end(call, outcome);
            history.last_tick()
        });
        // At the tick before, there may have been more: a crash between both may lose them.
        if let Some(unstored) = unstored {
            lock(&self.unstored).insert((session, tick), unstored);
        }
    }

    /// Whether the run is recorded.
    pub fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    /// Works on the history.
    pub fn history<T>(&self, work: impl FnOnce(&mut NamesHistory) -> T) -> T {
        let mut history = lock(&self.history);
        let before = history.last_tick();
        let result = work(history.at(self.start.elapsed()));
        if let Some(recorder) = self.recorder.as_ref().filter(|_| history.last_tick() > before) {
            recorder.mark(history.last_tick());
        }
        result
    }

    /// Notes an event, if a description of the run is requested.
    pub fn tell(&self, what: impl FnOnce() -> String) {
        if let Some(story) = &mut *lock(&self.story) {
            story.push(format!("{:>9} us: {}", self.start.elapsed().as_micros(), what()));
        }
    }

    /// Returns the description of the run.
    pub fn take_story(&self) -> Vec<String> {
        lock(&self.story).take().unwrap_or_default()
    }

    /// Learns of a file that was made or found; returns its tag.
    pub fn learn(&self, found: &InodeAttributes) -> Tag {
        let tag = self.history(|history| history.tag_of(found));
        let is_directory = found.inode.mode & libc::S_IFMT == libc::S_IFDIR;
        let list = if is_directory { &self.directories } else { &self.files };
        lock(list).entry(tag).or_insert(found.id());
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::NamesCall;
    use super::*;

    #[test]
    fn crash_loses_what_was_unstored_then() {
        let board = NamesBoard::new(false, true, None);
        let session = board.history(NamesHistory::session);
        let make = NamesCall::Make { place: (ROOT, 1), tag: 7, mode: 0o644, is_directory: false };
        let (made, looked) = board.history(|history| {
            (history.begin(session, make, None), history.begin(session, NamesCall::List(ROOT), None))
        });
        board.end((session, made), TreeOutcome::Done, Some(1));
        let between = board.history(NamesHistory::tick);
        // The next call of the session ends when the first one is durable.
        board.end((session, looked), TreeOutcome::Names(BTreeMap::new()), Some(0));
        let last = board.history(|history| history.last_tick());
        assert_eq!((board.unstored_at(between), board.unstored_at(last)), (1, 0));
        let is_optional = |tick| board.after(tick).history(|history| history.steps()[0].is_optional);
        assert!(is_optional(between) && !is_optional(last));
    }
}
