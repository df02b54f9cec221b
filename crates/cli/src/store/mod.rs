//! `nectary store`: commands on stores.
//!
//! Owns: the commands that make, read and change a store, one small function each. Leaves to others: the work of the
//! store.
//! Promises: when a command succeeds, its changes are durable.

mod get;
mod in_use;
mod keys;
mod put;
mod reading;

use anyhow::Context;
use nectary_block::format_size;
use nectary_store::{CreateOptions, PurgeEffect, SPAN_BYTES_MIN, SpanDevice, SpanSet, Store};
use serde_json::json;

use crate::arguments::{CreateArguments, DeleteArguments, PurgeArguments, ReadArguments, StoreCommand};
use crate::device::{StoreAccess, close, open_device, open_store, opened, span_devices};
use crate::exit::{CommandFailure, DEGRADED, FAILED, GOOD, NOT_FOUND, USAGE};
use crate::purge::purge_tags;
use crate::{output, progress};
use in_use::{BusyAlternative, explained};

/// What to do instead of looking at a store that another process has open.
const FIGURES: BusyAlternative =
    BusyAlternative::Do("see `nectary status --verbose`, which shows the figures of a running proxy");

/// Runs a command.
pub async fn run(command: &StoreCommand) -> Result<u8, CommandFailure> {
    match command {
        StoreCommand::Create(arguments) => create(arguments).await,
        StoreCommand::Stat(arguments) => stat(arguments).await,
        StoreCommand::Check(arguments) => check(arguments).await,
        StoreCommand::Get(arguments) => get::run(arguments).await,
        StoreCommand::Put(arguments) => put::run(arguments).await,
        StoreCommand::Delete(arguments) => delete(arguments).await,
        StoreCommand::Purge(arguments) => purge(arguments).await,
    }
}

async fn create(arguments: &CreateArguments) -> Result<u8, CommandFailure> {
    let spec = &arguments.device.spec;
    if let Some(bytes) = arguments.size.filter(|&bytes| bytes < SPAN_BYTES_MIN) {
        let (size, least) = (format_size(bytes), format_size(SPAN_BYTES_MIN));
        let message = format!("{spec}: {size} are too few for a store, or for a span of one: {least} are the least");
        return Err(CommandFailure::new(USAGE, message, "give a larger --size"));
    }
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
                let opened = open_device(spec, &arguments.device.engine, arguments.size).await;
                let failure = opened.err().unwrap_or_else(gone);
                let is_remote = ["nbd", "ram("].iter().any(|start| spec.starts_with(start));
                return Err(match failure.code() {
                    NOT_FOUND if !is_remote => failure.with_remedy("check the SPEC; with --size a file is created"),
                    _ => failure,
                });
            }
        };
        *size_bytes = arguments.size.unwrap_or(device.geometry().size_bytes);
        if !arguments.force && Store::probe(device).await? {
            let remedy = "use it as it is, or add --force to forget everything in it";
            return Err(CommandFailure::new(FAILED, format!("{spec}: there is a store on it already"), remedy));
        }
    }
    let size_bytes = devices.iter().map(|named| named.size_bytes).sum();
    let names = devices.iter().map(|named| named.spec.clone()).collect::<Vec<_>>().join(" and ");
    let used = opened(&devices);
    SpanSet::create(devices, &options).await.with_context(|| format!("cannot make a store on {names}"))?;
    close(&used).await?;
    output::text(&format!("made a store of {} on {names}\n", format_size(size_bytes)))?;
    Ok(GOOD)
}

fn gone() -> CommandFailure {
    CommandFailure::new(FAILED, "a device came and went", "try again")
}

async fn stat(arguments: &ReadArguments) -> Result<u8, CommandFailure> {
    let store = reading::open(&arguments.device, &arguments.spans, &FIGURES).await?;
    let (stat, repairs) = (store.stat(), store.repairs());
    store.close().await?;
    reading::say_repairs(&arguments.device.spec, &repairs);
    if arguments.json {
        output::json(&stat)?;
    } else {
        output::text(&output::figures(&serde_json::to_value(&stat)?, 0))?;
    }
    Ok(GOOD)
}

async fn check(arguments: &ReadArguments) -> Result<u8, CommandFailure> {
    let store = reading::open(&arguments.device, &arguments.spans, &FIGURES).await?;
    let bar = progress::entries("checking");
    let report = store
        .check(|done, total| {
            bar.set_length(total);
            bar.set_position(done);
        })
        .await;
    bar.finish_and_clear();
    let repairs = store.repairs();
    store.close().await?;
    reading::say_repairs(&arguments.device.spec, &repairs);
    if arguments.json {
        let mut report = serde_json::to_value(&report)?;
        if let Some(members) = report.as_object_mut() {
            members.insert("repairs".to_owned(), serde_json::to_value(&repairs)?);
        }
        output::json(&report)?;
    } else {
        output::text(&output::figures(&serde_json::to_value(&report)?, 0))?;
    }
    if report.damaged > 0 {
        let message = format!("{}: {} records are damaged", arguments.device.spec, report.damaged);
        return Err(CommandFailure::new(
            DEGRADED,
            message,
            "their objects are misses and are fetched again; look at the disk",
        ));
    }
    if let Some(damage) = repairs.iter().find(|repair| repair.is_damage) {
        let message = format!("{}: {}", arguments.device.spec, damage.what);
        let remedy = "copy it first if you want to look into it; the next open for writing repairs it";
        return Err(CommandFailure::new(DEGRADED, message, remedy));
    }
    Ok(GOOD)
}

async fn delete(arguments: &DeleteArguments) -> Result<u8, CommandFailure> {
    let keys = keys::keys(&arguments.key)?;
    let instead = BusyAlternative::Purge(json!({ "key": arguments.key }));
    let store = open_store(&arguments.device, &arguments.spans, StoreAccess::Write).await;
    let store = store.map_err(|failure| explained(failure, &instead))?;
    let mut purged = Ok(());
    for key in &keys {
        purged = purged.and(store.purge_key(key).await);
    }
    store.close().await?;
    purged?;
    Ok(GOOD)
}

async fn purge(arguments: &PurgeArguments) -> Result<u8, CommandFailure> {
    let params = match (&arguments.prefix, &arguments.tag[..]) {
        (Some(prefix), _) => json!({ "prefix": prefix }),
        (None, []) => json!({ "all": true }),
        (None, tags) => json!({ "tags": tags }),
    };
    let store = open_store(&arguments.device, &arguments.spans, StoreAccess::Write).await;
    let store = store.map_err(|failure| explained(failure, &BusyAlternative::Purge(params)))?;
    let purged = match (&arguments.prefix, &arguments.tag[..]) {
        (Some(prefix), _) => store.purge_prefix(prefix.as_bytes()).await,
        (None, []) => store.purge_all().await,
        (None, tags) => purge_tags(&store, tags, PurgeEffect::Hard).await,
    };
    store.close().await?;
    purged?;
    Ok(GOOD)
}
