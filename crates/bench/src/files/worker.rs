//! The process that runs loops: its tasks, its answers, and the program's side of it.
//!
//! Owns: one line of JSON for each task and each answer. A run that starts file systems' servers has no files open on
//! them, because only this process opens files there.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::loops::{FileLoops, LoopTimes, PersistentFiles};
use super::prefixed::PrefixedFiles;
use super::together::{StepTimes, ThreadedLoops};
use crate::process::{PipedProcess, ProcessEnvironment};
use crate::{Error, ExperimentErrorKind, sys};

/// A request to the process that runs the loops.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum LoopTask {
    Run(FileLoops),
    Keep(PersistentFiles),
    Check(PersistentFiles),
    Together(ThreadedLoops),
    Create(PrefixedFiles),
    Stat(PrefixedFiles),
}

/// The answer of the process that runs the loops.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum LoopAnswer {
    Taken(LoopTimes),
    Steps(StepTimes),
    Seconds(f64),
    Done,
    Failed { is_void: bool, message: String },
}

/// The process that runs the loops, as the run sees it.
pub(super) struct LoopWorker(PipedProcess);

impl LoopWorker {
    /// Starts the process in a memory group; `nectary` is this program, and `said` the file of its error output.
    pub fn start(nectary: &Path, group: Option<PathBuf>, said: PathBuf) -> Result<LoopWorker, Error> {
        let inside = ProcessEnvironment { group, has_own_network: false, processor: None };
        let mut command = inside.command(nectary, nectary);
        command.args(["bench", "files-worker"]);
        Ok(LoopWorker(PipedProcess::start(command, "the process of the loops", said)?))
    }

    /// Lets the process do a task that is timed as a whole. *Returns*: its time. *Units*: seconds.
    pub fn time(&mut self, task: &LoopTask, patience: Duration) -> Result<f64, Error> {
        match self.ask(task, patience)? {
            LoopAnswer::Seconds(seconds) => Ok(seconds),
            _ => Err(Error::failed("the process of the loops", "it gave no time")),
        }
    }

    /// Lets the process do a task. *Errors*: that of the task, or no answer in time.
    pub fn ask(&mut self, task: &LoopTask, patience: Duration) -> Result<LoopAnswer, Error> {
        let text = serde_json::to_string(task).map_err(|error| Error::failed("a task", error))?;
        self.0.tell(&text)?;
        let line = self.0.line(patience)?;
        match serde_json::from_str(&line).map_err(|error| Error::failed("an answer", error))? {
            LoopAnswer::Failed { is_void, message } => {
                Err(Error::new(if is_void { ExperimentErrorKind::Void } else { ExperimentErrorKind::Failed }, message))
            }
            answer => Ok(answer),
        }
    }
}

/// The main function of the process that runs the loops: it serves its parent until the parent closes the pipe.
///
/// Call it before the process has other threads.
pub fn serve(input: impl BufRead, mut output: impl Write) -> Result<(), Error> {
    sys::become_worker();
    let pipe = |error| Error::failed("the pipe of the process of the loops", error);
    for line in input.lines() {
        let task: LoopTask =
            serde_json::from_str(&line.map_err(pipe)?).map_err(|error| Error::failed("a task", error))?;
        let done = match task {
            LoopTask::Run(loops) => loops.run().map(LoopAnswer::Taken),
            LoopTask::Keep(kept) => kept.make().map(|()| LoopAnswer::Done),
            LoopTask::Check(kept) => kept.check().map(|()| LoopAnswer::Done),
            LoopTask::Together(together) => together.run().map(LoopAnswer::Steps),
            LoopTask::Create(files) => files.create().map(LoopAnswer::Seconds),
            LoopTask::Stat(files) => files.stat().map(LoopAnswer::Seconds),
        };
        let answer = done.unwrap_or_else(|error| LoopAnswer::Failed {
            is_void: error.kind == ExperimentErrorKind::Void,
            message: error.message,
        });
        let text = serde_json::to_string(&answer).map_err(|error| Error::failed("an answer", error))?;
        writeln!(output, "{text}").and_then(|()| output.flush()).map_err(pipe)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::loops::DeletionOrder;
    use super::*;

    #[test]
    fn loop_worker_answers_each_task() {
        let folder = std::env::temp_dir().join(format!("nectary-bench-serve-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let loops = FileLoops {
            folder: folder.clone(),
            files: 3,
            bytes: 10,
            order: DeletionOrder::Reverse,
            is_flushed_each: false,
            seed: 1,
        };
        let absent = FileLoops { folder: folder.join("absent"), ..loops.clone() };
        let together =
            ThreadedLoops { folder: folder.clone(), files: 5, threads: 2, bytes: 0, is_flushed_each: false, seed: 1 };
        let files = PrefixedFiles { folder: folder.join("absent"), prefix: "a".to_owned(), files: 0 };
        let tasks =
            [LoopTask::Run(loops), LoopTask::Run(absent), LoopTask::Together(together), LoopTask::Create(files)];
        let input: Vec<String> = tasks.iter().map(|task| serde_json::to_string(task).unwrap()).collect();
        let mut output = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| serve(input.join("\n").as_bytes(), &mut output).unwrap());
        });
        let answers = String::from_utf8(output).unwrap();
        let answers: Vec<LoopAnswer> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(
            matches!(
                answers[..],
                [
                    LoopAnswer::Taken(_),
                    LoopAnswer::Failed { is_void: false, .. },
                    LoopAnswer::Steps(_),
                    LoopAnswer::Seconds(_)
                ]
            ),
            "{answers:?}"
        );
        std::fs::remove_dir(folder).unwrap();
    }
}
