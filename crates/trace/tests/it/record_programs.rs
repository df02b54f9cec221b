//! Tests of recording unusual programs: with threads, vfork, static linking, their own filters, 32-bit calls, and
//! io_uring.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nectary_trace::formats::nectary::{RecordingOutcome, UnseenCall};
use nectary_trace::record::{RecordingSummary, record};

use crate::record::support::{RecordedTrace, RecordingFolder};

const BLOCK: u64 = 8192;

/// A folder with a file of 40 blocks and the unusual program.
struct UnusualProgram {
    folder: RecordingFolder,
    program: PathBuf,
}

impl UnusualProgram {
    /// Builds the program, statically if `is_static`. If it cannot be built, prints the reason and returns `None`.
    fn new(name: &str, is_static: bool) -> Option<UnusualProgram> {
        let folder = RecordingFolder::new(name);
        folder.file("in", 40 * BLOCK);
        let program = folder.path("unusual");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-fno-pie", "-no-pie", "-pthread", "-o"]).arg(&program);
        compiler.args(is_static.then_some("-static"));
        compiler.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/record/unusual.c"));
        match compiler.stderr(Stdio::null()).status() {
            Ok(status) if status.success() => Some(UnusualProgram { folder, program }),
            _ => {
                println!("NOT RUN: no C compiler{}", if is_static { " that makes static programs" } else { "" });
                None
            }
        }
    }

    fn record(&self, way: &str) -> (RecordedTrace, RecordingSummary) {
        let mut command = self.folder.command(&["./unusual", way, "in"]);
        command.stderr(Stdio::inherit());
        let options = self.folder.options();
        let summary = record(command, &options, &mut |_| {}).unwrap_or_else(|error| panic!("{way}: {error}"));
        assert!(self.program.exists());
        (RecordedTrace::read(&options.output), summary)
    }
}

#[test]
fn threads_belong_to_their_process() {
    let Some(unusual) = UnusualProgram::new("threads", false) else { return };
    let (trace, summary) = unusual.record("threads");
    assert_eq!(summary.outcome, RecordingOutcome::Exited(0));
    assert_eq!(trace.blocks("in", false), (0..40).collect::<Vec<_>>());
    assert_eq!(trace.processes.len(), 1, "{:?}", trace.processes);
}

/// A vfork and an exec from a thread make separate programs.
#[test]
fn vfork_and_exec_make_programs() {
    let Some(unusual) = UnusualProgram::new("launches", false) else { return };
    let (trace, summary) = unusual.record("launches");
    assert_eq!(summary.outcome, RecordingOutcome::Exited(0));
    assert_eq!(trace.blocks("in", false), [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    let names: Vec<_> = trace.processes.iter().map(|process| (process.name.as_str(), process.parent)).collect();
    assert_eq!(names, [("unusual", None), ("unusual", Some(0)), ("unusual", Some(0))]);
    assert_ne!(trace.processes[0].pid, trace.processes[1].pid);
    assert_eq!(trace.processes[0].pid, trace.processes[2].pid);
}

#[test]
fn an_exec_that_fails_changes_nothing() {
    let Some(unusual) = UnusualProgram::new("failing", false) else { return };
    let (trace, _) = unusual.record("failing");
    assert_eq!(trace.blocks("in", false), [0, 1]);
    assert_eq!(trace.processes.len(), 1);
}

#[test]
fn a_static_program_is_recorded() {
    let Some(unusual) = UnusualProgram::new("static", true) else { return };
    let (trace, summary) = unusual.record("plain");
    assert_eq!(trace.blocks("in", false), [0, 1, 2, 3, 4]);
    // The static program maps only its own file.
    let size = fs::metadata(&unusual.program).unwrap().len();
    let names: Vec<_> = summary.maps.iter().map(|map| (map.name.as_str(), map.maps, map.pages)).collect();
    assert_eq!(names, [("unusual", 1, size.div_ceil(summary.page_bytes))]);
}

/// A program with its own seccomp filter is recorded.
#[test]
fn filtered_program_is_recorded() {
    let Some(unusual) = UnusualProgram::new("filtered", false) else { return };
    let (trace, summary) = unusual.record("filtered");
    assert_eq!(summary.outcome, RecordingOutcome::Exited(0));
    assert_eq!(trace.blocks("in", false), [0, 1, 2, 3, 4]);
}

#[test]
fn interrupting_signal_records_call_once() {
    let Some(unusual) = UnusualProgram::new("alarmed", false) else { return };
    let (trace, summary) = unusual.record("alarmed");
    assert_eq!(summary.outcome, RecordingOutcome::Exited(0));
    assert_eq!(trace.blocks("in", false), (0..2000).map(|round| round % 40).collect::<Vec<_>>());
}

#[test]
fn what_is_not_seen_is_named() {
    let Some(unusual) = UnusualProgram::new("ring", false) else { return };
    let (_, summary) = unusual.record("ring");
    assert_eq!(summary.unseen, [(UnseenCall::IoUring, 1), (UnseenCall::IoSubmit, 1)]);
    let (trace, summary) = unusual.record("old");
    match summary.outcome {
        RecordingOutcome::Exited(0) => assert_eq!(summary.unseen, [(UnseenCall::Call32, 1)]),
        _ => println!("NOT RUN: no 32-bit calls on this machine"),
    }
    assert!(trace.blocks("in", false).is_empty());
    let (trace, summary) = unusual.record("hidden");
    assert_eq!(summary.outcome, RecordingOutcome::Exited(0));
    // Root may inspect a process that hides from other users; a recorder of another user reports its calls as unseen.
    match summary.unseen.as_slice() {
        [] => assert_eq!(trace.blocks("in", false), [0, 1, 2, 3, 4]),
        unseen => assert_eq!(unseen, [(UnseenCall::NotPermitted, 5)]),
    }
}
