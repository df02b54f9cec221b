//! A machine and its donors, with a clock, for the tests that need time, lost connections or answers that do not come.

use bytes::Bytes;

use crate::format::{DonorRecord, RecordGeometry, RedundancyCode, RowZones};
use crate::group::{
    DeviceError, Donor, DonorReply, DonorRequest, LinkState, MachineAction, MachineEvent, MachineIntent, MachineTimes,
    RequestId, UserRequest,
};
use crate::in_place::donor_in_memory;
use crate::in_place::{InPlaceConfiguration, InPlaceMachine};

/// The time between two looks of the bench at its machine. *Units*: microseconds.
const STEP_US: u64 = 10_000;
/// The length of a block and of a stripe. *Units*: bytes.
pub const BLOCK_BYTES: u64 = 16;
const STRIPE_BYTES: u32 = 64;

/// Requests that get no answer.
pub type Holds = fn(Donor, &DonorRequest) -> bool;

/// Donors, their clock, and what was asked of them.
pub struct MirrorBench {
    pub memory: Vec<Vec<u8>>,
    pub areas: Vec<Vec<u8>>,
    pub incarnations: Vec<u64>,
    pub is_up: Vec<bool>,
    /// Whether the donor says that another connection is its owner.
    pub is_owned: Vec<bool>,
    pub holds: Holds,
    /// The requests that were not answered.
    pub held: Vec<(Donor, RequestId, DonorRequest)>,
    /// The requests that were answered.
    pub asked: Vec<(Donor, DonorRequest)>,
    pub now_us: u64,
    code: RedundancyCode,
}

pub const ATTACH: MachineIntent = MachineIntent::Attach { take_over: false, trust_remaining: false };

impl MirrorBench {
    pub fn new(donors: usize) -> MirrorBench {
        MirrorBench {
            memory: vec![vec![0; 1024]; donors],
            areas: vec![Vec::new(); donors],
            incarnations: (50..50 + donors as u64).collect(),
            is_up: vec![true; donors],
            is_owned: vec![false; donors],
            holds: |_, _| false,
            held: Vec::new(),
            asked: Vec::new(),
            now_us: 0,
            code: RedundancyCode::Mirror,
        }
    }

    /// The same with parity in place.
    pub fn with_parity(donors: usize) -> MirrorBench {
        MirrorBench { code: RedundancyCode::Parity, ..MirrorBench::new(donors) }
    }

    /// The same without redundancy, with so many stripes on each donor.
    pub fn without_redundancy(stripes: &[u32]) -> MirrorBench {
        let code = RedundancyCode::None(RowZones::of(stripes).unwrap());
        MirrorBench { code, ..MirrorBench::new(stripes.len()) }
    }

    pub fn geometry(&self, device: u8) -> RecordGeometry {
        let (members, code) = (self.areas.len() as u16, self.code);
        let stripe_bytes = match code {
            RedundancyCode::Parity => STRIPE_BYTES * u32::from(members - 1),
            _ => STRIPE_BYTES,
        };
        RecordGeometry { device: [device; 16], bytes: 16 * BLOCK_BYTES, block_bytes: 16, stripe_bytes, members, code }
    }

    pub fn machine(&self, client: u64, intent: MachineIntent) -> InPlaceMachine {
        let labels = (0..self.areas.len()).map(|donor| donor.to_string()).collect();
        let geometry = self.geometry(3);
        let times = MachineTimes { scrub_rest_us: u64::MAX / 2, ..MachineTimes::default() };
        InPlaceMachine::new(InPlaceConfiguration { geometry, labels, client, intent, times }, self.now_us).unwrap()
    }

    /// Creates the device; its client is number 77.
    pub fn created(&mut self) -> InPlaceMachine {
        let mut machine = self.machine(77, MachineIntent::Create);
        assert_eq!(self.run(&mut machine, 100), [MachineAction::Attached]);
        machine
    }

    pub fn record(&self, donor: Donor) -> DonorRecord {
        DonorRecord::decode(&self.areas[donor]).unwrap()
    }

