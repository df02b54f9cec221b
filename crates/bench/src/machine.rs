//! Describes the machine on which figures are measured, and checks that it can run experiments.

use std::fs;

use crate::{Error, ExperimentErrorKind, sys};

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

/// The load average of the last minute up to which a machine is quiet.
pub const LOAD_MAX: f64 = 0.5;

/// The load average of the last minute; `None` if the kernel does not say it.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// What makes a run unfit for results that are kept, a sentence each; empty if nothing does. `commit` is the commit of
/// the current directory as `git describe --dirty` says it.
pub fn unfit(commit: Option<&str>, load: Option<f64>) -> Vec<String> {
    let mut unfit = Vec::new();
    match commit {
        None => unfit.push("the commit is unknown: git says none for the current directory".to_owned()),
        Some(commit) if commit.ends_with("-dirty") => {
            unfit.push(format!("the directory has changes that are in no commit ({commit})"));
        }
        Some(_) => {}
    }
    match load {
        None => unfit.push("the load of the machine is unknown".to_owned()),
        Some(load) if load > LOAD_MAX => {
            unfit.push(format!("the machine is busy: its load of the last minute is {load:.2}, above {LOAD_MAX}"));
        }
        Some(_) => {}
    }
    unfit
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
        return Err(Error::new(
            ExperimentErrorKind::Missing,
            "disks are attached and file systems mounted: run it as root",
        ));
    }
    for path in ["/dev/fuse", "/dev/loop-control"] {
        if !std::path::Path::new(path).exists() {
            return Err(Error::new(
                ExperimentErrorKind::Missing,
                format!("there is no {path}; give the container that device"),
            ));
        }
    }
    crate::group::MemoryGroup::place("").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dirty_or_busy_machine_unfit() {
        assert_eq!(unfit(Some("9bc37d7a"), Some(LOAD_MAX)), Vec::<String>::new());
        let dirty = unfit(Some("9bc37d7a-dirty"), Some(0.1));
        assert!(dirty.len() == 1 && dirty[0].contains("9bc37d7a-dirty"), "{dirty:?}");
        let busy = unfit(Some("9bc37d7a"), Some(3.12));
        assert!(busy.len() == 1 && busy[0].contains("3.12, above 0.5"), "{busy:?}");
        assert_eq!(unfit(None, None).len(), 2);
        assert!(load().is_some_and(|load| load >= 0.0));
    }
}
