//! Tasks: the requests to donors that carry out steps of the placement, and the writes of recovery and refilling. Each
//! task has a number.
//!
//! Owns: the moment when a task may begin, its writes stage by stage, and the moment when it is done. Promises:
//! invariants 2 to 4 in `mod.rs`. Leaves to others: sending writes (`stores`), reading (`looks`).
//!
//! | task | begins when | stages |
//! |---|---|---|
//! | fetch | at once | none: a read |
//! | send | its data is in memory; the group is open | the slot |
//! | send, the first of a group | also: every step before the row's `Free` is done; nothing reads the row | erase the
//! summary, unless that is done; the slot |
//! | parity of an open group | the group is open, and its members' data is in memory; the earlier parity and its members
//! are stored; the group that last used the spare is sealed | summary and parity at the same time |
//! | parity of a full group | the group is open, and its members' data is in memory; the earlier parity is stored | the
//! parity; the summary, once all members are stored |
//! | trim | at once | the two entries |
//! | put | at once | the writes that it lists |
//!
//! A step is *done* when its writes are stored on every donor that is not left.
//!
//! The summaries of the next groups that will be opened are erased ahead. So a flush takes one round trip, or two if it
//! fills a group.

use std::collections::VecDeque;

use bytes::Bytes;

use super::configuration::{ERASED_AHEAD, FREE_GROUPS_KEPT};
use super::groups::{BufferedGroup, GroupMember, SpareParity, contents, empty_summary};
use super::machine::ParityLogMachine;
use super::planted::{Bug, planted};
use super::slot_reads::SlotReadPurpose;
use super::steps::{PlacementTask, TaskWork};
use super::stores::DonorWrite;
use crate::format::slots::{GroupSummary, SlotHeader, SummaryKind, TrimEntry};
use crate::group::Donor;
use crate::placement::{MemberSet, NewestLocation, ParityCause, Placement, PlacementStep, SendCause};

impl ParityLogMachine {
    /// Adds a task with these writes; a stage begins when the previous one is done.
    pub(super) fn put(&mut self, stages: Vec<Vec<DonorWrite>>) -> u64 {
        let number = self.steps.add(TaskWork::Put);
        if let Some(task) = self.steps.tasks.get_mut(&number) {
            task.stages = stages.into();
        }
        number
    }

    /// Begins a task of [`Self::put`] at once, so that its writes come before those of tasks that begin later.
    pub(super) fn begin_put(&mut self, number: u64) {
        if let Some(task) = self.steps.tasks.get_mut(&number).filter(|_| self.steps.unbegun.remove(&number)) {
            task.has_begun = true;
            self.next_stage(number);
        }
    }

    /// Makes tasks of the placement's steps. It is called directly after an operation, while `held` has no newer data.
    pub(super) fn take_steps(&mut self, steps: Vec<PlacementStep>) {
        for step in steps {
            match step {
                PlacementStep::Fetch { block, group, place } => self.take_fetch(block, group, usize::from(place.donor)),
                PlacementStep::Send { block, group, member, sequence, cause, .. } => {
                    self.figures.sent += 1;
                    self.figures.cleaned += u64::from(cause == SendCause::Cleaning);
                    self.take_send(block, group, member, sequence);
                }
                PlacementStep::StoreParity { group, place, members, covering } => {
                    let spare = (covering != ParityCause::Sealed).then(|| u64::from(place.slot - self.shape.groups));
                    match covering {
                        ParityCause::Sealed => self.figures.sealed += 1,
                        _ => self.figures.covered += 1,
                    }
                    if let Some(life) = self.groups.newest.get(&group).copied() {
                        self.steps.add(TaskWork::Parity { life, members, spare });
                    }
                }
                PlacementStep::Forget { first, count, sequence } => {
                    let sequence = self.sequence_of(sequence);
                    for block in first..first + count {
                        self.blocks.newest[block as usize] = sequence;
                        self.blocks.trims[block as usize] = sequence;
                        self.blocks.held.remove(&block);
                        self.blocks.fetching.remove(&block);
                    }
                    if !planted(Bug::TrimUnrecorded) {
                        self.steps.add(TaskWork::Trim { first, count, sequence });
                    }
                }
                PlacementStep::Free { group } => {
                    self.figures.freed += 1;
                    self.reuse.freed.push_back((self.steps.next, group));
                }
                PlacementStep::ReadOld { .. } => unreachable!("a log reads no old parity"),
            }
        }
    }

