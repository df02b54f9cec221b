//! `nectary bench`: the list of experiments, and what is refused before anything runs.

use crate::common::Scratch;

#[test]
fn experiments_are_listed_with_what_they_show_and_how_long_they_take() {
    let scratch = Scratch::new("bench-list");
    let listed = scratch.run("bench --list").exits(0);
    let text = String::from_utf8_lossy(&listed.output).into_owned();
    for command in
        ["bench store --seed table4 --quick", "bench store --disk bare", "bench cache --seed dear", "bench limits"]
    {
        assert!(
            text.lines().any(|line| line.starts_with(command) && line.contains("minute") || line.contains("hour")),
            "{text}"
        );
    }
}

#[test]
fn contenders_that_there_are_not_are_refused_and_those_that_there_are_named() {
    let scratch = Scratch::new("bench-only");
    let refused = scratch.run("bench store --seed table4 --quick --only zfs").exits(2);
    refused.says("no contender has \"zfs\" in its name").says("xfs.50");
    scratch.run("bench store --seed table4 --queue-depth 0").exits(2).says("1 request deep at least");
    scratch.run("bench store --seed table4 --dirty 0").exits(2);
}

#[test]
fn programs_that_there_are_not_are_refused_and_those_that_there_are_named() {
    let scratch = Scratch::new("bench-cache-only");
    let refused = scratch.run("bench cache --seed dear --only emacs").exits(2);
    refused.says("there is no program \"emacs\"").says("cscope+sort");
    scratch.run("bench cache --seed dear --executions 0").exits(2).says("1 at least");
    scratch.run("bench cache --seed dear --speed 0").exits(2);
    scratch.run("bench cache").exits(2);
}
