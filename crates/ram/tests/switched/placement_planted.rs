//! Each bug that is planted in the placement is detected, the same seed detects it again, and without a bug nothing is
//! found. No test of another module runs meanwhile, because a planted bug affects the whole process.

use nectary_ram::placement::Policy;
use nectary_ram::placement::planted::{Bug, plant};

const SEEDS: u64 = 200;
const POLICIES: [Policy; 3] = [Policy::ParityLog, Policy::ParityCache, Policy::Adaptive];

#[test]
fn each_planted_bug_is_caught_and_its_seed_replays() {
    let _turn = crate::turn(module_path!());
    for bug in Bug::ALL {
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