    fn take_fetch(&mut self, block: u32, row: u32, donor: Donor) {
        let expected = self.blocks.newest[block as usize];
        let number = self.steps.add(TaskWork::Fetch { block });
        self.blocks.fetching.insert(block, number);
        let in_memory = self.groups.of(row).and_then(|group| group.member(expected));
        if in_memory.is_none() {
            self.look_at(row, donor, Some((block, expected)), SlotReadPurpose::Fetch { task: number });
        } else {
            self.blocks.fetched_from_memory.push((number, row, expected));
        }
    }

    fn take_send(&mut self, block: u32, row: u32, member: u8, sequence: u64) {
        let sequence = self.sequence_of(sequence);
        let life = match self.groups.newest.get(&row).copied().filter(|_| member > 0) {
            Some(life) => life,
            None => {
                self.groups.open(row, self.steps.next);
                self.steps.next
            }
        };
        let step = self.steps.add(TaskWork::Send { life, member: usize::from(member) });
        let data = self.blocks.held.get(&block).cloned();
        let image = data.as_ref().map(|data| self.image(row, member, block, sequence, data.as_ref()));
        if image.is_none()
            && let Some(task) = self.blocks.fetching.get(&block).and_then(|fetch| self.steps.tasks.get_mut(fetch))
        {
            task.awaiting.push((life, usize::from(member)));
        }
        if let Some(group) = self.groups.lives.get_mut(&life) {
            group.members.push(super::groups::GroupMember { sequence, image, step });
        }
        self.blocks.newest[block as usize] = sequence;
        if matches!(self.placement.locate(block), NewestLocation::Slot(_)) {
            self.blocks.sent.push(block);
        }
    }

    /// Drops data in `held` of blocks that are now in slots.
    pub(super) fn drop_sent(&mut self) {
        for block in std::mem::take(&mut self.blocks.sent) {
            if matches!(self.placement.locate(block), NewestLocation::Slot(_)) {
                self.blocks.held.remove(&block);
                self.blocks.fetching.remove(&block);
            }
        }
    }

    /// Makes a slot with these contents; `None`: they are lost.
    pub(super) fn image(&self, group: u32, member: u8, block: u32, sequence: u64, data: Option<&Bytes>) -> Bytes {
        let (device, generation) = (self.device, self.group.generation());
        let (data_checksum, is_lost) = (0, data.is_none() && !planted(Bug::LostAsZeroes));
        let slot = SlotHeader { device, generation, group, member, block, sequence, data_checksum, is_lost };
        Bytes::from(match data {
            Some(data) => slot.encode(data),
            None => slot.encode(&vec![0; self.shape.block_bytes as usize]),
        })
    }

    /// Handles the contents that a fetch has found; `None`: they are lost.
    pub(super) fn fetched(&mut self, number: u64, data: Option<Bytes>) {
        let Some(task) = self.steps.tasks.remove(&number) else { return };
        self.steps.unbegun.remove(&number);
        self.steps.may_begin = true;
        let TaskWork::Fetch { block } = task.work else { return };
        for (life, at) in task.awaiting {
            let Some(member) = self.groups.lives.get(&life).and_then(|group| group.members.get(at)) else { continue };
            let (row, sequence) = (self.groups.lives[&life].row, member.sequence);
            let image = self.image(row, at as u8, block, sequence, data.as_ref());
            if let Some(member) = self.groups.lives.get_mut(&life).and_then(|group| group.members.get_mut(at)) {
                member.image = Some(image);
            }
        }
        if self.blocks.fetching.get(&block) == Some(&number) {
            self.blocks.fetching.remove(&block);
            if self.placement.locate(block) == NewestLocation::Memory {
                self.blocks.held.entry(block).or_insert(data);
            }
        }
    }

