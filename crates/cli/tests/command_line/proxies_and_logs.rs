//! `nectary bench proxy`, and `bench store` with an access log: small runs, refusals, and what they leave behind.

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
fn proxy_and_log_options_are_checked() {
    let scratch = CommandScratch::new("bench-proxy-options");
    scratch.run("bench proxy").exits(2).says("--folder");
    scratch
        .run("bench proxy --folder . --quick --only apache")
        .exits(2)
        .says("no proxy has \"apache\"")
        .says("varnish");
    scratch.run("bench proxy --folder . --quick --memory 1M").exits(2);
    std::fs::write(scratch.file("no-log"), "nothing\n").unwrap();
    for experiment in ["store --seed table4 --quick", "proxy --folder . --quick"] {
        let refused = scratch.run(&format!("bench {experiment} --log no-log")).exits(2);
        refused.says("no-log").says("an access log (squid, common, w3c, json)");
        scratch.run(&format!("bench {experiment} --log absent")).exits(2).says("absent");
        scratch.run(&format!("bench {experiment} --log no-log --workload seed")).exits(2);
    }
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

/// Every proxy has results or is named, and nothing is left behind.
#[test]
fn proxy_bench_runs_installed_peers() {
    if !has_disks() {
        return;
    }
    let scratch = CommandScratch::new("bench-proxy");
    std::fs::write(scratch.file("log"), log()).unwrap();
    let line = "bench proxy --quick --folder . --memory 64M --log log --only nginx --only haproxy --json proxy.json";
    let text = scratch.run(line).exits(0).text();
    let report: Value = serde_json::from_slice(&std::fs::read(scratch.file("proxy.json")).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let is_in = |stage: &str, proxy: &str| rows.iter().any(|row| row["stage"] == stage && row["proxy"] == proxy);
    for stage in ["memory", "pressure", "replay"] {
        assert!(is_in(stage, "nectary") && is_in(stage, "nectary-again"), "{stage}: {text}");
    }
    for proxy in ["nginx", "haproxy"] {
        let is_named = text.contains(&format!("{proxy}: NOT RUN: "));
        assert!(is_in("memory", proxy) && is_in("replay", proxy) || is_named, "{proxy}: {text}");
    }
    assert!(!is_in("pressure", "haproxy"));
    for row in rows.iter().filter(|row| row["stage"] == "replay") {
        // 60 of 600 requests are first ones, and a request that overtakes one is not a hit either.
        let hit_rate = row["result"]["hit_rate"].as_f64().unwrap();
        assert!((0.85..=0.9).contains(&hit_rate), "{row}");
    }
    for figure in ["proxy.memory.over_again", "proxy.memory.p999_us.nectary", "proxy.restart.first_hit_s.nectary"] {
        assert!(report["figures"].as_array().unwrap().iter().any(|one| one["name"] == figure), "{figure}");
    }
    let mut left: Vec<_> =
        std::fs::read_dir(scratch.file(".")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["log", "proxy.json"]);
}
