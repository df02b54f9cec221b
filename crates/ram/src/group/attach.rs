//! Attaching: reading the donors' records, and becoming their only client.
//!
//! Owns: the phases before the device is in use, and detaching. Promises: invariants 5 and 6 in `mod.rs`; a client that
//! dies in any phase leaves a device that the next one can attach.
//!
//! | phase | it ends when | what is stored |
//! |---|---|---|
//! | survey | every donor has answered, or `survey_us` has passed and enough donors have answered | nothing |
//! | claim | the same, and each donor that answered has this client's generation | the donor's own record, with a new
//! stamp |
//! | opening | each trusted donor has the merged view; the lease on an unfenced donor is over | the view, and all
//! donors' marks |
//!
//! The claim changes only the stamp. The view is decided only when no other client can store anything, so a client that
//! dies after it fenced some donors has decided nothing.

use super::configuration::{CLAIM_ROUNDS_MAX, MachineIntent};
use super::error::AttachRefusal;
use super::event::{Donor, MachineAction};
use super::link::{GroupLink, LinkState, MetadataContent};
use super::machine::{GroupMachine, GroupPhase};
use super::merge::{DonorContent, MergedView, merge};
use super::standing::DonorStanding;
use crate::format::record::{COUNT_MAX, GENERATION_MAX};
use crate::format::{FormatError, MemberState, MembershipView, RecordStamp, ViewMember};
use crate::planted::{MirrorBug, planted};

/// The greatest epoch with which a device is attached, so that there is room for all decisions of its client.
const EPOCH_MAX: u64 = COUNT_MAX / 2;

fn generation_after(newest: u64) -> Result<u64, AttachRefusal> {
    match newest < GENERATION_MAX {
        true => Ok(newest + 1),
        false => Err(AttachRefusal::Geometry(FormatError::Range { what: "generation", found: newest })),
    }
}

impl GroupMachine {
    /// Continues attaching or detaching as far as possible.
    pub(super) fn advance_attach(&mut self) {
        let before = (self.phase, self.generation);
        match self.phase {
            GroupPhase::Survey => match self.configuration.intent {
                MachineIntent::Create => self.survey_new(),
                MachineIntent::Attach { take_over, trust_remaining } => self.survey(take_over, trust_remaining),
            },
            GroupPhase::Claim => self.claim_all(),
            GroupPhase::Opening => self.open(),
            GroupPhase::Detaching => self.detach(),
            GroupPhase::Open | GroupPhase::Ended => {}
        }
        self.has_changed |= before != (self.phase, self.generation);
    }

    fn refuse(&mut self, refusal: AttachRefusal) {
        self.end(MachineAction::Refused(refusal));
    }

    fn is_out_of_patience(&self) -> bool {
        self.now_us >= self.began_us + self.patience_us()
    }

    /// Refuses to attach after `patience`, or at once if no further answer can come.
    fn refuse_late(&mut self, refusal: AttachRefusal, is_complete: bool) {
        if is_complete || self.is_out_of_patience() {
            self.refuse(refusal);
        }
    }

    fn answered(&self) -> Vec<Donor> {
        (0..self.links.len()).filter(|donor| self.links[*donor].state == LinkState::Read).collect()
    }

