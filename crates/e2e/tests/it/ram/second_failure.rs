//! A donor's process is killed while another one is moved; the campaign `ram-second-failure` has all cases.

use nectary_e2e::mirror::second_failure::{Case, Moment, Move, Victim};
use nectary_e2e::ram::cannot;

fn survives(redundancy: &'static str, moving: Move, moment: Moment, victim: Victim) {
    let case = Case { redundancy, moving, moment, victim };
    if cannot(&format!("ram second failure, {case}")) {
        return;
    }
    let survived = case.run(1).unwrap_or_else(|error| panic!("{error:#}"));
    println!("{case}: {survived:?}");
}

#[test]
fn mirror_keeps_all_while_leaving_and_killed() {
    survives("mirror", Move::Sigterm, Moment::NearEnd, Victim::Member);
}

#[test]
fn adaptive_keeps_all_while_replaced_and_killed() {
    survives("adaptive", Move::Replace, Moment::Early, Victim::Member);
}
