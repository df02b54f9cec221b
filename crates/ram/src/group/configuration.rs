//! The configuration of a machine, and the limits of everything that it keeps.
//!
//! Owns: the configuration, the times and the named limits.

use super::event::{Donor, Moment};
use crate::format::RecordGeometry;

/// The maximum number of the user's requests in progress; further requests are refused at once. A write that failed
/// after `patience` still counts until its copies are equal again.
pub const OPERATIONS_MAX: usize = 256;
/// The maximum number of bytes of one request of the user.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// The maximum number of stripes that a rebuild, or the resynchronisation after attaching, copies at the same time.
pub const COPIES_MAX: usize = 2;
/// The maximum number of repairs of wrong copies in progress; further wrong copies wait for the next read that finds
/// them.
pub const REPAIRS_MAX: usize = 4;
/// The number of times that an attaching client raises its generation because another client attaches at the same time.
pub const CLAIM_ROUNDS_MAX: u32 = 8;
/// A donor that returned this many wrong or failed answers is left.
pub const TROUBLES_MAX: u32 = 16;

/// The purpose of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineIntent {
    /// Create the device, on empty donors.
    Create,
    /// Attach the device.
    Attach {
        /// Whether to attach even if a donor has a living connection of another client.
        take_over: bool,
        /// Whether the user confirms that, of two donors, the one that is present has the newest data.
        trust_remaining: bool,
    },
}

/// The time limits of a machine. *Units*: microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineTimes {
    /// A donor that has not answered a request for this long is suspect: reads are also sent to another copy.
    pub suspect_us: Moment,
    /// A donor that has been suspect, or not connected, for this long is left, if the policy allows this.
    pub leave_us: Moment,
    /// A request fails after this long.
    pub patience_us: Moment,
    /// Attaching waits this long for every donor before it continues without one.
    pub survey_us: Moment,
    /// A read is answered only if donors have confirmed within this time that no other client has the device.
    pub lease_us: Moment,
    /// An idle donor is sent a question after this time, to check that it is alive.
    pub ping_us: Moment,
    /// The mark of a stripe is removed after this time without a write.
    pub clean_us: Moment,
    /// A donor that was left is taken back after this time at the earliest.
    pub rejoin_us: Moment,
    /// The interval at which the machine checks its deadlines.
    pub tick_us: Moment,
    /// The time that the scrub takes for each MiB of the device, at least; 0: it runs only when requested.
    pub scrub_us: Moment,
    /// The pause before the first pass of the scrub, and between two passes.
    pub scrub_rest_us: Moment,
}

impl Default for MachineTimes {
    fn default() -> MachineTimes {
        const MILLISECOND: Moment = 1000;
        MachineTimes {
            suspect_us: 250 * MILLISECOND,
            leave_us: 800 * MILLISECOND,
            patience_us: 30_000 * MILLISECOND,
            survey_us: 2000 * MILLISECOND,
            lease_us: 2000 * MILLISECOND,
            ping_us: 500 * MILLISECOND,
            clean_us: 1000 * MILLISECOND,
            rejoin_us: 1000 * MILLISECOND,
            tick_us: 50 * MILLISECOND,
            scrub_us: 250 * MILLISECOND,
            scrub_rest_us: 600_000 * MILLISECOND,
        }
    }
}

/// The configuration of a machine.
#[derive(Debug, Clone)]
pub(crate) struct GroupConfiguration {
    /// The geometry of the device. The donors are numbered from 0; they must always be given in the same order.
    pub geometry: RecordGeometry,
    /// Returns the donors that store the mark of a stripe, if it may have one. That is all that the machine knows of where
    /// blocks are.
    pub markers: fn(&RecordGeometry, u64) -> Option<[Donor; 2]>,
    /// A random number, not 0, that no other client has.
    pub client: u64,
    /// The purpose: to create or to attach the device.
    pub intent: MachineIntent,
    /// The time limits.
    pub times: MachineTimes,
}
