//! What the threads on a mount do: read, write, append, rename, create and lock.
//!
//! Owns: the mix of calls. If a server does not answer, threads that change something soon wait. So other threads only
//! read, each its own file or names, and would show what is stale. Each job ends soon after the load is stopped, unless
//! one of its calls does not return. Leaves to others: what the results mean.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, symlink};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::history::{CallAction, NAMES, SLOTS, TORN};
use super::plan::MOUNTS;
use super::sizes::{RECORD_BYTES, record, value_of};
use super::worker::{COUNTED, COUNTERS, DIRECT, MountWorker, OFFSETS, REGISTERS, ReopenedFile};
use crate::rng::SeededRng;

/// The pause between two writes of a quiet file. A long one leaves the file in the memory of the others while a leader
/// that is in trouble still grants. *Units*: milliseconds.
const QUIET_MS: (u64, u64) = (300, 4000);
/// The file of records.
const RECORDS: u32 = COUNTERS + COUNTED;
/// The lock that is held for long.
const LONG: u32 = 2;
/// The longest time for which a lock is held. *Units*: milliseconds.
const HOLD_MS_MAX: u64 = 6000;
/// The register of the name.
const NAME: u32 = NAMES * SLOTS;
/// The pause between two looks whether a lock's session still exists.
const BETWEEN_PROBES: Duration = Duration::from_millis(3);
/// The number of looks of a program that holds a lock for long.
const LONG_PROBES: u64 = 200;
/// The threads of a mount.
pub(super) const JOBS: [Job; 14] = [
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
pub(super) type Job = fn(&MountWorker);

/// What a mount shows at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountSurvey {
    /// The contents of the file of records.
    pub records: Vec<u8>,
}

