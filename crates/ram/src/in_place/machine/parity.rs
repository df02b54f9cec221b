//! These tests drive the machine by hand, step by step; the simulator covers all other cases.

use bytes::Bytes;

use crate::format::{RecordGeometry, RedundancyCode};
use crate::group::{
    AttachRefusal, DeviceError, Donor, DonorReply, DonorRequest, MachineAction, MachineEvent, MachineIntent,
    MachineTimes, UserRequest,
};
use crate::in_place::donor_in_memory;
use crate::in_place::{InPlaceConfiguration, InPlaceMachine};

const DONORS: usize = 4;
/// Three data members of two blocks of 16 bytes.
const STRIPE_BYTES: u32 = 96;
const BLOCKS: u64 = 20;

fn configuration(client: u64, intent: MachineIntent) -> InPlaceConfiguration {
    let geometry = RecordGeometry {
        device: [3; 16],
        bytes: BLOCKS * 16,
        block_bytes: 16,
        stripe_bytes: STRIPE_BYTES,
        members: DONORS as u16,
        code: RedundancyCode::Parity,
    };
    let labels = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
    InPlaceConfiguration { geometry, labels, client, intent, times: MachineTimes::default() }
}

/// Donors that answer every request at once, from memory; those that are away answer nothing.
struct ParityTestDonors {
    memory: Vec<Vec<u8>>,
    areas: Vec<Vec<u8>>,
    is_away: [bool; DONORS],
    /// Every request for data, as its first letter and its donor.
    requests: Vec<(char, Donor)>,
    now_us: u64,
}

impl ParityTestDonors {
    fn new() -> ParityTestDonors {
        let (memory, areas) = (vec![vec![0; 128]; DONORS], vec![Vec::new(); DONORS]);
        ParityTestDonors { memory, areas, is_away: [false; DONORS], requests: Vec::new(), now_us: 0 }
    }

    fn answer(&mut self, donor: Donor, body: DonorRequest) -> DonorReply {
        let kind = match &body {
            DonorRequest::Read { .. } => 'r',
            DonorRequest::Write { .. } => 'w',
            DonorRequest::Trim { .. } => 't',
            DonorRequest::SwapMetadata { .. } => 's',
            _ => ' ',
        };
        if kind != ' ' {
            self.requests.push((kind, donor));
        }
        donor_in_memory::answer(&mut self.memory[donor], &mut self.areas[donor], body)
    }

    /// Runs until nothing more is sent; `may_send` says which requests arrive. Returns the other actions.
    fn run(
        &mut self,
        machine: &mut InPlaceMachine,
        may_send: impl Fn(Donor, &DonorRequest) -> bool,
    ) -> Vec<MachineAction> {
        let mut said = Vec::new();
        loop {
            let actions: Vec<MachineAction> = machine.actions().collect();
            if actions.is_empty() {
                return said;
            }
            for action in actions {
                match action {
                    MachineAction::Send { donor, request, body } if !self.is_away[donor] && may_send(donor, &body) => {
                        let reply = self.answer(donor, body);
                        machine.step(self.now_us, MachineEvent::Replied { donor, request, reply });
                    }
                    MachineAction::Send { .. } => {}
                    other => said.push(other),
                }
            }
        }
    }

    fn attach(&mut self, client: u64, intent: MachineIntent) -> InPlaceMachine {
        let mut machine = InPlaceMachine::new(configuration(client, intent), self.now_us).unwrap();
        for donor in (0..DONORS).filter(|donor| !self.is_away[*donor]) {
            machine.step(self.now_us, MachineEvent::Connected { donor, incarnation: 50 + donor as u64 });
        }
        let said = self.until(&mut machine);
        assert_eq!(said, [MachineAction::Attached]);
        self.requests.clear();
        machine
    }

    /// Lets time pass until the machine says something.
    fn until(&mut self, machine: &mut InPlaceMachine) -> Vec<MachineAction> {
        for _ in 0..1000 {
            let said = self.run(machine, |_, _| true);
            let said: Vec<MachineAction> =
                said.into_iter().filter(|action| !matches!(action, MachineAction::Disconnect { .. })).collect();
            if !said.is_empty() {
                return said;
            }
            self.now_us += 20_000;
            machine.step(self.now_us, MachineEvent::Time);
        }
        Vec::new()
    }

