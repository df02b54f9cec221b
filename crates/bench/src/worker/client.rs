//! The parent's handle to a worker.
//!
//! Owns: the worker's process and the messages to and from it. Promises: the worker runs only while it handles a
//! request. Between its answer and the next request all its threads are stopped (SIGSTOP), so that no contender uses
//! processor time in the turn of another.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::{PieceResult, WorkerAnswer, WorkerCommand, WorkerSetup};
use crate::group::GroupMemoryUsage;
use crate::{Error, ExperimentErrorKind, sys};

/// A worker's process; dropping it kills and reaps the process.
pub struct WorkerClient {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    name: String,
}

impl WorkerClient {
    /// Starts `command`, which has to call [`serve`](super::serve), and waits until it is prepared.
    ///
    /// The calling thread has to live as long as the worker, because the kernel kills the worker when the thread ends.
    pub fn start(name: &str, mut command: Command, setup: WorkerSetup) -> Result<WorkerClient, Error> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| Error::failed(format!("starting {name}"), error))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut client = WorkerClient { child, input, output, name: name.to_owned() };
        client.ask(&WorkerCommand::Prepare(Box::new(setup)))?;
        Ok(client)
    }

    /// The process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Starts the contender.
    pub fn begin(&mut self) -> Result<(), Error> {
        self.ask(&WorkerCommand::Start).map(drop)
    }

    /// Replays a piece of the workload.
    pub fn replay(&mut self, first: u64, count: u64) -> Result<PieceResult, Error> {
        match self.ask(&WorkerCommand::Replay { first, count })? {
            WorkerAnswer::Piece(piece) => Ok(piece),
            other => Err(self.failed(format!("it answered {other:?}"))),
        }
    }

    /// Returns the contender's counters, and the usage of its memory group found between requests.
    pub fn counters(&mut self) -> Result<(serde_json::Value, GroupMemoryUsage), Error> {
        match self.ask(&WorkerCommand::Counters)? {
            WorkerAnswer::Counters(counters, keeping) => Ok((counters, keeping)),
            other => Err(self.failed(format!("it answered {other:?}"))),
        }
    }

    /// Stops the worker again after a terminal resumed the run, because the terminal also resumes the workers.
    pub fn rest(&self) -> Result<(), Error> {
        sys::stop(self.child.id())
    }

    fn ask(&mut self, ask: &WorkerCommand) -> Result<WorkerAnswer, Error> {
        sys::go_on(self.child.id())?;
        let answer = self.converse(ask);
        // This check reaps a worker that has died. The number of a dead worker may belong to another process, so it
        // gets no signal.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.rest()?;
        }
        answer
    }

    fn converse(&mut self, ask: &WorkerCommand) -> Result<WorkerAnswer, Error> {
        let text = serde_json::to_string(ask).map_err(|error| self.failed(error.to_string()))?;
        let sent = match &mut self.input {
            Some(input) => writeln!(input, "{text}").and_then(|()| input.flush()),
            None => Ok(()),
        };
        let mut line = String::new();
        let heard = sent.and_then(|()| self.output.read_line(&mut line));
        if line.is_empty() {
            let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            let heard = heard.err().map(|error| format!(" ({error})")).unwrap_or_default();
            let memory = "signal 9 means most often that it needed more than its memory group allows";
            return Err(self.failed(format!("it ended: {status}{heard}; {memory}")));
        }
        match serde_json::from_str(&line) {
            Ok(WorkerAnswer::Failed { is_void, is_missing, message }) => {
                let kind = match (is_void, is_missing) {
                    (true, _) => ExperimentErrorKind::Void,
                    (_, true) => ExperimentErrorKind::Missing,
                    _ => ExperimentErrorKind::Failed,
                };
                Err(Error::new(kind, format!("{}: {message}", self.name)))
            }
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(error.to_string())),
        }
    }

    fn failed(&self, how: String) -> Error {
        Error::failed(&self.name, how)
    }
}

impl Drop for WorkerClient {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // The process resumes, sees the end of its pipe, unmounts and ends; otherwise it is killed.
        let _ = sys::go_on(self.child.id());
        drop(self.input.take());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while std::time::Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::{ContenderKind, ContenderResources};
    use crate::disk::DiskTimekeeping;

    /// A process's state, as the kernel reports it.
    fn state(process: u32) -> Option<char> {
        let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        text.rsplit_once(") ")?.1.chars().next()
    }

    fn start(script: &str) -> Result<WorkerClient, Error> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let setup = WorkerSetup {
            kind: ContenderKind::Memory { wrong: None },
            place: ContenderResources::default(),
            time: DiskTimekeeping::Virtual,
            clock: None,
            trace: "/dev/null".into(),
            threads: 1,
            memory: None,
        };
        WorkerClient::start("a worker", command, setup)
    }

    /// A worker runs only during a request, and ends with its client.
    #[test]
    fn idle_worker_is_stopped() {
        // After two answers the script loops without a pause.
        let mut client = start("for i in 1 2; do read line; echo '\"Done\"'; done; while :; do :; done").unwrap();
        assert_eq!(state(client.id()), Some('T'));
        client.begin().unwrap();
        assert_eq!(state(client.id()), Some('T'));
        sys::go_on(client.id()).unwrap();
        client.rest().unwrap();
        assert_eq!(state(client.id()), Some('T'));
        client.child.kill().unwrap();
        let process = client.id();
        drop(client);
        assert_eq!(state(process), None);
    }

    /// The error names the worker.
    #[test]
    fn ended_worker_reported_at_once() {
        let error = start("exit 3").map(drop).unwrap_err();
        assert!(error.message.contains("a worker") && error.message.contains("it ended"), "{error}");
        let mut client = start("read line; echo '\"Done\"'; read line").unwrap();
        assert!(client.begin().unwrap_err().message.contains("it ended"));
    }
}
