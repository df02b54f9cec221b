//! These tests drive the machine by hand, step by step; the simulator covers all other cases.

use bytes::Bytes;

use super::*;
use crate::format::{Code, Geometry, Record};

fn configuration() -> Configuration {
    Configuration {
        geometry: Geometry {
            device: [3; 16],
            bytes: 16 * 16,
            block_bytes: 16,
            stripe_bytes: 32,
            members: 2,
            code: Code::Mirror,
        },
        labels: vec!["a".to_owned(), "b".to_owned()],
        client: 77,
        intent: Intent::Create,
        times: Times::default(),
    }
}

/// Donors that answer every request at once, from memory.
struct Donors {
    memory: Vec<Vec<u8>>,
    areas: Vec<Vec<u8>>,
}

impl Donors {
    fn new() -> Donors {
        Donors { memory: vec![vec![0; 1024]; 2], areas: vec![Vec::new(); 2] }
    }

    fn answer(&mut self, donor: Donor, body: DonorRequest) -> Reply {
        donor_in_memory::answer(&mut self.memory[donor], &mut self.areas[donor], body)
    }

    /// Runs until the machine sends no further request; returns its other actions.
    fn run(&mut self, machine: &mut Machine) -> Vec<Action> {
        let mut said = Vec::new();
        loop {
            let actions: Vec<Action> = machine.actions().collect();
            if actions.is_empty() {
                return said;
            }
            for action in actions {
                match action {
                    Action::Send { donor, request, body } => {
                        let reply = self.answer(donor, body);
                        machine.step(1000, Event::Replied { donor, request, reply });
                    }
                    other => said.push(other),
                }
            }
        }
    }
}

fn attached(donors: &mut Donors, configuration: Configuration) -> Machine {
    let mut machine = Machine::new(configuration, 0).unwrap();
    for donor in 0..2 {
        machine.step(0, Event::Connected { donor, incarnation: 50 + donor as u64 });
    }
    assert_eq!(donors.run(&mut machine), [Action::Attached]);
    machine
}

#[test]
fn write_is_on_both_donors_and_marked_before_it_is_acknowledged() {
    let mut donors = Donors::new();
    let mut machine = attached(&mut donors, configuration());
    let data = Bytes::from(vec![9; 48]);
    machine.step(2000, Event::Submitted { id: 1, request: Request::Write { offset: 16, data, force: false } });
    let first: Vec<Action> = machine.actions().collect();
    let is_swap = |action: &Action| matches!(action, Action::Send { body: DonorRequest::SwapMetadata { .. }, .. });
    assert!(first.len() == 2 && first.iter().all(is_swap), "the marks come first: {first:?}");
    let mut said = Vec::new();
    for action in first {
        let Action::Send { donor, request, body } = action else { continue };
        let reply = donors.answer(donor, body);
        machine.step(2000, Event::Replied { donor, request, reply });
    }
    said.extend(donors.run(&mut machine));
    assert_eq!(said, [Action::Complete { id: 1, result: Ok(Bytes::new()) }]);
    for stripe in [0, 1] {
        for place in Ring::new(&machine.configuration.geometry).places(stripe) {
            assert!(Record::decode(&donors.areas[place.donor]).unwrap().dirty.has(stripe));
        }
    }
    machine.step(2000, Event::Submitted { id: 2, request: Request::Read { offset: 0, bytes: 64 } });
    let mut expected = vec![0; 16];
    expected.extend([9; 48]);
    assert_eq!(donors.run(&mut machine), [Action::Complete { id: 2, result: Ok(expected.into()) }]);
    machine.step(3000, Event::Detach);
    assert_eq!(donors.run(&mut machine), [Action::Detached]);
    let record = Record::decode(&donors.areas[0]).unwrap();
    assert!(record.stamp.client == 0 && record.dirty.iter().count() == 0);
}

#[test]
fn bad_ranges_and_too_many_requests_are_refused_at_once() {
    let mut donors = Donors::new();
    let mut machine = attached(&mut donors, configuration());
    for (offset, bytes) in [(1, 16), (0, 8), (0, 0), (256, 16), (u64::MAX - 15, 16), (240, 32)] {
        machine.step(2000, Event::Submitted { id: 1, request: Request::Read { offset, bytes } });
        let refused = Action::Complete { id: 1, result: Err(MirrorError::Range { offset, bytes }) };
        assert_eq!(machine.actions().collect::<Vec<_>>(), [refused]);
    }
    for id in 0..OPERATIONS_MAX as u64 + 1 {
        machine.step(2000, Event::Submitted { id, request: Request::Read { offset: 0, bytes: 16 } });
    }
    let refused: Vec<Action> = machine.actions().filter(|action| matches!(action, Action::Complete { .. })).collect();
    assert_eq!(refused, [Action::Complete { id: OPERATIONS_MAX as u64, result: Err(MirrorError::Busy) }]);
}

