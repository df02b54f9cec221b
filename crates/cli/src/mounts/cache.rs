//! `nectary cache mount`, `umount` and `stat`: a directory through the cache.
//!
//! Owns: the control socket of a mounted cache, and its status. Leaves to others: the common part of all mounts
//! (`mounts`), mounting (`nectary-attach`), caching (`nectary-buffer`).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use nectary_attach::{MountedTree, TreeOptions, WAIT_SHOWN, is_tree, leave_terminal, unmount_tree};
use nectary_block::format_size;
use nectary_buffer::{CacheOptions, WriteMode};
use nectary_host::control::{RunningPart, parts};
use nectary_host::memory::resident_bytes;
use nectary_host::{ControlMethods, ControlServer, PartHealth, PartStatus, RuntimeDirectory, Shutdown};
use serde_json::{Value, json};

use crate::arguments::{CacheMountArguments, CacheStatArguments, CacheUmountArguments};
use crate::exit::{BUSY, CommandFailure, FAILED, GOOD, NOT_FOUND, USAGE};
use crate::live::cached::ProcessCaches;
use crate::live::methods::register;
use crate::long_waits::{figures as figures_of_waits, with_waits};
use crate::mounts::{TREES, UnmountRequests, ask_to_unmount, finish, in_background, left_behind};
use crate::{output, runtime};

/// The component's name in a status.
const COMPONENT: &str = "cache";
/// The longest time in which each part must answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A mounted cache that keeps more than this share of the descriptors that it may keep is degraded. *Units*: percent.
const KEPT_PERCENT_MAX: usize = 80;

/// Mounts a directory.
pub fn mount(arguments: &CacheMountArguments) -> Result<u8, CommandFailure> {
    if arguments.background { in_background() } else { runtime()?.block_on(stay(arguments)) }
}

/// Mounts a directory and serves it until it is unmounted.
async fn stay(arguments: &CacheMountArguments) -> Result<u8, CommandFailure> {
    if arguments.leave_terminal {
        leave_terminal().context("cannot leave the terminal")?;
    }
    let shutdown = Shutdown::new();
    let _signals = shutdown.on_signals().context("cannot listen for signals")?;
    TREES.release_dead(&std::path::absolute(&arguments.directory).context("cannot find the current directory")?)?;
    let (source, directory) = (found("SOURCE", &arguments.source)?, found("DIR", &arguments.directory)?);
    if let Some((_, status)) = mounted(Some(&directory))?.first().filter(|_| is_tree(&directory)) {
        return Err(taken(&directory, status.pid));
    }
    let mode: WriteMode = arguments.mode.parse().map_err(|error: String| CommandFailure::new(FAILED, error, ""))?;
    let block_bytes = u32::try_from(arguments.block).unwrap_or(u32::MAX);
    let cache = CacheOptions {
        memory_bytes: arguments.memory,
        policy: arguments.policy.clone(),
        block_bytes,
        mode,
        ..CacheOptions::default()
    };
    check_options(&cache)?;
    let (is_exclusive, uses_handles) = (arguments.exclusive, !arguments.by_names);
    let control = TREES.claim(&directory, arguments.leave_terminal)?;
    let passthrough_bytes = arguments.passthrough;
    let options = TreeOptions { source, directory, cache, is_exclusive, uses_handles, passthrough_bytes };
    let tree = Arc::new(MountedTree::start(options)?);
    let requests = serve_control(&control, &tree);
    if let Err(failure) = announce(arguments, &tree) {
        tree.unmount(true)?;
        finish(&tree).await?;
        return Err(failure);
    }
    requests.until_unmounted(TREES, &*tree, &shutdown).await?;
    TREES.forget(&tree.options().directory);
    control.stop().await;
    finish(&tree).await?;
    TREES.note("unmounted");
    Ok(GOOD)
}

/// Returns the failure to mount where a cache is mounted already.
fn taken(directory: &Path, process: u32) -> CommandFailure {
    let shown = directory.display();
    CommandFailure::new(
        BUSY,
        format!("{shown}: process {process} has a cache mounted there already"),
        format!("unmount it with `nectary cache umount {shown}`, or change it with `nectary cache set`"),
    )
}

/// Refuses options that a cache cannot have.
pub fn check_options(cache: &CacheOptions) -> Result<(), CommandFailure> {
    let remedy = "give another --memory or --policy (`--help` shows the defaults)";
    cache.check().and_then(|()| cache.check_machine()).map_err(|error| CommandFailure::new(USAGE, error.detail, remedy))
}

/// Returns the canonical path of an existing directory.
fn found(what: &str, path: &Path) -> Result<PathBuf, CommandFailure> {
    path.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let message = format!("{what} {}: there is no such directory", path.display());
            CommandFailure::new(NOT_FOUND, message, "check the path; where it is a mount, see whether it is mounted")
        }
        _ => anyhow::Error::from(error).context(format!("{what} {}", path.display())).into(),
    })
}

/// Answers requests for the mounted cache on its control socket.
fn serve_control(control: &ControlServer, tree: &Arc<MountedTree>) -> UnmountRequests {
    let mut methods = ControlMethods::new();
    let of_status = tree.clone();
    methods.status(move || status(&of_status));
    let requests = UnmountRequests::register(&mut methods);
    register(ProcessCaches::Tree(tree.clone()), &mut methods);
    control.replace(methods);
    requests
}

