//! The methods of a running cache on its control socket.
//!
//! Owns: the methods `flush`, `set`, `show`, `drop`, `pin`, `unpin`, `figures`, `top` and `advise`, their parameters
//! and answers. Promises: a request that is not valid changes nothing, and its fault says what to send. Leaves to
//! others: the caches (`nectary-buffer`, `nectary-attach`), the socket (`nectary-host`).

use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use nectary_attach::PathError;
use nectary_block::{DeviceErrorKind, DeviceOperation, Error, IoContext, parse_size};
use nectary_buffer::{OpenCache, RangeResidency};
use nectary_host::allocator::give_back_free_pages;
use nectary_host::{ControlFault, ControlMethods, FaultKind};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::cached::ProcessCaches;
use super::report::ReportCache;

/// The maximum number of files of a directory that are listed.
const FILES_MAX: usize = 1000;
/// The maximum number of ranges of one file that are listed.
const RANGES_MAX: usize = 1000;

type Answer = Result<Value, ControlFault>;

/// The parameters of a method that has none.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoParameters {}

/// The file or directory and range of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RangeParameters {
    /// The path below the tree; `None` for the tree itself or a device.
    path: Option<String>,
    /// The path as bytes, if it is not UTF-8.
    path_bytes: Option<Vec<u8>>,
    #[serde(default)]
    offset: u64,
    length: Option<u64>,
}

/// The requested change.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetParameters {
    option: String,
    value: String,
}

/// The requested size of a report.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TopParameters {
    streams: Option<usize>,
}

/// Adds the methods.
pub fn register(cached: ProcessCaches, methods: &mut ControlMethods) {
    let reports = Arc::new(ReportCache::default());
    add(
        methods,
        "flush",
        "writes back what is dirty and makes it durable",
        &cached,
        |cached, NoParameters {}| async move { cached.flush().await },
    );
    add(
        methods,
        "set",
        "changes memory, mode or policy: {\"option\": …, \"value\": …}",
        &cached,
        |cached, change| async move { cached.set(change).await },
    );
    add(
        methods,
        "show",
        "what memory holds of a path or range",
        &cached,
        |cached, place: RangeParameters| async move { blocking(move || cached.show(&place)).await },
    );
    add(methods, "drop", "sends a path or range out of memory", &cached, |cached, place| async move {
        cached.drop_place(place).await
    });
    add(
        methods,
        "pin",
        "holds a file or range in memory",
        &cached,
        |cached, place| async move { cached.pin(place).await },
    );
    add(methods, "unpin", "lets the policy decide again", &cached, |cached, place: RangeParameters| async move {
        blocking(move || cached.unpin(&place)).await
    });
    add(
        methods,
        "figures",
        "what each cache counts",
        &cached,
        |cached, NoParameters {}| async move { cached.figures() },
    );
    let of_top = reports.clone();
    add(methods, "top", "what each cache does, by stream", &cached, move |cached, wanted: TopParameters| {
        let reports = of_top.clone();
        async move { blocking(move || Ok(reports.top(&cached, wanted.streams))).await }
    });
    add(
        methods,
        "advise",
        "what other sizes and policies would change",
        &cached,
        move |cached, NoParameters {}| async move { blocking(move || Ok(super::report::advise(&cached))).await },
    );
}

fn add<P, F>(
    methods: &mut ControlMethods,
    name: &'static str,
    description: &'static str,
    cached: &ProcessCaches,
    call: impl Fn(ProcessCaches, P) -> F + Send + Sync + Clone + 'static,
) where
    P: DeserializeOwned + Send + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let cached = cached.clone();
    methods.register(name, description, move |parameters| {
        let (cached, call) = (cached.clone(), call.clone());
        async move {
            let parameters = if parameters.is_null() { json!({}) } else { parameters };
            let read = serde_json::from_value(parameters).map_err(|error| not_understood(name, &error))?;
            call(cached, read).await
        }
    });
}

