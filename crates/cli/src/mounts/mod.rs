//! The common part of all commands that mount something.
//!
//! Owns: the background process, the claim of a directory, requests to unmount, the reaction to signals, and the output
//! after mounting. Promises: nothing is mounted on a directory while a process still serves an earlier mount of it; a
//! mount that is in use ends when its last user has gone. Leaves to others: the mounted file system, and its status.

pub mod cache;
pub mod dead_mounts;
pub mod helper;
pub mod options;

use std::ffi::OsString;
use std::fmt::Display;
use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nectary_attach::{AttachedVolume, MountedTree, OtherNamespace, redirect_output, unmount_tree, unmount_volume};
use nectary_host::control::{ControlLimits, ControlServer, RunningPart, request};
use nectary_host::log::{self, LogLevel};
use nectary_host::{
    ControlFault, ControlMethods, Error, FaultKind, PartHealth, PartStatus, RuntimeDirectory, Shutdown,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use crate::exit::{BUSY, CommandFailure, FAILED, GOOD};
use crate::output;
use crate::services::service_manager;

/// The longest time of unmounting.
pub const UMOUNT_PATIENCE: Duration = Duration::from_secs(60);

/// A mount of this process.
pub trait MountHandle: Send + Sync + 'static {
    /// Returns a watch channel that becomes true when the mount is unmounted.
    fn ended(&self) -> watch::Receiver<bool>;
    /// Unmounts; with `lazily`, even if the mount is in use.
    fn unmount(&self, lazily: bool) -> Result<(), nectary_attach::Error>;
    /// Ends what was unmounted lazily, although programs use it. `false`: it ends with its last user, or with the process.
    fn abandon(&self) -> bool;
    /// Waits until the mount has ended; it blocks the thread.
    fn finish(&self) -> Result<(), nectary_attach::Error>;
}

impl MountHandle for MountedTree {
    fn ended(&self) -> watch::Receiver<bool> {
        MountedTree::ended(self)
    }

    fn unmount(&self, lazily: bool) -> Result<(), nectary_attach::Error> {
        MountedTree::unmount(self, lazily)
    }

    fn abandon(&self) -> bool {
        false
    }

    fn finish(&self) -> Result<(), nectary_attach::Error> {
        MountedTree::finish(self)
    }
}

impl MountHandle for AttachedVolume {
    fn ended(&self) -> watch::Receiver<bool> {
        AttachedVolume::ended(self)
    }

    fn unmount(&self, lazily: bool) -> Result<(), nectary_attach::Error> {
        AttachedVolume::unmount(self, lazily)
    }

    fn abandon(&self) -> bool {
        AttachedVolume::abandon(self);
        true
    }

    fn finish(&self) -> Result<(), nectary_attach::Error> {
        AttachedVolume::finish(self)
    }
}

/// The longest wait for a word of the process that serves an earlier mount.
const PATIENCE: Duration = Duration::from_secs(5);

/// The names that a kind of mount has.
#[derive(Debug, Clone, Copy)]
pub struct MountKind {
    /// The name of the component in its status.
    pub part: &'static str,
    /// The name in the log.
    pub component: &'static str,
    /// The start of the control socket's name.
    pub socket: &'static str,
    /// The command that unmounts this kind of mount.
    pub umount: &'static str,
    /// Whether the kernel lists a mount of this kind on a directory; its process may be dead.
    pub is_mounted: fn(&Path) -> bool,
    /// Removes the mount of a dead process; `false`: the directory has no mount of this kind.
    pub release: fn(&Path) -> Result<bool, nectary_attach::Error>,
}

/// Directories mounted through a cache.
pub const TREES: MountKind = MountKind {
    part: "cache",
    component: "cache",
    socket: "cache",
    umount: "nectary cache umount",
    is_mounted: nectary_attach::is_tree,
    release: |directory| match nectary_attach::is_tree(directory) {
        true => unmount_tree(directory, true).map(|()| true),
        false => Ok(false),
    },
};

/// Shared volumes.
pub const VOLUMES: MountKind = MountKind {
    part: crate::volume::MOUNT,
    component: "volume",
    socket: "volume-mount",
    umount: "nectary volume umount",
    is_mounted: nectary_attach::is_volume,
    release: |directory| match nectary_attach::is_volume(directory) {
        true => unmount_volume(directory, true).map(|()| true),
        false => Ok(false),
    },
};

impl MountKind {
    /// Writes a message to the log.
    pub fn note(self, message: impl Display) {
        log::write(LogLevel::Note, self.component, format_args!("{message}"));
    }

    /// Returns a name for the control socket of a directory's mount.
    pub fn socket_of(self, directory: &Path) -> String {
        let mut hasher = std::hash::DefaultHasher::new();
        directory.hash(&mut hasher);
        format!("{}-{:016x}", self.socket, hasher.finish())
    }