#[test]
fn empty_donors_are_refused_and_so_are_used_ones_for_a_new_device() {
    let mut donors = Donors::new();
    let attach = Intent::Attach { take_over: false, trust_remaining: false };
    let refused = |donors: &mut Donors, intent: Intent, device: u8| {
        let mut configuration = Configuration { intent, ..configuration() };
        configuration.geometry.device = [device; 16];
        let mut machine = Machine::new(configuration, 0).unwrap();
        for donor in 0..2 {
            machine.step(0, Event::Connected { donor, incarnation: 50 + donor as u64 });
        }
        donors.run(&mut machine)
    };
    assert_eq!(refused(&mut donors, attach, 3), [Action::Refused(Refusal::Empty)]);
    attached(&mut donors, configuration());
    assert_eq!(refused(&mut donors, Intent::Create, 3), [Action::Refused(Refusal::InUse { donor: 0 })]);
    assert_eq!(refused(&mut donors, attach, 4), [Action::Refused(Refusal::OtherDevice { donor: 0 })]);
    assert_eq!(refused(&mut donors, attach, 3), [Action::Attached]);
}

#[test]
fn donors_with_one_label_may_not_hold_the_same_blocks() {
    let mut same = configuration();
    same.labels = vec!["rack".to_owned(), "rack".to_owned()];
    assert!(matches!(Machine::new(same, 0), Err(Refusal::SameLabel { first: 0, second: 1, .. })));
    let mut three = configuration();
    three.geometry.members = 3;
    three.labels = ["x", "y", "x"].map(str::to_owned).to_vec();
    assert!(matches!(Machine::new(three, 0), Err(Refusal::SameLabel { first: 2, second: 0, .. })));
}

/// Lets time pass until the machine reports something to the user; `answers` says which requests get an answer.
fn wait(donors: &mut Donors, machine: &mut Machine, answers: impl Fn(&DonorRequest) -> bool) -> Option<Action> {
    for now_us in (0..30_000_000).step_by(50_000) {
        machine.step(now_us, Event::Time);
        loop {
            let actions: Vec<Action> = machine.actions().collect();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    Action::Send { donor, request, body } if answers(&body) => {
                        let reply = donors.answer(donor, body);
                        machine.step(now_us, Event::Replied { donor, request, reply });
                    }
                    Action::Send { .. } => {}
                    said => return Some(said),
                }
            }
        }
    }
    None
}

#[test]
fn little_patience_attaches_without_a_donor_and_a_slow_one_is_called_slow() {
    let mut donors = Donors::new();
    attached(&mut donors, configuration());
    let alone = || {
        let mut alone = configuration();
        alone.intent = Intent::Attach { take_over: false, trust_remaining: true };
        (alone.client, alone.times.patience_us) = (78, 500_000);
        let mut machine = Machine::new(alone, 0).unwrap();
        machine.step(0, Event::Connected { donor: 0, incarnation: 50 });
        machine
    };
    // The lease that attaching waits for takes eight seconds.
    assert_eq!(wait(&mut donors, &mut alone(), |_| true), Some(Action::Attached));
    let mut donors = Donors::new();
    attached(&mut donors, configuration());
    let stores_once = std::cell::Cell::new(0);
    let answers = |body: &DonorRequest| match body {
        DonorRequest::SwapMetadata { .. } => stores_once.replace(stores_once.get() + 1) == 0,
        _ => true,
    };
    let said = wait(&mut donors, &mut alone(), answers);
    assert_eq!(said, Some(Action::Refused(Refusal::Slow { patience_us: 500_000 })));
    assert!(Refusal::Slow { patience_us: 500_000 }.to_string().contains("500 ms (`patience=`)"));
}

#[test]
fn a_client_that_knows_only_the_former_size_does_not_undo_a_growth() {
    let mut donors = Donors::new();
    let of = |client: u64, blocks: u64| {
        let geometry = Geometry { bytes: blocks * 16, ..configuration().geometry };
        let intent =
            if client == 1 { Intent::Create } else { Intent::Attach { take_over: false, trust_remaining: false } };
        Configuration { geometry, client, intent, ..configuration() }
    };
    for (client, blocks) in [(1, 16), (2, 24), (3, 24)] {
        let mut machine = attached(&mut donors, of(client, blocks));
        machine.step(2000, Event::Detach);
        assert_eq!(donors.run(&mut machine), [Action::Detached], "client {client}");
    }
    // Its survey saw the donors before the device had grown.
    let mut machine = Machine::new(of(4, 16), 0).unwrap();
    for donor in 0..2 {
        machine.step(0, Event::Connected { donor, incarnation: 50 + donor as u64 });
    }
    assert_eq!(donors.run(&mut machine), [Action::Refused(Refusal::Contended)]);
    attached(&mut donors, of(5, 24));
}
