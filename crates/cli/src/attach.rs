//! `nectary attach` and `nectary detach`: a device as a block device of the kernel.
//!
//! Owns: the background process (the command starts itself again and waits until that process is ready), the control
//! socket of an attached device, and its reaction to signals. Leaves to others: attaching (`nectary-attach`).

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nectary_attach::{
    AttachOptions, Attachment, WAIT_SHOWN, holders, is_loop_path, leave_terminal, redirect_output, release_stale,
};
use nectary_block::{DeviceCounters, OpenOptions, format_size};
use nectary_buffer::CacheList;
use nectary_host::control::{RunningPart, parts, request};
use nectary_host::log::{self, LogLevel};
use nectary_host::{
    ControlFault, ControlLimits, ControlMethods, ControlServer, Error, FaultKind, PartHealth, PartStatus,
    RuntimeDirectory, Shutdown,
};
use nectary_ram::device::OpenDevices;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use crate::arguments::{AttachArguments, DetachArguments};
use crate::device::{engine, registry_listing};
use crate::exit::{BUSY, CommandFailure, DEGRADED, FAILED, GOOD, NOT_FOUND, opening};
use crate::live::cached::{ProcessCaches, with_unwritten};
use crate::live::methods;
use crate::long_waits::{figures as figures_of_waits, with_waits};
use crate::{output, runtime};

/// The longest time in which each part must answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest time of writing back and detaching.
const DETACH_PATIENCE: Duration = Duration::from_secs(600);

/// Attaches a device.
pub fn run(arguments: &AttachArguments) -> Result<u8, CommandFailure> {
    if arguments.foreground {
        return runtime()?.block_on(stay(arguments));
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).args(["--foreground", "--leave-terminal"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start itself again")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).context("cannot hear of the process in the background")?;
    }
    if line.is_empty() {
        // The background process has printed the error itself.
        let status = child.wait().context("cannot wait for the process in the background")?;
        return Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED));
    }
    output::text(&line)?;
    Ok(GOOD)
}

/// A request to detach.
struct DetachRequest {
    /// Whether data that cannot be written back may be lost.
    may_lose: bool,
    reply: oneshot::Sender<Result<Value, ControlFault>>,
    /// Completes when the control socket has accepted the answer; the socket must not be closed before.
    taken: oneshot::Receiver<()>,
}

/// Attaches a device and serves it until it is detached.
async fn stay(arguments: &AttachArguments) -> Result<u8, CommandFailure> {
    if arguments.leave_terminal {
        leave_terminal().context("cannot leave the terminal")?;
    }
    let shutdown = Shutdown::new();
    let _signals = shutdown.on_signals().context("cannot listen for signals")?;
    release_stale().iter().for_each(note);
    let open = OpenOptions {
        create_bytes: arguments.size,
        engine: engine(&arguments.engine),
        take_over: arguments.client.take_over,
        trust_remaining: arguments.client.trust_remaining,
        // A file that is to be created must be opened for writing.
        is_read_only: arguments.read_only && arguments.size.is_none(),
        pads_tail: true,
        ..OpenOptions::default()
    };
    let options = AttachOptions { read_only: arguments.read_only, open };
    // It can fail, so it comes before the device is opened, which may take it from another process.
    RuntimeDirectory::open()?;
    // Blocking is allowed here, because nothing else runs on this thread yet.
    let (caches, disks) = (CacheList::default(), OpenDevices::default());
    let registry = registry_listing(&caches, &disks);
    let attachment = Arc::new(Attachment::start(registry, &arguments.spec, options).map_err(opening)?);
    for refused in attachment.refused() {
        let message = format_args!("{refused}: it may stand still when memory is short; give it CAP_SYS_RESOURCE");
        log::write(LogLevel::Warning, "attach", message);
    }
    let leaving = watch::channel(false);
    let (asked, mut requests) = mpsc::channel(4);
    let control = match start_control(arguments, &attachment, (caches, disks), asked, leaving.1) {
        Ok(control) => control,
        Err(failure) => {
            attachment.release_when_unused()?;
            tokio::task::spawn_blocking(move || attachment.finish()).await??;
            return Err(failure);
        }
    };
    announce(arguments, &attachment)?;
    let ended = until_the_end(&attachment, &shutdown, &leaving.0, &mut requests).await;
    control.stop().await;
    ended?;
    note("detached");
    Ok(GOOD)
}

