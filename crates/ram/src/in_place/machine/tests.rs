//! These tests drive the machine by hand, step by step; the simulator covers all other cases.

use bytes::Bytes;

use super::*;
use crate::format::{DonorRecord, RecordGeometry, RedundancyCode};
use crate::group::*;

fn configuration() -> InPlaceConfiguration {
    InPlaceConfiguration {
        geometry: RecordGeometry {
            device: [3; 16],
            bytes: 16 * 16,
            block_bytes: 16,
            stripe_bytes: 32,
            members: 2,
            code: RedundancyCode::Mirror,
        },
        labels: vec!["a".to_owned(), "b".to_owned()],
        client: 77,
        intent: MachineIntent::Create,
        times: MachineTimes::default(),
    }
}

/// Donors that answer every request at once, from memory.
struct MirrorTestDonors {
    memory: Vec<Vec<u8>>,
    areas: Vec<Vec<u8>>,
}

impl MirrorTestDonors {
    fn new() -> MirrorTestDonors {
        MirrorTestDonors { memory: vec![vec![0; 1024]; 2], areas: vec![Vec::new(); 2] }
    }

    fn answer(&mut self, donor: Donor, body: DonorRequest) -> DonorReply {
        donor_in_memory::answer(&mut self.memory[donor], &mut self.areas[donor], body)
    }

    /// Runs until the machine sends no further request; returns its other actions.
    fn run(&mut self, machine: &mut InPlaceMachine) -> Vec<MachineAction> {
        let mut said = Vec::new();
        loop {
            let actions: Vec<MachineAction> = machine.actions().collect();
            if actions.is_empty() {
                return said;
            }
            for action in actions {
                match action {
                    MachineAction::Send { donor, request, body } => {
                        let reply = self.answer(donor, body);
                        machine.step(1000, MachineEvent::Replied { donor, request, reply });
                    }
                    other => said.push(other),
                }
            }
        }
    }
}

fn attached(donors: &mut MirrorTestDonors, configuration: InPlaceConfiguration) -> InPlaceMachine {
    let mut machine = InPlaceMachine::new(configuration, 0).unwrap();
    for donor in 0..2 {
        machine.step(0, MachineEvent::Connected { donor, incarnation: 50 + donor as u64 });
    }
    assert_eq!(donors.run(&mut machine), [MachineAction::Attached]);
    machine
}

/// A write is acknowledged when its mark and its data are on both donors.
#[test]
fn write_is_marked_then_mirrored() {
    let mut donors = MirrorTestDonors::new();
    let mut machine = attached(&mut donors, configuration());
    let data = Bytes::from(vec![9; 48]);
    machine
        .step(2000, MachineEvent::Submitted { id: 1, request: UserRequest::Write { offset: 16, data, force: false } });
    let first: Vec<MachineAction> = machine.actions().collect();
    let is_swap =
        |action: &MachineAction| matches!(action, MachineAction::Send { body: DonorRequest::SwapMetadata { .. }, .. });
    assert!(first.len() == 2 && first.iter().all(is_swap), "the marks come first: {first:?}");
    let mut said = Vec::new();
    for action in first {
        let MachineAction::Send { donor, request, body } = action else { continue };
        let reply = donors.answer(donor, body);
        machine.step(2000, MachineEvent::Replied { donor, request, reply });
    }
    said.extend(donors.run(&mut machine));
    assert_eq!(said, [MachineAction::Complete { id: 1, result: Ok(Bytes::new()) }]);
    for stripe in [0, 1] {
        for donor in machine.rows.donors(stripe) {
            assert!(DonorRecord::decode(&donors.areas[donor]).unwrap().dirty.has(stripe));
        }
    }
    machine.step(2000, MachineEvent::Submitted { id: 2, request: UserRequest::Read { offset: 0, bytes: 64 } });
    let mut expected = vec![0; 16];
    expected.extend([9; 48]);
    assert_eq!(donors.run(&mut machine), [MachineAction::Complete { id: 2, result: Ok(expected.into()) }]);
    machine.step(3000, MachineEvent::Detach);
    assert_eq!(donors.run(&mut machine), [MachineAction::Detached]);
    let record = DonorRecord::decode(&donors.areas[0]).unwrap();
    assert!(record.stamp.client == 0 && record.dirty.iter().count() == 0);
}

#[test]
fn bad_and_excess_requests_are_refused() {
    let mut donors = MirrorTestDonors::new();
    let mut machine = attached(&mut donors, configuration());
    for (offset, bytes) in [(1, 16), (0, 8), (0, 0), (256, 16), (u64::MAX - 15, 16), (240, 32)] {
        machine.step(2000, MachineEvent::Submitted { id: 1, request: UserRequest::Read { offset, bytes } });
        let refused = MachineAction::Complete { id: 1, result: Err(DeviceError::Range { offset, bytes }) };
        assert_eq!(machine.actions().collect::<Vec<_>>(), [refused]);
    }
    for id in 0..OPERATIONS_MAX as u64 + 1 {
        machine.step(2000, MachineEvent::Submitted { id, request: UserRequest::Read { offset: 0, bytes: 16 } });
    }
    let refused: Vec<MachineAction> =
        machine.actions().filter(|action| matches!(action, MachineAction::Complete { .. })).collect();
    assert_eq!(refused, [MachineAction::Complete { id: OPERATIONS_MAX as u64, result: Err(DeviceError::Busy) }]);
}

