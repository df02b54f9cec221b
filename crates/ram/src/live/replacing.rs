//! What the owner does while another donor takes the place of one.
//!
//! Owns: when a move begins and ends, and what is told to the machine. Leaves to others: the plan (`crate::moving`), the
//! decision (`mirror`).

use std::sync::Arc;
use std::time::Duration;

use nectary_host::log::{self, Level};
use nectary_nbd::NbdDevice;
use tokio::sync::oneshot;

use super::moving::{self, Move, MoveError, MoveErrorKind, Moved, Ready};
use super::owner::{Done, Owner};
use super::remnants::{self, Present};
use super::session::Target;
use super::survey::EPOCHS;
use crate::device::address::Address;
use crate::mirror::{Donor, Event, Standing};
use crate::moving::{Next, Stop};

impl Owner {
    /// The connection to a donor is gone: what was on its way may be done, or be done later.
    pub(super) fn lose(&mut self, donor: Donor, reason: String) {
        let ranges = std::mem::take(&mut self.peers[donor].under_way);
        if let Some(moving) = self.moving.as_mut().filter(|moving| moving.donor() == donor) {
            ranges.into_values().for_each(|(offset, bytes)| moving.touch(offset, bytes));
            moving.kept.clear();
        }
        self.peers[donor].end(reason);
    }

    /// The donor that is to be replaced, with the session that has its data; `None`: it has none.
    fn replaceable(&self, old: &str) -> Result<(Donor, Option<Arc<NbdDevice>>), MoveError> {
        let donor = self.position(old)?;
        let not_now = |why: String| Err(MoveError::new(MoveErrorKind::NotNow, why));
        let name = |donor: Donor| &self.peers[donor].target.address.text;
        if let Some(moving) = &self.moving {
            return not_now(format!("{} is being replaced", name(moving.donor())));
        }
        let standing = self.machine.standing();
        if let Some(other) = (0..standing.len()).find(|other| *other != donor && standing[*other] != Standing::Trusted)
        {
            return not_now(format!("another donor, {}, is not whole", name(other)));
        }
        match (standing[donor], &self.peers[donor].device) {
            (Standing::Trusted, Some(device)) => Ok((donor, Some(device.clone()))),
            (Standing::Trusted, None) => not_now(format!("{} does not answer at the moment", name(donor))),
            (Standing::Out, _) => Ok((donor, None)),
            _ => not_now(format!("{} is being left or filled", name(donor))),
        }
    }

    pub(super) fn replace(&mut self, old: &str, new: Address, reply: oneshot::Sender<Moved>) {
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
        let epoch = newest.max(EPOCHS) + 2 + self.moves;
        let target = Target { address: new, ..self.peers[donor].target.clone() };
        let members = &self.machine.view().members;
        let kept = (0..members.len()).filter(|other| *other != donor).map(|other| {
            let name = self.peers[other].target.address.text.clone();
            (name, members[other].incarnation, self.labels[other].clone())
        });
        let kept: Vec<(String, u64, String)> = kept.collect();
        self.moves += 1;
        let (number, bytes, present) = (self.moves, self.donor_bytes, self.present());
        self.moving = Some(Move::new(donor, target.clone(), epoch, bytes, self.now_us(), reply));
        self.work.spawn(async move {
            Done::Prepared(number, moving::prepare(target, epoch, bytes, present, former, kept).await)
        });
    }

    fn present(&self) -> Present {
        let client = self.peers.first().map_or(0, |peer| peer.target.client);
        Present { geometry: self.geometry, generation: self.machine.view().generation, client }
    }

    pub(super) fn prepared(&mut self, result: Result<(String, Option<Ready>), MoveError>) {
        let Some(moving) = &mut self.moving else { return };
        match result {
            Err(why) => self.end_move(Err(why)),
            Ok((label, Some(ready))) => {
                (moving.label, moving.ready) = (label, Some(ready));
                moving.plan.prepared();
            }
            Ok((label, None)) => {
                // There is nothing to copy: the other donor is filled as if it were the former one, started again.
                let (donor, target, epoch) = (moving.donor(), moving.target.clone(), moving.epoch);
                if self.machine.standing()[donor] != Standing::Out {
                    let why = "the donor that was left is back";
                    return self.end_move(Err(MoveError::new(MoveErrorKind::NotNow, why)));
                }
                self.lose(donor, "another donor takes its place".to_owned());
                let peer = &mut self.peers[donor];
                let left = std::mem::replace(&mut peer.target, target);
                peer.epoch = peer.epoch.max(epoch);
                if let Some(moving) = &mut self.moving {
                    moving.plan.placed();
                    moving.left = Some(left);
                    moving.label = std::mem::replace(&mut self.labels[donor], label);
                }
                self.rename();
                self.step(Event::Disconnected { donor });
                self.connect(donor, Duration::ZERO);
            }
        }
    }

