//! Which donors are trusted: leaving a donor, taking it back, and storing this decision on the others.
//!
//! Owns: the view that every donor has to store, and each donor's standing. Promises: invariants 1 and 4 in `mod.rs`.
//! Leaves to others: connections, and what a donor that is filled gets (the machine above).
//!
//! Each donor that this client owns is sent the present view and the present marks, until its record has them. A newer
//! view may replace a view that is not stored on every donor yet. Only one order matters: no operation continues
//! without a donor before the others have stored that it is left.

use bytes::Bytes;

use super::configuration::{MachineIntent, TROUBLES_MAX};
use super::event::{Donor, DonorRequest, MachineAction, Moment};
use super::link::{LinkState, MetadataContent, OutstandingPurpose};
use super::machine::{GroupMachine, GroupNews, GroupPhase};
use super::standing::{DonorStanding, ReplacedDonor};
use crate::format::{DonorRecord, MemberState, RecordStamp, StripeSet, ViewMember};
use crate::planted::{MirrorBug, planted};

impl GroupMachine {
    /// Returns the standing of each donor with this client.
    pub fn standing(&self) -> &[DonorStanding] {
        &self.membership.standing
    }

    /// Whether every donor is trusted and has stored the view, and nothing is in progress.
    pub fn is_quiet(&self) -> bool {
        let number = self.membership.view.number();
        let is_well = |donor: usize| {
            let link = &self.links[donor];
            self.membership.standing[donor] == DonorStanding::Trusted
                && link.state == LinkState::Claimed
                && link.has_view(number)
                && link.swap().is_none()
        };
        self.phase == GroupPhase::Open && (0..self.links.len()).all(is_well)
    }

    /// Whether every donor is trusted.
    pub(crate) fn is_whole(&self) -> bool {
        self.membership.standing.iter().all(|standing| *standing == DonorStanding::Trusted)
    }

    /// Whether all other trusted donors have stored the view.
    pub(super) fn is_view_stored_beside(&self, except: Donor) -> bool {
        let number = self.membership.view.number();
        let standing = self.membership.standing.iter().enumerate();
        let mut others = standing.filter(|(donor, standing)| *donor != except && **standing == DonorStanding::Trusted);
        others.all(|(donor, _)| self.links[donor].has_view(number))
    }

    /// Changes a donor's state in the view, and has the view stored on every donor.
    fn decide(&mut self, donor: Donor, standing: DonorStanding, state: MemberState) {
        self.membership.standing[donor] = standing;
        self.membership.view.generation = self.generation;
        self.membership.view.epoch += 1;
        self.membership.view.members[donor].state = state;
        self.links.iter_mut().for_each(|link| link.is_stale = true);
        self.has_changed = true;
    }

    /// Leaves a donor, if the policy and the others allow it.
    fn try_leave(&mut self, donor: Donor) {
        let standing = &self.membership.standing;
        let is_fine = |other: Donor| {
            let link = &self.links[other];
            let is_late = self.late_us(other) >= self.configuration.times.suspect_us;
            standing[other] == DonorStanding::Trusted && link.state == LinkState::Claimed && !link.is_empty && !is_late
        };
        let mut others = (0..self.links.len()).filter(|other| *other != donor);
        if self.membership.replaced.is_some() && !planted(MirrorBug::MoveNotReverted) {
            return self.revert();
        }
        if self.membership.is_creating {
            return;
        }
        if self.losses_max() == 0 {
            return self.wait_for(donor);
        }
        if !others.clone().all(is_fine) {
            return;
        }
        // With two donors: a donor whose record says that it is the only one would be trusted by an attaching client
        // that finds it alone. So its record must be corrected before the donor is left.
        let link = &self.links[donor];
        let thinks_alone =
            |other: Donor| link.record().is_some_and(|record| record.view.members[other].state != MemberState::Present);
        if self.links.len() == 2 && !link.is_empty && others.any(thinks_alone) {
            return;
        }
        self.figures.left += 1;
        self.decide(donor, DonorStanding::Leaving, MemberState::Left);
        self.links[donor].left_us = self.now_us;
        if !self.links[donor].is_empty {
            self.disconnect(donor);
        }
        if planted(MirrorBug::AcknowledgedBeforeLeft) {
            self.put_out(donor);
        }
    }

