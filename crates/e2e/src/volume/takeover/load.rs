//! The programs of a round: threads that read, write, append, rename, create and lock on each mount.
//!
//! Owns: the files of a round, the threads, and their records. Promises: each value is written once; a thread ends soon
//! after the load is stopped, unless one of its calls does not return. Leaves to others: what the results mean.
//!
//! If a server does not answer, threads that change something soon wait. So other threads only read, each its own file or
//! names, and would show what is stale. A call that fails, because the session was ended, closes its file; the thread
//! then opens the file again.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::history::{Act, Call, NAMES, Outcome, Recorder, SLOTS, TORN, milliseconds, now};
use super::plan::MOUNTS;
use super::sizes::{RECORD_BYTES, record, value_of};

/// The length of a block.
const BLOCK: usize = 4096;
/// The files whose slots are registers: one that every mount writes often, and a quiet one for each mount, which only
/// that mount writes, and rarely, so that the others have it in memory most of the time.
const REGISTERS: u32 = 1 + MOUNTS as u32;
/// The pause between two writes of a quiet file. A long one leaves the file in the memory of the others while a leader
/// that is in trouble still grants. *Units*: milliseconds.
const QUIET_MS: (u64, u64) = (300, 4000);
/// The offsets of the registers of a file; the first two are in one block.
const OFFSETS: [u64; 3] = [0, 8, BLOCK as u64 + 16];
/// The file whose only block is a register that is written with `O_DIRECT`.
const DIRECT: u32 = REGISTERS;
/// The first of the files of counters, one for each lock.
const COUNTERS: u32 = DIRECT + 1;
/// The file of records.
const RECORDS: u32 = COUNTERS + COUNTED;
/// The locks: 0 with `flock`, 1 with `fcntl`, 2 with `flock` and held for long.
const LOCKS: u32 = 3;
/// The locks that have a counter.
const COUNTED: u32 = 2;
/// The lock that is held for long.
const LONG: u32 = 2;
/// The longest time for which a lock is held. *Units*: milliseconds.
const HOLD_MS_MAX: u64 = 6000;
/// The register of the name.
const NAME: u32 = NAMES * SLOTS;
/// The longest pause after a call. *Units*: microseconds.
const PAUSE_US_MAX: u64 = 8000;
/// The pause between two looks whether a lock's session still exists.
const BETWEEN_PROBES: Duration = Duration::from_millis(3);
/// The number of looks of a program that holds a lock for long.
const LONG_PROBES: u64 = 200;
/// The pause after a call that failed.
const AFTER_ERROR: Duration = Duration::from_millis(10);
/// The threads of a mount.
const JOBS: [Job; 14] = [
    write_registers,
    write_quietly,
    |worker| read_directly(worker, 1 + (worker.mount as u32 + 1) % MOUNTS as u32),
    |worker| read_registers(worker, 0),
    |worker| read_registers(worker, 1),
    |worker| read_registers(worker, 2),
    |worker| read_registers(worker, 3),
    append,
    rename,
    claim,
    look,
    lock_whole,
    lock_range,
    hold,
];

/// What a thread does until the load is stopped.
type Job = fn(&Worker);

/// Bytes for direct I/O.
#[repr(align(4096))]
struct Block([u8; BLOCK]);

/// What all threads of a round share.
#[derive(Default)]
struct Common {
    is_over: AtomicBool,
    /// The last value that was written anywhere.
    value: AtomicU64,
    /// The number of the next name to create.
    claim: AtomicU64,
    handle: AtomicU32,
    worker: AtomicU32,
}

/// A thread.
struct Worker {
    common: Arc<Common>,
    recorder: Arc<Recorder>,
    directory: PathBuf,
    mount: usize,
    seed: u64,
}

/// The load of a round.
#[derive(Default)]
pub struct Load {
    common: Arc<Common>,
    recorders: Vec<Arc<Recorder>>,
    threads: Vec<JoinHandle<()>>,
}

/// What a mount shows at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// The contents of the file of records.
    pub records: Vec<u8>,
}

