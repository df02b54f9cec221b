//! `nectary store put`: stores a file or the standard input as an object.
//!
//! Owns: the copying, with one piece at a time in memory. Promises: an incomplete object is not stored.

use std::io::Read;
use std::path::Path;

use anyhow::Context;
use bytes::Bytes;
use nectary_store::{FillRole, Spans};

use crate::arguments::PutArguments;
use crate::device::open_store;
use crate::exit::{BUSY, Failure, GOOD};
use crate::progress;

/// The length of one read. *Units*: bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Runs the command.
pub async fn run(arguments: &PutArguments) -> Result<u8, Failure> {
    let (mut input, length) = open(&arguments.file)?;
    let store = open_store(&arguments.device, &arguments.spans).await?;
    let result = put(&store, arguments, &mut input, length).await;
    // Closing the store writes the remaining objects; nothing is durable before.
    store.close().await?;
    result
}

async fn put(
    store: &Spans,
    arguments: &PutArguments,
    input: &mut dyn Read,
    length: Option<u64>,
) -> Result<u8, Failure> {
    let key = super::key(&arguments.key)?;
    let replaced = store.get(key).await;
    let FillRole::Leader(mut fill) = store.begin_fill(key, replaced.as_ref())? else {
        return Err(Failure::new(BUSY, "the key is being stored by somebody else", "try again"));
    };
    fill.tag(arguments.tag.iter().map(String::as_bytes))?;
    if !fill.start(b"", Bytes::new(), length) {
        return Err(Failure::new(BUSY, "the store cannot take the object now", "try again, or make a larger store"));
    }
    let bar = progress::bytes(arguments.key.clone(), length);
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let count = input.read(&mut buffer).with_context(|| format!("cannot read {}", arguments.file.display()))?;
        if count == 0 {
            break;
        }
        fill.write(Bytes::copy_from_slice(&buffer[..count])).await?;
        bar.inc(count as u64);
    }
    bar.finish_and_clear();
    fill.finish().await.with_context(|| format!("cannot store {}", arguments.file.display()))?;
    Ok(GOOD)
}

/// Opens the input; also returns its length if that is known.
fn open(path: &Path) -> Result<(Box<dyn Read>, Option<u64>), Failure> {
    if path == Path::new("-") {
        return Ok((Box::new(std::io::stdin()), None));
    }
    let failed = || format!("cannot read {}", path.display());
    let file = std::fs::File::open(path).with_context(failed)?;
    let metadata = file.metadata().with_context(failed)?;
    Ok((Box::new(file), metadata.is_file().then_some(metadata.len())))
}