    /// The donor starts again without its memory.
    pub fn restart(&mut self, machine: &mut InPlaceMachine, donor: Donor) {
        self.incarnations[donor] += 100;
        self.memory[donor].fill(0);
        self.areas[donor].clear();
        machine.step(self.now_us, MachineEvent::Disconnected { donor });
    }

    /// Runs for so many milliseconds; returns what the machine says to its user.
    pub fn run(&mut self, machine: &mut InPlaceMachine, time_ms: u64) -> Vec<MachineAction> {
        let until_us = self.now_us + time_ms * 1000;
        let mut said = Vec::new();
        while self.now_us < until_us {
            self.now_us += STEP_US;
            for donor in 0..self.areas.len() {
                if self.is_up[donor] && machine.group().link_state(donor) == Some(LinkState::Down) {
                    machine.step(self.now_us, MachineEvent::Connected { donor, incarnation: self.incarnations[donor] });
                }
            }
            machine.step(self.now_us, MachineEvent::Time);
            self.answer(machine, &mut said);
        }
        said
    }

    fn answer(&mut self, machine: &mut InPlaceMachine, said: &mut Vec<MachineAction>) {
        loop {
            let actions: Vec<MachineAction> = machine.actions().collect();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    MachineAction::Send { donor, .. } if !self.is_up[donor] => {}
                    MachineAction::Send { donor, request, body } if (self.holds)(donor, &body) => {
                        self.held.push((donor, request, body));
                    }
                    MachineAction::Send { donor, request, body } => {
                        self.asked.push((donor, body.clone()));
                        let reply = self.reply(donor, body);
                        machine.step(self.now_us, MachineEvent::Replied { donor, request, reply });
                    }
                    MachineAction::Disconnect { .. } => {}
                    other => said.push(other),
                }
            }
        }
    }

    fn reply(&mut self, donor: Donor, body: DonorRequest) -> DonorReply {
        let is_swap = matches!(body, DonorRequest::SwapMetadata { .. });
        match donor_in_memory::answer(&mut self.memory[donor], &mut self.areas[donor], body) {
            DonorReply::Metadata { area, .. } => DonorReply::Metadata { area, is_owned: self.is_owned[donor] },
            DonorReply::Done if is_swap => {
                self.is_owned[donor] = false;
                DonorReply::Done
            }
            reply => reply,
        }
    }

    /// Answers the first request that was held back.
    pub fn release_one(&mut self, machine: &mut InPlaceMachine) {
        let (donor, request, body) = self.held.remove(0);
        let reply = self.reply(donor, body);
        machine.step(self.now_us, MachineEvent::Replied { donor, request, reply });
    }

    /// Answers the requests that were held back.
    pub fn release(&mut self, machine: &mut InPlaceMachine) {
        self.holds = |_, _| false;
        for (donor, request, body) in std::mem::take(&mut self.held) {
            let reply = self.reply(donor, body);
            machine.step(self.now_us, MachineEvent::Replied { donor, request, reply });
        }
    }

    /// Does a request, and waits at most a minute for its end.
    pub fn does(&mut self, machine: &mut InPlaceMachine, request: UserRequest) -> Result<Bytes, DeviceError> {
        machine.step(self.now_us, MachineEvent::Submitted { id: 7, request });
        for _ in 0..6000 {
            match self.run(machine, 10).into_iter().next() {
                Some(MachineAction::Complete { id: 7, result }) => return result,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        panic!("the request does not end");
    }

    pub fn write(&mut self, machine: &mut InPlaceMachine, block: u64, data: &[u8]) {
        let data = Bytes::copy_from_slice(data);
        let request = UserRequest::Write { offset: block * BLOCK_BYTES, data, force: false };
        assert_eq!(self.does(machine, request), Ok(Bytes::new()));
    }

    pub fn read(&mut self, machine: &mut InPlaceMachine, block: u64, blocks: u64) -> Result<Bytes, DeviceError> {
        self.does(machine, UserRequest::Read { offset: block * BLOCK_BYTES, bytes: blocks * BLOCK_BYTES })
    }
}
