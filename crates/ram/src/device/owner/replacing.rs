//! What the owner does while another donor takes the place of one.
//!
//! Owns: when a move begins and ends, and what is told to the machine. Leaves to others: the plan (`crate::device::moves`), the
//! decision (`group`).

use std::sync::Arc;
use std::time::Duration;

use nectary_host::log::{self, LogLevel};
use tokio::sync::oneshot;

use super::device_owner::{DeviceOwner, OwnerTaskResult};
use super::moving::{self, MoveError, MoveErrorKind, MoveSides, Moved, PreparedDonor};
use super::remnants::{self, CurrentDevice};
use super::session::SessionTarget;
use super::survey::EPOCHS;
use crate::device::foreign::DonorExport;
use crate::device::address::DonorAddress;
use crate::device::moves::{EndedMove, MovePlan, MoveStep, MoveStop, NotNow, PART_BYTES, PreparationResult};
use crate::group::{Donor, MachineEvent};

impl DeviceOwner {
    /// The connection to a donor is gone: what was on its way may be done, or be done later.
    pub(super) fn lose(&mut self, donor: Donor, reason: String) {
        self.mover.lost(donor);
        self.peers[donor].end(reason);
    }

    /// The donor that is to be replaced, with the session that has its data; `None`: it has none.
    fn replaceable(&self, old: &str) -> Result<(Donor, Option<Arc<DonorExport>>), MoveError> {
        let donor = self.position(old)?;
        let device = &self.peers[donor].device;
        let name = |donor: Donor| &self.peers[donor].target.address.text;
        let why = match self.mover.check(donor, self.machine.group(), device.is_some()) {
            Ok(is_left) => return Ok((donor, device.clone().filter(|_| !is_left))),
            Err(NotNow::Moving(donor)) => format!("{} is being replaced", name(donor)),
            Err(NotNow::NotWhole(other)) => format!("another donor, {}, is not whole", name(other)),
            Err(NotNow::Silent) => format!("{} does not answer at the moment", name(donor)),
            Err(NotNow::Unsettled) => format!("{} is being left or filled", name(donor)),
        };
        Err(MoveError::new(MoveErrorKind::NotNow, why))
    }

    pub(super) fn replace(&mut self, old: &str, new: DonorAddress, reply: oneshot::Sender<Moved>) {
        let found = self.replaceable(old).and_then(|found| self.check_is_new(&new).map(|()| found));
        let (donor, former) = match found {
            Ok(found) => found,
            Err(why) => {
                let _ = reply.send(Err(why));
                return;
            }
        };
        // What is given back there would be taken from this move.
        self.emptying.retain(|(name, work)| {
            let is_same = *name == new.text;
            if is_same {
                work.abort();
            }
            !is_same && !work.is_finished()
        });
        // Other sessions of this client there, also for another place, have other numbers; a move uses two.
        let newest = self.peers.iter().map(|peer| peer.epoch).max().unwrap_or_default();
        let epoch = newest.max(EPOCHS) + 2 + self.mover.number();
        let target = SessionTarget { address: new, others: None, ..self.peers[donor].target.clone() };
        let members = &self.machine.group().view().members;
        let kept = (0..members.len()).filter(|other| *other != donor).map(|other| {
            let name = self.peers[other].target.address.text.clone();
            // Without redundancy, donors may fail together.
            let label = if self.geometry.zones().is_none() { self.labels[other].clone() } else { String::new() };
            (name, members[other].incarnation, label)
        });
        let kept: Vec<(String, u64, String)> = kept.collect();
        let (bytes, present) = (self.donor_bytes[donor], self.present());
        let plan = MovePlan::new(donor, bytes, PART_BYTES, self.now_us());
        let number = self.mover.begin(plan, former.is_none(), MoveSides::new(target.clone(), epoch, reply));
        let closed = self.direct.close_for_good();
        self.work.spawn(async move {
            closed.wait().await;
            OwnerTaskResult::Prepared(number, moving::prepare(target, epoch, bytes, present, former, kept).await)
        });
    }

    fn present(&self) -> CurrentDevice {
        let client = self.peers.first().map_or(0, |peer| peer.target.client);
        CurrentDevice { geometry: self.geometry, generation: self.machine.group().view().generation, client }
    }

