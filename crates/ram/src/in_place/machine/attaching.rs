//! Donors that are late, or change, while a client attaches.

use super::bench::{ATTACH, MirrorBench};
use crate::format::record::{COUNT_MAX, GENERATION_MAX};
use crate::format::{DonorRecord, MemberState};
use crate::group::*;

fn is_swap(body: &DonorRequest) -> bool {
    matches!(body, DonorRequest::SwapMetadata { .. })
}

/// Two donors: the client has left donor 1, written without it, and crashed.
fn written_without_one(bench: &mut MirrorBench) {
    let mut machine = bench.created();
    bench.is_up[1] = false;
    machine.step(bench.now_us, MachineEvent::Disconnected { donor: 1 });
    bench.run(&mut machine, 2000);
    bench.write(&mut machine, 0, &[9; 16]);
    bench.is_up[1] = true;
    let state = |bench: &MirrorBench, donor: Donor| bench.record(donor).view.members[1].state;
    assert_eq!((state(bench, 0), state(bench, 1)), (MemberState::Left, MemberState::Present));
}

/// A client does not continue with a view that is older than the newest one that it has read.
#[test]
fn attach_never_uses_older_view() {
    let mut bench = MirrorBench::new(2);
    written_without_one(&mut bench);
    bench.holds = |donor, body| donor == 0 && is_swap(body);
    let mut machine = bench.machine(78, MachineIntent::Attach { take_over: true, trust_remaining: true });
    let refused = MachineAction::Refused(AttachRefusal::TooFew { needed: 2, found: 1, missing: vec![0] });
    assert_eq!(bench.run(&mut machine, 60_000), [refused]);
    // The same if the donor answers again before the client loses its patience.
    bench.held.clear();
    let mut machine = bench.machine(79, MachineIntent::Attach { take_over: true, trust_remaining: true });
    assert_eq!(bench.run(&mut machine, 10_000), []);
    bench.holds = |_, _| false;
    assert_eq!(bench.run(&mut machine, 10_000), [MachineAction::Attached]);
    assert_eq!(bench.read(&mut machine, 0, 1), Ok(vec![9; 16].into()));
}

/// A donor that answers after the survey and has another living client is taken over only on request.
#[test]
fn late_owned_donor_refuses_attach() {
    for take_over in [false, true] {
        let mut bench = MirrorBench::new(2);
        written_without_one(&mut bench);
        let area = bench.areas[0].clone();
        (bench.is_up[0], bench.is_owned[0]) = (false, true);
        let mut machine = bench.machine(78, MachineIntent::Attach { take_over, trust_remaining: true });
        assert_eq!(bench.run(&mut machine, 2100), []);
        assert_eq!(machine.group().phase(), GroupPhase::Claim);
        bench.is_up[0] = true;
        let said = bench.run(&mut machine, 10_000);
        match take_over {
            true => assert_eq!(said, [MachineAction::Attached]),
            false => {
                assert_eq!(said, [MachineAction::Refused(AttachRefusal::AttachedElsewhere { client: 77 })]);
                assert_eq!(bench.areas[0], area);
            }
        }
    }
}

#[test]
fn interrupted_claim_is_repeated() {
    let mut bench = MirrorBench::new(2);
    let mut machine = bench.created();
    machine.step(bench.now_us, MachineEvent::Detach);
    assert_eq!(bench.run(&mut machine, 100), [MachineAction::Detached]);
    let mut machine = bench.machine(78, ATTACH);
    bench.holds = |donor, body| donor == 0 && is_swap(body);
    assert_eq!(bench.run(&mut machine, 100), []);
    // The donor stores the record, and its owner is the connection that is lost.
    bench.release(&mut machine);
    bench.is_owned[0] = true;
    machine.step(bench.now_us, MachineEvent::Disconnected { donor: 0 });
    assert_eq!(bench.run(&mut machine, 10_000), [MachineAction::Attached]);
}

/// Stores a record in an area without the limits of its encoding.
fn store(bench: &mut MirrorBench, donor: Donor, change: impl FnOnce(&mut DonorRecord)) {
    let mut record = bench.record(donor);
    change(&mut record);
    bench.areas[donor] = record.encode();
}

/// A change of a record, and whether the device can be attached after it.
type Change = (fn(&mut DonorRecord), bool);

/// A record with the greatest numbers is refused, or counts as damage; nothing overflows.
#[test]
fn greatest_record_numbers_never_overflow() {
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
        let mut bench = MirrorBench::new(3);
        let mut machine = bench.created();
        bench.write(&mut machine, 0, &[5; 16]);
        machine.step(bench.now_us, MachineEvent::Detach);
        bench.run(&mut machine, 100);
        store(&mut bench, 2, change);
        let mut machine = bench.machine(78, ATTACH);
        let said = bench.run(&mut machine, 10_000);
        match is_attached {
            true => {
                assert_eq!(said, [MachineAction::Attached], "{number}");
                assert!(machine.is_quiet(), "{number}: the damaged donor is filled again");
                assert_eq!(bench.read(&mut machine, 0, 1), Ok(vec![5; 16].into()));
                assert!((0..3).all(|donor| bench.record(donor).view.members.len() == 3));
            }
            false => {
                assert!(matches!(said[..], [MachineAction::Refused(AttachRefusal::Geometry(_))]), "{number}: {said:?}")
            }
        }
    }
}

#[test]
fn last_generation_is_not_outbid() {
    let mut bench = MirrorBench::new(2);
    let mut machine = bench.created();
    machine.step(bench.now_us, MachineEvent::Detach);
    bench.run(&mut machine, 100);
    bench.holds = |_, body| is_swap(body);
    let mut machine = bench.machine(78, MachineIntent::Attach { take_over: true, trust_remaining: false });
    bench.run(&mut machine, 100);
    for donor in 0..2 {
        store(&mut bench, donor, |record| (record.stamp.generation, record.stamp.client) = (GENERATION_MAX, 5));
    }
    bench.release(&mut machine);
    let range = crate::format::FormatError::Range { what: "generation", found: GENERATION_MAX };
    assert_eq!(bench.run(&mut machine, 1000), [MachineAction::Refused(AttachRefusal::Geometry(range))]);
}
