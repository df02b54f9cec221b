//! `nectary volume mount` and `umount`.
//!
//! Owns: the background process, the control socket of a mount, and its reaction to signals. Leaves to others: mounting
//! (`nectary-attach`), the session (`nectary-volume`).

use std::fmt::Display;
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nectary_attach::{Volume, VolumeOptions, is_volume, leave_terminal, redirect_output, unmount_volume};
use nectary_host::control::{Part, parts, request};
use nectary_host::log::{self, Level};
use nectary_host::tls::ClientTls;
use nectary_host::{
    ControlServer, Error, Fault, FaultKind, Limits, Methods, RuntimeDirectory, Shutdown, State, Status,
};
use nectary_volume::client::ClientOptions;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::arguments::{VolumeMountArguments, VolumeUmountArguments};
use crate::cache_mount::in_background;
use crate::exit::{BUSY, Failure, GOOD, NOT_FOUND};
use crate::runtime;

/// The component's name in a status.
const COMPONENT: &str = "volume mount";
/// How long each part may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long unmounting may take.
const UMOUNT_PATIENCE: Duration = Duration::from_secs(60);

/// Mounts a volume.
pub fn mount(arguments: &VolumeMountArguments) -> Result<u8, Failure> {
    if arguments.background { in_background() } else { runtime()?.block_on(stay(arguments)) }
}

/// A request to unmount.
struct Request {
    lazily: bool,
    reply: oneshot::Sender<Result<(), nectary_attach::Error>>,
    /// Completes when the control socket has accepted the answer; the socket must not be closed before.
    taken: oneshot::Receiver<()>,
}

/// Mounts a volume and serves it until it is unmounted.
async fn stay(arguments: &VolumeMountArguments) -> Result<u8, Failure> {
    if arguments.leave_terminal {
        leave_terminal().context("cannot leave the terminal")?;
    }
    let shutdown = Shutdown::new();
    let _signals = shutdown.on_signals().context("cannot listen for signals")?;
    release_dead(&std::path::absolute(&arguments.directory).context("cannot find the current directory")?)?;
    let directory = arguments.directory.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let message = format!("DIR {}: there is no such directory", arguments.directory.display());
            Failure::new(NOT_FOUND, message, "make it: an empty directory")
        }
        _ => anyhow::Error::from(error).context(format!("DIR {}", arguments.directory.display())).into(),
    })?;
    let device = super::open(&arguments.disk, &arguments.engine, None, true).await?;
    let label = super::label(&arguments.disk, &device).await?;
    let tls = match &arguments.tls_ca {
        Some(ca) => {
            let identity = arguments.tls_cert.as_deref().zip(arguments.tls_key.as_deref());
            Some(ClientTls::load(Some(ca), identity)?)
        }
        None => None,
    };
    let client =
        ClientOptions { server: arguments.server.clone(), tls, volume: label.volume, host: host_name(), kind: 1 };
    let options = VolumeOptions { device, directory, client };
    let volume = tokio::task::spawn_blocking(move || Volume::start(options)).await.context("mounting panicked")?;
    let volume = Arc::new(volume?);
    let (asked, mut requests) = mpsc::channel(4);
    let control = match start_control(&volume, asked, arguments.server.to_string()) {
        Ok(control) => control,
        Err(failure) => {
            volume.unmount(true)?;
            finish(&volume).await?;
            return Err(failure);
        }
    };
    announce(arguments, &volume, &super::shown_name(&label))?;
    let mut ended = volume.ended();
    let mut is_leaving = false;
    loop {
        tokio::select! {
            _ = ended.wait_for(|ended| *ended) => break,
            () = shutdown.requested(), if !is_leaving => {
                is_leaving = true;
                if let Err(error) = volume.unmount(false) {
                    note(format_args!("{error}; it ends with its last user, a second signal ends this process at once"));
                    volume.unmount(true)?;
                }
            }
            Some(Request { lazily, reply, taken }) = requests.recv() => {
                let _ = reply.send(volume.unmount(lazily));
                let _ = taken.await;
            }
        }
    }
    // The socket goes last: `umount` waits for it, so that everything is committed when it returns.
    let finished = finish(&volume).await;
    control.stop().await;
    finished?;
    note("unmounted");
    Ok(GOOD)
}

/// The name of this host.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unknown".to_owned() } else { name.chars().take(63).collect() }
}

async fn finish(volume: &Arc<Volume>) -> Result<(), Failure> {
    let volume = volume.clone();
    let ended = tokio::task::spawn_blocking(move || volume.finish()).await;
    Ok(ended.context("waiting for the end panicked")??)
}

/// Removes the mount of a killed process from the directory, because every request to it fails.
fn release_dead(directory: &Path) -> Result<(), Failure> {
    let is_dead = std::fs::metadata(directory).is_err_and(|error| error.kind() == std::io::ErrorKind::NotConnected);
    if is_dead && is_volume(directory) {
        unmount_volume(directory, true)?;
        note(format_args!("{}: unmounted, its process is gone", directory.display()));
    }
    Ok(())
}

