//! Each bug that is planted in the placement is detected, the same seed detects it again, and without a bug nothing is
//! found. No test of another module runs meanwhile, because a planted bug affects the whole process.

use nectary_ram::placement::RedundancyPolicy;
use nectary_ram::placement::planted::{PlacementBug, plant};

const SEEDS: u64 = 200;
const POLICIES: [RedundancyPolicy; 3] =
    [RedundancyPolicy::ParityLog, RedundancyPolicy::ParityCache, RedundancyPolicy::Adaptive];

/// The seed that catches a bug replays it, and without the bug the same run is sound.
#[test]
fn planted_placement_bugs_are_caught() {
    let _turn = crate::turn(module_path!());
    for bug in PlacementBug::ALL {
        plant(Some(bug));
        let mut cases = (0..SEEDS).flat_map(|seed| POLICIES.map(|policy| (seed, policy)));
        let caught = cases.find_map(|(seed, policy)| Some((seed, policy, crate::world::run(seed, policy).err()?)));
        let Some((seed, policy, broken)) = caught else { panic!("planted: {}: SURVIVED", bug.name()) };
        assert_eq!(crate::world::run(seed, policy), Err(broken.clone()), "{}: seed {seed} does not replay", bug.name());
        plant(None);
        let sound = crate::world::run(seed, policy);
        assert!(sound.is_ok(), "{sound:?}");
        assert_eq!(crate::world::run(seed, policy), sound, "a sound run replays too");
        println!("planted: {}: caught under {policy}: {broken}", bug.name());
    }
}
