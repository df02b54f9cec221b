//! A move as the owner of a device carries it out: the donors, the sessions with them, and copying.
//!
//! Owns: preparing the other donor, copying a part, and the errors. Leaves to others: the plan (`crate::device::moves`), what is
//! told to the machine (`replacing`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nectary_block::format_size;
use tokio::sync::oneshot;

use super::remnants::{self, CurrentDevice, area, trim};
use super::report::MoveReport;
use super::session::{DonorConnectError, DonorRequestOutcome, SessionTarget, begin, incarnation};
use crate::device::foreign::DonorExport;
use crate::device::moves::MovePlan;
use crate::donor::PROMISE_BYTES;
use crate::format::{DonorRecord, RecordStamp};
use crate::group::{DonorReply, DonorRequest, Moment};

/// How a move ends.
pub type Moved = Result<(), MoveError>;

/// The kinds of reasons why a donor is not replaced; their remedies differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveErrorKind {
    /// The device has no such donor.
    NoSuchDonor,
    /// The text names no donor.
    Invalid,
    /// The other donor does not answer.
    Absent,
    /// The other donor cannot have the place.
    Unsuitable,
    /// It may work later: a donor is not whole, or is being replaced.
    NotNow,
    /// No spare is left.
    NoSpare,
    /// Something failed meanwhile.
    Failed,
}

/// Why a donor is not replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct MoveError {
    /// The kind.
    pub kind: MoveErrorKind,
    /// The reason, in words.
    pub message: String,
}

impl MoveError {
    pub(super) fn new(kind: MoveErrorKind, message: impl Into<String>) -> MoveError {
        MoveError { kind, message: message.into() }
    }
}

impl From<String> for MoveError {
    fn from(message: String) -> MoveError {
        MoveError::new(MoveErrorKind::Failed, message)
    }
}

/// The other donor, owned by this client.
pub struct PreparedDonor {
    pub device: Arc<DonorExport>,
    pub incarnation: u64,
}

/// Both sides of a move under way: what the owner has of the other donor and of the former one.
pub struct MoveSides {
    /// The other donor.
    pub target: SessionTarget,
    /// Of the session with the other donor.
    pub epoch: u64,
    pub ready: Option<PreparedDonor>,
    /// The session with the former donor, for as long as it may still have something.
    pub former: Option<Arc<DonorExport>>,
    /// The former donor, once the other one has its place: it is in use again if the other one has to give it back.
    pub left: Option<SessionTarget>,
    /// The label of the donor that has no place: of the other one, then of the former one.
    pub label: String,
    /// Whether nothing more may be copied.
    pub stopped: Arc<AtomicBool>,
    reply: Option<oneshot::Sender<Moved>>,
}

impl MoveSides {
    pub fn new(target: SessionTarget, epoch: u64, reply: oneshot::Sender<Moved>) -> MoveSides {
        MoveSides {
            target,
            epoch,
            ready: None,
            former: None,
            left: None,
            label: String::new(),
            stopped: Arc::default(),
            reply: Some(reply),
        }
    }

    /// Says how the move has ended.
    pub fn end(mut self, result: Moved) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(result);
        }
    }
}

/// The report of a move with this plan.
pub fn move_report(plan: &MovePlan, now_us: Moment) -> MoveReport {
    let (copied, all) = plan.progress();
    let elapsed_ms = now_us.saturating_sub(plan.began_us()) / 1000;
    MoveReport { donor: plan.donor, copied, all, elapsed_ms }
}

