//! What the tests share: the lock for planted bugs, the seed, and another process that repeats a caught bug.
//!
//! Owns: which tests run at the same time. The planted bugs of the buffer, the store, the RAM disk and the volume affect
//! the whole process; those of `nectary_sim::volume` affect only their thread.

use std::process::Command;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nectary_sim::planted::CaughtBug;

static PLANTING: RwLock<()> = RwLock::new(());

/// While it is held, no test plants a bug that affects the whole process.
pub struct SharedTestGuard {
    _guard: RwLockReadGuard<'static, ()>,
}

/// Waits until no test plants bugs, and lets none begin.
pub fn unplanted() -> SharedTestGuard {
    SharedTestGuard { _guard: PLANTING.read().unwrap_or_else(PoisonError::into_inner) }
}

/// While it is held, no other test runs. When it is dropped, no bug is planted any more, even if the test failed.
pub struct ExclusiveTestGuard {
    _guard: RwLockWriteGuard<'static, ()>,
}

/// Waits until no other test runs, and lets none begin.
pub fn alone() -> ExclusiveTestGuard {
    ExclusiveTestGuard { _guard: PLANTING.write().unwrap_or_else(PoisonError::into_inner) }
}

impl Drop for ExclusiveTestGuard {
    fn drop(&mut self) {
        nectary_buffer::planted::plant(None);
        nectary_ram::planted::plant(None);
        nectary_ram::logged::planted::plant(None);
        nectary_ram::placement::planted::plant(None);
        nectary_store::planted::plant(None);
        nectary_volume::planted::plant(None);
    }
}

/// The seed in the environment variable `NECTARY_SEED`, or `default`.
pub fn seed_or(default: u64) -> u64 {
    std::env::var("NECTARY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(default)
}

/// Runs the printed command line of a case in another process, which must catch the bug with the same message.
pub fn replay_of_another_process_says_the_same(campaign: &str, name: &str, caught: &CaughtBug) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sim-campaigns"));
    command.args([campaign, "--bug", name, "--replay", &caught.case.seed.to_string()]);
    if let Some(state) = caught.case.state {
        command.args(["--state", &state.to_string()]);
    }
    let output = command.output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(&caught.broken), "{command:?}: {text}, not {}", caught.broken);
}
