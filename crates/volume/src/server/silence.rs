//! Notices a disk that does not answer.
//!
//! Owns: how long requests of the journal have been under way without an end of any. Promises: a leader whose disk is
//! silent for longer than its lease ends by itself, although its requests never end. Only time counts in which this
//! process ran: after a stop, the disk gets the time to answer.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::ServerError;
use crate::journal::{DiskPulse, Error};

/// How often the disk's signs of life are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// A longer time between two looks is a stop of this process.
const LOOK_MAX: Duration = Duration::from_millis(200);

/// Waits until the disk has been silent for `limit`; returns the reason for which the leader of `epoch` ends.
pub(super) async fn silent(pulse: DiskPulse, epoch: u64, limit: Duration) -> ServerError {
    let (mut before, mut quiet, mut looked) = (pulse.look().0, Duration::ZERO, Instant::now());
    loop {
        sleep(LOOK).await;
        let now = Instant::now();
        let passed = now.duration_since(looked).min(LOOK_MAX);
        let (ended, is_under_way) = pulse.look();
        quiet = if is_under_way && ended == before { quiet + passed } else { Duration::ZERO };
        (before, looked) = (ended, now);
        if quiet >= limit {
            let why = format!("the disk has not answered for {} ms, longer than the lease", quiet.as_millis());
            return Error::Lost { epoch, why }.into();
        }
    }
}
