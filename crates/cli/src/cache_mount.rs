//! `nectary cache mount`, `umount` and `stat`: a directory through the cache.
//!
//! Owns: the background process, the control socket of a mounted cache, and its reaction to signals. Leaves to others:
//! mounting (`nectary-attach`), caching (`nectary-buffer`).

use std::fmt::{Display, Write as _};
use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nectary_attach::{Tree, TreeOptions, is_tree, leave_terminal, redirect_output, unmount_tree};
use nectary_block::format_size;
use nectary_buffer::{Mode, Options};
use nectary_host::control::{Part, parts, request};
use nectary_host::log::{self, Level};
use nectary_host::{
    ControlServer, Error, Fault, FaultKind, Limits, Methods, RuntimeDirectory, Shutdown, State, Status,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::arguments::{CacheMountArguments, CacheStatArguments, CacheUmountArguments};
use crate::exit::{BUSY, FAILED, Failure, GOOD, NOT_FOUND};
use crate::live::cached::Cached;
use crate::live::methods::register;
use crate::{output, runtime};

/// The component's name in a status.
const COMPONENT: &str = "cache";
/// How long each part may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long unmounting may take.
const UMOUNT_PATIENCE: Duration = Duration::from_secs(60);
/// A mounted cache that uses more than this share of its descriptors is degraded. *Units*: percent.
const DESCRIPTORS_PERCENT_MAX: u64 = 80;

/// Mounts a directory.
pub fn mount(arguments: &CacheMountArguments) -> Result<u8, Failure> {
    if arguments.background { in_background() } else { runtime()?.block_on(stay(arguments)) }
}

/// Runs this command again in the background, and returns once that process has printed its first line.
pub fn in_background() -> Result<u8, Failure> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    let words =
        std::env::args_os().skip(1).map(|word| if word == "--background" { "--leave-terminal".into() } else { word });
    let mut child =
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start itself again")?;
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

/// A request to unmount.
struct Request {
    lazily: bool,
    reply: oneshot::Sender<Result<(), nectary_attach::Error>>,
    /// Completes when the control socket has accepted the answer; the socket must not be closed before.
    taken: oneshot::Receiver<()>,
}

/// Mounts a directory and serves it until it is unmounted.
async fn stay(arguments: &CacheMountArguments) -> Result<u8, Failure> {
    if arguments.leave_terminal {
        leave_terminal().context("cannot leave the terminal")?;
    }
    let shutdown = Shutdown::new();
    let _signals = shutdown.on_signals().context("cannot listen for signals")?;
    release_dead(&std::path::absolute(&arguments.directory).context("cannot find the current directory")?)?;
    let (source, directory) = (found("SOURCE", &arguments.source)?, found("DIR", &arguments.directory)?);
    let mode: Mode = arguments.mode.parse().map_err(|error: String| Failure::new(FAILED, error, ""))?;
    let block_bytes = u32::try_from(arguments.block).unwrap_or(u32::MAX);
    let cache = Options {
        memory_bytes: arguments.memory,
        policy: arguments.policy.clone(),
        block_bytes,
        mode,
        ..Options::default()
    };
    let is_exclusive = arguments.exclusive;
    let tree = Arc::new(Tree::start(TreeOptions { source, directory, cache, is_exclusive })?);
    let (asked, mut requests) = mpsc::channel(4);
    let control = match start_control(&tree, asked) {
        Ok(control) => control,
        Err(failure) => {
            tree.unmount(true)?;
            finish(&tree).await?;
            return Err(failure);
        }
    };
    announce(arguments, &tree)?;
    let mut ended = tree.ended();
    let mut is_leaving = false;
    loop {
        tokio::select! {
            _ = ended.wait_for(|ended| *ended) => break,
            () = shutdown.requested(), if !is_leaving => {
                is_leaving = true;
                if let Err(error) = tree.unmount(false) {
                    note(format_args!("{error}; it ends with its last user, a second signal ends this process at once"));
                    tree.unmount(true)?;
                }
            }
            Some(Request { lazily, reply, taken }) = requests.recv() => {
                let _ = reply.send(tree.unmount(lazily));
                let _ = taken.await;
            }
        }
    }
    control.stop().await;
    finish(&tree).await?;
    note("unmounted");
    Ok(GOOD)
}

/// The canonical path of an existing directory.
fn found(what: &str, path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let message = format!("{what} {}: there is no such directory", path.display());
            Failure::new(NOT_FOUND, message, "check the path; where it is a mount, see whether it is mounted")
        }
        _ => anyhow::Error::from(error).context(format!("{what} {}", path.display())).into(),
    })
}

