//! Turns of the tests that start attaching processes.
//!
//! Each attaching process releases, anywhere on this machine, what dead ones left, and reports it. A test that counts
//! these reports must not lose one to a process of another test. Owns: the turns of the tests of one process. The test
//! runner keeps the tests of other processes apart.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static TURNS: RwLock<()> = RwLock::new(());

/// Waits until no other test of this process attaches, and keeps them from it until the result is dropped. The caller
/// must not hold another turn.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    TURNS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no test is [`alone`]; to be held while an attaching process starts, and no longer. The caller must not
/// hold another turn.
pub fn beside() -> RwLockReadGuard<'static, ()> {
    TURNS.read().unwrap_or_else(PoisonError::into_inner)
}
