//! The names that this crate registers, each with the function that opens it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::device::{DEVICE_BYTES_MAX, SharedDevice};
use crate::error::{DeviceErrorKind, Error};
use crate::file::FileDevice;
use crate::filter::corrupt::{CorruptFilter, CorruptOptions};
use crate::filter::delay::{DelayFilter, DelayOptions};
use crate::filter::error::{ErrorFilter, ErrorOptions, FailingOperations};
use crate::filter::log::LogFilter;
use crate::filter::model::{DiskKind, ModelClock, ModelFilter, ModelOptions};
use crate::filter::record::{FILE_BYTES_MAX, RecordFilter, Recorder};
use crate::filter::stats::StatsFilter;
use crate::filter::throttle::{ThrottleFilter, ThrottleOptions};
use crate::memory::MemoryDevice;
use crate::registry::{DeviceRegistry, SpecArguments};
use crate::size::{parse_duration, parse_share, parse_size};
use crate::stripe::{STRIPE_UNIT_BYTES, StripeDevice};

/// The block of a device in memory, to which its size is rounded up. *Units*: bytes.
const MEMORY_BLOCK_BYTES: u64 = 4096;

impl DeviceRegistry {
    /// A registry with the devices and filters of this crate.
    pub fn with_builtins() -> DeviceRegistry {
        let mut registry = DeviceRegistry::empty();
        register(&mut registry);
        registry
    }
}

/// Registers every device and filter of this crate.
fn register(registry: &mut DeviceRegistry) {
    registry.register("memory", memory);
    registry.register("file", file);
    registry.register("disk", disk);
    registry.register("stats", stats);
    registry.register("error", error);
    registry.register("corrupt", corrupt);
    registry.register("delay", delay);
    registry.register("log", log);
    registry.register("model", model);
    registry.register("record", record);
    registry.register("stripe", stripe);
    registry.register("throttle", throttle);
}

async fn file(arguments: SpecArguments) -> Result<SharedDevice, Error> {
    let device = FileDevice::open_file(arguments.rest()?, arguments.options()).await?;
    Ok(Arc::new(device))
}

async fn disk(arguments: SpecArguments) -> Result<SharedDevice, Error> {
    let device = FileDevice::open_disk(arguments.rest()?, arguments.options()).await?;
    Ok(Arc::new(device))
}

async fn memory(arguments: SpecArguments) -> Result<SharedDevice, Error> {
    let size_bytes = parse_size(arguments.rest()?).map_err(|message| arguments.invalid(message))?;
    arguments.finish()?;
    let whole = size_bytes.checked_next_multiple_of(MEMORY_BLOCK_BYTES).filter(|&bytes| bytes <= DEVICE_BYTES_MAX);
    let Some(whole) = whole else {
        return Err(arguments.invalid(format!("{size_bytes} bytes; a device has less than 8E")));
    };
    Ok(Arc::new(MemoryDevice::new(whole)))
}

async fn stats(mut arguments: SpecArguments) -> Result<SharedDevice, Error> {
    let inner = arguments.device().await?;
    arguments.finish()?;
    Ok(Arc::new(StatsFilter::new(inner)))
}

async fn error(mut arguments: SpecArguments) -> Result<SharedDevice, Error> {
    let default = ErrorOptions::default();
    let options = ErrorOptions {
        rate: arguments.option("rate", parse_share)?.unwrap_or(default.rate),
        on: arguments.option("on", FailingOperations::parse)?.unwrap_or(default.on),
        kind: arguments.option("kind", parse_kind)?.unwrap_or(default.kind),
        when: arguments.option("when", parse_path)?,
        seed: arguments.option("seed", parse_seed)?.unwrap_or(default.seed),
    };
    let inner = arguments.device().await?;
    arguments.finish()?;
    Ok(Arc::new(ErrorFilter::new(inner, options)))
}