/// Makes the files of a round.
pub fn prepare(directory: &Path) -> Result<()> {
    let make = |name: String, bytes: usize| -> Result<()> {
        let file = File::create(directory.join(name))?;
        file.write_all_at(&vec![0; bytes], 0)?;
        Ok(file.sync_all()?)
    };
    for file in 0..REGISTERS {
        make(format!("register-{file}"), 2 * BLOCK)?;
    }
    make("direct".to_owned(), BLOCK)?;
    make("records".to_owned(), 0)?;
    for lock in 0..LOCKS {
        make(format!("lock-{lock}"), 8)?;
    }
    for lock in 0..COUNTED {
        make(format!("counter-{lock}"), 8)?;
    }
    fs::create_dir(directory.join("names"))?;
    fs::create_dir(directory.join("claims"))?;
    Ok(symlink("0", directory.join("names/current"))?)
}

impl Load {
    /// Starts the threads of one mount.
    pub fn start(&mut self, mount: usize, directory: &Path, seed: u64) {
        for (index, job) in JOBS.into_iter().enumerate() {
            let worker = self.worker(mount, directory, seed.wrapping_add(1 + index as u64));
            self.threads.push(std::thread::spawn(move || job(&worker)));
        }
    }

    fn worker(&mut self, mount: usize, directory: &Path, seed: u64) -> Worker {
        let number = self.common.worker.fetch_add(1, Ordering::Relaxed) as usize;
        let recorder = Arc::new(Recorder::new(mount, number));
        self.recorders.push(recorder.clone());
        Worker { common: self.common.clone(), recorder, directory: directory.to_owned(), mount, seed }
    }

    /// Lets the threads end, and waits for that; calls `meanwhile` again and again. *Errors*: that of `meanwhile`, and
    /// calls that have not returned within the limit.
    pub fn stop(&self, limit: Duration, mut meanwhile: impl FnMut() -> Result<()>) -> Result<()> {
        self.common.is_over.store(true, Ordering::Release);
        let began = Instant::now();
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            meanwhile()?;
            ensure!(began.elapsed() <= limit, "{}", self.pending().join("; "));
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Describes the calls that have not returned.
    fn pending(&self) -> Vec<String> {
        let at = now();
        let pending = self.calls().into_iter().filter(|call| call.outcome == Outcome::Pending);
        let words = pending.map(|call| {
            let since = at.saturating_sub(call.start);
            format!("mount {}: {:?} has not returned for {} ms", call.mount, call.act, milliseconds(since))
        });
        words.collect()
    }

    /// Returns all calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.recorders.iter().flat_map(|recorder| recorder.so_far()).collect()
    }

    /// Reads everything on a mount once more, in a thread. Its calls are in the record, too. *Errors*: as of `stop`.
    pub fn survey(
        &mut self,
        mount: usize,
        directory: &Path,
        limit: Duration,
        meanwhile: impl FnMut() -> Result<()>,
    ) -> Result<Survey> {
        let worker = self.worker(mount, directory, 0);
        let found = Arc::new(Mutex::new(Survey::default()));
        let result = found.clone();
        self.threads.push(std::thread::spawn(move || {
            let survey = survey(&worker);
            *result.lock().unwrap_or_else(PoisonError::into_inner) = survey;
        }));
        self.stop(limit, meanwhile)?;
        let survey = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(survey)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.common.is_over.store(true, Ordering::Release);
    }
}

impl Worker {
    fn is_over(&self) -> bool {
        self.common.is_over.load(Ordering::Acquire)
    }

    fn next_value(&self) -> u64 {
        self.common.value.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn pause(&self, rng: &mut crate::rng::Rng) {
        std::thread::sleep(Duration::from_micros(rng.below(PAUSE_US_MAX)));
    }

    /// A call with a path.
    fn call(&self, act: Act, call: impl FnOnce() -> io::Result<u64>) -> Option<u64> {
        let result = self.recorder.call(0, act, call);
        if result.is_err() {
            std::thread::sleep(AFTER_ERROR);
        }
        result.ok()
    }

    fn handle(&self, name: &str, flags: i32) -> Handle<'_> {
        Handle { worker: self, path: self.directory.join(name), flags, open: None }
    }

