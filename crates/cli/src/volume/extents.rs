//! `nectary volume info --file`: where the data of a file is.
//!
//! Owns: the output. Programs on a mount cannot ask for this, because the kernel passes no FIEMAP on to a FUSE server.
//! Leaves to others: reading the volume (`check`), and finding the file (`nectary-volume`).

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nectary_volume::metadata::{FileMap, file_map};
use serde_json::{Value, json};

use super::check::read;
use crate::arguments::VolumeReadArguments;
use crate::exit::{CommandFailure, FAILED, GOOD, NOT_FOUND};
use crate::output;

/// Shows the extents of a file.
pub async fn show(arguments: &VolumeReadArguments, path: &Path) -> Result<u8, CommandFailure> {
    let volume = read(arguments).await?;
    let shown = path.display();
    let found = file_map(&volume.tables, &volume.label, path.as_os_str().as_bytes()).map_err(|failure| {
        let system = std::io::Error::from_raw_os_error(failure.errno);
        match system.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                let remedy = "give the path below the root of the volume; symbolic links are not followed";
                CommandFailure::new(NOT_FOUND, format!("{shown}: {system}"), remedy)
            }
            _ => CommandFailure::new(
                FAILED,
                format!("{shown}: {failure}"),
                "`nectary volume check DISK` names the damage",
            ),
        }
    })?;
    match arguments.json {
        true => output::json(&object(&found))?,
        false => output::text(&text(&found, &shown.to_string()))?,
    }
    Ok(GOOD)
}

/// Returns offset, length and place on the disk of each extent, and whether it is unwritten. *Units*: bytes.
fn extents(found: &FileMap) -> impl Iterator<Item = (u64, u64, u64, bool)> + '_ {
    found.extents.iter().map(|(start, extent)| {
        let length = u64::from(extent.blocks) * super::BLOCK;
        (start * super::BLOCK, length, extent.block * super::BLOCK, extent.is_unwritten)
    })
}

fn object(found: &FileMap) -> Value {
    let extents: Vec<Value> = extents(found)
        .map(|(offset, length, disk, is_unwritten)| {
            json!({ "offset": offset, "length": length, "disk_offset": disk, "unwritten": is_unwritten })
        })
        .collect();
    let inode = &found.attributes.inode;
    json!({ "inode": found.attributes.number, "size_bytes": inode.size, "extents": extents })
}

fn text(found: &FileMap, shown: &str) -> String {
    let (number, size) = (found.attributes.number, found.attributes.inode.size);
    let mut text = format!("{shown}: inode {number}, {size} bytes, {} extents\n", found.extents.len());
    if !found.extents.is_empty() {
        let _ = writeln!(text, "{:>20} {:>14} {:>20}", "offset", "length", "offset on disk");
    }
    for (offset, length, disk, is_unwritten) in extents(found) {
        let unwritten = if is_unwritten { "  unwritten" } else { "" };
        let _ = writeln!(text, "{offset:>20} {length:>14} {disk:>20}{unwritten}");
    }
    text
}
