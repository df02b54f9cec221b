//! Deliberate defects of the live mirror, one at a time, by which tests show that their checks catch them; and shorter
//! waits, so that tests of attaching without a donor take less time.
//!
//! Without the feature `planted` every question is answered `false` at compile time, and the waits are the usual ones,
//! so that no user's build has them.

use std::time::Duration;

use crate::group::MachineTimes;

/// How long a donor is left before a spare takes its place: filling costs as much as a copy of all it had.
const LOST_AFTER: Duration = Duration::from_secs(30);

nectary_block::planted_bugs! {
    /// A donor continues to serve connections of an earlier owner.
    OldOwnerServed = 1 => "earlier owner served",
    /// Requests in flight when a connection is lost count as done.
    LostWriteAnswered = 2 => "write on a lost connection answered",
    /// Without redundancy: a move does not wait for requests that went past the machine.
    LanesNotAwaited = 4 => "requests past the machine not awaited",
    /// Without redundancy: a lost block is returned as data.
    LostReadDirectly = 5 => "lost block read as data",
    /// With parity in place: growing trims the parity of the last stripe, too.
    ParityTrimmed = 6 => "parity of the last stripe trimmed",
    /// A new device keeps what a deletion that was cut short has left.
    RemainsKept = 7 => "remains of a deletion kept",
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
    if is_hasty { Duration::from_secs(1) } else { LOST_AFTER }
}

/// How long a donor is left before a spare takes its place.
#[cfg(not(feature = "planted"))]
pub(super) fn lost_after() -> Duration {
    LOST_AFTER
}

/// How many spares may still be given up; `u64::MAX`: any number.
#[cfg(feature = "planted")]
static GIVEN_UP_MAX: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(u64::MAX);

/// From now on, so many spares are given up at most while they are filled; `u64::MAX`: any number.
#[cfg(feature = "planted")]
pub fn give_up_at_most(spares: u64) {
    GIVEN_UP_MAX.store(spares, std::sync::atomic::Ordering::SeqCst);
}

/// Whether a spare that is lost may be given up.
#[cfg(feature = "planted")]
pub(super) fn may_give_up() -> bool {
    use std::sync::atomic::Ordering;
    let take = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
    GIVEN_UP_MAX.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
}

/// Whether a spare that is lost may be given up.
#[cfg(not(feature = "planted"))]
pub(super) fn may_give_up() -> bool {
    true
}

#[cfg(feature = "planted")]
static STEPS_LEFT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(u64::MAX);
#[cfg(feature = "planted")]
static HAS_STOPPED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
#[cfg(feature = "planted")]
static STOPS: tokio::sync::Notify = tokio::sync::Notify::const_new();

/// Stops the client at the durable step after this number of them; `u64::MAX`: never.
#[cfg(feature = "planted")]
pub fn stop_after(steps: u64) {
    HAS_STOPPED.store(false, std::sync::atomic::Ordering::SeqCst);
    STEPS_LEFT.store(steps, std::sync::atomic::Ordering::SeqCst);
}

/// Waits until the client has stopped at a step; the caller then kills it.
#[cfg(feature = "planted")]
pub async fn stopped() {
    while !HAS_STOPPED.load(std::sync::atomic::Ordering::SeqCst) {
        STOPS.notified().await;
    }
}

/// Whether the client stops before this durable step.
#[cfg(feature = "planted")]
pub(crate) fn stops_here() -> bool {
    use std::sync::atomic::Ordering;
    let take = |left: u64| if left == u64::MAX { None } else { Some(left.saturating_sub(1)) };
    let stops = STEPS_LEFT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) == Ok(0);
    if stops {
        HAS_STOPPED.store(true, Ordering::SeqCst);
        STOPS.notify_one();
    }
    stops
}

/// Whether the client stops before this durable step.
#[cfg(not(feature = "planted"))]
pub(crate) fn stops_here() -> bool {
    false
}

/// Passes, or never returns if the client stops before this durable step.
pub(crate) async fn before_durable_step() {
    if stops_here() {
        std::future::pending::<()>().await;
    }
}

/// The times of a device.
#[cfg(feature = "planted")]
pub(super) fn times() -> MachineTimes {
    const MILLISECOND: u64 = 1000;
    match IS_HASTY.load(std::sync::atomic::Ordering::SeqCst) {
        false => MachineTimes::default(),
        true => MachineTimes {
            survey_us: 200 * MILLISECOND,
            lease_us: 250 * MILLISECOND,
            ping_us: 80 * MILLISECOND,
            rejoin_us: 200 * MILLISECOND,
            ..MachineTimes::default()
        },
    }
}

/// The times of a device.
#[cfg(not(feature = "planted"))]
pub(super) fn times() -> MachineTimes {
    MachineTimes::default()
}
