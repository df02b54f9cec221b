//! Releases what a killed process left behind: loop devices whose FUSE connection is gone.
//!
//! Owns: the name of a loop device, which identifies the process that serves it, and the release of loop devices whose
//! process is gone. The FUSE mount itself leaves nothing, because it has no mount point and ends with its process. A
//! file system on a stale device is unmounted: none of its reads and writes can succeed, and the next attachment must
//! not be confused with it. Promises: a loop device of a living process, of another pid namespace, or not made by this
//! crate is never touched; every action is reported.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mount::UnmountFlags;

use crate::error::Error;
use crate::loop_device::{LoopDevice, mounts, named, release_when_unused};

const PREFIX: &str = "nectary-attach";

/// Makes a name for a loop device of this process; each call returns a new name.
pub(crate) fn own_name() -> String {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let (process, serial) = (std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
    format!("{PREFIX} {} {process} {} {serial}", namespace(), started(process).unwrap_or(0))
}

impl LoopDevice {
    /// Makes a loop device with direct I/O on a file of a file system. From its name, [`release_stale`] knows to which
    /// process it belongs.
    ///
    /// *Errors*: as [`LoopDevice::new`].
    pub fn on_file(file: &File, block_bytes: u32) -> Result<LoopDevice, Error> {
        LoopDevice::new(file, block_bytes, false, &own_name())
    }
}

/// Releases the loop devices that dead processes left behind, and reports each in a line.
///
/// It does nothing if there are no loop devices, or if it may not open them.
pub fn release_stale() -> Vec<String> {
    let stale = named().into_iter().filter_map(|(path, name)| Some((path, dead_process(&name)?)));
    stale.flat_map(|(path, process)| release(&path, process)).collect()
}

/// The process that a loop device's name identifies, if that process is gone.
fn dead_process(name: &str) -> Option<u32> {
    let mut words = name.strip_prefix(PREFIX)?.split_ascii_whitespace();
    let (space, process, start) = (words.next()?, words.next()?, words.next()?);
    let (space, process, start) = (space.parse::<u64>().ok()?, process.parse().ok()?, start.parse::<u64>().ok()?);
    (space == namespace() && started(process) != Some(start)).then_some(process)
}

fn release(path: &Path, process: u32) -> Vec<String> {
    let name = path.display();
    let mut told = Vec::new();
    for place in mounts(path) {
        told.push(match unmount(&place) {
            Ok(()) => format!("{place}: unmounted, it stood on {name}, whose process {process} is gone"),
            Err(error) => format!("{place}: cannot be unmounted: {error}; it stands on {name}, which is dead"),
        });
    }
    told.push(match release_when_unused(path) {
        Ok(()) => format!("{name}: released, its process {process} is gone"),
        // Another process has done so meanwhile.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => format!("{name}: is released already"),
        Err(error) => format!("{name}: cannot be released: {error}; its process {process} is gone"),
    });
    told
}

/// Unmounts a dead file system, even if it is still in use.
fn unmount(place: &str) -> io::Result<()> {
    let unmount = |flags| rustix::mount::unmount(place, flags | UnmountFlags::NOFOLLOW);
    Ok(unmount(UnmountFlags::empty()).or_else(|_| unmount(UnmountFlags::DETACH))?)
}

/// The start time of a process, in the kernel's ticks since boot; `None` if the process is gone or a zombie.
fn started(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    start_in(&text)
}

/// Reads state and start time from a line of `/proc/PID/stat`. The process name in the line may contain any character.
fn start_in(text: &str) -> Option<u64> {
    let (_, after_name) = text.rsplit_once(')')?;
    let words: Vec<&str> = after_name.split_ascii_whitespace().collect();
    match *words.first()? {
        "Z" | "X" => None,
        _ => words.get(19)?.parse().ok(),
    }
}

/// The number of this process's pid namespace. In another namespace, the same process number means another process.
fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only names of dead processes of this PID namespace are stale.
    #[test]
    fn only_dead_process_names_stale() {
        assert_eq!(dead_process(&own_name()), None);
        let (space, process) = (namespace(), std::process::id());
        assert_eq!(dead_process(&format!("{PREFIX} {space} {process} 1")), Some(process));
        assert_eq!(dead_process(&format!("{PREFIX} {} {process} 1", space + 1)), None);
        for name in ["", "/data/a.img", PREFIX, "nectary-attach 1", "nectary-attach a b c"] {
            assert_eq!(dead_process(name), None, "{name}");
        }
    }

    #[test]
    fn start_time_parses_any_name() {
        let line = format!("7 (a) b (c) S {} 4711 0", "0 ".repeat(18).trim_end());
        assert_eq!(start_in(&line), Some(4711));
        assert_eq!(start_in(&line.replace(" S ", " Z ")), None);
        assert_eq!(start_in("7 (a"), None);
    }
}