    /// Completes fetches whose source slot is in memory; returns whether there were any.
    fn fetch_from_memory(&mut self) -> bool {
        let before = self.blocks.fetched_from_memory.len();
        for (number, row, sequence) in std::mem::take(&mut self.blocks.fetched_from_memory) {
            let group = self.groups.lives.values().find(|group| group.row == row && group.member(sequence).is_some());
            let image = group.and_then(|group| group.member(sequence)).and_then(|member| member.image.clone());
            match image {
                Some(image) => self.fetched(number, contents(&image)),
                None => self.blocks.fetched_from_memory.push((number, row, sequence)),
            }
        }
        self.blocks.fetched_from_memory.len() < before
    }

    /// Frees rows for reuse: those for which every step before their `Free` is done.
    fn free_rows(&mut self) {
        let done_below = self.steps.done_below();
        while let Some((step, row)) = self.reuse.freed.front().copied()
            && (step <= done_below || planted(Bug::FreedTooEarly))
        {
            self.reuse.freed.pop_front();
            self.reuse.free.insert(row);
        }
    }

    /// Lets every task continue; returns whether one did.
    pub(super) fn drive_tasks(&mut self) -> bool {
        let mut has_moved = self.fetch_from_memory();
        self.free_rows();
        if !std::mem::take(&mut self.steps.may_begin) {
            return has_moved;
        }
        has_moved |= self.erase_ahead();
        for number in self.steps.held.iter().copied().collect::<Vec<u64>>() {
            if self.may_go_on(number) {
                has_moved = true;
                self.steps.held.remove(&number);
                self.next_stage(number);
            }
        }
        let waiting: Vec<u64> = self.steps.unbegun.iter().copied().collect();
        for number in waiting {
            if let Some(stages) = self.stages_of(number) {
                has_moved = true;
                self.steps.unbegun.remove(&number);
                if let Some(task) = self.steps.tasks.get_mut(&number) {
                    (task.has_begun, task.stages) = (true, stages);
                }
                self.next_stage(number);
            }
        }
        has_moved
    }

    /// Returns the writes of a task, if the task may begin.
    fn stages_of(&mut self, number: u64) -> Option<VecDeque<Vec<DonorWrite>>> {
        let task = &self.steps.tasks[&number];
        match task.work {
            TaskWork::Fetch { .. } => None,
            TaskWork::Put => Some(task.stages.clone()),
            TaskWork::Send { life, member } => self.stages_of_send(number, life, member),
            TaskWork::Parity { life, members, spare } => self.stages_of_parity(number, life, members, spare),
            TaskWork::Trim { first, count, sequence } => Some([self.trim_writes(first, count, |_| sequence)].into()),
        }
    }

    fn stages_of_send(&mut self, number: u64, life: u64, member: usize) -> Option<VecDeque<Vec<DonorWrite>>> {
        let group = self.groups.lives.get(&life)?;
        let (row, is_open) = (group.row, group.is_open);
        let data = group.members.get(member)?.image.clone()?;
        let donor = self.areas.member_donor(row, member as u8);
        let slot = vec![DonorWrite { donor, offset: self.areas.slot(row), data }];
        if is_open {
            return Some([slot].into());
        }
        if member > 0 || self.reuse.erasing.values().any(|other| *other == row) || !self.may_open(number, row) {
            return None;
        }
        self.reuse.free.remove(&row);
        self.refill_opened(row);
        let is_erased = self.reuse.erased.remove(&row);
        if let Some(group) = self.groups.lives.get_mut(&life) {
            (group.is_opening, group.is_open) = (true, is_erased);
        }
        if is_erased {
            return Some([slot].into());
        }
        let erasure = (!planted(Bug::SummaryKept)).then(|| self.erasure(row));
        Some([erasure.into_iter().collect(), slot].into())
    }

    /// Returns a write of zeroes over the summary of a group.
    pub(super) fn erasure(&self, row: u32) -> DonorWrite {
        let data = Bytes::from(vec![0; self.areas.summary_bytes as usize]);
        DonorWrite { donor: self.areas.parity_donor(row), offset: self.areas.summary(row), data }
    }