    /// The donor that took the place of a left one cannot be filled: the left one has its place again, and is filled if
    /// it returns before another spare is found. What the other one holds is given back as far as possible.
    pub(super) fn give_up_filling(&mut self, why: String) {
        let Some(moving) = &mut self.moving else { return };
        let (donor, left, label) = (moving.donor(), moving.left.clone(), std::mem::take(&mut moving.label));
        self.end_move(Err(why.into()));
        let now_us = self.now_us();
        self.spares.try_another(now_us);
        let Some(left) = left else { return };
        self.labels[donor] = label;
        self.lose(donor, "its place was given to a donor that could not be filled".to_owned());
        let present = self.present();
        let peer = &mut self.peers[donor];
        let (other, epoch) = (std::mem::replace(&mut peer.target, left), peer.epoch + 1);
        peer.epoch += remnants::EMPTYINGS_MAX;
        self.rename();
        self.empty(other.address.text.clone(), async move { remnants::give_back(other, epoch, present).await });
        self.step(Event::Disconnected { donor });
        self.connect(donor, Duration::ZERO);
    }

    pub(super) fn copied(&mut self, part: u64, result: Result<(), (bool, String)>) {
        let Some(moving) = &mut self.moving else { return };
        moving.plan.copied(part, result.is_ok());
        if let Err((true, why)) = result {
            let name = moving.target.address.text.clone();
            self.end_move(Err(format!("{name}: {why}").into()));
        }
    }

    /// Lets a move go on; returns whether the machine was told something.
    pub(super) fn drive_move(&mut self) -> bool {
        loop {
            let now_us = self.now_us();
            let Some(moving) = &mut self.moving else { return false };
            let donor = moving.donor();
            let peer = &self.peers[donor];
            match moving.plan.next(now_us, self.machine.members(), peer.under_way.is_empty()) {
                Next::Wait => return false,
                Next::Copy { part, offset, bytes } => {
                    let (Some(from), Some(ready)) = (&peer.device, &moving.ready) else {
                        moving.plan.copied(part, false);
                        return false;
                    };
                    let (from, to) = (from.clone(), ready.device.clone());
                    let (number, stopped) = (self.moves, moving.stopped.clone());
                    self.work.spawn(async move {
                        Done::Copied(number, part, moving::copy(from, to, stopped, offset, bytes).await)
                    });
                }
                Next::GoOn => {
                    let kept = std::mem::take(&mut moving.kept);
                    kept.into_iter().for_each(|(request, body)| self.send(donor, request, body));
                }
                Next::Switch => {
                    self.switch();
                    return true;
                }
                Next::Empty => match moving.former.take() {
                    None => self.end_move(Ok(())),
                    Some(former) => {
                        let number = self.moves;
                        self.work.spawn(async move { Done::Emptied(number, remnants::empty(former).await) });
                    }
                },
                Next::Done => self.end_move(Ok(())),
                Next::Stop(stop) => self.stop_move(stop),
            }
        }
    }

    fn stop_move(&mut self, stop: Stop) {
        let (kind, why) = match stop {
            Stop::Left => {
                let why = "the donor was left meanwhile: nothing is lost; replace it again, which fills the other one";
                (MoveErrorKind::Failed, why.to_owned())
            }
            Stop::OtherLost(other) => {
                // A spare that was meant for this donor is free for the lost one.
                self.spares.need.try_again();
                let name = &self.peers[other].target.address.text;
                let why = format!("{name} was lost meanwhile, and goes before: replace that one first");
                (MoveErrorKind::NotNow, why)
            }
            Stop::TakerLost => {
                // The device has gone on without either of them; this one can be a spare.
                let left = self.moving.as_mut().and_then(|moving| moving.left.clone().zip(moving.former.take()));
                if let Some((left, former)) = left {
                    self.empty(left.address.text, async move { _ = remnants::empty(former).await });
                }
                (MoveErrorKind::Failed, "it was lost right after it had taken the place".to_owned())
            }
            Stop::BothLost => {
                let why = "another donor was lost meanwhile, and this one is not filled";
                (MoveErrorKind::Failed, why.to_owned())
            }
        };
        self.end_move(Err(MoveError::new(kind, why)));
    }

