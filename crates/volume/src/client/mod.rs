//! A mount's side of the volume: a session with the server, and files read and written on the shared disk.
//!
//! Owns: the session, free blocks that it holds, files in use, tokens, commits. Promises: a read sees every write that
//! returned before the read began, on any host. A change of names is durable some milliseconds after its call, data about
//! a second after; both after [`OpenFile::sync`], and before another host sees them. While the server
//! cannot be reached, calls wait.
//! Leaves to others: the interface to the kernel.
//!
//! | file | what is in it |
//! |---|---|
//! | `session` | numbered operations |
//! | `link` | connections |
//! | `calls` | calls without an answer, calls that the server does not take, and operations that are not known to be durable |
//! | `names` | everything about names and attributes |
//! | `open` | files that are open |
//! | `file`, `extents` | the state of a file, the places of its blocks |
//! | `space` | free blocks that the session holds, and how many |
//! | `data`, `bytes`, `commit`, `change` | reading, writing, committing, truncating |
//! | `space::reserved` | blocks that `fallocate` reserved |
//! | `accesses` | times of access |
//! | `locks` | locks of programs |
//! | `session_device`, `siblings` | the disk, whose writes are counted; sessions of this host that have ended |
//! | `looks` | names and attributes that the session keeps |
//! | `kernel` | what is asked of this host's kernel; what it was given with a time; names that it looks up one after another |
//! | `hold`, `token_requests` | which data may be cached, giving tokens back when another host needs them; getting them |
//! | `wait_kinds` | what calls wait for |

mod accesses;
mod bytes;
mod calls;
mod change;
mod commit;
mod data;
mod error;
mod extents;
mod file;
mod hold;
mod kernel;
mod link;
mod locks;
mod looks;
mod names;
mod open;
mod session;
mod session_device;
mod siblings;
mod space;
mod token_requests;
mod wait_kinds;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_block::SharedDevice;
use nectary_host::log::{LogLevel, LogThrottle};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

pub use bytes::ReadContents;
pub use calls::{ClientOptions, ConnectionTrouble, SessionFigures};
pub use data::WritePosition;
pub use error::Error;
pub use kernel::{EarlierName, GivenName, GivenNames, HostKernel};
pub use link::ServerAddress;
pub use locks::FileLock;
pub use names::{KeptAttributes, NewInode, SHOWN_MAX};
pub use open::{FileView, OpenAccess, OpenFile};
pub use wait_kinds::{LongWork, WaitKind};

use crate::identity::random_id;
use crate::origin;
use crate::protocol::{FileId, GrantedSpace, MetadataOperation, MetadataQuestion, RefusalCode, ServerAnswer};
use accesses::UnreportedAccesses;
use file::ActiveFile;
use hold::SessionTokens;
use session::{ClientSession, SPACE_RETRY, SPACE_WAIT_MAX};
use session_device::SessionDevice;
use space::SpacePool;
use wait_kinds::ClientWork;

/// The interval between commits of written data.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of uncommitted blocks of one file. *Units*: blocks.
const BLOCKS_MAX: u64 = 1 << 16;

/// A session with the server of a volume. Clones share the session.
#[derive(Clone)]
pub struct VolumeClient {
    shared: Arc<SharedClient>,
}

struct SharedClient {
    device: SharedDevice,
    /// The same disk: its writes are counted.
    counted: Arc<SessionDevice>,
    incarnation: [u8; 16],
    /// Wakes the search for siblings that have ended.
    siblings: Notify,
    session: ClientSession,
    files: Mutex<KnownFiles>,
    dirty: Mutex<BTreeSet<FileId>>,
    space: tokio::sync::Mutex<SpacePool>,
    holds: SessionTokens,
    accesses: UnreportedAccesses,
    works: ClientWork,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// The files in use.
#[derive(Default)]
struct KnownFiles {
    active: HashMap<u64, Arc<ActiveFile>>,
    /// The highest number of a grant of a file that is forgotten. The server may not have its return yet, and answer the
    /// next request for the token of this file with the same grant.
    returned_to: u64,
}

impl KnownFiles {
    fn get(&self, id: FileId) -> Option<&Arc<ActiveFile>> {
        self.active.get(&id.inode).filter(|file| file.id == id)
    }

    /// Whether this is still the state by which the session knows the file.
    fn has(&self, file: &Arc<ActiveFile>) -> bool {
        self.get(file.id).is_some_and(|known| Arc::ptr_eq(known, file))
    }

