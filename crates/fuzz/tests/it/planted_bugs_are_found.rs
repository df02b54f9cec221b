//! Checks that the default mutants of a target find a bound that its decoder does not check. The test runs alone,
//! because a bug is planted for the whole process.

use nectary_fuzz::campaign::planted;
use nectary_fuzz::guard::Guard;

#[test]
fn each_planted_bug_is_found_and_nothing_without_it() {
    let _turn = crate::turn();
    assert!(planted(&Guard::new()).expect("the corpus is read"), "see above");
}
