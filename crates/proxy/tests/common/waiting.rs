//! Waiting for what a test expects, within a limit.

use std::time::{Duration, Instant};

/// The longest time for which anything is waited for.
const LIMIT: Duration = Duration::from_secs(30);

/// Waits until something is so. Panics with its name if it never is.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "{what}: not after {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