fn start_control(volume: &Arc<Volume>, asked: mpsc::Sender<Request>, server: String) -> Result<ControlServer, Failure> {
    let mut methods = Methods::new();
    let of_status = volume.clone();
    methods.status(move || status(&of_status, &server));
    methods.register("umount", "unmounts it, unless it is in use; lazy: also then", move |params| {
        let lazily = params["lazy"].as_bool().unwrap_or(false);
        let asked = asked.clone();
        async move {
            let (reply, answer) = oneshot::channel();
            let (_taking, taken) = oneshot::channel();
            let gone = || Fault::new(FaultKind::Failed, "it is being unmounted already", "wait a moment");
            asked.send(Request { lazily, reply, taken }).await.map_err(|_| gone())?;
            let done = answer.await.map_err(|_| gone())?;
            let busy = |error: nectary_attach::Error| {
                Fault::new(FaultKind::Busy, error.to_string(), "close it, or give --lazy")
            };
            done.map(|()| Value::Null).map_err(busy)
        }
    });
    let part = part_name(volume.directory());
    Ok(ControlServer::start(&RuntimeDirectory::open()?, &part, methods, Limits::default())?)
}

/// A name for the socket of a directory.
fn part_name(directory: &Path) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    directory.hash(&mut hasher);
    format!("volume-mount-{:016x}", hasher.finish())
}

/// The status of a mount, as `nectary status` shows it.
fn status(volume: &Volume, server: &str) -> Status {
    let figures = volume.figures();
    let session = figures.session;
    let mut status = Status::healthy(COMPONENT, &volume.directory().display().to_string());
    if let Some(reason) = &session.ended {
        let what = format!("session {} has ended: {reason}", session.session);
        status = status.with_problem(State::Broken, what, "close what uses it, unmount it and mount it again");
    } else if let Some(trouble) = &session.trouble {
        let what = format!("no connection to {server}: {trouble}");
        status = status.with_problem(State::Degraded, what, "start the server; what waits goes on by itself then");
    }
    status.with_detail(json!({
        "disk": volume.source(),
        "server": server,
        "session": session.session,
        "epoch": session.epoch,
        "operations": session.operations,
        "questions": session.questions,
        "waiting": session.waiting,
        "reconnections": session.reconnections,
        "nodes": figures.nodes,
        "open_files": figures.handles,
    }))
}

fn announce(arguments: &VolumeMountArguments, volume: &Volume, name: &str) -> Result<(), Failure> {
    let directory = volume.directory().display();
    let what = format!("volume {name} of {} is mounted at {directory}, server {}", volume.source(), arguments.server);
    if !arguments.leave_terminal {
        note(format_args!("{what}; `nectary volume umount {directory}` or Ctrl-C unmounts it"));
    }
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{directory}").and_then(|()| stdout.flush()).context("cannot write to the standard output")?;
    if arguments.leave_terminal {
        let log = RuntimeDirectory::open()?.path().join(format!("{}.log", part_name(volume.directory())));
        redirect_output(&log).with_context(|| format!("cannot write to {}", log.display()))?;
        note(what);
    }
    Ok(())
}

fn note(message: impl Display) {
    log::write(Level::Note, "volume", format_args!("{message}"));
}

/// Unmounts a volume.
pub fn umount(arguments: &VolumeUmountArguments) -> Result<u8, Failure> {
    let directory = &std::path::absolute(&arguments.directory).context("cannot find the current directory")?;
    // A dead mount cannot be resolved, so its path is used as given.
    let wanted = directory.canonicalize().unwrap_or_else(|_| PathBuf::from(directory));
    let is_meant = |part: &Part| {
        part.status.as_ref().is_ok_and(|status| status.component == COMPONENT && Path::new(&status.name) == wanted)
    };
    let Some(part) = parts(&RuntimeDirectory::open()?, PATIENCE)?.into_iter().find(is_meant) else {
        if is_volume(directory) {
            release_dead(directory)?;
            return Ok(GOOD);
        }
        let message = format!("{}: no volume is mounted there", directory.display());
        return Err(Failure::new(NOT_FOUND, message, "`nectary status` lists those that are"));
    };
    match request(&part.path, "umount", json!({ "lazy": arguments.lazy }), UMOUNT_PATIENCE) {
        Ok(_) => {
            wait_gone(&part.path, arguments.lazy);
            Ok(GOOD)
        }
        Err(Error::Fault { fault, .. }) => Err(Failure::new(BUSY, fault.message, fault.remedy)),
        Err(error) => Err(error.into()),
    }
}

/// Waits until the process has committed what it has, and removed its socket.
fn wait_gone(socket: &Path, lazily: bool) {
    let deadline = std::time::Instant::now() + UMOUNT_PATIENCE;
    while !lazily && socket.exists() && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
}
