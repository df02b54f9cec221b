//! Recovery: finds the device's state in the donors' memory, without the memory of the former client.
//!
//! Owns: the reads of a recovery, their order, and the writes before the device is used. Promises: no data is used that
//! the loss of one more donor could remove, or that a later recovery could see differently; if the client is killed
//! during recovery, the next recovery finds the same state. Leaves to others: deciding from the bytes which copies are
//! valid and which groups were open (`survey`).
//!
//! | stage | read or written | where |
//! |---|---|---|
//! | heads | shape, trims, summaries, spares | every trusted donor |
//! | headers | headers of slots | groups without a summary |
//! | rows | whole slots | the groups without a summary that hold a newest copy, or that a spare names |
//! | writing | missing shapes; restored or lost slots, parity and summary of groups that were open; trims that only one
//! donor has | |
//!
//! An open group is sealed in place: its parity is computed over the present contents of its slots. So recovery needs
//! no free group and moves nothing. If a donor is left during recovery, recovery starts again.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::configuration::{SURVEY_BYTES, SURVEY_BYTES_UNDER_WAY_MAX, SURVEY_READS_MAX};
use super::machine::{DonorRequestPurpose, ParityLogMachine, ParityLogPhase};
use super::planted::{Bug, planted};
use super::progress::{ParityLogRecovery, RecoveryStage, SurveyRead};
use super::stores::DonorWrite;
use super::survey::{GroupSeal, RecoveryPlan, RecoverySurvey};
use crate::format::slots::{SLOT_HEADER_BYTES, SlotShape};
use crate::group::{AttachRefusal, Donor, DonorRequest, DonorStanding, MachineAction};
use crate::placement::LogPlacement;

impl ParityLogMachine {
    /// The current stage of recovery; `None` if recovery is over or has not begun.
    pub fn recovery_stage(&self) -> Option<RecoveryStage> {
        self.recovery.as_ref().map(|recovery| recovery.stage)
    }

    fn trusted(&self) -> Vec<bool> {
        self.group.standing().iter().map(|standing| *standing == DonorStanding::Trusted).collect()
    }

    /// Advances recovery; returns whether it advanced.
    pub(super) fn drive_recovery(&mut self) -> bool {
        let Some(mut recovery) = self.recovery.take() else { return false };
        if recovery.stage == RecoveryStage::Waiting {
            let is_settled = !self.group.standing().contains(&DonorStanding::Leaving);
            if is_settled {
                recovery.trusted = self.trusted();
                self.want_heads(&mut recovery);
            }
            self.recovery = Some(recovery);
            return is_settled;
        }
        if recovery.stage != RecoveryStage::Writing && recovery.trusted != self.trusted() {
            self.figures.recoveries_repeated += 1;
            self.recovery = Some(ParityLogRecovery::new(recovery.attempt + 1));
            return true;
        }
        self.send_survey(&mut recovery);
        if recovery.stage == RecoveryStage::Writing {
            if self.steps.tasks.is_empty()
                && let Some(plan) = recovery.plan.take()
            {
                self.open(plan);
                return true;
            }
            self.recovery = Some(recovery);
            return false;
        }
        let Some(got) = recovery.all() else {
            self.recovery = Some(recovery);
            return false;
        };
        match recovery.stage {
            RecoveryStage::Heads => self.heads_read(&mut recovery, got),
            RecoveryStage::Headers => {
                if let Some(heads) = &mut recovery.heads {
                    recovery.stage = RecoveryStage::Rows;
                    recovery.rows = heads.rows_to_read().into_iter().collect();
                }
            }
            RecoveryStage::Rows => {
                if let Some(mut heads) = recovery.heads.take() {
                    got.into_iter().for_each(|(donor, row, bytes)| heads.row(row, donor, bytes));
                    self.write(&mut recovery, heads.plan());
                }
            }
            RecoveryStage::Waiting | RecoveryStage::Writing => {}
        }
        if self.phase == ParityLogPhase::Recovering {
            self.recovery = Some(recovery);
        }
        true
    }

    fn want_heads(&self, recovery: &mut ParityLogRecovery) {
        recovery.stage = RecoveryStage::Heads;
        let trusted: Vec<Donor> = (0..recovery.trusted.len()).filter(|donor| recovery.trusted[*donor]).collect();
        for donor in trusted {
            for head in self.areas.heads() {
                let mut at = head.start;
                while at < head.end {
                    let bytes = SURVEY_BYTES.min(head.end - at);
                    recovery.want(donor, 0, at, bytes);
                    at += bytes;
                }
            }
        }
    }

    /// Adds reads of the slots of a row's members on trusted donors, or of the first bytes of these slots.
    fn want_slots(&self, recovery: &mut ParityLogRecovery, row: u32, bytes: u64) {
        for member in 0..self.shape.members {
            let donor = self.areas.member_donor(row, member);
            if recovery.trusted[donor] {
                recovery.want(donor, row, self.areas.slot(row), bytes);
            }
        }
    }