    /// Handles a donor of a device without redundancy that is late or failing. No other donor has what it has, so it is
    /// waited for, on another connection; what it has lost is lost, whatever the others know.
    fn wait_for(&mut self, donor: Donor) {
        let late_us = self.late_us(donor);
        let link = &mut self.links[donor];
        link.troubles = 0;
        if link.is_empty {
            self.put_aside(donor);
        } else if link.state == LinkState::Claimed && late_us >= self.configuration.times.patience_us / 2 {
            self.disconnect(donor);
            // It has been away since its last answer.
            self.links[donor].down_since_us = self.now_us - late_us;
        }
    }

    /// Whether another donor may take the place of a trusted one now: every donor is trusted, serves this client, is not
    /// late, and has stored the view. Only then nothing else hinders the others from being told. The only donor of a device
    /// has no others: an attacher that knows only the former one would still believe it.
    pub fn may_replace(&self, donor: Donor) -> bool {
        let suspect_us = self.configuration.times.suspect_us;
        let is_well = |other: Donor| {
            let link = &self.links[other];
            let is_there = link.state == LinkState::Claimed && !link.is_empty && self.late_us(other) < suspect_us;
            self.membership.standing[other] == DonorStanding::Trusted
                && (is_there || planted(MirrorBug::MoveNotReverted))
        };
        let is_serving = self.phase == GroupPhase::Open && self.now_us >= self.lenient_until_us;
        let is_told = self.membership.replaced.is_none() && self.is_view_stored();
        donor < self.links.len() && self.links.len() > 1 && is_serving && is_told && (0..self.links.len()).all(is_well)
    }

    /// Another donor with the same memory takes the place of a trusted one. Until the others were told, an attacher
    /// would believe the former one, so nothing is done on the other one before.
    pub(super) fn replaced(&mut self, donor: Donor, incarnation: u64) {
        self.drop_link(donor);
        if self.membership.standing[donor] != DonorStanding::Trusted || self.phase != GroupPhase::Open {
            return;
        }
        let former = self.membership.view.members[donor];
        self.decide(donor, DonorStanding::Trusted, MemberState::Present);
        let joined = self.membership.view.epoch;
        self.seat(donor, ViewMember { incarnation, joined, state: MemberState::Present });
        self.membership.replaced = Some(ReplacedDonor { donor, former });
        self.figures.replaced += 1;
    }

    /// A donor fails before all were told that another one took a place. Nothing was done on the other one yet, so the
    /// former one still has everything, and it has its place again. Its own record stays valid in each view that names
    /// it as before; the other one's record names the former one, so no attacher believes it.
    fn revert(&mut self) {
        let Some(ReplacedDonor { donor, former }) = self.membership.replaced.take() else { return };
        self.drop_link(donor);
        self.decide(donor, DonorStanding::Trusted, MemberState::Present);
        if planted(MirrorBug::RevertUnnumbered) {
            self.membership.view.epoch -= 1;
        }
        self.seat(donor, former);
        self.figures.reverted += 1;
        self.act(MachineAction::Restore { donor });
    }

    /// Gives a place to a donor that is not connected yet, and has as long as any to answer.
    fn seat(&mut self, donor: Donor, member: ViewMember) {
        let link = &mut self.links[donor];
        (link.is_empty, link.troubles, link.proof_us, link.incarnation) = (false, 0, None, member.incarnation);
        link.down_since_us = self.now_us;
        self.membership.view.members[donor] = member;
    }

    /// Whether the others are being told that this donor took the place of another one.
    fn is_replaced(&self, donor: Donor) -> bool {
        self.membership.replaced.as_ref().is_some_and(|replaced| replaced.donor == donor)
    }

    /// Counts a donor as out on which nothing depends.
    fn put_aside(&mut self, donor: Donor) {
        self.figures.left += 1;
        self.decide(donor, DonorStanding::Out, MemberState::Left);
        self.links[donor].left_us = self.now_us;
        self.give_up_waiting(donor);
    }

