//! `nectary volume mount` and `umount`.
//!
//! Owns: the control socket of a mount, and its status. Leaves to others: the common part of all mounts (`mounts`),
//! mounting (`nectary-attach`), the session (`nectary-volume`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use nectary_attach::{AttachedVolume, VolumeOptions, WAIT_SHOWN, is_volume, leave_terminal, unmount_volume};
use nectary_block::OpenOptions;
use nectary_buffer::{CacheOptions, WriteMode};
use nectary_host::control::{RunningPart, parts};
use nectary_host::tls::ClientTls;
use nectary_host::{ControlMethods, ControlServer, PartHealth, PartStatus, RuntimeDirectory, Shutdown};
use nectary_volume::client::{ClientOptions, ServerAddress};
use serde_json::json;

use crate::arguments::{VolumeMountArguments, VolumeUmountArguments};
use crate::exit::{BUSY, CommandFailure, DEGRADED, FAILED, GOOD, NOT_FOUND};
use crate::long_waits::{figures as figures_of_waits, with_waits};
use crate::mounts::cache::check_options;
use crate::mounts::options;
use crate::mounts::{UMOUNT_PATIENCE, UnmountRequests, VOLUMES, ask_to_unmount, finish, in_background, left_behind};
use crate::runtime;

/// The longest time in which each part must answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Mounts a volume.
pub fn mount(arguments: &VolumeMountArguments) -> Result<u8, CommandFailure> {
    if arguments.background { in_background() } else { runtime()?.block_on(stay(arguments)) }
}

/// Mounts a volume and serves it until it is unmounted.
async fn stay(arguments: &VolumeMountArguments) -> Result<u8, CommandFailure> {
    if arguments.leave_terminal {
        leave_terminal().context("cannot leave the terminal")?;
    }
    let shutdown = Shutdown::new();
    let _signals = shutdown.on_signals().context("cannot listen for signals")?;
    VOLUMES.release_dead(&std::path::absolute(&arguments.directory).context("cannot find the current directory")?)?;
    let directory = arguments.directory.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let message = format!("DIR {}: there is no such directory", arguments.directory.display());
            CommandFailure::new(NOT_FOUND, message, "make it: an empty directory")
        }
        _ => anyhow::Error::from(error).context(format!("DIR {}", arguments.directory.display())).into(),
    })?;
    if is_volume(&directory) {
        let message = format!("DIR {}: a volume is mounted there already", directory.display());
        return Err(CommandFailure::new(
            BUSY,
            message,
            "unmount it (`nectary volume umount DIR`), or name another directory",
        ));
    }
    let mut allowed = options::parse(&arguments.options)?;
    allowed.no_access_times |= arguments.noatime;
    allowed.sync_names |= arguments.sync_names;
    allowed.local_names |= arguments.local_names;
    if !allowed.read_only && is_write_protected(&arguments.disk) {
        let message = format!("{}: it is write-protected", arguments.disk);
        return Err(CommandFailure::new(
            FAILED,
            message,
            "mount it with `-o ro`, or name the disk by which it can be written",
        ));
    }
    let control = VOLUMES.claim(&directory, arguments.leave_terminal)?;
    let opening = OpenOptions { is_shared: true, is_read_only: allowed.read_only, ..OpenOptions::default() };
    let device = super::open_with(&arguments.disk, &arguments.engine, opening).await?;
    let label = super::label(&arguments.disk, &device).await?;
    let tls = match &arguments.tls_ca {
        Some(ca) => {
            let identity = arguments.tls_cert.as_deref().zip(arguments.tls_key.as_deref());
            let tls = ClientTls::load(Some(ca), identity)?;
            arguments.tls_cert.as_deref().into_iter().for_each(crate::cert::note_end);
            Some(tls)
        }
        None => None,
    };
    let client = ClientOptions {
        servers: arguments.server.clone(),
        tls,
        volume: label.volume,
        host: host_name(),
        kind: 1,
        are_names_synced: allowed.sync_names,
        // A mount that changes nothing needs no inode numbers.
        are_names_local: allowed.local_names && !allowed.read_only,
    };
    let (memory_bytes, policy) = (arguments.memory, arguments.policy.clone());
    let cache = (memory_bytes > 0).then(|| CacheOptions {
        memory_bytes,
        policy,
        mode: WriteMode::ReadOnly,
        ..CacheOptions::default()
    });
    cache.as_ref().map_or(Ok(()), check_options)?;
    let source = arguments.source.clone().unwrap_or_default();
    let options = VolumeOptions { device, directory, client, cache, allowed, source };
    let volume =
        tokio::task::spawn_blocking(move || AttachedVolume::start(options)).await.context("mounting panicked")?;
    let volume = Arc::new(volume?);
    let requests = serve_control(&control, &volume, shown_servers(&arguments.server));
    if let Err(failure) = announce(arguments, &volume, &super::shown_name(&label)) {
        volume.unmount(true)?;
        finish(&volume).await?;
        return Err(failure);
    }
    requests.until_unmounted(VOLUMES, &*volume, &shutdown).await?;
    // The control socket is removed last: `umount` waits for that, so everything is committed when it returns.
    let finished = finish(&volume).await;
    VOLUMES.forget(volume.directory());
    control.stop().await;
    finished?;
    VOLUMES.note("unmounted");
    Ok(GOOD)
}

/// Returns the addresses of servers as a mount's command line has them.
fn shown_servers(servers: &[ServerAddress]) -> String {
    let shown: Vec<String> = servers.iter().map(ServerAddress::to_string).collect();
    shown.join(",")
}