    fn registers(&self, flags: i32) -> Vec<Handle<'_>> {
        (0..REGISTERS).map(|file| self.handle(&format!("register-{file}"), flags)).collect()
    }
}

/// A file that is opened at the first call, and again after its session was ended.
struct Handle<'a> {
    worker: &'a Worker,
    path: PathBuf,
    flags: i32,
    open: Option<(File, u32)>,
}

impl Handle<'_> {
    fn opened(&mut self) -> Option<&(File, u32)> {
        if self.open.is_none() {
            let id = self.worker.common.handle.fetch_add(1, Ordering::Relaxed) + 1;
            let mut file = None;
            let mut options = OpenOptions::new();
            options.read(true).write(true).append(self.flags & libc::O_APPEND != 0).custom_flags(self.flags);
            let opened = self.worker.recorder.call(id, Act::Open, || {
                file = Some(options.open(&self.path)?);
                Ok(0)
            });
            if opened.is_err() {
                std::thread::sleep(AFTER_ERROR);
            }
            self.open = file.map(|file| (file, id));
        }
        self.open.as_ref()
    }

    fn calls(&mut self, acts: &[Act], call: impl FnOnce(&File) -> io::Result<Vec<u64>>) -> Option<Vec<u64>> {
        let recorder = self.worker.recorder.clone();
        let (file, id) = self.opened()?;
        let result = recorder.calls(*id, acts, || call(file));
        if result.is_err() {
            self.open = None;
            std::thread::sleep(AFTER_ERROR);
        }
        result.ok()
    }

    fn call(&mut self, act: Act, call: impl FnOnce(&File) -> io::Result<u64>) -> Option<u64> {
        self.calls(&[act], |file| call(file).map(|value| vec![value])).map(|values| values[0])
    }

    fn read(&mut self, register: u32) -> Option<u64> {
        self.call(Act::Read(register), |file| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, offset(register))?;
            Ok(u64::from_le_bytes(bytes))
        })
    }

    fn write(&mut self, register: u32, value: u64) -> Option<u64> {
        self.call(Act::Write(register, value), |file| {
            file.write_all_at(&value.to_le_bytes(), offset(register))?;
            Ok(0)
        })
    }

    fn sync(&mut self, file: u32) -> Option<u64> {
        self.call(Act::Sync(file), |file| file.sync_data().map(|()| 0))
    }

    /// Reads two registers of a file at once, with `O_DIRECT`.
    fn read_block(&mut self, file: u32) {
        let acts = [0, 1].map(|slot| Act::Read(file * SLOTS + slot));
        self.calls(&acts, |file| {
            let block = read_direct(file)?;
            Ok(block.0.chunks_exact(8).take(2).map(number).collect())
        });
    }

    /// Reads the register that is a whole block.
    fn read_whole(&mut self) {
        self.call(Act::Read(DIRECT * SLOTS), |file| {
            let block = read_direct(file)?;
            let value = number(&block.0[..8]);
            Ok(if block.0.chunks_exact(8).all(|bytes| number(bytes) == value) { value } else { TORN })
        });
    }

    fn write_whole(&mut self, value: u64) {
        let mut block = Block([0; BLOCK]);
        block.0.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&value.to_le_bytes()));
        self.call(Act::Write(DIRECT * SLOTS, value), |file| file.write_all_at(&block.0, 0).map(|()| 0));
    }

    /// Finds out whether its session was ended, if it is open.
    fn finish(&mut self, file: u32, register: u32) {
        if self.open.is_some() {
            self.sync(file);
        }
        if self.open.is_some() {
            self.read(register);
        }
    }
}

fn offset(register: u32) -> u64 {
    OFFSETS[(register % SLOTS) as usize]
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(TORN, u64::from_le_bytes)
}

