//! The files of a round, and how a thread calls them.
//!
//! Owns: the files, what all threads share, and the calls through a handle. Promises: each value is written once. A call
//! that fails, because the session was ended, closes its file; the next call opens it again.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;

use super::history::{CallAction, CallRecorder, SLOTS, TORN};
use super::plan::MOUNTS;
use crate::rng::SeededRng;

/// The length of a block.
pub(super) const BLOCK: usize = 4096;
/// The files whose slots are registers: one that every mount writes often, and a quiet one for each mount, which only
/// that mount writes, and rarely, so that the others have it in memory most of the time.
pub(super) const REGISTERS: u32 = 1 + MOUNTS as u32;
/// The offsets of the registers of a file; the first two are in one block.
pub(super) const OFFSETS: [u64; 3] = [0, 8, BLOCK as u64 + 16];
/// The file whose only block is a register that is written with `O_DIRECT`.
pub(super) const DIRECT: u32 = REGISTERS;
/// The first of the files of counters, one for each lock.
pub(super) const COUNTERS: u32 = DIRECT + 1;
/// The locks: 0 with `flock`, 1 with `fcntl`, 2 with `flock` and held for long.
pub(super) const LOCKS: u32 = 3;
/// The locks that have a counter.
pub(super) const COUNTED: u32 = 2;
/// The longest pause after a call. *Units*: microseconds.
pub(super) const PAUSE_US_MAX: u64 = 8000;
/// The pause after a call that failed.
pub(super) const AFTER_ERROR: Duration = Duration::from_millis(10);

/// Bytes for direct I/O.
#[repr(align(4096))]
pub(super) struct DirectIoBlock(pub [u8; BLOCK]);

/// What all threads of a round share.
#[derive(Default)]
pub(super) struct RoundCounters {
    /// Whether the threads are to end.
    pub is_over: AtomicBool,
    /// The last value that was written anywhere.
    pub value: AtomicU64,
    /// The number of the next name to create.
    pub claim: AtomicU64,
    /// The number of the last handle.
    pub handle: AtomicU32,
    /// The number of the next thread.
    pub worker: AtomicU32,
}

/// A thread.
pub(super) struct MountWorker {
    pub common: Arc<RoundCounters>,
    pub recorder: Arc<CallRecorder>,
    pub directory: PathBuf,
    pub mount: usize,
    pub seed: u64,
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

impl MountWorker {
    pub fn is_over(&self) -> bool {
        self.common.is_over.load(Ordering::Acquire)
    }

    pub fn next_value(&self) -> u64 {
        self.common.value.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub fn pause(&self, rng: &mut SeededRng) {
        std::thread::sleep(Duration::from_micros(rng.below(PAUSE_US_MAX)));
    }

    /// A call with a path.
    pub fn call(&self, act: CallAction, call: impl FnOnce() -> io::Result<u64>) -> Option<u64> {
        let result = self.recorder.call(0, act, call);
        if result.is_err() {
            std::thread::sleep(AFTER_ERROR);
        }
        result.ok()
    }

    pub fn handle(&self, name: &str, flags: i32) -> ReopenedFile<'_> {
        ReopenedFile { worker: self, path: self.directory.join(name), flags, open: None }
    }

    pub fn registers(&self, flags: i32) -> Vec<ReopenedFile<'_>> {
        (0..REGISTERS).map(|file| self.handle(&format!("register-{file}"), flags)).collect()
    }
}

/// A file that is opened at the first call, and again after its session was ended.
pub(super) struct ReopenedFile<'a> {
    worker: &'a MountWorker,
    path: PathBuf,
    flags: i32,
    pub open: Option<(File, u32)>,
}

impl ReopenedFile<'_> {
    fn opened(&mut self) -> Option<&(File, u32)> {
        if self.open.is_none() {
            let id = self.worker.common.handle.fetch_add(1, Ordering::Relaxed) + 1;
            let mut file = None;
            let mut options = OpenOptions::new();
            options.read(true).write(true).append(self.flags & libc::O_APPEND != 0).custom_flags(self.flags);
            let opened = self.worker.recorder.call(id, CallAction::Open, || {
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

    pub fn calls(&mut self, acts: &[CallAction], call: impl FnOnce(&File) -> io::Result<Vec<u64>>) -> Option<Vec<u64>> {
        let recorder = self.worker.recorder.clone();
        let (file, id) = self.opened()?;
        let result = recorder.calls(*id, acts, || call(file));
        if result.is_err() {
            self.open = None;
            std::thread::sleep(AFTER_ERROR);
        }
        result.ok()
    }

    pub fn call(&mut self, act: CallAction, call: impl FnOnce(&File) -> io::Result<u64>) -> Option<u64> {
        self.calls(&[act], |file| call(file).map(|value| vec![value])).map(|values| values[0])
    }

    pub fn read(&mut self, register: u32) -> Option<u64> {
        self.call(CallAction::Read(register), |file| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, offset(register))?;
            Ok(u64::from_le_bytes(bytes))
        })
    }

    pub fn write(&mut self, register: u32, value: u64) -> Option<u64> {
        self.call(CallAction::Write(register, value), |file| {
            file.write_all_at(&value.to_le_bytes(), offset(register))?;
            Ok(0)
        })
    }

    pub fn sync(&mut self, file: u32) -> Option<u64> {
        self.call(CallAction::Sync(file), |file| file.sync_data().map(|()| 0))
    }

    /// Reads two registers of a file at once, with `O_DIRECT`.
    pub fn read_block(&mut self, file: u32) {
        let acts = [0, 1].map(|slot| CallAction::Read(file * SLOTS + slot));
        self.calls(&acts, |file| {
            let block = read_direct(file)?;
            Ok(block.0.chunks_exact(8).take(2).map(number).collect())
        });
    }

    /// Reads the register that is a whole block.
    pub fn read_whole(&mut self) {
        self.call(CallAction::Read(DIRECT * SLOTS), |file| {
            let block = read_direct(file)?;
            let value = number(&block.0[..8]);
            Ok(if block.0.chunks_exact(8).all(|bytes| number(bytes) == value) { value } else { TORN })
        });
    }

    pub fn write_whole(&mut self, value: u64) {
        let mut block = DirectIoBlock([0; BLOCK]);
        block.0.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&value.to_le_bytes()));
        self.call(CallAction::Write(DIRECT * SLOTS, value), |file| file.write_all_at(&block.0, 0).map(|()| 0));
    }

    /// Finds out whether its session was ended, if it is open.
    pub fn finish(&mut self, file: u32, register: u32) {
        if self.open.is_some() {
            self.sync(file);
        }
        if self.open.is_some() {
            self.read(register);
        }
    }

    /// The number of the file of registers that this is.
    fn file_number(&self) -> u32 {
        let name = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default()
    }

    pub fn read_slot(&mut self, rng: &mut SeededRng) -> Option<u64> {
        self.read(self.file_number() * SLOTS + rng.index(OFFSETS.len()) as u32)
    }

    pub fn read_pair(&mut self) {
        self.read_block(self.file_number());
    }
}

fn offset(register: u32) -> u64 {
    OFFSETS[(register % SLOTS) as usize]
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(TORN, u64::from_le_bytes)
}

fn read_direct(file: &File) -> io::Result<DirectIoBlock> {
    let mut block = DirectIoBlock([0; BLOCK]);
    file.read_exact_at(&mut block.0, 0)?;
    Ok(block)
}
