//! Donors that were left and are there again.

use bytes::Bytes;

use super::bench::{ATTACH, MirrorBench};
use super::*;
use crate::format::{DonorRecord, RecordStamp};
use crate::group::*;

/// A device whose donor 1 is left.
fn degraded(bench: &mut MirrorBench) -> InPlaceMachine {
    let mut machine = bench.created();
    bench.is_up[1] = false;
    machine.step(bench.now_us, MachineEvent::Disconnected { donor: 1 });
    assert_eq!(bench.run(&mut machine, 2000), []);
    assert_eq!(machine.group().standing(), [DonorStanding::Trusted, DonorStanding::Out]);
    bench.is_up[1] = true;
    machine
}

/// A returning donor with another device is refused until that device is deleted.
#[test]
fn returning_donor_keeps_other_device() {
    let mut bench = MirrorBench::new(2);
    let mut machine = degraded(&mut bench);
    let record = bench.record(1);
    let geometry = bench.geometry(4);
    let stamp = RecordStamp { generation: 1, client: 0, revision: 3 };
    bench.areas[1] = DonorRecord { geometry, stamp, ..record }.encode();
    bench.memory[1].fill(9);
    let (area, memory) = (bench.areas[1].clone(), bench.memory[1].clone());
    for _ in 0..100 {
        assert_eq!(bench.run(&mut machine, 100), []);
        assert_eq!((&bench.areas[1], &bench.memory[1]), (&area, &memory));
        assert_eq!(machine.group().standing(), [DonorStanding::Trusted, DonorStanding::Out]);
    }
    assert_eq!(machine.group().link_state(1), Some(LinkState::Refused));
    bench.areas[1].clear();
    assert_eq!(bench.run(&mut machine, 3000), []);
    assert!(machine.is_quiet(), "{:?}", machine.group().standing());
}

/// What a donor has of another place of the device is kept while a client uses that place.
#[test]
fn data_of_unused_place_is_overwritten() {
    let mut bench = MirrorBench::new(2);
    let mut machine = degraded(&mut bench);
    bench.areas[1] = bench.areas[0].clone();
    bench.is_owned[1] = true;
    assert_eq!(bench.run(&mut machine, 5000), []);
    assert_eq!(machine.group().link_state(1), Some(LinkState::Refused));
    bench.is_owned[1] = false;
    assert_eq!(bench.run(&mut machine, 5000), []);
    assert!(machine.is_quiet(), "{:?}", machine.group().standing());
}

/// A returning donor with another living client is refused unless the user takes the device over.
#[test]
fn owned_returning_donor_needs_take_over() {
    for take_over in [false, true] {
        let mut bench = MirrorBench::new(2);
        let mut machine = degraded(&mut bench);
        machine.step(bench.now_us, MachineEvent::Detach);
        bench.run(&mut machine, 100);
        bench.is_up[1] = false;
        let mut machine = bench.machine(78, MachineIntent::Attach { take_over, trust_remaining: false });
        assert_eq!(bench.run(&mut machine, 10_000), [MachineAction::Attached]);
        // The first client is connected to this donor alone.
        (bench.is_up[1], bench.is_owned[1]) = (true, true);
        assert_eq!(bench.run(&mut machine, 5000), []);
        let refused = machine.group().link_state(1) == Some(LinkState::Refused);
        assert_eq!((machine.is_quiet(), refused), (take_over, !take_over));
        bench.is_owned[1] = false;
        assert_eq!(bench.run(&mut machine, 3000), []);
        assert!(machine.is_quiet());
    }
}