fn not_understood(name: &str, error: &serde_json::Error) -> ControlFault {
    let takes = match name {
        "set" => r#"{"option": "memory", "value": "1G"}; memory, mode and policy can be set"#,
        "show" | "drop" | "pin" | "unpin" => {
            r#"{"path": TEXT} or {"path_bytes": [BYTE, …]}, and "offset" and "length" in bytes"#
        }
        "top" => r#"{"streams": COUNT}"#,
        _ => "no parameters",
    };
    // The message may repeat the request, so it is shortened.
    let text: String = error.to_string().chars().take(200).collect();
    ControlFault::new(
        FaultKind::Invalid,
        format!("the parameters of {name} are not understood: {text}"),
        format!("send {takes}"),
    )
}

/// Runs a step that may wait for a disk on another thread, so that the control socket still answers.
async fn blocking(step: impl FnOnce() -> Answer + Send + 'static) -> Answer {
    let ended = tokio::task::spawn_blocking(step).await;
    ended.unwrap_or_else(|error| Err(ControlFault::new(FaultKind::Failed, format!("it ended early: {error}"), "")))
}

impl RangeParameters {
    fn range(&self) -> Range<u64> {
        self.offset..self.length.map_or(u64::MAX, |length| self.offset.saturating_add(length))
    }

    fn path(&self) -> Result<&[u8], ControlFault> {
        match (&self.path, &self.path_bytes) {
            (Some(_), Some(_)) => {
                let message = "there are both a path and path_bytes";
                Err(ControlFault::new(FaultKind::Invalid, message, "send one of them"))
            }
            (Some(path), None) => Ok(path.as_bytes()),
            (None, Some(bytes)) => Ok(bytes),
            (None, None) => Ok(b""),
        }
    }

    /// Returns the range of a device, cut at the device's end.
    fn of_device(&self, device: &OpenCache) -> Result<Range<u64>, ControlFault> {
        if self.path()? != b"" {
            return Err(ControlFault::new(FaultKind::Invalid, "a device has no paths", "give an offset and a length"));
        }
        let (range, size) = (self.range(), device.size_bytes());
        if range.start > size {
            let message = format!("offset {} is behind the end: the device has {size} bytes", range.start);
            return Err(ControlFault::new(FaultKind::Invalid, message, "give a smaller offset"));
        }
        Ok(range.start..range.end.min(size))
    }
}

fn no_cache(name: &str) -> ControlFault {
    let remedy = "put one before it: `cache(SPEC,memory=1G)` instead of SPEC";
    ControlFault::new(FaultKind::NotFound, format!("{name} has no cache"), remedy)
}

fn fault(error: &Error) -> ControlFault {
    let (kind, remedy) = match error.kind {
        DeviceErrorKind::Absent => (FaultKind::NotFound, ""),
        DeviceErrorKind::Invalid | DeviceErrorKind::Unsupported => (FaultKind::Invalid, ""),
        DeviceErrorKind::Busy => (FaultKind::Busy, "try again in a moment"),
        DeviceErrorKind::Full if matches!(error.operation, DeviceOperation::Write | DeviceOperation::Flush) => {
            (FaultKind::Failed, "free space below, then `nectary cache flush`; until then the blocks stay in memory")
        }
        DeviceErrorKind::Full => {
            (FaultKind::Failed, "`nectary cache unpin` something, or `nectary cache set NAME --memory SIZE`")
        }
        _ => (FaultKind::Failed, "see what the kernel says of the disk below (`dmesg`)"),
    };
    ControlFault::new(kind, error.to_string(), remedy)
}

fn path_fault(error: &PathError) -> ControlFault {
    match error {
        PathError::Absent { .. } => ControlFault::new(FaultKind::NotFound, error.to_string(), "check the path"),
        PathError::Invalid { .. } => ControlFault::new(FaultKind::Invalid, error.to_string(), ""),
        PathError::Failed { path, source } => {
            let fault = fault(source);
            ControlFault { message: format!("{path}: {}", source.detail), ..fault }
        }
    }
}

impl ProcessCaches {
    /// Returns the device that is changed: the outermost cache of the stack.
    fn outer(&self) -> Result<OpenCache, ControlFault> {
        let ProcessCaches::Devices(caches, name) = self else {
            return Err(ControlFault::new(FaultKind::Failed, "it is no device", ""));
        };
        let mut opened = caches.opened().into_iter();
        let Some(outer) = opened.next() else {
            return Err(no_cache(name));
        };
        let spec = outer.spec();
        if opened.any(|other| !spec.contains(&other.spec())) {
            let message = format!("{name} has several caches side by side, and this is for one");
            return Err(ControlFault::new(
                FaultKind::Invalid,
                message,
                "give each device a process: export or attach it alone",
            ));
        }
        Ok(outer)
    }

