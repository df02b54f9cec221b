//! `nectary bench store` with an access log: a small run, and refusals.

use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use crate::common::CommandScratch;

/// Whether disks and memory groups can be made here; says what is missing otherwise.
fn has_disks() -> bool {
    let has = ["/dev/fuse", "/dev/loop-control"].iter().all(|path| Path::new(path).exists());
    let groups = std::fs::read_to_string("/sys/fs/cgroup/cgroup.subtree_control").unwrap_or_default();
    let has_groups = Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() || groups.contains("memory");
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0);
    let is_permitted = has && has_groups && is_root;
    if !is_permitted {
        println!("NOT RUN: disks of experiments need root, /dev/fuse, loop devices and memory groups");
    }
    is_permitted
}

/// An access log in the Common format: 60 objects, requested again and again.
fn log() -> String {
    let mut text = String::new();
    for index in 0..600u32 {
        let (object, client) = (index * 7 % 60, index % 5);
        let bytes = 500 + object * 100;
        let _ = writeln!(
            text,
            "10.0.0.{client} - - [10/Oct/2000:13:55:36 -0700] \"GET /o/{object}.gif HTTP/1.1\" 200 {bytes}"
        );
    }
    text + "10.0.0.1 - - [10/Oct/2000:13:55:36 -0700] \"POST /form HTTP/1.1\" 200 1\n"
}

#[test]
fn log_options_are_checked() {
    let scratch = CommandScratch::new("bench-log-options");
    std::fs::write(scratch.file("no-log"), "nothing\n").unwrap();
    let refused = scratch.run("bench store --seed table4 --quick --log no-log").exits(2);
    refused.says("no-log").says("an access log (squid, common, w3c, json)");
    scratch.run("bench store --seed table4 --quick --log absent").exits(2).says("absent");
    scratch.run("bench store --seed table4 --quick --log no-log --workload seed").exits(2);
    std::fs::write(scratch.file("log"), log()).unwrap();
    scratch.run("bench store --seed table4 --quick --log log --seeds 2").exits(2).says("a log is one workload");
}

/// The requests of the log are those that are replayed, and its figures have no targets.
#[test]
fn store_bench_replays_access_log() {
    if !has_disks() {
        return;
    }
    let scratch = CommandScratch::new("bench-store-log");
    std::fs::write(scratch.file("log"), log()).unwrap();
    let line = "bench store --seed table4 --quick --only nectary --log log --json log.json";
    let text = scratch.run(line).exits(0).text();
    assert!(
        text.contains("requests of log (format common)") && text.contains("1 requests with other methods"),
        "{text}"
    );
    let report: Value = serde_json::from_slice(&std::fs::read(scratch.file("log.json")).unwrap()).unwrap();
    assert_eq!((&report["experiment"], &report["setting"]["requests"]), (&"store-table4-log".into(), &600.into()));
    // Each object is missed once, and the disk holds all.
    let row = &report["rows"][0];
    assert_eq!((&row["group"], row["hit_rate"].as_f64()), (&"log-4gb".into(), Some(0.9)), "{row}");
    assert!(report["figures"].as_array().unwrap().iter().all(|figure| figure["target"].is_null()));
}