    pub(super) fn prepared(&mut self, result: Result<(String, Option<PreparedDonor>), MoveError>) {
        let (label, ready) = match result {
            Ok(prepared) => prepared,
            Err(why) => return self.end_move(Err(why)),
        };
        let Some(prepared) = self.mover.prepared(self.machine.group()) else { return };
        let Some(moving) = self.mover.moving_mut() else { return };
        let (donor, sides) = (moving.donor(), &mut moving.session);
        match prepared {
            PreparationResult::Copies => (sides.label, sides.ready) = (label, ready),
            PreparationResult::IsBack => {
                let why = "the donor that was left is back";
                self.end_move(Err(MoveError::new(MoveErrorKind::NotNow, why)));
            }
            PreparationResult::TakesPlace => {
                // There is nothing to copy: the other donor is filled as if it were the former one, started again.
                let (target, epoch, peer) = (sides.target.clone(), sides.epoch, &mut self.peers[donor]);
                sides.left = Some(std::mem::replace(&mut peer.target, target));
                sides.label = std::mem::replace(&mut self.labels[donor], label);
                peer.epoch = peer.epoch.max(epoch);
                self.lose(donor, "another donor takes its place".to_owned());
                self.rename();
                self.step(MachineEvent::Disconnected { donor });
                self.connect(donor, Duration::ZERO);
            }
        }
    }

    /// The donor that took the place of a left one cannot be filled: the left one has its place again, and is filled if
    /// it returns before another spare is found. What the other one holds is given back as far as possible.
    pub(super) fn give_up_filling(&mut self, why: String) {
        let Some(moving) = self.mover.moving_mut() else { return };
        let (donor, sides) = (moving.donor(), &mut moving.session);
        let (left, label) = (sides.left.clone(), std::mem::take(&mut sides.label));
        self.end_move(Err(why.into()));
        self.mover.need.gave_up(self.now_us(), self.spares.list.len());
        let Some(left) = left else { return };
        self.labels[donor] = label;
        self.lose(donor, "its place was given to a donor that could not be filled".to_owned());
        let present = self.present();
        let peer = &mut self.peers[donor];
        let (other, epoch) = (std::mem::replace(&mut peer.target, left), peer.epoch + 1);
        peer.epoch += remnants::EMPTYINGS_MAX;
        self.rename();
        self.empty(other.address.text.clone(), async move { remnants::give_back(other, epoch, present).await });
        self.step(MachineEvent::Disconnected { donor });
        self.connect(donor, Duration::ZERO);
    }

    pub(super) fn copied(&mut self, number: u64, part: u64, result: Result<(), (bool, String)>) {
        self.mover.copied(number, part, result.is_ok());
        if let (Err((true, why)), Some(moving)) = (result, self.mover.moving()) {
            let name = moving.session.target.address.text.clone();
            self.end_move(Err(format!("{name}: {why}").into()));
        }
    }

    /// Lets a move go on; returns whether the machine was told something.
    pub(super) fn drive_move(&mut self) -> bool {
        loop {
            let next = self.mover.next(self.now_us(), self.machine.group());
            let number = self.mover.number();
            let Some(moving) = self.mover.moving_mut() else { return false };
            let (donor, sides) = (moving.donor(), &mut moving.session);
            match next {
                MoveStep::Wait => return false,
                MoveStep::Copy { part, offset, bytes } => {
                    let (Some(from), Some(ready)) = (&self.peers[donor].device, &sides.ready) else {
                        self.mover.copied(number, part, false);
                        return false;
                    };
                    let (from, to, stopped) = (from.clone(), ready.device.clone(), sides.stopped.clone());
                    self.work.spawn(async move {
                        OwnerTaskResult::Copied(number, part, moving::copy(from, to, stopped, offset, bytes).await)
                    });
                }
                MoveStep::GoOn => {
                    let kept = self.mover.take_kept();
                    kept.into_iter().for_each(|(request, body)| self.send(donor, request, body));
                }
                MoveStep::Switch => {
                    self.switch();
                    return true;
                }
                MoveStep::Empty => match sides.former.take() {
                    None => self.end_move(Ok(())),
                    Some(former) => {
                        self.work.spawn(async move { OwnerTaskResult::Emptied(number, remnants::empty(former).await) });
                    }
                },
                MoveStep::Done => self.end_move(Ok(())),
                MoveStep::Stop(stop) => self.stop_move(stop),
            }
        }
    }