    fn figures(&self) -> Answer {
        let caches = self.all().into_iter().map(|(name, cache)| {
            let figures = super::report::figures(&cache.stats());
            json!({ "name": name, "block_bytes": cache.block_bytes(), "figures": figures })
        });
        Ok(json!({ "caches": caches.collect::<Vec<Value>>() }))
    }

    async fn flush(&self) -> Answer {
        if let ProcessCaches::Devices(caches, name) = self
            && caches.opened().is_empty()
        {
            return Err(no_cache(name));
        }
        let written =
            || self.all().iter().map(|(_, cache)| cache.stats().written_back * cache.block_bytes() as u64).sum();
        let before: u64 = written();
        let mut failed = Vec::new();
        match self {
            ProcessCaches::Tree(tree) => {
                let files = tree.flush().await;
                failed.extend(files.iter().map(|(path, error)| (path.display().to_string(), error.to_string())));
            }
            ProcessCaches::Devices(caches, _) => {
                for opened in caches.opened() {
                    let errors = opened.cache().flush_all().await;
                    failed.extend(errors.iter().map(|(_, error)| (opened.spec(), error.to_string())));
                }
            }
        }
        let stats: Vec<_> = self.all().iter().map(|(_, cache)| cache.stats()).collect();
        let failed = failed.iter().map(|(path, error)| json!({ "path": path, "error": error }));
        Ok(json!({
            "written_bytes": written().saturating_sub(before),
            "dirty_bytes": stats.iter().map(|stats| stats.dirty_bytes).sum::<u64>(),
            "unwritten_bytes": stats.iter().map(|stats| stats.unwritten_bytes).sum::<u64>(),
            "failed": failed.collect::<Vec<Value>>(),
        }))
    }

    async fn set(&self, change: SetParameters) -> Answer {
        let (name, cache) = match self {
            ProcessCaches::Tree(tree) => (tree.options().directory.display().to_string(), tree.cache().clone()),
            ProcessCaches::Devices(_, name) => (name.clone(), self.outer()?.cache().clone()),
        };
        let wrong = |message: String, remedy: &str| ControlFault::new(FaultKind::Invalid, message, remedy);
        let done = match change.option.as_str() {
            "memory" => {
                let bytes = parse_size(&change.value).map_err(|error| wrong(error, "write a size, as 512M or 2G"))?;
                let set = cache.set_memory(bytes).await;
                // The allocator would keep the memory of evicted blocks for later ones.
                let _ = tokio::task::spawn_blocking(give_back_free_pages).await;
                set
            }
            "policy" => cache.set_policy(&change.value).await,
            "mode" => {
                let mode = change.value.parse().map_err(|error| wrong(error, ""))?;
                match self {
                    ProcessCaches::Tree(tree) => tree.set_mode(mode).await,
                    ProcessCaches::Devices(..) => cache.set_mode(mode).await,
                }
            }
            other => {
                let other: String = other.chars().take(100).collect();
                let message = format!("\"{other}\" cannot be set while it runs");
                return Err(wrong(message, "memory, mode and policy can be set"));
            }
        };
        done.map_err(|error| match error.kind {
            DeviceErrorKind::Invalid | DeviceErrorKind::Unsupported => wrong(format!("{name}: {}", error.detail), ""),
            _ => fault(&error),
        })?;
        let options = cache.options();
        let mut answer = json!({
            "memory_bytes": options.memory_bytes, "policy": options.policy, "mode": options.mode.name()
        });
        if let ProcessCaches::Devices(..) = self {
            answer["spec"] = self.outer()?.spec().into();
        }
        Ok(answer)
    }

    fn show(&self, place: &RangeParameters) -> Answer {
        let (files, count) = match self {
            ProcessCaches::Tree(tree) => {
                let shown = tree.show(place.path()?, place.range(), FILES_MAX, RANGES_MAX);
                let (files, count) = shown.map_err(|error| path_fault(&error))?;
                // For a directory of several files, only counts are reported.
                let with_ranges = count == 1;
                let files = files.iter().map(|file| holding(Some(&file.path), &file.holding, with_ranges));
                (files.collect::<Vec<Value>>(), count)
            }
            ProcessCaches::Devices(..) => {
                let device = self.outer()?;
                let range = place.of_device(&device)?;
                let held = device.cache().holding(device.file(), range.start, range.end - range.start, RANGES_MAX);
                (vec![holding(None, &held.map_err(|error| fault(&error))?, true)], 1)
            }
        };
        let left_out = count - files.len();
        Ok(json!({ "files": files, "files_left_out": left_out }))
    }

