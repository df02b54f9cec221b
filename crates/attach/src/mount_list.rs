//! Lists of mounts, of this process and of others.
//!
//! Owns: reading `/proc/PID/mountinfo`, and the search for a mount namespace that still has a file system which this one
//! has unmounted. Such a namespace, usually that of a container, keeps the file system and its process alive.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::loop_device::unescape;

/// A line of a list of mounts.
pub(crate) struct MountListEntry {
    /// The device number of the file system.
    pub device: String,
    /// The directory.
    pub place: PathBuf,
    /// The type of the file system.
    pub kind: String,
    /// Whether the file system itself, and not only this mount of it, is read-only.
    pub is_read_only: bool,
}

impl MountListEntry {
    /// Parses a line; `None` if it has another form.
    pub fn parse(line: &str) -> Option<MountListEntry> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let device = left.next()?.to_owned();
        let place = PathBuf::from(unescape(left.nth(1)?));
        let mut right = right.split(' ');
        let kind = right.next()?.to_owned();
        let is_read_only = right.nth(1)?.split(',').any(|option| option == "ro");
        Some(MountListEntry { device, place, kind, is_read_only })
    }
}

/// Whether a file system of this subtype is mounted on a directory.
pub(crate) fn is_mounted_as(directory: &Path, subtype: &str) -> bool {
    device_of(directory, subtype).is_some()
}

/// Returns the device number of the topmost file system of this subtype on a directory, as lists of mounts show it.
pub(crate) fn device_of(directory: &Path, subtype: &str) -> Option<String> {
    topmost(directory, subtype).map(|found| found.device)
}

/// Returns the topmost file system of this subtype on a directory.
pub(crate) fn topmost(directory: &Path, subtype: &str) -> Option<MountListEntry> {
    let kind = format!("fuse.{subtype}");
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let is_it = |found: &MountListEntry| found.place == directory && found.kind == kind;
    text.lines().filter_map(MountListEntry::parse).rfind(is_it)
}

/// A process in another mount namespace that has a file system mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherNamespace {
    /// The number of the process.
    pub process: u32,
    /// The name of the process.
    pub name: String,
    /// The directory at which that namespace has the file system.
    pub place: PathBuf,
}

impl OtherNamespace {
    /// Finds a process in another mount namespace that has the file system with this device number.
    pub(crate) fn with(device: &str) -> Option<OtherNamespace> {
        OtherNamespace::below(Path::new("/proc"), device)
    }

    fn below(root: &Path, device: &str) -> Option<OtherNamespace> {
        let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
        let mut seen: HashSet<PathBuf> = namespace(&root.join("self")).into_iter().collect();
        for entry in fs::read_dir(root).ok()?.flatten() {
            let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // Processes that have just ended, or that this user may not see, are skipped.
            let is_new = namespace(&entry.path()).is_some_and(|namespace| seen.insert(namespace));
            let Some(text) = is_new.then(|| fs::read_to_string(entry.path().join("mountinfo")).ok()).flatten() else {
                continue;
            };
            if let Some(found) = text.lines().filter_map(MountListEntry::parse).find(|found| found.device == device) {
                let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default().trim().to_owned();
                return Some(OtherNamespace { process, name, place: found.place });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read() {
        let line = r"36 35 0:98 / /a\040b rw,noatime shared:1 - fuse.nectary-volume ./disk ro,user_id=0";
        let found = MountListEntry::parse(line).expect("it is one");
        assert_eq!((found.device.as_str(), found.place.to_str()), ("0:98", Some("/a b")));
        assert_eq!((found.kind.as_str(), found.is_read_only), ("fuse.nectary-volume", true));
        let cut =
            (0..line.len()).filter(|end| MountListEntry::parse(&line[..*end]).is_some_and(|found| found.is_read_only));
        assert!(cut.min().is_some_and(|least| least >= line.find(" ro").unwrap() + 3), "half a line is none");
    }

    #[test]
    fn only_other_namespaces_are_named() {
        let own = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = own.lines().filter_map(MountListEntry::parse).find(|found| found.place == Path::new("/")).unwrap();
        let found = OtherNamespace::with(&root.device);
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).unwrap();
        assert!(found.is_none_or(|found| namespace(&found.process.to_string()) != namespace("self")));
        assert_eq!(OtherNamespace::with("0:999999"), None);
    }
}
