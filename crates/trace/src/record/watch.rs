//! Runs a command under the filter: starts the command, receives each of its calls, and lets the call continue.
//!
//! Owns: the steps of the start and of the end, and the loop between them. Promises: no call waits longer than the
//! recorder takes to describe it; the loop ends when the last process under the filter has ended, however it ended.
//!
//! At the start a separate thread, the *gate*, puts the filter on itself, and thereby on every child that it creates.
//! The gate is the only thread of this process under the filter, and ends once the command runs. So the listener need
//! not be passed between processes, and no code of the recorder runs between fork and exec.
#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::guard::RecordingGuard;
use super::output::{self, TraceOutput};
use super::session::{PreparedCall, RecordingSession};
use super::signals::{self, SignalReceiver};
use super::{Error, RecordingOptions, RecordingProgress, RecordingSummary, Result, calls, filter, sys};
use crate::formats::nectary::{NectaryWriter, RecordingOutcome, TraceHeader};

/// The interval at which progress is reported and pending records are checked.
const TICK: Duration = Duration::from_millis(200);
const TICK_MS: i32 = 200;

/// A command that is being started.
struct CommandGate {
    listener: OwnedFd,
    /// Tells the gate to start the command.
    go: mpsc::Sender<()>,
    thread: JoinHandle<io::Result<u32>>,
    /// The other end of this pipe is closed once the command was started, or could not be started.
    begun: io::PipeReader,
}

/// Runs and records a command; see [`super::record`].
pub(super) fn run(
    command: Command,
    options: &RecordingOptions,
    progress: &mut dyn FnMut(&RecordingProgress),
) -> Result<RecordingSummary> {
    let machine = calls::MACHINE.ok_or(Error::Machine)?;
    let write_error = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => Error::Exists { path: options.output.clone() },
        _ => Error::Write { path: options.output.clone(), source },
    };
    let output = TraceOutput::create(&options.output, options.is_overwriting).map_err(write_error)?;
    let header = TraceHeader {
        block_bytes: options.block_bytes,
        is_collapsed: options.is_collapsed,
        is_reads_only: options.is_reads_only,
    };
    let begin = || {
        let identity = output::random_identity().map_err(write_error)?;
        let writer = NectaryWriter::new(output, identity, &header).map_err(write_error)?;
        FilteredCommand::begin(command, machine, options, writer)
    };
    // A file without a recording is useless, so it is removed.
    let remove = |error| {
        let _ = fs::remove_file(&options.output);
        error
    };
    begin().map_err(remove)?.watch(progress).map_err(|error| match error {
        Error::Write { .. } => error,
        error => remove(error),
    })
}

/// A command under the filter.
struct FilteredCommand {
    path: PathBuf,
    program: PathBuf,
    listener: OwnedFd,
    guard: RecordingGuard,
    signals: Option<SignalReceiver>,
    /// The gate's thread, and the pipe that is closed when the gate ends; `None` once the gate has ended.
    gate: Option<(JoinHandle<io::Result<u32>>, io::PipeReader)>,
    /// Signals for the command that came before it was known to have begun.
    early: Vec<i32>,
    /// The process of the command, and a handle on it until the process has ended.
    child: Option<u32>,
    child_handle: Option<OwnedFd>,
    outcome: Option<RecordingOutcome>,
    /// The reason why the command could not be started.
    failure: Option<Error>,
    /// The trace, or the error that ended its writing.
    session: std::result::Result<RecordingSession<TraceOutput>, io::Error>,
    began: Instant,
    ticked: Instant,
    is_adopting: bool,
}

