//! `nectary volume serve` and `release`.
//!
//! Owns: the check of who may connect, the control socket of a server, and its reaction to signals. Leaves to others:
//! serving (`nectary-volume`).

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use nectary_block::{SharedDevice, format_size};
use nectary_host::control::{RunningPart, parts, request};
use nectary_host::log::{self, LogLevel};
use nectary_host::tls::ServerTls;
use nectary_host::{
    ControlFault, ControlLimits, ControlMethods, ControlServer, Error, FaultKind, PartHealth, PartStatus,
    RuntimeDirectory, Shutdown,
};
use nectary_volume::format::SessionState;
use nectary_volume::journal::Error as JournalError;
use nectary_volume::protocol::{RefusalCode, ServerRefusal as Refusal};
use nectary_volume::server::{
    LongWait, MetadataServer, ServerError, ServerHandle, ServerOptions, ServerOverview, WAIT_SHOWN, WaitSubject,
};
use serde_json::{Value, json};

use super::mount::host_name;
use crate::arguments::{VolumeReleaseArguments, VolumeServeArguments};
use crate::exit::{BUSY, CommandFailure, FAILED, GOOD, NOT_FOUND, USAGE};
use crate::output;
use crate::services::service_manager;

/// The longest time in which each part must answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// If more than this part of a disk is quarantined for earlier servers, the status reports a problem.
const QUARANTINED_PART: u64 = 16;

/// Serves a volume until a signal arrives.
pub async fn run(arguments: &VolumeServeArguments) -> Result<u8, CommandFailure> {
    let shutdown = Shutdown::new();
    let _signals = shutdown.on_signals().context("cannot listen for signals")?;
    let tls = match (&arguments.tls_cert, &arguments.tls_key) {
        (Some(certificate), Some(key)) => {
            let tls = ServerTls::load(certificate, key, arguments.tls_client_ca.as_deref())?;
            crate::cert::note_end(certificate);
            Some(tls)
        }
        _ => None,
    };
    check_public(arguments, tls.as_ref())?;
    let device = super::open(&arguments.disk, &arguments.engine, None, true).await?;
    let label = super::label(&arguments.disk, &device).await?;
    let name = format!("{} on {}", super::shown_name(&label), arguments.disk);
    let previous_gone = alone(&device, arguments).await?;
    // Everything that can fail comes before leadership: a start that fails leaves the leader alone.
    let leading = Leading::default();
    let control = start_control(&leading, arguments.number, name.clone(), super::identity(&label))?;
    let options = ServerOptions {
        listen: arguments.listen.clone(),
        tls,
        number: arguments.number,
        host: host_name(),
        previous_gone,
        said_gone: arguments.confirm_gone.clone(),
    };
    let starting = MetadataServer::start(device, options);
    let server = tokio::select! {
        started = starting => started.map_err(|error| not_started(&arguments.disk, error))?,
        () = shutdown.requested() => return Ok(GOOD),
    };
    let _ = leading.set(server.handle());
    let shown = output::text(&server.addresses().iter().map(|address| format!("{address}\n")).collect::<String>());
    service_manager::ready(&format!("leads {name}"));
    let ended = match &shown {
        Ok(()) => tokio::select! {
            () = shutdown.requested() => Ok(()),
            ended = server.ended() => Err(ended),
        },
        // Nobody would know where it listens.
        Err(_) => Ok(()),
    };
    control.stop().await;
    let stopped = server.stop().await;
    shown?;
    if let Err(reason) = ended {
        return Err(CommandFailure::new(
            FAILED,
            format!("{name}: {reason}"),
            "start the server again; clients wait for it",
        ));
    }
    stopped?;
    log::write(LogLevel::Note, "volume", format_args!("{name}: everything is durable, the lease is given up"));
    Ok(GOOD)
}

/// The server, once it leads.
type Leading = Arc<OnceLock<ServerHandle>>;

