//! From a SPEC on the command line to an open store.
//!
//! Owns: the order of steps (open the device, see what is on it, make a store where that is wanted). Leaves to others:
//! every step.

use anyhow::Context;
use nectary_block::{self as block, Engine, SharedDevice, format_size};
use nectary_store::{CreateOptions, OpenOptions, SPAN_BYTES_MIN, Store};

use crate::arguments::{DeviceArguments, EngineArguments, IoEngine};
use crate::exit::{FAILED, Failure, NOT_FOUND};

/// Memory for a command that uses a store once. *Units*: bytes.
const TOOL_MEMORY_BYTES: u64 = 64 << 20;

/// Opens the device that `spec` names; a file that is absent is made where `create_bytes` says how large.
pub async fn open_device(
    spec: &str,
    engine: &EngineArguments,
    create_bytes: Option<u64>,
) -> Result<SharedDevice, Failure> {
    let options = block::OpenOptions { create_bytes, engine: self::engine(engine), ..block::OpenOptions::default() };
    Ok(block::open(spec, &options).await?)
}

/// The engine that `--io` names.
pub fn engine(arguments: &EngineArguments) -> Engine {
    match arguments.io {
        IoEngine::Uring => Engine::Uring,
        IoEngine::Posix => Engine::Posix,
        IoEngine::Auto => Engine::Auto,
    }
}

/// Opens the store of a command that uses it once.
pub async fn open_store(arguments: &DeviceArguments) -> Result<Store, Failure> {
    let device = open_device(&arguments.spec, &arguments.engine, None).await?;
    if !Store::probe(&device).await? {
        return Err(Failure::new(
            NOT_FOUND,
            format!("{}: there is no store on it, it is blank", arguments.spec),
            format!("make one with `nectary store create {}`", arguments.spec),
        ));
    }
    let options = OpenOptions { memory_bytes: TOOL_MEMORY_BYTES, ..OpenOptions::default() };
    Ok(Store::open(device, options).await.with_context(|| format!("cannot open the store on {}", arguments.spec))?)
}

/// Opens the store of a proxy, made where the device is absent or blank.
pub async fn open_or_create_store(
    spec: &str,
    engine: &EngineArguments,
    size_bytes: u64,
    options: OpenOptions,
) -> Result<Store, Failure> {
    options.check().with_context(|| format!("cannot open a store on {spec}"))?;
    let device = open_device(spec, engine, Some(size_bytes)).await?;
    if !Store::probe(&device).await? {
        let device_bytes = device.geometry().size_bytes;
        if device_bytes < SPAN_BYTES_MIN.min(size_bytes) {
            return Err(Failure::new(
                FAILED,
                format!("{spec}: it is there, with {device_bytes} bytes in whole blocks, too few for a store"),
                "if it is a store that was cut, remove it and a new one is made; else name another device",
            ));
        }
        let size_bytes = size_bytes.min(device_bytes);
        let create = CreateOptions { size_bytes, segment_bytes: None, force: false };
        Store::create(device.clone(), &create).await.with_context(|| format!("cannot make a store on {spec}"))?;
        eprintln!("nectary: made a store of {} on {spec}", format_size(size_bytes));
    }
    Ok(Store::open(device, options).await.with_context(|| format!("cannot open the store on {spec}"))?)
}
