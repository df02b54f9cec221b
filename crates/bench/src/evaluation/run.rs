//! `bench all`: runs the experiments of an evaluation that have no JSON file yet.
//!
//! Owns: the order of steps, and their state. Each experiment is a process, which ends with this one; its JSON gets its
//! name in the directory when it is complete. So after SIGKILL at any moment the same command goes on with the
//! experiment that was running. Promises: one run at a time in a directory; scratch files are gone at the end, however
//! it comes (`guardian`). An experiment that cannot run leaves a file with the reason, and is tried again by the next
//! run.

use std::fs::{self, File, TryLockError};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::{
    EVALUATION_STEPS, Evaluation, EvaluationStep, PAGE_NAME, RUN, RunNote, is_not_run, is_quick, part_of, read_report,
    replace_file,
};
use crate::guardian::Guardian;
use crate::process::ProcessEnvironment;
use crate::store::RunProgress;
use crate::{Error, ExperimentErrorKind, ExperimentReport, machine};

/// The environment variable that makes an experiment print its progress as lines, and the beginning of these lines.
pub const PROGRESS_LINES: &str = "NECTARY_BENCH_PROGRESS";
/// The end of what a failed experiment said that the reason quotes. *Units*: bytes.
const SAID_BYTES: usize = 2000;

/// The options of a whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct AllOptions {
    /// The directory of the evaluation; it is made if it is not there.
    pub report: PathBuf,
    /// A directory on the device to be measured; the evaluation's if it is `None`.
    pub folder: Option<PathBuf>,
    /// A quick run, without verdicts.
    pub is_quick: bool,
    /// Only experiments with one of these names, or with one of these in their name; all if the list is empty.
    pub only: Vec<String>,
    /// The commit of the current directory.
    pub commit: String,
}

/// Runs everything that has no results yet, and returns the evaluation. `nectary` is the path of this program,
/// `guardian` a command that calls [`serve`](crate::guardian::serve).
///
/// *Errors*: [`ExperimentErrorKind::ResourceUsage`] for unknown names, and if the directory has a run of the other length;
/// [`ExperimentErrorKind::Busy`] if another process runs an evaluation in it. An experiment that fails is no error.
pub fn run(
    options: &AllOptions,
    nectary: &Path,
    guardian: Command,
    progress: &mut (dyn FnMut(&RunProgress) + Send),
) -> Result<Evaluation, Error> {
    let usage = |message: String| Error::new(ExperimentErrorKind::Usage, message);
    // A whole name means that experiment alone, such as "io" beside "io-ncar".
    let is_name = |part: &str| EVALUATION_STEPS.iter().any(|step| step.name == part);
    let is_meant = |part: &str, name: &str| part == name || !is_name(part) && name.contains(part);
    let is_named = |name: &str| options.only.is_empty() || options.only.iter().any(|part| is_meant(part, name));
    if let Some(part) = options.only.iter().find(|part| !EVALUATION_STEPS.iter().any(|one| one.name.contains(&***part)))
    {
        let known: Vec<&str> = EVALUATION_STEPS.iter().map(|step| step.name).collect();
        return Err(usage(format!("no experiment has \"{part}\" in its name; there are {}", known.join(", "))));
    }
    let place = options.folder.as_ref().unwrap_or(&options.report);
    if options.folder.as_ref().is_some_and(|folder| !folder.is_dir()) {
        let message = format!("{}: no such directory; make it on the device to be measured", place.display());
        return Err(usage(message));
    }
    fs::create_dir_all(&options.report).map_err(|error| Error::failed(options.report.display(), error))?;
    let _lock = lock(&options.report)?;
    remove_parts(&options.report)?;
    let mut waiting = Vec::new();
    for step in EVALUATION_STEPS.iter().filter(|step| is_named(step.name)) {
        if !kept(options, step)? {
            waiting.push(step);
        }
    }
    let of = waiting.iter().map(|step| step.seconds(options.is_quick)).sum();
    let mut done = 0;
    let mut guardian = Guardian::start(guardian)?;
    let scratch = place.join(format!("nectary-bench-all-{}", std::process::id()));
    let made = guardian.make_folder(&scratch);
    let ran = made.and_then(|()| {
        for (index, step) in waiting.iter().enumerate() {
            let about = step.seconds(options.is_quick);
            let mut inner = |part: f64, what: &str| {
                let what = format!("{} of {}, {}: {what}", index + 1, waiting.len(), step.name);
                progress(&RunProgress { done: done + (about as f64 * part.clamp(0.0, 1.0)) as u64, of, what });
            };
            inner(0.0, "begins");
            execute(options, step, nectary, &scratch, &mut inner)?;
            done += about;
        }
        Ok(())
    });
    guardian.finish();
    ran?;
    Evaluation::read(&options.report)
}

/// Makes this process the only one that runs experiments in a directory.
fn lock(folder: &Path) -> Result<File, Error> {
    let file = File::open(folder).map_err(|error| Error::failed(folder.display(), error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let message = format!("{}: another `nectary bench all` runs in it", folder.display());
            Err(Error::new(ExperimentErrorKind::Busy, message))
        }
        Err(TryLockError::Error(error)) => Err(Error::failed(folder.display(), error)),
    }
}