/// Whether the kernel says that a block device cannot be written. It can be opened for writing all the same.
fn is_write_protected(disk: &str) -> bool {
    let Some(path) = disk.strip_prefix("disk:").and_then(|path| Path::new(path).canonicalize().ok()) else {
        return false;
    };
    let of_kernel = path.file_name().map(|name| Path::new("/sys/class/block").join(name).join("ro"));
    of_kernel.and_then(|path| std::fs::read_to_string(path).ok()).is_some_and(|text| text.trim() == "1")
}

/// Returns the name of this host.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unknown".to_owned() } else { name.chars().take(63).collect() }
}

/// Answers requests for the mounted volume on its control socket.
fn serve_control(control: &ControlServer, volume: &Arc<AttachedVolume>, server: String) -> UnmountRequests {
    let mut methods = ControlMethods::new();
    let of_status = volume.clone();
    methods.status(move || status(&of_status, &server));
    let requests = UnmountRequests::register(&mut methods);
    control.replace(methods);
    requests
}

/// Returns the status of a mount, as `nectary status` shows it.
fn status(volume: &AttachedVolume, server: &str) -> PartStatus {
    let figures = volume.figures();
    let session = figures.session;
    let mut status = PartStatus::healthy(super::MOUNT, &volume.directory().display().to_string());
    let is_unmounted = !is_volume(volume.directory()) && !*volume.ended().borrow();
    if let Some(reason) = &session.ended {
        let what = format!("session {} has ended: {reason}", session.session);
        let remedy = match is_unmounted {
            true => "end the programs that still use it: they get errors",
            false => "a new session begins by itself once the server answers",
        };
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    } else if let Some(trouble) = &session.trouble {
        let (what, remedy) = match trouble.is_reachable {
            true => ("the server answers, but the connection does not work", "see the cause, also in the server's log"),
            false => ("no connection", "start the server"),
        };
        let what = format!("{what}: {server}: {}", trouble.what);
        status =
            status.with_problem(PartHealth::Degraded, what, format!("{remedy}; what waits goes on by itself then"));
    }
    if is_unmounted {
        let what = left_behind(volume.held_elsewhere());
        let remedy = "it ends with its last user, or at SIGTERM";
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    if let Some(why) = &session.refusal {
        let what = format!(
            "{} calls failed because this mount and the server {server} do not understand each other; the last: {why}",
            session.refused
        );
        status = status.with_problem(PartHealth::Degraded, what, "use the same release of nectary on both hosts");
    }
    let (waits, works) = volume.long_waits(WAIT_SHOWN, server);
    with_waits(status, &waits, &works).with_detail(json!({
        "disk": volume.source(),
        "server": server,
        "session": session.session,
        "epoch": session.epoch,
        "operations": session.operations,
        "local_operations": session.local,
        "local_directories": session.local_directories,
        "questions": session.questions,
        "waiting": session.waiting,
        "reconnections": session.reconnections,
        "refused_calls": session.refused,
        "sessions_ended": figures.sessions_ended,
        "nodes": figures.nodes,
        "open_files": figures.handles,
        "waits": figures_of_waits(&waits, &works),
        "cache": figures.cache.map(|cache| {
            json!({
                "hits": cache.hits,
                "misses": cache.misses,
                "ahead_blocks": cache.ahead_blocks,
                "memory_bytes": cache.memory_bytes,
                "used_bytes": cache.used_bytes,
            })
        }),
    }))
}

fn announce(arguments: &VolumeMountArguments, volume: &AttachedVolume, name: &str) -> Result<(), CommandFailure> {
    let directory = volume.directory().display();
    let servers = shown_servers(&arguments.server);
    let what = format!("volume {name} of {} is mounted at {directory}, server {servers}", volume.source());
    VOLUMES.announce(volume.directory(), &what, arguments.leave_terminal)
}

/// Unmounts a volume.
pub fn umount(arguments: &VolumeUmountArguments) -> Result<u8, CommandFailure> {
    let directory = &std::path::absolute(&arguments.directory).context("cannot find the current directory")?;
    // A dead mount cannot be resolved, so its path is used as given.
    let wanted = directory.canonicalize().unwrap_or_else(|_| PathBuf::from(directory));
    let is_meant = |part: &RunningPart| {
        part.status.as_ref().is_ok_and(|status| status.component == super::MOUNT && Path::new(&status.name) == wanted)
    };
    let Some(part) = parts(&RuntimeDirectory::open()?, PATIENCE)?.into_iter().find(is_meant) else {
        if is_volume(directory) {
            VOLUMES.release_dead(directory)?;
            // Its process lives, and does not answer, or has another runtime directory.
            if is_volume(directory) {
                unmount_volume(directory, arguments.lazy)?;
            }
            return Ok(GOOD);
        }
        let message = format!("{}: no volume is mounted there", directory.display());
        return Err(CommandFailure::new(NOT_FOUND, message, "`nectary status` lists those that are"));
    };
    ask_to_unmount(&part, arguments.lazy)?;
    if arguments.lazy || is_gone(&part.path) {
        return Ok(GOOD);
    }
    let left = parts(&RuntimeDirectory::open()?, PATIENCE)?.into_iter().find(is_meant);
    let Some(Ok(status)) = left.map(|part| part.status) else { return Ok(GOOD) };
    let why = status.problems.first().map_or("it waits for the server or the disk", |problem| &problem.what);
    Err(CommandFailure::new(
        DEGRADED,
        format!("{}: it is unmounted, but not everything is committed yet: {why}", directory.display()),
        format!("process {} goes on with that; `nectary status` shows it until it has ended", status.pid),
    ))
}

/// Waits until the process has committed all data and removed its socket. `false`: it takes too long.
fn is_gone(socket: &Path) -> bool {
    let deadline = Instant::now() + UMOUNT_PATIENCE;
    while socket.exists() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}
