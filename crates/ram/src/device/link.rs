//! A device's link to one donor: sessions, and requests that outlive them.
//!
//! Owns: the state of the donor, and the time for which a request waits for it. If a session ends, its requests are
//! sent again on the next one, as long as the donor has the same incarnation, which means that it still has every
//! acknowledged write. Each session has its own epoch on the donor. From the first request of a later session on, the
//! donor refuses late requests of earlier ones, so the late first copy of a repeated write cannot overwrite newer data.
//!
//! | state | meaning | a request |
//! |---|---|---|
//! | up | a session exists | is sent |
//! | down | the session has ended; `keep` reconnects | waits until `patience` has passed since the end, then fails |
//! | lost | the donor has another incarnation, or is a server without one | fails at once, until the device is opened
//! again |
//!
//! Another NBD server has no incarnation and no epochs: it is lost when its first session ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nectary_block::{DeviceCounters, DeviceErrorKind, Error, IoFuture};
use nectary_host::Shutdown;
use nectary_nbd::NbdDevice;
use tokio::sync::watch;

use super::connect::{LabelledSession, LinkTarget, UnreachableDonor};
use super::label::DonorLabel;

/// The first and the longest pause between two attempts to reconnect.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A session with a donor.
pub(super) struct LinkSession {
    device: NbdDevice,
    /// Set when no caller may wait for answers of this session any more.
    ended: Shutdown,
}

#[derive(Clone)]
enum DonorLinkState {
    Up(Arc<LinkSession>),
    Down { since: Instant, reason: Arc<str> },
    Lost { reason: Arc<str> },
}