    /// Claims a directory before anything is mounted there: starts its control socket, which answers only that the mount
    /// is being made. Until the socket is closed, no other process of this runtime directory mounts there.
    ///
    /// *Errors*: a process still serves an earlier mount of the directory; the log of a process in the background cannot
    /// be written.
    pub fn claim(self, directory: &Path, leave_terminal: bool) -> Result<ControlServer, CommandFailure> {
        let runtime = RuntimeDirectory::open()?;
        if leave_terminal {
            let log = self.log_of(&runtime, directory);
            let opened = std::fs::File::options().create(true).append(true).open(&log);
            opened.with_context(|| format!("cannot write to {}", log.display()))?;
        }
        let (part, shown) = (self.part, directory.display().to_string());
        let mut methods = ControlMethods::new();
        methods.status(move || {
            let what = "it is being mounted";
            PartStatus::healthy(part, &shown).with_problem(PartHealth::Degraded, what, "wait until it is mounted")
        });
        match ControlServer::start(&runtime, &self.socket_of(directory), methods, ControlLimits::default()) {
            Err(Error::Busy { path }) => Err(self.earlier(directory, &path)),
            started => Ok(started?),
        }
    }

    /// Returns the failure to mount where a process still serves an earlier mount.
    fn earlier(self, directory: &Path, socket: &Path) -> CommandFailure {
        let status = request(socket, "status", Value::Null, PATIENCE).ok();
        let status = status.and_then(|status| serde_json::from_value::<PartStatus>(status).ok());
        let who = status.as_ref().map_or("a process".to_owned(), |status| format!("process {}", status.pid));
        let why = status.and_then(|status| status.problems.into_iter().next());
        let why = why.map_or_else(|| "it does not answer".to_owned(), |problem| problem.what);
        CommandFailure::new(
            BUSY,
            format!("DIR {}: {who} still serves an earlier mount of it: {why}", directory.display()),
            "`nectary status` shows it: it ends with its last user, or at SIGTERM",
        )
    }

    fn log_of(self, runtime: &RuntimeDirectory, directory: &Path) -> std::path::PathBuf {
        runtime.path().join(format!("{}.log", self.socket_of(directory)))
    }

    /// Removes the mount of a killed process from the directory, because every request to it fails.
    pub fn release_dead(self, directory: &Path) -> Result<(), CommandFailure> {
        let is_dead = std::fs::metadata(directory).is_err_and(|error| error.kind() == std::io::ErrorKind::NotConnected);
        if is_dead && (self.release)(directory)? {
            self.note(format_args!("{}: unmounted, its process is gone", directory.display()));
        }
        Ok(())
    }

    /// Prints the directory, and what is mounted there. A process in the background writes to its log after that.
    pub fn announce(self, directory: &Path, what: &str, leave_terminal: bool) -> Result<(), CommandFailure> {
        self.remember(directory);
        let shown = directory.display();
        if !leave_terminal {
            self.note(format_args!("{what}; `{} {shown}` or Ctrl-C unmounts it", self.umount));
        }
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{shown}").and_then(|()| stdout.flush()).context("cannot write to the standard output")?;
        if leave_terminal {
            let log = self.log_of(&RuntimeDirectory::open()?, directory);
            redirect_output(&log).with_context(|| format!("cannot write to {}", log.display()))?;
            self.note(what);
        }
        service_manager::ready(what);
        Ok(())
    }
}

/// Runs this command again in the background, and returns once that process has printed its first line.
pub fn in_background() -> Result<u8, CommandFailure> {
    let words =
        std::env::args_os().skip(1).map(|word| if word == "--background" { "--leave-terminal".into() } else { word });
    match start(words)? {
        BackgroundStart::Goes { line } => {
            output::text(&line)?;
            Ok(GOOD)
        }
        BackgroundStart::Failed { code } => Ok(code),
    }
}

/// The outcome of starting a process in the background.
pub enum BackgroundStart {
    /// It has mounted; this is its first line.
    Goes { line: String },
    /// It has ended with this exit code, and has printed the error itself.
    Failed { code: u8 },
}

/// Starts this program with these words as a process in the background; returns once it has printed its first line.
pub fn start(words: impl IntoIterator<Item = OsString>) -> Result<BackgroundStart, CommandFailure> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    let mut child =
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start itself again")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).context("cannot hear of the process in the background")?;
    }
    if line.is_empty() {
        // The background process has printed the error itself.
        let status = child.wait().context("cannot wait for the process in the background")?;
        return Ok(BackgroundStart::Failed {
            code: status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED),
        });
    }
    Ok(BackgroundStart::Goes { line })
}

