//! The processes of a run: their output, and their end.
//!
//! Owns: a child with its pipes, and the command that puts a child into a memory group or its own network namespace
//! before it runs the program ([`enter`]). Promises: a child ends when its handle is dropped, and when this process
//! ends for any reason; each wait for a `PipedProcess` has a deadline. If a child fails, the error message quotes the end of
//! its standard error output.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use crate::guardian::is_alive;
use crate::{Error, ExperimentErrorKind, sys};

/// The longest time that a process may take to end after SIGTERM.
const END_TIME_MAX: Duration = Duration::from_secs(20);
/// The number of lines of a process's output that are buffered; a process that writes more waits.
const LINES_MAX: usize = 1024;
/// The length of the end of a process's error output that an error message quotes. *Units*: bytes.
const SAID_BYTES: usize = 2000;

/// The environment in which a process is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessEnvironment {
    /// The memory group that the process joins.
    pub group: Option<PathBuf>,
    /// Whether the process gets its own network namespace, without links.
    pub has_own_network: bool,
    /// The processor that it runs on; all if `None`.
    pub processor: Option<usize>,
}

impl ProcessEnvironment {
    /// The arguments of `nectary bench inside` for this environment.
    fn arguments(&self) -> Vec<OsString> {
        let mut list: Vec<OsString> = vec!["bench".into(), "inside".into()];
        if let Some(group) = &self.group {
            list.extend(["--group".into(), group.into()]);
        }
        if self.has_own_network {
            list.push("--own-network".into());
        }
        if let Some(processor) = self.processor {
            list.extend(["--processor".into(), processor.to_string().into()]);
        }
        list.push("--".into());
        list
    }

    /// The command that starts `program` in this environment; `nectary` is the path of this program.
    pub fn command(&self, nectary: &Path, program: &Path) -> Command {
        let mut command = Command::new(nectary);
        command.args(self.arguments()).arg(program);
        command
    }
}

/// Replaces this process by `program`, which ends when the parent of this process ends. Returns only on failure.
///
/// Call it before the process has other threads.
pub fn enter(inside: &ProcessEnvironment, program: &[OsString]) -> Error {
    sys::become_worker();
    let join = |group: &PathBuf| {
        let path = group.join("cgroup.procs");
        fs::write(&path, "0").map_err(|error| Error::failed(path.display(), error))
    };
    if let Err(error) = inside.group.as_ref().map_or(Ok(()), join) {
        return error;
    }
    if let Err(error) = if inside.has_own_network { sys::own_network() } else { Ok(()) } {
        return error;
    }
    if let Some(processor) = inside.processor {
        sys::run_on(processor);
    }
    let Some((name, arguments)) = program.split_first() else {
        return Error::new(ExperimentErrorKind::Usage, "there is no program to start");
    };
    Error::failed(name.display(), Command::new(name).args(arguments).exec())
}

/// A process of a run.
pub(crate) struct PipedProcess {
    child: Child,
    what: String,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    said: PathBuf,
    is_reaped: bool,
}

impl PipedProcess {
    /// Starts a process; `what` names it in errors. Its error output goes to the new file `said`.
    ///
    /// The calling thread must live as long as the process, because the kernel kills the process when the thread ends.
    pub fn start(mut command: Command, what: &str, said: PathBuf) -> Result<PipedProcess, Error> {
        let errors = File::create(&said).map_err(|error| Error::failed(said.display(), error))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().map_err(|error| Error::failed(format!("starting {what}"), error))?;
        let input = child.stdin.take();
        let (sender, lines) = sync_channel(LINES_MAX);
        if let Some(output) = child.stdout.take() {
            // The thread ends with the process, or when the receiver of the lines is dropped.
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        Ok(PipedProcess { child, what: what.to_owned(), input, lines, said, is_reaped: false })
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to the process.
    pub fn tell(&mut self, line: &str) -> Result<(), Error> {
        let Some(input) = &mut self.input else { return Err(Error::failed(&self.what, "its input is closed")) };
        let written = writeln!(input, "{line}").and_then(|()| input.flush());
        written.map_err(|error| self.failed(&error.to_string()))
    }

    /// The next line of its output.
    pub fn line(&self, patience: Duration) -> Result<String, Error> {
        self.lines.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => self.failed(&format!("it says nothing within {patience:?}")),
            RecvTimeoutError::Disconnected => self.failed("it has ended"),
        })
    }

