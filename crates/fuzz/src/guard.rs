//! The guard of one run of a target: it decides whether the input is a finding.
//!
//! Owns: the panics of all threads, the bounds on memory and time, and the file that holds the input during a run. The
//! file preserves the input if the process dies.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::memory;
use crate::targets::FuzzTarget;

/// The longest time of a run; a longer run is a finding. The limit is far above normal times, because machines may be
/// busy.
const RUN_TIME_MAX: Duration = Duration::from_secs(10);

/// The messages of the panics of all threads in the current run.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static HOOK: Once = Once::new();
/// Whether a target is running; panics at other times are not findings.
static IS_RUNNING: AtomicBool = AtomicBool::new(false);

/// The failure that an input causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetFailure {
    /// The messages of the panics, or the exceeded bound.
    pub what: String,
}

/// Runs targets.
pub struct TargetGuard {
    running: Option<(File, PathBuf)>,
}

impl TargetGuard {
    /// Makes a guard that writes no input to a file.
    pub fn new() -> TargetGuard {
        HOOK.call_once(|| {
            let usual = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                if !IS_RUNNING.load(Ordering::SeqCst) {
                    return usual(info);
                }
                let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
                if panics.len() < 16 {
                    panics.push(info.to_string().replace('\n', " "));
                }
            }));
        });
        TargetGuard { running: None }
    }

    /// Makes a guard that writes each input to the file at `path` before its run.
    pub fn with_file(path: &Path) -> io::Result<TargetGuard> {
        let file = File::create(path)?;
        let mut guard = TargetGuard::new();
        guard.running = Some((file, path.to_owned()));
        Ok(guard)
    }

    /// Runs a target on an input.
    ///
    /// *Errors*: the finding, if the input is one.
    pub fn run(&self, target: &FuzzTarget, input: &[u8]) -> Result<(), TargetFailure> {
        if let Some((file, _)) = &self.running {
            // Failures are ignored: without this file the input may be lost, but the run can continue.
            let _ = file.set_len(0).and_then(|()| file.write_all_at(input, 0));
        }
        PANICS.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let (begun, started) = (memory::begin(), Instant::now());
        IS_RUNNING.store(true, Ordering::SeqCst);
        let returned = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
        IS_RUNNING.store(false, Ordering::SeqCst);
        let (taken, peak) = (started.elapsed(), memory::peak_since(begun));
        let panics = std::mem::take(&mut *PANICS.lock().unwrap_or_else(PoisonError::into_inner));
        let what = if returned.is_err() || !panics.is_empty() {
            panics.join("; ")
        } else if peak > target.memory_bytes_max {
            format!("{peak} bytes of memory at once, at most {} are allowed", target.memory_bytes_max)
        } else if taken > RUN_TIME_MAX {
            format!("{:.1} s, at most {} s are allowed", taken.as_secs_f64(), RUN_TIME_MAX.as_secs())
        } else {
            return Ok(());
        };
        Err(TargetFailure { what })
    }
}

impl Default for TargetGuard {
    fn default() -> TargetGuard {
        TargetGuard::new()
    }
}

impl Drop for TargetGuard {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.running {
            let _ = std::fs::remove_file(path);
        }
    }
}
