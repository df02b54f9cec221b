//! What a client caches of files that other hosts may change, and when it drops the cache.
//!
//! Owns: tokens. Promises: the data, size and map of a file are used and changed only under the file's token. When
//! another host needs the token, this host stops admitting calls of programs, its kernel drops its cached pages,
//! written data is committed, and then the token is given back. So a read sees every write that returned before the
//! read began, on any host.
//!
//! While this host holds the token, no other host frees blocks of the file, because freeing requires an exclusive
//! token. So when the client learns that an append of the server is durable, none of its maps has blocks which that
//! append freed, and the next renewal reports this.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nectary_block::Buffer;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::calls::{FileGrant, ServerEvent};
use super::error::Error;
use super::file::ActiveFile;
use super::kernel::HostKernel;
use super::names::SHOWN_MAX;
use super::wait_kinds::WaitKind;
use super::{VolumeClient, lock};
use crate::planted::{Bug, planted};
use crate::protocol::{
    FileId, InodeAttributes, MetadataOperation, MetadataQuestion, Token, TokenAspect, TokenGrant, VolumeMessage,
};
use crate::tokens::{RecallOutcome, RecallReason, Recalled, TokenHolding, level};

/// The longest wait for a kernel to take a new end of file.
const GROW_TIME_MAX: Duration = Duration::from_secs(2);
/// The pause after a refused request for a token.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// The maximum number of tokens in one message to a restarted server.
const RECLAIMED_MAX: usize = 4096;

/// The state of the session that tokens need.
pub(super) struct SessionTokens {
    kernel: Arc<dyn HostKernel>,
    creating: Mutex<PendingCreates>,
}

/// The number of files that are being created, whose tokens come with the answers.
#[derive(Default)]
struct PendingCreates {
    calls: usize,
    /// Grants that were returned before their `Create` was answered, because the recall arrived when the file was not
    /// known here yet.
    returned: HashMap<FileId, u64>,
}

impl SessionTokens {
    /// Tells a cache above the client what was written.
    pub fn note_written(&self, file: FileId, offset: u64, data: &[Buffer], size: u64) {
        self.kernel.written(file, offset, data, size);
    }

    pub fn new(kernel: Arc<dyn HostKernel>) -> SessionTokens {
        kernel.session_began();
        SessionTokens { kernel, creating: Mutex::default() }
    }
}

/// What a call needs before it may read or change a file's data.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DataAccess {
    /// The file's token, at this level or above.
    Level(u8),
    /// Nothing: the call is already admitted, and the token stays until it ends.
    Admitted,
}

impl DataAccess {
    pub const READ: DataAccess = DataAccess::Level(level::READ);
    pub const WRITE: DataAccess = DataAccess::Level(level::WRITE);
}

/// Whether a call with this access is admitted now.
pub(super) fn holds(file: &ActiveFile, access: DataAccess) -> bool {
    match access {
        DataAccess::Level(level) => file.hold.state().admits(level),
        DataAccess::Admitted => true,
    }
}

/// A read or write of the kernel's pages, or a truncation during an invalidation, in progress; the token stays until
/// this is dropped.
pub(super) struct PagingGuard<'a>(&'a ActiveFile);

impl Drop for PagingGuard<'_> {
    fn drop(&mut self) {
        self.0.hold.state().page_call_ended();
        self.0.hold.changed.notify_waiters();
    }
}

impl VolumeClient {
    /// Waits until a call is admitted. The level may already be lost again when this returns: see [`holds`].
    pub(super) async fn admit(&self, file: &Arc<ActiveFile>, access: DataAccess) -> Result<(), Error> {
        let DataAccess::Level(level) = access else { return Ok(()) };
        self.wait_for(file, |_| level, |state| state.admits(level)).await
    }

