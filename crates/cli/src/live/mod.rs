//! `nectary cache flush|set|show|drop|pin|unpin|advise` and `nectary top`: caches that run in other processes.
//!
//! Owns: finding the cache that a user names, and turning its faults into failures. Leaves to others: the answers of
//! the caches (`methods`, `report`), and their presentation (`commands`, `advise`, `top`).

pub mod advise;
pub mod cached;
pub mod commands;
pub mod methods;
mod report;
pub mod top;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use nectary_host::control::{parts, request};
use nectary_host::{Error, FaultKind, PartStatus, RuntimeDirectory};
use serde_json::{Value, json};

use crate::exit::{BUSY, CommandFailure, FAILED, NOT_FOUND, USAGE};

/// The longest time in which a part must report its status.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest time of a command. The limit is long because a flush or a pin may transfer the whole memory of a cache.
const COMMAND_PATIENCE: Duration = Duration::from_secs(3600);

/// A process that has caches.
pub struct CachingProcess {
    socket: PathBuf,
    status: PartStatus,
}

/// A cache, or a file or directory in a cache, that a user named.
pub struct CacheTarget {
    running: CachingProcess,
    /// The bytes of the path below a mounted directory; `None` for a device.
    path: Option<Vec<u8>>,
}

impl CachingProcess {
    /// Returns all processes with caches.
    pub fn all() -> Result<Vec<CachingProcess>, CommandFailure> {
        let parts = parts(&RuntimeDirectory::open()?, PATIENCE)?.into_iter();
        let running = parts.filter_map(|part| {
            let status = part.status.ok()?;
            let has_caches = matches!(status.component.as_str(), "cache" | "attach" | "export");
            has_caches.then_some(CachingProcess { socket: part.path, status })
        });
        Ok(running.collect())
    }

    /// Returns the name of the process's directory or device.
    pub fn name(&self) -> &str {
        &self.status.name
    }

    fn is_mount(&self) -> bool {
        self.status.component == "cache"
    }

    /// Whether `name` means this process: its directory or block device, or its SPEC or URL as given.
    fn is_meant(&self, name: &Path) -> bool {
        let text = name.to_string_lossy();
        let detail = &self.status.detail;
        let is_listed = |list: &Value| {
            list.as_array().is_some_and(|list| list.iter().any(|url| url.as_str() == Some(text.as_ref())))
        };
        Path::new(self.name()) == name
            || name.canonicalize().is_ok_and(|path| path == Path::new(self.name()))
            || ["given", "spec"].iter().any(|key| detail[*key].as_str() == Some(text.as_ref()))
            || is_listed(&detail["urls"])
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&self, method: &str, parameters: Value) -> Result<Value, CommandFailure> {
        self.ask_for(method, parameters, COMMAND_PATIENCE)
    }

    fn ask_for(&self, method: &str, parameters: Value, patience: Duration) -> Result<Value, CommandFailure> {
        request(&self.socket, method, parameters, patience).map_err(|error| match error {
            Error::Fault { fault, .. } => {
                let code = match fault.kind {
                    FaultKind::Invalid | FaultKind::Malformed => USAGE,
                    FaultKind::NotFound => NOT_FOUND,
                    FaultKind::Busy => BUSY,
                    FaultKind::UnknownMethod | FaultKind::Failed => FAILED,
                };
                match fault.remedy.is_empty() {
                    true => CommandFailure::bare(code, fault.message),
                    false => CommandFailure::new(code, fault.message, fault.remedy),
                }
            }
            error => error.into(),
        })
    }
}

impl CacheTarget {
    /// Finds the cache with a name.
    pub fn named(name: &Path) -> Result<CacheTarget, CommandFailure> {
        let all = CachingProcess::all()?;
        let absolute = std::path::absolute(name).context("cannot find the current directory")?;
        let names: Vec<String> = all.iter().map(|running| running.name().to_owned()).collect();
        let found = all.into_iter().find(|running| running.is_meant(name) || running.is_meant(&absolute));
        let Some(running) = found else { return Err(none(name, &names)) };
        let path = running.is_mount().then(Vec::new);
        Ok(CacheTarget { running, path })
    }

    /// Finds the mounted cache that contains a path, or the cached device with that name.
    pub fn of_path(path: &Path) -> Result<CacheTarget, CommandFailure> {
        let all = CachingProcess::all()?;
        let names: Vec<String> = all.iter().map(|running| running.name().to_owned()).collect();
        let absolute = std::path::absolute(path).context("cannot find the current directory")?;
        if let Some(index) = all.iter().position(|running| !running.is_mount() && running.is_meant(path)) {
            let running = all.into_iter().nth(index).ok_or_else(|| none(path, &names))?;
            return Ok(CacheTarget { running, path: None });
        }
        // Links are followed first; a path that no longer exists may still be in the cache.
        let real = absolute.canonicalize().unwrap_or(absolute);
        let below = |running: &CachingProcess| {
            let source = PathBuf::from(running.status.detail["source"].as_str().unwrap_or_default());
            let shown = real.strip_prefix(running.name()).ok();
            let path = shown.or_else(|| real.strip_prefix(source).ok())?;
            Some((running.name().len(), path.as_os_str().as_bytes().to_vec()))
        };
        let mounts = all.into_iter().filter(CachingProcess::is_mount);
        let meant = mounts.filter_map(|running| below(&running).map(|(length, path)| (length, running, path)));
        // Of nested mounts, the innermost one is meant.
        let (_, running, path) = meant.max_by_key(|(length, ..)| *length).ok_or_else(|| none(path, &names))?;
        Ok(CacheTarget { running, path: Some(path) })
    }

    /// Returns the process that has the cache.
    pub fn running(&self) -> &CachingProcess {
        &self.running
    }

    /// Returns the name for messages.
    pub fn name(&self) -> String {
        match &self.path {
            Some(path) if !path.is_empty() => {
                Path::new(self.running.name()).join(std::ffi::OsStr::from_bytes(path)).display().to_string()
            }
            _ => self.running.name().to_owned(),
        }
    }

    /// Returns the request parameters for a part of the target.
    pub fn place(&self, offset: u64, length: Option<u64>) -> Value {
        let mut place = json!({ "offset": offset });
        if let Some(length) = length {
            place["length"] = length.into();
        }
        if let Some(path) = &self.path {
            match std::str::from_utf8(path) {
                Ok(text) => place["path"] = text.into(),
                Err(_) => place["path_bytes"] = path.as_slice().into(),
            }
        }
        place
    }
}

fn none(name: &Path, names: &[String]) -> CommandFailure {
    let message = format!("{}: no cache of that name runs, and no mounted cache has it", name.display());
    let remedy = match names.is_empty() {
        true => "nothing with a cache runs: `nectary cache mount`, or `nectary attach 'cache(SPEC,…)'`".to_owned(),
        false => format!("there are {}", names.join(", ")),
    };
    CommandFailure::new(NOT_FOUND, message, remedy)
}

/// Returns text of other programs without control characters.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
