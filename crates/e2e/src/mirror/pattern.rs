//! A pattern over a whole block device, which is written and read back without the page cache.
//!
//! Owns: the version of each unit of the device, the writes that change them, and the comparison with what the device
//! returns. A unit is known if its last write was acknowledged.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{ProbeCounts, content};
use crate::rng::SeededRng;

/// What is written and read at a time. *Units*: bytes.
const UNIT: usize = 64 << 10;
/// The device is flushed after so many operations.
const FLUSH_EVERY: u64 = 32;
/// The usual pause after each operation.
pub const PAUSE: Duration = Duration::from_millis(15);

/// Memory with the alignment that direct I/O needs.
#[repr(C, align(4096))]
struct AlignedUnit([u8; UNIT]);

/// The versions that the units of a device have.
#[derive(Debug, Clone)]
pub struct DevicePattern {
    versions: Vec<u64>,
}

fn open(device: &str) -> Result<File> {
    let file = File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(device);
    file.with_context(|| format!("cannot open {device}"))
}

impl DevicePattern {
    /// Writes the first `bytes` of a device, and flushes it.
    pub fn fill(device: &str, bytes: u64) -> Result<DevicePattern> {
        let (file, mut memory) = (open(device)?, Box::new(AlignedUnit([0; UNIT])));
        let units = bytes / UNIT as u64;
        for unit in 0..units {
            memory.0.copy_from_slice(&content(unit, 1, UNIT));
            file.write_all_at(&memory.0, unit * UNIT as u64)?;
        }
        file.sync_all()?;
        Ok(DevicePattern { versions: vec![1; units as usize] })
    }

    /// Reads everything. *Errors*: the first unit that cannot be read, or the number of units with other bytes.
    pub fn verify(&self, device: &str) -> Result<()> {
        let (file, mut memory) = (open(device)?, Box::new(AlignedUnit([0; UNIT])));
        let mut wrong = Vec::new();
        for (unit, version) in self.versions.iter().enumerate() {
            file.read_exact_at(&mut memory.0, (unit * UNIT) as u64).with_context(|| format!("unit {unit}"))?;
            if memory.0[..] != content(unit as u64, *version, UNIT)[..] {
                wrong.push(unit);
            }
        }
        let all = self.versions.len();
        ensure!(wrong.is_empty(), "{} of {all} units are lost: {wrong:?}", wrong.len());
        Ok(())
    }

    /// Writes and reads units in random order until the result is ended.
    pub fn change(self, device: &str, seed: u64) -> Result<PatternWriter> {
        let (file, shared) = (open(device)?, Arc::new(WriterState::default()));
        shared.set_pause(PAUSE);
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::spawn(move || self.change_until(&file, seed, &of_thread));
        Ok(PatternWriter { shared, thread: Some(thread) })
    }

    fn change_until(mut self, file: &File, seed: u64, shared: &WriterState) -> (DevicePattern, ProbeCounts) {
        let (mut rng, mut memory) = (SeededRng::new(seed), Box::new(AlignedUnit([0; UNIT])));
        let mut account = ProbeCounts::default();
        loop {
            let unit = rng.index(self.versions.len());
            let (offset, version) = ((unit * UNIT) as u64, &mut self.versions[unit]);
            let ends = shared.stop.load(Ordering::Relaxed);
            let began = Instant::now();
            let is_done = if ends || account.operations % FLUSH_EVERY == 0 {
                file.sync_data().is_ok()
            } else if rng.below(2) == 0 {
                memory.0.copy_from_slice(&content(unit as u64, *version + 1, UNIT));
                let written = file.write_all_at(&memory.0, offset).is_ok();
                *version += u64::from(written);
                written
            } else {
                let read = file.read_exact_at(&mut memory.0, offset).is_ok();
                account.wrong += u64::from(read && memory.0[..] != content(unit as u64, *version, UNIT)[..]);
                read
            };
            account.errors += u64::from(!is_done);
            account.gap = account.gap.max(began.elapsed());
            account.operations += 1;
            shared.done.store(account.operations, Ordering::Relaxed);
            if ends {
                return (self, account);
            }
            std::thread::sleep(Duration::from_millis(shared.pause_ms.load(Ordering::Relaxed)));
        }
    }
}

/// What a writer shares with its thread.
#[derive(Default)]
struct WriterState {
    stop: AtomicBool,
    done: AtomicU64,
    pause_ms: AtomicU64,
}

impl WriterState {
    fn set_pause(&self, pause: Duration) {
        self.pause_ms.store(pause.as_millis() as u64, Ordering::Relaxed);
    }
}

/// Changes of a pattern that are under way.
pub struct PatternWriter {
    shared: Arc<WriterState>,
    thread: Option<JoinHandle<(DevicePattern, ProbeCounts)>>,
}

impl PatternWriter {
    /// Returns the number of operations so far.
    pub fn done(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// Sets the pause after each operation, which is [`PAUSE`] at first.
    pub fn set_pause(&self, pause: Duration) {
        self.shared.set_pause(pause);
    }

    /// Flushes the device and ends; returns what is written, and the counts.
    pub fn end(mut self) -> Result<(DevicePattern, ProbeCounts)> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it has ended")?;
        thread.join().map_err(|_| anyhow::anyhow!("the changes panicked"))
    }
}

impl Drop for PatternWriter {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}
