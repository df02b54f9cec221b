//! A sample of the run of stores whose spans go away and come back; `store-spans` runs more. Alone in its process, as bugs
//! are planted process-wide.

use nectary_sim::store::spans_run::{SpansOptions, SpansReport, run};
use nectary_store::planted::{Bug, plant};

/// What a few stores bring to light. The third of [`Bug::SPANS`] shows in one store of hundreds: `store-spans` looks for it.
const PLANTED: [Bug; 3] = [Bug::ReturningSpanTrusted, Bug::StandInTrusted, Bug::OlderCopyTrusted];

async fn run_sample(seed: u64, stores: u64) -> SpansReport {
    let options = SpansOptions { seed, stores, events: 12, keys: 120, stops_at_difference: true };
    run(options, |_| {}).await
}

#[tokio::test(start_paused = true)]
async fn spans_that_go_and_come_back_bring_nothing_back_and_take_nothing_else() {
    let seed = std::env::var("NECTARY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(3);
    let report = run_sample(seed, 12).await;
    println!("seed {seed}: {report:?}");
    assert!(report.differences.is_empty(), "{}", report.differences.join("\n"));
    assert!(
        report.losses > 10
            && report.returns > 5
            && report.demanded > 300
            && report.refused > 0
            && report.put_back.iter().all(|count| *count > 0),
        "{report:?}"
    );
    for bug in PLANTED {
        plant(Some(bug));
        let mut caught = None;
        for seed in 0..20 {
            let report = run_sample(1000 + seed, 20).await;
            if let Some(difference) = report.differences.first() {
                caught = Some(difference.clone());
                break;
            }
        }
        plant(None);
        println!("planted: {}: {caught:?}", bug.name());
        assert!(caught.is_some(), "{} survived", bug.name());
    }
}
