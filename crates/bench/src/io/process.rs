//! A pass in a separate process: it serves the hosts of the NCAR report, and the runs that are compared with fio.
//!
//! Owns: the job and the answer as JSON over pipes, and the end of the process.

use std::fmt::Display;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

use super::engine;
use super::job::{IoPass, PassOutcome};
use crate::{Error, ExperimentErrorKind, sys};

/// The largest size of an answer. *Units*: bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The answer of the process.
#[derive(Serialize, Deserialize)]
enum PassAnswer {
    Done(PassOutcome),
    Void(String),
    Failed(String),
}

/// The main function of the process: reads a job as JSON, runs the pass, and writes the answer as JSON.
pub fn serve(mut input: impl Read, mut output: impl Write) -> Result<(), Error> {
    sys::become_worker();
    let mut text = String::new();
    input.read_to_string(&mut text).map_err(|error| Error::failed("the job", error))?;
    let job: IoPass = serde_json::from_str(&text).map_err(|error| Error::failed("the job", error))?;
    let answer = match engine::run(&job, false) {
        Ok(outcome) => PassAnswer::Done(outcome),
        Err(error) if error.kind == ExperimentErrorKind::Void => PassAnswer::Void(error.message),
        Err(error) => PassAnswer::Failed(error.message),
    };
    serde_json::to_writer(&mut output, &answer).map_err(|error| Error::failed("the answer", error))?;
    output.flush().map_err(|error| Error::failed("the answer", error))
}

/// Runs a pass in a process that calls [`serve`]; `placed` gets the number of the process before the pass begins.
pub fn run(
    what: &str,
    mut command: Command,
    job: &IoPass,
    placed: impl FnOnce(u32) -> Result<(), Error>,
) -> Result<PassOutcome, Error> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| Error::failed(what, error))?;
    let answer = placed(child.id()).and_then(|()| ask(what, &mut child, job));
    if answer.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| Error::failed(what, error))?;
    match serde_json::from_str(&answer?) {
        Ok(PassAnswer::Done(outcome)) => Ok(outcome),
        Ok(PassAnswer::Void(message)) => Err(Error::new(ExperimentErrorKind::Void, message)),
        Ok(PassAnswer::Failed(message)) => Err(Error::new(ExperimentErrorKind::Failed, message)),
        Err(_) => Err(Error::failed(what, format!("{status}; give smaller requests (--request)"))),
    }
}

fn ask(what: &str, child: &mut Child, job: &IoPass) -> Result<String, Error> {
    let failed = |error: &dyn Display| Error::failed(what, error);
    let text = serde_json::to_string(job).map_err(|error| failed(&error))?;
    let mut input = child.stdin.take().ok_or_else(|| failed(&"it has no pipe"))?;
    input.write_all(text.as_bytes()).map_err(|error| failed(&error))?;
    drop(input);
    let output = child.stdout.take().ok_or_else(|| failed(&"it has no pipe"))?;
    let mut answer = String::new();
    output.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).map_err(|error| failed(&error))?;
    Ok(answer)
}
