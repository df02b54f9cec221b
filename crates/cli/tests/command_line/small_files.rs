//! `nectary bench files` and `bench ram`: small runs, refusals, and the remains of an interrupted run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::CommandScratch;

#[test]
fn files_bench_leaves_directory_unchanged() {
    let scratch = CommandScratch::new("bench-files");
    std::fs::create_dir(scratch.file("here")).unwrap();
    let line = "bench files --folder here --files 40 --files 10 --rounds 2 --json files.json --write .";
    let text = scratch.run(line).exits(0).text();
    assert!(text.lines().filter(|line| line.contains("random")).count() == 4, "{text}");
    let report = std::fs::read_to_string(scratch.file("files.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    // The run has two numbers of files, three orders and two ways to write, with four figures each.
    assert_eq!((report["rows"].as_array().unwrap().len(), report["figures"].as_array().unwrap().len()), (12, 48));
    assert!(report["figures"].as_array().unwrap().iter().all(|figure| figure["value"].as_f64().unwrap() > 0.0));
    assert!(std::fs::read_to_string(scratch.file("files.md")).unwrap().contains("delete ms"));
    assert_eq!(std::fs::read_dir(scratch.file("here")).unwrap().count(), 0);
    scratch.run("bench files --folder absent").exits(2).says("absent: no such directory");
    scratch.run("bench files --folder here --files 0").exits(2);
    scratch.run("bench files").exits(2);
}

/// Unknown figures are refused too.
#[test]
fn unknown_contenders_are_refused() {
    let scratch = CommandScratch::new("bench-files-only");
    scratch.run("bench files --seed nrd --only tape").exits(2).says("no contender has \"tape\"").says("none-2");
    scratch.run("bench files --seed nrd --rounds 0").exits(2).says("1 at least");
    scratch.run("bench files --only none-2 --folder .").exits(2);
    scratch.run("bench ram --only tape").exits(2).says("read.4x32");
    scratch.run("bench ram --pairs 1").exits(2).says("2 to 1000 pairs");
}

/// Returns the memory groups and the folder of a run of `bench files --seed nrd`, which may outlive its processes.
fn left_by(process: u32) -> Vec<PathBuf> {
    let name = format!("nectary-bench-{process}-");
    let groups = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].iter().filter_map(|folder| std::fs::read_dir(folder).ok());
    let entries = groups.flatten().flatten().map(|entry| entry.path());
    let is_its = |path: &PathBuf| path.file_name().is_some_and(|found| found.to_string_lossy().starts_with(&name));
    let mut left: Vec<PathBuf> = entries.filter(is_its).collect();
    let folder = PathBuf::from(format!("/dev/shm/nectary-bench-files-{process}"));
    left.extend(folder.exists().then_some(folder));
    left
}

/// Waits until a condition is true, for at most a minute.
#[track_caller]
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An interrupted run removes its networks, control groups and donors.
#[test]
fn interrupted_run_removes_its_resources() {
    let needs = ["/dev/fuse", "/dev/loop-control", "/usr/sbin/tc", "/usr/sbin/mkfs.ext4"];
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0);
    if let Some(missing) = needs.iter().find(|path| !Path::new(path).exists()) {
        return println!("NOT RUN: there is no {missing}");
    }
    if !is_root {
        return println!("NOT RUN: it takes root");
    }
    let scratch = CommandScratch::new("bench-files-interrupted");
    let mut command = scratch.command("bench files --seed nrd --quick --only none-4 --link 10 --rounds 9");
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let folder = PathBuf::from(format!("/dev/shm/nectary-bench-files-{}", run.id()));
    // If the file system is mounted, all donors and the device exist.
    wait_until("a mount", || folder.join("root-1").is_dir() || run_has_ended(run.id()));
    assert!(!run_has_ended(run.id()), "it ended by itself");
    assert!(left_by(run.id()).len() > 4, "{:?}", left_by(run.id()));
    let killed = Command::new("kill").args(["-TERM", &run.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let _ = run.wait();
    wait_until("an end without remains", || left_by(run.id()).is_empty());
    assert_eq!(std::fs::read_dir(scratch.file("")).unwrap().filter(is_of_a_run).count(), 0);
}

/// Whether a process has ended or is a zombie.
fn run_has_ended(process: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    text.rsplit_once(") ").is_none_or(|rest| rest.1.starts_with(['Z', 'X']))
}

fn is_of_a_run(entry: &std::io::Result<std::fs::DirEntry>) -> bool {
    entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("nectary-bench-files-"))
}