/// Waits until a signal, a request or the kernel ends the attachment.
async fn until_the_end(
    attachment: &Arc<Attachment>,
    shutdown: &Shutdown,
    leaving: &watch::Sender<bool>,
    requests: &mut mpsc::Receiver<DetachRequest>,
) -> Result<(), CommandFailure> {
    let mut ended = attachment.ended();
    loop {
        tokio::select! {
            _ = ended.wait_for(|ended| *ended) => return Ok(finish(attachment).await?),
            () = shutdown.requested(), if !*leaving.borrow() => {
                leaving.send_replace(true);
                if let Err(error) = release(attachment, false).await {
                    let wait = "it will be detached as soon as it is not; a second signal ends this process at once";
                    note(format_args!("{error}; {wait}"));
                    attachment.release_when_unused()?;
                }
            }
            Some(DetachRequest { may_lose, reply, taken }) = requests.recv() => {
                let detached = match release(attachment, may_lose).await {
                    Ok(()) => finish(attachment).await,
                    Err(error) => {
                        let _ = reply.send(Err(not_released(&error)));
                        continue;
                    }
                };
                let _ = reply.send(answer(attachment, &detached));
                let _ = taken.await;
                return Ok(detached?);
            }
        }
    }
}

async fn release(attachment: &Arc<Attachment>, may_lose: bool) -> Result<(), nectary_attach::Error> {
    blocking(attachment, if may_lose { Attachment::release_or_lose } else { Attachment::release }).await
}

/// Returns the answer to a failed request to detach; nothing has changed.
fn not_released(error: &nectary_attach::Error) -> ControlFault {
    match error {
        nectary_attach::Error::WriteBack { .. } => {
            let remedy = "mend what is below and detach it again; with --force it is detached and loses that";
            ControlFault::new(FaultKind::Failed, error.to_string(), remedy)
        }
        _ => ControlFault::new(FaultKind::Busy, error.to_string(), "unmount it, then detach it again"),
    }
}

/// Returns the answer to a request to detach after the release. A failure of the last flush is no fault of the request:
/// the device is detached.
fn answer(attachment: &Attachment, detached: &Result<(), nectary_attach::Error>) -> Result<Value, ControlFault> {
    match detached {
        Ok(()) => Ok(Value::Null),
        Err(error) if attachment.is_attached() => {
            let remedy = "`nectary status` lists what is attached; attach it again to release what is left";
            Err(ControlFault::new(FaultKind::Failed, error.to_string(), remedy))
        }
        Err(error) => Ok(json!({ "failed": error.to_string() })),
    }
}

async fn finish(attachment: &Arc<Attachment>) -> Result<(), nectary_attach::Error> {
    blocking(attachment, Attachment::finish).await
}

