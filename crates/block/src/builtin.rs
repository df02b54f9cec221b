//! The names that this crate registers, each with the function that opens it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::device::SharedDevice;
use crate::error::{Error, ErrorKind};
use crate::file::FileDevice;
use crate::filter::corrupt::{CorruptFilter, CorruptOptions};
use crate::filter::delay::{DelayFilter, DelayOptions};
use crate::filter::error::{ErrorFilter, ErrorOptions, On};
use crate::filter::record::{FILE_BYTES_MAX, RecordFilter, Recorder};
use crate::filter::stats::StatsFilter;
use crate::memory::MemoryDevice;
use crate::registry::{Arguments, Registry};
use crate::size::{parse_duration, parse_share, parse_size};

/// Registers every device and filter of floor 0.
pub(crate) fn register(registry: &mut Registry) {
    registry.register("memory", memory);
    registry.register("file", file);
    registry.register("disk", disk);
    registry.register("stats", stats);
    registry.register("error", error);
    registry.register("corrupt", corrupt);
    registry.register("delay", delay);
    registry.register("record", record);
}

async fn file(arguments: Arguments) -> Result<SharedDevice, Error> {
    let device = FileDevice::open_file(arguments.rest()?, arguments.options()).await?;
    Ok(Arc::new(device))
}

async fn disk(arguments: Arguments) -> Result<SharedDevice, Error> {
    let device = FileDevice::open_disk(arguments.rest()?, arguments.options()).await?;
    Ok(Arc::new(device))
}

async fn memory(arguments: Arguments) -> Result<SharedDevice, Error> {
    let size_bytes = parse_size(arguments.rest()?).map_err(|message| arguments.invalid(message))?;
    arguments.finish()?;
    Ok(Arc::new(MemoryDevice::new(size_bytes)))
}

async fn stats(mut arguments: Arguments) -> Result<SharedDevice, Error> {
    let inner = arguments.device().await?;
    arguments.finish()?;
    Ok(Arc::new(StatsFilter::new(inner)))
}

async fn error(mut arguments: Arguments) -> Result<SharedDevice, Error> {
    let default = ErrorOptions::default();
    let options = ErrorOptions {
        rate: arguments.option("rate", parse_share)?.unwrap_or(default.rate),
        on: arguments.option("on", On::parse)?.unwrap_or(default.on),
        kind: arguments.option("kind", parse_kind)?.unwrap_or(default.kind),
        when: arguments.option("when", parse_path)?,
        seed: arguments.option("seed", parse_seed)?.unwrap_or(default.seed),
    };
    let inner = arguments.device().await?;
    arguments.finish()?;
    Ok(Arc::new(ErrorFilter::new(inner, options)))
}

async fn corrupt(mut arguments: Arguments) -> Result<SharedDevice, Error> {
    let default = CorruptOptions::default();
    let options = CorruptOptions {
        rate: arguments.option("rate", parse_share)?.unwrap_or(default.rate),
        when: arguments.option("when", parse_path)?,
        seed: arguments.option("seed", parse_seed)?.unwrap_or(default.seed),
    };
    let inner = arguments.device().await?;
    arguments.finish()?;
    Ok(Arc::new(CorruptFilter::new(inner, options)))
}

async fn delay(mut arguments: Arguments) -> Result<SharedDevice, Error> {
    let options = DelayOptions {
        read: arguments.option("read", parse_duration)?.unwrap_or_default(),
        write: arguments.option("write", parse_duration)?.unwrap_or_default(),
        flush: arguments.option("flush", parse_duration)?.unwrap_or_default(),
    };
    let inner = arguments.device().await?;
    arguments.finish()?;
    Ok(Arc::new(DelayFilter::new(inner, options)))
}

async fn record(mut arguments: Arguments) -> Result<SharedDevice, Error> {
    let Some(path) = arguments.option("file", parse_path)? else {
        return Err(arguments.invalid("record needs a file: record(DEVICE,file=PATH)"));
    };
    let bytes_max = arguments.option("max", parse_size)?.unwrap_or(FILE_BYTES_MAX);
    let inner = arguments.device().await?;
    arguments.finish()?;
    let recorder = Recorder::to_file(path, bytes_max, &inner.geometry())?;
    Ok(Arc::new(RecordFilter::new(inner, recorder)))
}

fn parse_path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("a path is missing here".to_owned()) } else { Ok(PathBuf::from(text)) }
}

fn parse_seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("\"{text}\" is no seed; write a whole number"))
}

fn parse_kind(text: &str) -> Result<ErrorKind, String> {
    match text {
        "io" => Ok(ErrorKind::Io),
        "full" => Ok(ErrorKind::Full),
        _ => Err(format!("\"{text}\" is no kind of error; write io or full")),
    }
}
