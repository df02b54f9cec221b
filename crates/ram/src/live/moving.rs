//! Putting another donor in the place of one: what a donor has is copied while the device is used, and then the other
//! one takes its place.
//!
//! Owns: which parts of the donor's memory the other one lacks, the last pause, and giving the memory of the former one
//! back. Promises: the former donor is trusted, and gets every write, until the other one has everything; so the device
//! is never less safe than before. If anything goes wrong before that, the former one stays, and the other one is
//! emptied. Leaves to others: the decision and that all are told of it (`mirror`, at `Event::Replaced`).
//!
//! | stage | it goes on when |
//! |---|---|
//! | connecting | this client owns the other donor, whose record is that of the former one |
//! | copying | few parts were changed since they were copied; then no request is sent for a moment, and the rest is copied |
//! | settling | the other donor is trusted, and all donors were told |
//! | emptying | the former donor was emptied, or emptying it failed |
//!
//! A donor that is left already has nothing to copy: the other one takes its place at once, and is filled like any
//! donor that is back (`filling`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nectary_block::format_size;
use nectary_nbd::NbdDevice;
use tokio::sync::oneshot;

use super::filling::{Filling, Seen};
use super::planted::{Bug, lost_after, planted};
use super::remnants::{self, Present, area, trim};
use super::report::MoveReport;
use super::session::{Away, Ended, Target, begin, incarnation};
use crate::donor::PROMISE_BYTES;
use crate::format::{Record, Stamp};
use crate::mirror::{Donor, DonorRequest, Reply, RequestId};

/// What is copied at a time. *Units*: bytes.
const PART_BYTES: u64 = 512 << 10;
/// Parts that are copied at a time.
const COPIES_MAX: usize = 2;
/// No request is sent while at most so many parts are copied.
const LAST_PARTS: usize = 8;
/// If the whole was copied so many times and still more parts are left, they are copied in pauses.
const ROUNDS_MAX: u64 = 4;
/// How long requests to the donor may be kept at a time; it would count as late soon after.
const PAUSE_MAX: Duration = Duration::from_millis(150);
/// How long they are sent at least before the next pause.
const PAUSE_EVERY: Duration = Duration::from_millis(100);

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

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Connecting,
    Copying,
    Settling,
    Emptying,
}

/// The other donor, owned by this client.
pub struct Ready {
    pub device: Arc<NbdDevice>,
    pub incarnation: u64,
}

/// A move under way.
pub struct Move {
    pub donor: Donor,
    pub target: Target,
    /// Of the session with the other donor.
    pub epoch: u64,
    pub stage: Stage,
    pub ready: Option<Ready>,
    /// The session with the former donor, for as long as it may still have something.
    pub former: Option<Arc<NbdDevice>>,
    /// The former donor, if it was left and the other one is filled: it is in use again if the other one is lost too.
    pub left: Option<Target>,
    /// The label of the donor that has no place: of the other one, then of the former one.
    pub label: String,
    bytes: u64,
    /// Parts that the other donor lacks.
    lacking: BTreeSet<u64>,
    copying: BTreeSet<u64>,
    copied: u64,
    paused: Option<Instant>,
    went_on: Instant,
    /// Requests that are kept meanwhile.
    pub kept: Vec<(RequestId, DonorRequest)>,
    began: Instant,
    filling: Filling,
    /// Whether nothing more may be copied.
    pub stopped: Arc<AtomicBool>,
    reply: Option<oneshot::Sender<Moved>>,
}

/// What to do next.
pub enum Next {
    Wait,
    /// Copy a part: its offset and length.
    Copy(u64, u64, u64),
    /// Send what was kept.
    GoOn,
    /// Nothing is lacking, and nothing is on its way.
    Switch,
}

impl Move {
    pub fn new(donor: Donor, target: Target, epoch: u64, bytes: u64, reply: oneshot::Sender<Moved>) -> Move {
        let now = Instant::now();
        Move {
            donor,
            target,
            epoch,
            stage: Stage::Connecting,
            ready: None,
            former: None,
            left: None,
            label: String::new(),
            bytes,
            lacking: (0..bytes.div_ceil(PART_BYTES)).collect(),
            copying: BTreeSet::new(),
            copied: 0,
            paused: None,
            went_on: now,
            kept: Vec::new(),
            began: now,
            filling: Filling::default(),
            stopped: Arc::default(),
            reply: Some(reply),
        }
    }