    fn put_out(&mut self, donor: Donor) {
        self.membership.replaced.take_if(|replaced| replaced.donor == donor);
        self.membership.standing[donor] = DonorStanding::Out;
        self.give_up_waiting(donor);
    }

    /// Tells the machine above that nothing waits for a donor any more.
    fn give_up_waiting(&mut self, donor: Donor) {
        self.news.push(GroupNews::Out { donor });
        self.has_changed = true;
    }

    /// Handles the failure of a donor that is being filled. No data depends on it, so it is out at once.
    fn abort_rebuild(&mut self, donor: Donor) {
        self.membership.filling = None;
        self.put_aside(donor);
        self.disconnect(donor);
    }

    /// Handles a donor whose memory is lost while another donor is out: the first cannot be left, and the blocks that
    /// only it had are lost.
    fn lose(&mut self, donor: Donor) {
        let leaving = self.membership.standing.iter().position(|standing| *standing == DonorStanding::Leaving);
        match leaving.filter(|_| self.phase == GroupPhase::Open) {
            // Nothing was acknowledged without the donor that is being left, so that donor is kept.
            Some(other) => {
                self.decide(other, DonorStanding::Trusted, MemberState::Present);
                if self.links[other].state == LinkState::Read {
                    self.metadata_read(other);
                }
            }
            None => {
                self.membership.standing[donor] = DonorStanding::Lost;
                self.give_up_waiting(donor);
            }
        }
    }

    /// Returns for how long a donor has owed an answer. One request that is never answered while others are counts
    /// before the user's request fails.
    pub(crate) fn late_us(&self, donor: Donor) -> Moment {
        self.links[donor].late_us(self.now_us, self.patience_us() / 2)
    }

    /// Whether a donor is so late with an answer that another donor should be asked.
    pub(crate) fn is_suspect(&self, donor: Donor) -> bool {
        self.late_us(donor) >= self.configuration.times.suspect_us
    }

    /// Notes that a donor which was taken back has all its data; it is trusted once the others have stored that.
    pub(crate) fn filled(&mut self, donor: Donor) {
        if let Some((_, is_filled)) = self.membership.filling.as_mut().filter(|(of, _)| *of == donor) {
            *is_filled = true;
        }
    }

    /// Returns the donor that is to be filled, and since which epoch, once it and the others have stored that. So an
    /// attaching client waits for the lease of a client that reads from this donor.
    pub(crate) fn filling(&self) -> Option<(Donor, u64)> {
        let (donor, _) = self.membership.filling?;
        let is_told = self.links[donor].has_view(self.membership.view.number()) && self.is_view_stored_beside(donor);
        let is_ready = self.links[donor].state == LinkState::Claimed && is_told;
        is_ready.then(|| (donor, self.membership.view.members[donor].joined))
    }

    /// Whether the donor that is being filled has all its data, and the present view.
    fn is_rebuilt(&self, donor: Donor) -> bool {
        self.membership.filling == Some((donor, true)) && self.links[donor].has_view(self.membership.view.number())
    }

    /// Checks, once each tick, for donors that are late or failing.
    pub(super) fn look_at_donors(&mut self) {
        if self.now_us < self.lenient_until_us {
            return;
        }
        let leave_us = self.configuration.times.leave_us;
        for donor in 0..self.links.len() {
            let link = &self.links[donor];
            let is_bad = self.late_us(donor) >= leave_us || link.troubles >= TROUBLES_MAX;
            match self.membership.standing[donor] {
                DonorStanding::Trusted if is_bad && self.is_serving() => self.try_leave(donor),
                DonorStanding::Rebuilding if is_bad => self.abort_rebuild(donor),
                DonorStanding::Out if self.links[donor].state == LinkState::Refused => self.look_again(donor),
                _ => {}
            }
        }
    }

    /// Reads the area of a refused donor again after a while: what it has may have been deleted or detached.
    fn look_again(&mut self, donor: Donor) {
        let link = &self.links[donor];
        if link.outstanding.is_empty() && self.now_us >= link.read_us + self.configuration.times.rejoin_us {
            self.send(donor, OutstandingPurpose::Metadata, DonorRequest::ReadMetadata);
        }
    }

