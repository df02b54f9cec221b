//! Tests that switch something for the whole process: planted bugs, shorter waits, a stop after so many steps. Their
//! modules are the files of this folder; tests of one module may run beside each other, those of two may not.

mod grow;
mod grow_planted;
mod mirror_planted;
mod moves_planted;
mod parity;
mod parity_planted;
mod placement_planted;
mod second_failure;
mod spare;
mod spare_planted;
#[path = "../support/mod.rs"]
mod support;
#[path = "../world/mod.rs"]
mod world;

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The module whose tests run, and how many of them.
static RUNNING: Mutex<(&str, usize)> = Mutex::new(("", 0));
static IS_FREE: Condvar = Condvar::new();

/// The turn of a module; it ends with the last test that has it.
struct ModuleTurn;

/// Waits until no test of another module runs.
fn turn(module: &'static str) -> ModuleTurn {
    let is_other = |running: &mut (&str, usize)| running.1 > 0 && running.0 != module;
    let mut running = IS_FREE.wait_while(running(), is_other).unwrap_or_else(PoisonError::into_inner);
    *running = (module, running.1 + 1);
    ModuleTurn
}

impl Drop for ModuleTurn {
    fn drop(&mut self) {
        running().1 -= 1;
        IS_FREE.notify_all();
    }
}

fn running() -> MutexGuard<'static, (&'static str, usize)> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}