    /// Bytes of the donor change, or may have been changed.
    pub fn touch(&mut self, offset: u64, bytes: u64) {
        if planted(Bug::DrainForgets) {
            return;
        }
        if bytes > 0 && matches!(self.stage, Stage::Connecting | Stage::Copying) {
            let end = (offset + bytes).min(self.bytes);
            self.lacking.extend(offset / PART_BYTES..end.div_ceil(PART_BYTES));
        }
    }

    /// Whether requests to the donor are kept.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// The other donor has everything: what was kept comes again on the next connection.
    pub fn settle(&mut self) {
        self.kept.clear();
        (self.paused, self.stage) = (None, Stage::Settling);
    }

    /// Returns why the other donor has to be given up, if it has the place already.
    pub fn hopeless(&mut self, seen: Seen) -> Option<String> {
        let is_placed = self.stage == Stage::Settling;
        is_placed.then(|| self.filling.hopeless(Instant::now(), lost_after(), seen))?
    }

    /// What to do while copying. `is_idle`: no request is on its way to the donor; `may_switch`: all others are fine.
    pub fn next(&mut self, is_idle: bool, may_switch: bool) -> Next {
        let is_little = self.lacking.len() <= LAST_PARTS;
        let has_tried = self.copied > ROUNDS_MAX * self.bytes.div_ceil(PART_BYTES);
        match self.paused {
            Some(since) if since.elapsed() >= PAUSE_MAX || !may_switch => {
                (self.paused, self.went_on) = (None, Instant::now());
                return Next::GoOn;
            }
            Some(_) if !is_idle => return Next::Wait,
            Some(_) if self.lacking.is_empty() && self.copying.is_empty() => return Next::Switch,
            None if may_switch && (is_little || has_tried) && self.went_on.elapsed() >= PAUSE_EVERY => {
                self.paused = Some(Instant::now());
                return if is_idle { self.next(is_idle, may_switch) } else { Next::Wait };
            }
            _ => {}
        }
        if self.copying.len() >= COPIES_MAX {
            return Next::Wait;
        }
        // A part that is being copied and was changed meanwhile comes again after that.
        let Some(part) = self.lacking.iter().copied().find(|part| !self.copying.contains(part)) else {
            return Next::Wait;
        };
        self.lacking.remove(&part);
        self.copying.insert(part);
        let offset = part * PART_BYTES;
        Next::Copy(part, offset, PART_BYTES.min(self.bytes - offset))
    }

    /// A part was copied, or not.
    pub fn copied(&mut self, part: u64, is_done: bool) {
        self.copying.remove(&part);
        match is_done {
            true => self.copied += 1,
            false => _ = self.lacking.insert(part),
        }
    }

    /// Ends it.
    pub fn end(&mut self, result: Moved) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(result);
        }
    }

    pub fn report(&self) -> MoveReport {
        let lacking = (self.lacking.len() + self.copying.len()) as u64 * PART_BYTES;
        let copied = self.bytes.saturating_sub(lacking);
        MoveReport { donor: self.donor, copied, all: self.bytes, elapsed_ms: self.began.elapsed().as_millis() as u64 }
    }
}

