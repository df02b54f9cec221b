//! What a client caches of files that other hosts may change, and when it forgets.
//!
//! Owns: tokens. Promises: what is known about a file's data, size and map is used and changed only under its token.
//! When another host needs the token, this host stops admitting calls of programs, the kernel forgets its pages,
//! written data are committed, and then the token is given back. So a read sees every write that returned before it, on
//! any host.
//!
//! A map under a token has no block that another host freed, because a host that frees blocks holds the token alone. So
//! once an append of the server is known here, no map has blocks that it freed, and the next renewal says so.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::error::Error;
use super::file::File;
use super::session::{Event, Grant};
use super::{Client, lock};
use crate::protocol::{Attributes, FileId, Held, Locked, Message, Operation, Question, Token, What};
use crate::tokens::{Heard, Holding, Recalled, Why, level};

/// A kernel that does not take a new end in this time is not waited for.
const GROW_TIME_MAX: Duration = Duration::from_secs(2);
/// The pause after a refused request for a token.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// Tokens of one message after a restart of the server.
const RECLAIMED_MAX: usize = 4096;

/// The kernel of this host, which may have pages of files in memory.
pub trait Kernel: Send + Sync + 'static {
    /// Makes the kernel forget the pages of an inode in a range of bytes; the receiver hears when it is done. Before
    /// that the kernel may write pages back, and wait for pages that it is reading. So nothing that serves these reads
    /// and writes may wait for the receiver.
    fn invalidate(&self, inode: u64, range: Range<u64>) -> oneshot::Receiver<()>;

    /// Tells the kernel that a file has at least this size; the receiver hears when it knows. It may wait for a page that
    /// the kernel reads.
    fn grow(&self, inode: u64, size: u64) -> oneshot::Receiver<()>;
}

/// What the session needs for tokens.
pub(super) struct Holds {
    kernel: Arc<dyn Kernel>,
    creating: Mutex<Creating>,
}

/// Files that are being made, whose tokens come with the answers.
#[derive(Default)]
struct Creating {
    calls: usize,
    /// Grants that were returned before they came, as the file was not known here yet.
    returned: HashMap<FileId, u64>,
}

impl Holds {
    pub fn new(kernel: Arc<dyn Kernel>) -> Holds {
        Holds { kernel, creating: Mutex::default() }
    }
}

/// What a call needs to see or change a file's data.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Access {
    /// This level of its token.
    Level(u8),
    /// Nothing: it is already admitted, and the token stays until it ends.
    Admitted,
}

impl Access {
    pub const READ: Access = Access::Level(level::READ);
    pub const WRITE: Access = Access::Level(level::WRITE);
}

/// Whether a call is admitted now.
pub(super) fn holds(file: &File, access: Access) -> bool {
    match access {
        Access::Level(level) => file.hold.state().admits(level),
        Access::Admitted => true,
    }
}

/// A read or write of the kernel's pages in progress: the token stays until this is dropped.
pub(super) struct Paging<'a>(&'a File);

impl Drop for Paging<'_> {
    fn drop(&mut self) {
        self.0.hold.state().page_call_ended();
        self.0.hold.changed.notify_waiters();
    }
}

impl Client {
    /// Waits until a call is admitted. The level may be lost again when this returns: see [`holds`].
    pub(super) async fn admit(&self, file: &Arc<File>, access: Access) -> Result<(), Error> {
        let Access::Level(level) = access else { return Ok(()) };
        self.wait_for(file, |_| level, |state| state.admits(level)).await
    }

