//! Deliberate defects of the live mirror, one at a time, by which tests show that their checks catch them; and shorter
//! waits, so that tests of attaching without a donor take less time.
//!
//! Without the feature `planted` every question is answered `false` at compile time, and the waits are the usual ones,
//! so that no user's build has them.

use crate::mirror::Times;

nectary_block::planted_bugs! {
    /// A donor continues to serve connections of an earlier owner.
    OldOwnerServed = 1 => "earlier owner served",
    /// Requests in flight when a connection is lost count as done.
    LostWriteAnswered = 2 => "write on a lost connection answered",
}

#[cfg(feature = "planted")]
static IS_HASTY: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Devices that this process opens later wait about a tenth as long for donors that do not answer while they attach,
/// and before they take a donor in again.
#[cfg(feature = "planted")]
pub fn hasten() {
    IS_HASTY.store(true, std::sync::atomic::Ordering::SeqCst);
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