async fn corrupt(mut arguments: SpecArguments) -> Result<SharedDevice, Error> {
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

async fn delay(mut arguments: SpecArguments) -> Result<SharedDevice, Error> {
    let options = DelayOptions {
        read: arguments.option("read", parse_duration)?.unwrap_or_default(),
        write: arguments.option("write", parse_duration)?.unwrap_or_default(),
        flush: arguments.option("flush", parse_duration)?.unwrap_or_default(),
        when: arguments.option("when", parse_path)?,
    };
    let inner = arguments.device().await?;
    arguments.finish()?;
    Ok(Arc::new(DelayFilter::new(inner, options)))
}

async fn record(mut arguments: SpecArguments) -> Result<SharedDevice, Error> {
    let Some(path) = arguments.option("file", parse_path)? else {
        return Err(arguments.invalid("record needs a file: record(DEVICE,file=PATH)"));
    };
    let bytes_max = arguments.option("max", parse_size)?.unwrap_or(FILE_BYTES_MAX);
    let inner = arguments.device().await?;
    arguments.finish()?;
    let recorder = Recorder::to_file(path, bytes_max, &inner.geometry())?;
    Ok(Arc::new(RecordFilter::new(inner, recorder)))
}

async fn log(mut arguments: SpecArguments) -> Result<SharedDevice, Error> {
    let Some(path) = arguments.option("file", parse_path)? else {
        return Err(arguments.invalid("log needs a file: log(DEVICE,file=PATH)"));
    };
    let inner = arguments.device().await?;
    arguments.finish()?;
    Ok(Arc::new(LogFilter::new(inner, path)?))
}

async fn model(mut arguments: SpecArguments) -> Result<SharedDevice, Error> {
    let Some(disk) = arguments.option("disk", DiskKind::parse)? else {
        let known = DiskKind::ALL.map(|entry| entry.0).join(", ");
        return Err(arguments.invalid(format!("model needs a disk: model(DEVICE,disk=KIND); known are {known}")));
    };
    let default = ModelOptions::new(disk);
    let options = ModelOptions {
        clock: arguments.option("clock", parse_clock)?.unwrap_or(default.clock),
        speed: arguments.option("speed", parse_speed)?.unwrap_or(default.speed),
        queue_depth: arguments.option("queue-depth", parse_queue_depth)?.unwrap_or(default.queue_depth),
        ..default
    };
    let inner = arguments.device().await?;
    arguments.finish()?;
    Ok(Arc::new(ModelFilter::new(inner, options)))
}

async fn throttle(mut arguments: SpecArguments) -> Result<SharedDevice, Error> {
    let options = ThrottleOptions {
        iops: arguments.option("iops", |text| parse_rate(text, text.parse().ok()))?,
        bandwidth: arguments.option("bandwidth", |text| parse_rate(text, parse_size(text).ok()))?,
    };
    let inner = arguments.device().await?;
    arguments.finish()?;
    Ok(Arc::new(ThrottleFilter::new(inner, options)))
}

async fn stripe(mut arguments: SpecArguments) -> Result<SharedDevice, Error> {
    let unit_bytes = arguments.option("unit", parse_size)?.unwrap_or(STRIPE_UNIT_BYTES);
    let devices = arguments.devices().await?;
    arguments.finish()?;
    Ok(Arc::new(StripeDevice::new(devices, unit_bytes)?))
}

fn parse_queue_depth(text: &str) -> Result<usize, String> {
    let depth = text.parse().ok().filter(|depth| *depth >= 1);
    depth.ok_or_else(|| format!("\"{text}\" is no depth of a queue: 1 or more"))
}

fn parse_rate(text: &str, rate: Option<u64>) -> Result<u64, String> {
    rate.filter(|&rate| rate > 0).ok_or_else(|| format!("\"{text}\" is no rate; write 150, or 20M for bytes a second"))
}

fn parse_clock(text: &str) -> Result<ModelClock, String> {
    match text {
        "real" => Ok(ModelClock::Real),
        "virtual" => Ok(ModelClock::Virtual),
        _ => Err(format!("\"{text}\" is no clock; write real or virtual")),
    }
}

fn parse_speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed: &f64| speed.is_finite() && *speed > 0.0);
    speed.ok_or_else(|| format!("\"{text}\" is no speed; write a number above 0, such as 10"))
}

fn parse_path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("a path is missing here".to_owned()) } else { Ok(PathBuf::from(text)) }
}

fn parse_seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("\"{text}\" is no seed; write a whole number"))
}

fn parse_kind(text: &str) -> Result<DeviceErrorKind, String> {
    match text {
        "io" => Ok(DeviceErrorKind::Io),
        "full" => Ok(DeviceErrorKind::Full),
        _ => Err(format!("\"{text}\" is no kind of error; write io or full")),
    }
}

#[cfg(test)]
mod tests {
    use crate::{OpenOptions, open};

    #[tokio::test]
    async fn memory_is_never_smaller_than_requested() {
        for (spec, size_bytes) in [("memory:1000001", 1_003_520), ("memory:1M", 1 << 20), ("memory:1", 4096)] {
            assert_eq!(open(spec, &OpenOptions::default()).await.unwrap().geometry().size_bytes, size_bytes);
        }
        for spec in ["memory:8E", "memory:18446744073709551615", "memory:9223372036854775807"] {
            let error = open(spec, &OpenOptions::default()).await.map(drop).unwrap_err();
            assert!(error.detail.contains("less than 8E"), "{error}");
        }
    }
}