/// Connects to the other donor and makes this client its owner, with the record of the former one. `others` are the
/// names, incarnations and labels of the donors that stay. The epoch before `epoch` is used, too. *Returns* the label of
/// the other donor, too.
pub async fn prepare(
    target: SessionTarget,
    epoch: u64,
    bytes: u64,
    present: CurrentDevice,
    former: Option<Arc<DonorExport>>,
    others: Vec<(String, u64, String)>,
) -> Result<(String, Option<PreparedDonor>), MoveError> {
    let name = target.address.text.clone();
    let away = |away: DonorConnectError| {
        let kind = match away {
            DonorConnectError::Unreachable(_) => MoveErrorKind::Absent,
            DonorConnectError::Refused(_) | DonorConnectError::OtherMake => MoveErrorKind::Unsuitable,
            DonorConnectError::Absent(_) | DonorConnectError::Cut(_) => MoveErrorKind::Failed,
        };
        MoveError::new(kind, format!("{name}: {}", away.reason()))
    };
    let unsuitable = |why: String| Err(MoveError::new(MoveErrorKind::Unsuitable, why));
    let failed = |why: String| MoveError::from(format!("{name}: {why}"));
    let page = target.page().await.map_err(away)?;
    let label = super::survey::label_of(&target.address, &page);
    if let Some((other, ..)) = others.iter().find(|(_, number, _)| *number == incarnation(&page)) {
        return unsuitable(format!("{name} is {other} under another name, and a donor of the device already"));
    }
    if let Some((other, ..)) = others.iter().find(|(.., theirs)| *theirs == label) {
        return unsuitable(format!("{name} and {other} have the label {label} and may fail together"));
    }
    let (needed, free) = (bytes.next_multiple_of(PROMISE_BYTES), page.free_bytes);
    let mut reached = match target.connect(epoch - 1, None).await {
        Ok(reached) => reached,
        Err(DonorConnectError::Absent(_)) if free < needed => {
            return unsuitable(format!("{name} has {} free, {} are needed", format_size(free), format_size(needed)));
        }
        Err(DonorConnectError::Absent(_)) => target.connect(epoch, Some(bytes)).await.map_err(away)?,
        Err(other) => return Err(away(other)),
    };
    let (mut there, mut is_owned) = area(&reached.device).await?;
    if present.is_free(&there) && !is_owned && super::session::window(&reached.device) < bytes {
        // What an earlier attempt left there is as long as the device was then.
        reached = target.connect(epoch, Some(bytes)).await.map_err(away)?;
        (there, is_owned) = area(&reached.device).await?;
    }
    if is_owned || !present.is_free(&there) || super::session::window(&reached.device) < bytes {
        return unsuitable(format!("{name} has a device of this name already"));
    }
    let Some(former) = former else {
        // The record of an earlier attempt may be that of another place.
        if !DonorRecord::is_absent(&there) {
            remnants::empty(reached.device).await.map_err(failed)?;
        }
        return Ok((label, None));
    };
    let (of_former, _) = area(&former).await?;
    let record = DonorRecord::decode(&of_former).map_err(|error| format!("the record of the device: {error}"))?;
    let expected = RecordStamp::of(&there);
    let stamp = RecordStamp { revision: expected.next_revision(), ..record.stamp };
    let record = bytes::Bytes::from(DonorRecord { stamp, ..record }.encode());
    match begin(&reached.device, DonorRequest::SwapMetadata { expected, record }).await {
        DonorRequestOutcome::Answered(DonorReply::Done) => {}
        DonorRequestOutcome::Answered(_) => return Err(failed("another client uses it at this moment".to_owned())),
        DonorRequestOutcome::Lost(reason) => return Err(failed(reason)),
    }
    // What an earlier attempt left there is no part of it.
    let size = super::session::window(&reached.device);
    trim(&reached.device, 0..size).await.map_err(failed)?;
    Ok((label, Some(PreparedDonor { incarnation: incarnation(&reached.page), device: reached.device })))
}

/// Copies a part; *errors*: whether the other donor is the one that failed, and why.
pub async fn copy(
    from: Arc<DonorExport>,
    to: Arc<DonorExport>,
    stopped: Arc<AtomicBool>,
    offset: u64,
    bytes: u64,
) -> Result<(), (bool, String)> {
    let data = match begin(&from, DonorRequest::Read { offset, bytes }).await {
        DonorRequestOutcome::Answered(DonorReply::Data(data)) if data.len() as u64 == bytes => data,
        DonorRequestOutcome::Answered(_) => return Err((false, "the donor does not give what it has".to_owned())),
        DonorRequestOutcome::Lost(reason) => return Err((false, reason)),
    };
    // Zeroes need no memory there.
    let body = match data.iter().all(|byte| *byte == 0) {
        true => DonorRequest::Trim { offset, bytes },
        false => DonorRequest::Write { offset, data, force: false },
    };
    if stopped.load(Ordering::Relaxed) {
        return Err((false, "it was given up".to_owned()));
    }
    match begin(&to, body).await {
        DonorRequestOutcome::Answered(DonorReply::Done) => Ok(()),
        DonorRequestOutcome::Answered(_) => Err((true, "it does not take what it is given".to_owned())),
        DonorRequestOutcome::Lost(reason) => Err((true, reason)),
    }
}