fn read_direct(file: &File) -> io::Result<Block> {
    let mut block = Block([0; BLOCK]);
    file.read_exact_at(&mut block.0, 0)?;
    Ok(block)
}

/// Reads and writes registers, with and without `O_DIRECT`.
fn write_registers(worker: &Worker) {
    let mut rng = crate::rng::Rng::new(worker.seed);
    let (mut files, mut direct) = (worker.registers(0), worker.registers(libc::O_DIRECT));
    let mut whole = worker.handle("direct", libc::O_DIRECT);
    while !worker.is_over() {
        let register = rng.index(OFFSETS.len()) as u32;
        match rng.below(100) {
            0..40 => drop(files[rng.index(REGISTERS as usize)].read_slot(&mut rng)),
            40..52 => drop(files[0].write(register, worker.next_value())),
            52..60 => {
                files[0].write(register, worker.next_value());
                files[0].sync(0);
            }
            60..72 => direct[rng.index(REGISTERS as usize)].read_pair(),
            72..78 => {
                // A file that is opened for one read.
                let index = rng.index(REGISTERS as usize);
                let mut fresh = worker.handle(&format!("register-{index}"), 0);
                fresh.read(index as u32 * SLOTS);
            }
            78..92 => whole.read_whole(),
            _ => {
                whole.write_whole(worker.next_value());
                if rng.chance(0.5) {
                    whole.sync(DIRECT);
                }
            }
        }
        worker.pause(&mut rng);
    }
    for (file, handle) in (0..).zip(&mut files) {
        handle.finish(file, file * SLOTS);
    }
    if whole.open.is_some() {
        whole.sync(DIRECT);
    }
    if whole.open.is_some() {
        whole.read_whole();
    }
}

impl Handle<'_> {
    /// The number of the file of registers that this is.
    fn file_number(&self) -> u32 {
        let name = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default()
    }

    fn read_slot(&mut self, rng: &mut crate::rng::Rng) -> Option<u64> {
        self.read(self.file_number() * SLOTS + rng.index(OFFSETS.len()) as u32)
    }

    fn read_pair(&mut self) {
        self.read_block(self.file_number());
    }
}

/// Only reads one file, mostly from the mount's memory.
fn read_registers(worker: &Worker, file: u32) {
    let mut rng = crate::rng::Rng::new(worker.seed);
    let mut handle = worker.handle(&format!("register-{file}"), 0);
    while !worker.is_over() {
        handle.read_slot(&mut rng);
        worker.pause(&mut rng);
    }
    handle.finish(file, file * SLOTS);
}

/// Writes this mount's quiet file.
fn write_quietly(worker: &Worker) {
    let mut rng = crate::rng::Rng::new(worker.seed);
    let file = 1 + worker.mount as u32;
    let mut handle = worker.handle(&format!("register-{file}"), 0);
    while !worker.is_over() {
        handle.write(file * SLOTS + rng.index(OFFSETS.len()) as u32, worker.next_value());
        if rng.chance(0.3) {
            handle.sync(file);
        }
        let until = Instant::now() + Duration::from_millis(QUIET_MS.0 + rng.below(QUIET_MS.1 - QUIET_MS.0));
        while Instant::now() < until && !worker.is_over() {
            worker.pause(&mut rng);
        }
    }
    handle.finish(file, file * SLOTS);
}

/// Only reads one file, from the disk.
fn read_directly(worker: &Worker, file: u32) {
    let mut rng = crate::rng::Rng::new(worker.seed);
    let mut handle = worker.handle(&format!("register-{file}"), libc::O_DIRECT);
    while !worker.is_over() {
        handle.read_block(file);
        worker.pause(&mut rng);
    }
    if handle.open.is_some() {
        handle.read_block(file);
    }
}

/// Only looks at names, and at a size.
fn look(worker: &Worker) {
    let mut rng = crate::rng::Rng::new(worker.seed);
    let path = worker.directory.join("records");
    while !worker.is_over() {
        match rng.below(3) {
            0 => read_name(worker),
            1 => find(worker, worker.common.claim.load(Ordering::Acquire).saturating_sub(rng.below(4))),
            _ => drop(worker.call(Act::Size, || Ok(fs::metadata(&path)?.len()))),
        }
        worker.pause(&mut rng);
    }
}

