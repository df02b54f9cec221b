//! After a SIGKILL under load, every written object is a hit with its bytes, and every purged object is a miss.
//!
//! `NECTARY_E2E_SEED` repeats a workload. This file has only one test, because the process under test ends with the
//! thread that started it, and the machine has few processors.

use nectary_e2e::report::seed_or_new;
use nectary_e2e::sigkill::{self, InTime, ROOMY, SigkillCampaign};

const ROUNDS: u64 = 15;

/// Written objects survive SIGKILL, and purged ones do not return.
#[test]
fn sigkill_keeps_writes_and_purges() {
    let seed = seed_or_new(std::env::var("NECTARY_E2E_SEED").ok().and_then(|text| text.parse().ok()));
    println!("seed {seed}");
    let summary = sigkill::run(&SigkillCampaign::new(&ROOMY, seed, ROUNDS), |_| Ok(()))
        .unwrap_or_else(|error| panic!("{error:#}"));
    println!("{}", sigkill::describe(&summary));
    // Other tests and builds may run at the same time, so judge the median time from a restart to
    // its first hit. The soak campaign judges each of these times.
    let problems = summary.problems(InTime::Median);
    assert!(problems.is_empty(), "seed {seed}: {problems:?}\n{}", summary.tally.complaints.join("\n"));
}