/// Connects to the other donor and makes this client its owner, with the record of the former one. `others` are the
/// names, incarnations and labels of the donors that stay. The epoch before `epoch` is used, too. *Returns* the label of
/// the other donor, too.
pub async fn prepare(
    target: Target,
    epoch: u64,
    bytes: u64,
    present: Present,
    former: Option<Arc<NbdDevice>>,
    others: Vec<(String, u64, String)>,
) -> Result<(String, Option<Ready>), MoveError> {
    let name = target.address.text.clone();
    let away = |away: Away| {
        let kind = match away {
            Away::Unreachable(_) => MoveErrorKind::Absent,
            Away::Refused(_) | Away::OtherMake => MoveErrorKind::Unsuitable,
            Away::Absent(_) | Away::Cut(_) => MoveErrorKind::Failed,
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
        Err(Away::Absent(_)) if free < needed => {
            return unsuitable(format!("{name} has {} free, {} are needed", format_size(free), format_size(needed)));
        }
        Err(Away::Absent(_)) => target.connect(epoch, Some(bytes)).await.map_err(away)?,
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
        if !Record::is_absent(&there) {
            remnants::empty(reached.device).await.map_err(failed)?;
        }
        return Ok((label, None));
    };
    let (of_former, _) = area(&former).await?;
    let record = Record::decode(&of_former).map_err(|error| format!("the record of the device: {error}"))?;
    let expected = Stamp::of(&there);
    let stamp = Stamp { revision: expected.next_revision(), ..record.stamp };
    let record = bytes::Bytes::from(Record { stamp, ..record }.encode());
    match begin(&reached.device, DonorRequest::SwapMetadata { expected, record }).await {
        Ended::Answered(Reply::Done) => {}
        Ended::Answered(_) => return Err(failed("another client uses it at this moment".to_owned())),
        Ended::Lost(reason) => return Err(failed(reason)),
    }
    // What an earlier attempt left there is no part of it.
    let size = super::session::window(&reached.device);
    trim(&reached.device, 0..size).await.map_err(failed)?;
    Ok((label, Some(Ready { incarnation: incarnation(&reached.page), device: reached.device })))
}

/// Copies a part; *errors*: whether the other donor is the one that failed, and why.
pub async fn copy(
    from: Arc<NbdDevice>,
    to: Arc<NbdDevice>,
    stopped: Arc<AtomicBool>,
    offset: u64,
    bytes: u64,
) -> Result<(), (bool, String)> {
    let data = match begin(&from, DonorRequest::Read { offset, bytes }).await {
        Ended::Answered(Reply::Data(data)) if data.len() as u64 == bytes => data,
        Ended::Answered(_) => return Err((false, "the donor does not give what it has".to_owned())),
        Ended::Lost(reason) => return Err((false, reason)),
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
        Ended::Answered(Reply::Done) => Ok(()),
        Ended::Answered(_) => Err((true, "it does not take what it is given".to_owned())),
        Ended::Lost(reason) => Err((true, reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::address::Address;

    fn moving(bytes: u64) -> (Move, oneshot::Receiver<Moved>) {
        let (reply, moved) = oneshot::channel();
        let address = Address::parse("h1:7070").unwrap();
        let target = Target { address, id: "disk".to_owned(), client: 1, only_reads: false };
        let mut moving = Move::new(0, target, 2, bytes, reply);
        moving.stage = Stage::Copying;
        (moving, moved)
    }

    #[test]
    fn a_part_that_changes_while_it_is_copied_is_copied_again_before_the_switch() {
        let (mut moving, _moved) = moving(40 * PART_BYTES - 8);
        let mut copied = Vec::new();
        for _ in 0..200 {
            match moving.next(true, true) {
                Next::Copy(part, offset, bytes) => {
                    assert_eq!(bytes, if part == 39 { PART_BYTES - 8 } else { PART_BYTES });
                    if copied.len() == 5 {
                        moving.touch(offset + 7, 1);
                        moving.touch(40 * PART_BYTES, 99);
                    }
                    copied.push(part);
                    moving.copied(part, copied.len() != 9);
                }
                Next::Switch => break,
                Next::Wait | Next::GoOn => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        assert!(moving.is_paused() && copied.len() == 42, "{copied:?}");
        assert_eq!(moving.report().copied, 40 * PART_BYTES - 8);
        copied.sort_unstable();
        copied.dedup();
        assert_eq!(copied, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn requests_on_their_way_and_donors_that_are_away_hold_the_switch_up() {
        let (mut moving, _moved) = moving(PART_BYTES);
        std::thread::sleep(PAUSE_EVERY);
        assert!(matches!(moving.next(false, false), Next::Copy(0, 0, PART_BYTES)));
        moving.copied(0, true);
        assert!(matches!(moving.next(true, false), Next::Wait) && !moving.is_paused());
        assert!(matches!(moving.next(false, true), Next::Wait) && moving.is_paused());
        assert!(matches!(moving.next(true, false), Next::GoOn) && !moving.is_paused());
        std::thread::sleep(PAUSE_EVERY);
        assert!(matches!(moving.next(true, true), Next::Switch));
    }
}
