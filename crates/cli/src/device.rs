//! Opening a device or a store from a SPEC on the command line.
//!
//! Owns: the names that a SPEC can use, and the order of steps (open the device, check its contents, make a store if
//! requested, close the device after the store). Leaves to others: every step.

use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use nectary_block::{self as block, DeviceRegistry, FileEngine, SharedDevice, format_size};
use nectary_buffer::CacheList;
use nectary_ram::device::OpenDevices;
use nectary_store::{
    CreateOptions, Error, MEMORY_BYTES_MIN, OpenOptions, SPAN_BYTES_MIN, SpanDevice, SpanSet, Store, StoreErrorKind,
};

use crate::arguments::{DeviceArguments, DeviceIoEngine, EngineArguments, ProxyArguments, SpanArguments};
use crate::exit::{CommandFailure, FAILED, NOT_FOUND, USAGE};

/// The memory of a store that a command opens once. *Units*: bytes.
const TOOL_MEMORY_BYTES: u64 = 64 << 20;

/// Returns a registry of all devices that a SPEC can name in this program.
pub fn registry() -> DeviceRegistry {
    registry_listing(&CacheList::default(), &OpenDevices::default())
}

/// As [`registry`]; the caches that it opens are added to `caches`, the network RAM disks to `disks`.
pub fn registry_listing(caches: &CacheList, disks: &OpenDevices) -> DeviceRegistry {
    let mut registry = DeviceRegistry::with_builtins();
    caches.register(&mut registry);
    nectary_nbd::register(&mut registry);
    nectary_ram::device::register_listing(&mut registry, disks);
    registry
}

/// An open store with the devices that were opened for it.
pub struct OpenStore {
    store: SpanSet,
    devices: Vec<SharedDevice>,
    is_closed: AtomicBool,
}

impl Deref for OpenStore {
    type Target = SpanSet;

    fn deref(&self) -> &SpanSet {
        &self.store
    }
}

impl OpenStore {
    fn new(store: SpanSet, devices: Vec<SharedDevice>) -> OpenStore {
        OpenStore { store, devices, is_closed: AtomicBool::new(false) }
    }

    /// Closes the store, and gives its devices up, so that the next process can open it. Bodies that are being read go
    /// on where the devices can still be read. A second call does nothing.
    pub async fn release(&self) -> Result<(), anyhow::Error> {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.store.close().await?;
        let mut released = Ok(());
        for device in &self.devices {
            released = released.and(device.release().await.map(drop));
        }
        Ok(released?)
    }

    /// Closes the store, and then its devices.
    pub async fn close(&self) -> Result<(), anyhow::Error> {
        self.store.close().await?;
        close(&self.devices).await
    }
}

/// Closes devices that are not used any more, all of them, even if one fails.
pub async fn close(devices: &[SharedDevice]) -> Result<(), anyhow::Error> {
    let mut closed = Ok(());
    for device in devices {
        closed = closed.and(device.close().await);
    }
    Ok(closed?)
}

/// The devices that could be opened.
pub fn opened(devices: &[SpanDevice]) -> Vec<SharedDevice> {
    devices.iter().filter_map(|named| named.device.as_ref().ok().cloned()).collect()
}

/// Opens the device that `spec` names; an absent file is created if `create_bytes` gives its size.
pub async fn open_device(
    spec: &str,
    engine: &EngineArguments,
    create_bytes: Option<u64>,
) -> Result<SharedDevice, CommandFailure> {
    let options = block::OpenOptions { create_bytes, engine: self::engine(engine), ..block::OpenOptions::default() };
    Ok(registry().open(spec, &options).await?)
}

/// Returns the engine that `--io` names.
pub fn engine(arguments: &EngineArguments) -> FileEngine {
    match arguments.io {
        DeviceIoEngine::Uring => FileEngine::Uring,
        DeviceIoEngine::Posix => FileEngine::Posix,
        DeviceIoEngine::Auto => FileEngine::Auto,
    }
}

/// Opens the devices of a store of several spans; a device that cannot be opened counts as a missing span.
pub async fn span_devices(
    first: &str,
    others: &SpanArguments,
    engine: &EngineArguments,
    create_bytes: Option<u64>,
) -> Vec<SpanDevice> {
    let options = block::OpenOptions { create_bytes, engine: self::engine(engine), ..block::OpenOptions::default() };
    span_devices_with(first, others, &options).await
}