/// Appends records, and asks for sizes.
fn append(worker: &Worker) {
    let mut rng = crate::rng::Rng::new(worker.seed);
    let mut file = worker.handle("records", libc::O_APPEND);
    let path = worker.directory.join("records");
    while !worker.is_over() {
        match rng.below(100) {
            0..20 => {
                let value = worker.next_value();
                file.call(Act::Append(value), |file| {
                    // One call: `write_all` would write the rest of a short write elsewhere.
                    let written = io::Write::write(&mut &*file, &record(value))?;
                    if written as u64 == RECORD_BYTES { Ok(0) } else { Err(io::Error::from_raw_os_error(libc::EIO)) }
                });
                if rng.chance(0.4) {
                    file.sync(RECORDS);
                }
            }
            20..50 => drop(file.call(Act::Size, |file| Ok(file.metadata()?.len()))),
            50..80 => drop(worker.call(Act::Size, || Ok(fs::metadata(&path)?.len()))),
            _ => tail(&mut file),
        }
        worker.pause(&mut rng);
    }
    if file.open.is_some() {
        file.sync(RECORDS);
    }
    if file.open.is_some() {
        tail(&mut file);
    }
}

fn tail(file: &mut Handle<'_>) {
    file.call(Act::Tail, |file| {
        let size = file.metadata()?.len();
        let mut bytes = [0; RECORD_BYTES as usize];
        let at = size.saturating_sub(RECORD_BYTES);
        let count = if size == 0 { RECORD_BYTES as usize } else { file.read_at(&mut bytes, at)? };
        match (size, count as u64) {
            // There is no record yet.
            (0, _) => Ok(1),
            (_, RECORD_BYTES) => Ok(value_of(&bytes)),
            (_, 0) => Ok(0),
            _ => Ok(TORN),
        }
    });
}

/// Replaces a name, and looks where it leads.
fn rename(worker: &Worker) {
    let mut rng = crate::rng::Rng::new(worker.seed);
    let current = worker.directory.join("names/current");
    while !worker.is_over() {
        if rng.chance(0.25) {
            let value = worker.next_value();
            let new = worker.directory.join(format!("names/new-{value}"));
            if worker.call(Act::Other, || symlink(value.to_string(), &new).map(|()| 0)).is_some() {
                worker.call(Act::Write(NAME, value), || fs::rename(&new, &current).map(|()| 0));
            }
        } else {
            read_name(worker);
        }
        worker.pause(&mut rng);
    }
}

fn read_name(worker: &Worker) {
    let current = worker.directory.join("names/current");
    worker.call(Act::Read(NAME), || {
        let target = fs::read_link(&current)?;
        Ok(target.to_str().and_then(|target| target.parse().ok()).unwrap_or(TORN))
    });
}

/// Creates files that must not exist, and looks for them.
fn claim(worker: &Worker) {
    let mut rng = crate::rng::Rng::new(worker.seed);
    let next = &worker.common.claim;
    while !worker.is_over() {
        let number = next.load(Ordering::Acquire);
        if rng.chance(0.15) {
            let path = worker.directory.join(format!("claims/{number}"));
            worker.call(Act::Claim(number), || match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(_) => Ok(1),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(0),
                Err(error) => Err(error),
            });
            next.fetch_max(number + 1, Ordering::AcqRel);
        } else {
            find(worker, number.saturating_sub(rng.below(4)));
        }
        worker.pause(&mut rng);
    }
}

fn find(worker: &Worker, number: u64) {
    let path = worker.directory.join(format!("claims/{number}"));
    worker.call(Act::Find(number), || match fs::symlink_metadata(&path) {
        Ok(_) => Ok(1),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    });
}

fn lock_whole(worker: &Worker) {
    count(worker, 0, set_whole);
}