/// Attaching to empty donors is refused, and so is making a device on donors in use.
#[test]
fn attach_refuses_empty_donors() {
    let mut donors = MirrorTestDonors::new();
    let attach = MachineIntent::Attach { take_over: false, trust_remaining: false };
    let refused = |donors: &mut MirrorTestDonors, intent: MachineIntent, device: u8| {
        let mut configuration = InPlaceConfiguration { intent, ..configuration() };
        configuration.geometry.device = [device; 16];
        let mut machine = InPlaceMachine::new(configuration, 0).unwrap();
        for donor in 0..2 {
            machine.step(0, MachineEvent::Connected { donor, incarnation: 50 + donor as u64 });
        }
        donors.run(&mut machine)
    };
    assert_eq!(refused(&mut donors, attach, 3), [MachineAction::Refused(AttachRefusal::Empty)]);
    attached(&mut donors, configuration());
    assert_eq!(
        refused(&mut donors, MachineIntent::Create, 3),
        [MachineAction::Refused(AttachRefusal::InUse { donor: 0 })]
    );
    assert_eq!(refused(&mut donors, attach, 4), [MachineAction::Refused(AttachRefusal::OtherDevice { donor: 0 })]);
    assert_eq!(refused(&mut donors, attach, 3), [MachineAction::Attached]);
}

#[test]
fn mirror_refuses_copies_under_one_label() {
    let mut same = configuration();
    same.labels = vec!["rack".to_owned(), "rack".to_owned()];
    assert!(matches!(InPlaceMachine::new(same, 0), Err(AttachRefusal::SameLabel { first: 0, second: 1, .. })));
    let mut three = configuration();
    three.geometry.members = 3;
    three.labels = ["x", "y", "x"].map(str::to_owned).to_vec();
    assert!(matches!(InPlaceMachine::new(three, 0), Err(AttachRefusal::SameLabel { first: 2, second: 0, .. })));
}

/// Lets time pass until the machine reports something to the user; `answers` says which requests get an answer.
fn wait(
    donors: &mut MirrorTestDonors,
    machine: &mut InPlaceMachine,
    answers: impl Fn(&DonorRequest) -> bool,
) -> Option<MachineAction> {
    for now_us in (0..30_000_000).step_by(50_000) {
        machine.step(now_us, MachineEvent::Time);
        loop {
            let actions: Vec<MachineAction> = machine.actions().collect();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    MachineAction::Send { donor, request, body } if answers(&body) => {
                        let reply = donors.answer(donor, body);
                        machine.step(now_us, MachineEvent::Replied { donor, request, reply });
                    }
                    MachineAction::Send { .. } => {}
                    said => return Some(said),
                }
            }
        }
    }
    None
}

/// A present donor that is too slow for the patience is reported as slow.
#[test]
fn short_patience_attaches_without_donor() {
    let mut donors = MirrorTestDonors::new();
    attached(&mut donors, configuration());
    let alone = || {
        let mut alone = configuration();
        alone.intent = MachineIntent::Attach { take_over: false, trust_remaining: true };
        (alone.client, alone.times.patience_us) = (78, 500_000);
        let mut machine = InPlaceMachine::new(alone, 0).unwrap();
        machine.step(0, MachineEvent::Connected { donor: 0, incarnation: 50 });
        machine
    };
    // The lease that attaching waits for takes eight seconds.
    assert_eq!(wait(&mut donors, &mut alone(), |_| true), Some(MachineAction::Attached));
    let mut donors = MirrorTestDonors::new();
    attached(&mut donors, configuration());
    let stores_once = std::cell::Cell::new(0);
    let answers = |body: &DonorRequest| match body {
        DonorRequest::SwapMetadata { .. } => stores_once.replace(stores_once.get() + 1) == 0,
        _ => true,
    };
    let said = wait(&mut donors, &mut alone(), answers);
    assert_eq!(said, Some(MachineAction::Refused(AttachRefusal::Slow { patience_us: 500_000 })));
    assert!(AttachRefusal::Slow { patience_us: 500_000 }.to_string().contains("500 ms (`patience=`)"));
}

#[test]
fn attach_with_former_size_keeps_growth() {
    let mut donors = MirrorTestDonors::new();
    let of = |client: u64, blocks: u64| {
        let geometry = RecordGeometry { bytes: blocks * 16, ..configuration().geometry };
        let intent = if client == 1 {
            MachineIntent::Create
        } else {
            MachineIntent::Attach { take_over: false, trust_remaining: false }
        };
        InPlaceConfiguration { geometry, client, intent, ..configuration() }
    };
    for (client, blocks) in [(1, 16), (2, 24), (3, 24)] {
        let mut machine = attached(&mut donors, of(client, blocks));
        machine.step(2000, MachineEvent::Detach);
        assert_eq!(donors.run(&mut machine), [MachineAction::Detached], "client {client}");
    }
    // Its survey saw the donors before the device had grown.
    let mut machine = InPlaceMachine::new(of(4, 16), 0).unwrap();
    for donor in 0..2 {
        machine.step(0, MachineEvent::Connected { donor, incarnation: 50 + donor as u64 });
    }
    assert_eq!(donors.run(&mut machine), [MachineAction::Refused(AttachRefusal::Contended)]);
    attached(&mut donors, of(5, 24));
}