/// Explains why a server does not start.
fn not_started(disk: &str, error: ServerError) -> CommandFailure {
    match error {
        ServerError::Journal(JournalError::Led { server, host }) => CommandFailure::new(
            BUSY,
            format!("{disk}: server {server} on {host} leads: it renews its lease"),
            "mount from that server, or stop it first; `nectary volume info DISK` names all servers",
        ),
        ServerError::TooFewDescriptors(what) => {
            CommandFailure::new(FAILED, what, "raise the limit: `ulimit -Hn`, or LimitNOFILE= in a unit of systemd")
        }
        error => error.into(),
    }
}

/// Refuses to start if another process of this host serves the volume with the same server number. Returns whether it
/// is certain that no such process runs; without a descriptor of the device it is not.
async fn alone(device: &SharedDevice, arguments: &VolumeServeArguments) -> Result<bool, CommandFailure> {
    let number = arguments.number;
    nectary_volume::server::alone(device, number).await.map_err(|error| match error.kind {
        nectary_block::DeviceErrorKind::Busy => CommandFailure::new(
            BUSY,
            format!("{}: a server with number {number} serves this volume on this host already", arguments.disk),
            "`nectary status` shows it, unless it is in a container: stop it first, or mount from it; a stand-by needs \
             another `--number`",
        ),
        _ => error.into(),
    })
}

/// Refuses to listen on addresses that other machines can reach if clients need no certificate.
fn check_public(arguments: &VolumeServeArguments, tls: Option<&ServerTls>) -> Result<(), CommandFailure> {
    let is_closed = tls.is_some_and(ServerTls::wants_certificates);
    match arguments.listen.iter().find(|address| address.is_public()).filter(|_| !is_closed && !arguments.insecure) {
        None => Ok(()),
        Some(address) => Err(CommandFailure::new(
            USAGE,
            format!("{address}: everybody who reaches this address could read and change everything"),
            "give --tls-cert, --tls-key and --tls-client-ca (`nectary cert` makes them), or --insecure on a network \
             that is trusted",
        )),
    }
}

fn start_control(
    leading: &Leading,
    number: u32,
    name: String,
    identity: String,
) -> Result<ControlServer, CommandFailure> {
    let mut methods = ControlMethods::new();
    let (of_status, of_release) = (leading.clone(), leading.clone());
    let part = format!("volume-{identity}-{number}");
    methods.status(move || {
        let overview = of_status.get().map(ServerHandle::overview);
        status(&name, (&identity, number), overview.is_some(), &overview.unwrap_or_default())
    });
    methods.register("release", "session: its host writes nothing any more", move |params| {
        let (server, session) = (of_release.get().cloned(), params["session"].as_u64());
        async move {
            let Some(server) = server else {
                return Err(ControlFault::new(FaultKind::Busy, "it does not lead yet", "try again in a moment"));
            };
            let Some(session) = session else {
                return Err(ControlFault::new(
                    FaultKind::Failed,
                    "there is no session in the request",
                    "give its number",
                ));
            };
            server.release(session).await.map(|()| Value::Null).map_err(|error| not_released(&error))
        }
    });
    Ok(ControlServer::start(&RuntimeDirectory::open()?, &part, methods, ControlLimits::default())?)
}

/// Returns the answer to a failed request to release a session.
fn not_released(failure: &Refusal) -> ControlFault {
    let (kind, remedy) = match failure.code {
        RefusalCode::Conflict => (
            FaultKind::Busy,
            "unmount it on its host; if its mount was killed or its host is gone, try again 10 s after that",
        ),
        RefusalCode::Ended => (FaultKind::NotFound, "`nectary volume info DISK` lists the sessions"),
        _ => (FaultKind::Failed, "`nectary volume info DISK` lists the sessions"),
    };
    ControlFault::new(kind, failure.words.clone(), remedy)
}

