//! The tests of this crate from the outside, in one program: its modules are the files of this folder.

mod corpora_are_replayed;
mod planted_bugs_are_found;

/// Planted bugs and the guard's hook belong to the whole process, so one test runs at a time.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Waits until no other test runs.
fn turn() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
