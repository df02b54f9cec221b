//! The file system with which every execution begins.
//!
//! Owns: the making of the image: an ext4 without a journal, with the inputs of all programs. Promises: all executions
//! begin with the same bytes at the same places of the disk. Leaves to others: the contents of the inputs (`programs`),
//! mounting (`execute`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::inputs::InputGenerator;
use super::programs::{DearProgram, path};
use crate::Error;

/// The size of the disk with the programs of the paper's conditions, and with those for a large cache. *Units*: bytes.
pub const DISK_BYTES: [u64; 2] = [256 << 20, 3 << 30];
/// The UUID and hash seed of every image, so that directories have the same order.
const IDENTITY: &str = "6e656374-6172-7900-0000-000000000040";

/// Makes the inputs of programs below `shown`, the path at which the programs will see them, and an image of `disk_bytes`
/// bytes that contains them.
pub fn make(shown: &Path, image: &Path, disk_bytes: u64, programs: &[&DearProgram]) -> Result<(), Error> {
    let failed = |path: &Path, error: std::io::Error| Error::failed(path.display(), error);
    for program in programs {
        let folder = shown.join(program.name);
        std::fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
        if program.is_nobody {
            run(Command::new("chown").args(["nobody:nogroup", "."]).current_dir(&folder))?;
        }
        (program.make)(&InputGenerator::new(folder, &path(), program.is_nobody))?;
    }
    let extended = format!("hash_seed={IDENTITY},lazy_itable_init=0,nodiscard");
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-F", "-O", "^has_journal", "-U", IDENTITY, "-E", &extended, "-d"]).arg(shown).arg(image);
    run(command.arg(format!("{}M", disk_bytes >> 20)))?;
    for program in programs {
        let folder = shown.join(program.name);
        std::fs::remove_dir_all(&folder).map_err(|error| failed(&folder, error))?;
    }
    Ok(())
}

/// Copies an image to a new place.
pub fn copy(image: &Path, to: &PathBuf) -> Result<(), Error> {
    run(Command::new("cp").arg("--sparse=always").arg(image).arg(to))
}

fn run(command: &mut Command) -> Result<(), Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.env("PATH", path()).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Error::failed(&name, error))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::failed(&name, String::from_utf8_lossy(&output.stderr).trim())),
    }
}