fn set_whole(file: &File, is_locked: bool) -> io::Result<u64> {
    let operation = if is_locked { libc::LOCK_EX } else { libc::LOCK_UN };
    // SAFETY: a plain system call on a file that is open.
    match unsafe { libc::flock(file.as_raw_fd(), operation) } {
        0 => Ok(0),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes a lock, and holds it for long.
fn hold(worker: &Worker) {
    let mut rng = crate::rng::Rng::new(worker.seed);
    let mut locked = worker.handle(&format!("lock-{LONG}"), 0);
    while !worker.is_over() {
        if locked.call(Act::Lock(LONG), |file| set_whole(file, true)).is_none() {
            continue;
        }
        let until = Instant::now() + Duration::from_millis(rng.below(HOLD_MS_MAX));
        while locked.open.is_some() && Instant::now() < until && !worker.is_over() {
            probe(&mut locked);
        }
        if locked.open.is_some() {
            locked.call(Act::Unlock(LONG), |file| set_whole(file, false));
        }
        worker.pause(&mut rng);
    }
}

/// Looks whether the session of a lock still exists.
fn probe(locked: &mut Handle<'_>) {
    std::thread::sleep(BETWEEN_PROBES);
    locked.call(Act::Probe, |file| file.read_at(&mut [0; 8], 0).map(|count| count as u64));
}

fn lock_range(worker: &Worker) {
    count(worker, 1, |file, is_locked| {
        // SAFETY: zeroes are a valid lock.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = if is_locked { libc::F_WRLCK } else { libc::F_UNLCK } as i16;
        (lock.l_whence, lock.l_len) = (libc::SEEK_SET as i16, 8);
        // SAFETY: the descriptor and the lock live across the call.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLKW, &lock) } {
            0 => Ok(0),
            _ => Err(io::Error::last_os_error()),
        }
    });
}

/// Takes a lock again and again; meanwhile it increments a counter, and looks whether its session still exists.
fn count(worker: &Worker, lock: u32, set: impl Fn(&File, bool) -> io::Result<u64>) {
    let mut rng = crate::rng::Rng::new(worker.seed);
    let mut locked = worker.handle(&format!("lock-{lock}"), 0);
    let mut counter = worker.handle(&format!("counter-{lock}"), 0);
    let register = (COUNTERS + lock) * SLOTS;
    while !worker.is_over() {
        if locked.call(Act::Lock(lock), |file| set(file, true)).is_none() {
            continue;
        }
        let probes = if rng.chance(0.03) { LONG_PROBES } else { 1 + rng.below(4) };
        for _ in 0..probes {
            if locked.open.is_some() {
                probe(&mut locked);
            }
        }
        let Some(before) = counter.read(register).filter(|_| locked.open.is_some()) else {
            locked.open = None;
            continue;
        };
        let value = ((before >> 32) + 1) << 32 | worker.next_value();
        let is_counted = counter.write(register, value).is_some() && counter.sync(COUNTERS + lock).is_some();
        if is_counted {
            locked.call(Act::Unlock(lock), |file| set(file, false));
        } else {
            // Closing the file releases its lock.
            locked.open = None;
        }
        std::thread::sleep(Duration::from_millis(5 + rng.below(20)));
    }
}

/// Reads everything once through new handles.
fn survey(worker: &Worker) -> Survey {
    let mut survey = Survey::default();
    for (file, mut handle) in (0..).zip(worker.registers(0)) {
        for slot in 0..OFFSETS.len() as u32 {
            handle.read(file * SLOTS + slot);
        }
    }
    worker.handle("direct", libc::O_DIRECT).read_whole();
    for lock in 0..COUNTED {
        worker.handle(&format!("counter-{lock}"), 0).read((COUNTERS + lock) * SLOTS);
    }
    read_name(worker);
    (0..worker.common.claim.load(Ordering::Acquire)).for_each(|number| find(worker, number));
    let path = worker.directory.join("records");
    worker.call(Act::Size, || {
        survey.records = fs::read(&path)?;
        Ok(survey.records.len() as u64)
    });
    survey
}