    fn survey_new(&mut self) {
        let answered = self.answered();
        let geometry = self.configuration.geometry;
        let is_free = |content: &MetadataContent| match content {
            MetadataContent::Empty => true,
            MetadataContent::Record(record) => !record.is_ready,
            MetadataContent::Other
            | MetadataContent::OtherPlace
            | MetadataContent::Copy
            | MetadataContent::Unusable => false,
        };
        if let Some(&donor) = answered.iter().find(|donor| !is_free(&self.links[**donor].content)) {
            return self.refuse(AttachRefusal::InUse { donor });
        }
        let needed = self.links.len();
        if answered.len() < needed {
            let missing = (0..needed).filter(|donor| !answered.contains(donor)).collect();
            return self.refuse_late(AttachRefusal::TooFew { needed, found: answered.len(), missing }, false);
        }
        if let Err(refusal) = self.take_generation() {
            return self.refuse(refusal);
        }
        let member = |donor: Donor| ViewMember {
            incarnation: self.links[donor].incarnation,
            joined: 1,
            state: MemberState::Present,
        };
        let members = (0..usize::from(geometry.members)).map(member).collect();
        self.membership.view = MembershipView { generation: self.generation, epoch: 1, members };
        self.membership.standing = vec![DonorStanding::Trusted; needed];
        (self.membership.is_creating, self.membership.is_ready) = (true, false);
        (self.phase, self.phase_until_us) = (GroupPhase::Opening, self.now_us);
        (0..needed).for_each(|donor| self.claim(donor));
    }

    /// Takes the generation after those of all donors that answered. That of a damaged record may be no generation.
    fn take_generation(&mut self) -> Result<(), AttachRefusal> {
        let generations = self.answered().into_iter().map(|donor| self.links[donor].stamp.generation);
        let newest = generations.filter(|generation| *generation <= GENERATION_MAX).max().unwrap_or(0);
        self.generation = generation_after(newest)?;
        Ok(())
    }

