//! Waiting for a state, in place of a sleep that is hoped to be long enough.
//!
//! Promises: a wait ends as soon as the state is there, and with a panic that names what is missing when it is not there
//! within a limit. The panic is in the line of the test.

use std::fmt::Display;
use std::panic::Location;
use std::time::{Duration, Instant};

/// The longest wait where no other is given. It is far longer than any state takes on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);
/// The pause between two looks.
pub const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `is_so`. `what` says what is expected: "the device is gone".
///
/// # Panics
/// After [`LIMIT`].
#[track_caller]
pub fn until(what: impl Display, is_so: impl FnMut() -> bool) {
    within(LIMIT, what, is_so);
}

/// Waits until `is_so`, but at most `limit`.
///
/// # Panics
/// After `limit`.
#[track_caller]
pub fn within(limit: Duration, what: impl Display, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !is_so() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// Waits until `look` finds something, and returns it.
///
/// # Panics
/// After [`LIMIT`].
#[track_caller]
pub fn find<T>(what: impl Display, mut look: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    until(what, || {
        found = look();
        found.is_some()
    });
    found.expect("it was found")
}

/// As [`until`], in a task, for a look that itself may wait. The limit is one of real time, even where a test has paused
/// the time of its runtime: threads beside the runtime may do the work.
///
/// # Panics
/// After [`LIMIT`].
#[track_caller]
pub fn until_async(what: impl Display, is_so: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    wait(Location::caller(), LIMIT, what, is_so)
}

/// As [`find`], in a task.
///
/// # Panics
/// After [`LIMIT`].
#[track_caller]
pub fn find_async<T>(what: impl Display, mut look: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    let at = Location::caller();
    async move {
        let mut found = None;
        let is_found = async || {
            found = look().await;
            found.is_some()
        };
        wait(at, LIMIT, what, is_found).await;
        found.expect("it was found")
    }
}

async fn wait(
    at: &'static Location<'static>,
    limit: Duration,
    what: impl Display,
    mut is_so: impl AsyncFnMut() -> bool,
) {
    let end = Instant::now() + limit;
    while !is_so().await {
        assert!(Instant::now() < end, "{at}: not within {limit:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_with_the_state() {
        let mut looks = 0;
        until("three looks", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
        assert_eq!(find("a number", || Some(7)), 7);
    }

    #[test]
    #[should_panic(expected = "the sun rises")]
    fn wait_beyond_limit_panics() {
        within(Duration::from_millis(20), "the sun rises", || false);
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "wait.rs")]
    async fn wait_in_task_names_its_line() {
        wait(Location::caller(), Duration::from_millis(20), "the sun rises", async || false).await;
    }

    #[tokio::test(start_paused = true)]
    async fn wait_in_task_finds_a_value() {
        let mut looks = 0;
        let found = find_async("a second look", async || {
            looks += 1;
            (looks == 2).then_some(looks)
        });
        assert_eq!(found.await, 2);
        until_async("now", async || true).await;
    }
}