async fn finish(tree: &Arc<Tree>) -> Result<(), Failure> {
    let tree = tree.clone();
    let ended = tokio::task::spawn_blocking(move || tree.finish()).await;
    Ok(ended.context("waiting for the end panicked")??)
}

/// Removes the mount of a killed process from the directory, because every request to it fails.
fn release_dead(directory: &Path) -> Result<(), Failure> {
    let is_dead = std::fs::metadata(directory).is_err_and(|error| error.kind() == std::io::ErrorKind::NotConnected);
    if is_dead && is_tree(directory) {
        unmount_tree(directory, true)?;
        note(format_args!("{}: unmounted, its process is gone", directory.display()));
    }
    Ok(())
}

fn start_control(tree: &Arc<Tree>, asked: mpsc::Sender<Request>) -> Result<ControlServer, Failure> {
    let mut methods = Methods::new();
    let of_status = tree.clone();
    methods.status(move || status(&of_status));
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
    register(Cached::Tree(tree.clone()), &mut methods);
    let part = part_name(&tree.options().directory);
    Ok(ControlServer::start(&RuntimeDirectory::open()?, &part, methods, Limits::default())?)
}

/// A name for the socket of a directory.
fn part_name(directory: &Path) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    directory.hash(&mut hasher);
    format!("cache-{:016x}", hasher.finish())
}

/// The status of a mounted cache, as `nectary status` shows it.
fn status(tree: &Tree) -> Status {
    let (options, figures, now) = (tree.options(), tree.figures(), tree.cache().options());
    let mut status = Status::healthy(COMPONENT, &options.directory.display().to_string());
    if figures.nodes as u64 * 100 > figures.descriptors_max * DESCRIPTORS_PERCENT_MAX {
        let what = format!("{} of {} open files are taken", figures.nodes, figures.descriptors_max);
        status =
            status.with_problem(State::Degraded, what, "raise the limit of open files (ulimit -Hn), mount it again");
    }
    if figures.cache.read_errors > 0 {
        let what = format!("{}: {} reads failed", options.source.display(), figures.cache.read_errors);
        status = status.with_problem(State::Degraded, what, "see its messages; check the disk below");
    }
    let cache: serde_json::Map<String, Value> =
        figures.cache.values().into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
    let streams: Vec<Value> = figures
        .streams
        .iter()
        .map(|stream| {
            json!({
                "stream": stream.stream.map(|stream| stream.0),
                "hits": stream.hits,
                "misses": stream.misses,
                "saved": stream.saved,
                "lost": stream.lost,
                "replacement": stream.replacement,
            })
        })
        .collect();
    status.with_detail(json!({
        "source": options.source.display().to_string(),
        "mode": now.mode.name(),
        "policy": now.policy,
        "block_bytes": now.block_bytes,
        "memory_bytes": now.memory_bytes,
        "nodes": figures.nodes,
        "cache": cache,
        "streams": streams,
    }))
}

fn announce(arguments: &CacheMountArguments, tree: &Tree) -> Result<(), Failure> {
    let options = tree.options();
    let (source, directory) = (options.source.display(), options.directory.display());
    let what = format!(
        "{source} is shown at {directory} with {} of cache, {}, {}",
        format_size(options.cache.memory_bytes),
        options.cache.policy,
        options.cache.mode
    );
    if !arguments.leave_terminal {
        note(format_args!("{what}; `nectary cache umount {directory}` or Ctrl-C unmounts it"));
    }
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{directory}").and_then(|()| stdout.flush()).context("cannot write to the standard output")?;
    if arguments.leave_terminal {
        let log = RuntimeDirectory::open()?.path().join(format!("{}.log", part_name(&options.directory)));
        redirect_output(&log).with_context(|| format!("cannot write to {}", log.display()))?;
        note(what);
    }
    Ok(())
}

