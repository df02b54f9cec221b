//! What the kernel shows of names and attributes without a request.
//!
//! Owns: the threads that make the kernel forget names and attributes. Promises: when the session gives something back,
//! the kernel shows it no more. Leaves to others: what the session keeps, its lease, and which names the kernel was given
//! with a time (`nectary-volume`).
//!
//! **Attributes** are forgotten without any lock of the kernel. An answer that the kernel applies after it was told to
//! forget changes nothing, because it was requested before; but if the answer makes the inode known to the kernel, there
//! was nothing to forget. So the thread repeats that until the kernel knows the inode, or says that it has forgotten it.
//! With the attributes of an inode the kernel forgets its access control lists, which it shows for any time.
//!
//! **Names** are forgotten under the lock of the directory. A change of a name by this host holds this lock, and may
//! wait for another host, which may wait for this one in the same way. So nobody waits for the lock longer than the
//! kernel shows the name, and the thread that does so keeps no killed process alive ([`KernelNotifier::apart`]). In a
//! directory that this host changes names are shown for a shorter time; in one that other hosts change, too, for no
//! time. The kernel is never given the absence of a name. Only the name that changes is forgotten: what is mounted on
//! other names stays. An answer about the name that is late changes only what the kernel has dropped. When another host
//! changes an inode, its names are looked up again: with a name that it shows the kernel believes the owner and the
//! mode that it knows, however old, when a program changes them. An open file is no name. These names stay, so the
//! answer to a look-up that the kernel applies late makes it show the name again, although not the attributes. So the
//! kernel is told twice, if the name was given lately; meanwhile the server refuses changes by the owner of before.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nectary_fuse::{FuseChannel, KernelNotifier};
use nectary_host::log::{LogLevel, LogThrottle};
use nectary_volume::client::{EarlierName, GivenName, GivenNames, SHOWN_MAX, VolumeClient};
use nectary_volume::protocol::{FileId, InodeAttributes};
use tokio::sync::oneshot;

use super::caller_calls::{CallerCall, RepeatedRenames};
use super::nodes::VolumeNodes;

/// The minor version of the protocol of Linux 6.14. Kernels before 6.13 may cache attributes of an inode that they have
/// forgotten in between, although they were requested before.
const EXACT_MINOR: u32 = 42;
/// The maximum number of inodes whose access control lists the kernel may cache.
const LISTS_MAX: usize = 1 << 14;
/// The pause before the kernel is told again to forget an inode that it does not know yet.
const AGAIN: Duration = Duration::from_micros(200);
/// The number of threads that forget names: one may wait for the lock of a directory.
const NAME_THREADS: usize = 3;

/// What the kernel must forget, and the sender that reports the end.
enum InvalidationRequest {
    Attributes(FileId, oneshot::Sender<()>),
    Lists(oneshot::Sender<()>),
    /// The flag says that the kernel is only to look the name up again.
    Name(FileId, Vec<u8>, bool, oneshot::Sender<()>),
}

/// What the threads need, too.
struct InvalidationState {
    given: Mutex<GivenNames>,
    /// The inodes whose access control lists the kernel may have cached.
    lists: Mutex<HashSet<FileId>>,
    nodes: OnceLock<Arc<VolumeNodes>>,
    /// Whether the kernel ignores attributes that were requested before it was told to forget them.
    is_exact: AtomicBool,
}

/// What the kernel shows without a request.
pub struct KernelCache {
    shared: Arc<InvalidationState>,
    attributes: Mutex<Option<Sender<InvalidationRequest>>>,
    names: Mutex<Option<Sender<InvalidationRequest>>>,
    /// For messages that wait for nothing in the kernel.
    direct: KernelNotifier,
    /// The renames that the kernel was told to begin once more.
    again: Mutex<RepeatedRenames>,
}

