//! After SIGKILL under load everything that was written hits with its bytes, and everything purged misses.
//!
//! `NECTARY_E2E_SEED` replays a workload. One test, since the process under test dies with the thread that started it and
//! the machine has few processors.

use nectary_e2e::report::seed_or_new;
use nectary_e2e::sigkill::{self, Campaign, InTime, Plant};

const ROUNDS: u64 = 15;

#[test]
fn written_objects_survive_sigkill_and_purged_ones_do_not() {
    let seed = seed_or_new(std::env::var("NECTARY_E2E_SEED").ok().and_then(|text| text.parse().ok()));
    for (index, (name, plant)) in Plant::ALL.into_iter().enumerate() {
        let mut campaign = Campaign::new(seed + 1 + index as u64, 1);
        campaign.plant = Some(plant);
        let summary = sigkill::run(&campaign, |_| Ok(())).expect("the planted run ends");
        let total = &summary.tally;
        println!("planted {name}: missing {}, wrong {}: {:?}", total.missing, total.wrong, total.complaints);
        let caught = match plant {
            Plant::WrongByte | Plant::ForgottenPurge => total.wrong == 1 && total.missing == 0,
            Plant::LostObject => total.missing == 1 && total.wrong == 0,
            Plant::ZeroedStore => total.missing > 0 && total.wrong == 0,
        };
        assert!(caught, "planted {name} was not reported as what it is: {:?}", total);
        println!("planted {name}: caught");
    }
    println!("seed {seed}");
    let summary = sigkill::run(&Campaign::new(seed, ROUNDS), |_| Ok(())).expect("the rounds end");
    println!("{}", sigkill::describe(&summary));
    // Other tests and their builds may run beside; the campaign of the soak judges every first hit.
    let problems = summary.problems(InTime::Median);
    assert!(problems.is_empty(), "seed {seed}: {problems:?}\n{}", summary.tally.complaints.join("\n"));
}