    async fn drop_place(self, place: RangeParameters) -> Answer {
        if let ProcessCaches::Devices(..) = &self {
            // Dirty blocks are written to the device below first.
            let device = self.outer()?;
            let range = place.of_device(&device)?;
            let length = range.end - range.start;
            let written = device.cache().write_back(device.file(), range.start, length, IoContext::default());
            written.await.map_err(|error| fault(&error))?;
        }
        blocking(move || {
            let dropped = match &self {
                ProcessCaches::Tree(tree) => {
                    tree.drop_path(place.path()?, place.range()).map_err(|error| path_fault(&error))?
                }
                ProcessCaches::Devices(..) => {
                    let device = self.outer()?;
                    let range = place.of_device(&device)?;
                    let dropped = device.cache().drop_clean(device.file(), range.start, range.end - range.start);
                    dropped.map_err(|error| fault(&error))?
                }
            };
            Ok(json!({
                "dropped_bytes": dropped.bytes,
                "dirty_bytes": dropped.dirty_bytes,
                "pinned_bytes": dropped.pinned_bytes,
            }))
        })
        .await
    }

    async fn pin(self, place: RangeParameters) -> Answer {
        let runtime = tokio::runtime::Handle::current();
        blocking(move || {
            let pinned = match &self {
                ProcessCaches::Tree(tree) => {
                    let pinned = runtime.block_on(tree.pin(place.path()?, place.range()));
                    pinned.map_err(|error| path_fault(&error))?
                }
                ProcessCaches::Devices(..) => {
                    let device = self.outer()?;
                    let range = place.of_device(&device)?;
                    let length = range.end - range.start;
                    let pinned = runtime.block_on(device.cache().pin(device.file(), range.start, length));
                    pinned.map_err(|error| fault(&error))?
                }
            };
            Ok(self.pins("pinned_bytes", pinned))
        })
        .await
    }

    fn unpin(&self, place: &RangeParameters) -> Answer {
        let unpinned = match self {
            ProcessCaches::Tree(tree) => {
                tree.unpin(place.path()?, place.range()).map_err(|error| path_fault(&error))?
            }
            ProcessCaches::Devices(..) => {
                let device = self.outer()?;
                let range = place.of_device(&device)?;
                let unpinned = device.cache().unpin(device.file(), range.start, range.end - range.start);
                unpinned.map_err(|error| fault(&error))?
            }
        };
        Ok(self.pins("unpinned_bytes", unpinned))
    }

    /// Returns the number of bytes that were changed, and the number that is pinned now.
    fn pins(&self, name: &str, bytes: u64) -> Value {
        let stats = self.all().first().map(|(_, cache)| cache.stats()).unwrap_or_default();
        json!({ name: bytes, "all_pinned_bytes": stats.pinned_bytes, "all_pinned_bytes_max": stats.pinned_bytes_max })
    }
}

fn holding(path: Option<&Path>, holding: &RangeResidency, with_ranges: bool) -> Value {
    let mut value = json!({
        "size_bytes": holding.size_bytes,
        "cached_bytes": holding.cached_bytes,
        "dirty_bytes": holding.dirty_bytes,
        "unwritten_bytes": holding.unwritten_bytes,
        "pinned_bytes": holding.pinned_bytes,
        "ahead_bytes": holding.ahead_bytes,
    });
    if let Some(path) = path {
        value["path"] = path.display().to_string().into();
    }
    if with_ranges {
        let ranges = holding.ranges.iter().map(|range| {
            json!({
                "offset": range.offset,
                "length": range.length,
                "cached": range.is_cached,
                "dirty": range.is_dirty,
                "pinned": range.is_pinned,
            })
        });
        value["ranges"] = ranges.collect::<Vec<Value>>().into();
        value["ranges_left_out"] = holding.ranges_left_out.into();
    }
    value
}
