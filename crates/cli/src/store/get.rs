//! `nectary store get`: writes an object's body to the standard output.
//!
//! Owns: the choice of the variant, if the key is a URL that varies. Promises: nothing is written to the store.

use anyhow::Context;
use nectary_proxy::by_hand::{headers_of, variant_for};
use nectary_store::{KeyRef, SpanSet, StoredObject};

use super::in_use::{BusyAlternative, quoted};
use super::keys::{bounded, keys};
use super::reading;
use crate::arguments::GetArguments;
use crate::exit::{CommandFailure, GOOD, NOT_FOUND};
use crate::{output, progress};

/// Runs the command.
pub async fn run(arguments: &GetArguments) -> Result<u8, CommandFailure> {
    let keys = keys(&arguments.key)?;
    let instead = BusyAlternative::Do("request it from the proxy");
    let store = reading::open(&arguments.device, &arguments.spans, &instead).await?;
    reading::say_damage(&arguments.device.spec, &store.repairs());
    let result = match arguments.variants {
        true => list_variants(&store, arguments, &keys).await,
        false => write_body(&store, arguments, &keys).await,
    };
    store.close().await?;
    result
}

async fn write_body(store: &SpanSet, arguments: &GetArguments, keys: &[Vec<u8>]) -> Result<u8, CommandFailure> {
    let object = chosen(store, arguments, keys).await?;
    let mut body = object.reader(0..object.body_bytes());
    while let Some(chunk) = body.next().await {
        output::write(&chunk.with_context(|| format!("the body of {:?} ends early", arguments.key))?)?;
    }
    Ok(GOOD)
}

/// Prints the variants of a URL, one a line.
async fn list_variants(store: &SpanSet, arguments: &GetArguments, keys: &[Vec<u8>]) -> Result<u8, CommandFailure> {
    let bar = progress::entries("looking for variants");
    let mut lines = Vec::new();
    for key in keys {
        let variants = store.variants(key, |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        lines.extend(variants.await.iter().filter(|variant| !variant.is_empty()).map(|variant| {
            let headers = headers_of(variant);
            let options = headers.iter().map(|header| format!("--header {}", quoted(header)));
            if headers.is_empty() { "(no --header)".to_owned() } else { options.collect::<Vec<_>>().join(" ") }
        }));
    }
    bar.finish_and_clear();
    if lines.is_empty() {
        let message = format!("{}: {:?} has no variants on the disk", arguments.device.spec, arguments.key);
        return Err(CommandFailure::new(NOT_FOUND, message, "get it without --variants"));
    }
    lines.sort_unstable();
    output::text(&(lines.join("\n") + "\n"))?;
    Ok(GOOD)
}

/// Finds the object under one of the keys; of a URL that varies, the variant for the given headers.
async fn chosen(store: &SpanSet, arguments: &GetArguments, keys: &[Vec<u8>]) -> Result<StoredObject, CommandFailure> {
    let (spec, name) = (&arguments.device.spec, &arguments.key);
    for key in keys {
        let Some(object) = store.try_get(KeyRef::new(key, b"")).await? else { continue };
        let Some(variant) = variant_for(object.metadata(), &arguments.header) else { return Ok(object) };
        let chosen = bounded(KeyRef::new(key, &variant.part))?;
        if let Some(object) = store.try_get(chosen).await? {
            return Ok(object);
        }
        let names = variant.names.join(", ");
        let such = match arguments.header.is_empty() {
            true => "a request without these headers",
            false => "a request with the given headers",
        };
        let message = format!("{spec}: {name:?} has variants by the request headers {names}; there is none for {such}");
        let example = match variant.names.first().map(String::as_str) {
            Some("accept-encoding") | None => "accept-encoding: gzip".to_owned(),
            Some(name) => format!("{name}: VALUE"),
        };
        let remedy =
            format!("give the headers as the client sends them, such as --header '{example}'; --variants lists all");
        return Err(CommandFailure::new(NOT_FOUND, message, remedy));
    }
    let message = format!("{spec}: there is no object under {name:?}");
    Err(CommandFailure::new(NOT_FOUND, message, "keys of the proxy are whole URLs, such as http://example.org/"))
}
