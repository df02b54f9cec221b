//! Another donor takes the place of one, and a third fails; donors that are waited for in vain.

use bytes::Bytes;

use super::bench::MirrorBench;
use super::*;
use crate::group::*;

const FORMER: u64 = 50;
const OTHER: u64 = 500;

/// A device of so many donors with one written block; donor 0 was copied to another one, and donor 1 stands still.
fn switched(bench: &mut MirrorBench) -> InPlaceMachine {
    let mut machine = bench.created();
    bench.write(&mut machine, 0, &[7; 16]);
    assert_eq!(bench.run(&mut machine, 2000), []);
    assert!(machine.group().may_replace(0) && !machine.group().may_replace(9));
    bench.is_up[1] = false;
    bench.incarnations[0] = OTHER;
    machine.step(bench.now_us, MachineEvent::Replaced { donor: 0, incarnation: OTHER });
    machine.step(bench.now_us, MachineEvent::Connected { donor: 0, incarnation: OTHER });
    assert!(!machine.group().may_replace(0), "not before all were told");
    machine
}

#[test]
fn failed_switch_is_reverted() {
    for donors in [2, 3] {
        let mut bench = MirrorBench::new(donors);
        let mut machine = switched(&mut bench);
        let before = bench.record(0);
        let said = (0..300).find_map(|_| bench.run(&mut machine, 10).into_iter().next());
        assert_eq!(said, Some(MachineAction::Restore { donor: 0 }));
        assert_eq!(bench.record(0), before, "nothing was done on the other one");
        bench.incarnations[0] = FORMER;
        bench.write(&mut machine, 1, &[8; 16]);
        assert_eq!(machine.group().standing()[..2], [DonorStanding::Trusted, DonorStanding::Out]);
        assert_eq!(machine.group().view().members[0].incarnation, FORMER);
        assert_eq!(bench.read(&mut machine, 0, 1), Ok(Bytes::from_static(&[7; 16])));
        assert_eq!((machine.group().figures().replaced, machine.group().figures().reverted), (1, 1));
        bench.is_up[1] = true;
        assert_eq!(bench.run(&mut machine, 5000), []);
        assert!(machine.is_quiet());
    }
}

#[test]
fn late_donor_holds_a_switch_up() {
    let mut bench = MirrorBench::new(3);
    let mut machine = bench.created();
    bench.run(&mut machine, 2000);
    bench.is_up[2] = false;
    bench.run(&mut machine, 790);
    assert_eq!(machine.group().standing(), [DonorStanding::Trusted; 3]);
    assert!(!machine.group().may_replace(0));
    bench.is_up[2] = true;
    machine.step(bench.now_us, MachineEvent::Disconnected { donor: 2 });
    bench.run(&mut machine, 1000);
    assert!(machine.group().may_replace(0));
}

#[test]
fn requests_fail_fast_after_patience() {
    for (donors, parity) in [(2, false), (3, false), (3, true)] {
        let mut bench = if parity { MirrorBench::with_parity(donors) } else { MirrorBench::new(donors) };
        let mut machine = bench.created();
        bench.write(&mut machine, 0, &[7; 16]);
        for donor in [donors - 1, 0] {
            bench.is_up[donor] = false;
            machine.step(bench.now_us, MachineEvent::Disconnected { donor });
            bench.run(&mut machine, 2000);
        }
        let lost_us = bench.now_us - 2_000_000;
        let patience_us = MachineTimes::default().patience_us;
        // Both of its copies, or it and another member of its stripe, are on these donors.
        let needs = |donor: Donor, block: u64| match parity {
            true => machine.rows.donor(block / 8, machine.rows.member_of(block)) == 0,
            false => machine.is_on(block / 4, donor),
        };
        let block = (0..16).find(|block| needs(0, *block) && needs(donors - 1, *block)).expect("a block of both");
        let failed = Err(DeviceError::Patience { block });
        assert_eq!(bench.read(&mut machine, block, 1), failed);
        let waited_us = bench.now_us - lost_us;
        assert!((patience_us..patience_us + 300_000).contains(&waited_us), "{waited_us} us");
        for _ in 0..7 {
            let began_us = bench.now_us;
            assert_eq!(bench.read(&mut machine, block, 1), failed);
            let request = UserRequest::Write { offset: block * 16, data: Bytes::from(vec![1; 16]), force: false };
            assert_eq!(bench.does(&mut machine, request), failed);
            assert!(bench.now_us - began_us <= 100_000);
        }
        bench.is_up[0] = true;
        bench.run(&mut machine, 1000);
        assert!(bench.read(&mut machine, block, 1).is_ok());
    }
}