    fn send_survey(&mut self, recovery: &mut ParityLogRecovery) {
        let bytes = match recovery.stage {
            RecoveryStage::Headers => SLOT_HEADER_BYTES as u64,
            _ => self.areas.slot_bytes,
        };
        while recovery.reads.len() < SURVEY_READS_MAX
            && let Some(row) = recovery.rows.pop_front()
        {
            self.want_slots(recovery, row, bytes);
        }
        for donor in 0..recovery.trusted.len() {
            let has_place = |recovery: &ParityLogRecovery| {
                recovery.sent < SURVEY_READS_MAX && recovery.sent_bytes < SURVEY_BYTES_UNDER_WAY_MAX
            };
            while has_place(recovery) && self.group.is_claimed(donor) {
                let Some(at) = recovery.waiting.get_mut(&donor).and_then(VecDeque::pop_front) else { break };
                let Some(read) = recovery.reads.get(&at).copied() else { continue };
                let body = DonorRequest::Read { offset: read.offset, bytes: read.bytes };
                self.ask_donor(donor, DonorRequestPurpose::Survey { attempt: recovery.attempt, at }, body);
                (recovery.sent, recovery.sent_bytes) = (recovery.sent + 1, recovery.sent_bytes + read.bytes);
            }
        }
    }

    /// Handles the answer to a read of a recovery, or the end of its connection (`None`).
    pub(super) fn surveyed(&mut self, attempt: u64, at: u64, data: Option<Bytes>) {
        let Some(recovery) = self.recovery.as_mut().filter(|recovery| recovery.attempt == attempt) else { return };
        let Some(read) = recovery.reads.get(&at).copied() else { return };
        let SurveyRead { donor, offset, bytes, row } = read;
        (recovery.sent, recovery.sent_bytes) = (recovery.sent - 1, recovery.sent_bytes - bytes);
        let is_short = data.as_ref().is_some_and(|data| data.len() as u64 != bytes);
        match data.filter(|_| !is_short) {
            Some(data) => {
                recovery.reads.remove(&at);
                match &mut recovery.heads {
                    Some(heads) if recovery.stage == RecoveryStage::Headers => heads.header(row, donor, &data),
                    _ => _ = recovery.got.insert((donor, offset), (row, data)),
                }
            }
            None => recovery.waiting.entry(donor).or_default().push_front(at),
        }
        if is_short {
            self.group.trouble(donor);
        }
    }

    fn heads_read(&mut self, recovery: &mut ParityLogRecovery, got: Vec<(Donor, u32, Bytes)>) {
        let mut bytes: BTreeMap<Donor, Vec<u8>> = BTreeMap::new();
        got.into_iter().for_each(|(donor, _, part)| bytes.entry(donor).or_default().extend_from_slice(&part));
        for (donor, bytes) in &bytes {
            let is_same = SlotShape::is_absent(bytes) || SlotShape::decode(bytes).as_ref() == Ok(&self.shape.first());
            if !is_same {
                return self.end(MachineAction::Refused(AttachRefusal::OtherDevice { donor: *donor }));
            }
        }
        let heads = RecoverySurvey::new(self.shape, self.areas, self.group.generation(), bytes);
        recovery.stage = RecoveryStage::Headers;
        // Without a shape, no write was ever acknowledged.
        if !heads.is_new() {
            recovery.rows = heads.unsealed().into();
        }
        recovery.heads = Some(heads);
    }

    fn write(&mut self, recovery: &mut ParityLogRecovery, plan: RecoveryPlan) {
        recovery.stage = RecoveryStage::Writing;
        for donor in plan.without_shape.clone() {
            let data = Bytes::from(self.shape.encode());
            self.put(vec![vec![DonorWrite { donor, offset: 0, data }]]);
        }
        for (block, sequence) in plan.trims_to_repair.clone() {
            self.figures.recovered_trims += 1;
            let writes = self.trim_writes(block, 1, |_| sequence);
            self.put(vec![writes]);
        }
        self.figures.recovered_lost += plan.recovered_lost;
        for GroupSeal { row, parity, summary, slots } in plan.to_seal.clone() {
            self.figures.recovered_open += 1;
            if !planted(Bug::RecoveryUnsealed) {
                let offset = self.areas.slot(row);
                let slots = slots.into_iter().map(|(donor, data)| DonorWrite { donor, offset, data }).collect();
                let stages = std::iter::once(slots).chain(self.seal_stages(row, parity, &summary));
                self.put(stages.collect());
            }
        }
        recovery.plan = Some(plan);
    }

    /// Opens the device: all data is found and protected.
    fn open(&mut self, plan: RecoveryPlan) {
        self.blocks.newest = plan.newest;
        self.blocks.trims = plan.trims;
        match LogPlacement::restore(self.configuration.layout.clone(), plan.groups.into_iter()) {
            Ok(placement) => self.placement = placement,
            Err(error) => unreachable!("the layout was checked: {error}"),
        }
        self.reuse.free = (0..self.shape.groups).filter(|row| self.placement.is_free(*row)).collect();
        self.reuse.erased = plan.without_summary.into_iter().filter(|row| self.placement.is_free(*row)).collect();
        self.phase = ParityLogPhase::Open;
        self.act(MachineAction::Attached);
    }
}
