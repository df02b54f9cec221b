//! `nectary store put`: stores a file or the standard input as an object.
//!
//! Owns: the copying, with one piece at a time in memory. Promises: an incomplete object is not stored; what is put
//! under a URL is a response that the proxy serves.

use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use nectary_block::format_size;
use nectary_proxy::by_hand::{DescribedResponse, describe, is_url};
use nectary_store::{Fill, FillRole, KeyRef, SpanSet};

use super::in_use::{BusyAlternative, explained};
use super::keys::key_to_put;
use crate::arguments::PutArguments;
use crate::device::{StoreAccess, open_store};
use crate::exit::{CommandFailure, FAILED, GOOD, USAGE};
use crate::progress;

/// The length of one read. *Units*: bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Runs the command.
pub async fn run(arguments: &PutArguments) -> Result<u8, CommandFailure> {
    let key = key_to_put(&arguments.key)?;
    let described = described(arguments, &key)?;
    let (mut input, length) = open(&arguments.file)?;
    let instead = BusyAlternative::Do("let the proxy fetch it");
    let store = open_store(&arguments.device, &arguments.spans, StoreAccess::Write).await;
    let store = store.map_err(|failure| explained(failure, &instead))?;
    let result = put(&store, arguments, (&key, described), &mut input, length).await;
    // Closing the store writes the remaining objects; nothing is durable before.
    store.close().await?;
    result
}

/// The metadata and tags of the object.
fn described(arguments: &PutArguments, key: &[u8]) -> Result<DescribedResponse, CommandFailure> {
    if is_url(&arguments.key) {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_millis());
        let now_ms = u64::try_from(now_ms).unwrap_or(u64::MAX);
        return describe(key, &arguments.header, arguments.ttl, now_ms).map_err(|why| {
            let remedy = "change --header or --ttl (docs/cli.md, nectary store put)";
            CommandFailure::new(USAGE, format!("{}: {why}", arguments.key), remedy)
        });
    }
    if arguments.ttl.is_some() || !arguments.header.is_empty() {
        let message = format!("--ttl and --header are for URLs, which the proxy serves; {:?} is none", arguments.key);
        return Err(CommandFailure::new(USAGE, message, "leave them out, or name a URL such as http://example.org/"));
    }
    Ok(DescribedResponse { metadata: Bytes::new(), tags: Vec::new() })
}

async fn put(
    store: &SpanSet,
    arguments: &PutArguments,
    (key, described): (&[u8], DescribedResponse),
    input: &mut dyn Read,
    length: Option<u64>,
) -> Result<u8, CommandFailure> {
    let key = KeyRef::new(key, b"");
    let replaced = store.get(key).await;
    let cannot = |why: &dyn std::fmt::Display| {
        let message = format!("{}: cannot store {}: {why}", arguments.device.spec, arguments.file.display());
        CommandFailure::new(FAILED, message, "try again; see `nectary store stat` for the store's state")
    };
    let FillRole::Leader(mut fill) = store.begin_fill(key, replaced.as_ref())? else {
        return Err(cannot(&"its key is being stored already"));
    };
    refuse_too_long(arguments, &fill, length.unwrap_or(0))?;
    let tags = arguments.tag.iter().map(String::as_bytes).chain(described.tags.iter().map(Vec::as_slice));
    fill.tag(tags)?;
    fill.wait_for_room(b"", &described.metadata, length).await;
    if !fill.start(b"", described.metadata, length) {
        return Err(cannot(&"the key with its tags and headers is too long for this store, or it takes no more"));
    }
    let bar = progress::bytes(arguments.key.clone(), length);
    let mut buffer = vec![0; PIECE_BYTES];
    let mut written_bytes = 0;
    loop {
        let count = input.read(&mut buffer).map_err(|error| unreadable(&arguments.file, &error))?;
        if count == 0 {
            break;
        }
        written_bytes += count as u64;
        refuse_too_long(arguments, &fill, written_bytes)?;
        let piece = Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
        fill.write(piece).await.map_err(|error| cannot(&error))?;
        bar.inc(count as u64);
    }
    bar.finish_and_clear();
    fill.finish().await.map_err(|error| cannot(&error))?;
    Ok(GOOD)
}

/// Refuses a body that is longer than this store can hold.
fn refuse_too_long(arguments: &PutArguments, fill: &Fill, body_bytes: u64) -> Result<(), CommandFailure> {
    let bytes_max = fill.object_bytes_max();
    if body_bytes <= bytes_max {
        return Ok(());
    }
    let (spec, file) = (&arguments.device.spec, arguments.file.display());
    let message = format!(
        "{spec}: {file} is too long for this store: it takes bodies of at most {bytes_max} bytes ({})",
        format_size(bytes_max)
    );
    let remedy = "make a larger store: a body can have a quarter of it, or of one span of several; or put it in parts";
    Err(CommandFailure::new(FAILED, message, remedy))
}

fn unreadable(path: &Path, error: &std::io::Error) -> CommandFailure {
    let remedy = "name a file that this user can read, or - for the standard input";
    CommandFailure::new(FAILED, format!("cannot read {}: {error}", path.display()), remedy)
}

/// Opens the input; also returns its length if that is known.
fn open(path: &Path) -> Result<(Box<dyn Read>, Option<u64>), CommandFailure> {
    if path == Path::new("-") {
        return Ok((Box::new(std::io::stdin()), None));
    }
    let opened = std::fs::File::open(path).and_then(|file| Ok((file.metadata()?, file)));
    let (metadata, file) = opened.map_err(|error| unreadable(path, &error))?;
    if metadata.is_dir() {
        return Err(unreadable(path, &std::io::ErrorKind::IsADirectory.into()));
    }
    Ok((Box::new(file), metadata.is_file().then_some(metadata.len())))
}