/// Reads and writes registers, with and without `O_DIRECT`.
fn write_registers(worker: &MountWorker) {
    let mut rng = SeededRng::new(worker.seed);
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

/// Only reads one file, mostly from the mount's memory.
fn read_registers(worker: &MountWorker, file: u32) {
    let mut rng = SeededRng::new(worker.seed);
    let mut handle = worker.handle(&format!("register-{file}"), 0);
    while !worker.is_over() {
        handle.read_slot(&mut rng);
        worker.pause(&mut rng);
    }
    handle.finish(file, file * SLOTS);
}

/// Writes this mount's quiet file.
fn write_quietly(worker: &MountWorker) {
    let mut rng = SeededRng::new(worker.seed);
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
fn read_directly(worker: &MountWorker, file: u32) {
    let mut rng = SeededRng::new(worker.seed);
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
fn look(worker: &MountWorker) {
    let mut rng = SeededRng::new(worker.seed);
    let path = worker.directory.join("records");
    while !worker.is_over() {
        match rng.below(3) {
            0 => read_name(worker),
            1 => find(worker, worker.common.claim.load(Ordering::Acquire).saturating_sub(rng.below(4))),
            _ => drop(worker.call(CallAction::Size, || Ok(fs::metadata(&path)?.len()))),
        }
        worker.pause(&mut rng);
    }
}

/// Appends records, and asks for sizes.
fn append(worker: &MountWorker) {
    let mut rng = SeededRng::new(worker.seed);
    let mut file = worker.handle("records", libc::O_APPEND);
    let path = worker.directory.join("records");
    while !worker.is_over() {
        match rng.below(100) {
            0..20 => {
                let value = worker.next_value();
                file.call(CallAction::Append(value), |file| {
                    // One call: `write_all` would write the rest of a short write elsewhere.
                    let written = io::Write::write(&mut &*file, &record(value))?;
                    if written as u64 == RECORD_BYTES { Ok(0) } else { Err(io::Error::from_raw_os_error(libc::EIO)) }
                });
                if rng.chance(0.4) {
                    file.sync(RECORDS);
                }
            }
            20..50 => drop(file.call(CallAction::Size, |file| Ok(file.metadata()?.len()))),
            50..80 => drop(worker.call(CallAction::Size, || Ok(fs::metadata(&path)?.len()))),
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

fn tail(file: &mut ReopenedFile<'_>) {
    file.call(CallAction::Tail, |file| {
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
fn rename(worker: &MountWorker) {
    let mut rng = SeededRng::new(worker.seed);
    let current = worker.directory.join("names/current");
    while !worker.is_over() {
        if rng.chance(0.25) {
            let value = worker.next_value();
            let new = worker.directory.join(format!("names/new-{value}"));
            if worker.call(CallAction::Other, || symlink(value.to_string(), &new).map(|()| 0)).is_some() {
                worker.call(CallAction::Write(NAME, value), || fs::rename(&new, &current).map(|()| 0));
            }
        } else {
            read_name(worker);
        }
        worker.pause(&mut rng);
    }
}

fn read_name(worker: &MountWorker) {
    let current = worker.directory.join("names/current");
    worker.call(CallAction::Read(NAME), || {
        let target = fs::read_link(&current)?;
        Ok(target.to_str().and_then(|target| target.parse().ok()).unwrap_or(TORN))
    });
}

/// Creates files that must not exist, and looks for them.
fn claim(worker: &MountWorker) {
    let mut rng = SeededRng::new(worker.seed);
    let next = &worker.common.claim;
    while !worker.is_over() {
        let number = next.load(Ordering::Acquire);
        if rng.chance(0.15) {
            let path = worker.directory.join(format!("claims/{number}"));
            worker.call(CallAction::Claim(number), || {
                match OpenOptions::new().write(true).create_new(true).open(&path) {
                    Ok(_) => Ok(1),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(0),
                    Err(error) => Err(error),
                }
            });
            next.fetch_max(number + 1, Ordering::AcqRel);
        } else {
            find(worker, number.saturating_sub(rng.below(4)));
        }
        worker.pause(&mut rng);
    }
}

fn find(worker: &MountWorker, number: u64) {
    let path = worker.directory.join(format!("claims/{number}"));
    worker.call(CallAction::Find(number), || match fs::symlink_metadata(&path) {
        Ok(_) => Ok(1),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    });
}

fn lock_whole(worker: &MountWorker) {
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
fn hold(worker: &MountWorker) {
    let mut rng = SeededRng::new(worker.seed);
    let mut locked = worker.handle(&format!("lock-{LONG}"), 0);
    while !worker.is_over() {
        if locked.call(CallAction::Lock(LONG), |file| set_whole(file, true)).is_none() {
            continue;
        }
        let until = Instant::now() + Duration::from_millis(rng.below(HOLD_MS_MAX));
        while locked.open.is_some() && Instant::now() < until && !worker.is_over() {
            probe(&mut locked);
        }
        if locked.open.is_some() {
            locked.call(CallAction::Unlock(LONG), |file| set_whole(file, false));
        }
        worker.pause(&mut rng);
    }
}

/// Looks whether the session of a lock still exists.
fn probe(locked: &mut ReopenedFile<'_>) {
    std::thread::sleep(BETWEEN_PROBES);
    locked.call(CallAction::Probe, |file| file.read_at(&mut [0; 8], 0).map(|count| count as u64));
}

fn lock_range(worker: &MountWorker) {
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
fn count(worker: &MountWorker, lock: u32, set: impl Fn(&File, bool) -> io::Result<u64>) {
    let mut rng = SeededRng::new(worker.seed);
    let mut locked = worker.handle(&format!("lock-{lock}"), 0);
    let mut counter = worker.handle(&format!("counter-{lock}"), 0);
    let register = (COUNTERS + lock) * SLOTS;
    while !worker.is_over() {
        if locked.call(CallAction::Lock(lock), |file| set(file, true)).is_none() {
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
            locked.call(CallAction::Unlock(lock), |file| set(file, false));
        } else {
            // Closing the file releases its lock.
            locked.open = None;
        }
        std::thread::sleep(Duration::from_millis(5 + rng.below(20)));
    }
}

/// Reads everything once through new handles.
pub(super) fn survey(worker: &MountWorker) -> MountSurvey {
    let mut survey = MountSurvey::default();
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
    worker.call(CallAction::Size, || {
        survey.records = fs::read(&path)?;
        Ok(survey.records.len() as u64)
    });
    survey
}