impl KernelCache {
    /// Starts the threads; they end after [`stop`](Self::stop).
    pub fn start(connection: &FuseChannel) -> std::io::Result<(Arc<KernelCache>, Vec<JoinHandle<()>>)> {
        let direct = || connection.again().map(KernelNotifier::new);
        let shared = Arc::new(InvalidationState {
            given: Mutex::default(),
            lists: Mutex::default(),
            nodes: OnceLock::new(),
            is_exact: AtomicBool::new(false),
        });
        let (attributes, names) = (channel(), channel());
        let (of_attributes, of_names) = (Arc::new(Mutex::new(attributes.1)), Arc::new(Mutex::new(names.1)));
        let mut queues = vec![(of_attributes, direct()?)];
        for _ in 0..NAME_THREADS {
            queues.push((of_names.clone(), KernelNotifier::apart(connection)?));
        }
        let mut threads = Vec::new();
        for (queue, notifier) in queues {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name("nectary-shown".to_owned());
            threads.push(thread.spawn(move || shared.forget(&notifier, &queue))?);
        }
        let (attributes, names) = (Mutex::new(Some(attributes.0)), Mutex::new(Some(names.0)));
        Ok((Arc::new(KernelCache { shared, attributes, names, direct: direct()?, again: Mutex::default() }), threads))
    }

    /// Sets the nodes that the kernel knows.
    pub fn set_nodes(&self, nodes: Arc<VolumeNodes>) {
        let _ = self.shared.nodes.set(nodes);
    }

    /// Notes the minor version of the protocol that was agreed. Before, nothing is given.
    pub fn negotiated(&self, minor: u32) {
        self.shared.is_exact.store(minor >= EXACT_MINOR, Ordering::Relaxed);
    }

    fn is_exact(&self) -> bool {
        self.shared.is_exact.load(Ordering::Relaxed)
    }

