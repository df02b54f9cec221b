//! Donors that are late, or change, while a client attaches.

use super::bench::{ATTACH, Bench};
use super::*;
use crate::format::record::{COUNT_MAX, GENERATION_MAX};
use crate::format::{MemberState, Record};

fn is_swap(body: &DonorRequest) -> bool {
    matches!(body, DonorRequest::SwapMetadata { .. })
}

/// Two donors: the client has left donor 1, written without it, and crashed.
fn written_without_one(bench: &mut Bench) {
    let mut machine = bench.created();
    bench.is_up[1] = false;
    machine.step(bench.now_us, Event::Disconnected { donor: 1 });
    bench.run(&mut machine, 2000);
    bench.write(&mut machine, 0, &[9; 16]);
    bench.is_up[1] = true;
    let state = |bench: &Bench, donor: Donor| bench.record(donor).view.members[1].state;
    assert_eq!((state(bench, 0), state(bench, 1)), (MemberState::Left, MemberState::Present));
}

#[test]
fn a_client_does_not_go_on_with_an_older_view_than_the_newest_that_it_has_read() {
    let mut bench = Bench::new(2);
    written_without_one(&mut bench);
    bench.holds = |donor, body| donor == 0 && is_swap(body);
    let mut machine = bench.machine(78, Intent::Attach { take_over: true, trust_remaining: true });
    let refused = Action::Refused(Refusal::TooFew { needed: 2, found: 1, missing: vec![0] });
    assert_eq!(bench.run(&mut machine, 60_000), [refused]);
    // The same if the donor answers again before the client loses its patience.
    bench.held.clear();
    let mut machine = bench.machine(79, Intent::Attach { take_over: true, trust_remaining: true });
    assert_eq!(bench.run(&mut machine, 10_000), []);
    bench.holds = |_, _| false;
    assert_eq!(bench.run(&mut machine, 10_000), [Action::Attached]);
    assert_eq!(bench.read(&mut machine, 0, 1), Ok(vec![9; 16].into()));
}

#[test]
fn a_donor_of_another_living_client_that_answers_after_the_survey_is_not_taken_over() {
    for take_over in [false, true] {
        let mut bench = Bench::new(2);
        written_without_one(&mut bench);
        let area = bench.areas[0].clone();
        (bench.is_up[0], bench.is_owned[0]) = (false, true);
        let mut machine = bench.machine(78, Intent::Attach { take_over, trust_remaining: true });
        assert_eq!(bench.run(&mut machine, 2100), []);
        assert_eq!(machine.phase(), Phase::Claim);
        bench.is_up[0] = true;
        let said = bench.run(&mut machine, 10_000);
        match take_over {
            true => assert_eq!(said, [Action::Attached]),
            false => {
                assert_eq!(said, [Action::Refused(Refusal::AttachedElsewhere { client: 77 })]);
                assert_eq!(bench.areas[0], area);
            }
        }
    }
}

#[test]
fn a_client_whose_claim_was_cut_off_claims_again() {
    let mut bench = Bench::new(2);
    let mut machine = bench.created();
    machine.step(bench.now_us, Event::Detach);
    assert_eq!(bench.run(&mut machine, 100), [Action::Detached]);
    let mut machine = bench.machine(78, ATTACH);
    bench.holds = |donor, body| donor == 0 && is_swap(body);
    assert_eq!(bench.run(&mut machine, 100), []);
    // The donor stores the record, and its owner is the connection that is lost.
    bench.release(&mut machine);
    bench.is_owned[0] = true;
    machine.step(bench.now_us, Event::Disconnected { donor: 0 });
    assert_eq!(bench.run(&mut machine, 10_000), [Action::Attached]);
}

/// Stores a record in an area without the limits of its encoding.
fn store(bench: &mut Bench, donor: Donor, change: impl FnOnce(&mut Record)) {
    let mut record = bench.record(donor);
    change(&mut record);
    bench.areas[donor] = record.encode();
}

/// A change of a record, and whether the device can be attached after it.
type Change = (fn(&mut Record), bool);

#[test]
fn greatest_numbers_in_a_record_are_refused_or_count_as_damage_and_never_overflow() {
    let changes: [Change; 8] = [
        (|record| record.stamp.generation = u64::MAX, true),
        (|record| record.stamp.revision = u64::MAX, true),
        (|record| record.view.generation = u64::MAX, true),
        (|record| record.view.epoch = u64::MAX, true),
        (|record| record.stamp.revision = COUNT_MAX, true),
        (|record| record.stamp.generation = GENERATION_MAX, false),
        (|record| (record.view.generation, record.view.epoch) = (9, COUNT_MAX), false),
        (|record| record.view.epoch = COUNT_MAX / 2, true),
    ];
    for (number, (change, is_attached)) in changes.into_iter().enumerate() {
        let mut bench = Bench::new(3);
        let mut machine = bench.created();
        bench.write(&mut machine, 0, &[5; 16]);
        machine.step(bench.now_us, Event::Detach);
        bench.run(&mut machine, 100);
        store(&mut bench, 2, change);
        let mut machine = bench.machine(78, ATTACH);
        let said = bench.run(&mut machine, 10_000);
        match is_attached {
            true => {
                assert_eq!(said, [Action::Attached], "{number}");
                assert!(machine.is_quiet(), "{number}: the damaged donor is filled again");
                assert_eq!(bench.read(&mut machine, 0, 1), Ok(vec![5; 16].into()));
                assert!((0..3).all(|donor| bench.record(donor).view.members.len() == 3));
            }
            false => assert!(matches!(said[..], [Action::Refused(Refusal::Geometry(_))]), "{number}: {said:?}"),
        }
    }
}

#[test]
fn a_rival_with_the_last_generation_is_not_outbid() {
    let mut bench = Bench::new(2);
    let mut machine = bench.created();
    machine.step(bench.now_us, Event::Detach);
    bench.run(&mut machine, 100);
    bench.holds = |_, body| is_swap(body);
    let mut machine = bench.machine(78, Intent::Attach { take_over: true, trust_remaining: false });
    bench.run(&mut machine, 100);
    for donor in 0..2 {
        store(&mut bench, donor, |record| (record.stamp.generation, record.stamp.client) = (GENERATION_MAX, 5));
    }
    bench.release(&mut machine);
    let range = crate::format::FormatError::Range { what: "generation", found: GENERATION_MAX };
    assert_eq!(bench.run(&mut machine, 1000), [Action::Refused(Refusal::Geometry(range))]);
}