fn note(message: impl Display) {
    log::write(Level::Note, COMPONENT, format_args!("{message}"));
}

/// All mounted caches, or the one at `directory`.
fn mounted(directory: Option<&Path>) -> Result<Vec<(Part, Status)>, Failure> {
    // A dead mount cannot be resolved, so its path is used as given.
    let wanted = directory.map(|path| path.canonicalize().unwrap_or_else(|_| PathBuf::from(path)));
    let found = parts(&RuntimeDirectory::open()?, PATIENCE)?.into_iter().filter_map(|part| {
        let status = part.status.as_ref().ok()?.clone();
        let is_meant = wanted.as_ref().is_none_or(|wanted| Path::new(&status.name) == wanted);
        (status.component == COMPONENT && is_meant).then_some((part, status))
    });
    Ok(found.collect())
}

/// Unmounts a cache.
pub fn umount(arguments: &CacheUmountArguments) -> Result<u8, Failure> {
    let directory = &std::path::absolute(&arguments.directory).context("cannot find the current directory")?;
    let found = mounted(Some(directory))?;
    let Some((part, _)) = found.first() else {
        if is_tree(directory) {
            release_dead(directory)?;
            return Ok(GOOD);
        }
        let message = format!("{}: no cache is mounted there", directory.display());
        return Err(Failure::new(NOT_FOUND, message, "`nectary cache stat` lists those that are"));
    };
    match request(&part.path, "umount", json!({ "lazy": arguments.lazy }), UMOUNT_PATIENCE) {
        Ok(_) => Ok(GOOD),
        Err(Error::Fault { fault, .. }) => Err(Failure::new(BUSY, fault.message, fault.remedy)),
        Err(error) => Err(error.into()),
    }
}

/// Shows the counters of mounted caches.
pub fn stat(arguments: &CacheStatArguments) -> Result<u8, Failure> {
    let found = mounted(arguments.directory.as_deref())?;
    if let (Some(directory), true) = (&arguments.directory, found.is_empty()) {
        let message = format!("{}: no cache is mounted there", directory.display());
        return Err(Failure::new(NOT_FOUND, message, "`nectary cache stat` lists those that are"));
    }
    if arguments.json {
        let caches: Vec<Value> =
            found.iter().map(|(_, status)| json!({ "directory": status.name, "detail": status.detail })).collect();
        output::json(&json!({ "caches": caches }))?;
        return Ok(GOOD);
    }
    let mut text = String::new();
    for (_, status) in &found {
        let (detail, cache) = (&status.detail, &status.detail["cache"]);
        let number = |name: &str| cache[name].as_u64().unwrap_or(0);
        let references = number("hits") + number("misses");
        let rate = 100.0 * number("hits") as f64 / references.max(1) as f64;
        let word = |name: &str| detail[name].as_str().unwrap_or_default().to_owned();
        let _ = writeln!(text, "{}  {} of {}", status.name, word("mode"), word("source"));
        let _ = writeln!(text, "  policy      {}", word("policy"));
        let _ = writeln!(text, "  references  {references}, {rate:.1} % hits");
        let _ = writeln!(text, "  against LRU {} reads saved, {} lost", number("reads_saved"), number("reads_lost"));
        let _ = writeln!(text, "  reads below {}", number("source_reads"));
        let used = format_size(number("used_bytes"));
        let _ = writeln!(text, "  memory      {used} of {}", format_size(detail["memory_bytes"].as_u64().unwrap_or(0)));
    }
    if found.is_empty() {
        text.push_str("no cache is mounted\n");
    }
    output::text(&text)?;
    Ok(GOOD)
}
