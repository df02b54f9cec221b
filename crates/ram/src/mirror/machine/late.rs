//! Donors that are slow, and donors that do not answer.

use bytes::Bytes;

use super::bench::Bench;
use super::*;

fn submit(bench: &Bench, machine: &mut Machine, block: u64) {
    let request = Request::Write { offset: block * 16, data: Bytes::from(vec![block as u8 + 1; 16]), force: false };
    machine.step(bench.now_us, Event::Submitted { id: 100 + block, request });
}

#[test]
fn a_donor_behind_a_slow_link_that_answers_without_pause_is_not_late() {
    let mut bench = Bench::new(2);
    let mut machine = bench.created();
    bench.holds = |donor, body| donor == 1 && matches!(body, DonorRequest::Write { .. });
    (0..16).for_each(|block| submit(&bench, &mut machine, block));
    let mut said = bench.run(&mut machine, 100);
    assert_eq!(bench.held.len(), 16);
    while !bench.held.is_empty() {
        bench.release_one(&mut machine);
        said.extend(bench.run(&mut machine, 100));
        assert_eq!(machine.standing(), [Standing::Trusted; 2]);
    }
    assert_eq!((said.len(), machine.figures().left), (16, 0));
}

#[test]
fn a_donor_that_pauses_or_never_answers_one_request_is_left() {
    // All requests, or one of them.
    let holds: [super::bench::Holds; 2] = [
        |donor, _| donor == 1,
        |donor, body| donor == 1 && matches!(body, DonorRequest::Write { data, .. } if data[0] == 1),
    ];
    for (hold, within_ms) in holds.into_iter().zip([1500, 16_500]) {
        let mut bench = Bench::new(2);
        let mut machine = bench.created();
        bench.holds = hold;
        submit(&bench, &mut machine, 0);
        let mut said = Vec::new();
        for _ in 0..within_ms / 100 {
            submit(&bench, &mut machine, 8);
            said.extend(bench.run(&mut machine, 100));
        }
        assert!(machine.figures().left > 0 && machine.figures().impatient == 0, "{within_ms}");
        assert!(said.contains(&Action::Complete { id: 100, result: Ok(Bytes::new()) }), "{within_ms}");
    }
}
