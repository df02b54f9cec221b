//! Memory groups: the memory that a contender may use, including its page cache.
//!
//! Owns: one control group per contender. It uses the version of the kernel's interface, 1 or 2, that has the memory
//! controller.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, ExperimentErrorKind};

mod keeper;

pub use keeper::{GroupMemoryUsage, MemoryAllowance, MemoryKeeper};

/// The folder in which groups are made, and the names of their files.
struct ControlGroupInterface {
    parent: &'static str,
    limit: &'static str,
    /// The limit that slows processes down or lets them wait, instead of killing them.
    slow_limit: &'static str,
    used_max: &'static str,
    used: &'static str,
    stat: &'static str,
}

const FIRST: ControlGroupInterface = ControlGroupInterface {
    parent: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    slow_limit: "memory.limit_in_bytes",
    used_max: "memory.max_usage_in_bytes",
    used: "memory.usage_in_bytes",
    stat: "memory.stat",
};
const SECOND: ControlGroupInterface = ControlGroupInterface {
    parent: "/sys/fs/cgroup",
    limit: "memory.max",
    slow_limit: "memory.high",
    used_max: "memory.peak",
    used: "memory.current",
    stat: "memory.stat",
};

/// The use of a group's memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupUsage {
    /// The highest usage so far.
    pub used_max_bytes: u64,
    /// The usage now.
    pub used_bytes: u64,
    /// The size of its page cache.
    pub cache_bytes: u64,
    /// The anonymous memory of its processes.
    pub resident_bytes: u64,
}

/// A memory group; removed when dropped.
pub struct MemoryGroup {
    path: PathBuf,
    interface: &'static ControlGroupInterface,
}

impl MemoryGroup {
    /// The path of a group with this name. *Errors*: [`ExperimentErrorKind::Missing`] if the kernel has no memory groups.
    pub fn place(name: &str) -> Result<PathBuf, Error> {
        Ok(Path::new(interface()?.parent).join(name))
    }

    /// Makes a group with a hard limit: the kernel kills a process in it rather than let the group exceed
    /// `limit_bytes`.
    pub fn new(name: &str, limit_bytes: u64) -> Result<MemoryGroup, Error> {
        let interface = interface()?;
        let group = MemoryGroup { path: Path::new(interface.parent).join(name), interface };
        fs::create_dir(&group.path).map_err(|error| Error::failed(group.path.display(), error))?;
        group.write(interface.limit, &limit_bytes.to_string())?;
        Ok(group)
    }

    /// Makes a group whose processes wait or are slowed down at the limit, instead of being killed. The limit is moved
    /// with [`limit`](Self::limit).
    pub fn slowed(name: &str, limit_bytes: u64) -> Result<MemoryGroup, Error> {
        let interface = interface()?;
        let group = MemoryGroup { path: Path::new(interface.parent).join(name), interface };
        fs::create_dir(&group.path).map_err(|error| Error::failed(group.path.display(), error))?;
        if interface.parent == FIRST.parent {
            group.write("memory.oom_control", "1")?;
        }
        group.limit(limit_bytes)?;
        Ok(group)
    }

    /// Sets the limit of a group that [`slowed`](Self::slowed) has made.
    pub fn limit(&self, limit_bytes: u64) -> Result<(), Error> {
        self.write(self.interface.slow_limit, &limit_bytes.to_string())
    }

    /// What it uses now. *Units*: bytes.
    pub fn used_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.path.join(self.interface.used)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// The text of its use of memory by kind.
    pub fn stat(&self) -> String {
        fs::read_to_string(self.path.join(self.interface.stat)).unwrap_or_default()
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The data that a [`MemoryKeeper`] needs to hold the group at `allowed_bytes`.
    pub fn allowance(&self, allowed_bytes: u64, hard_bytes: u64) -> MemoryAllowance {
        let is_first = self.interface.parent == FIRST.parent;
        MemoryAllowance { path: self.path.clone(), is_first, allowed_bytes, hard_bytes }
    }

    /// Moves a process into the group; memory that the process allocates from now on is charged to the group.
    pub fn add(&self, process: u32) -> Result<(), Error> {
        self.write("cgroup.procs", &process.to_string())
    }

    /// The group's memory usage, in total and by kind.
    pub fn usage(&self) -> GroupUsage {
        let number = |name: &str| {
            let text = fs::read_to_string(self.path.join(name)).unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        };
        let stat = self.stat();
        let field = |names: [&str; 2]| {
            let value = |line: &str| line.split_once(' ').filter(|entry| names.contains(&entry.0))?.1.parse().ok();
            stat.lines().find_map(value).unwrap_or(0)
        };
        GroupUsage {
            used_max_bytes: number(self.interface.used_max),
            used_bytes: number(self.interface.used),
            cache_bytes: field(["cache", "file"]),
            resident_bytes: field(["rss", "anon"]),
        }
    }

    fn write(&self, name: &str, value: &str) -> Result<(), Error> {
        let path = self.path.join(name);
        fs::write(&path, value).map_err(|error| Error::failed(path.display(), error))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // If a process is still in the group, the guardian removes the group later.
        let _ = fs::remove_dir(&self.path);
    }
}

fn interface() -> Result<&'static ControlGroupInterface, Error> {
    if Path::new(FIRST.parent).join(FIRST.limit).exists() {
        return Ok(&FIRST);
    }
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.subtree_control").unwrap_or_default();
    match controllers.split_whitespace().any(|name| name == "memory") {
        true => Ok(&SECOND),
        false => Err(Error::new(
            ExperimentErrorKind::Missing,
            "there are no memory groups: mount the memory controller of cgroups at /sys/fs/cgroup/memory, or enable it in \
             /sys/fs/cgroup/cgroup.subtree_control",
        )),
    }
}