    /// Sends the process SIGTERM and waits for its end. *Errors*: its exit code is not 0, or it does not end in time.
    pub fn finish(mut self) -> Result<(), Error> {
        drop(self.input.take());
        sys::terminate(self.child.id())?;
        let ended = sys::wait_for(self.child.id(), END_TIME_MAX)?;
        self.is_reaped = ended.is_some();
        match ended {
            Some((0, _)) => Ok(()),
            Some((code, _)) => Err(self.failed(&format!("exit code {code}"))),
            None => Err(self.failed(&format!("it did not end within {END_TIME_MAX:?}"))),
        }
    }

    /// Whether the process has not ended.
    pub fn is_running(&self) -> bool {
        is_alive(self.child.id())
    }

    /// The processor time that the process has used. *Units*: seconds, in steps of the kernel's clock tick.
    pub fn processor_s(&self) -> f64 {
        sys::processor_s_of(self.child.id())
    }

    fn failed(&self, how: &str) -> Error {
        let said = fs::read(&self.said).unwrap_or_default();
        let said = String::from_utf8_lossy(&said[said.len().saturating_sub(SAID_BYTES)..]).trim().replace('\n', "; ");
        match said.is_empty() {
            true => Error::failed(&self.what, how),
            false => Error::failed(&self.what, format!("{how}: {said}")),
        }
    }
}

impl Drop for PipedProcess {
    fn drop(&mut self) {
        // After a process is reaped, its number may belong to another process.
        if !self.is_reaped {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs a program to its end; if it fails, its output is part of the error.
pub(crate) fn run(command: &mut Command) -> Result<String, Error> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::new(ExperimentErrorKind::Missing, format!("there is no program {name}")),
        _ => Error::failed(&name, error),
    })?;
    if !output.status.success() {
        let arguments: Vec<_> = command.get_args().map(|argument| argument.display().to_string()).collect();
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(Error::failed(format!("{name} {}", arguments.join(" ")), said));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> PipedProcess {
        let said = std::env::temp_dir().join(format!("nectary-bench-said-{}-{}", std::process::id(), script.len()));
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        PipedProcess::start(command, "a shell", said).unwrap()
    }

    /// A process answers in lines, and its failure contains its last output.
    #[test]
    fn process_failure_has_last_output() {
        let mut shell = start("read word; echo heard $word; echo it went wrong >&2; exit 3");
        shell.tell("a").unwrap();
        assert_eq!(shell.line(Duration::from_secs(10)).unwrap(), "heard a");
        let error = shell.line(Duration::from_secs(10)).unwrap_err();
        assert!(error.message.contains("it has ended: it went wrong"), "{error}");
        fs::remove_file(&shell.said).unwrap();
    }

    /// A process that prints nothing is waited for until the deadline, and is killed on drop.
    #[test]
    fn silent_process_times_out() {
        let shell = start("exec sleep 1000");
        let error = shell.line(Duration::from_millis(20)).unwrap_err();
        assert!(error.message.contains("nothing within"), "{error}");
        let (said, id) = (shell.said.clone(), shell.id());
        assert!(shell.is_running());
        drop(shell);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
        fs::remove_file(said).unwrap();
    }

    #[test]
    fn failed_command_shows_its_output() {
        let error = run(Command::new("sh").args(["-c", "echo no >&2; false"])).unwrap_err();
        assert!(error.message.ends_with("no") && error.message.starts_with("sh -c"), "{error}");
        assert_eq!(run(&mut Command::new("no-such-program-here")).unwrap_err().kind, ExperimentErrorKind::Missing);
        assert_eq!(run(Command::new("echo").arg("a")).unwrap(), "a\n");
    }
}
