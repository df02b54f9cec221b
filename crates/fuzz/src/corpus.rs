//! The committed inputs: each is a file in `corpus/TARGET/`.
//!
//! Owns: the reading and writing of folders of inputs. A file's name is the checksum of its content, or describes the
//! bug that the input once found.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::targets::FuzzTarget;

/// The largest number of files that are read from a folder. A corpus must be small, otherwise the tests are slow.
const FILES_MAX: usize = 100_000;

/// The folder of a target's committed inputs.
pub fn folder(target: &FuzzTarget) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "corpus", target.name].iter().collect()
}

/// The inputs of a folder in the order of their names; empty if there is no folder.
pub fn read(folder: &Path) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    paths.truncate(FILES_MAX);
    paths.into_iter().map(|path| fs::read(&path).map(|bytes| (path, bytes))).collect()
}

/// The name of an input's file: a checksum of the input.
pub fn name(input: &[u8]) -> String {
    let low = crc32c::crc32c(input);
    format!("{low:08x}{:08x}", crc32c::crc32c_append(!low, input))
}

/// Writes an input into a folder; creates the folder if necessary.
pub fn write(folder: &Path, input: &[u8]) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = folder.join(name(input));
    fs::write(&path, input)?;
    Ok(path)
}
