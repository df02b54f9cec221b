//! A run of the loops of `lat_fs` in any directory.
//!
//! Owns: the order of loops, and the report. Each combination of a number of files and an order of deletion runs twice
//! a round: with the file system's own write-back, and with `O_SYNC` and a flush of the directory after each step.
//! Needs no privileges, and leaves nothing in the directory.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::loops::{DeletionOrder, FileLoops, LoopTimes, ms_a_file};
use super::samples::LoopStep;
use super::{FILE_BYTES, FILES_MAX};
use crate::guardian::Guardian;
use crate::statistics::estimate;
use crate::store::RunProgress;
use crate::{Error, ExperimentErrorKind, ExperimentReport, ReportFigure, machine};

/// The orders of deletion, as the table lists them.
const ORDERS: [DeletionOrder; 3] = [DeletionOrder::Forward, DeletionOrder::Reverse, DeletionOrder::Random];

/// The settings of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct FolderOptions {
    /// The directory.
    pub folder: PathBuf,
    /// Numbers of files.
    pub files: Vec<u32>,
    /// The size of each file, in bytes.
    pub bytes: u32,
    /// The number of rounds.
    pub rounds: usize,
    /// The seed of the random order of deletion.
    pub seed: u64,
}

impl FolderOptions {
    /// The defaults for a directory: 1024 files of the paper's size, in three rounds.
    pub fn new(folder: PathBuf) -> FolderOptions {
        FolderOptions { folder, files: vec![1024], bytes: FILE_BYTES, rounds: 3, seed: 1 }
    }
}

/// Runs the loops; `guardian` is this program as the guardian of a run.
///
/// *Errors*: [`ExperimentErrorKind::ResourceUsage`] for numbers out of bounds, and for an absent directory; [`ExperimentErrorKind::Void`] for a
/// wrong byte.
pub fn run(
    options: &FolderOptions,
    guardian: Command,
    progress: &mut (dyn FnMut(&RunProgress) + Send),
) -> Result<ExperimentReport, Error> {
    let is_wrong = |&files: &u32| !(1..=FILES_MAX).contains(&files);
    if options.files.is_empty() || options.files.iter().any(is_wrong) || !(1..=100).contains(&options.rounds) {
        let message = format!("1 to {FILES_MAX} files, and 1 to 100 rounds");
        return Err(Error::new(ExperimentErrorKind::Usage, message));
    }
    if options.bytes > 1 << 30 {
        return Err(Error::new(ExperimentErrorKind::Usage, "files of 1 GiB at most"));
    }
    let began = Instant::now();
    let folder = options.folder.join(format!("nectary-bench-files-{}", std::process::id()));
    let mut guardian = Guardian::start(guardian)?;
    guardian.make_folder(&folder)?;
    let ran = run_all(options, &folder, progress);
    guardian.finish();
    Ok(report(options, &ran?, began.elapsed()))
}

/// The loops of one kind, and the times of their rounds.
struct LoopRounds {
    files: u32,
    order: DeletionOrder,
    is_flushed_each: bool,
    taken: Vec<LoopTimes>,
}

fn run_all(
    options: &FolderOptions,
    folder: &std::path::Path,
    progress: &mut (dyn FnMut(&RunProgress) + Send),
) -> Result<Vec<LoopRounds>, Error> {
    let mut list = Vec::new();
    for is_flushed_each in [false, true] {
        for &files in &options.files {
            list.extend(ORDERS.map(|order| LoopRounds { files, order, is_flushed_each, taken: Vec::new() }));
        }
    }
    let of = (list.len() * options.rounds) as u64;
    for round in 0..options.rounds {
        for index in crate::statistics::order(list.len(), round) {
            let ran = &mut list[index];
            let (files, order, is_flushed_each) = (ran.files, ran.order, ran.is_flushed_each);
            let done = round as u64 * (of / options.rounds as u64) + index as u64;
            progress(&RunProgress { done, of, what: format!("{files} files, {}", order.name()) });
            let (folder, seed) = (folder.to_owned(), options.seed + round as u64);
            let loops = FileLoops { folder, files, bytes: options.bytes, order, is_flushed_each, seed };
            ran.taken.push(loops.run()?);
        }
    }
    progress(&RunProgress { done: of, of, what: "done".to_owned() });
    Ok(list)
}