impl FilteredCommand {
    fn begin(
        mut command: Command,
        machine: u32,
        options: &RecordingOptions,
        writer: NectaryWriter<TraceOutput>,
    ) -> Result<FilteredCommand> {
        let io_error = |what: &'static str| move |source: io::Error| Error::Io { what, source };
        let program = PathBuf::from(command.get_program());
        let mut signals = None;
        if options.is_whole_program {
            let taken = SignalReceiver::take().map_err(io_error("taking signals"))?;
            taken.former().give(&mut command);
            signals = Some(taken);
            signals::adopt_orphans(true).map_err(io_error("adopting orphans"))?;
        }
        let gate = gate(command, filter::build(machine, options.is_reads_only))?;
        sys::prefer_same_processor(gate.listener.as_fd());
        let guard = RecordingGuard::begin(gate.listener.as_fd()).map_err(io_error("beginning the guard"))?;
        // The gate waits for this message. If the gate has ended, joining it returns the reason.
        let _ = gate.go.send(());
        let now = Instant::now();
        Ok(FilteredCommand {
            path: options.output.clone(),
            program,
            listener: gate.listener,
            guard,
            signals,
            gate: Some((gate.thread, gate.begun)),
            early: Vec::new(),
            child: None,
            child_handle: None,
            outcome: None,
            failure: None,
            session: Ok(RecordingSession::new(writer, options)),
            began: now,
            ticked: now,
            is_adopting: options.is_whole_program,
        })
    }

    /// Receives calls until no process is left that could make one.
    fn watch(mut self, progress: &mut dyn FnMut(&RecordingProgress)) -> Result<RecordingSummary> {
        let is_nothing_left = loop {
            let descriptors = [
                self.listener.as_raw_fd(),
                self.gate.as_ref().map_or(-1, |(_, begun)| begun.as_raw_fd()),
                self.child_handle.as_ref().map_or(-1, AsRawFd::as_raw_fd),
                self.signals.as_ref().map_or(-1, AsRawFd::as_raw_fd),
            ];
            let waited = sys::wait_for(descriptors, TICK_MS);
            let [calls, begun, child, signals] =
                waited.map_err(|source| Error::Io { what: "waiting for calls", source })?;
            if calls & libc::POLLIN != 0 {
                self.take_call()?;
            }
            if begun != 0 {
                self.gate_ends()?;
            }
            if child != 0 {
                self.reap();
            }
            if signals != 0 && self.take_signals() {
                break false;
            }
            self.tick(progress);
            if calls & libc::POLLIN == 0 && calls != 0 && self.gate.is_none() && self.child_handle.is_none() {
                break true;
            }
        };
        self.end(is_nothing_left)
    }

    fn take_call(&mut self) -> Result<()> {
        let listening = |source| Error::Io { what: "taking a call", source };
        let Some(notification) = sys::receive(self.listener.as_fd()).map_err(listening)? else { return Ok(()) };
        self.guard.note(notification.id);
        let prepared = match &mut self.session {
            Ok(session) => session.prepare(&notification),
            Err(_) => Ok(PreparedCall::default()),
        };
        // The call continues first, because the rest can be done in parallel.
        let went_on = sys::proceed(self.listener.as_fd(), notification.id).map_err(listening)?;
        let written = match (prepared, &mut self.session) {
            (Ok(prepared), Ok(session)) if went_on => session.commit(prepared),
            (Err(error), _) => Err(error),
            _ => Ok(()),
        };
        if let Err(error) = written {
            self.session = Err(error);
        }
        Ok(())
    }

    /// Handles the end of the gate, which has started the command or could not start it.
    fn gate_ends(&mut self) -> Result<()> {
        let Some((thread, _)) = self.gate.take() else { return Ok(()) };
        let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that begins it failed")));
        let child = match ended {
            Ok(child) => child,
            Err(source) => {
                // The listener hangs up soon, because no process has the filter.
                self.failure = Some(Error::Command { program: self.program.clone(), source });
                return Ok(());
            }
        };
        // Only this process reaps the command, so the command's id is not reused, even if the command has ended.
        let handle = sys::open_process(child).map_err(|source| Error::Io { what: "watching the command", source })?;
        self.child = Some(child);
        self.child_handle = Some(handle);
        std::mem::take(&mut self.early).into_iter().for_each(|number| signals::send(child, number));
        Ok(())
    }

