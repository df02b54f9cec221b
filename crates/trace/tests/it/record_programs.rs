//! Tests of recording unusual programs: with threads, vfork, static linking, their own filters, 32-bit calls, and
//! io_uring.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nectary_trace::formats::nectary::{Outcome, Unseen};
use nectary_trace::record::{Summary, record};

use crate::record::support::{Folder, Trace};

const BLOCK: u64 = 8192;

/// A folder with a file of 40 blocks and the unusual program.
struct Unusual {
    folder: Folder,
    program: PathBuf,
}

impl Unusual {
    /// Builds the program, statically if `is_static`. If it cannot be built, prints the reason and returns `None`.
    fn new(name: &str, is_static: bool) -> Option<Unusual> {
        let folder = Folder::new(name);
        folder.file("in", 40 * BLOCK);
        let program = folder.path("unusual");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-fno-pie", "-no-pie", "-pthread", "-o"]).arg(&program);
        compiler.args(is_static.then_some("-static"));
        compiler.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/record/unusual.c"));
        match compiler.stderr(Stdio::null()).status() {
            Ok(status) if status.success() => Some(Unusual { folder, program }),
            _ => {
                println!("NOT RUN: no C compiler{}", if is_static { " that makes static programs" } else { "" });
                None
            }
        }
    }

    fn record(&self, way: &str) -> (Trace, Summary) {
        let mut command = self.folder.command(&["./unusual", way, "in"]);
        command.stderr(Stdio::inherit());
        let options = self.folder.options();
        let summary = record(command, &options, &mut |_| {}).unwrap_or_else(|error| panic!("{way}: {error}"));
        assert!(self.program.exists());
        (Trace::read(&options.output), summary)
    }
}

#[test]
fn threads_belong_to_their_process() {
    let Some(unusual) = Unusual::new("threads", false) else { return };
    let (trace, summary) = unusual.record("threads");
    assert_eq!(summary.outcome, Outcome::Exited(0));
    assert_eq!(trace.blocks("in", false), (0..40).collect::<Vec<_>>());
    assert_eq!(trace.processes.len(), 1, "{:?}", trace.processes);
}

#[test]
fn vfork_and_exec_from_a_thread_make_programs_of_their_own() {
    let Some(unusual) = Unusual::new("launches", false) else { return };
    let (trace, summary) = unusual.record("launches");
    assert_eq!(summary.outcome, Outcome::Exited(0));
    assert_eq!(trace.blocks("in", false), [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    let names: Vec<_> = trace.processes.iter().map(|process| (process.name.as_str(), process.parent)).collect();
    assert_eq!(names, [("unusual", None), ("unusual", Some(0)), ("unusual", Some(0))]);
    assert_ne!(trace.processes[0].pid, trace.processes[1].pid);
    assert_eq!(trace.processes[0].pid, trace.processes[2].pid);
}

#[test]
fn an_exec_that_fails_changes_nothing() {
    let Some(unusual) = Unusual::new("failing", false) else { return };
    let (trace, _) = unusual.record("failing");
    assert_eq!(trace.blocks("in", false), [0, 1]);
    assert_eq!(trace.processes.len(), 1);
}

#[test]
fn a_static_program_is_recorded() {
    let Some(unusual) = Unusual::new("static", true) else { return };
    let (trace, summary) = unusual.record("plain");
    assert_eq!(trace.blocks("in", false), [0, 1, 2, 3, 4]);
    // The static program maps only its own file.
    let size = fs::metadata(&unusual.program).unwrap().len();
    let names: Vec<_> = summary.maps.iter().map(|map| (map.name.as_str(), map.maps, map.pages)).collect();
    assert_eq!(names, [("unusual", 1, size.div_ceil(summary.page_bytes))]);
}

#[test]
fn a_program_with_a_filter_of_its_own_is_recorded() {
    let Some(unusual) = Unusual::new("filtered", false) else { return };
    let (trace, summary) = unusual.record("filtered");
    assert_eq!(summary.outcome, Outcome::Exited(0));
    assert_eq!(trace.blocks("in", false), [0, 1, 2, 3, 4]);
}

#[test]
fn signals_that_interrupt_do_not_make_a_call_be_seen_twice() {
    let Some(unusual) = Unusual::new("alarmed", false) else { return };
    let (trace, summary) = unusual.record("alarmed");
    assert_eq!(summary.outcome, Outcome::Exited(0));
    assert_eq!(trace.blocks("in", false), (0..2000).map(|round| round % 40).collect::<Vec<_>>());
}

#[test]
fn what_is_not_seen_is_named() {
    let Some(unusual) = Unusual::new("ring", false) else { return };
    let (_, summary) = unusual.record("ring");
    assert_eq!(summary.unseen, [(Unseen::IoUring, 1), (Unseen::IoSubmit, 1)]);
    let (trace, summary) = unusual.record("old");
    match summary.outcome {
        Outcome::Exited(0) => assert_eq!(summary.unseen, [(Unseen::Call32, 1)]),
        _ => println!("NOT RUN: no 32-bit calls on this machine"),
    }
    assert_eq!(trace.blocks("in", false), []);
    let (trace, summary) = unusual.record("hidden");
    assert_eq!(summary.outcome, Outcome::Exited(0));
    // Root may inspect a process that hides from other users; a recorder of another user reports its calls as unseen.
    match summary.unseen.as_slice() {
        [] => assert_eq!(trace.blocks("in", false), [0, 1, 2, 3, 4]),
        unseen => assert_eq!(unseen, [(Unseen::NotPermitted, 5)]),
    }
}
