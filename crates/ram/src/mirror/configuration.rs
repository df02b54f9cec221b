//! What a machine is told at the start, and the limits of everything that it keeps.
//!
//! Owns: the configuration, the times and the named limits. Promises: a configuration that passes `check` can be
//! served.

use super::error::Refusal;
use super::event::Moment;
use super::layout::{Layout, Ring};
use crate::format::Geometry;

/// The most requests of the user at a time; further ones are refused at once. A write that failed after `patience`
/// counts until its copies are equal again.
pub const OPERATIONS_MAX: usize = 256;
/// Bytes of one request of the user.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// Stripes that are copied at a time by a rebuild, and by the resynchronisation after attaching.
pub const COPIES_MAX: usize = 2;
/// Repairs of wrong copies at a time; further ones wait for the next read that finds them.
pub const REPAIRS_MAX: usize = 4;
/// How often an attaching client raises its generation when it meets another one.
pub const CLAIM_ROUNDS_MAX: u32 = 8;
/// A donor that gave this many wrong or failed answers is left.
pub const TROUBLES_MAX: u32 = 16;

/// What to do with the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Create it on donors that are empty.
    Create,
    /// Attach it.
    Attach {
        /// Also if a donor has a living connection of another client.
        take_over: bool,
        /// The user confirms that, of two donors, the one that is there has the newest data.
        trust_remaining: bool,
    },
}

/// The times of a machine. *Units*: microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// A donor that has not answered a request for this long is suspect: reads go to another copy as well.
    pub suspect_us: Moment,
    /// A donor that has been suspect, or not connected, for this long is left, if the policy allows it.
    pub leave_us: Moment,
    /// A request fails after this long.
    pub patience_us: Moment,
    /// Attaching waits this long for every donor before it goes on without one.
    pub survey_us: Moment,
    /// A read is only answered if donors showed within this time that no other client has the device.
    pub lease_us: Moment,
    /// An idle donor is asked a question after this time, to see that it lives.
    pub ping_us: Moment,
    /// The mark of a stripe is removed after this time without a write.
    pub clean_us: Moment,
    /// A donor that was left is taken in again after this time at the earliest.
    pub rejoin_us: Moment,
    /// How often the machine looks at its deadlines.
    pub tick_us: Moment,
}

impl Default for Times {
    fn default() -> Times {
        const MILLISECOND: Moment = 1000;
        Times {
            suspect_us: 250 * MILLISECOND,
            leave_us: 800 * MILLISECOND,
            patience_us: 30_000 * MILLISECOND,
            survey_us: 2000 * MILLISECOND,
            lease_us: 2000 * MILLISECOND,
            ping_us: 500 * MILLISECOND,
            clean_us: 1000 * MILLISECOND,
            rejoin_us: 1000 * MILLISECOND,
            tick_us: 50 * MILLISECOND,
        }
    }
}

/// What a machine is told at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// The shape of the device. Its donors are numbered from 0 in the order in which they are always given.
    pub geometry: Geometry,
    /// The label of each donor: two donors with one label may fail together.
    pub labels: Vec<String>,
    /// A random number that no other client has; not 0.
    pub client: u64,
    /// What to do.
    pub intent: Intent,
    /// The times.
    pub times: Times,
}

impl Configuration {
    /// Checks the shape, and that the two copies of a block are on donors with different labels.
    ///
    /// *Errors*: [`Refusal::Geometry`], [`Refusal::SameLabel`].
    pub fn check(&self) -> Result<(), Refusal> {
        self.geometry.check()?;
        let ring = Ring::new(&self.geometry);
        for stripe in 0..u64::from(self.geometry.members).min(self.geometry.stripes()) {
            let [first, second] = ring.places(stripe).map(|place| place.donor);
            let label = |donor: usize| self.labels.get(donor).map(String::as_str).unwrap_or_default();
            if label(first) == label(second) {
                return Err(Refusal::SameLabel { first, second, label: label(first).to_owned() });
            }
        }
        Ok(())
    }
}