    /// Begins a read for the kernel's page cache.
    pub(super) async fn begin_page_read<'a>(
        &self,
        file: &'a Arc<ActiveFile>,
        range: Range<u64>,
    ) -> Result<PagingGuard<'a>, Error> {
        let begin = |state: &mut TokenHolding| state.begin_page_read(range.clone());
        self.wait_for(file, TokenHolding::page_level, begin).await?;
        Ok(PagingGuard(file))
    }

    /// Begins a write of pages of the kernel's page cache. *Errors*: the session has lost its token, and with it the
    /// data in these pages.
    pub(super) fn begin_page_write<'a>(&self, file: &'a Arc<ActiveFile>) -> Result<PagingGuard<'a>, Error> {
        match file.hold.state().begin_page_write() {
            true => Ok(PagingGuard(file)),
            false => Err(Error::posix(libc::EIO)),
        }
    }

    /// Begins a truncation. `None`: it is admitted as every call, and the level may already be lost again.
    pub(super) async fn begin_truncation<'a>(
        &self,
        file: &'a Arc<ActiveFile>,
    ) -> Result<Option<PagingGuard<'a>>, Error> {
        let mut is_paging = false;
        let begin = |state: &mut TokenHolding| {
            is_paging = state.begin_truncation();
            is_paging || state.admits(level::WRITE)
        };
        self.wait_for(file, |_| level::WRITE, begin).await?;
        Ok(is_paging.then(|| PagingGuard(file)))
    }

    /// Waits until `admit` succeeds; requests the token at `level` if it is not held. The call is a user of the file
    /// meanwhile: without a user, the token would be given back before the call sees it, again and again.
    ///
    /// *Errors*: the session has ended; EBADF if the last handle of the file is closed and its state forgotten.
    async fn wait_for(
        &self,
        file: &Arc<ActiveFile>,
        level: impl Fn(&TokenHolding) -> u8,
        mut admit: impl FnMut(&mut TokenHolding) -> bool,
    ) -> Result<(), Error> {
        if admit(&mut file.hold.state()) {
            return Ok(());
        }
        if !self.use_again(file) {
            return Err(Error::posix(libc::EBADF));
        }
        let admitted = WaitKind::Token.during(file.id.inode, self.wait_as_user(file, level, admit)).await;
        if file.remove_user() {
            let (client, file) = (self.clone(), file.clone());
            tokio::spawn(async move { client.settle(&file).await });
        }
        admitted
    }

    async fn wait_as_user(
        &self,
        file: &Arc<ActiveFile>,
        level: impl Fn(&TokenHolding) -> u8,
        mut admit: impl FnMut(&mut TokenHolding) -> bool,
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
    fn request(&self, file: Arc<ActiveFile>, level: u8) {
        let client = self.clone();
        tokio::spawn(async move {
            let token = Token { object: file.id, what: TokenAspect::Data };
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

    /// Handles the answer to a request for a token.
    pub(super) async fn end_request(&self, file: &Arc<ActiveFile>, granted: Option<FileGrant>) {
        let early = {
            // This must not wait for the lock, because a server that restarts in the meantime must be told of the
            // token. If the lock is not free, the attributes and extents are dropped, and requested when they are
            // needed.
            let content = file.content.try_write().ok();
            let mut state = file.hold.state();
            // A newer server that was told what is held does not know of a grant that comes after that.
            match granted.filter(|grant| grant.epoch == self.shared.session.epoch()) {
                Some(FileGrant { held, is_watched, shape, .. }) => {
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
            if let RecallOutcome::Begin = self.hear(file, recalled) {
                let (client, file) = (self.clone(), file.clone());
                tokio::spawn(async move { client.work(file.id.inode, client.give_back(&file, recalled)).await });
            }
        }
    }

    /// Returns a grant that came without a request.
    pub(super) fn return_unwanted(&self, file: &ActiveFile, sequence: u64) {
        let is_returned = lock(&self.shared.files).refuse(file, sequence);
        if is_returned {
            self.say_returned(file.id, level::NONE, sequence, false);
        }
    }

    /// Decides what a recall requires.
    fn hear(&self, file: &ActiveFile, recalled: Recalled) -> RecallOutcome {
        let heard = file.hold.state().recalled(recalled);
        if let RecallOutcome::Answer(level) = heard {
            self.say_returned(file.id, level, recalled.0, false);
        }
        heard
    }

    fn say_returned(&self, object: FileId, level: u8, sequence: u64, is_lost: bool) {
        let held = TokenGrant { token: Token { object, what: TokenAspect::Data }, level, sequence };
        self.shared.session.say(&VolumeMessage::Return { held, is_lost });
    }

    /// Does what a recall requires.
    async fn give_back(&self, file: &Arc<ActiveFile>, recalled: Recalled) {
        let _turn = WaitKind::File.during(file.id.inode, file.hold.giving.lock()).await;
        // An earlier recall may have done it already.
        let RecallOutcome::Begin = self.hear(file, recalled) else { return };
        let (sequence, wanted, why) = recalled;
        match why {
            RecallReason::Conflict => self.give(file, wanted).await,
            RecallReason::Commit => {
                let mut content = WaitKind::File.during(file.id.inode, file.content.write()).await;
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

    /// Gives the token back, or lowers it to a level. The caller holds the lock `giving`.
    async fn give(&self, file: &Arc<ActiveFile>, to: u8) {
        let mut pass = file.hold.state().begin_giving();
        file.hold.changed.notify_waiters();
        while !pass.is_empty() {
            for range in pass {
                // An error means that the mount has ended, and all pages with it.
                let invalidated = self.shared.holds.kernel.invalidate(file.id.inode, range.clone());
                let _ = WaitKind::Kernel.during(file.id.inode, invalidated).await;
                file.hold.state().end_range(&range);
            }
            file.hold.state().end_pass();
            WaitKind::Kernel.during(file.id.inode, self.no_paging(file)).await;
            pass = file.hold.state().next_pass();
            // Wakes reads of pages that the next pass invalidates: they are served under the old level.
            file.hold.changed.notify_waiters();
        }
        let mut content = WaitKind::File.during(file.id.inode, file.content.write()).await;
        let committed = self.commit_locked(file, &mut content).await;
        if let Err(error) = &committed {
            file.failures().note(error.errno());
            self.note_failure(file.id, error);
            self.note_change(file, 0..u64::MAX);
            self.drop_fresh(&mut content, 0).await;
            content.modified_ns = None;
        }
        if to == level::NONE || committed.is_err() {
            if content.is_known {
                self.shared.holds.kernel.released(file.id, content.inode.version);
            }
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

    /// Tells a cache above the client that the caller changes a range of bytes; the caller holds the contents' lock
    /// exclusively.
    pub(super) fn note_change(&self, file: &ActiveFile, range: Range<u64>) {
        self.shared.holds.kernel.changed(file.id, range);
    }

    /// Waits until the kernel has no read or write of the file's pages in progress.
    async fn no_paging(&self, file: &ActiveFile) {
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

    /// Notes a new handle with which a program may map the file for writing. Then the kernel drops pages that it read
    /// under a lower level.
    pub(super) async fn add_writer(&self, file: &Arc<ActiveFile>) {
        if file.hold.state().add_writer() {
            let _turn = WaitKind::File.during(file.id.inode, file.hold.giving.lock()).await;
            let level = file.hold.state().level();
            if level == level::READ {
                self.give(file, level::NONE).await;
            }
        }
    }

    /// Gives back the token of a file that is not in use.
    pub(super) async fn give_up(&self, file: &Arc<ActiveFile>) {
        let _turn = WaitKind::File.during(file.id.inode, file.hold.giving.lock()).await;
        let is_held = {
            let state = file.hold.state();
            state.level() != level::NONE && !state.is_acquiring()
        };
        if is_held && !file.is_used() {
            self.give(file, level::NONE).await;
        }
    }

    /// Finds the file that a recall is about. `None`: this client holds nothing of the file, and no
    /// [`Create`](crate::protocol::MetadataOperation::Create) in progress can bring a grant for it.
    fn recalled_file(&self, held: &TokenGrant) -> Option<Arc<ActiveFile>> {
        let mut creating = lock(&self.shared.holds.creating);
        let mut files = lock(&self.shared.files);
        let file = files.get(held.token.object).filter(|_| held.token.what == TokenAspect::Data).cloned();
        if file.is_none() {
            // A state that is made from now on must not take this grant: the caller returns it.
            files.note_returned(held.sequence);
            if creating.calls > 0 {
                creating.returned.insert(held.token.object, held.sequence);
            }
        }
        file
    }

    /// Creates a file by `operation`, which also opens it; takes the token if the answer contains it.
    pub(super) async fn create_held(
        &self,
        operation: MetadataOperation,
    ) -> Result<(InodeAttributes, Arc<ActiveFile>), Error> {
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

    /// Says something to the server when the kernel has forgotten what the session gives back, or after the time in which
    /// the kernel shows it.
    fn say_later(
        &self,
        recalls: &mut JoinSet<()>,
        object: FileId,
        wait: Option<(Option<oneshot::Receiver<()>>, Duration)>,
        message: VolumeMessage,
    ) {
        let wait = wait.filter(|_| !planted(Bug::ReturnedUnforgotten));
        let Some((forgotten, left)) = wait else { return self.shared.session.say(&message) };
        let client = self.clone();
        recalls.spawn(async move {
            let forgotten = async {
                match forgotten {
                    // An error means that the mount has ended, and with it what the kernel cached.
                    Some(forgotten) => drop(forgotten.await),
                    None => std::future::pending().await,
                }
            };
            let _ = WaitKind::Kernel.during(object.inode, tokio::time::timeout(left, forgotten)).await;
            client.shared.session.say(&message);
        });
    }

    /// Handles the events that the session sends, until their channel closes.
    pub(super) async fn serve_events(&self, mut events: mpsc::UnboundedReceiver<ServerEvent>) {
        let mut recalls = JoinSet::new();
        while let Some(event) = events.recv().await {
            match event {
                ServerEvent::Durable(sequence) => self.shared.session.set_drained(sequence),
                // The server lets nobody change what it wants back before it hears this.
                ServerEvent::Recalled(held, _)
                    if matches!(held.token.what, TokenAspect::Directory | TokenAspect::Attributes) =>
                {
                    while recalls.try_join_next().is_some() {}
                    let token = held.token;
                    self.shared.session.looks().recalled(token);
                    let back =
                        VolumeMessage::Return { held: TokenGrant { level: level::NONE, ..held }, is_lost: false };
                    let kernel = &self.shared.holds.kernel;
                    let wait = match token.what {
                        TokenAspect::Directory => kernel.names_end(token.object).map(|left| (None, left)),
                        _ => kernel.forget_attributes(token.object).map(|forgotten| (Some(forgotten), SHOWN_MAX)),
                    };
                    self.say_later(&mut recalls, token.object, wait, back);
                }
                ServerEvent::NameChange(directory, name, number) => {
                    while recalls.try_join_next().is_some() {}
                    self.shared.session.looks().name_changes(directory, &name);
                    let wait = self.shared.holds.kernel.forget_name(directory, &name);
                    let wait = wait.map(|(forgotten, left)| (Some(forgotten), left));
                    self.say_later(&mut recalls, directory, wait, VolumeMessage::NameDropped { number });
                }
                ServerEvent::Recalled(held, why) => {
                    while recalls.try_join_next().is_some() {}
                    let recalled = (held.sequence, held.level, why);
                    let Some(file) = self.recalled_file(&held) else {
                        self.say_returned(held.token.object, level::NONE, held.sequence, false);
                        continue;
                    };
                    if let RecallOutcome::Begin = self.hear(&file, recalled) {
                        let client = self.clone();
                        recalls.spawn(async move {
                            client.work(file.id.inode, client.give_back(&file, recalled)).await;
                        });
                    }
                }
                ServerEvent::NumbersWanted => {
                    while recalls.try_join_next().is_some() {}
                    let client = self.clone();
                    recalls.spawn(async move { client.shared.session.request_numbers().await });
                }
                ServerEvent::Lapsed => drop(self.shared.holds.kernel.forget_lists()),
                ServerEvent::Push(file, size, number) => {
                    let client = self.clone();
                    tokio::spawn(async move {
                        client.show_end(file.inode, size).await;
                        client.shared.session.say(&VolumeMessage::Pushed { number });
                    });
                }
                // After two restarts in a row, the last server was told everything for the first of these events: locks that
                // were granted since are not told again, as they may be released meanwhile.
                ServerEvent::Restarted if !self.shared.session.is_reclaiming() => {}
                ServerEvent::Restarted => {
                    let epoch = self.shared.session.epoch();
                    // The session has dropped what it keeps. The server lets nobody change that before it hears that the
                    // kernel has dropped it, too.
                    if let Some(pause) = self.shared.holds.kernel.all_ends() {
                        WaitKind::Kernel.during(0, tokio::time::sleep(pause)).await;
                    }
                    if let Some(forgotten) = self.shared.holds.kernel.forget_lists() {
                        let _ = WaitKind::Kernel.during(0, forgotten).await;
                    }
                    self.shared.session.reclaim(epoch, Vec::new(), false).await;
                    // A newer server has its own event.
                    if !self.open_all_again(epoch).await {
                        continue;
                    }
                    self.reclaim(epoch).await;
                    self.shared.session.want_numbers();
                }
            }
        }
    }

    /// Handles the end of the session: no token is held any more, and when this returns the kernel has no page that was
    /// read under one. Pages that the kernel still writes back are refused.
    pub async fn drop_pages(&self) {
        drop(self.shared.holds.kernel.forget_lists());
        let mut with_pages = Vec::new();
        for file in self.files() {
            if file.hold.state().lose() {
                with_pages.push(file.id.inode);
            }
            file.hold.changed.notify_waiters();
        }
        // Every call that waits for a token has failed before the first invalidation is waited for: the kernel may
        // finish it only then.
        for inode in with_pages {
            let _ = WaitKind::Kernel.during(inode, self.shared.holds.kernel.invalidate(inode, 0..u64::MAX)).await;
        }
    }

    /// Tells this host's kernel about the end of a file. It does not wait for more than [`GROW_TIME_MAX`], so that a
    /// slow read of a page does not delay other calls.
    pub(super) async fn show_end(&self, inode: u64, size: u64) {
        let _ = tokio::time::timeout(GROW_TIME_MAX, self.shared.holds.kernel.grow(inode, size)).await;
    }

    /// After a call moved the end of a file, waits until the kernels of other hosts that read the file with `O_DIRECT`
    /// know the new end. It must be called without locks, because these kernels may first wait for the token.
    pub(super) async fn push_end(&self, file: &ActiveFile, end: u64) -> Result<(), Error> {
        if file.is_watched.load(Ordering::Acquire) {
            let pushed = self.look(MetadataQuestion::Push { file: file.id, size: end }).await;
            pushed.map_err(Error::after_change)?;
        }
        Ok(())
    }

    pub(super) fn files(&self) -> Vec<Arc<ActiveFile>> {
        lock(&self.shared.files).active.values().cloned().collect()
    }

    /// Tells a restarted server which locks and tokens are held.
    async fn reclaim(&self, epoch: u64) {
        for file in self.files() {
            self.reclaim_locks(&file, epoch).await;
        }
        let held = |file: &Arc<ActiveFile>| {
            let state = file.hold.state();
            let token = Token { object: file.id, what: TokenAspect::Data };
            let held = TokenGrant { token, level: state.level(), sequence: state.sequence() };
            (held.level != level::NONE).then_some(held)
        };
        let all: Vec<TokenGrant> = self.files().iter().filter_map(held).collect();
        let mut parts: Vec<Vec<TokenGrant>> = all.chunks(RECLAIMED_MAX).map(<[TokenGrant]>::to_vec).collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            self.shared.session.reclaim(epoch, part, false).await;
        }
        self.shared.session.reclaim(epoch, last, true).await;
        self.shared.session.reclaimed(epoch);
    }
}