/// The link to one donor.
pub(super) struct DonorLink {
    target: LinkTarget,
    label: DonorLabel,
    patience: Duration,
    state: watch::Sender<DonorLinkState>,
    requests: AtomicU64,
    sent_again: AtomicU64,
    failed: AtomicU64,
    sessions: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl DonorLink {
    /// Makes a link with its first session; `label` is the donor's present label.
    pub fn new(target: LinkTarget, label: DonorLabel, reached: LabelledSession, patience: Duration) -> DonorLink {
        let session = LinkSession { device: reached.device, ended: Shutdown::new() };
        DonorLink {
            target,
            label,
            patience,
            state: watch::Sender::new(DonorLinkState::Up(Arc::new(session))),
            requests: AtomicU64::new(0),
            sent_again: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            sessions: AtomicU64::new(1),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
        }
    }

    /// Returns the donor's name for messages.
    pub fn name(&self) -> &str {
        &self.target.address.text
    }

    /// Does a request, and repeats it on later sessions if one ends. `send` begins the request on a session.
    ///
    /// *Errors*: the donor's error; [`DeviceErrorKind::Io`] when the donor is lost, or has been away or silent for
    /// `patience`; [`DeviceErrorKind::TimedOut`] at the caller's deadline. The error's range and device are those of the
    /// donor, not of the caller.
    pub async fn run<T>(
        &self,
        deadline: Option<Instant>,
        mut send: impl FnMut(&NbdDevice) -> IoFuture<T>,
    ) -> Result<T, DonorFailure> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let patience = Instant::now() + self.patience;
        let limit = deadline.map_or(patience, |deadline| deadline.min(patience));
        let done = loop {
            let session = match self.session(limit, limit < patience).await {
                Ok(session) => session,
                Err(failed) => break Err(failed),
            };
            let sent = send(&session.device);
            let answer = tokio::select! {
                biased;
                answer = tokio::time::timeout_at(limit.into(), sent) => answer,
                () = session.ended.requested() => {
                    self.sent_again.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
            };
            match answer {
                Ok(Ok(done)) => break Ok(done),
                // The donor refused the request because the session is outdated; it is sent again on the next session.
                Ok(Err(_)) if session.ended.is_requested() => {
                    self.sent_again.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Err(error)) => match session.device.failure() {
                    // The error is the donor's own answer.
                    None => break Err(DonorFailure { kind: error.kind, detail: error.detail }),
                    Some(reason) => {
                        self.end(&session, &reason);
                        self.sent_again.fetch_add(1, Ordering::Relaxed);
                    }
                },
                Err(_) if limit < patience => break Err(self.late()),
                Err(_) => {
                    let reason = format!("it has not answered for {:?}", self.patience);
                    // The donor may still execute the request, so the session ends before a later request is sent.
                    self.end(&session, &reason);
                    break Err(DonorFailure { kind: DeviceErrorKind::Io, detail: reason });
                }
            }
        };
        if done.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        done
    }

    /// Returns the present session; while the donor is down, waits for one until `limit`, which may be the caller's
    /// deadline.
    async fn session(&self, limit: Instant, is_deadline: bool) -> Result<Arc<LinkSession>, DonorFailure> {
        loop {
            let state = self.state.borrow().clone();
            let (since, reason) = match state {
                DonorLinkState::Up(session) => return Ok(session),
                DonorLinkState::Lost { reason } => {
                    return Err(DonorFailure { kind: DeviceErrorKind::Io, detail: format!("it is lost: {reason}") });
                }
                DonorLinkState::Down { since, reason } => (since, reason),
            };
            let until = limit.min(since + self.patience);
            let mut state = self.state.subscribe();
            let is_over = |state: &DonorLinkState| !matches!(state, DonorLinkState::Down { .. });
            if tokio::time::timeout_at(until.into(), state.wait_for(is_over)).await.is_err() {
                let away = since.elapsed();
                if is_deadline && away < self.patience {
                    return Err(self.late());
                }
                let detail = format!("it has been away for {:.1} s: {reason}", away.as_secs_f64());
                return Err(DonorFailure { kind: DeviceErrorKind::Io, detail });
            }
        }
    }

    fn late(&self) -> DonorFailure {
        let detail = "the deadline passed before it answered".to_owned();
        DonorFailure { kind: DeviceErrorKind::TimedOut, detail }
    }

    /// Ends a session, if it is still the present one. All its requests are sent again.
    fn end(&self, session: &Arc<LinkSession>, reason: &str) {
        self.state.send_if_modified(|state| {
            let is_up = matches!(state, DonorLinkState::Up(up) if Arc::ptr_eq(up, session));
            if is_up {
                let reason: Arc<str> = reason.into();
                *state = match self.target.can_return() {
                    true => DonorLinkState::Down { since: Instant::now(), reason },
                    false => DonorLinkState::Lost { reason },
                };
            }
            is_up
        });
        session.ended.request();
    }

    /// Reconnects whenever the session ends, until the donor is lost. The caller must end this task with the device.
    pub async fn keep(self: Arc<DonorLink>) {
        let mut states = self.state.subscribe();
        let mut epoch = 1;
        loop {
            let waited =
                states.wait_for(|state| !matches!(state, DonorLinkState::Up(_))).await.map(|state| state.clone());
            let Ok(DonorLinkState::Down { since, .. }) = waited else { return };
            let mut pause = PAUSE_MIN;
            let next = loop {
                epoch += 1;
                match self.target.connect_again(epoch, &self.label, self.patience).await {
                    Ok(reached) => {
                        self.sessions.fetch_add(1, Ordering::Relaxed);
                        let session = LinkSession { device: reached.device, ended: Shutdown::new() };
                        break DonorLinkState::Up(Arc::new(session));
                    }
                    Err(UnreachableDonor { reason, is_lost: true }) => {
                        break DonorLinkState::Lost { reason: reason.into() };
                    }
                    Err(UnreachableDonor { reason, is_lost: false }) => {
                        self.state.send_replace(DonorLinkState::Down { since, reason: reason.into() });
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            };
            self.state.send_replace(next);
        }
    }

    /// Adds to the counters of transferred bytes.
    pub fn count(&self, read_bytes: u64, written_bytes: u64) {
        self.read_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        self.written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
    }

    /// Returns whether the donor is up, and whether it is lost.
    pub fn condition(&self) -> (bool, bool) {
        let state = self.state.borrow();
        (matches!(*state, DonorLinkState::Up(_)), matches!(*state, DonorLinkState::Lost { .. }))
    }

    /// Returns the counters.
    pub fn figures(&self) -> DeviceCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (is_up, is_lost) = self.condition();
        let values = vec![
            ("number", self.label.number as u64 + 1),
            ("up", u64::from(is_up)),
            ("lost", u64::from(is_lost)),
            ("share_bytes", self.label.shares[self.label.number]),
            ("sessions", load(&self.sessions)),
            ("requests", load(&self.requests)),
            ("sent_again", load(&self.sent_again)),
            ("failed", load(&self.failed)),
            ("read_bytes", load(&self.read_bytes)),
            ("written_bytes", load(&self.written_bytes)),
        ];
        DeviceCounters { device: "donor", values }
    }
}

/// A request that failed on one donor.
#[derive(Debug, Clone)]
pub(super) struct DonorFailure {
    pub kind: DeviceErrorKind,
    pub detail: String,
}

impl DonorFailure {
    /// Converts the failure to an error of the device, for the operation that sent the request.
    pub fn of(self, donor: &str, error: impl FnOnce(DeviceErrorKind, String) -> Error) -> Error {
        error(self.kind, format!("donor {donor}: {}", self.detail))
    }
}
