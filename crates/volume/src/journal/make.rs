//! Making a volume: the label, the first epoch, and its first append.
//!
//! Promises: the label is written last, so that a crash leaves a complete volume or none; a device whose first 1 MiB
//! is not all zeroes is refused unless `force` is set; a device that other hosts cannot share is always refused.

use nectary_block::{SharedDevice, SurvivalLevel};

use super::cursor::{AppendCursor, ManifestPlace, end_of, first_block};
use super::disk::BlockDisk;
use super::error::Error;
use super::transactions::{groups, server_transactions};
use crate::format::{
    BLOCK_BYTES, BLOCKS_MAX, EPOCH_HEADS, EPOCH_START, EpochHead, LEASE_START, Mutation, SECTORS_OF_SERVER, SERVERS,
    SPACE_START, VERSION, VolumeIdentity, VolumeLabel, epoch_block,
};

/// The number of segments that are set aside: one each for the first epoch and for the next 15.
const SEGMENTS: u64 = 16;
/// The smallest volume: 256 MiB. *Units*: blocks.
const BLOCKS_MIN: u64 = 65536;
/// The length of a device's start that must contain only zeroes. *Units*: blocks.
const LOOK_BLOCKS: u64 = 256;
/// The length of one write of zeroes. *Units*: blocks.
const ZERO_BLOCKS: u64 = 512;

/// The settings of a new volume.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// The name of the volume, at most 64 bytes.
    pub name: String,
    /// Size of a metadata segment, a power of two from 2048 to 65536. *Units*: blocks.
    pub segment_blocks: u64,
    /// The length of a server's lease, 1000 to 600000. *Units*: milliseconds.
    pub lease_ms: u32,
    /// The maximum number of by which two clocks may differ in speed, 1 to 100. *Units*: thousandths.
    pub drift_per_mille: u32,
    /// Whether the contents of the device may be overwritten; if not, a device whose first 1 MiB is not all zeroes is
    /// refused.
    pub force: bool,
    /// The identity of the volume, a random number.
    pub volume: VolumeIdentity,
    /// The random key of the hash of names.
    pub hash_key: [u8; 16],
    /// The time of creation. *Units*: seconds since 1970.
    pub created_s: u64,
}

/// A metadata segment that is set aside for an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetAside {
    /// The first block of the segment.
    pub block: u64,
    /// The length of the segment. *Units*: blocks.
    pub blocks: u64,
    /// The epoch that the segment is for.
    pub epoch: u64,
}

/// The positions of the metadata segments in a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeLayout {
    /// Size of the disk. *Units*: blocks.
    pub blocks: u64,
    /// The segments of epochs 1 to 16, which must be recorded in *space* as metadata.
    pub segments: Vec<SetAside>,
}

/// Makes a volume; `first` returns its first records.
///
/// *Errors*: [`Error::RefusedCall`] for a device that is too small, that cannot be shared, or, without `force`, whose first
/// 1 MiB is not all zeroes.
pub async fn format(
    device: &SharedDevice,
    options: &FormatOptions,
    first: impl FnOnce(&VolumeLayout) -> Vec<Mutation>,
) -> Result<VolumeLabel, Error> {
    let disk = BlockDisk::new(device);
    check_device(device)?;
    let layout = layout(&disk, options)?;
    if !options.force {
        check_empty(device, &disk).await?;
    }
    let first_segment = layout.segments[0].block;
    let label = VolumeLabel {
        volume: options.volume,
        blocks: layout.blocks,
        segment_blocks: options.segment_blocks,
        first_segment,
        hash_key: options.hash_key,
        created_s: options.created_s,
        lease_ms: options.lease_ms,
        drift_per_mille: options.drift_per_mille,
        incompat: 0,
        ro_compat: 0,
        compat: 0,
        version_min: VERSION,
        version_made: VERSION,
        name: options.name.clone(),
    };
    let copies = [label.encode(0).map_err(Error::Bounds)?, label.encode(1).map_err(Error::Bounds)?];
    for (bytes, copy) in copies.iter().zip(0..) {
        let decoded = VolumeLabel::decode(copy, bytes).map_err(|error| Error::Refused(error.to_string()))?;
        if decoded != label {
            return Err(Error::Refused("the name is too long: 64 bytes are allowed".to_owned()));
        }
    }
    let frames = first_epoch(&label, options, first(&layout))?;
    zero(&disk, 0, LEASE_START).await?;
    disk.flush().await?;
    zero(&disk, LEASE_START, u64::from(SERVERS * SECTORS_OF_SERVER)).await?;
    zero(&disk, EPOCH_START, EPOCH_HEADS).await?;
    for (block, bytes) in frames {
        disk.write(block, &bytes).await?;
    }
    disk.flush().await?;
    for (bytes, copy) in copies.iter().zip(0..) {
        disk.write(copy, bytes).await?;
    }
    disk.flush().await?;
    Ok(label)
}

