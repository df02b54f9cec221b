//! Tests random calls on three mounts of a volume against a directory, while mounts and the server are lost.

use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;
use nectary_e2e::volume::trees::{TreeFault, TreePlan, run};

/// The kinds of faults that end no lease, so that they take little time; `e2e-campaigns volume-tree` has all.
const KINDS: [TreeFault; 4] = [TreeFault::ServerKill, TreeFault::MountKill, TreeFault::BothKill, TreeFault::ShortCut];

#[test]
fn random_calls_survive_kills_and_cuts() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let seed = std::env::var("TREE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(11);
    let plan = TreePlan { calls: 600, seed, hosts: 3, faults: 4, kinds: KINDS.to_vec(), planted: None };
    let done = run(&plan).unwrap_or_else(|error| panic!("{error:#}"));
    println!("seed {seed}: {done}");
    assert_eq!(done.shortfalls(&plan), Vec::<String>::new());
}