    fn stop_move(&mut self, stop: MoveStop) {
        let (kind, why) = match stop {
            MoveStop::Left => {
                let why = "the donor was left meanwhile: nothing is lost; replace it again, which fills the other one";
                (MoveErrorKind::Failed, why.to_owned())
            }
            MoveStop::OtherLost(other) => {
                let name = &self.peers[other].target.address.text;
                let why = format!("{name} was lost meanwhile, and goes before: replace that one first");
                (MoveErrorKind::NotNow, why)
            }
            MoveStop::TakerLost => {
                // The device has gone on without either of them; this one can be a spare.
                let sides = self.mover.moving_mut().map(|moving| &mut moving.session);
                if let Some((left, former)) = sides.and_then(|sides| sides.left.clone().zip(sides.former.take())) {
                    self.empty(left.address.text, async move { _ = remnants::empty(former).await });
                }
                (MoveErrorKind::Failed, "it was lost right after it had taken the place".to_owned())
            }
            MoveStop::BothLost => {
                let why = "another donor was lost meanwhile, and this one is not filled";
                (MoveErrorKind::Failed, why.to_owned())
            }
        };
        self.end_move(Err(MoveError::new(kind, why)));
    }

    /// Everything is on the other donor, and nothing is on its way.
    fn switch(&mut self) {
        let Some(moving) = self.mover.moving_mut() else { return };
        let (donor, sides) = (moving.donor(), &mut moving.session);
        let Some(PreparedDonor { device, incarnation }) = sides.ready.take() else { return };
        std::mem::swap(&mut self.labels[donor], &mut sides.label);
        let (target, epoch, peer) = (sides.target.clone(), sides.epoch, &mut self.peers[donor]);
        sides.former = peer.device.take();
        peer.end("another donor takes its place".to_owned());
        peer.epoch = epoch.max(peer.epoch + 1);
        sides.left = Some(std::mem::replace(&mut peer.target, target));
        (peer.device, peer.reason) = (Some(device), None);
        peer.sessions += 1;
        self.mover.switched();
        self.rename();
        self.step(MachineEvent::Replaced { donor, incarnation });
        self.step(MachineEvent::Connected { donor, incarnation });
    }

    /// A donor failed before all were told of the switch: the former donor has its place again, with all it had.
    pub(super) fn restore(&mut self, donor: Donor) {
        let moving = self.mover.moving_mut().filter(|moving| moving.donor() == donor);
        let sides = moving.map(|moving| &mut moving.session);
        let Some((left, sides)) = sides.and_then(|sides| sides.left.clone().zip(Some(sides))) else {
            self.lose(donor, "its place was given back".to_owned());
            return self.connect(donor, Duration::ZERO);
        };
        sides.former = None;
        let (name, label) = (sides.target.address.text.clone(), std::mem::take(&mut sides.label));
        let other = self.peers[donor].device.take();
        self.lose(donor, "another donor had its place for a moment".to_owned());
        self.peers[donor].target = left;
        self.labels[donor] = label;
        self.rename();
        self.connect(donor, Duration::ZERO);
        if let Some(other) = other {
            self.empty(name, async move { _ = remnants::empty(other).await });
        }
        let why = "another donor failed at the moment of the switch: the former one stays, and nothing is lost";
        self.mover.need.try_again();
        self.end_move(Err(MoveError::new(MoveErrorKind::NotNow, why)));
    }

    /// Empties a donor that took no place, unless it gets one meanwhile.
    fn empty(&mut self, name: String, work: impl Future<Output = ()> + Send + 'static) {
        let work = self.work.spawn(async move {
            work.await;
            OwnerTaskResult::Dropped
        });
        self.emptying.push((name, work));
    }

    pub(super) fn emptied(&mut self, result: Result<(), String>) {
        if let Err(why) = result {
            let what = "what the former donor holds counts for nobody, and it could not be told to give it back";
            log::write(LogLevel::Warning, "ram", format_args!("{what}: {why}"));
        }
        self.end_move(Ok(()));
    }

    pub(super) fn end_move(&mut self, result: Moved) {
        let Some(EndedMove { donor, kept, session: mut sides, .. }) = self.mover.end(result.is_ok()) else { return };
        let name = sides.target.address.text.clone();
        if result.is_ok() {
            self.spares.used(&sides.target.address);
            self.rename();
        }
        if let Err(why) = &result {
            let former = &sides.left.as_ref().unwrap_or(&self.peers[donor].target).address.text;
            log::write(LogLevel::Warning, "ram", format_args!("{name} does not replace {former}: {why}"));
        } else {
            log::write(
                LogLevel::Note,
                "ram",
                format_args!("{}: donor {name} has replaced another one", self.peers[donor].target.id),
            );
        }
        kept.into_iter().for_each(|(request, body)| self.send(donor, request, body));
        if let Some(PreparedDonor { device, .. }) = sides.ready.take() {
            self.empty(name, async move { _ = remnants::empty(device).await });
        }
        // The report comes first: a caller who is told of the end sees it there.
        self.publish(true, false);
        sides.end(result);
    }
}