/// Returns the status of a mounted cache, as `nectary status` shows it.
fn status(tree: &MountedTree) -> PartStatus {
    let (options, figures, now) = (tree.options(), tree.figures(), tree.cache().options());
    let mut status = PartStatus::healthy(COMPONENT, &options.directory.display().to_string());
    if figures.kept * 100 > figures.kept_max * KEPT_PERCENT_MAX {
        let what =
            format!("{} of {} descriptors are kept for deleted files that are open", figures.kept, figures.kept_max);
        let remedy = "close such files, or raise the limit of open files (ulimit -Hn) and mount it again";
        status = status.with_problem(PartHealth::Degraded, what, remedy);
    }
    if !is_tree(&options.directory) {
        let what = left_behind(tree.held_elsewhere());
        status = status.with_problem(PartHealth::Degraded, what, "it ends with the last user");
    }
    if figures.cache.read_errors > 0 {
        let what = format!("{}: {} reads failed", options.source.display(), figures.cache.read_errors);
        status = status.with_problem(PartHealth::Degraded, what, "see its messages; check the disk below");
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
    let waits = tree.long_waits(WAIT_SHOWN);
    with_waits(status, &waits, &[]).with_detail(json!({
        "source": options.source.display().to_string(),
        "mode": now.mode.name(),
        "policy": now.policy,
        "block_bytes": now.block_bytes,
        "memory_bytes": now.memory_bytes,
        "resident_bytes": resident_bytes(),
        "nodes": figures.nodes,
        "node_bytes": figures.node_bytes,
        "descriptors": figures.descriptors,
        "descriptors_max": figures.descriptors_max,
        "descriptors_kept": figures.kept,
        "descriptors_kept_max": figures.kept_max,
        "reopens_by": if figures.uses_handles { "handles" } else { "names" },
        "passthrough_bytes": options.passthrough_bytes,
        "passed_opens": figures.passed_opens,
        "waits": figures_of_waits(&waits, &[]),
        "cache": cache,
        "streams": streams,
    }))
}

fn announce(arguments: &CacheMountArguments, tree: &MountedTree) -> Result<(), CommandFailure> {
    let options = tree.options();
    let (source, directory) = (options.source.display(), options.directory.display());
    let what = format!(
        "{source} is shown at {directory} with {} of cache, {}, {}",
        format_size(options.cache.memory_bytes),
        options.cache.policy,
        options.cache.mode
    );
    TREES.announce(&options.directory, &what, arguments.leave_terminal)
}

/// Returns all mounted caches, or the one at `directory`.
fn mounted(directory: Option<&Path>) -> Result<Vec<(RunningPart, PartStatus)>, CommandFailure> {
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
pub fn umount(arguments: &CacheUmountArguments) -> Result<u8, CommandFailure> {
    let given = std::path::absolute(&arguments.directory).context("cannot find the current directory")?;
    // A dead mount cannot be resolved, so its path is used as given.
    let directory = &given.canonicalize().unwrap_or(given);
    let all = parts(&RuntimeDirectory::open()?, PATIENCE)?;
    let is_of = |status: &PartStatus| status.component == COMPONENT && Path::new(&status.name) == directory;
    if let Some(part) = all.iter().find(|part| part.status.as_ref().is_ok_and(is_of)) {
        ask_to_unmount(part, arguments.lazy)?;
        return Ok(GOOD);
    }
    let shown = directory.display();
    if !is_tree(directory) {
        let message = format!("{shown}: no cache is mounted there");
        return Err(CommandFailure::new(NOT_FOUND, message, "`nectary cache stat` lists those that are"));
    }
    TREES.release_dead(directory)?;
    if !is_tree(directory) {
        return Ok(GOOD);
    }
    // Its process lives, and does not answer, or has another runtime directory.
    let name = format!("{}.sock", TREES.socket_of(directory));
    let silent = all.into_iter().find(|part| part.path.ends_with(&name));
    if let Some(error) = silent.and_then(|part| part.status.err()) {
        let message =
            format!("{shown}: its process does not answer on its control socket, and it stays mounted: {error}");
        let remedy = format!("try again; if it never answers, `umount {shown}` unmounts it without its process");
        return Err(CommandFailure::new(FAILED, message, remedy));
    }
    unmount_tree(directory, arguments.lazy)?;
    if is_tree(directory) {
        let message = format!("{shown}: another cache is mounted there below the one that was unmounted");
        return Err(CommandFailure::new(FAILED, message, "repeat the command to unmount it, too"));
    }
    Ok(GOOD)
}

/// Shows the counters of mounted caches.
pub fn stat(arguments: &CacheStatArguments) -> Result<u8, CommandFailure> {
    let found = mounted(arguments.directory.as_deref())?;
    if let (Some(directory), true) = (&arguments.directory, found.is_empty()) {
        let message = format!("{}: no cache is mounted there", directory.display());
        let remedy = "`nectary cache stat` lists those that are; `nectary top --once` shows cached devices, too";
        return Err(CommandFailure::new(NOT_FOUND, message, remedy));
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
        let detailed = |name: &str| detail[name].as_u64().unwrap_or(0);
        if detailed("passthrough_bytes") > 0 {
            let (opens, limit) = (detailed("passed_opens"), format_size(detailed("passthrough_bytes")));
            let _ = writeln!(text, "  passed      {opens} opens of files up to {limit}, which the kernel reads itself");
        }
        let used = format_size(number("used_bytes"));
        let size = |name: &str| format_size(detailed(name));
        let (memory, resident) = (size("memory_bytes"), size("resident_bytes"));
        let _ = writeln!(text, "  memory      {used} of {memory}, {resident} resident in the whole process");
    }
    if found.is_empty() {
        text.push_str("no cache is mounted\n");
    }
    output::text(&text)?;
    Ok(GOOD)
}