    fn may_open(&mut self, number: u64, row: u32) -> bool {
        let is_free = self.reuse.free.contains(&row);
        let is_read = self.reuse.pins.contains_key(&row) && !planted(Bug::PinsIgnored);
        self.figures.reuse_waits += u64::from(!is_free);
        self.figures.pinned += u64::from(is_free && is_read);
        let is_first = self.steps.done_below() == number;
        is_free && !is_read && (is_first || self.reuse.free.len() > FREE_GROUPS_KEPT)
    }

    fn stages_of_parity(
        &mut self,
        number: u64,
        life: u64,
        members: MemberSet,
        spare: Option<u64>,
    ) -> Option<VecDeque<Vec<DonorWrite>>> {
        // Until a group is open, its slots have other contents, which its parity would replace in a recovery.
        let group = self.groups.lives.get(&life).filter(|group| group.is_open)?;
        let is_in_memory = |(_, member): (usize, &GroupMember)| member.image.is_some();
        if !group.chosen(members).all(is_in_memory) {
            return None;
        }
        // The newest parity protects its members only when all of them are stored; until then, the one before does.
        if spare.is_some() && !self.are_stored(group, group.covered) && !planted(Bug::ParityBeforeMembers) {
            return None;
        }
        // Without this rule, a later group could take the spare first and never release it.
        let is_same = |other: u64, of: Option<u64>| other == life || spare.is_some() && of == spare;
        let is_before = |task: &PlacementTask| matches!(task.work, TaskWork::Parity { life: other, spare: of, .. } if is_same(other, of));
        if self.steps.tasks.range(..number).any(|(_, task)| is_before(task)) {
            return None;
        }
        let row = group.row;
        let donor = self.areas.parity_donor(row);
        let kind = if spare.is_some() { SummaryKind::Open } else { SummaryKind::Sealed };
        let summary = empty_summary(kind, self.device, self.group.generation(), row, self.shape.members);
        let (parity, summary) = group.parity(members, self.areas.slot_bytes as usize, summary);
        let Some(spare) = spare else { return Some(self.seal_stages(row, parity, &summary)) };
        let spare = if planted(Bug::ParityInPlace) { spare & !1 } else { spare };
        let user = self.reuse.spare_users.get(&spare).copied();
        if user.is_some_and(|user| user != life && self.groups.lives.contains_key(&user)) {
            return None;
        }
        self.reuse.spare_users.insert(spare, life);
        let data = Bytes::from([summary.encode(), parity].concat());
        let offset = self.areas.spare(spare);
        if let Some(group) = self.groups.lives.get_mut(&life) {
            group.spare_before = group.spare.replace(SpareParity { offset, bytes: data.clone() });
            group.covered = members;
        }
        Some([vec![DonorWrite { donor, offset, data }]].into())
    }

    /// Returns the stages that seal a group: first the parity, then the summary, so that every stored summary has its
    /// parity.
    pub(super) fn seal_stages(&self, row: u32, parity: Vec<u8>, summary: &GroupSummary) -> VecDeque<Vec<DonorWrite>> {
        let donor = self.areas.parity_donor(row);
        let parity = DonorWrite { donor, offset: self.areas.slot(row), data: Bytes::from(parity) };
        let summary = DonorWrite { donor, offset: self.areas.summary(row), data: Bytes::from(summary.encode()) };
        [vec![parity], vec![summary]].into()
    }

    /// Returns the writes of the trim entries of blocks, on both donors of each block.
    pub(super) fn trim_writes(&self, first: u32, count: u32, sequence: impl Fn(u32) -> u64) -> Vec<DonorWrite> {
        let mut writes = Vec::new();
        let mut from = first;
        while from < first + count {
            let until = self.areas.region(self.areas.region_of(from)).end.min(first + count);
            let entry = |block: u32| TrimEntry { sequence: sequence(block) }.encode(self.device, block);
            let data = Bytes::from((from..until).flat_map(entry).collect::<Vec<u8>>());
            let places = self.areas.trims(from);
            writes.extend(places.map(|(donor, offset)| DonorWrite { donor, offset, data: data.clone() }));
            from = until;
        }
        writes
    }

