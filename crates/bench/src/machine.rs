//! Describes the machine on which figures are measured, and checks that it can run experiments.

use std::fs;

use crate::{Error, ErrorKind, sys};

/// Processors, kernel and load, in one line.
pub fn describe() -> String {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = text("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let model = model.trim_matches([':', '\t', ' ']);
    let count = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let (kernel, load) = (text("/proc/sys/kernel/osrelease"), text("/proc/loadavg"));
    let load: Vec<&str> = load.split(' ').take(3).collect();
    format!("{count} x {model}, Linux {}, load {}", kernel.trim(), load.join(" "))
}

/// Memory that is available without swapping, in bytes.
pub fn free_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

/// Checks that this process can attach disks and limit memory on this machine.
pub fn check() -> Result<(), Error> {
    if !sys::is_root() {
        return Err(Error::new(ErrorKind::Missing, "disks are attached and file systems mounted: run it as root"));
    }
    for path in ["/dev/fuse", "/dev/loop-control"] {
        if !std::path::Path::new(path).exists() {
            return Err(Error::new(ErrorKind::Missing, format!("there is no {path}; give the container that device")));
        }
    }
    crate::group::MemoryGroup::place("").map(drop)
}