    fn found(&self, is_there: impl Fn(LinkState) -> bool) -> Vec<DonorContent<'_>> {
        let found = |donor: Donor| {
            let link = &self.links[donor];
            match &link.content {
                MetadataContent::Record(record) if is_there(link.state) => {
                    DonorContent::Record { record, incarnation: link.incarnation }
                }
                // A donor with a damaged record counts as one whose memory is lost.
                MetadataContent::Empty | MetadataContent::Copy | MetadataContent::Unusable
                    if link.state == LinkState::Read =>
                {
                    DonorContent::Empty
                }
                _ => DonorContent::Missing,
            }
        };
        (0..self.links.len()).map(found).collect()
    }

    fn survey(&mut self, take_over: bool, trust_remaining: bool) {
        let answered = self.answered();
        let is_complete = answered.len() == self.links.len();
        if !is_complete && self.now_us < self.phase_until_us {
            return;
        }
        if answered.is_empty() {
            return self.refuse_late(AttachRefusal::Unreachable, false);
        }
        let is_other = |donor: &&Donor| {
            matches!(self.links[**donor].content, MetadataContent::Other | MetadataContent::OtherPlace)
        };
        if let Some(&donor) = answered.iter().find(is_other) {
            return self.refuse(AttachRefusal::OtherDevice { donor });
        }
        if let Some(&donor) = answered.iter().find(|donor| self.links[**donor].is_owned)
            && !take_over
        {
            return self.refuse(AttachRefusal::AttachedElsewhere { client: self.links[donor].stamp.client });
        }
        if let Err(refusal) = merge(&self.found(|state| state == LinkState::Read), trust_remaining) {
            return self.refuse_late(refusal, is_complete);
        }
        if let Err(refusal) = self.take_generation() {
            return self.refuse(refusal);
        }
        (self.phase, self.phase_until_us) = (GroupPhase::Claim, self.now_us + self.configuration.times.survey_us);
    }

    /// Makes this client the owner of every donor that has a record and answers.
    fn claim_all(&mut self) {
        let MachineIntent::Attach { take_over, trust_remaining } = self.configuration.intent else { return };
        for donor in self.answered() {
            let link = &self.links[donor];
            let Some(record) = link.record() else { continue };
            if link.is_owned_beside(self.configuration.client) && !take_over {
                return self.refuse(AttachRefusal::AttachedElsewhere { client: link.stamp.client });
            }
            if link.stamp.generation >= self.generation && !self.is_mine(link.stamp) {
                return self.outbid(link.stamp, take_over);
            }
            let stamp = RecordStamp { generation: self.generation, client: self.configuration.client, revision: 0 };
            let record = crate::format::DonorRecord { stamp, ..record.clone() };
            self.links[donor].state = LinkState::Claiming;
            self.swap(donor, record);
        }
        let is_there = |state: LinkState| state == LinkState::Claimed;
        let is_settled = |donor: &Donor| {
            let link = &self.links[*donor];
            is_there(link.state) || link.state == LinkState::Read && link.record().is_none()
        };
        let is_complete = (0..self.links.len()).all(|donor| is_settled(&donor));
        if !is_complete && self.now_us < self.phase_until_us {
            return;
        }
        match merge(&self.found(is_there), trust_remaining) {
            Ok(_) if self.has_grown_meanwhile() => self.refuse(AttachRefusal::Contended),
            Ok(merged) if self.is_outdated(&merged) => {
                let missing = (0..2).filter(|donor| !is_there(self.links[*donor].state)).collect();
                self.refuse_late(AttachRefusal::TooFew { needed: 2, found: 1, missing }, is_complete);
            }
            Ok(MergedView { view, .. }) if view.epoch > EPOCH_MAX => {
                let range = FormatError::Range { what: "view epoch", found: view.epoch };
                self.refuse(AttachRefusal::Geometry(range));
            }
            Ok(merged) => self.conclude(merged),
            Err(refusal) => self.refuse_late(refusal, is_complete),
        }
    }

    /// Notes the view of a donor that was read. A donor with another incarnation has lost what its view says.
    pub(super) fn note_view(&mut self, donor: Donor) {
        let link = &self.links[donor];
        let Some(record) = link.record().filter(|record| record.is_ready) else { return };
        let is_same = record.view.members.get(donor).is_some_and(|member| member.incarnation == link.incarnation);
        if is_same {
            self.membership.seen = self.membership.seen.max(record.view.number());
        }
    }

    /// Whether a donor has a newer view than the one that this client would go on with. With more than two donors it
    /// is a view that was not stored on enough of them to have an effect; of two donors, the one that has it may have
    /// writes that the other lacks, whatever the user has confirmed.
    fn is_outdated(&self, merged: &MergedView) -> bool {
        self.links.len() == 2 && merged.view.number() < self.membership.seen
    }

    /// Whether the newest record has a size that this client does not know. The client would undo the growth.
    fn has_grown_meanwhile(&self) -> bool {
        let records = self.links.iter().filter_map(|link| link.record());
        let newest = records.max_by_key(|record| record.view.number()).map(|record| record.geometry);
        let mine = &self.configuration.geometry;
        newest.is_some_and(|newest| newest != *mine && !newest.may_become(mine))
    }

    /// Handles another client that attaches at the same time: chooses a higher generation, or gives up.
    fn outbid(&mut self, other: RecordStamp, take_over: bool) {
        self.claim_rounds += 1;
        if !take_over {
            return self.refuse(AttachRefusal::AttachedElsewhere { client: other.client });
        }
        if self.claim_rounds > CLAIM_ROUNDS_MAX {
            return self.refuse(AttachRefusal::Contended);
        }
        match generation_after(other.generation) {
            Ok(generation) => self.generation = generation,
            Err(refusal) => return self.refuse(refusal),
        }
        for link in self.links.iter_mut().filter(|link| link.state == LinkState::Claimed) {
            (link.state, link.down_since_us) = (LinkState::Read, self.now_us);
        }
    }

    /// Takes over the newest view, without the donors that are not trusted, after every other client is fenced.
    fn conclude(&mut self, merged: MergedView) {
        let MergedView { view, trusted, may_be_read_elsewhere } = merged;
        let (generation, epoch) = (self.generation, view.epoch + 1);
        self.membership.view = MembershipView { generation, epoch, ..view };
        for (donor, is_trusted) in trusted.iter().enumerate() {
            let (standing, state) = match is_trusted {
                true => (DonorStanding::Trusted, MemberState::Present),
                false => (DonorStanding::Out, MemberState::Left),
            };
            self.membership.standing[donor] = standing;
            self.membership.view.members[donor].state = state;
            self.links[donor].is_stale = true;
        }
        let stripes = self.configuration.geometry.marks();
        let marked = |stripe: u64| {
            let is_marked = |donor: Donor| {
                trusted[donor] && self.links[donor].record().is_some_and(|record| record.dirty.has(stripe))
            };
            self.markers(stripe).into_iter().flatten().any(is_marked)
        };
        let found: Vec<u64> = (0..stripes).filter(|stripe| marked(*stripe)).collect();
        found.into_iter().for_each(|stripe| _ = self.marked.set(stripe, true));
        let waits = may_be_read_elsewhere && !planted(MirrorBug::LeaseIgnored);
        self.figures.lease_waits += u64::from(waits);
        let lease_us = if waits { 2 * self.configuration.times.lease_us } else { 0 };
        (self.phase, self.phase_until_us) = (GroupPhase::Opening, self.now_us + lease_us);
    }

    /// Whether each trusted donor has the present view. Until then some donors may not know that another one was taken
    /// back, and of two donors the other cannot be left.
    pub fn is_view_stored(&self) -> bool {
        let number = self.membership.view.number();
        let standing = self.membership.standing.iter().enumerate();
        let mut trusted =
            standing.filter(|(_, standing)| matches!(standing, DonorStanding::Trusted | DonorStanding::Leaving));
        trusted.all(|(donor, standing)| *standing == DonorStanding::Trusted && self.links[donor].has_view(number))
    }

    fn open(&mut self) {
        if self.is_view_stored() && self.now_us >= self.phase_until_us {
            if !self.membership.is_creating {
                return self.attached();
            }
            // A second record tells every donor that the first one is stored on all donors.
            if !self.membership.is_ready {
                self.membership.is_ready = true;
                self.links.iter_mut().for_each(|link| link.is_stale = true);
            }
            let is_told = |link: &GroupLink| link.record().is_some_and(|record| record.is_ready);
            if self.links.iter().all(is_told) {
                self.membership.is_creating = false;
                self.attached();
            }
            return;
        }
        // Times for which attaching must wait in any case, such as another client's lease, do not count against
        // `patience`.
        if self.is_late_to_attach() {
            self.refuse_unsettled();
        }
    }

    /// Whether attaching takes longer than it may.
    pub(crate) fn is_late_to_attach(&self) -> bool {
        self.is_out_of_patience() && self.now_us >= self.phase_until_us + self.patience_us()
    }

    /// Refuses to attach because donors that were present do not store their records; the next attempt sees their
    /// state.
    pub(crate) fn refuse_unsettled(&mut self) {
        let is_there = |donor: &Donor| self.links[*donor].state == LinkState::Claimed;
        let (there, missing): (Vec<Donor>, Vec<Donor>) = (0..self.links.len()).partition(is_there);
        let needed = self.links.len() - self.losses_max();
        self.refuse(match there.len() >= needed {
            true => AttachRefusal::Slow { patience_us: self.patience_us() },
            false => AttachRefusal::TooFew { needed, found: there.len(), missing },
        });
    }

    fn attached(&mut self) {
        self.phase = GroupPhase::Open;
        self.act(MachineAction::Attached);
    }

    /// Stores records without a client.
    fn detach(&mut self) {
        if !self.is_final {
            self.is_final = true;
            self.links.iter_mut().for_each(|link| link.is_stale = true);
        }
        if self.now_us >= self.phase_until_us || self.is_given_up() {
            self.end(MachineAction::Detached);
        }
    }

    /// Whether every donor with all data has stored that no client has the device, and that nothing is unfinished.
    pub fn is_given_up(&self) -> bool {
        let standing = self.membership.standing.iter().enumerate();
        let mut trusted = standing.filter(|(_, standing)| **standing == DonorStanding::Trusted);
        let is_told = |donor: Donor| self.links[donor].record().is_some_and(|record| record.stamp.client == 0);
        self.is_final && trusted.all(|(donor, _)| is_told(donor))
    }
}
