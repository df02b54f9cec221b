//! What the kernel shows of names and attributes without a request.
//!
//! Owns: which names the kernel was given with a time, and the threads that make it forget names and attributes. Promises:
//! when the session gives something back, the kernel shows it no more. Leaves to others: what the session
//! keeps, and its lease (`nectary-volume`).
//!
//! **Attributes** are forgotten without any lock of the kernel. An answer that the kernel applies after it was told to
//! forget changes nothing, because it was requested before; but if the answer makes the inode known to the kernel, there
//! was nothing to forget. So the thread repeats that until the kernel knows the inode, or says that it has forgotten it.
//! With the attributes of an inode the kernel forgets its access control lists, which it shows for any time.
//!
//! **Names** are forgotten under the lock of the directory. A change of a name by this host holds this lock, and may wait
//! for another host, which may wait for this one in the same way. So nobody waits for the lock longer than the kernel
//! shows the name. In a directory that this host changes names are shown for a shorter time; in one that other hosts
//! change, too, for no time. The kernel is never given the absence of a name. Only the name that changes is forgotten:
//! what is mounted on other names stays. An answer about the name that is late changes only what the kernel has dropped.
//!
//! A name that this host renames keeps its time in the kernel. So the session must keep names of the new directory, or
//! the rename waits until the time is over.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nectary_fuse::Notifier;
use nectary_host::log::{Level, Throttle};
use nectary_volume::client::{Client, SHOWN_MAX};
use nectary_volume::protocol::{Attributes, FileId};
use tokio::sync::oneshot;

use super::nodes::Nodes;

/// The longest time for which names are given in a directory that this host has changed lately, and for which the kernel
/// shows them then, also if it begins to count late.
const CHANGED_TIMES: (Duration, Duration) = (Duration::from_millis(125), Duration::from_millis(500));
/// A change of a directory counts for so long.
const CHANGE_TIME: Duration = Duration::from_secs(10);
/// The maximum number of changed directories that are remembered.
const CHANGED_MAX: usize = 1 << 14;
/// The maximum number of names that are given in [`SHOWN_MAX`].
const GIVEN_MAX: usize = 1 << 15;
/// The minor version of the protocol of Linux 6.14. Kernels before 6.13 may cache attributes of an inode that they have
/// forgotten in between, although they were requested before.
const EXACT_MINOR: u32 = 42;
/// The maximum number of inodes whose access control lists the kernel may cache.
const LISTS_MAX: usize = 1 << 14;
/// The pause before the kernel is told again to forget an inode that it does not know yet.
const AGAIN: Duration = Duration::from_micros(200);
/// The shortest time in which the kernel is given the chance to forget a name.
const FORGET_MIN: Duration = Duration::from_millis(100);
/// The number of threads that forget names: one may wait for the lock of a directory.
const NAME_THREADS: usize = 3;

/// What the kernel must forget, and the sender that reports the end.
enum Request {
    Attributes(FileId, oneshot::Sender<()>),
    Lists(oneshot::Sender<()>),
    Name(FileId, Vec<u8>, oneshot::Sender<()>),
}

/// The names that were given in some time, with the time until which the kernel shows each.
#[derive(Default)]
struct Names {
    all: HashMap<FileId, HashMap<Vec<u8>, Instant>>,
    count: usize,
}

/// When a directory was changed last by this host, and by another one.
#[derive(Default, Clone, Copy)]
struct Changes {
    own: Option<Instant>,
    others: Option<Instant>,
}

/// What the kernel may show. No name is removed before its time is over, as a request to forget it may come twice.
struct Given {
    /// The names that were given since `begun`, and in the time before.
    recent: Names,
    older: Names,
    begun: Instant,
    /// When names or attributes were given last.
    last: Option<Instant>,
    /// Names that are being renamed, and how often: they are not given.
    barred: HashMap<(FileId, Vec<u8>), u32>,
    changes: HashMap<FileId, Changes>,
    /// The inodes whose access control lists the kernel may have cached.
    lists: HashSet<FileId>,
}

