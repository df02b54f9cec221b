//! Rows of one: devices without redundancy.

use bytes::Bytes;

use super::bench::{ATTACH, MirrorBench};
use crate::group::*;

const FLUSH: UserRequest = UserRequest::Flush;

/// A device whose stripes of four blocks are on two donors in turn, with other bytes in each block.
fn filled(bench: &mut MirrorBench) -> super::InPlaceMachine {
    let mut machine = bench.created();
    (0..16).for_each(|block| bench.write(&mut machine, block, &[block as u8 + 1; 16]));
    machine
}

/// A restarted donor's blocks fail until they are written; the others and the next client have what they had.
#[test]
fn lost_donor_fails_its_blocks_only() {
    let mut bench = MirrorBench::without_redundancy(&[2, 2]);
    let mut machine = filled(&mut bench);
    assert_eq!(bench.does(&mut machine, FLUSH), Ok(Bytes::new()));
    bench.restart(&mut machine, 1);
    let is_right = |bench: &mut MirrorBench, machine: &mut _, block: u64| {
        let lost = Err(DeviceError::Lost { block });
        let expected = if block / 4 % 2 == 0 { Ok(vec![block as u8 + 1; 16].into()) } else { lost };
        assert_eq!(bench.read(machine, block, 1), expected, "block {block}");
    };
    (0..16).for_each(|block| is_right(&mut bench, &mut machine, block));
    assert_eq!(bench.run(&mut machine, 3000), []);
    assert!(machine.is_quiet(), "{:?}", machine.group().standing());
    (0..16).for_each(|block| is_right(&mut bench, &mut machine, block));
    bench.write(&mut machine, 5, &[99; 16]);
    assert_eq!(bench.read(&mut machine, 5, 1), Ok(vec![99; 16].into()));
    assert_eq!(bench.read(&mut machine, 4, 2), Err(DeviceError::Lost { block: 4 }));
    assert_eq!(bench.does(&mut machine, FLUSH), Err(DeviceError::Lost { block: 4 }));
    machine.step(bench.now_us, MachineEvent::Detach);
    assert_eq!(bench.run(&mut machine, 100), [MachineAction::Detached]);
    let mut next = bench.machine(78, ATTACH);
    assert_eq!(bench.run(&mut next, 100), [MachineAction::Attached]);
    assert_eq!(bench.does(&mut next, FLUSH), Ok(Bytes::new()));
    (6..16).for_each(|block| is_right(&mut bench, &mut next, block));
    assert_eq!(bench.read(&mut next, 5, 1), Ok(vec![99; 16].into()));
}

/// Donors that are restarted at the same time are filled again one after the other.
#[test]
fn all_donors_lost_are_filled() {
    let mut bench = MirrorBench::without_redundancy(&[1, 2, 1]);
    let mut machine = filled(&mut bench);
    (0..3).for_each(|donor| bench.restart(&mut machine, donor));
    assert_eq!(bench.run(&mut machine, 9000), []);
    assert!(machine.is_quiet(), "{:?}", machine.group().standing());
    (0..16).for_each(|block| {
        assert_eq!(bench.read(&mut machine, block, 1), Err(DeviceError::Lost { block }));
        bench.write(&mut machine, block, &[7; 16]);
    });
    assert_eq!(bench.read(&mut machine, 0, 16), Ok(vec![7; 256].into()));
}

/// A donor that does not answer is waited for, and never left; the others serve meanwhile.
#[test]
fn silent_donor_is_waited_for() {
    let mut bench = MirrorBench::without_redundancy(&[2, 2]);
    let mut machine = filled(&mut bench);
    bench.is_up[1] = false;
    machine.step(bench.now_us, MachineEvent::Disconnected { donor: 1 });
    assert_eq!(bench.read(&mut machine, 4, 1), Err(DeviceError::Patience { block: 4 }));
    assert_eq!(bench.read(&mut machine, 4, 1), Err(DeviceError::Patience { block: 4 }), "at once");
    assert_eq!(bench.read(&mut machine, 8, 4).map(|data| data.len()), Ok(64));
    assert_eq!(machine.group().standing(), [DonorStanding::Trusted; 2]);
    bench.is_up[1] = true;
    assert_eq!(bench.run(&mut machine, 100), []);
    assert_eq!(bench.read(&mut machine, 4, 1), Ok(vec![5; 16].into()));
    assert_eq!(bench.does(&mut machine, FLUSH), Ok(Bytes::new()));
}

/// Nobody attaches without a donor, or with one that is not filled again.
#[test]
fn attaching_needs_all_donors() {
    let mut bench = MirrorBench::without_redundancy(&[2, 2]);
    let mut machine = filled(&mut bench);
    machine.step(bench.now_us, MachineEvent::Detach);
    bench.run(&mut machine, 100);
    bench.is_up[1] = false;
    let refused = MachineAction::Refused(AttachRefusal::TooFew { needed: 2, found: 1, missing: vec![1] });
    let mut next = bench.machine(78, MachineIntent::Attach { take_over: true, trust_remaining: true });
    assert_eq!(bench.run(&mut next, 40_000), [refused.clone()]);
    bench.is_up[1] = true;
    bench.restart(&mut next, 1);
    let mut next = bench.machine(79, ATTACH);
    assert_eq!(bench.run(&mut next, 40_000), [refused]);
}