fn report(options: &FolderOptions, list: &[LoopRounds], took: Duration) -> ExperimentReport {
    let (mut figures, mut rows) = (Vec::new(), Vec::new());
    let mut text = format!("bench files: {}\n", machine::describe());
    let _ = writeln!(
        text,
        "files of {} bytes in {}; {} rounds; took {:.0} s; times are real, and neighbours on the machine change them",
        options.bytes,
        options.folder.display(),
        options.rounds,
        took.as_secs_f64()
    );
    let _ = writeln!(
        text,
        "  {:6} {:>7} {:8} {:>10} {:>8} {:>10} {:>10} {:>8} {:>10}",
        "", "files", "order", "create ms", "files/s", "written ms", "delete ms", "files/s", "written ms"
    );
    for LoopRounds { files, order, is_flushed_each, taken } in list {
        let how = if *is_flushed_each { "sync" } else { "async" };
        let _ = write!(text, "  {how:6} {files:>7} {:8}", order.name());
        for step in [LoopStep::Create, LoopStep::Delete] {
            let of = |one: &LoopTimes| if step == LoopStep::Create { one.create_s } else { one.delete_s };
            let found = |of: &dyn Fn(&LoopTimes) -> f64| {
                estimate(&taken.iter().map(|one| ms_a_file(of(one), *files)).collect::<Vec<_>>())
            };
            let (alone, written) = (found(&of), found(&|one| step.written_s(one)));
            let _ = write!(text, " {:>10.3} {:>8.0} {:>10.3}", alone.value, 1e3 / alone.value, written.value);
            let part = if step == LoopStep::Create { "create" } else { "delete" };
            for (name, found) in [("loop", alone), ("written", written)] {
                let name = format!("{part}.{how}.{name}.{}.{files}", order.name());
                figures.push(ReportFigure::new(name, "ms", found).judged(false));
            }
        }
        text.push('\n');
        rows.push(json!({ "files": files, "order": order, "is_flushed_each": is_flushed_each, "taken": taken }));
    }
    text.push_str(
        "written: the final sync counted; sync: files are opened O_SYNC, and the directory is flushed after each \
         step\n",
    );
    let setting = json!({
        "folder": options.folder, "file_bytes": options.bytes, "rounds": options.rounds, "seed": options.seed,
        "machine": machine::describe(), "seconds": took.as_secs_f64(),
    });
    ExperimentReport::new("files", setting, figures, rows, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every loop has its row and its four figures.
    #[test]
    fn folder_report_has_all_loops() {
        let options = FolderOptions { rounds: 2, ..FolderOptions::new(PathBuf::from("/tmp")) };
        let taken = LoopTimes { create_s: 1.024, create_sync_s: 1.024, delete_s: 0.512, delete_sync_s: 0.0 };
        let ran =
            LoopRounds { files: 1024, order: DeletionOrder::Random, is_flushed_each: true, taken: vec![taken, taken] };
        let report = report(&options, &[ran], Duration::from_secs(1));
        let names: Vec<(&str, f64)> =
            report.figures.iter().map(|figure| (&*figure.name, (figure.value * 1e6).round() / 1e6)).collect();
        let expected = [
            ("create.sync.loop.random.1024", 1.0),
            ("create.sync.written.random.1024", 2.0),
            ("delete.sync.loop.random.1024", 0.5),
            ("delete.sync.written.random.1024", 0.5),
        ];
        assert_eq!(names, expected);
        assert!(report.rows.len() == 1 && report.text().contains("1000"), "{}", report.text());
    }

    /// Numbers out of bounds are refused before anything is made.
    #[test]
    fn folder_run_refuses_bad_numbers() {
        let options = FolderOptions::new(PathBuf::from("/tmp"));
        for wrong in [
            FolderOptions { files: vec![0], ..options.clone() },
            FolderOptions { files: Vec::new(), ..options.clone() },
            FolderOptions { rounds: 0, ..options.clone() },
            FolderOptions { bytes: u32::MAX, ..options.clone() },
        ] {
            let error = run(&wrong, Command::new("true"), &mut |_| {}).unwrap_err();
            assert_eq!(error.kind, ExperimentErrorKind::Usage);
        }
    }
}