    /// Reaps ended children, and stores how the command ended.
    fn reap(&mut self) {
        let Some(child) = self.child else { return };
        while let Some((pid, status)) = signals::reap(if self.is_adopting { 0 } else { child }) {
            if pid == child {
                self.child_handle = None;
                self.outcome = Some(match status & 0x7f {
                    0 => RecordingOutcome::Exited((status >> 8) as u8),
                    signal => RecordingOutcome::Killed(signal as u8),
                });
            }
            if !self.is_adopting {
                break;
            }
        }
    }

    /// Passes signals on to the command. *Returns* `true` if a signal ends the recording.
    fn take_signals(&mut self) -> bool {
        while let Some(signal) = self.signals.as_ref().and_then(SignalReceiver::next) {
            match (signal.number, self.child, self.outcome) {
                (libc::SIGCHLD, ..) => self.reap(),
                (number, Some(child), None) if !signal.is_for_all => signals::send(child, number),
                (number, None, None) if !signal.is_for_all && self.gate.is_some() => self.early.push(number),
                (libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT, _, Some(_)) => return true,
                _ => {}
            }
        }
        false
    }

    fn tick(&mut self, progress: &mut dyn FnMut(&RecordingProgress)) {
        let now = Instant::now();
        if now.duration_since(self.ticked) < TICK {
            return;
        }
        self.ticked = now;
        if let Ok(session) = &mut self.session {
            let (references, blocks) = session.counts();
            let is_command_over = self.outcome.is_some();
            progress(&RecordingProgress {
                references,
                blocks,
                elapsed: now.duration_since(self.began),
                is_command_over,
            });
            if let Err(error) = session.tick(now) {
                self.session = Err(error);
            }
        }
    }

    fn end(self, is_nothing_left: bool) -> Result<RecordingSummary> {
        let path = self.path;
        let outcome = self.outcome.unwrap_or(RecordingOutcome::Stopped);
        let seconds = self.began.elapsed().as_secs_f64();
        let finished = self.session.and_then(|session| {
            let (output, mut summary) = session.finish(outcome, !is_nothing_left, seconds)?;
            summary.file_bytes = output.finish()?;
            Ok(summary)
        });
        drop(self.listener);
        self.guard.end(is_nothing_left);
        if self.is_adopting {
            // Adopted processes stay children until this program ends, but no further processes are adopted.
            let _ = signals::adopt_orphans(false);
        }
        match self.failure {
            Some(failure) => Err(failure),
            None => finished.map_err(|source| Error::Write { path, source }),
        }
    }
}

/// Creates the thread that starts the command. The thread has the filter, and waits for permission to start the
/// command.
fn gate(mut command: Command, program: Vec<libc::sock_filter>) -> Result<CommandGate> {
    let (listener_sender, listener) = mpsc::channel();
    let (go, wait) = mpsc::channel();
    let piped = io::pipe().map_err(|source| Error::Io { what: "making a pipe", source })?;
    let (begun, hang_up) = piped;
    let body = move || -> io::Result<u32> {
        let installed = sys::install_filter(&program);
        let is_installed = installed.is_ok();
        // If the receiver has ended, `wait.recv` fails below and the command is not started.
        let _ = listener_sender.send(installed);
        let child = match is_installed && wait.recv().is_ok() {
            true => command.spawn().map(|child| child.id()),
            false => Err(io::Error::other("not begun")),
        };
        drop(hang_up);
        child
    };
    let spawned = thread::Builder::new().name("gate".to_owned()).spawn(body);
    let thread = spawned.map_err(|source| Error::Io { what: "making a thread", source })?;
    match listener.recv() {
        Ok(Ok(listener)) => Ok(CommandGate { listener, go, thread, begun }),
        Ok(Err(source)) if source.raw_os_error() == Some(libc::EBUSY) => Err(Error::Watched),
        Ok(Err(source)) => Err(Error::Refused { what: "watching system calls (seccomp)", source }),
        Err(_) => Err(Error::Io { what: "making a thread", source: io::Error::other("it ended at once") }),
    }
}
