//! `nectary store`: commands on stores.
//!
//! Owns: the commands that make, read and change a store, one small function each. Leaves to others: the work of the
//! store.
//! Promises: when a command succeeds, its changes are durable.

mod put;

use anyhow::Context;
use nectary_block::format_size;
use nectary_store::{CreateOptions, KeyRef, SpanDevice, Spans, Store};

use crate::arguments::{CreateArguments, KeyArguments, PurgeArguments, ReadArguments, StoreCommand};
use crate::device::{close, open_device, open_store, opened, span_devices};
use crate::exit::{DEGRADED, FAILED, Failure, GOOD, NOT_FOUND, USAGE};
use crate::purge::purge_tags;
use crate::{output, progress};

/// Runs a command.
pub async fn run(command: &StoreCommand) -> Result<u8, Failure> {
    match command {
        StoreCommand::Create(arguments) => create(arguments).await,
        StoreCommand::Stat(arguments) => stat(arguments).await,
        StoreCommand::Check(arguments) => check(arguments).await,
        StoreCommand::Get(arguments) => get(arguments).await,
        StoreCommand::Put(arguments) => put::run(arguments).await,
        StoreCommand::Delete(arguments) => delete(arguments).await,
        StoreCommand::Purge(arguments) => purge(arguments).await,
    }
}

async fn create(arguments: &CreateArguments) -> Result<u8, Failure> {
    let spec = &arguments.device.spec;
    let mut devices = span_devices(spec, &arguments.spans, &arguments.device.engine, arguments.size).await;
    let options = CreateOptions {
        size_bytes: 0,
        segment_bytes: arguments.segment,
        force: arguments.force,
        ..CreateOptions::default()
    };
    for named in &mut devices {
        let SpanDevice { spec, device, size_bytes } = named;
        let device = match device {
            Ok(device) => device,
            Err(_) => {
                return Err(open_device(spec, &arguments.device.engine, arguments.size)
                    .await
                    .err()
                    .unwrap_or_else(gone));
            }
        };
        *size_bytes = arguments.size.unwrap_or(device.geometry().size_bytes);
        if !arguments.force && Store::probe(device).await? {
            let remedy = "use it as it is, or add --force to forget everything in it";
            return Err(Failure::new(FAILED, format!("{spec}: there is a store on it already"), remedy));
        }
    }
    let size_bytes = devices.iter().map(|named| named.size_bytes).sum();
    let names = devices.iter().map(|named| named.spec.clone()).collect::<Vec<_>>().join(" and ");
    let used = opened(&devices);
    Spans::create(devices, &options).await.with_context(|| format!("cannot make a store on {names}"))?;
    close(&used).await?;
    output::text(&format!("made a store of {} on {names}\n", format_size(size_bytes)))?;
    Ok(GOOD)
}

fn gone() -> Failure {
    Failure::new(FAILED, "a device came and went", "try again")
}

async fn stat(arguments: &ReadArguments) -> Result<u8, Failure> {
    let store = open_store(&arguments.device, &arguments.spans).await?;
    let stat = store.stat();
    store.close().await?;
    if arguments.json {
        output::json(&stat)?;
    } else {
        output::text(&output::figures(&serde_json::to_value(&stat)?, 0))?;
    }
    Ok(GOOD)
}

async fn check(arguments: &ReadArguments) -> Result<u8, Failure> {
    let store = open_store(&arguments.device, &arguments.spans).await?;
    let bar = progress::entries("checking");
    let report = store
        .check(|done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })
        .await;
    bar.finish_and_clear();
    store.close().await?;
    if arguments.json {
        output::json(&report)?;
    } else {
        output::text(&output::figures(&serde_json::to_value(&report)?, 0))?;
    }
    if report.damaged > 0 {
        let message = format!("{}: {} records are damaged", arguments.device.spec, report.damaged);
        return Err(Failure::new(
            DEGRADED,
            message,
            "their objects are misses and are fetched again; look at the disk",
        ));
    }
    Ok(GOOD)
}

async fn get(arguments: &KeyArguments) -> Result<u8, Failure> {
    let store = open_store(&arguments.device, &arguments.spans).await?;
    let result = write_body(&store, arguments).await;
    store.close().await?;
    result
}

async fn write_body(store: &Spans, arguments: &KeyArguments) -> Result<u8, Failure> {
    let key = key(&arguments.key)?;
    let Some(object) = store.get(key).await else {
        let message = format!("{}: there is no object under {:?}", arguments.device.spec, arguments.key);
        return Err(Failure::new(NOT_FOUND, message, "keys of the proxy are whole URLs, such as http://example.org/"));
    };
    let mut body = object.reader(0..object.body_bytes());
    while let Some(chunk) = body.next().await {
        output::write(&chunk.with_context(|| format!("the body of {:?} ends early", arguments.key))?)?;
    }
    Ok(GOOD)
}

async fn delete(arguments: &KeyArguments) -> Result<u8, Failure> {
    let store = open_store(&arguments.device, &arguments.spans).await?;
    let purged = store.purge_key(key(&arguments.key)?.primary).await;
    store.close().await?;
    purged?;
    Ok(GOOD)
}

async fn purge(arguments: &PurgeArguments) -> Result<u8, Failure> {
    let store = open_store(&arguments.device, &arguments.spans).await?;
    let purged = match (&arguments.prefix, &arguments.tag[..]) {
        (Some(prefix), _) => store.purge_prefix(prefix.as_bytes()).await,
        (None, []) => store.purge_all().await,
        (None, tags) => purge_tags(&store, tags).await,
    };
    store.close().await?;
    purged?;
    Ok(GOOD)
}

/// Returns the key of an object that was put by hand, or by the proxy without `Vary`.
fn key(text: &str) -> Result<KeyRef<'_>, Failure> {
    let key = KeyRef::new(text.as_bytes(), b"");
    if text.is_empty() || !key.is_bounded() {
        let message = format!("a key has 1 to {} bytes, this one has {}", nectary_store::PRIMARY_BYTES_MAX, text.len());
        return Err(Failure::new(USAGE, message, "use a shorter key"));
    }
    Ok(key)
}
