//! Runs a file-system exerciser and programs in a cached directory: a sample of `cache-tree`.

use nectary_e2e::cache_tree::{exercise, is_the_source, mounted, run_programs};
use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;

/// Random operations and programs read what they wrote in a cached directory.
#[test]
fn programs_read_back_through_cache() {
    if let Some(reason) = missing(false) {
        return not_run(format!("cache tree: {reason}"));
    }
    let live = mounted(&[], true).expect("it is mounted");
    exercise(&live, 100_000, 18).unwrap_or_else(|error| panic!("{error:#}"));
    println!("{}", run_programs(&live, 18).unwrap_or_else(|error| panic!("{error:#}")));
    let files = is_the_source(&live).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(files > 500, "{files}");
}
