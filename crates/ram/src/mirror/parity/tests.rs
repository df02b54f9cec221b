//! These tests drive the machine by hand, step by step; the simulator covers all other cases.

use bytes::Bytes;

use crate::format::{Code, Geometry};
use crate::mirror::donor_in_memory;
use crate::mirror::{
    Action, Configuration, Donor, DonorRequest, Event, Intent, Machine, MirrorError, Refusal, Reply, Request, Times,
};

const DONORS: usize = 4;
/// Three data members of two blocks of 16 bytes.
const STRIPE_BYTES: u32 = 96;
const BLOCKS: u64 = 20;

/// Donors that answer every request at once, from memory; those that are away answer nothing.
struct Donors {
    memory: Vec<Vec<u8>>,
    areas: Vec<Vec<u8>>,
    is_away: [bool; DONORS],
    /// Every request for data, as its first letter and its donor.
    requests: Vec<(char, Donor)>,
    now_us: u64,
}

impl Donors {
    fn new() -> Donors {
        let (memory, areas) = (vec![vec![0; 128]; DONORS], vec![Vec::new(); DONORS]);
        Donors { memory, areas, is_away: [false; DONORS], requests: Vec::new(), now_us: 0 }
    }

    fn answer(&mut self, donor: Donor, body: DonorRequest) -> Reply {
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
    fn run(&mut self, machine: &mut Machine, may_send: impl Fn(Donor, &DonorRequest) -> bool) -> Vec<Action> {
        let mut said = Vec::new();
        loop {
            let actions: Vec<Action> = machine.actions().collect();
            if actions.is_empty() {
                return said;
            }
            for action in actions {
                match action {
                    Action::Send { donor, request, body } if !self.is_away[donor] && may_send(donor, &body) => {
                        let reply = self.answer(donor, body);
                        machine.step(self.now_us, Event::Replied { donor, request, reply });
                    }
                    Action::Send { .. } => {}
                    other => said.push(other),
                }
            }
        }
    }

    fn attach(&mut self, client: u64, intent: Intent) -> Machine {
        let geometry = Geometry {
            device: [3; 16],
            bytes: BLOCKS * 16,
            block_bytes: 16,
            stripe_bytes: STRIPE_BYTES,
            members: DONORS as u16,
            code: Code::Parity,
        };
        let labels = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let configuration = Configuration { geometry, labels, client, intent, times: Times::default() };
        let mut machine = Machine::new(configuration, self.now_us).unwrap();
        for donor in (0..DONORS).filter(|donor| !self.is_away[*donor]) {
            machine.step(self.now_us, Event::Connected { donor, incarnation: 50 + donor as u64 });
        }
        let said = self.until(&mut machine);
        assert_eq!(said, [Action::Attached]);
        self.requests.clear();
        machine
    }

    /// Lets time pass until the machine says something.
    fn until(&mut self, machine: &mut Machine) -> Vec<Action> {
        for _ in 0..1000 {
            let said = self.run(machine, |_, _| true);
            let said: Vec<Action> =
                said.into_iter().filter(|action| !matches!(action, Action::Disconnect { .. })).collect();
            if !said.is_empty() {
                return said;
            }
            self.now_us += 20_000;
            machine.step(self.now_us, Event::Time);
        }
        Vec::new()
    }

    fn does(&mut self, machine: &mut Machine, request: Request) -> Result<Bytes, MirrorError> {
        machine.step(self.now_us, Event::Submitted { id: 7, request });
        match self.until(machine).into_iter().next() {
            Some(Action::Complete { id: 7, result }) => result,
            other => panic!("{other:?}"),
        }
    }

    fn write(&mut self, machine: &mut Machine, block: u64, data: &[u8]) {
        let data = Bytes::copy_from_slice(data);
        assert_eq!(self.does(machine, Request::Write { offset: block * 16, data, force: false }), Ok(Bytes::new()));
    }

    fn read(&mut self, machine: &mut Machine, block: u64) -> Result<u8, MirrorError> {
        let data = self.does(machine, Request::Read { offset: block * 16, bytes: 16 })?;
        assert!(data.iter().all(|byte| *byte == data[0]), "{data:?}");
        Ok(data[0])
    }

    fn lose(&mut self, machine: &mut Machine, donor: Donor) {
        self.is_away[donor] = true;
        machine.step(self.now_us, Event::Disconnected { donor });
    }
}

const ATTACH: Intent = Intent::Attach { take_over: false, trust_remaining: false };

#[test]
fn write_of_one_block_is_four_transfers_and_of_all_members_none_is_read() {
    let mut donors = Donors::new();
    let mut machine = donors.attach(1, Intent::Create);
    donors.write(&mut machine, 2, &[5; 16]);
    let count = |donors: &Donors, kind: char| donors.requests.iter().filter(|request| request.0 == kind).count();
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
    assert_eq!(donors.does(&mut machine, Request::Trim { offset: 96, bytes: 96 }), Ok(Bytes::new()));
    assert_eq!((count(&donors, 'r'), count(&donors, 't')), (0, 4), "{:?}", donors.requests);
    for column in 0..8 {
        let sum = (0..DONORS).fold(0, |sum, donor| sum ^ donors.memory[donor][column * 16]);
        assert_eq!(sum, 0, "column {column}");
    }
}

#[test]
fn each_donor_may_be_lost_while_the_device_is_used_and_after_a_detach() {
    for lost in 0..DONORS {
        let mut donors = Donors::new();
        let mut machine = donors.attach(1, Intent::Create);
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
        machine.step(donors.now_us, Event::Detach);
        assert_eq!(donors.until(&mut machine), [Action::Detached]);
        let mut machine = donors.attach(2, ATTACH);
        for block in 0..BLOCKS {
            assert_eq!(donors.read(&mut machine, block), Ok(expected(block)), "donor {lost}");
        }
        // It returns, is filled, and then another one is lost.
        donors.is_away[lost] = false;
        machine.step(donors.now_us, Event::Connected { donor: lost, incarnation: 50 + lost as u64 });
        while !machine.is_quiet() {
            donors.now_us += 20_000;
            machine.step(donors.now_us, Event::Time);
            donors.run(&mut machine, |_, _| true);
        }
        donors.lose(&mut machine, (lost + 1) % DONORS);
        for block in 0..BLOCKS {
            assert_eq!(donors.read(&mut machine, block), Ok(expected(block)), "donor {lost}, then the next");
        }
    }
}

#[test]
fn blocks_of_a_donor_that_is_lost_with_the_client_in_a_write_are_errors_until_they_are_written() {
    for lost in 0..DONORS {
        let mut donors = Donors::new();
        let mut machine = donors.attach(1, Intent::Create);
        for block in 0..BLOCKS {
            donors.write(&mut machine, block, &[block as u8 + 1; 16]);
        }
        donors.now_us += 5_000_000;
        machine.step(donors.now_us, Event::Time);
        donors.run(&mut machine, |_, _| true);
        // Block 0 is written, but not its parity, which is on the last donor.
        let data = Bytes::from(vec![99; 16]);
        machine
            .step(donors.now_us, Event::Submitted { id: 1, request: Request::Write { offset: 0, data, force: true } });
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
                true => assert_eq!(donors.read(&mut machine, block), Err(MirrorError::Lost { block })),
                false => assert_eq!(donors.read(&mut machine, block), Ok(expected), "donor {lost}, block {block}"),
            }
        }
        for block in (0..BLOCKS).filter(|block| is_lost(*block)) {
            donors.write(&mut machine, block, &[77; 16]);
            assert_eq!(donors.read(&mut machine, block), Ok(77));
        }
    }
}

