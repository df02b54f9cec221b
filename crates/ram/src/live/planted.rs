//! Deliberate defects of the live mirror, one at a time, by which tests show that their checks catch them; and shorter
//! waits, so that tests of attaching without a donor take less time.
//!
//! Without the feature `planted` every question is answered `false` at compile time, and the waits are the usual ones,
//! so that no user's build has them.

use std::time::Duration;

use crate::mirror::Times;

/// How long a donor is left before a spare takes its place: filling costs as much as a copy of all it had.
const LOST_AFTER: Duration = Duration::from_secs(30);

nectary_block::planted_bugs! {
    /// A donor continues to serve connections of an earlier owner.
    OldOwnerServed = 1 => "earlier owner served",
    /// Requests in flight when a connection is lost count as done.
    LostWriteAnswered = 2 => "write on a lost connection answered",
    /// What is written while a donor is drained is not copied again.
    DrainForgets = 3 => "drain forgets blocks written while it runs",
}

#[cfg(feature = "planted")]
static IS_HASTY: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Devices that this process opens later wait about a tenth as long for donors that do not answer while they attach,
/// and before they take a donor in again.
#[cfg(feature = "planted")]
pub fn hasten() {
    IS_HASTY.store(true, std::sync::atomic::Ordering::SeqCst);
}

/// How long a donor is left before a spare takes its place.
#[cfg(feature = "planted")]
pub(super) fn lost_after() -> Duration {
    let is_hasty = IS_HASTY.load(std::sync::atomic::Ordering::SeqCst);
    if is_hasty { Duration::from_millis(300) } else { LOST_AFTER }
}

/// How long a donor is left before a spare takes its place.
#[cfg(not(feature = "planted"))]
pub(super) fn lost_after() -> Duration {
    LOST_AFTER
}

/// The times of a device.
#[cfg(feature = "planted")]
pub(super) fn times() -> Times {
    const MILLISECOND: u64 = 1000;
    match IS_HASTY.load(std::sync::atomic::Ordering::SeqCst) {
        false => Times::default(),
        true => Times {
            survey_us: 200 * MILLISECOND,
            lease_us: 250 * MILLISECOND,
            ping_us: 80 * MILLISECOND,
            rejoin_us: 200 * MILLISECOND,
            ..Times::default()
        },
    }
}

/// The times of a device.
#[cfg(not(feature = "planted"))]
pub(super) fn times() -> Times {
    Times::default()
}
