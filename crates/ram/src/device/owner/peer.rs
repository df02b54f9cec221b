//! A donor as the owner of a device sees it: the connection, and its counters.

use std::sync::Arc;
use std::time::Duration;

use nectary_host::Shutdown;
use nectary_nbd::NbdDevice;

use super::session::SessionTarget;

/// The first pause between attempts to connect.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(20);

/// A donor and the connection to it.
pub(super) struct DonorPeer {
    pub(super) target: SessionTarget,
    pub(super) device: Option<Arc<NbdDevice>>,
    /// Counts connections and attempts; events of earlier ones are ignored.
    pub(super) epoch: u64,
    /// Set when the machine has given the connection up.
    pub(super) ended: Shutdown,
    pub(super) pause: Duration,
    /// Why there is no connection.
    pub(super) reason: Option<String>,
    /// Whether the donor had nothing of the device when it was connected, and has not been filled since.
    pub(super) was_empty: bool,
    pub(super) sessions: u64,
    pub(super) requests: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

impl DonorPeer {
    pub(super) fn new(target: SessionTarget, epoch: u64) -> DonorPeer {
        DonorPeer {
            target,
            device: None,
            epoch,
            ended: Shutdown::new(),
            pause: PAUSE_MIN,
            reason: None,
            was_empty: false,
            sessions: 0,
            requests: 0,
            read_bytes: 0,
            written_bytes: 0,
        }
    }

    /// The connection is gone: its answers are not waited for.
    pub(super) fn end(&mut self, reason: String) {
        self.device = None;
        self.reason = Some(reason);
        std::mem::take(&mut self.ended).request();
    }
}
