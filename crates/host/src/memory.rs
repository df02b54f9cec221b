//! The memory that this process may use: the machine's, and what its memory groups (cgroups) allow.
//!
//! Owns: reading the limits of the groups of version 1 and 2 that this process is in, and of the groups around them.
//! A limit that cannot be read is unknown, which is not an error. Leaves to others: what is done if too little is
//! allowed.
//!
//! A container sees the machine's memory in `/proc/meminfo`, and is killed at the limit of its group. So both are looked
//! at where the size of a memory budget is chosen or checked.

use std::fs;
use std::path::{Path, PathBuf};

/// Limits from this number on mean that a group of version 1 has none. *Units*: bytes.
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// The most memory that this process may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// *Units*: bytes.
    pub bytes: u64,
    /// The memory group that sets the limit; `None` if it is the machine's memory.
    pub group: Option<PathBuf>,
}

impl MemoryLimit {
    /// What sets the limit, in words that follow "more than".
    pub fn source(&self) -> String {
        match &self.group {
            Some(group) => format!("the memory group {} allows", group.display()),
            None => "this machine has".to_owned(),
        }
    }

    /// The smaller of a default size and half of the limit, but at least `least`. *Units*: bytes.
    pub fn default_of(&self, bytes: u64, least: u64) -> u64 {
        bytes.min(self.bytes / 2).max(least)
    }
}

/// The least of the machine's memory and the limits of the groups of this process; `None` if neither is known.
pub fn limit() -> Option<MemoryLimit> {
    limit_at(Path::new("/"))
}

/// The memory that could be allocated now: what the kernel estimates for the machine, or less if a group allows less.
/// *Units*: bytes.
pub fn available_bytes() -> Option<u64> {
    available_at(Path::new("/"))
}

/// The memory of this process that is in the machine's memory now, files that it has mapped included. *Units*: bytes.
pub fn resident_bytes() -> Option<u64> {
    kilobytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

fn limit_at(root: &Path) -> Option<MemoryLimit> {
    let machine = meminfo(root, "MemTotal:").map(|bytes| MemoryLimit { bytes, group: None });
    let groups =
        groups(root).into_iter().map(|group| MemoryLimit { bytes: group.limit_bytes, group: Some(group.path) });
    machine.into_iter().chain(groups).min_by_key(|limit| limit.bytes)
}

fn available_at(root: &Path) -> Option<u64> {
    let left = groups(root).into_iter().map(|group| group.limit_bytes.saturating_sub(group.used_bytes));
    meminfo(root, "MemAvailable:").into_iter().chain(left).min()
}

fn meminfo(root: &Path, name: &str) -> Option<u64> {
    kilobytes(&fs::read_to_string(root.join("proc/meminfo")).ok()?, name)
}

/// A field of a table of the kernel that counts in kB. *Units*: bytes.
fn kilobytes(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// A group with a limit.
struct GroupLimit {
    path: PathBuf,
    limit_bytes: u64,
    /// What its processes use now, without the pages of files that the kernel can drop.
    used_bytes: u64,
}

/// The groups of this process, and the groups around them, that have a limit.
fn groups(root: &Path) -> Vec<GroupLimit> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (members, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mut groups = Vec::new();
    for mount in mounts.lines().filter_map(GroupMount::parse) {
        let Some(path) = members.lines().find_map(|line| mount.path_of(line)) else { continue };
        let folder = root.join(mount.point.strip_prefix("/").unwrap_or(mount.point));
        // Where a group is not visible below the mount, as in some containers, the mount itself is the group.
        let own = folder.join(path);
        let own = if own.is_dir() { own } else { folder.clone() };
        for group in own.ancestors().take_while(|group| group.starts_with(&folder)) {
            groups.extend(GroupLimit::read(group, mount.is_unified));
        }
    }
    groups
}

impl GroupLimit {
    fn read(path: &Path, is_unified: bool) -> Option<GroupLimit> {
        let number = |name: &str| fs::read_to_string(path.join(name)).ok()?.trim().parse::<u64>().ok();
        let (limit, used) = match is_unified {
            true => ("memory.max", "memory.current"),
            false => ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        };
        let limit_bytes = number(limit).filter(|bytes| *bytes < NO_LIMIT_BYTES)?;
        let stat = fs::read_to_string(path.join("memory.stat")).unwrap_or_default();
        let droppable = ["total_inactive_file ", "inactive_file "]
            .iter()
            .find_map(|name| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok()));
        let used_bytes = number(used).unwrap_or(0).saturating_sub(droppable.unwrap_or(0));
        Some(GroupLimit { path: path.to_owned(), limit_bytes, used_bytes })
    }
}

/// A mount of groups that can limit memory.
struct GroupMount<'a> {
    /// The group that is the root of the mount.
    root: &'a str,
    point: &'a Path,
    /// Whether the groups are of version 2.
    is_unified: bool,
}

