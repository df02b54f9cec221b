//! A donor as the owner of a device sees it: the connection, and its counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nectary_block::SurvivalLevel;
use nectary_host::Shutdown;

use super::session::SessionTarget;
use crate::device::foreign::DonorExport;
use crate::device::direct::{DonorLane, LaneCounters};

/// The first pause between attempts to connect.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(20);

/// A donor and the connection to it.
pub(super) struct DonorPeer {
    pub(super) target: SessionTarget,
    pub(super) device: Option<Arc<DonorExport>>,
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
    /// What completed and flushed writes survive on it.
    pub(super) survives: (SurvivalLevel, SurvivalLevel),
    /// Counters of the requests past the machine.
    pub(super) direct: Arc<LaneCounters>,
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
            survives: (SurvivalLevel::Host, SurvivalLevel::Host),
            direct: Arc::default(),
        }
    }

    /// Returns the session for requests past the machine.
    pub(super) fn lane(&self) -> Option<DonorLane> {
        let device = self.device.clone()?;
        Some(DonorLane { device, ended: self.ended.clone(), counters: self.direct.clone() })
    }

    /// Returns the numbers of requests, and of bytes read and written.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let LaneCounters { requests, read_bytes, written_bytes } = &*self.direct;
        let all = |count: u64, direct: &AtomicU64| count + direct.load(Ordering::Relaxed);
        (all(self.requests, requests), all(self.read_bytes, read_bytes), all(self.written_bytes, written_bytes))
    }

    /// The connection is gone: its answers are not waited for.
    pub(super) fn end(&mut self, reason: String) {
        self.device = None;
        self.reason = Some(reason);
        std::mem::take(&mut self.ended).request();
    }
}
