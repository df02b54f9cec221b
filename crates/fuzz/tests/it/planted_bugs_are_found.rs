//! Checks that the default mutants of a target find a bound that its decoder does not check. The test runs alone,
//! because a bug is planted for the whole process.

use nectary_fuzz::campaign::planted;
use nectary_fuzz::guard::TargetGuard;

/// Without a planted bug nothing is found.
#[test]
fn planted_bugs_are_found() {
    let _turn = crate::turn();
    assert!(planted(&TargetGuard::new()).expect("the corpus is read"), "see above");
}