/// Removes the files of an experiment that was interrupted; the directory may have files of others.
fn remove_parts(folder: &Path) -> Result<(), Error> {
    let of_steps = EVALUATION_STEPS.iter().map(|step| format!("{}.json", step.name));
    for name in of_steps.chain([PAGE_NAME.to_owned()]) {
        let path = part_of(&folder.join(name));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::failed(path.display(), error));
            }
            _ => {}
        }
    }
    Ok(())
}

fn file_of(options: &AllOptions, step: &EvaluationStep) -> PathBuf {
    options.report.join(format!("{}.json", step.name))
}

/// Whether an experiment has results already.
fn kept(options: &AllOptions, step: &EvaluationStep) -> Result<bool, Error> {
    let path = file_of(options, step);
    if !path.exists() {
        return Ok(false);
    }
    let report = read_report(&path)?;
    if is_not_run(&report) {
        return Ok(false);
    }
    if is_quick(&report) != options.is_quick {
        let length = |is_quick| if is_quick { "quick" } else { "full" };
        let message = format!(
            "{} is of a {} run, and this one is {}: name another directory, or remove the file",
            path.display(),
            length(!options.is_quick),
            length(options.is_quick)
        );
        return Err(Error::new(ExperimentErrorKind::Usage, message));
    }
    Ok(true)
}

/// Runs an experiment and writes its file.
fn execute(
    options: &AllOptions,
    step: &EvaluationStep,
    nectary: &Path,
    scratch: &Path,
    progress: &mut dyn FnMut(f64, &str),
) -> Result<(), Error> {
    let began = Instant::now();
    let load = machine::load();
    let place = options.folder.as_ref().unwrap_or(&options.report);
    let (json_path, said) = (scratch.join(format!("{}.json", step.name)), scratch.join("said"));
    let mut command = ProcessEnvironment::default().command(nectary, nectary);
    command.args(step.arguments(options.is_quick, scratch)).arg("--json").arg(&json_path);
    command.env(PROGRESS_LINES, "1").stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(File::create(&said).map_err(|error| Error::failed(said.display(), error))?);
    let failed = |error| Error::failed(format!("starting {}", step.name), error);
    let mut child = command.spawn().map_err(failed)?;
    let mut text = String::new();
    for line in BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok) {
        match progress_of(&line) {
            Some((part, what)) => progress(part, what),
            None => text += &format!("{line}\n"),
        }
    }
    let status = child.wait().map_err(failed)?;
    let found = read_report(&json_path).ok();
    let not_run = found.is_none().then(|| reason(&fs::read(&said).unwrap_or_default(), &status.to_string()));
    let setting = json!({ "machine": machine::describe() });
    let mut report =
        found.unwrap_or_else(|| ExperimentReport::new(step.name, setting, Vec::new(), Vec::new(), String::new()));
    // The arguments name the directory that the user knows.
    let words = step.arguments(options.is_quick, place);
    let note = RunNote {
        command: format!("nectary {}", words.join(" ")),
        took_s: began.elapsed().as_secs_f64(),
        load,
        is_quick: options.is_quick,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: options.commit.clone(),
        not_run,
        text,
    };
    report.experiment = step.name.to_owned();
    report.more.insert(RUN.to_owned(), serde_json::to_value(note).unwrap_or(Value::Null));
    let mut bytes = serde_json::to_vec_pretty(&report).map_err(|error| Error::failed(step.name, error))?;
    bytes.push(b'\n');
    replace_file(&file_of(options, step), &bytes)?;
    let _ = fs::remove_file(&json_path);
    Ok(())
}

/// A line of progress for [`PROGRESS_LINES`].
pub fn progress_line(progress: &RunProgress) -> String {
    format!("{PROGRESS_LINES} {} {} {}", progress.done, progress.of, progress.what)
}

/// The share of an experiment that a line of progress says is done, and what it does; `None` for other lines.
fn progress_of(line: &str) -> Option<(f64, &str)> {
    let mut words = line.strip_prefix(PROGRESS_LINES)?.trim_start().splitn(3, ' ');
    let mut count = || words.next()?.parse::<f64>().ok();
    let (done, of) = (count()?, count()?);
    Some((done / of.max(1.0), words.next().unwrap_or_default()))
}

/// Why an experiment has no results: what it said last, or how it ended.
fn reason(said: &[u8], status: &str) -> String {
    let said = String::from_utf8_lossy(&said[said.len().saturating_sub(SAID_BYTES)..]);
    let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match said.is_empty() {
        true => format!("it ended with {status} and said nothing"),
        false => said.join("; ").replacen("nectary: error: ", "", 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_lines_are_read_back() {
        let progress = RunProgress { done: 3, of: 12, what: "xfs.50, piece 2".to_owned() };
        assert_eq!(progress_of(&progress_line(&progress)), Some((0.25, "xfs.50, piece 2")));
        assert_eq!(progress_of("  read.depth1  IOPS"), None);
        assert_eq!(progress_of(&format!("{PROGRESS_LINES} 1 0")), Some((1.0, "")));
        assert_eq!(progress_of(&format!("{PROGRESS_LINES} x 0")), None);
    }

    #[test]
    fn reasons_are_what_the_program_said() {
        let said = b"nectary: error: there is no fio\n  what to do: apt-get install fio\n";
        assert_eq!(reason(said, "exit status: 4"), "there is no fio; what to do: apt-get install fio");
        assert!(reason(b"", "signal: 9 (SIGKILL)").contains("SIGKILL"));
    }
}