impl<'a> GroupMount<'a> {
    /// Reads a line of `/proc/self/mountinfo`; `None` if it is of another kind.
    fn parse(line: &'a str) -> Option<GroupMount<'a>> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, Path::new(mount.next()?));
        let mut kind = kind.split(' ');
        let is_unified = match kind.next()? {
            "cgroup2" => true,
            "cgroup" if kind.nth(1)?.split(',').any(|option| option == "memory") => false,
            _ => return None,
        };
        Some(GroupMount { root, point, is_unified })
    }

    /// The path below the mount of the group that a line of `/proc/self/cgroup` names; `None` if the line is of another
    /// mount.
    fn path_of(&self, line: &'a str) -> Option<&'a str> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_it = match self.is_unified {
            true => controllers.is_empty(),
            false => controllers.split(',').any(|controller| controller == "memory"),
        };
        let path = path.strip_prefix(self.root).unwrap_or(path);
        is_it.then_some(path.trim_start_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with files that is removed when this is dropped.
    struct GroupTree(PathBuf);

    impl GroupTree {
        fn of(name: &str, files: &[(&str, &str)]) -> GroupTree {
            let root = std::env::temp_dir().join(format!("nectary-memory-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            GroupTree(root)
        }
    }

    impl Drop for GroupTree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 8000000 kB\nMemFree: 1 kB\nMemAvailable: 4000000 kB\n");

    #[test]
    fn least_group_limits_the_memory() {
        let tree = GroupTree::of(
            "unified",
            &[
                MEMINFO,
                ("proc/self/cgroup", "0::/system.slice/nectary.service\n"),
                ("proc/self/mountinfo", "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"),
                ("sys/fs/cgroup/memory.stat", "anon 1\n"),
                ("sys/fs/cgroup/system.slice/memory.max", "125829120\n"),
                ("sys/fs/cgroup/system.slice/memory.current", "50000000\n"),
                ("sys/fs/cgroup/system.slice/memory.stat", "anon 1\ninactive_file 10000000\n"),
                ("sys/fs/cgroup/system.slice/nectary.service/memory.max", "max\n"),
            ],
        );
        let group = Some(tree.0.join("sys/fs/cgroup/system.slice"));
        assert_eq!(limit_at(&tree.0), Some(MemoryLimit { bytes: 120 << 20, group }));
        assert_eq!(available_at(&tree.0), Some((120 << 20) - 40_000_000));
    }

    #[test]
    fn cgroup_version_1_limits_memory() {
        let mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let tree = GroupTree::of(
            "first",
            &[
                MEMINFO,
                ("proc/self/cgroup", "5:cpu:/a\n4:memory:/docker/0123\n0::/\n"),
                ("proc/self/mountinfo", mounts),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", "104857600\n"),
            ],
        );
        let found = limit_at(&tree.0).unwrap();
        assert_eq!((found.bytes, found.default_of(256 << 20, 8 << 20)), (100 << 20, 50 << 20));
        assert!(found.source().ends_with("docker/0123 allows"), "{found:?}");
        // In a container, the group may be the root of the mount.
        fs::write(tree.0.join("proc/self/cgroup"), "4:memory:/docker/elsewhere\n").unwrap();
        assert_eq!(limit_at(&tree.0), Some(MemoryLimit { bytes: 8_000_000 * 1024, group: None }));
        fs::write(tree.0.join("sys/fs/cgroup/memory/memory.limit_in_bytes"), "1048576\n").unwrap();
        assert_eq!(limit_at(&tree.0).map(|limit| limit.bytes), Some(1 << 20));
    }

    #[test]
    fn machine_limits_without_groups() {
        let tree = GroupTree::of("machine", &[MEMINFO]);
        let found = limit_at(&tree.0).unwrap();
        assert_eq!(found, MemoryLimit { bytes: 8_000_000 * 1024, group: None });
        assert_eq!(found.source(), "this machine has");
        assert_eq!(limit_at(Path::new("/nowhere")), None);
        assert!(limit().is_some_and(|limit| limit.bytes > 1 << 20));
        assert!(available_bytes().is_some());
        assert!(resident_bytes().is_some_and(|bytes| bytes > 100 << 10));
    }
}
