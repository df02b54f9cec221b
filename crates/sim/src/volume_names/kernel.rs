//! The kernel of a host, as far as it caches names and attributes: dentries with a time, attributes with a time and a
//! version, and the locks of directories.
//!
//! Owns: the rules of Linux 6.18 for FUSE. A name is shown until its time is over; a rename takes the name and its time
//! along. Attributes are applied only if they were requested after the last that were applied, and after the kernel was
//! told to forget; those of CREATE, LINK and SETATTR are applied in any case. A name is forgotten under the lock of its
//! directory; a look-up of a name that the kernel does not have holds the lock shared, a change holds it alone, and a
//! look-up of a name whose time is over holds no lock. While a host's own change is under way, its kernel may show what
//! was there before it ([`OwnChange`]). Leaves to others: the mount's process (`mount`).

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_volume::client::{self, GivenName, GivenNames, SHOWN_MAX};
use nectary_volume::protocol::{FileId, InodeAttributes};
use tokio::sync::{RwLock, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::random::SimulationRandom;

/// The pause before the kernel is told again to forget an inode that it does not know yet.
const AGAIN: Duration = Duration::from_micros(200);

/// The inode of a name that is shown as absent.
pub const ABSENT: FileId = FileId { inode: u64::MAX, generation: 1 };

/// A name that the kernel knows.
#[derive(Debug, Clone, Copy)]
struct Dentry {
    /// It stays the same when the name moves.
    identity: u64,
    inode: FileId,
    until: Instant,
}

/// An inode that the kernel knows.
#[derive(Debug, Clone)]
struct KernelInode {
    shown: InodeAttributes,
    until: Instant,
    version: u64,
}

#[derive(Default)]
struct KernelState {
    dentries: HashMap<(FileId, Vec<u8>), Dentry>,
    nodes: HashMap<FileId, KernelInode>,
    /// Counts what is applied and forgotten.
    version: u64,
    identities: u64,
    /// The inodes of answers that the kernel has not applied yet.
    under_way: HashMap<FileId, u32>,
    /// Where directories were found last.
    places: HashMap<FileId, (FileId, Vec<u8>)>,
    /// The names and inodes that own changes under way change, and how many of these remove names.
    changing_names: HashMap<(FileId, Vec<u8>), u32>,
    changing: HashMap<FileId, u32>,
    removals: u32,
}

/// A change of names or attributes by this host that is under way: of what it changes nobody may rely on the kernel.
pub struct OwnChange {
    kernel: Arc<KernelModel>,
    names: Vec<(FileId, Vec<u8>)>,
    inodes: Vec<FileId>,
    /// Whether an inode loses a name, which may be another one than the kernel thinks.
    is_removal: bool,
}

impl OwnChange {
    /// Begins a change.
    pub fn begin(
        kernel: &Arc<KernelModel>,
        names: &[(FileId, &[u8])],
        inodes: &[FileId],
        is_removal: bool,
    ) -> OwnChange {
        let names: Vec<_> = names.iter().map(|(directory, name)| (*directory, name.to_vec())).collect();
        let mut state = lock(&kernel.state);
        names.iter().for_each(|name| *state.changing_names.entry(name.clone()).or_default() += 1);
        inodes.iter().for_each(|inode| *state.changing.entry(*inode).or_default() += 1);
        state.removals += u32::from(is_removal);
        OwnChange { kernel: kernel.clone(), names, inodes: inodes.to_vec(), is_removal }
    }
}

impl Drop for OwnChange {
    fn drop(&mut self) {
        let mut state = lock(&self.kernel.state);
        self.names.iter().for_each(|name| one_less(&mut state.changing_names, name));
        self.inodes.iter().for_each(|inode| one_less(&mut state.changing, inode));
        state.removals -= u32::from(self.is_removal);
    }
}

fn one_less<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// The kernel of a host, and what it was given with a time.
pub struct KernelModel {
    state: Mutex<KernelState>,
    given: Mutex<GivenNames>,
    locks: Mutex<HashMap<FileId, Arc<RwLock<()>>>>,
    random: Mutex<SimulationRandom>,
    /// How long the request of the next rename waits for the mount's process.
    late: Mutex<Duration>,
    /// The number of threads that have made calls.
    threads: AtomicU32,
    /// Names and attributes that were shown without a request, and names that were forgotten.
    pub hits: AtomicU64,
    pub forgotten: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KernelModel {
    /// Makes a kernel that knows nothing.
    pub fn new(seed: u64) -> Arc<KernelModel> {
        Arc::new(KernelModel {
            state: Mutex::default(),
            given: Mutex::default(),
            locks: Mutex::default(),
            random: Mutex::new(SimulationRandom::new(seed)),
            late: Mutex::default(),
            threads: AtomicU32::new(0),
            hits: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
        })
    }

    /// What the kernel was given with a time.
    pub fn given(&self) -> MutexGuard<'_, GivenNames> {
        lock(&self.given)
    }

    /// Returns the number of a new thread.
    pub fn new_thread(&self) -> u32 {
        self.threads.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for a moment; sometimes for long.
    pub async fn pause(&self) {
        let pause = {
            let mut random = lock(&self.random);
            match random.below(40) {
                0 => random.below(300_000),
                1..10 => random.below(10_000),
                _ => random.below(300),
            }
        };
        sleep(Duration::from_micros(pause)).await;
    }

    /// Lets the request of the next rename wait for the mount's process.
    pub fn delay_next(&self, by: Duration) {
        *lock(&self.late) = by;
    }

    /// Waits until the mount's process takes the request of a rename.
    pub async fn taken(&self) {
        let late = std::mem::take(&mut *lock(&self.late));
        if !late.is_zero() {
            sleep(late).await;
        }
    }

    /// The lock of a directory.
    pub fn lock_of(&self, directory: FileId) -> Arc<RwLock<()>> {
        lock(&self.locks).entry(directory).or_default().clone()
    }

    /// Returns the version of a request that is about to be sent.
    pub fn version(&self) -> u64 {
        lock(&self.state).version
    }

    /// Returns the inode of a name that may be shown, with its attributes as they were known last.
    pub fn shown_name(&self, directory: FileId, name: &[u8]) -> Option<InodeAttributes> {
        let state = lock(&self.state);
        let dentry = state.dentries.get(&(directory, name.to_vec())).filter(|dentry| dentry.until > Instant::now())?;
        let node = state.nodes.get(&dentry.inode)?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(node.shown.clone())
    }

    /// Whether a name is what the kernel shows: no own change of it is under way.
    pub fn is_name_sure(&self, directory: FileId, name: &[u8]) -> bool {
        !lock(&self.state).changing_names.contains_key(&(directory, name.to_vec()))
    }

    /// Whether the attributes of an inode are what the kernel shows: no own change of them is under way.
    pub fn is_sure(&self, file: FileId) -> bool {
        let state = lock(&self.state);
        state.removals == 0 && !state.changing.contains_key(&file)
    }

    /// Whether the kernel shows that there is no such name: it does if a planted bug has told it so.
    pub fn is_shown_absent(&self, directory: FileId, name: &[u8]) -> bool {
        let state = lock(&self.state);
        let dentry = state.dentries.get(&(directory, name.to_vec()));
        dentry.is_some_and(|dentry| dentry.inode == ABSENT && dentry.until > Instant::now())
    }

    /// Returns attributes that may be shown.
    pub fn shown(&self, file: FileId) -> Option<InodeAttributes> {
        let state = lock(&self.state);
        let node = state.nodes.get(&file).filter(|node| node.until > Instant::now())?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(node.shown.clone())
    }

    /// Returns the identity of a name that the kernel has, whether it may show it or not.
    pub fn identity(&self, directory: FileId, name: &[u8]) -> Option<u64> {
        lock(&self.state).dentries.get(&(directory, name.to_vec())).map(|dentry| dentry.identity)
    }

    /// Notes that an answer about an inode is on its way to the kernel, until [`arrived`](Self::arrived).
    pub fn answer(&self, file: FileId) {
        *lock(&self.state).under_way.entry(file).or_default() += 1;
    }

    /// Applies attributes. `version`: that of the request; `None`: they are applied in any case.
    pub fn arrived(&self, found: &InodeAttributes, valid: Duration, version: Option<u64>) {
        let mut state = lock(&self.state);
        let file = found.id();
        if let Some(count) = state.under_way.get_mut(&file) {
            *count -= 1;
            if *count == 0 {
                state.under_way.remove(&file);
            }
        }
        let is_old = |node: &KernelInode| version.is_some_and(|version| node.version > version);
        if state.nodes.get(&file).is_some_and(is_old) {
            return;
        }
        state.version += 1;
        let node = KernelInode { shown: found.clone(), until: Instant::now() + valid, version: state.version };
        state.nodes.insert(file, node);
    }

    /// Applies a name. A directory has one place.
    pub fn add_name(&self, directory: FileId, name: &[u8], inode: FileId, (is_directory, valid): (bool, Duration)) {
        let mut state = lock(&self.state);
        if is_directory {
            state.dentries.retain(|_, dentry| dentry.inode != inode);
        }
        state.identities += 1;
        let dentry = Dentry { identity: state.identities, inode, until: Instant::now() + valid };
        state.dentries.insert((directory, name.to_vec()), dentry);
    }

    /// Applies the answer to a look-up of a name that the kernel has. Returns whether it is still the same file: otherwise
    /// the name is dropped.
    pub fn revalidated(&self, identity: Option<u64>, answer: Option<(FileId, Duration)>) -> bool {
        let mut state = lock(&self.state);
        let found = state.dentries.iter().find(|(_, dentry)| Some(dentry.identity) == identity);
        let Some((key, dentry)) = found.map(|(key, dentry)| (key.clone(), *dentry)) else { return answer.is_some() };
        match answer.filter(|(inode, _)| *inode == dentry.inode) {
            Some((_, valid)) => {
                state.dentries.insert(key, Dentry { until: Instant::now() + valid, ..dentry });
                true
            }
            None => {
                state.dentries.remove(&key);
                false
            }
        }
    }

    /// Looks up a name at its next use.
    pub fn expire_name(&self, directory: FileId, name: &[u8]) {
        if let Some(dentry) = lock(&self.state).dentries.get_mut(&(directory, name.to_vec())) {
            dentry.until = Instant::now();
        }
    }

    /// Drops a name.
    pub fn drop_name(&self, directory: FileId, name: &[u8]) {
        lock(&self.state).dentries.remove(&(directory, name.to_vec()));
    }

    /// Moves a name with its time; exchanges two.
    pub fn move_name(&self, from: (FileId, &[u8]), to: (FileId, &[u8]), is_exchange: bool) {
        let mut state = lock(&self.state);
        let keys = [from, to].map(|(directory, name)| (directory, name.to_vec()));
        let [old, new] = [&keys[0], &keys[1]].map(|key| state.dentries.remove(key));
        let [from, to] = keys;
        if let Some(dentry) = old {
            state.places.insert(dentry.inode, to.clone());
            state.dentries.insert(to, dentry);
        }
        if let Some(dentry) = new.filter(|_| is_exchange) {
            state.places.insert(dentry.inode, from.clone());
            state.dentries.insert(from, dentry);
        }
    }

    /// Marks the attributes of an inode as old: an own change did that.
    pub fn mark(&self, file: FileId) {
        if let Some(node) = lock(&self.state).nodes.get_mut(&file) {
            node.until = Instant::now();
        }
    }

    /// Forgets the attributes of an inode. Returns whether the kernel has it.
    pub fn invalidate(&self, file: FileId) -> bool {
        let mut state = lock(&self.state);
        state.version += 1;
        let version = state.version;
        let Some(node) = state.nodes.get_mut(&file) else { return false };
        (node.until, node.version) = (Instant::now(), version);
        true
    }

    /// Forgets the attributes of an inode; if an answer that is on its way makes it known to the kernel, after that.
    pub async fn forget_attributes(&self, file: FileId) {
        let until = Instant::now() + SHOWN_MAX;
        while !self.invalidate(file) && self.is_under_way(file) && Instant::now() < until {
            sleep(AGAIN).await;
        }
    }

    /// Whether the kernel knows a directory at this place alone; a new place is noted.
    pub fn is_settled(&self, file: FileId, is_directory: bool, place: (FileId, &[u8])) -> bool {
        if !is_directory {
            return true;
        }
        let place = (place.0, place.1.to_vec());
        lock(&self.state).places.insert(file, place.clone()).is_none_or(|before| before == place)
    }

    fn is_under_way(&self, file: FileId) -> bool {
        lock(&self.state).under_way.contains_key(&file)
    }

    fn knows(&self, file: FileId) -> bool {
        lock(&self.state).nodes.contains_key(&file)
    }
}

/// The kernel as the client sees it, through the mount's process.
pub struct NotifiedKernel(pub Arc<KernelModel>);

impl client::HostKernel for NotifiedKernel {
    fn invalidate(&self, _: u64, _: Range<u64>) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }

    fn grow(&self, _: u64, _: u64) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }

    fn forget_name(&self, directory: FileId, name: &[u8]) -> Option<(oneshot::Receiver<()>, Duration)> {
        let left = self.0.given().forget_name(directory, name)?;
        let (done, is_done) = oneshot::channel();
        let (kernel, name) = (self.0.clone(), name.to_vec());
        tokio::spawn(async move {
            kernel.pause().await;
            let _alone = kernel.lock_of(directory).write_owned().await;
            kernel.drop_name(directory, &name);
            kernel.given().name_forgotten(directory, &name);
            kernel.forgotten.fetch_add(1, Ordering::Relaxed);
            let _ = done.send(());
        });
        Some((is_done, left))
    }

    fn names_end(&self, directory: FileId) -> Option<Duration> {
        self.0.given().names_end(directory)
    }

    fn forget_attributes(&self, file: FileId) -> Option<oneshot::Receiver<()>> {
        if !self.0.knows(file) && !self.0.is_under_way(file) {
            return None;
        }
        let (done, is_done) = oneshot::channel();
        let (kernel, names) = (self.0.clone(), self.0.given().names_of(file));
        tokio::spawn(async move {
            kernel.pause().await;
            kernel.forget_attributes(file).await;
            for GivenName { directory, name, left, .. } in names {
                let lock = kernel.lock_of(directory);
                if let Ok(_alone) = timeout(left, lock.write_owned()).await {
                    kernel.expire_name(directory, &name);
                }
            }
            let _ = done.send(());
        });
        Some(is_done)
    }

    fn all_ends(&self) -> Option<Duration> {
        self.0.given().all_ends()
    }
}