    fn does(&mut self, machine: &mut InPlaceMachine, request: UserRequest) -> Result<Bytes, DeviceError> {
        machine.step(self.now_us, MachineEvent::Submitted { id: 7, request });
        match self.until(machine).into_iter().next() {
            Some(MachineAction::Complete { id: 7, result }) => result,
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, machine: &mut InPlaceMachine, block: u64, data: &[u8]) {
        let data = Bytes::copy_from_slice(data);
        assert_eq!(self.does(machine, UserRequest::Write { offset: block * 16, data, force: false }), Ok(Bytes::new()));
    }

    fn read(&mut self, machine: &mut InPlaceMachine, block: u64) -> Result<u8, DeviceError> {
        let data = self.does(machine, UserRequest::Read { offset: block * 16, bytes: 16 })?;
        assert!(data.iter().all(|byte| *byte == data[0]), "{data:?}");
        Ok(data[0])
    }

    fn lose(&mut self, machine: &mut InPlaceMachine, donor: Donor) {
        self.is_away[donor] = true;
        machine.step(self.now_us, MachineEvent::Disconnected { donor });
    }
}

const ATTACH: MachineIntent = MachineIntent::Attach { take_over: false, trust_remaining: false };

/// A write of one block takes four transfers; a write of all members of a stripe reads nothing.
#[test]
fn small_write_takes_four_transfers() {
    let mut donors = ParityTestDonors::new();
    let mut machine = donors.attach(1, MachineIntent::Create);
    donors.write(&mut machine, 2, &[5; 16]);
    let count =
        |donors: &ParityTestDonors, kind: char| donors.requests.iter().filter(|request| request.0 == kind).count();
    assert_eq!((count(&donors, 's'), count(&donors, 'r'), count(&donors, 'w')), (2, 2, 2), "{:?}", donors.requests);
    assert!(donors.requests[4..].iter().all(|request| request.0 == 'w'), "marks come before writes");
    donors.requests.clear();
    donors.write(&mut machine, 2, &[6; 16]);
    assert_eq!(donors.requests.len(), 4, "the stripe stays marked for a while");
    donors.requests.clear();
    donors.write(&mut machine, 6, &[7; 6 * 16]);
    assert_eq!((count(&donors, 'r'), count(&donors, 'w')), (0, 4), "{:?}", donors.requests);
    donors.requests.clear();
    // Two of three members: the third one is read.
    donors.write(&mut machine, 0, &[8; 4 * 16]);
    assert_eq!((count(&donors, 'r'), count(&donors, 'w')), (1, 3), "{:?}", donors.requests);
    donors.requests.clear();
    assert_eq!(donors.does(&mut machine, UserRequest::Trim { offset: 96, bytes: 96 }), Ok(Bytes::new()));
    assert_eq!((count(&donors, 'r'), count(&donors, 't')), (0, 4), "{:?}", donors.requests);
    for column in 0..8 {
        let sum = (0..DONORS).fold(0, |sum, donor| sum ^ donors.memory[donor][column * 16]);
        assert_eq!(sum, 0, "column {column}");
    }
}

/// A donor may be lost while the device is in use, and after a detach.
#[test]
fn parity_survives_loss_of_any_donor() {
    for lost in 0..DONORS {
        let mut donors = ParityTestDonors::new();
        let mut machine = donors.attach(1, MachineIntent::Create);
        for block in 0..BLOCKS {
            donors.write(&mut machine, block, &[block as u8 + 1; 16]);
        }
        donors.lose(&mut machine, lost);
        for block in 0..BLOCKS {
            assert_eq!(donors.read(&mut machine, block), Ok(block as u8 + 1), "donor {lost}");
        }
        for block in (0..BLOCKS).step_by(3) {
            donors.write(&mut machine, block, &[block as u8 + 100; 16]);
        }
        let expected = |block: u64| block as u8 + if block.is_multiple_of(3) { 100 } else { 1 };
        for block in 0..BLOCKS {
            assert_eq!(donors.read(&mut machine, block), Ok(expected(block)), "donor {lost}");
        }
        machine.step(donors.now_us, MachineEvent::Detach);
        assert_eq!(donors.until(&mut machine), [MachineAction::Detached]);
        let mut machine = donors.attach(2, ATTACH);
        for block in 0..BLOCKS {
            assert_eq!(donors.read(&mut machine, block), Ok(expected(block)), "donor {lost}");
        }
        // It returns, is filled, and then another one is lost.
        donors.is_away[lost] = false;
        machine.step(donors.now_us, MachineEvent::Connected { donor: lost, incarnation: 50 + lost as u64 });
        while !machine.is_quiet() {
            donors.now_us += 20_000;
            machine.step(donors.now_us, MachineEvent::Time);
            donors.run(&mut machine, |_, _| true);
        }
        donors.lose(&mut machine, (lost + 1) % DONORS);
        for block in 0..BLOCKS {
            assert_eq!(donors.read(&mut machine, block), Ok(expected(block)), "donor {lost}, then the next");
        }
    }
}

/// If donor and client are lost during a write, the donor's blocks are errors until they are written.
#[test]
fn interrupted_stripes_lose_missing_blocks() {
    for lost in 0..DONORS {
        let mut donors = ParityTestDonors::new();
        let mut machine = donors.attach(1, MachineIntent::Create);
        for block in 0..BLOCKS {
            donors.write(&mut machine, block, &[block as u8 + 1; 16]);
        }
        donors.now_us += 5_000_000;
        machine.step(donors.now_us, MachineEvent::Time);
        donors.run(&mut machine, |_, _| true);
        // Block 0 is written, but not its parity, which is on the last donor.
        let data = Bytes::from(vec![99; 16]);
        machine.step(
            donors.now_us,
            MachineEvent::Submitted { id: 1, request: UserRequest::Write { offset: 0, data, force: true } },
        );
        let is_parity = |donor: Donor, body: &DonorRequest| donor == 3 && matches!(body, DonorRequest::Write { .. });
        assert!(donors.run(&mut machine, |donor, body| !is_parity(donor, body)).is_empty());
        drop(machine);
        donors.is_away[lost] = true;
        let mut machine = donors.attach(2, ATTACH);
        // The first stripe was being changed: member `m` is on donor `m`.
        let is_lost = |block: u64| block < 6 && block / 2 == lost as u64;
        for block in 0..BLOCKS {
            let expected = if block == 0 { 99 } else { block as u8 + 1 };
            match is_lost(block) {
                true => assert_eq!(donors.read(&mut machine, block), Err(DeviceError::Lost { block })),
                false => assert_eq!(donors.read(&mut machine, block), Ok(expected), "donor {lost}, block {block}"),
            }
        }
        for block in (0..BLOCKS).filter(|block| is_lost(*block)) {
            donors.write(&mut machine, block, &[77; 16]);
            assert_eq!(donors.read(&mut machine, block), Ok(77));
        }
    }
}

/// No block beyond the end of the device counts as lost.
#[test]
fn padding_blocks_are_never_lost() {
    let mut donors = ParityTestDonors::new();
    let mut machine = donors.attach(1, MachineIntent::Create);
    donors.write(&mut machine, 18, &[1; 16]);
    // The client ends before the mark of the last stripe is removed. Members 1 and 2, on donors 2 and 3, have no block.
    drop(machine);
    donors.is_away[2] = true;
    let mut machine = donors.attach(2, ATTACH);
    assert_eq!(machine.figures().lost_blocks, 0);
    donors.is_away[2] = false;
    machine.step(donors.now_us, MachineEvent::Connected { donor: 2, incarnation: 99 });
    while !machine.is_quiet() {
        donors.now_us += 20_000;
        machine.step(donors.now_us, MachineEvent::Time);
        donors.run(&mut machine, |_, _| true);
    }
    assert_eq!(machine.group().figures().rebuilt, 1);
    assert_eq!((&donors.memory[2][96..], &donors.memory[0][96..112]), (&[0; 32][..], &[1; 16][..]));
}

/// Donors that share a label are refused, and so are only two donors.
#[test]
fn parity_refuses_shared_label() {
    let mut same = configuration(1, MachineIntent::Create);
    same.labels[3] = "b".to_owned();
    assert!(matches!(InPlaceMachine::new(same, 0), Err(AttachRefusal::SameLabel { first: 1, second: 3, .. })));
    let mut two = configuration(1, MachineIntent::Create);
    two.geometry.members = 2;
    assert!(matches!(InPlaceMachine::new(two, 0), Err(AttachRefusal::Geometry(_))));
}