#[test]
fn behind_the_end_of_the_device_nothing_is_lost() {
    let mut donors = Donors::new();
    let mut machine = donors.attach(1, Intent::Create);
    donors.write(&mut machine, 18, &[1; 16]);
    // The client ends before the mark of the last stripe is removed. Members 1 and 2, on donors 2 and 3, have no block.
    drop(machine);
    donors.is_away[2] = true;
    let mut machine = donors.attach(2, ATTACH);
    assert_eq!(machine.figures().lost_blocks, 0);
    donors.is_away[2] = false;
    machine.step(donors.now_us, Event::Connected { donor: 2, incarnation: 99 });
    while !machine.is_quiet() {
        donors.now_us += 20_000;
        machine.step(donors.now_us, Event::Time);
        donors.run(&mut machine, |_, _| true);
    }
    assert_eq!(machine.figures().rebuilt, 1);
    assert_eq!((&donors.memory[2][96..], &donors.memory[0][96..112]), (&[0; 32][..], &[1; 16][..]));
}

#[test]
fn two_donors_with_one_label_or_two_donors_at_all_are_refused() {
    let mut donors = Donors::new();
    let machine = donors.attach(1, Intent::Create);
    let mut same = machine.configuration.clone();
    same.labels[3] = "b".to_owned();
    assert!(matches!(Machine::new(same, 0), Err(Refusal::SameLabel { first: 1, second: 3, .. })));
    let mut two = machine.configuration.clone();
    two.geometry.members = 2;
    assert!(matches!(Machine::new(two, 0), Err(Refusal::Geometry(_))));
}
