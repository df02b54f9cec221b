//! `nectary volume format`.
//!
//! Owns: refusing a disk that is not empty. Leaves to others: writing the volume (`nectary-volume`).

use std::time::{SystemTime, UNIX_EPOCH};

use nectary_block::format_size;
use nectary_volume::format::{VolumeIdentity, VolumeLabel};
use nectary_volume::journal::{self, FormatOptions};
use nectary_volume::{metadata, random_id};

use crate::arguments::VolumeFormatArguments;
use crate::exit::{BUSY, CommandFailure, FAILED, GOOD, USAGE};
use crate::output;

/// The length of a disk's start that must be empty. *Units*: bytes.
const LOOK_BYTES: usize = 1 << 20;
/// The size of the smallest volume. *Units*: bytes.
const SIZE_MIN: u64 = 256 << 20;
/// The size of a metadata segment: 8 MiB. *Units*: blocks.
const SEGMENT_BLOCKS: u64 = 2048;
/// The maximum number of by which the clocks of two hosts may differ in speed. *Units*: thousandths.
const DRIFT_PER_MILLE: u32 = 10;

/// Makes an empty volume.
pub async fn run(arguments: &VolumeFormatArguments) -> Result<u8, CommandFailure> {
    let disk = &arguments.disk;
    // The check comes first, so that no file is made.
    if let Some(size) = arguments.size.filter(|size| *size < SIZE_MIN) {
        let what = format!("--size {}: the smallest volume has {}", format_size(size), format_size(SIZE_MIN));
        return Err(CommandFailure::new(USAGE, what, "give a larger size"));
    }
    // The disk is opened exclusively, so that no process of this host mounts or serves it.
    let device = super::open(disk, &arguments.engine, arguments.size, false).await?;
    let size = device.geometry().size_bytes;
    let look = LOOK_BYTES.min(usize::try_from(size).unwrap_or(LOOK_BYTES));
    let start = nectary_block::read(&*device, 0, look).await?;
    if !arguments.force && start.iter().any(|&byte| byte != 0) {
        let block = nectary_volume::format::BLOCK_BYTES;
        let what = match (0..2).find_map(|copy| VolumeLabel::decode(copy, start.get(copy as usize * block..)?).ok()) {
            Some(label) => format!("the volume {}", super::shown_name(&label)),
            None => "something".to_owned(),
        };
        return Err(CommandFailure::new(
            BUSY,
            format!("{disk}: there is {what} on it"),
            "name another disk, or give --force: everything on it is lost, and no host may have it mounted",
        ));
    }
    let lease_ms = u32::try_from(arguments.lease.as_millis()).unwrap_or(u32::MAX);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let options = FormatOptions {
        name: arguments.name.clone(),
        segment_blocks: SEGMENT_BLOCKS,
        lease_ms,
        drift_per_mille: DRIFT_PER_MILLE,
        force: true,
        volume: VolumeIdentity(random_id()),
        hash_key: random_id(),
        created_s: now.as_secs(),
    };
    let now_ns = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
    let label = journal::format(&device, &options, |layout| metadata::first(layout, now_ns)).await;
    let label = label.map_err(|error| {
        CommandFailure::new(
            FAILED,
            format!("{disk}: {error}"),
            "the smallest volume has 256 MiB, the lease 1 s to 10 min",
        )
    })?;
    let name = super::shown_name(&label);
    output::text(&format!("volume {name} of {} on {disk}\n", format_size(size)))?;
    Ok(GOOD)
}
