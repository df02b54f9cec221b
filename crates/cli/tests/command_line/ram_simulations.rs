//! `nectary ram simulate`: its table, its page, and its exit codes.

use crate::common::CommandScratch;

/// A small simulation, which takes only a moment.
const SMALL: &str = "ram simulate --size 32M --rounds 1 --streams 8 --request 1";

/// The exit code says whether the adaptive policy meets its target.
#[test]
fn exit_code_judges_adaptive_policy() {
    let scratch = CommandScratch::new("ram-check");
    let met = scratch.run(&format!("{SMALL} --policy adaptive --only files --check")).exits(0).text();
    assert!(met.contains("1.312 met"), "{met}");
    let missed = scratch.run(&format!("{SMALL} --policy adaptive --only files-8 --stale never --check")).exits(1);
    missed.says("more transfers than its target: files-8");
    scratch.run(&format!("{SMALL} --policy none --check")).exits(2).says("none of these runs has a target");
}

/// The page says how it was made.
#[test]
fn page_has_row_per_policy() {
    let scratch = CommandScratch::new("ram-page");
    scratch.run(&format!("{SMALL} --only uniform --write page.md")).exits(0);
    let page = std::fs::read_to_string(scratch.file("page.md")).expect("a page");
    assert!(page.contains("Written by `nectary ram simulate --size 32M"), "{page}");
    for policy in ["none", "mirror", "parity", "parity-log", "parity-cache", "adaptive"] {
        assert!(page.contains(&format!("| uniform | {policy} | ")), "{policy}: {page}");
    }
}

#[test]
fn unknown_simulation_lists_choices() {
    let scratch = CommandScratch::new("ram-refused");
    scratch.run("ram simulate --policy raid5").exits(2).says("parity-log");
    scratch.run("ram simulate --only nothing").exits(2).says("files-4-random-30%");
    scratch.run("ram simulate --size 1M").exits(2).says("give more overflow or fewer streams");
    scratch.run("ram simulate --donors 1").exits(2).says("give 2 to 16");
    scratch.run("ram simulate --streams 0").exits(2).says("one writer at least");
}