impl Given {
    /// Forgets what the kernel does not show any more.
    fn age(&mut self) {
        let age = self.begun.elapsed();
        if age < SHOWN_MAX {
            return;
        }
        let recent = std::mem::take(&mut self.recent);
        self.older = if age < 2 * SHOWN_MAX { recent } else { Names::default() };
        self.begun = Instant::now();
        let is_recent = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < CHANGE_TIME);
        self.changes.retain(|_, changes| is_recent(changes.own) || is_recent(changes.others));
    }

    fn add_name(&mut self, directory: FileId, name: &[u8], until: Instant) {
        self.age();
        self.last = Some(Instant::now());
        let before = self.recent.all.entry(directory).or_default();
        match before.get_mut(name) {
            Some(before) => *before = until.max(*before),
            None => {
                before.insert(name.to_vec(), until);
                self.recent.count += 1;
            }
        }
    }

    /// Returns the time for which a name may be given, and for which the kernel shows it then.
    fn times(&mut self, directory: FileId, name: &[u8]) -> Option<(Duration, Duration)> {
        self.age();
        if self.recent.count >= GIVEN_MAX
            || !self.barred.is_empty() && self.barred.contains_key(&(directory, name.to_vec()))
        {
            return None;
        }
        let Changes { own, others } = self.changes.get(&directory).copied().unwrap_or_default();
        match (own.is_some(), others.is_some()) {
            (true, true) => None,
            (true, false) => Some(CHANGED_TIMES),
            (false, _) => Some((SHOWN_MAX / 2, SHOWN_MAX)),
        }
    }

    /// Notes that what the kernel shows under one name it shows under another one; returns for how long.
    fn carry(&mut self, from: (FileId, &[u8]), to: (FileId, &[u8])) -> Option<Duration> {
        let left = self.shown_for(from.0, from.1)?;
        self.add_name(to.0, to.1, Instant::now() + left);
        Some(left)
    }

    /// Returns for how long the kernel still shows a name.
    fn shown_for(&self, directory: FileId, name: &[u8]) -> Option<Duration> {
        self.known_for(directory, name).filter(|left| !left.is_zero())
    }

    /// Like [`shown_for`](Self::shown_for), but a name whose time ended lately has no time, in case the kernel begins to
    /// count very late.
    fn known_for(&self, directory: FileId, name: &[u8]) -> Option<Duration> {
        let until = |names: &Names| names.all.get(&directory).and_then(|all| all.get(name)).copied();
        let until = until(&self.recent).max(until(&self.older))?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// Notes a change of names in a directory.
    fn note_change(&mut self, directory: FileId, is_own: bool) {
        if self.changes.len() >= CHANGED_MAX && !self.changes.contains_key(&directory) {
            return;
        }
        let changes = self.changes.entry(directory).or_default();
        let last = if is_own { &mut changes.own } else { &mut changes.others };
        *last = Some(Instant::now());
    }
}

/// What the threads need, too.
struct Shared {
    given: Mutex<Given>,
    nodes: OnceLock<Arc<Nodes>>,
    /// Whether the kernel ignores attributes that were requested before it was told to forget them.
    is_exact: AtomicBool,
}

/// What the kernel shows without a request.
pub struct Shown {
    shared: Arc<Shared>,
    attributes: Mutex<Option<Sender<Request>>>,
    names: Mutex<Option<Sender<Request>>>,
    /// For messages that wait for nothing in the kernel.
    direct: Notifier,
}

impl Shown {
    /// Starts the threads; they end after [`stop`](Self::stop).
    pub fn start(
        notifier: impl Fn() -> std::io::Result<Notifier>,
    ) -> std::io::Result<(Arc<Shown>, Vec<JoinHandle<()>>)> {
        let given = Given {
            recent: Names::default(),
            older: Names::default(),
            begun: Instant::now(),
            last: None,
            barred: HashMap::new(),
            changes: HashMap::new(),
            lists: HashSet::new(),
        };
        let shared =
            Arc::new(Shared { given: Mutex::new(given), nodes: OnceLock::new(), is_exact: AtomicBool::new(false) });
        let (attributes, names) = (channel(), channel());
        let (of_attributes, of_names) = (Arc::new(Mutex::new(attributes.1)), Arc::new(Mutex::new(names.1)));
        let queues = std::iter::once(of_attributes).chain(std::iter::repeat_n(of_names, NAME_THREADS));
        let mut threads = Vec::new();
        for queue in queues {
            let (shared, notifier) = (shared.clone(), notifier()?);
            let thread = std::thread::Builder::new().name("nectary-shown".to_owned());
            threads.push(thread.spawn(move || shared.forget(&notifier, &queue))?);
        }
        let (attributes, names) = (Mutex::new(Some(attributes.0)), Mutex::new(Some(names.0)));
        Ok((Arc::new(Shown { shared, attributes, names, direct: notifier()? }), threads))
    }