    /// Notes a grant that is returned, of a file that is not known any more.
    fn note_returned(&mut self, sequence: u64) {
        self.returned_to = self.returned_to.max(sequence);
    }

    /// Notes a grant that no call wanted. Returns whether it must be returned; then a later state of the file does not take
    /// it, either.
    fn refuse(&mut self, file: &ActiveFile, sequence: u64) -> bool {
        let is_returned = file.hold.state().unwanted(sequence);
        if is_returned {
            self.note_returned(sequence);
        }
        is_returned
    }

    /// Returns the state of a file; it is made if the file is not in use.
    fn state(&mut self, id: FileId, is_open: bool) -> Arc<ActiveFile> {
        let known = self.get(id).cloned();
        known.unwrap_or_else(|| {
            let file = Arc::new(ActiveFile::new(id, is_open, self.returned_to));
            self.active.insert(id.inode, file.clone());
            file
        })
    }
}

/// What free blocks are taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockPurpose {
    /// Blocks of a file that have no place yet.
    New,
    /// Blocks that replace others of the same file, which become free.
    Overwrite,
}

/// The result of taking free blocks.
enum TakeResult {
    Taken(GrantedSpace),
    /// There are none, but space is being freed.
    Later,
    Full,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl VolumeClient {
    /// Begins a session. Its tasks run in the runtime from which this is called.
    ///
    /// *Errors*: [`Error::Server`] if the server cannot be reached, or serves another volume.
    pub async fn connect(
        device: SharedDevice,
        options: ClientOptions,
        kernel: Arc<dyn HostKernel>,
    ) -> Result<VolumeClient, Error> {
        let incarnation = random_id();
        // The lock is taken before the server learns of the session: where it is not held, the process has ended.
        let origin = origin::hold(&device, incarnation).await;
        let (session, events) = match ClientSession::begin(options, (incarnation, origin)).await {
            Ok(begun) => begun,
            Err(error) => {
                // If the server has begun the session nevertheless, nobody uses it.
                origin::let_go(&device, incarnation).await;
                return Err(error);
            }
        };
        let counted = Arc::new(SessionDevice::new(device));
        let shared = Arc::new(SharedClient {
            device: counted.clone(),
            counted,
            incarnation,
            siblings: Notify::new(),
            session,
            files: Mutex::default(),
            dirty: Mutex::default(),
            space: tokio::sync::Mutex::new(SpacePool::new()),
            holds: SessionTokens::new(kernel),
            accesses: UnreportedAccesses::default(),
            works: ClientWork::default(),
            tasks: Mutex::default(),
        });
        let client = VolumeClient { shared };
        let (committer, holder) = (client.clone(), client.clone());
        let commits = tokio::spawn(async move {
            loop {
                tokio::time::sleep(COMMIT_INTERVAL).await;
                committer.work(0, committer.commit_all()).await;
                committer.report_accesses().await;
                committer.return_unused().await;
            }
        });
        let holds = tokio::spawn(async move { holder.serve_events(events).await });
        let mut tasks = vec![commits, holds];
        if origin.boot() != 0 {
            let watcher = client.clone();
            tasks.push(tokio::spawn(async move { watcher.watch_siblings().await }));
        }
        lock(&client.shared.tasks).extend(tasks);
        Ok(client)
    }

    /// Returns the session's counters.
    pub fn figures(&self) -> SessionFigures {
        self.shared.session.figures()
    }

    /// Commits everything, returns granted space and tokens, and ends the session. Every later call fails.
    ///
    /// *Errors*: the first error of these steps: committing a file, returning unused blocks, telling the server that
    /// the session ends.
    pub async fn close(&self) -> Result<(), Error> {
        self.commit_all().await;
        self.report_accesses().await;
        let left: Vec<FileId> = lock(&self.shared.dirty).iter().copied().collect();
        let mut result = Ok(());
        for id in left {
            if let Some(file) = self.file(id) {
                let known = file.failures().known_to_new();
                result = result.and(self.sync(&file, |failures| failures.since(known)).await);
            }
        }
        let given = WaitKind::Space.during(0, self.shared.space.lock()).await.space.drain();
        result = result.and(self.return_space(given).await);
        lock(&self.shared.tasks).drain(..).for_each(|task| task.abort());
        let ended = self.shared.session.end().await;
        self.let_go().await;
        result.and(ended)
    }

    /// Stops without a message to the server, as after a crash.
    pub fn stop(&self) {
        lock(&self.shared.tasks).drain(..).for_each(|task| task.abort());
        self.shared.session.abort();
    }

    /// Whether the session has ended.
    pub fn is_over(&self) -> bool {
        self.shared.session.failure().is_some()
    }

    /// Returns the error of calls after the session has ended.
    pub fn why_over(&self) -> Error {
        self.shared.session.why_ended()
    }

    /// Waits until the session has ended; returns the reason, and the host if the server ended it.
    pub async fn over(&self) -> String {
        self.shared.session.ended().await
    }

    /// Returns the number of files with uncommitted data.
    pub fn uncommitted(&self) -> usize {
        lock(&self.shared.files).active.values().filter(|file| file.shown().is_dirty).count()
    }

    fn device(&self) -> &SharedDevice {
        &self.shared.device
    }

    /// Returns the time of the server's clock. *Units*: nanoseconds since 1970.
    fn now_ns(&self) -> i64 {
        self.shared.session.now_ns()
    }

    /// Waits until the lease allows I/O.
    async fn leased(&self) -> Result<(), Error> {
        self.shared.session.leased().await
    }

    /// Checks that the lease was valid during the I/O.
    fn still_leased(&self) -> Result<(), Error> {
        self.shared.session.still_leased()
    }

    /// Whether changes of names, and data at a close, are durable when a call returns.
    fn are_names_synced(&self) -> bool {
        self.shared.session.are_names_synced()
    }

    async fn operate(&self, operation: MetadataOperation) -> Result<ServerAnswer, Error> {
        self.shared.session.operate(operation).await
    }

    async fn ask(&self, question: MetadataQuestion) -> Result<ServerAnswer, Error> {
        self.shared.session.ask(question).await
    }

    /// Requests attributes; other hosts first commit what they wrote to the file.
    async fn look(&self, question: MetadataQuestion) -> Result<ServerAnswer, Error> {
        self.shared.session.look(question).await
    }

    fn file(&self, id: FileId) -> Option<Arc<ActiveFile>> {
        lock(&self.shared.files).get(id).cloned()
    }

    /// Returns the state of a file, with one user added; it is made if the file is not in use.
    fn use_file(&self, id: FileId, is_open: bool) -> Arc<ActiveFile> {
        let mut files = lock(&self.shared.files);
        let file = files.state(id, is_open);
        file.add_user();
        file
    }

    /// Adds one user to a file, if this is still the state by which the session knows it; [`end_use`](Self::end_use)
    /// must follow. A recall does not find a state that was forgotten, so such a state must not get a token.
    fn use_again(&self, file: &Arc<ActiveFile>) -> bool {
        let files = lock(&self.shared.files);
        let is_known = files.has(file);
        if is_known {
            file.add_user();
        }
        is_known
    }

    /// Returns the state of a file that is in use, or has uncommitted data, with one user added.
    fn use_known(&self, id: FileId) -> Option<Arc<ActiveFile>> {
        let files = lock(&self.shared.files);
        let file = files.get(id)?;
        file.add_user();
        Some(file.clone())
    }

    /// Removes one user of a file.
    async fn end_use(&self, file: &Arc<ActiveFile>) {
        if file.remove_user() {
            self.settle(file).await;
        }
    }

    fn forget_file(&self, file: &Arc<ActiveFile>) {
        let mut files = lock(&self.shared.files);
        let state = file.hold.state();
        if files.has(file) && !file.is_used() && state.is_idle() {
            files.active.remove(&file.id.inode);
            files.note_returned(state.sequence());
        }
    }

    fn mark_dirty(&self, id: FileId) {
        lock(&self.shared.dirty).insert(id);
    }

    fn take_dirty(&self) -> Vec<Arc<ActiveFile>> {
        let dirty = std::mem::take(&mut *lock(&self.shared.dirty));
        dirty.into_iter().filter_map(|id| self.file(id)).collect()
    }

    fn note_failure(&self, id: FileId, error: &Error) {
        static FAILED: LogThrottle = LogThrottle::every(Duration::from_secs(10));
        let inode = id.inode;
        FAILED.write(
            LogLevel::Error,
            "volume",
            format_args!("inode {inode}: what was written is not committed: {error}"),
        );
    }

    /// Takes free blocks in one piece; requests more from the server if there are too few. While space is being freed,
    /// waits for it.
    ///
    /// *Errors*: ENOSPC if there is none, or none after [`SPACE_WAIT_MAX`].
    async fn take_space(&self, after: Option<u64>, blocks: u64, use_for: BlockPurpose) -> Result<GrantedSpace, Error> {
        let until = Instant::now() + SPACE_WAIT_MAX;
        loop {
            match self.try_space(after, blocks, use_for).await? {
                TakeResult::Taken(granted) => return Ok(granted),
                TakeResult::Later if Instant::now() < until => {
                    // Space is free when each host has renewed its session and so has said that it does not read it.
                    self.shared.session.renew_soon();
                    self.shared.siblings.notify_one();
                    WaitKind::Space.during(0, sleep(SPACE_RETRY)).await;
                }
                TakeResult::Later | TakeResult::Full => return Err(Error::posix(libc::ENOSPC)),
            }
        }
    }

    /// Takes free blocks in one piece, if there are any now.
    async fn try_space(&self, after: Option<u64>, blocks: u64, use_for: BlockPurpose) -> Result<TakeResult, Error> {
        let mut pool = WaitKind::Space.during(0, self.shared.space.lock()).await;
        let mut is_freeing = false;
        let kept = if use_for == BlockPurpose::New { pool.kept } else { 0 };
        if pool.space.blocks() < blocks + kept {
            let wanted = pool.next_request(blocks + kept);
            match self.ask(MetadataQuestion::Space { blocks: wanted }).await {
                Ok(ServerAnswer::Space(granted)) => pool.granted(wanted, granted),
                Ok(_) => return Err(Error::posix(libc::EIO)),
                // The free blocks that are left may be enough.
                Err(Error::Refused(failure)) if failure.code == RefusalCode::Full || failure.errno == libc::ENOSPC => {
                    pool.refused();
                    is_freeing = failure.errno == libc::EAGAIN;
                }
                Err(error) => return Err(error),
            }
        }
        let blocks = blocks.min(pool.space.blocks().saturating_sub(kept));
        Ok(match pool.take(after, blocks) {
            Some(granted) => TakeResult::Taken(granted),
            None if is_freeing => TakeResult::Later,
            None => TakeResult::Full,
        })
    }

    /// Returns the space that this session does not use.
    async fn return_unused(&self) {
        let unused = WaitKind::Space.during(0, self.shared.space.lock()).await.unused();
        // An error means that the session has ended.
        let _ = self.return_space(unused).await;
    }

    /// Returns all space but the few blocks that are kept for overwriting.
    async fn return_all_space(&self) -> Result<(), Error> {
        let given = WaitKind::Space.during(0, self.shared.space.lock()).await.all_but_kept();
        self.return_space(given).await
    }

    async fn return_space(&self, given: Vec<GrantedSpace>) -> Result<(), Error> {
        let mut result = Ok(());
        for part in given.chunks(commit::EXTENTS_MAX) {
            let extents = part.iter().map(|granted| (granted.block, granted.blocks)).collect();
            result = result.and(self.operate(MetadataOperation::ReturnSpace { extents }).await.map(drop));
        }
        result
    }

    /// Puts back blocks to which no write is in progress.
    async fn put_space(&self, given: Vec<GrantedSpace>) {
        if !given.is_empty() {
            let mut pool = WaitKind::Space.during(0, self.shared.space.lock()).await;
            given.into_iter().for_each(|granted| pool.space.add(granted));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::level;

    /// The server answers with a grant until it has its return, also after the file was forgotten and is used again.
    #[test]
    fn unwanted_grant_stays_refused_after_forgetting() {
        let id = FileId { inode: 20, generation: 1 };
        let mut files = KnownFiles::default();
        let file = files.state(id, false);
        assert!(file.hold.state().wants(level::WRITE) && files.refuse(&file, 7));
        file.hold.state().failed();
        files.active.remove(&id.inode);
        let later = files.state(id, false);
        assert!(!Arc::ptr_eq(&file, &later));
        let mut state = later.hold.state();
        assert!(state.wants(level::READ) && state.granted(level::READ, 7).is_empty());
        assert_eq!(state.level(), level::NONE, "the grant was returned");
        assert!(state.wants(level::READ) && state.granted(level::READ, 8).is_empty());
        assert_eq!(state.level(), level::READ);
    }
}