    /// Whether members of a group are stored.
    fn are_stored(&self, group: &BufferedGroup, members: MemberSet) -> bool {
        group.chosen(members).all(|(_, member)| !self.steps.tasks.contains_key(&member.step))
    }

    /// Whether a task that waits for the members of its group can continue.
    fn may_go_on(&self, number: u64) -> bool {
        let Some(TaskWork::Parity { life, members, .. }) = self.steps.tasks.get(&number).map(|task| &task.work) else {
            return true;
        };
        self.groups.lives.get(life).is_none_or(|group| self.are_stored(group, *members)) || planted(Bug::SealedEarly)
    }

    /// Erases the summaries of the groups that will be opened next.
    fn erase_ahead(&mut self) -> bool {
        if planted(Bug::SummaryKept) {
            return false;
        }
        let is_due = |row: &u32| {
            let is_idle = !self.reuse.pins.contains_key(row) && !self.reuse.erased.contains(row);
            self.reuse.free.contains(row) && is_idle && !self.reuse.erasing.values().any(|other| other == row)
        };
        let next: Vec<u32> = self.placement.next_free().take(ERASED_AHEAD).filter(is_due).collect();
        for row in &next {
            let erasure = self.erasure(*row);
            let number = self.put(vec![vec![erasure]]);
            self.reuse.erasing.insert(number, *row);
            self.begin_put(number);
        }
        !next.is_empty()
    }

    /// Begins the next stage of a task, or ends the task.
    fn next_stage(&mut self, number: u64) {
        let Some(task) = self.steps.tasks.get_mut(&number) else { return };
        while let Some(stage) = task.stages.pop_front() {
            self.steps.may_begin = true;
            task.left = stage.len();
            let is_empty = stage.is_empty();
            stage.into_iter().for_each(|write| self.stores.add(write, number));
            if !is_empty {
                return;
            }
            open_group(&mut self.groups, &task.work, &task.stages);
        }
        let Some(task) = self.steps.tasks.remove(&number) else { return };
        self.steps.may_begin = true;
        match task.work {
            TaskWork::Parity { life, spare: None, .. } => self.groups.forget(life),
            TaskWork::Put => match self.reuse.erasing.remove(&number) {
                Some(row) => _ = self.reuse.erased.insert(row),
                None => self.put_done(number),
            },
            _ => {}
        }
        self.free_rows();
    }

    /// Handles a write of a task that is done or no longer needed.
    pub(super) fn store_done(&mut self, number: u64) {
        let Some(task) = self.steps.tasks.get_mut(&number) else { return };
        task.left -= 1;
        if task.left == 0 {
            self.steps.may_begin = true;
            open_group(&mut self.groups, &task.work, &task.stages);
            let seals = matches!(task.work, TaskWork::Parity { spare: None, .. });
            if seals && !task.stages.is_empty() && !self.may_go_on(number) {
                self.steps.held.insert(number);
                return;
            }
            self.next_stage(number);
        }
    }

    /// Whether writes to this donor count as done, because the donor is left.
    pub(super) fn is_excused(&self, donor: Donor) -> bool {
        use crate::group::DonorStanding;
        match self.group.standing()[donor] {
            DonorStanding::Out | DonorStanding::Lost => true,
            DonorStanding::Leaving => planted(Bug::AcknowledgedBeforeLeft),
            DonorStanding::Trusted | DonorStanding::Rebuilding => false,
        }
    }
}

/// Marks a group as open when the first stage of its first send is done: the former summary is erased.
fn open_group(groups: &mut super::groups::BufferedGroups, work: &TaskWork, rest: &VecDeque<Vec<DonorWrite>>) {
    if let TaskWork::Send { life, member: 0 } = work
        && !rest.is_empty()
        && let Some(group) = groups.lives.get_mut(life)
    {
        group.is_open = true;
    }
}
