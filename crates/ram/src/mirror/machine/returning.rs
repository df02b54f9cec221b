//! Donors that were left and are there again.

use super::bench::{ATTACH, Bench};
use super::*;
use crate::format::{Record, Stamp};

/// A device whose donor 1 is left.
fn degraded(bench: &mut Bench) -> Machine {
    let mut machine = bench.created();
    bench.is_up[1] = false;
    machine.step(bench.now_us, Event::Disconnected { donor: 1 });
    assert_eq!(bench.run(&mut machine, 2000), []);
    assert_eq!(machine.standing(), [Standing::Trusted, Standing::Out]);
    bench.is_up[1] = true;
    machine
}

#[test]
fn another_device_on_a_donor_that_returns_is_not_overwritten_and_the_donor_is_refused_until_it_is_deleted() {
    let mut bench = Bench::new(2);
    let mut machine = degraded(&mut bench);
    let record = bench.record(1);
    let geometry = bench.geometry(4);
    let stamp = Stamp { generation: 1, client: 0, revision: 3 };
    bench.areas[1] = Record { geometry, stamp, ..record }.encode();
    bench.memory[1].fill(9);
    let (area, memory) = (bench.areas[1].clone(), bench.memory[1].clone());
    for _ in 0..100 {
        assert_eq!(bench.run(&mut machine, 100), []);
        assert_eq!((&bench.areas[1], &bench.memory[1]), (&area, &memory));
        assert_eq!(machine.standing(), [Standing::Trusted, Standing::Out]);
    }
    assert_eq!(machine.link_state(1), Some(LinkState::Refused));
    bench.areas[1].clear();
    assert_eq!(bench.run(&mut machine, 3000), []);
    assert!(machine.is_quiet(), "{:?}", machine.standing());
}

#[test]
fn what_a_donor_has_of_another_place_of_the_device_is_overwritten_unless_that_place_is_in_use() {
    let mut bench = Bench::new(2);
    let mut machine = degraded(&mut bench);
    bench.areas[1] = bench.areas[0].clone();
    bench.is_owned[1] = true;
    assert_eq!(bench.run(&mut machine, 5000), []);
    assert_eq!(machine.link_state(1), Some(LinkState::Refused));
    bench.is_owned[1] = false;
    assert_eq!(bench.run(&mut machine, 5000), []);
    assert!(machine.is_quiet(), "{:?}", machine.standing());
}

#[test]
fn a_donor_that_returns_with_another_living_client_is_taken_back_only_if_the_user_takes_over() {
    for take_over in [false, true] {
        let mut bench = Bench::new(2);
        let mut machine = degraded(&mut bench);
        machine.step(bench.now_us, Event::Detach);
        bench.run(&mut machine, 100);
        bench.is_up[1] = false;
        let mut machine = bench.machine(78, Intent::Attach { take_over, trust_remaining: false });
        assert_eq!(bench.run(&mut machine, 10_000), [Action::Attached]);
        // The first client is connected to this donor alone.
        (bench.is_up[1], bench.is_owned[1]) = (true, true);
        assert_eq!(bench.run(&mut machine, 5000), []);
        let refused = machine.link_state(1) == Some(LinkState::Refused);
        assert_eq!((machine.is_quiet(), refused), (take_over, !take_over));
        bench.is_owned[1] = false;
        assert_eq!(bench.run(&mut machine, 3000), []);
        assert!(machine.is_quiet());
    }
}

#[test]
fn a_client_that_claims_a_left_donor_alone_with_the_same_generation_supersedes_nobody() {
    let mut bench = Bench::new(2);
    let mut machine = degraded(&mut bench);
    machine.step(bench.now_us, Event::Detach);
    bench.run(&mut machine, 100);
    bench.is_up[1] = false;
    let mut machine = bench.machine(78, ATTACH);
    assert_eq!(bench.run(&mut machine, 10_000), [Action::Attached]);
    bench.is_up[1] = true;
    // The other client claims the donor after this one has read its area, and before this one claims it.
    bench.holds = |donor, body| donor == 1 && matches!(body, DonorRequest::SwapMetadata { .. });
    bench.run(&mut machine, 500);
    assert_eq!((machine.standing()[1], bench.held.len()), (Standing::Rebuilding, 1));
    let record = bench.record(1);
    let stamp = Stamp { generation: machine.view().generation, client: 5, revision: 9 };
    assert!(record.view.generation < stamp.generation);
    bench.areas[1] = Record { stamp, ..record }.encode();
    bench.release(&mut machine);
    assert_eq!(bench.run(&mut machine, 5000), []);
    assert!(machine.is_quiet(), "{:?}", machine.standing());
}

#[test]
fn a_refused_donor_that_stops_answering_is_connected_again() {
    let mut bench = Bench::new(2);
    let mut machine = degraded(&mut bench);
    bench.areas[1] = Record { geometry: bench.geometry(4), ..bench.record(1) }.encode();
    bench.run(&mut machine, 500);
    assert_eq!(machine.link_state(1), Some(LinkState::Refused));
    bench.holds = |donor, _| donor == 1;
    bench.run(&mut machine, 5000);
    assert!(bench.held.len() >= 3, "{:?}", bench.held);
    bench.holds = |_, _| false;
    bench.areas[1].clear();
    bench.run(&mut machine, 5000);
    assert!(machine.is_quiet(), "{:?}", machine.standing());
}
