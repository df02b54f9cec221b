//! Donors that are slow, and donors that do not answer.

use bytes::Bytes;

use super::bench::MirrorBench;
use super::*;
use crate::group::*;

fn submit(bench: &MirrorBench, machine: &mut InPlaceMachine, block: u64) {
    let request = UserRequest::Write { offset: block * 16, data: Bytes::from(vec![block as u8 + 1; 16]), force: false };
    machine.step(bench.now_us, MachineEvent::Submitted { id: 100 + block, request });
}

/// A donor behind a slow link that answers without a pause is not late.
#[test]
fn slow_steady_donor_is_kept() {
    let mut bench = MirrorBench::new(2);
    let mut machine = bench.created();
    bench.holds = |donor, body| donor == 1 && matches!(body, DonorRequest::Write { .. });
    (0..16).for_each(|block| submit(&bench, &mut machine, block));
    let mut said = bench.run(&mut machine, 100);
    assert_eq!(bench.held.len(), 16);
    while !bench.held.is_empty() {
        bench.release_one(&mut machine);
        said.extend(bench.run(&mut machine, 100));
        assert_eq!(machine.group().standing(), [DonorStanding::Trusted; 2]);
    }
    assert_eq!((said.len(), machine.group().figures().left), (16, 0));
}

/// A donor that pauses, or never answers one of its requests, is left.
#[test]
fn pausing_donor_is_left() {
    // All requests, or one of them.
    let holds: [super::bench::Holds; 2] = [
        |donor, _| donor == 1,
        |donor, body| donor == 1 && matches!(body, DonorRequest::Write { data, .. } if data[0] == 1),
    ];
    for (hold, within_ms) in holds.into_iter().zip([1500, 16_500]) {
        let mut bench = MirrorBench::new(2);
        let mut machine = bench.created();
        bench.holds = hold;
        submit(&bench, &mut machine, 0);
        let mut said = Vec::new();
        for _ in 0..within_ms / 100 {
            submit(&bench, &mut machine, 8);
            said.extend(bench.run(&mut machine, 100));
        }
        assert!(machine.group().figures().left > 0 && machine.figures().impatient == 0, "{within_ms}");
        assert!(said.contains(&MachineAction::Complete { id: 100, result: Ok(Bytes::new()) }), "{within_ms}");
    }
}
