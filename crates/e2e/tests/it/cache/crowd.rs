//! Tests of cached directories with more files than the process may open, and of `umount` without an answer.

use std::fs;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nectary_e2e::cache_tree::visit;
use nectary_e2e::live::{LIMIT, LiveCache, missing};
use nectary_e2e::report::not_run;

/// More files than four times the table of descriptors, many of them in each program at once.
const FILES: u64 = 20_000;
/// Files that are open at once: more than the process may open.
const MANY: u64 = 1500;
/// The clients that a control socket serves at the same time.
const CLIENTS_MAX: usize = 32;

/// Many files are visited with few descriptors, by file handles.
#[test]
fn handles_serve_files_beyond_descriptors() {
    if let Some(reason) = missing(false) {
        return not_run(format!("cache mount: {reason}"));
    }
    visit(FILES, MANY, true, &["--memory", "16M"]).unwrap_or_else(|error| panic!("{error:#}"));
}

/// Many files are visited with few descriptors, by names.
#[test]
fn names_serve_files_beyond_descriptors() {
    if let Some(reason) = missing(false) {
        return not_run(format!("cache mount: {reason}"));
    }
    visit(FILES, MANY, true, &["--memory", "16M", "--by-names"]).unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn few_descriptors_serve_many_passed_files() {
    if let Some(reason) = missing(false) {
        return not_run(format!("cache mount: {reason}"));
    }
    // A file system that the kernel cannot pass through goes through the cache.
    visit(FILES / 4, MANY, true, &["--memory", "16M", "--passthrough", "64K"])
        .unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn umount_without_answer_says_so() {
    if let Some(reason) = missing(false) {
        return not_run(format!("cache mount: {reason}"));
    }
    let live = LiveCache::mounted(&["--memory", "16M"], |_| {}).expect("it is mounted");
    let mut entries = fs::read_dir(live.scratch.join("run")).expect("its runtime directory").flatten();
    let socket = entries.find(|entry| entry.path().extension().is_some_and(|end| end == "sock")).expect("its socket");
    // More clients than the control socket serves.
    let clients: Vec<_> = (0..CLIENTS_MAX).map(|_| UnixStream::connect(socket.path()).expect("a client")).collect();
    let ran = live.run(&["cache", "umount", &live.name]).exits(1);
    assert!(ran.errors.contains("does not answer on its control socket"), "{ran:?}");
    assert!(is_mounted(&live));
    drop(clients);
    let began = Instant::now();
    while live.run(&["cache", "umount", &live.name]).code != 0 {
        assert!(began.elapsed() < LIMIT, "it stays mounted");
    }
    assert!(!is_mounted(&live));
}

fn is_mounted(live: &LiveCache) -> bool {
    fs::read_to_string("/proc/self/mountinfo").expect("the mounts").contains(&format!(" {} ", live.name))
}