    /// Everything is on the other donor, and nothing is on its way.
    fn switch(&mut self) {
        let Some(moving) = &mut self.moving else { return };
        let Some(Ready { device, incarnation }) = moving.ready.take() else { return };
        let donor = moving.donor();
        moving.plan.switched();
        moving.kept.clear();
        std::mem::swap(&mut self.labels[donor], &mut moving.label);
        let (target, epoch) = (moving.target.clone(), moving.epoch);
        let peer = &mut self.peers[donor];
        moving.former = peer.device.take();
        peer.end("another donor takes its place".to_owned());
        peer.epoch = epoch.max(peer.epoch + 1);
        moving.left = Some(std::mem::replace(&mut peer.target, target));
        (peer.device, peer.reason) = (Some(device), None);
        peer.sessions += 1;
        self.rename();
        self.step(Event::Replaced { donor, incarnation });
        self.step(Event::Connected { donor, incarnation });
    }

    /// A donor failed before all were told of the switch: the former donor has its place again, with all it had.
    pub(super) fn restore(&mut self, donor: Donor) {
        let moving = self.moving.as_mut().filter(|moving| moving.donor() == donor);
        let Some(left) = moving.and_then(|moving| moving.left.clone()) else {
            self.lose(donor, "its place was given back".to_owned());
            return self.connect(donor, Duration::ZERO);
        };
        let other = self.peers[donor].device.take();
        self.lose(donor, "another donor had its place for a moment".to_owned());
        self.peers[donor].target = left;
        let label = self.moving.as_mut().map(|moving| (moving.former = None, std::mem::take(&mut moving.label)).1);
        self.labels[donor] = label.unwrap_or_default();
        self.rename();
        self.connect(donor, Duration::ZERO);
        let name = self.moving.as_ref().map(|moving| moving.target.address.text.clone());
        if let (Some(name), Some(other)) = (name, other) {
            self.empty(name, async move { _ = remnants::empty(other).await });
        }
        let why = "another donor failed at the moment of the switch: the former one stays, and nothing is lost";
        self.spares.need.try_again();
        self.end_move(Err(MoveError::new(MoveErrorKind::NotNow, why)));
    }

    /// Empties a donor that took no place, unless it gets one meanwhile.
    fn empty(&mut self, name: String, work: impl Future<Output = ()> + Send + 'static) {
        let work = self.work.spawn(async move {
            work.await;
            Done::Dropped
        });
        self.emptying.push((name, work));
    }

    pub(super) fn emptied(&mut self, result: Result<(), String>) {
        if let Err(why) = result {
            let what = "what the former donor holds counts for nobody, and it could not be told to give it back";
            log::write(Level::Warning, "ram", format_args!("{what}: {why}"));
        }
        self.end_move(Ok(()));
    }

    pub(super) fn end_move(&mut self, result: Moved) {
        let Some(mut moving) = self.moving.take() else { return };
        let (donor, name) = (moving.donor(), moving.target.address.text.clone());
        self.moves += 1;
        if result.is_ok() {
            self.spares.used(&moving.target.address);
            self.rename();
        }
        if let Err(why) = &result {
            let former = &moving.left.as_ref().unwrap_or(&self.peers[donor].target).address.text;
            log::write(Level::Warning, "ram", format_args!("{name} does not replace {former}: {why}"));
        } else {
            log::write(
                Level::Note,
                "ram",
                format_args!("{}: donor {name} has replaced another one", self.peers[donor].target.id),
            );
        }
        for (request, body) in std::mem::take(&mut moving.kept) {
            self.send(donor, request, body);
        }
        if let Some(Ready { device, .. }) = moving.ready.take() {
            self.empty(name, async move { _ = remnants::empty(device).await });
        }
        // The report comes first: a caller who is told of the end sees it there.
        self.publish(true, false);
        moving.end(result);
    }
}