    /// Tells the threads to end.
    pub fn stop(&self) {
        for requests in [&self.attributes, &self.names] {
            requests.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// Returns the attributes of an inode for an answer, and the time for which the kernel may show them: the session's,
    /// if it keeps them, else `found` for no time.
    pub fn give(&self, client: &VolumeClient, found: &InodeAttributes) -> (InodeAttributes, Duration) {
        // What the session keeps is looked at under the lock: if a recall comes later, it finds that this was given.
        self.shared.given().give(client, found, self.is_exact())
    }

    /// Returns the time for which the kernel may show that this inode has a name.
    pub fn give_name(&self, client: &VolumeClient, directory: FileId, name: &[u8], inode: FileId) -> Duration {
        if !self.is_exact() {
            return Duration::ZERO;
        }
        self.shared.given().give_name(client, directory, name, inode)
    }

    /// Returns an earlier name of an inode, if the kernel may still use that in the call of this thread which now looks up
    /// a name of the same inode ([`EarlierName`]).
    pub fn earlier_name(
        &self,
        thread: u32,
        found: &InodeAttributes,
        directory: FileId,
        name: &[u8],
    ) -> Option<EarlierName> {
        self.shared.given().earlier_name(thread, found, (directory, name))
    }

    /// Notes that a thread is told to begin its call once more.
    pub fn note_begun_again(&self, thread: u32, call: CallerCall) {
        self.again().note(thread, call);
    }

    /// Whether a thread was told to begin this call once more. Then the kernel looks all of its names up by requests, and
    /// may know an inode only by the name that it looked up last.
    pub fn has_begun_again(&self, thread: u32, call: &CallerCall, found: FileId) -> bool {
        self.again().has(thread, call) && !self.shared.given().is_last(thread, found)
    }

    /// Notes that the call of a thread has looked up all of its names.
    pub fn end_call(&self, thread: u32) {
        self.again().end(thread);
    }

    fn again(&self) -> MutexGuard<'_, RepeatedRenames> {
        self.again.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the answer to a thread's look-up of a name. `None`: there is none.
    pub fn note_looked(&self, thread: u32, directory: FileId, name: &[u8], found: Option<FileId>) {
        if found.is_none() {
            self.end_call(thread);
        }
        self.shared.given().note_looked(thread, directory, name, found);
    }

    /// Notes that a thread must look up its names again.
    pub fn note_stale(&self, thread: u32, directory: FileId, name: &[u8], found: FileId) {
        self.shared.given().note_stale(thread, directory, name, found);
    }

    /// Notes that this host changes names in a directory.
    pub fn note_change(&self, directory: FileId) {
        self.shared.given().note_own_change(directory);
    }

    /// Begins a rename by this host: what the kernel shows under the old name it shows under the new one. Until
    /// [`end_rename`](Self::end_rename) neither name is given.
    pub async fn begin_rename(&self, client: &VolumeClient, from: (FileId, &[u8]), to: (FileId, &[u8])) {
        let pause = self.shared.given().begin_rename(client, from, to);
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }

    /// Ends a rename. If the session keeps no names of the new directory any more, waits until the kernel does not show
    /// the new name.
    pub async fn end_rename(&self, client: &VolumeClient, from: (FileId, &[u8]), to: (FileId, &[u8])) {
        let pause = self.shared.given().end_rename(client, from, to);
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }

    /// Makes the kernel forget attributes of an inode that a request names which is not answered yet: so the kernel has it,
    /// and waits for nothing. Returns what remains to be waited for.
    pub fn forget_named(&self, file: FileId) -> Option<oneshot::Receiver<()>> {
        match self.shared.nodes.get()?.nodes_of(file)[..] {
            [] => None,
            [node] if self.direct.invalidate_attributes(node).is_ok_and(|is_known| is_known) => None,
            _ => self.forget(file),
        }
    }

    /// Makes the kernel forget attributes of an inode.
    pub fn forget(&self, file: FileId) -> Option<oneshot::Receiver<()>> {
        let is_known = self.shared.nodes.get().is_some_and(|nodes| !nodes.nodes_of(file).is_empty());
        is_known.then(|| ask(&self.attributes, |done| InvalidationRequest::Attributes(file, done))).flatten()
    }

    /// Makes the kernel forget attributes of an inode that another host changes, and look up again the names that it shows
    /// of it: a program that changes an inode by a shown name is measured by the owner and the mode of before. The names
    /// stay, as do mounts on them and programs that use them.
    pub fn recall(self: &Arc<KernelCache>, file: FileId) -> Option<oneshot::Receiver<()>> {
        let began = tokio::time::Instant::now();
        let attributes = self.forget(file);
        let names = self.shared.given().names_of(file);
        if names.is_empty() {
            return attributes;
        }
        let names: Vec<_> = names.into_iter().filter_map(|given| Some((self.expire(&given)?, given))).collect();
        let (cache, (done, is_done)) = (self.clone(), oneshot::channel());
        tokio::spawn(async move {
            if let Some(attributes) = attributes {
                let _ = attributes.await;
            }
            let mut late = Vec::new();
            for (expired, given) in names {
                let _ = tokio::time::timeout(given.left, expired).await;
                late.extend(Some(given).filter(|given| given.arrives_by > began));
            }
            let _ = done.send(());
            for given in late {
                tokio::time::sleep_until(given.arrives_by).await;
                if let Some(expired) = cache.expire(&given) {
                    let _ = tokio::time::timeout(given.left, expired).await;
                }
            }
        });
        Some(is_done)
    }

    /// Makes the kernel look a name up at its next use.
    fn expire(&self, given: &GivenName) -> Option<oneshot::Receiver<()>> {
        let GivenName { directory, name, .. } = given;
        ask(&self.names, |done| InvalidationRequest::Name(*directory, name.clone(), true, done))
    }

    /// Notes that the kernel may cache the access control lists of an inode. `false`: there are too many; the kernel is
    /// told to forget them all.
    pub fn note_list(&self, file: FileId) -> bool {
        let is_noted = {
            let mut lists = self.shared.lists();
            let has_room = lists.len() < LISTS_MAX || lists.contains(&file);
            if has_room {
                lists.insert(file);
            }
            has_room
        };
        if !is_noted {
            drop(self.forget_lists());
        }
        is_noted
    }

    /// Makes the kernel forget all access control lists.
    pub fn forget_lists(&self) -> Option<oneshot::Receiver<()>> {
        if self.shared.lists().is_empty() {
            return None;
        }
        ask(&self.attributes, InvalidationRequest::Lists)
    }

    /// Makes the kernel forget a name that another host changes; also returns the time after which the kernel does not
    /// show it any more.
    pub fn forget_name(&self, directory: FileId, name: &[u8]) -> Option<(oneshot::Receiver<()>, Duration)> {
        let left = self.shared.given().forget_name(directory, name)?;
        Some((ask(&self.names, |done| InvalidationRequest::Name(directory, name.to_vec(), false, done))?, left))
    }

    /// Returns the time after which the kernel shows no name of a directory; `None`: it shows none.
    pub fn names_end(&self, directory: FileId) -> Option<Duration> {
        self.shared.given().names_end(directory)
    }

    /// Returns the time after which the kernel shows nothing that it was given; `None`: it shows nothing.
    pub fn all_ends(&self) -> Option<Duration> {
        self.shared.given().all_ends()
    }
}

fn ask(
    requests: &Mutex<Option<Sender<InvalidationRequest>>>,
    request: impl FnOnce(oneshot::Sender<()>) -> InvalidationRequest,
) -> Option<oneshot::Receiver<()>> {
    let (done, is_done) = oneshot::channel();
    let requests = requests.lock().unwrap_or_else(PoisonError::into_inner);
    // If the threads have ended, the mount has ended, too.
    requests.as_ref()?.send(request(done)).ok()?;
    Some(is_done)
}

impl InvalidationState {
    fn given(&self) -> MutexGuard<'_, GivenNames> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lists(&self) -> MutexGuard<'_, HashSet<FileId>> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, notifier: &KernelNotifier, requests: &Mutex<Receiver<InvalidationRequest>>) {
        loop {
            let request = requests.lock().unwrap_or_else(PoisonError::into_inner).recv();
            match request {
                Err(_) => return,
                // Nobody waits for it any more, as the kernel does not show it any more.
                Ok(InvalidationRequest::Name(.., done)) if done.is_closed() => {}
                Ok(InvalidationRequest::Attributes(file, done)) => {
                    self.forget_attributes(notifier, file);
                    let _ = done.send(());
                }
                Ok(InvalidationRequest::Lists(done)) => {
                    let lists = std::mem::take(&mut *self.lists());
                    lists.into_iter().for_each(|file| self.forget_attributes(notifier, file));
                    let _ = done.send(());
                }
                Ok(InvalidationRequest::Name(directory, name, expires, done)) => {
                    let nodes = self.nodes.get().map(|nodes| nodes.nodes_of(directory)).unwrap_or_default();
                    let mut is_forgotten = !expires;
                    for node in nodes {
                        let told = notifier.invalidate_entry(node, &name, expires);
                        is_forgotten &= told.is_ok();
                        self.note_failure(directory, told);
                    }
                    if is_forgotten {
                        self.given().name_forgotten(directory, &name);
                    }
                    let _ = done.send(());
                }
            }
        }
    }

    fn forget_attributes(&self, notifier: &KernelNotifier, file: FileId) {
        let Some(nodes) = self.nodes.get() else { return };
        let until = Instant::now() + SHOWN_MAX;
        for node in nodes.nodes_of(file) {
            loop {
                match notifier.invalidate_attributes(node) {
                    Ok(false) if nodes.id(node).is_ok_and(|known| known == file) && Instant::now() < until => {
                        std::thread::sleep(AGAIN);
                    }
                    done => {
                        self.note_failure(file, done.map(drop));
                        break;
                    }
                }
            }
        }
    }

    fn note_failure(&self, file: FileId, done: std::io::Result<()>) {
        static FAILED: LogThrottle = LogThrottle::every(Duration::from_secs(60));
        if let Err(error) = done {
            let message = format_args!("the kernel keeps what is old of inode {}: {error}", file.inode);
            FAILED.write(LogLevel::Warning, "volume", message);
        }
    }
}
