//! `nectary volume format`.
//!
//! Owns: refusing a disk that has something on it. Leaves to others: the bytes (`nectary-volume`).

use nectary_block::format_size;
use nectary_volume::format::Label;
use nectary_volume::journal::{self, FormatOptions};

use crate::arguments::VolumeFormatArguments;
use crate::exit::{BUSY, FAILED, Failure, GOOD};
use crate::output;

/// How much at the start of a disk is looked at. *Units*: bytes.
const LOOK_BYTES: usize = 1 << 20;

/// Makes an empty volume.
pub async fn run(arguments: &VolumeFormatArguments) -> Result<u8, Failure> {
    let disk = &arguments.disk;
    // Alone: nobody on this host mounts or serves it.
    let device = super::open(disk, &arguments.engine, arguments.size, false).await?;
    let size = device.geometry().size_bytes;
    let look = LOOK_BYTES.min(usize::try_from(size).unwrap_or(LOOK_BYTES));
    let start = nectary_block::read(&*device, 0, look).await?;
    if !arguments.force && start.iter().any(|&byte| byte != 0) {
        let block = nectary_volume::format::BLOCK_BYTES;
        let what = match (0..2).find_map(|copy| Label::decode(copy, start.get(copy as usize * block..)?).ok()) {
            Some(label) => format!("the volume {}", super::shown_name(&label)),
            None => "something".to_owned(),
        };
        return Err(Failure::new(
            BUSY,
            format!("{disk}: there is {what} on it"),
            "name another disk, or give --force: everything on it is lost, and no host may have it mounted",
        ));
    }
    let lease_ms = u32::try_from(arguments.lease.as_millis()).unwrap_or(u32::MAX);
    let options = FormatOptions { name: arguments.name.clone(), lease_ms, ..FormatOptions::default() };
    let label = journal::format(&device, &options).await.map_err(|error| {
        Failure::new(FAILED, error.to_string(), "the smallest volume has 256 MiB; see the kernel's messages (`dmesg`)")
    })?;
    let name = super::shown_name(&label);
    output::text(&format!("volume {name} of {} on {disk}\n", format_size(size)))?;
    Ok(GOOD)
}