/// A client that claims only a left donor, with the same generation, does not supersede another one.
#[test]
fn claim_of_left_donor_supersedes_nobody() {
    let mut bench = MirrorBench::new(2);
    let mut machine = degraded(&mut bench);
    machine.step(bench.now_us, MachineEvent::Detach);
    bench.run(&mut machine, 100);
    bench.is_up[1] = false;
    let mut machine = bench.machine(78, ATTACH);
    assert_eq!(bench.run(&mut machine, 10_000), [MachineAction::Attached]);
    bench.is_up[1] = true;
    // The other client claims the donor after this one has read its area, and before this one claims it.
    bench.holds = |donor, body| donor == 1 && matches!(body, DonorRequest::SwapMetadata { .. });
    bench.run(&mut machine, 500);
    assert_eq!((machine.group().standing()[1], bench.held.len()), (DonorStanding::Rebuilding, 1));
    let record = bench.record(1);
    let stamp = RecordStamp { generation: machine.group().view().generation, client: 5, revision: 9 };
    assert!(record.view.generation < stamp.generation);
    bench.areas[1] = DonorRecord { stamp, ..record }.encode();
    bench.release(&mut machine);
    assert_eq!(bench.run(&mut machine, 5000), []);
    assert!(machine.is_quiet(), "{:?}", machine.group().standing());
}

#[test]
fn silent_refused_donor_is_reconnected() {
    let mut bench = MirrorBench::new(2);
    let mut machine = degraded(&mut bench);
    bench.areas[1] = DonorRecord { geometry: bench.geometry(4), ..bench.record(1) }.encode();
    bench.run(&mut machine, 500);
    assert_eq!(machine.group().link_state(1), Some(LinkState::Refused));
    bench.holds = |donor, _| donor == 1;
    bench.run(&mut machine, 5000);
    assert!(bench.held.len() >= 3, "{:?}", bench.held);
    bench.holds = |_, _| false;
    bench.areas[1].clear();
    bench.run(&mut machine, 5000);
    assert!(machine.is_quiet(), "{:?}", machine.group().standing());
}

/// What is copied to a returning donor is read there until the last operation has ended, if the other copy is lost.
#[test]
fn detach_keeps_reading_copied_stripes() {
    let mut bench = MirrorBench::new(3);
    let mut machine = bench.created();
    (0..16).for_each(|block| bench.write(&mut machine, block, &[7; 16]));
    bench.is_up[1] = false;
    machine.step(bench.now_us, MachineEvent::Disconnected { donor: 1 });
    bench.run(&mut machine, 2000);
    // It returns, and gets the first stripe; then the donor is lost that has the other copy of that, and of the last.
    bench.restart(&mut machine, 1);
    bench.holds = |donor, body| donor == 0 && matches!(body, DonorRequest::Read { offset, .. } if *offset >= 64);
    bench.is_up[1] = true;
    bench.run(&mut machine, 500);
    bench.restart(&mut machine, 0);
    bench.held.clear();
    bench.run(&mut machine, 2000);
    assert_eq!(machine.group().standing(), [DonorStanding::Lost, DonorStanding::Rebuilding, DonorStanding::Trusted]);
    let stripe = (0..4).find(|stripe| machine.is_copied(1, *stripe) && machine.is_on(*stripe, 0));
    let stripe = stripe.expect("it has a stripe");
    // A read waits for a write of the same block, which is in progress as the user detaches.
    bench.holds = |donor, body| donor == 1 && matches!(body, DonorRequest::Write { .. });
    let offset = 64 * stripe;
    let write = UserRequest::Write { offset, data: Bytes::from_static(&[9; 16]), force: false };
    machine.step(bench.now_us, MachineEvent::Submitted { id: 1, request: write });
    assert_eq!(bench.run(&mut machine, 100), []);
    machine.step(bench.now_us, MachineEvent::Submitted { id: 2, request: UserRequest::Read { offset, bytes: 16 } });
    machine.step(bench.now_us, MachineEvent::Detach);
    assert_eq!(bench.run(&mut machine, 20), []);
    bench.release(&mut machine);
    let said = bench.run(&mut machine, 1000);
    let read = MachineAction::Complete { id: 2, result: Ok(Bytes::from_static(&[9; 16])) };
    assert_eq!(said, [MachineAction::Complete { id: 1, result: Ok(Bytes::new()) }, read, MachineAction::Detached]);
}