/// Builds the frames of the first epoch: header, appends, head. The epoch has no leader, so the first server starts at
/// once.
fn first_epoch(
    label: &VolumeLabel,
    options: &FormatOptions,
    first: Vec<Mutation>,
) -> Result<Vec<(u64, Vec<u8>)>, Error> {
    let segment = label.first_segment;
    let cursor = AppendCursor { epoch: 1, segment, number: 0, block: segment + 1, sequence: 1, chain: 0, flushed: 0 };
    let header = first_block(&cursor, 0, 0, ManifestPlace::default());
    let mut frames = vec![(segment, header.encode(label.volume, segment).map_err(Error::Bounds)?)];
    let groups = groups(server_transactions(first));
    let time_ns = options.created_s.saturating_mul(1_000_000_000);
    let spare = std::collections::VecDeque::new();
    let plan = cursor.plan(label, groups, &spare, ManifestPlace::default(), time_ns).map_err(|error| match error {
        Error::NoSegment => Error::Refused("the first records are too many".to_owned()),
        error => error,
    })?;
    debug_assert!(plan.cursor.block <= end_of(label, segment, 0));
    frames.extend(plan.frames);
    let head = EpochHead {
        epoch: 1,
        incarnation: options.volume.0,
        previous_epoch: 0,
        sealed_sequence: 0,
        sealed_chain: 0,
        journal_segment: segment,
        base_segment: segment,
        created_s: options.created_s,
    };
    frames.push((epoch_block(1), head.encode(label.volume).map_err(Error::Bounds)?));
    Ok(frames)
}

/// Refuses devices that other hosts cannot see.
fn check_device(device: &SharedDevice) -> Result<(), Error> {
    let geometry = device.geometry();
    let spec = device.spec();
    if geometry.write_survives == SurvivalLevel::Nothing {
        let why = match geometry.flush_survives {
            SurvivalLevel::Nothing => "it ends with this process; a volume needs a disk that hosts share",
            _ => {
                "what is written to it stays in this process until a flush; other hosts do not see it: give the disk itself"
            }
        };
        return Err(Error::Refused(format!("{spec}: {why}")));
    }
    Ok(())
}

fn layout(disk: &BlockDisk, options: &FormatOptions) -> Result<VolumeLayout, Error> {
    let size = options.segment_blocks;
    if !size.is_power_of_two() || !(2048..=65536).contains(&size) {
        return Err(Error::Refused(format!("segments of {size} blocks: a power of two from 2048 to 65536 is allowed")));
    }
    let blocks = disk.blocks().min(BLOCKS_MAX);
    let start = SPACE_START.next_multiple_of(size);
    let needed = BLOCKS_MIN.max(start + (SEGMENTS + 1) * size);
    if blocks < needed {
        let mib = |blocks: u64| (blocks * BLOCK_BYTES as u64) >> 20;
        return Err(Error::Refused(format!("the disk has {} MiB, a volume needs {}", mib(blocks), mib(needed))));
    }
    let segments = (0..SEGMENTS).map(|at| SetAside { block: start + at * size, blocks: size, epoch: at + 1 });
    Ok(VolumeLayout { blocks, segments: segments.collect() })
}

async fn check_empty(device: &SharedDevice, disk: &BlockDisk) -> Result<(), Error> {
    let bytes = disk.read(0, LOOK_BLOCKS).await?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let spec = device.spec();
    let what = match disk.label().await {
        Ok((label, _)) => format!("is the volume \"{}\" already", label.name),
        Err(_) => "has other contents".to_owned(),
    };
    Err(Error::Refused(format!("{spec} {what}; --force overwrites it")))
}

async fn zero(disk: &BlockDisk, block: u64, blocks: u64) -> Result<(), Error> {
    for start in (block..block + blocks).step_by(ZERO_BLOCKS as usize) {
        let count = ZERO_BLOCKS.min(block + blocks - start);
        disk.write(start, &vec![0; count as usize * BLOCK_BYTES]).await?;
    }
    Ok(())
}
