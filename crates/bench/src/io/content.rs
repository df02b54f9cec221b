//! The contents of the streams: they are made before the timed part of a pass, and compared after it.
//!
//! Owns: filling, the comparison of every byte, and dropping cached pages so that reads reach the device. Promises:
//! after [`settle`] every block of every stream has the pass's write generation.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::job::{IoPass, PassOutcome, StreamPlace};
use super::pattern::{BLOCK_BYTES, BlockPattern, Stamp};
use crate::{Error, sys};

/// The size of requests outside of the timed part. *Units*: bytes.
const CHUNK_BYTES: u64 = 1 << 20;

/// Opens a file with direct I/O if possible.
fn open(place: &StreamPlace, writes: bool) -> Result<File, Error> {
    let open = |flags| File::options().read(true).write(writes).custom_flags(flags).open(&place.path);
    let opened = open(libc::O_DIRECT).or_else(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => open(0),
        _ => Err(error),
    });
    opened.map_err(|error| Error::failed(place.path.display(), error))
}

/// Divides `0..bytes` into pieces; returns the offset and length of each.
fn chunks(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..bytes.div_ceil(CHUNK_BYTES))
        .map(move |index| (index * CHUNK_BYTES, CHUNK_BYTES.min(bytes - index * CHUNK_BYTES)))
}

/// Writes all blocks of all streams durably, with the given generation.
///
/// *Errors*: [`ExperimentErrorKind::Failed`](crate::ExperimentErrorKind::Failed) if a write fails; if there is no room, the message says
/// what to do.
pub fn fill(places: &[StreamPlace], bytes: u64, generation: u32) -> Result<(), Error> {
    let pattern = BlockPattern::new();
    let mut buffer = pattern.buffer(CHUNK_BYTES.min(bytes));
    for (stream, place) in places.iter().enumerate() {
        let failed = |error: std::io::Error| {
            let what = match error.raw_os_error() {
                Some(libc::ENOSPC) => "; make room there, or give a smaller --size",
                _ => "",
            };
            Error::failed(place.path.display(), format!("{error}{what}"))
        };
        let file = open(place, true)?;
        for (offset, length) in chunks(bytes) {
            let piece = &mut buffer[..length as usize];
            BlockPattern::stamp(piece, Stamp { offset, generation, stream: stream as u32 });
            file.write_all_at(piece, place.start + offset).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
    }
    Ok(())
}

/// Compares every byte of all streams with the contents that a pass should have left.
///
/// *Errors*: [`ExperimentErrorKind::Void`](crate::ExperimentErrorKind::Void) at the first wrong block.
pub fn verify(job: &IoPass, outcome: &PassOutcome) -> Result<(), Error> {
    let pattern = BlockPattern::new();
    let mut buffer = pattern.buffer(CHUNK_BYTES.min(job.bytes));
    for (number, (place, stream)) in job.places.iter().zip(&outcome.streams).enumerate() {
        let done = stream.count().min(job.requests());
        let bytes = if job.is_fresh { done * job.request_bytes } else { job.requests() * job.request_bytes };
        let file = open(place, false)?;
        for (offset, length) in chunks(bytes) {
            let piece = &mut buffer[..length as usize];
            file.read_exact_at(piece, place.start + offset)
                .map_err(|error| Error::failed(place.path.display(), error))?;
            for (index, block) in piece.chunks(BLOCK_BYTES).enumerate() {
                let offset = offset + (index * BLOCK_BYTES) as u64;
                let request = offset / job.request_bytes;
                let is_written = request < done && job.is_write(number, request);
                let before = job.read_generations.get(number).copied();
                let Some(generation) = (if is_written { Some(job.write_generation) } else { before }) else { continue };
                pattern.check(block, Stamp { offset, generation, stream: number as u32 })?;
            }
        }
    }
    Ok(())
}

/// Compares the contents after a pass of writes. If the pass did not write all blocks, fills its streams with its write
/// generation.
pub fn settle(job: &IoPass, outcome: &PassOutcome) -> Result<(), Error> {
    verify(job, outcome)?;
    let is_whole = outcome.streams.iter().all(|stream| stream.writes >= job.requests());
    if !is_whole || job.requests() * job.request_bytes != job.bytes {
        fill(&job.places, job.bytes, job.write_generation)?;
    }
    Ok(())
}

/// Writes the dirty pages of the streams' files and drops their pages; the rest of the page cache stays.
pub fn drop_pages(places: &[StreamPlace]) -> Result<(), Error> {
    for place in places {
        let file = File::open(&place.path).map_err(|error| Error::failed(place.path.display(), error))?;
        sys::drop_pages(&file)?;
    }
    Ok(())
}