    /// Begins a read for the kernel's page cache.
    pub(super) async fn begin_page_read<'a>(
        &self,
        file: &'a Arc<File>,
        range: Range<u64>,
    ) -> Result<Paging<'a>, Error> {
        let begin = |state: &mut Holding| state.begin_page_read(range.clone());
        self.wait_for(file, Holding::page_level, begin).await?;
        Ok(Paging(file))
    }

    /// Begins a write of pages. *Errors*: the session lost its token, and with it what was written to the pages.
    pub(super) fn begin_page_write<'a>(&self, file: &'a Arc<File>) -> Result<Paging<'a>, Error> {
        match file.hold.state().begin_page_write() {
            true => Ok(Paging(file)),
            false => Err(Error::posix(libc::EIO)),
        }
    }

    async fn wait_for(
        &self,
        file: &Arc<File>,
        level: impl Fn(&Holding) -> u8,
        mut admit: impl FnMut(&mut Holding) -> bool,
    ) -> Result<(), Error> {
        loop {
            let changed = file.hold.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = file.hold.state();
                if admit(&mut state) {
                    return Ok(());
                }
                if let Some(error) = self.shared.session.failure() {
                    return Err(error);
                }
                let wanted = level(&state);
                if state.wants(wanted) {
                    self.request(file.clone(), wanted);
                }
            }
            changed.await;
        }
    }

    /// Requests a token, and wakes the waiting calls.
    fn request(&self, file: Arc<File>, level: u8) {
        let client = self.clone();
        tokio::spawn(async move {
            let token = Token { object: file.id, what: What::Data };
            let granted = client.shared.session.acquire(token, level).await;
            if granted.is_err() {
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
            client.end_request(&file, granted.ok()).await;
            if !file.is_used() {
                client.settle(&file).await;
            }
        });
    }

    /// A request for a token was answered.
    pub(super) async fn end_request(&self, file: &Arc<File>, granted: Option<Grant>) {
        let early = {
            // Nobody waits here: a server that is started meanwhile is to hear of the token. Without the lock, the shape is
            // requested when it is needed.
            let content = file.content.try_write().ok();
            let mut state = file.hold.state();
            match granted {
                Some(Grant { held, is_watched, shape }) => {
                    file.is_watched.store(is_watched, Ordering::Release);
                    let early = state.granted(held.level, held.sequence);
                    let is_held = state.level() != level::NONE && state.sequence() == held.sequence;
                    if let (Some(mut content), Some(shape), true) = (content, shape, is_held) {
                        content.learn_shape(shape);
                    }
                    early
                }
                None => state.failed(),
            }
        };
        file.hold.changed.notify_waiters();
        for recalled in early {
            if let Heard::Begin = self.hear(file, recalled) {
                let (client, file) = (self.clone(), file.clone());
                tokio::spawn(async move { client.give_back(&file, recalled).await });
            }
        }
    }

    /// A recall came: what is to be done.
    fn hear(&self, file: &File, recalled: Recalled) -> Heard {
        let heard = file.hold.state().recalled(recalled);
        if let Heard::Answer(level) = heard {
            self.say_returned(file.id, level, recalled.0, false);
        }
        heard
    }

    fn say_returned(&self, object: FileId, level: u8, sequence: u64, is_lost: bool) {
        let held = Held { token: Token { object, what: What::Data }, level, sequence };
        self.shared.session.say(&Message::Return { held, is_lost });
    }

    /// Does what a recall wants.
    async fn give_back(&self, file: &Arc<File>, recalled: Recalled) {
        let _turn = file.hold.giving.lock().await;
        // The one before may have done it.
        let Heard::Begin = self.hear(file, recalled) else { return };
        let (sequence, wanted, why) = recalled;
        match why {
            Why::Conflict => self.give(file, wanted).await,
            Why::Commit => {
                let mut content = file.content.write().await;
                let committed = self.commit_locked(file, &mut content).await;
                if let Err(error) = &committed {
                    self.note_failure(file.id, error);
                }
                let level = file.hold.state().level();
                drop(content);
                self.say_returned(file.id, level, sequence, committed.is_err());
            }
        }
    }

    /// Gives the token back, down to a level. The caller has `giving`.
    async fn give(&self, file: &Arc<File>, to: u8) {
        let mut pass = file.hold.state().begin_giving();
        file.hold.changed.notify_waiters();
        while !pass.is_empty() {
            for range in pass {
                // An error means that the mount has ended, and with it all pages.
                let _ = self.shared.holds.kernel.invalidate(file.id.inode, range).await;
            }
            file.hold.state().end_pass();
            self.no_paging(file).await;
            pass = file.hold.state().next_pass();
            // Reads of pages that are invalidated next are served.
            file.hold.changed.notify_waiters();
        }
        let mut content = file.content.write().await;
        let committed = self.commit_locked(file, &mut content).await;
        if let Err(error) = &committed {
            content.failed = Some(error.errno());
            self.note_failure(file.id, error);
            self.drop_fresh(&mut content, 0).await;
            content.modified_ns = None;
        }
        if to == level::NONE || committed.is_err() {
            content.forget();
        }
        let (level, sequence) = {
            let mut state = file.hold.state();
            state.given(to);
            (state.level(), state.sequence())
        };
        file.show(&content);
        drop(content);
        file.hold.changed.notify_waiters();
        self.say_returned(file.id, level, sequence, committed.is_err());
    }

    /// Waits until the kernel reads and writes no pages of a file.
    async fn no_paging(&self, file: &File) {
        loop {
            let changed = file.hold.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !file.hold.state().is_paging() {
                return;
            }
            changed.await;
        }
    }

    /// A handle was opened with which a program may map the file for writing: the kernel keeps no pages that were read
    /// under a lower level.
    pub(super) async fn add_writer(&self, file: &Arc<File>) {
        if file.hold.state().add_writer() {
            let _turn = file.hold.giving.lock().await;
            let level = file.hold.state().level();
            if level == level::READ {
                self.give(file, level::NONE).await;
            }
        }
    }

    /// Gives back the token of a file that is not in use.
    pub(super) async fn give_up(&self, file: &Arc<File>) {
        let _turn = file.hold.giving.lock().await;
        let is_held = {
            let state = file.hold.state();
            state.level() != level::NONE && !state.is_acquiring()
        };
        if is_held && !file.is_used() {
            self.give(file, level::NONE).await;
        }
    }

    /// The file that a recall is about. `None`: nothing of it is held, also not by a grant that comes later with the
    /// answer of a [`Create`](crate::protocol::Operation::Create).
    fn recalled_file(&self, held: &Held) -> Option<Arc<File>> {
        let mut creating = lock(&self.shared.holds.creating);
        let file = self.file(held.token.object).filter(|_| held.token.what == What::Data);
        if file.is_none() && creating.calls > 0 {
            creating.returned.insert(held.token.object, held.sequence);
        }
        file
    }

    /// Makes a file with `operation`, which has it open at once; with its token, if that came with it.
    pub(super) async fn create_held(&self, operation: Operation) -> Result<(Attributes, Arc<File>), Error> {
        lock(&self.shared.holds.creating).calls += 1;
        let made = self.shared.session.create_open(operation).await;
        let (made, granted) = {
            let mut creating = lock(&self.shared.holds.creating);
            let made = made.map(|(attributes, granted)| {
                let file = self.use_file(attributes.id(), true);
                let returned = creating.returned.remove(&attributes.id());
                let granted = granted.filter(|grant| returned.is_none_or(|returned| returned < grant.held.sequence));
                ((attributes, file), granted)
            });
            creating.calls -= 1;
            if creating.calls == 0 {
                creating.returned.clear();
            }
            let (made, granted) = made?;
            (made, granted)
        };
        if granted.is_some() {
            self.end_request(&made.1, granted).await;
        }
        Ok(made)
    }

    /// Handles the events that the session sends, until their channel closes.
    pub(super) async fn serve_events(&self, mut events: mpsc::UnboundedReceiver<Event>) {
        let mut recalls = JoinSet::new();
        while let Some(event) = events.recv().await {
            match event {
                Event::Durable(sequence) => self.shared.session.set_drained(sequence),
                Event::Recalled(held, why) => {
                    while recalls.try_join_next().is_some() {}
                    let recalled = (held.sequence, held.level, why);
                    let Some(file) = self.recalled_file(&held) else {
                        self.say_returned(held.token.object, level::NONE, held.sequence, false);
                        continue;
                    };
                    if let Heard::Begin = self.hear(&file, recalled) {
                        let client = self.clone();
                        recalls.spawn(async move { client.give_back(&file, recalled).await });
                    }
                }
                Event::Push(file, size, number) => {
                    let client = self.clone();
                    tokio::spawn(async move {
                        client.show_end(file.inode, size).await;
                        client.shared.session.say(&Message::Pushed { number });
                    });
                }
                Event::Restarted => {
                    let epoch = self.shared.session.epoch();
                    for file in self.files() {
                        if *file.at_server.lock().await {
                            // An error means that it is gone; so every call on it will say.
                            let is_direct = file.is_direct.load(Ordering::Acquire);
                            let open = Question::Open { file: file.id, level: level::NONE, is_direct };
                            let _ = self.ask(open).await;
                        }
                    }
                    self.reclaim(epoch).await;
                }
            }
        }
    }

    /// The session is over: nothing is held, and when this returns the kernel has no page that was read under it. What the
    /// kernel still writes back is refused.
    pub async fn drop_pages(&self) {
        for file in self.files() {
            let had_pages = file.hold.state().lose();
            file.hold.changed.notify_waiters();
            if had_pages {
                let _ = self.shared.holds.kernel.invalidate(file.id.inode, 0..u64::MAX).await;
            }
        }
    }

    /// Tells this host's kernel where a file ends. A page that is being read for long does not hold others up.
    pub(super) async fn show_end(&self, inode: u64, size: u64) {
        let _ = tokio::time::timeout(GROW_TIME_MAX, self.shared.holds.kernel.grow(inode, size)).await;
    }

    /// A call moved the end of a file: it returns when the kernels of other hosts that read the file directly know. To be
    /// called without locks, as these kernels may wait for the token first.
    pub(super) async fn push_end(&self, file: &File, end: u64) -> Result<(), Error> {
        if file.is_watched.load(Ordering::Acquire) {
            self.look(Question::Push { file: file.id, size: end }).await?;
        }
        Ok(())
    }

    fn files(&self) -> Vec<Arc<File>> {
        lock(&self.shared.files).values().cloned().collect()
    }

    /// Tells a server that was started which locks and tokens are held.
    async fn reclaim(&self, epoch: u64) {
        for file in self.files() {
            let locks: Vec<Locked> = file.locks().iter().copied().collect();
            for lock in locks {
                if let Err(error) = self.shared.session.reclaim_lock(lock).await {
                    self.note_lost_lock(&lock, &error);
                }
            }
        }
        let held = |file: &Arc<File>| {
            let state = file.hold.state();
            let token = Token { object: file.id, what: What::Data };
            let held = Held { token, level: state.level(), sequence: state.sequence() };
            (held.level != level::NONE).then_some(held)
        };
        let all: Vec<Held> = self.files().iter().filter_map(held).collect();
        let mut parts: Vec<Vec<Held>> = all.chunks(RECLAIMED_MAX).map(<[Held]>::to_vec).collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            self.shared.session.reclaim(epoch, part, false).await;
        }
        self.shared.session.reclaim(epoch, last, true).await;
        self.shared.session.send_held_back();
    }
}