    /// Sets the nodes that the kernel knows.
    pub fn set_nodes(&self, nodes: Arc<Nodes>) {
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
    pub fn give(&self, client: &Client, found: &Attributes) -> (Attributes, Duration) {
        // What the session keeps is looked at under the lock: if a recall comes later, it finds that this was given.
        let mut given = self.shared.given();
        match client.kept_attributes(found.id()) {
            Some(kept) if !kept.is_changed && self.is_exact() => {
                given.last = Some(Instant::now());
                (kept.attributes, client.kept_for())
            }
            Some(kept) => (kept.attributes, Duration::ZERO),
            None => (found.clone(), Duration::ZERO),
        }
    }

    /// Returns the time for which the kernel may show that this inode has a name.
    pub fn give_name(&self, client: &Client, directory: FileId, name: &[u8], inode: FileId) -> Duration {
        let mut given = self.shared.given();
        let kept = client.kept_name(directory, name).flatten().filter(|kept| kept.attributes.id() == inode);
        if kept.is_none() || !self.is_exact() {
            return Duration::ZERO;
        }
        let Some((time, shown)) = given.times(directory, name) else { return Duration::ZERO };
        given.add_name(directory, name, Instant::now() + shown);
        time.min(client.kept_for())
    }

    /// Notes that this host changes names in a directory.
    pub fn note_change(&self, directory: FileId) {
        self.shared.given().note_change(directory, true);
    }

    /// Begins a rename by this host: what the kernel shows under the old name it shows under the new one. Until
    /// [`end_rename`](Self::end_rename) neither name is given.
    pub async fn begin_rename(&self, client: &Client, from: (FileId, &[u8]), to: (FileId, &[u8])) {
        let pause = {
            let mut given = self.shared.given();
            for (directory, name) in [from, to] {
                *given.barred.entry((directory, name.to_vec())).or_default() += 1;
            }
            given.carry(from, to).filter(|_| !client.keeps_names_of(to.0))
        };
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }

    /// Ends a rename. If the session keeps no names of the new directory any more, waits until the kernel does not show
    /// the new name.
    pub async fn end_rename(&self, client: &Client, from: (FileId, &[u8]), to: (FileId, &[u8])) {
        let pause = {
            let mut given = self.shared.given();
            for (directory, name) in [from, to] {
                let key = (directory, name.to_vec());
                let count = given.barred.entry(key.clone()).or_default();
                *count = count.saturating_sub(1);
                if *count == 0 {
                    given.barred.remove(&key);
                }
            }
            given.carry(from, to).filter(|_| !client.keeps_names_of(to.0))
        };
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
        is_known.then(|| ask(&self.attributes, |done| Request::Attributes(file, done))).flatten()
    }

    /// Notes that the kernel may cache the access control lists of an inode. `false`: there are too many; the kernel is
    /// told to forget them all.
    pub fn note_list(&self, file: FileId) -> bool {
        let is_noted = {
            let mut given = self.shared.given();
            let has_room = given.lists.len() < LISTS_MAX || given.lists.contains(&file);
            if has_room {
                given.lists.insert(file);
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
        if self.shared.given().lists.is_empty() {
            return None;
        }
        ask(&self.attributes, Request::Lists)
    }

    /// Makes the kernel forget a name that another host changes; also returns the time after which the kernel does not
    /// show it any more.
    pub fn forget_name(&self, directory: FileId, name: &[u8]) -> Option<(oneshot::Receiver<()>, Duration)> {
        let left = {
            let mut given = self.shared.given();
            given.note_change(directory, false);
            given.known_for(directory, name)?.max(FORGET_MIN)
        };
        Some((ask(&self.names, |done| Request::Name(directory, name.to_vec(), done))?, left))
    }

    /// Returns the time after which the kernel shows no name of a directory; `None`: it shows none.
    pub fn names_end(&self, directory: FileId) -> Option<Duration> {
        let given = self.shared.given();
        let until = |names: &Names| names.all.get(&directory).and_then(|all| all.values().max()).copied();
        let until = until(&given.recent).max(until(&given.older))?;
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Returns the time after which the kernel shows nothing that it was given; `None`: it shows nothing.
    pub fn all_ends(&self) -> Option<Duration> {
        let last = self.shared.given().last?;
        Some(SHOWN_MAX.saturating_sub(last.elapsed())).filter(|left| !left.is_zero())
    }
}

fn ask(
    requests: &Mutex<Option<Sender<Request>>>,
    request: impl FnOnce(oneshot::Sender<()>) -> Request,
) -> Option<oneshot::Receiver<()>> {
    let (done, is_done) = oneshot::channel();
    let requests = requests.lock().unwrap_or_else(PoisonError::into_inner);
    // If the threads have ended, the mount has ended, too.
    requests.as_ref()?.send(request(done)).ok()?;
    Some(is_done)
}

impl Shared {
    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, notifier: &Notifier, requests: &Mutex<Receiver<Request>>) {
        loop {
            let request = requests.lock().unwrap_or_else(PoisonError::into_inner).recv();
            match request {
                Err(_) => return,
                // Nobody waits for it any more, as the kernel does not show it any more.
                Ok(Request::Name(.., done)) if done.is_closed() => {}
                Ok(Request::Attributes(file, done)) => {
                    self.forget_attributes(notifier, file);
                    let _ = done.send(());
                }
                Ok(Request::Lists(done)) => {
                    let lists = std::mem::take(&mut self.given().lists);
                    lists.into_iter().for_each(|file| self.forget_attributes(notifier, file));
                    let _ = done.send(());
                }
                Ok(Request::Name(directory, name, done)) => {
                    let nodes = self.nodes.get().map(|nodes| nodes.nodes_of(directory)).unwrap_or_default();
                    for node in nodes {
                        self.note_failure(directory, notifier.invalidate_entry(node, &name, false));
                    }
                    let _ = done.send(());
                }
            }
        }
    }

    fn forget_attributes(&self, notifier: &Notifier, file: FileId) {
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
        static FAILED: Throttle = Throttle::every(Duration::from_secs(60));
        if let Err(error) = done {
            let message = format_args!("the kernel keeps what is old of inode {}: {error}", file.inode);
            FAILED.write(Level::Warning, "volume", message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: FileId = FileId { inode: 7, generation: 1 };

    fn given() -> Given {
        Given {
            recent: Names::default(),
            older: Names::default(),
            begun: Instant::now(),
            last: None,
            barred: HashMap::new(),
            changes: HashMap::new(),
            lists: HashSet::new(),
        }
    }

    #[test]
    fn given_names_are_known_until_their_time_is_over() {
        let mut given = given();
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        given.add_name(DIRECTORY, b"name", now + second);
        given.add_name(DIRECTORY, b"name", now);
        assert!(given.shown_for(DIRECTORY, b"name").is_some_and(|left| left > second / 2), "the longer time counts");
        assert_eq!(given.shown_for(DIRECTORY, b"other"), None);
        // It is known while it becomes older, and forgotten then.
        given.begun = now.checked_sub(SHOWN_MAX).expect("the clock is old enough");
        given.age();
        assert!(given.recent.all.is_empty() && given.shown_for(DIRECTORY, b"name").is_some());
        given.begun = now.checked_sub(SHOWN_MAX).expect("the clock is old enough");
        given.age();
        assert_eq!(given.shown_for(DIRECTORY, b"name"), None);
        given.add_name(DIRECTORY, b"past", now);
        assert_eq!(given.shown_for(DIRECTORY, b"past"), None);
    }

    #[test]
    fn times_are_shorter_where_names_change() {
        let mut given = given();
        let times = |given: &mut Given| given.times(DIRECTORY, b"name");
        assert_eq!(times(&mut given), Some((SHOWN_MAX / 2, SHOWN_MAX)));
        given.note_change(DIRECTORY, false);
        assert_eq!(times(&mut given), Some((SHOWN_MAX / 2, SHOWN_MAX)));
        given.note_change(DIRECTORY, true);
        assert_eq!(times(&mut given), None, "both hosts change it");
        given.changes.clear();
        given.note_change(DIRECTORY, true);
        assert_eq!(times(&mut given), Some(CHANGED_TIMES));
        given.barred.insert((DIRECTORY, b"name".to_vec()), 1);
        assert_eq!(times(&mut given), None);
        assert_eq!(given.times(DIRECTORY, b"other"), Some(CHANGED_TIMES));
    }

    #[test]
    fn names_beyond_the_bound_are_not_given() {
        let mut given = given();
        for number in 0..GIVEN_MAX {
            given.add_name(FileId { inode: number as u64 % 100, generation: 1 }, &number.to_be_bytes(), Instant::now());
        }
        assert_eq!(given.times(DIRECTORY, b"name"), None);
    }
}