    /// Whether this client has decided the view.
    pub(super) fn is_serving(&self) -> bool {
        !matches!(self.phase, GroupPhase::Survey | GroupPhase::Claim | GroupPhase::Ended)
    }

    /// Continues after records were stored or donors returned.
    pub(super) fn advance_membership(&mut self) {
        if !self.is_serving() {
            return;
        }
        for donor in 0..self.links.len() {
            match self.membership.standing[donor] {
                DonorStanding::Trusted if self.links[donor].is_empty => {
                    let is_out = |standing: &DonorStanding| *standing != DonorStanding::Trusted;
                    match self.losses_max() > 0 && self.membership.standing.iter().any(is_out) {
                        true => self.lose(donor),
                        false => self.try_leave(donor),
                    }
                }
                DonorStanding::Trusted
                    if self.is_replaced(donor)
                        && self.links[donor].state == LinkState::Read
                        && self.is_view_stored_beside(donor) =>
                {
                    self.membership.replaced = None;
                    self.claim(donor);
                }
                DonorStanding::Leaving if self.is_view_stored_beside(donor) => self.put_out(donor),
                DonorStanding::Out if self.may_rejoin(donor) => match self.is_in_use_elsewhere(donor) {
                    true => self.links[donor].state = LinkState::Refused,
                    false => self.rejoin(donor),
                },
                DonorStanding::Rebuilding if self.is_rebuilt(donor) => {
                    self.membership.filling = None;
                    self.figures.rebuilt += 1;
                    self.decide(donor, DonorStanding::Trusted, MemberState::Present);
                }
                _ => {}
            }
        }
    }

    fn may_rejoin(&self, donor: Donor) -> bool {
        let link = &self.links[donor];
        let is_there = matches!(link.state, LinkState::Read | LinkState::Claimed);
        let is_time = self.now_us >= link.left_us + self.configuration.times.rejoin_us;
        let others = self.membership.standing.iter().enumerate().filter(|(other, _)| *other != donor);
        let are_trusted = others.clone().all(|(_, standing)| match standing {
            DonorStanding::Trusted => true,
            // Without redundancy, the others have nothing that it needs.
            DonorStanding::Out => self.losses_max() == 0,
            _ => false,
        });
        self.phase == GroupPhase::Open && is_there && is_time && are_trusted && self.is_view_stored_beside(donor)
    }

    /// Whether a donor that returns must not be overwritten: it has another device, or a living client has this device
    /// there, and the user has not said that it is taken over.
    fn is_in_use_elsewhere(&self, donor: Donor) -> bool {
        let link = &self.links[donor];
        let is_owned = link.is_owned_beside(self.configuration.client);
        match link.content {
            MetadataContent::Other => true,
            // What a former place of the donor left there; unless that place is in use, also by this client.
            MetadataContent::OtherPlace | MetadataContent::Copy => link.is_owned,
            MetadataContent::Record(_) => is_owned && !self.takes_over(),
            MetadataContent::Empty | MetadataContent::Unusable => is_owned,
        }
    }

    fn takes_over(&self) -> bool {
        matches!(self.configuration.intent, MachineIntent::Attach { take_over: true, .. })
    }

    /// Takes back a donor that was left, as an empty donor with a new identity.
    fn rejoin(&mut self, donor: Donor) {
        self.figures.rejoined += 1;
        self.decide(donor, DonorStanding::Rebuilding, MemberState::Rebuilding);
        let joined = self.membership.view.epoch;
        let link = &mut self.links[donor];
        // The time that it was away does not count: it has as long as any donor to answer.
        (link.is_empty, link.troubles, link.down_since_us) = (false, 0, self.now_us);
        let state = MemberState::Rebuilding;
        self.membership.view.members[donor] = ViewMember { incarnation: link.incarnation, joined, state };
        self.membership.filling = Some((donor, planted(MirrorBug::LeftDonorBelieved)));
        if self.links[donor].state == LinkState::Read {
            self.claim(donor);
        }
    }