async fn span_devices_with(first: &str, others: &SpanArguments, options: &block::OpenOptions) -> Vec<SpanDevice> {
    let create_bytes = options.create_bytes;
    let mut devices = Vec::new();
    for spec in std::iter::once(first).chain(others.spans.iter().map(String::as_str)) {
        let device = registry().open(spec, options).await.map_err(Error::from);
        // An existing device keeps its size.
        let size_bytes = device.as_ref().map_or(0, |device| match device.geometry().size_bytes {
            0 => create_bytes.unwrap_or(0),
            bytes => create_bytes.unwrap_or(0).min(bytes),
        });
        devices.push(SpanDevice { spec: spec.to_owned(), device, size_bytes });
    }
    devices
}

/// What a command does with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreAccess {
    /// It reads; the devices are not changed.
    Read,
    /// It also writes.
    Write,
}

/// Opens the store of a command that uses it once.
pub async fn open_store(
    arguments: &DeviceArguments,
    spans: &SpanArguments,
    access: StoreAccess,
) -> Result<OpenStore, CommandFailure> {
    let is_read_only = access == StoreAccess::Read;
    let options =
        OpenOptions { memory_bytes: TOOL_MEMORY_BYTES, warm_up: false, is_read_only, ..OpenOptions::default() };
    let device_options =
        block::OpenOptions { engine: engine(&arguments.engine), is_read_only, ..block::OpenOptions::default() };
    let spec = &arguments.spec;
    if !spans.spans.is_empty() {
        let count = 1 + spans.spans.len() as u64;
        let options = OpenOptions { memory_bytes: TOOL_MEMORY_BYTES.max(count * MEMORY_BYTES_MIN), ..options };
        let named = span_devices_with(spec, spans, &device_options).await;
        let devices = opened(&named);
        refuse_busy(&named, &devices).await?;
        if all_blank(&named).await {
            close(&devices).await?;
            return Err(absent(spec));
        }
        let store = SpanSet::open(named, options).await.with_context(|| format!("cannot open the store on {spec}"))?;
        return Ok(OpenStore::new(say_notes(store, access), devices));
    }
    let device = registry().open(spec, &device_options).await?;
    let devices = vec![device.clone()];
    if !Store::probe(&device).await? {
        close(&devices).await?;
        return Err(absent(spec));
    }
    let store = Store::open(device, options).await.with_context(|| format!("cannot open the store on {spec}"))?;
    Ok(OpenStore::new(store.into(), devices))
}

/// Fails if another process has one of the devices open: such a span is not missing.
async fn refuse_busy(named: &[SpanDevice], devices: &[SharedDevice]) -> Result<(), CommandFailure> {
    let mut failed = named.iter().filter_map(|named| named.device.as_ref().err());
    match failed.find(|error| error.kind == StoreErrorKind::Busy).cloned() {
        Some(error) => {
            close(devices).await?;
            Err(error.into())
        }
        None => Ok(()),
    }
}

fn absent(spec: &str) -> CommandFailure {
    CommandFailure::new(
        NOT_FOUND,
        format!("{spec}: there is no store on it, it is blank"),
        format!("make one with `nectary store create {spec}`"),
    )
}

/// Whether all devices that can be opened are empty. A device that cannot be read is not: the store may do without it.
async fn all_blank(devices: &[SpanDevice]) -> bool {
    for device in devices.iter().filter_map(|named| named.device.as_ref().ok()) {
        if !matches!(Store::probe(device).await, Ok(false)) {
            return false;
        }
    }
    true
}

/// Prints the notices of opening a store of several spans.
fn say_notes(store: SpanSet, access: StoreAccess) -> SpanSet {
    let when = if access == StoreAccess::Read { "at the next open for writing: " } else { "" };
    store.take_notes().iter().for_each(|note| eprintln!("nectary: {when}{note}"));
    store
}

