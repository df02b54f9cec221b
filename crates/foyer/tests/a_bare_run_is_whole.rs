//! Tests a small run of `bench store --disk bare`, with Nectary, XFS and foyer on loop devices, in real time.
//!
//! Owns: the proof that a whole run works: contenders are stopped between their turns, a run fails if a contender's
//! program is wrong, and nothing remains afterwards. Leaves to others: the figures, because the figures of such a small
//! run mean nothing.

#[path = "../src/contender.rs"]
#[allow(dead_code, reason = "its tests run here; the program uses it")]
mod contender;

use std::path::{Path, PathBuf};
use std::process::Command;

use nectary_bench::store::{BenchStoreOptions, ProcessCommands, StorePlan, StorePreset, run};
use nectary_bench::{Error, ExperimentReport, machine};

const PROGRAM: &str = env!("CARGO_BIN_EXE_nectary-foyer");

fn again(process: &'static str) -> Box<dyn Fn() -> Command + Sync> {
    Box::new(move || {
        let mut command = Command::new(PROGRAM);
        command.arg(process);
        command
    })
}

fn run_small(folder: &Path, foyer: &str) -> Result<ExperimentReport, Error> {
    let plan = StorePlan::new(BenchStoreOptions {
        quick: true,
        pairs: Some(2),
        trace: Some(0.01),
        only: vec!["xfs.50".to_owned(), "foyer".to_owned()],
        folder: Some(folder.to_owned()),
        foyer: Some(foyer.into()),
        ..BenchStoreOptions::new(StorePreset::Bare)
    })?;
    let programs = ProcessCommands { worker: again("worker"), guardian: again("guardian") };
    let mut beside_others = 0;
    let report = run(&plan, &programs, &mut |_| {
        // Between two steps, all contenders are stopped.
        let states = workers();
        assert!(states.iter().all(|state| *state == 'T'), "{states:?}");
        beside_others = beside_others.max(states.len());
    })?;
    assert_eq!(beside_others, report.rows.len());
    Ok(report)
}

/// The states of the contenders' processes of this run, as the kernel reports them.
fn workers() -> Vec<char> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let children: String = lists.collect();
    let is_worker = |child: &&str| {
        let command = std::fs::read_to_string(format!("/proc/{child}/cmdline"));
        command.is_ok_and(|command| command.ends_with("\0worker\0"))
    };
    let state = |child: &str| {
        let text = std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        text.rsplit_once(") ")?.1.chars().next()
    };
    children.split_whitespace().filter(is_worker).filter_map(state).collect()
}

/// The files in this directory that are open as loop devices.
fn loop_devices(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let files = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok());
    files.map(PathBuf::from).filter(|file| file.starts_with(folder)).collect()
}

/// The run leaves nothing, and a run with a wrong program fails.
#[test]
fn small_run_has_every_contender() {
    if let Err(error) = machine::check() {
        println!("NOT RUN: {error}");
        return;
    }
    let folder = std::env::temp_dir().join(format!("nectary-foyer-run-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let report = run_small(&folder, PROGRAM).unwrap();
    let has = |name: &str| report.rows.iter().any(|row| row["contender"] == name);
    for name in ["nectary", "nectary-again", "nectary-hints-off", "foyer", "foyer-uring", "foyer-insertion"] {
        assert!(has(name), "{name} is missing:\n{}", report.text());
    }
    for row in &report.rows {
        assert_eq!(row["total"]["requests"], 1500, "{row}");
        assert!(row["written_per_byte_put"].as_f64().is_some_and(|written| written < 10.0), "{row}");
        assert!(row["disk_ios"].as_u64().is_some_and(|count| count > 0), "{row}");
    }
    assert!(report.figures.iter().any(|figure| figure.name == "hit_rate_beyond_foyer.embedded-5"));
    let failed = run_small(&folder, "/bin/true").unwrap_err();
    assert!(failed.message.contains("foyer"), "{failed}");
    assert!(loop_devices(&folder).is_empty());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}