    /// Handles the metadata area of a donor, read on a new connection or after a refused exchange.
    pub(super) fn metadata_read(&mut self, donor: Donor) {
        self.links[donor].read_us = self.now_us;
        if !self.is_serving() {
            return self.note_view(donor);
        }
        if self.is_superseded_by(donor) {
            return self.end(MachineAction::Superseded);
        }
        let link = &self.links[donor];
        let is_mine = self.is_mine(link.stamp);
        let is_same = link.incarnation == self.membership.view.members[donor].incarnation;
        let is_kept = is_mine && is_same && link.record().is_some() || planted(MirrorBug::RestartUnnoticed);
        match self.membership.standing[donor] {
            // It is claimed when the others were told.
            DonorStanding::Trusted if is_kept && self.is_replaced(donor) => {}
            DonorStanding::Trusted if is_kept => {
                self.figures.taken_back += 1;
                self.claim(donor);
            }
            DonorStanding::Trusted => self.links[donor].is_empty = true,
            DonorStanding::Rebuilding if is_same && is_mine && self.links[donor].record().is_some() => {
                self.claim(donor)
            }
            DonorStanding::Rebuilding => self.abort_rebuild(donor),
            DonorStanding::Leaving | DonorStanding::Out | DonorStanding::Lost => {}
        }
    }

    /// Whether a donor's record is of another client that took the device, or began to. A client that ended after it
    /// had claimed only this donor, while this client had not, has the same generation and stored no view; it
    /// cannot attach, since all other donors are claimed with that generation. It may have done so when this client
    /// was about to take the donor back.
    fn is_superseded_by(&self, donor: Donor) -> bool {
        let link = &self.links[donor];
        let Some(record) = link.record().filter(|_| !self.is_mine(link.stamp)) else { return false };
        let is_out = matches!(self.membership.standing[donor], DonorStanding::Out | DonorStanding::Rebuilding);
        let has_only_claimed = record.view.generation < self.generation;
        match link.stamp.generation == self.generation && is_out && has_only_claimed {
            true => false,
            false => link.stamp.generation >= self.generation,
        }
    }

    /// Makes this connection the owner of its donor, with the present view and marks.
    pub(super) fn claim(&mut self, donor: Donor) {
        self.links[donor].state = LinkState::Claiming;
        let record = self.record_for(donor);
        self.swap(donor, record);
    }

    /// Returns the record that a donor should have.
    fn record_for(&self, donor: Donor) -> DonorRecord {
        let geometry = self.configuration.geometry;
        let mut dirty = StripeSet::none(geometry.marks());
        let is_marker = |stripe: &u64| self.markers(*stripe).is_some_and(|markers| markers.contains(&donor));
        for stripe in self.marked.iter().filter(is_marker) {
            dirty.set(stripe, true);
        }
        let client = if self.is_final { 0 } else { self.configuration.client };
        DonorRecord {
            stamp: RecordStamp { generation: self.generation, client, revision: 0 },
            geometry,
            position: donor as u16,
            is_ready: self.membership.is_ready,
            view: self.membership.view.clone(),
            dirty,
        }
    }

    /// Sends a record that replaces the donor's present one.
    pub(super) fn swap(&mut self, donor: Donor, mut record: DonorRecord) {
        let link = &mut self.links[donor];
        let expected = link.stamp;
        record.stamp.revision = expected.next_revision();
        link.is_stale = false;
        self.figures.records += 1;
        let encoded = Bytes::from(record.encode());
        let purpose = OutstandingPurpose::Swap(Box::new(record));
        self.send(donor, purpose, DonorRequest::SwapMetadata { expected, record: encoded });
    }

    /// Sends each donor the record that it lacks, one record at a time.
    pub(super) fn store_records(&mut self) {
        if !self.is_serving() {
            return;
        }
        for donor in 0..self.links.len() {
            let link = &self.links[donor];
            let is_served = matches!(
                self.membership.standing[donor],
                DonorStanding::Trusted | DonorStanding::Rebuilding | DonorStanding::Leaving
            );
            if link.is_stale && is_served && link.state == LinkState::Claimed && link.swap().is_none() {
                let record = self.record_for(donor);
                self.swap(donor, record);
            }
        }
    }
}