/// Runs a step that waits for the kernel on another thread, so that the control socket still answers.
async fn blocking(
    attachment: &Arc<Attachment>,
    step: impl FnOnce(&Attachment) -> Result<(), nectary_attach::Error> + Send + 'static,
) -> Result<(), nectary_attach::Error> {
    let attachment = attachment.clone();
    match tokio::task::spawn_blocking(move || step(&attachment)).await {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

fn start_control(
    arguments: &AttachArguments,
    attachment: &Arc<Attachment>,
    (caches, disks): (CacheList, OpenDevices),
    asked: mpsc::Sender<DetachRequest>,
    leaving: watch::Receiver<bool>,
) -> Result<ControlServer, CommandFailure> {
    let name = attachment.path().display().to_string();
    let mut methods = ControlMethods::new();
    let (given, of_status) = (arguments.spec.clone(), attachment.clone());
    methods.status(move || status(&of_status, &given, *leaving.borrow()));
    methods.register("detach", "releases the block device, unless it is in use", move |parameters| {
        let (asked, may_lose) = (asked.clone(), parameters["force"].as_bool().unwrap_or(false));
        async move {
            let (reply, answer) = oneshot::channel();
            let (_taking, taken) = oneshot::channel();
            let gone = || ControlFault::new(FaultKind::Failed, "it is being detached already", "wait a moment");
            asked.send(DetachRequest { may_lose, reply, taken }).await.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        }
    });
    methods::register(ProcessCaches::Devices(caches, name.clone()), &mut methods);
    crate::ram::register(&disks, &mut methods);
    let part = format!("attach-{}", name.trim_start_matches("/dev/"));
    Ok(ControlServer::start(&RuntimeDirectory::open()?, &part, methods, ControlLimits::default())?)
}

/// Returns the status of an attached device, as `nectary status` shows it.
fn status(attachment: &Attachment, given: &str, is_leaving: bool) -> PartStatus {
    let name = attachment.path().display().to_string();
    let (figures, spec) = (attachment.figures(), attachment.device_spec());
    let mut status = PartStatus::healthy("attach", &name);
    if figures.failed > 0 {
        let what = format!("{spec}: {} requests failed", figures.failed);
        status = status.with_problem(PartHealth::Degraded, what, "see its messages; check the file system on it");
    }
    if is_leaving {
        let what = format!("it is to be detached, but {}", holders(attachment.path()));
        status = status.with_problem(PartHealth::Degraded, what, "unmount it or close it");
    }
    status = with_donors(status, &attachment.device_figures(), &spec);
    status = with_servers(status, &attachment.device_figures(), &spec);
    status = with_unwritten(status, &attachment.device_figures(), &spec);
    let waits = attachment.long_waits(WAIT_SHOWN);
    status = with_waits(status, &waits, &[]);
    let size = attachment.geometry().size_bytes;
    let devices: Vec<Value> = attachment.device_figures().iter().map(device_figures).collect();
    status.with_detail(json!({
        "given": given,
        "spec": spec,
        "size_bytes": size,
        "block_bytes": attachment.geometry().block_bytes,
        "requests": figures,
        "waits": figures_of_waits(&waits, &[]),
        "devices": devices,
    }))
}

/// Adds the problems of donors to a status, if the stack of this SPEC has a network RAM disk.
pub fn with_donors(mut status: PartStatus, figures: &[DeviceCounters], spec: &str) -> PartStatus {
    for ram in figures.iter().filter(|figures| figures.device == "ram") {
        if ram.get("mirror").is_some() {
            status = crate::ram::mirror::with_mirror(status, ram, figures, spec);
            continue;
        }
        let count = |name: &str| ram.get(name).unwrap_or_default();
        let (all, up, lost) = (count("donors"), count("donors_up"), count("donors_lost"));
        if lost > 0 {
            let what = format!("{lost} of {all} donors are lost: their blocks and every flush give I/O errors");
            let remedy = "save what can still be read, then delete the device and make it again (docs/ram.md)";
            status = status.with_problem(PartHealth::Degraded, what, remedy);
        }
        let away = all.saturating_sub(up + lost);
        if away > 0 {
            let what = format!("{away} of {all} donors do not answer: requests to them wait, then fail");
            status = status.with_problem(PartHealth::Degraded, what, "see whether they run and can be reached");
        }
    }
    status
}

/// Adds the problems of NBD servers to a status, if the stack of this SPEC has exports of them.
pub fn with_servers(mut status: PartStatus, figures: &[DeviceCounters], spec: &str) -> PartStatus {
    for nbd in figures.iter().filter(|figures| figures.device == "nbd") {
        if nbd.get("latched") > Some(0) {
            let what = format!("{spec}: a connection was lost, or a flush failed: writes and flushes are refused");
            let remedy =
                "what was written since the last flush may be lost: open the device again, and check what is on it";
            status = status.with_problem(PartHealth::Broken, what, remedy);
        }
        if nbd.get("connections_live") == Some(0) {
            let what = format!("{spec}: the NBD server is away: requests wait, then fail (patience=)");
            status = status.with_problem(PartHealth::Degraded, what, "see whether it runs and can be reached");
        }
    }
    status
}

/// Returns the figures of one device of the stack.
pub fn device_figures(figures: &DeviceCounters) -> Value {
    let values: serde_json::Map<String, Value> =
        figures.values.iter().map(|&(name, value)| (name.to_owned(), Value::from(value))).collect();
    json!({ "device": figures.device, "figures": values })
}

fn announce(arguments: &AttachArguments, attachment: &Attachment) -> Result<(), CommandFailure> {
    let path = attachment.path().display();
    let size = format_size(attachment.geometry().size_bytes);
    if !arguments.leave_terminal {
        note(format_args!("{} of {size} is {path}; `nectary detach {path}` or Ctrl-C detaches it", attachment.spec()));
    }
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{path}").and_then(|()| stdout.flush()).context("cannot write to the standard output")?;
    if arguments.leave_terminal {
        let name = attachment.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let log = RuntimeDirectory::open()?.path().join(format!("attach-{name}.log"));
        redirect_output(&log).with_context(|| format!("cannot write to {}", log.display()))?;
        note(format_args!("{} of {size} is {path}", attachment.spec()));
    }
    Ok(())
}

fn note(message: impl Display) {
    log::write(LogLevel::Note, "attach", format_args!("{message}"));
}

/// Detaches a device.
pub fn detach(arguments: &DetachArguments) -> Result<u8, CommandFailure> {
    let target = &arguments.device;
    let parts = parts(&RuntimeDirectory::open()?, PATIENCE)?;
    let attached: Vec<(&RunningPart, &PartStatus)> = parts.iter().filter_map(of_attachment).collect();
    let Some((part, _)) = attached.iter().find(|(_, status)| is_meant(status, target)) else {
        return not_attached(target, &attached);
    };
    match request(&part.path, "detach", json!({ "force": arguments.force }), DETACH_PATIENCE) {
        Ok(answer) => match answer["failed"].as_str() {
            None => Ok(GOOD),
            Some(why) => {
                let remedy = "it is detached; if a flush failed, what was written since the last one may be lost";
                Err(CommandFailure::new(DEGRADED, why, remedy))
            }
        },
        Err(Error::Fault { fault, .. }) => {
            let code = if fault.kind == FaultKind::Busy { BUSY } else { FAILED };
            Err(CommandFailure::new(code, fault.message, fault.remedy))
        }
        Err(error) => Err(error.into()),
    }
}

fn of_attachment(part: &RunningPart) -> Option<(&RunningPart, &PartStatus)> {
    let status = part.status.as_ref().ok()?;
    (status.component == "attach").then_some((part, status))
}

/// Whether the user means this attached device, by its block device, or by its SPEC as given or as parsed.
fn is_meant(status: &PartStatus, target: &str) -> bool {
    status.name == target || ["given", "spec"].iter().any(|key| status.detail[*key] == target)
}

/// Releases what a killed process left behind; otherwise lists the attached devices.
fn not_attached(target: &str, attached: &[(&RunningPart, &PartStatus)]) -> Result<u8, CommandFailure> {
    let released = release_stale();
    released.iter().for_each(note);
    if is_loop_path(target) && released.iter().any(|line| line.starts_with(&format!("{target}: released"))) {
        return Ok(GOOD);
    }
    let names: Vec<&str> = attached.iter().map(|(_, status)| status.name.as_str()).collect();
    let remedy = match names.is_empty() {
        true => "nothing is attached".to_owned(),
        false => format!("attached are {}", names.join(", ")),
    };
    Err(CommandFailure::new(NOT_FOUND, format!("{target} is not attached"), remedy))
}