/// Refuses a size that is invalid for a new store, if one will be created; changes nothing.
async fn check_size(
    first: &str,
    others: &SpanArguments,
    engine: &EngineArguments,
    size_bytes: u64,
) -> Result<(), CommandFailure> {
    if size_bytes >= SPAN_BYTES_MIN {
        return Ok(());
    }
    for spec in std::iter::once(first).chain(others.spans.iter().map(String::as_str)) {
        let options = block::OpenOptions { create_bytes: None, engine: self::engine(engine), ..Default::default() };
        let is_to_be_made = match registry().open(spec, &options).await {
            Ok(device) => {
                let is_blank = matches!(Store::probe(&device).await, Ok(false));
                device.close().await?;
                is_blank
            }
            Err(error) => error.kind == block::DeviceErrorKind::Absent,
        };
        if is_to_be_made {
            let (size, least) = (format_size(size_bytes), format_size(SPAN_BYTES_MIN));
            let message =
                format!("{spec}: {size} are too few for a store, or for a span of one: {least} are the least");
            return Err(CommandFailure::new(USAGE, message, "give a larger --size"));
        }
    }
    Ok(())
}

/// Refuses the path of a directory, and of a file in a directory that does not exist. Other SPECs are not checked.
fn check_path(spec: &str) -> Result<(), CommandFailure> {
    let path = Path::new(spec);
    if path.is_dir() {
        let message = format!("{spec} is a directory, not a regular file");
        return Err(CommandFailure::new(
            USAGE,
            message,
            format!("name a file in it: {}", path.join("store").display()),
        ));
    }
    match path.parent() {
        // Any other SPEC, such as `disk:/dev/sdb` or `delay(./a,read=1ms)`, has a colon or a parenthesis.
        Some(parent) if !spec.contains([':', '(']) && !parent.as_os_str().is_empty() && !parent.exists() => {
            let message = format!("{spec}: there is no directory {}", parent.display());
            Err(CommandFailure::new(NOT_FOUND, message, format!("make it first: `mkdir -p {}`", parent.display())))
        }
        _ => Ok(()),
    }
}

/// Opens the store of a proxy; creates it if the devices are absent or blank.
pub async fn open_or_create_store(
    arguments: &ProxyArguments,
    options: OpenOptions,
) -> Result<OpenStore, CommandFailure> {
    let ProxyArguments { spans, engine, .. } = arguments;
    let spec = &arguments.store_spec().to_owned();
    let size_bytes = arguments.size_bytes();
    options.check().with_context(|| format!("cannot open a store on {spec}"))?;
    for spec in std::iter::once(spec).chain(&spans.spans) {
        check_path(spec)?;
    }
    check_size(spec, spans, engine, size_bytes).await?;
    let context = || format!("cannot open the store on {spec}");
    if !spans.spans.is_empty() {
        let named = span_devices(spec, spans, engine, Some(size_bytes)).await;
        let devices = opened(&named);
        refuse_busy(&named, &devices).await?;
        let found = match arguments.forget_if_spans_missing {
            true => SpanSet::open_or_forget(named, options).await,
            false => SpanSet::open(named, options).await,
        };
        return match found {
            Ok(store) => Ok(OpenStore::new(say_notes(store, StoreAccess::Write), devices)),
            Err(error) if error.kind == StoreErrorKind::Absent => Err(CommandFailure::new(
                NOT_FOUND,
                format!("{}: {}", context(), error.message),
                "bring the devices back, or add --forget-if-spans-missing to begin with an empty store",
            )),
            Err(error) => Err(anyhow::Error::from(error).context(context()).into()),
        };
    }
    let device = open_device(spec, engine, Some(size_bytes)).await?;
    if !Store::probe(&device).await? {
        let device_bytes = device.geometry().size_bytes;
        if device_bytes < SPAN_BYTES_MIN.min(size_bytes) {
            return Err(CommandFailure::new(
                FAILED,
                format!("{spec}: it is there, with {device_bytes} bytes in whole blocks, too few for a store"),
                "if it is no store, name another path; if it is a store that was cut, remove it and a new one is made",
            ));
        }
        let size_bytes = size_bytes.min(device_bytes);
        let create = CreateOptions { size_bytes, segment_bytes: None, force: false, ..CreateOptions::default() };
        Store::create(device.clone(), &create).await.with_context(|| format!("cannot make a store on {spec}"))?;
        let size = format_size(size_bytes);
        let hint = match arguments.size {
            Some(_) => String::new(),
            None if device_bytes > size_bytes => format!(", of {}; --size makes another", format_size(device_bytes)),
            None => "; --size makes another".to_owned(),
        };
        eprintln!("nectary: made a store of {size} on {spec}{hint}");
    }
    let devices = vec![device.clone()];
    let store = Store::open(device, options).await.with_context(context)?;
    Ok(OpenStore::new(store.into(), devices))
}