/// Returns the status of a server, as `nectary status` shows it.
fn status(name: &str, (identity, number): (&str, u32), leads: bool, overview: &ServerOverview) -> PartStatus {
    let mut status = PartStatus::healthy(super::SERVER, name);
    let sessions: Vec<Value> = overview
        .sessions
        .iter()
        .map(|(number, session)| json!({ "session": number, "host": session.host, "state": state_name(session.state) }))
        .collect();
    if !overview.silent.is_empty() {
        let silent: Vec<String> = overview.silent.iter().map(|(number, host)| format!("{number} of {host}")).collect();
        let what = format!("no word from session {}: what others free stays used meanwhile", silent.join(", "));
        let remedy = "it ends when somebody needs what it holds; once its mount is gone for sure, `nectary volume \
                      release DISK SESSION` frees all";
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    if !overview.set_aside.is_empty() {
        let ended: Vec<String> =
            overview.set_aside.iter().map(|(number, host)| format!("{number} of {host}")).collect();
        let what =
            format!("session {} was ended, but its process may still write: its space is set aside", ended.join(", "));
        let remedy = "the space is free when the process has ended, if a server or a mount on its host can tell; once it \
                      is gone for sure, `nectary volume release DISK SESSION` frees it";
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    if overview.is_short {
        let what = "there is no room for a checkpoint: the server ends when its journal is full";
        status = status.with_problem(PartHealth::Degraded, what.to_owned(), "remove files");
    }
    status = with_waits(status, overview);
    // A few quarantined segments, which remain after a server moves to another host, are no problem.
    if overview.quarantined > overview.blocks / QUARANTINED_PART {
        let held = format_size(overview.quarantined * super::BLOCK);
        let what = format!("{held} are held back for hosts of earlier servers, which may still write there");
        let remedy = "`nectary volume info DISK` names them; start with `--confirm-gone HOST` once one is switched off";
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    let longest: Vec<Value> = overview
        .waits
        .longest
        .iter()
        .map(|wait| {
            json!({
                "what": shown_wait(wait),
                "session": wait.session,
                "host": wait.host,
                "inode": wait.inode,
                "seconds": wait.age.as_secs(),
            })
        })
        .collect();
    let waits = json!({ "requests": overview.waits.requests, "locks": overview.waits.locks, "longest": longest });
    status.with_detail(json!({
        "volume": identity,
        "number": number,
        "leads": leads,
        "epoch": overview.epoch,
        "operations": overview.operations,
        "questions": overview.questions,
        "appends": overview.appends,
        "checkpoints": overview.checkpoints,
        "inodes": overview.inodes,
        "free_bytes": overview.free.saturating_sub(overview.reserved) * super::BLOCK,
        "reserved_bytes": overview.reserved * super::BLOCK,
        "quarantined_bytes": overview.quarantined * super::BLOCK,
        "size_bytes": overview.blocks * super::BLOCK,
        "sessions": sessions,
        "sessions_expected": overview.expected,
        "tokens": { "held": overview.tokens.held, "waiting": overview.tokens.waiting },
        "kept": { "held": overview.tokens.kept, "recalls": overview.tokens.recalls },
        "locks": { "held": overview.locks.0, "waiting": overview.locks.1 },
        "local_names": {
            "operations": overview.locals.0.operations,
            "held": overview.locals.1,
            "grants": overview.locals.0.grants,
            "recalls": overview.locals.0.recalls,
            "fallbacks": overview.locals.0.fallbacks,
        },
        "waits": waits,
    }))
}

/// Says what a wait at the server is for.
fn shown_wait(wait: &LongWait) -> String {
    let LongWait { subject, session, host, inode, .. } = wait;
    let session = format!("session {session} of {host}");
    match subject {
        WaitSubject::Token => format!("{session} waits for the token of inode {inode}"),
        WaitSubject::Commit => format!("{session} waits until others have committed what they wrote to inode {inode}"),
        WaitSubject::Lock => format!("{session} waits for a file lock on inode {inode}"),
        WaitSubject::EarlyLock => format!("{session} waits for a file lock until every host has named its locks again"),
        WaitSubject::Push => {
            format!("{session} waits until the hosts that read inode {inode} directly know its new end")
        }
        WaitSubject::Storing => format!("{session} waits for an answer that is not stored on the disk yet"),
        WaitSubject::Asked => format!("{session} does not give the token of inode {inode} back, or does not commit"),
        WaitSubject::Expected => format!("{session} has not said what it held before the server started"),
    }
}

/// Adds problems to the status of a server at which something has waited for long, other than for a file lock.
fn with_waits(mut status: PartStatus, overview: &ServerOverview) -> PartStatus {
    let waits = &overview.waits;
    let is_other = |wait: &&LongWait| matches!(wait.subject, WaitSubject::Asked | WaitSubject::Expected);
    let longest = waits.longest.iter().find(is_other).or(waits.longest.iter().find(|wait| !wait.subject.is_lock()));
    if let Some(wait) = longest {
        let others = match waits.requests {
            0 | 1 => String::new(),
            requests => format!("{requests} requests have waited for longer than {} s; ", WAIT_SHOWN.as_secs()),
        };
        let remedy = match wait.subject {
            WaitSubject::Storing => "check the disk and the way to it",
            WaitSubject::Asked | WaitSubject::Expected => {
                "see `nectary status` and the log on that host; a session that does not answer is ended by itself"
            }
            _ => "see `nectary status --verbose`, also on the other hosts",
        };
        let what = format!("{others}for {} s: {}", wait.age.as_secs(), shown_wait(wait));
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    // The server makes an overview several times a second, unless its own work does not end.
    let busy = overview.made_at.map_or(0, |made_at| made_at.elapsed().as_secs());
    if busy > WAIT_SHOWN.as_secs() {
        let what =
            format!("for {busy} s the server has waited for its disk, and answers nothing: a checkpoint, or its lease");
        status = status.with_problem(PartHealth::Degraded, what, "check the disk and the way to it");
    }
    status
}

/// Returns the word for the state of a session.
pub fn state_name(state: SessionState) -> &'static str {
    match state {
        SessionState::Active => "active",
        SessionState::Suspended => "suspended",
        SessionState::Ended => "ended",
        SessionState::ConfirmedGone => "gone",
    }
}

/// Tells a server that a session's host writes nothing any more.
pub fn release(arguments: &VolumeReleaseArguments) -> Result<u8, CommandFailure> {
    let identity = crate::runtime()?.block_on(async {
        let engine = crate::arguments::EngineArguments { io: crate::arguments::DeviceIoEngine::Auto };
        let device = super::open(&arguments.disk, &engine, None, true).await?;
        Ok::<_, CommandFailure>(super::identity(&super::label(&arguments.disk, &device).await?))
    })?;
    let is_meant = |part: &RunningPart| {
        part.status.as_ref().is_ok_and(|status| {
            status.component == super::SERVER && status.detail["volume"].as_str() == Some(identity.as_str())
        })
    };
    let mut found: Vec<RunningPart> =
        parts(&RuntimeDirectory::open()?, PATIENCE)?.into_iter().filter(is_meant).collect();
    // One of them leads; another one may wait for the end of its lease.
    found.sort_by_key(|part| !part.status.as_ref().is_ok_and(|status| status.detail["leads"] == true));
    let Some(part) = found.first() else {
        let message = format!("{}: no server of it runs on this host", arguments.disk);
        return Err(CommandFailure::new(NOT_FOUND, message, "run this on the host of `nectary volume serve`"));
    };
    match request(&part.path, "release", json!({ "session": arguments.session }), PATIENCE) {
        Ok(_) => Ok(GOOD),
        Err(Error::Fault { fault, .. }) => {
            let code = match fault.kind {
                FaultKind::Busy => BUSY,
                FaultKind::NotFound => NOT_FOUND,
                _ => FAILED,
            };
            Err(CommandFailure::new(code, format!("{}: {}", arguments.disk, fault.message), fault.remedy))
        }
        Err(error) => Err(error.into()),
    }
}
