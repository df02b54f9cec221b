//! The default run of a target finds a bound that its decoder leaves out. Alone in its process, because a bug is
//! planted process-wide.

use nectary_fuzz::campaign::planted;
use nectary_fuzz::guard::Guard;

#[test]
fn each_planted_bug_is_found_and_nothing_without_it() {
    assert!(planted(&Guard::new()).expect("the corpus is read"), "see above");
}