/// Says who keeps a mount alive that is not at its directory any more.
pub fn left_behind(other: Option<OtherNamespace>) -> String {
    match other {
        Some(OtherNamespace { process, name, place }) => format!(
            "it is unmounted, and still mounted at {} in another mount namespace (a container), that of process {process} \
             ({name})",
            place.display()
        ),
        None => "it is unmounted, and still serves programs that have files of it open".to_owned(),
    }
}

/// A request to unmount.
struct UnmountRequest {
    lazily: bool,
    reply: oneshot::Sender<Result<(), nectary_attach::Error>>,
    /// Completes when the control socket has accepted the answer; the socket must not be closed before.
    taken: oneshot::Receiver<()>,
}

/// Returns the answer to a failed request to unmount.
fn not_unmounted(error: &nectary_attach::Error) -> ControlFault {
    match error {
        nectary_attach::Error::InUse { .. } => {
            ControlFault::new(FaultKind::Busy, error.to_string(), "close it, or give --lazy")
        }
        nectary_attach::Error::InUseUnserved { .. } => {
            let remedy = "start the server; or kill these programs, or give --lazy: a program that changes something \
                          ends only when the server is back";
            ControlFault::new(FaultKind::Busy, error.to_string(), remedy)
        }
        _ => {
            let remedy = "if it was unmounted with --lazy, it ends when the last program closes its files";
            ControlFault::new(FaultKind::Failed, error.to_string(), remedy)
        }
    }
}

/// Requests to unmount that came over the control socket.
pub struct UnmountRequests(mpsc::Receiver<UnmountRequest>);

impl UnmountRequests {
    /// Registers the method `umount`, which makes these requests.
    pub fn register(methods: &mut ControlMethods) -> UnmountRequests {
        let (asked, requests) = mpsc::channel(4);
        methods.register("umount", "unmounts it, unless it is in use; lazy: also then", move |params| {
            let lazily = params["lazy"].as_bool().unwrap_or(false);
            let asked: mpsc::Sender<UnmountRequest> = asked.clone();
            async move {
                let (reply, answer) = oneshot::channel();
                let (_taking, taken) = oneshot::channel();
                let gone = || ControlFault::new(FaultKind::Failed, "it is being unmounted already", "wait a moment");
                asked.send(UnmountRequest { lazily, reply, taken }).await.map_err(|_| gone())?;
                let done = answer.await.map_err(|_| gone())?;
                done.map(|()| Value::Null).map_err(|error| not_unmounted(&error))
            }
        });
        UnmountRequests(requests)
    }

    /// Returns when the mount is unmounted: on request, after a signal, or by another program.
    pub async fn until_unmounted(
        mut self,
        kind: MountKind,
        mounted: &impl MountHandle,
        shutdown: &Shutdown,
    ) -> Result<(), CommandFailure> {
        let mut ended = mounted.ended();
        let (mut is_leaving, mut is_detached) = (false, false);
        loop {
            tokio::select! {
                _ = ended.wait_for(|ended| *ended) => return Ok(()),
                () = shutdown.requested(), if !is_leaving => {
                    is_leaving = true;
                    // Another mount may be at the directory by now.
                    if is_detached && mounted.abandon() {
                        kind.note("it was unmounted before; programs that still use it get errors from now on");
                        return Ok(());
                    }
                    match mounted.unmount(false) {
                        Ok(()) => {}
                        Err(error) if error.is_in_use() => {
                            kind.note(format_args!(
                                "{error}; it ends with its last user, a second signal ends this process at once"
                            ));
                            mounted.unmount(true)?;
                        }
                        // Another program has unmounted it lazily.
                        Err(error) => {
                            if !mounted.abandon() {
                                return Err(error.into());
                            }
                            kind.note(format_args!("{error}; programs that still use it get errors from now on"));
                            return Ok(());
                        }
                    }
                }
                Some(UnmountRequest { lazily, reply, taken }) = self.0.recv() => {
                    let unmounted = mounted.unmount(lazily);
                    is_detached |= lazily && unmounted.is_ok();
                    let _ = reply.send(unmounted);
                    let _ = taken.await;
                }
            }
        }
    }
}

/// Waits until the mount has ended.
pub async fn finish(mounted: &Arc<impl MountHandle>) -> Result<(), CommandFailure> {
    let mounted = mounted.clone();
    let ended = tokio::task::spawn_blocking(move || mounted.finish()).await;
    Ok(ended.context("waiting for the end panicked")??)
}

/// Asks the process of a mount to unmount it.
pub fn ask_to_unmount(part: &RunningPart, lazily: bool) -> Result<(), CommandFailure> {
    match request(&part.path, "umount", json!({ "lazy": lazily }), UMOUNT_PATIENCE) {
        Ok(_) => Ok(()),
        Err(Error::Fault { fault, .. }) => {
            let code = if fault.kind == FaultKind::Busy { BUSY } else { FAILED };
            Err(CommandFailure::new(code, fault.message, fault.remedy))
        }
        Err(error) => Err(error.into()),
    }
}
