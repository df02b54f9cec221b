//! A donor's process is killed while another one is moved; the campaign `ram-second-failure` has all cases.

use nectary_e2e::mirror::second_failure::{DonorMove, KillMoment, KillVictim, SecondFailureCase};
use nectary_e2e::ram::cannot;

fn survives(redundancy: &'static str, moving: DonorMove, moment: KillMoment, victim: KillVictim) {
    let case = SecondFailureCase { redundancy, moving, moment, victim };
    if cannot(&format!("ram second failure, {case}")) {
        return;
    }
    let survived = case.run(1).unwrap_or_else(|error| panic!("{error:#}"));
    println!("{case}: {survived:?}");
}

#[test]
fn mirror_survives_kill_while_leaving() {
    survives("mirror", DonorMove::Sigterm, KillMoment::NearEnd, KillVictim::Member);
}

#[test]
fn adaptive_survives_kill_while_replaced() {
    survives("adaptive", DonorMove::Replace, KillMoment::Early, KillVictim::Member);
}
