//! A container of a fresh Debian with its own service manager, for what needs a whole machine.
//!
//! Owns: the tree of a new system, made by the machine's own configuration of apt, and the container over it, which ends
//! when this is dropped. The container has the network of the caller, so the caller's should be of its own (`unshare
//! --net`). Without the programs that this needs, it says what is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::guard::{self, GuardedProcess, find_program};

/// The programs that are needed, and the Debian packages that have them.
const PROGRAMS: &[(&str, &str)] = &[
    ("mmdebstrap", "mmdebstrap"),
    ("systemd-nspawn", "systemd-container"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("ip", "iproute2"),
];
/// What the new system has beside the essential packages, and beside what every Debian with a service manager has.
const INCLUDED: &str = "ca-certificates,curl,logrotate,openssl,systemd,systemd-sysv";
/// The block device in the container.
pub const DISK: &str = "/dev/disk-of-tests";
/// The device for mounts.
const FUSE: &str = "/dev/fuse";
/// The longest time in which the new system is made.
const MAKE_MAX: Duration = Duration::from_secs(540);
/// The longest time in which the container starts.
const BOOT_MAX: Duration = Duration::from_secs(90);
/// The longest time in which it ends.
const END_MAX: Duration = Duration::from_secs(20);
/// The time between two looks at a container that starts.
const LOOK: Duration = Duration::from_millis(50);

/// Says what this machine lacks.
pub fn lack() -> Option<String> {
    // SAFETY: a plain system call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        return Some("a container needs root".to_owned());
    }
    let missing = PROGRAMS.iter().find(|(name, _)| find_program(name).is_none())?;
    Some(format!("{} is not installed: install the package {}", missing.0, missing.1))
}

/// Makes the tree of a new Debian in `root`, with the sources and keys of this machine's apt. *Errors*: why it cannot be
/// had.
pub fn make_root(root: &Path, log: &Path) -> Result<()> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).context("no Debian")?;
    // Sources that an administrator has turned off have other endings.
    let mut sources = String::new();
    let folder = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path());
    for path in folder.chain([PathBuf::from("/etc/apt/sources.list")]) {
        let is_source = path.extension().is_some_and(|ending| ending == "sources" || ending == "list");
        if let Some(text) = is_source.then(|| fs::read_to_string(&path).ok()).flatten() {
            // Of other vendors' sources a new system has no keys.
            let is_debian = text.contains("debian-archive-keyring") || !text.contains("Signed-By");
            sources += &if is_debian { format!("{text}\n") } else { String::new() };
        }
    }
    let file = root.with_extension("sources");
    fs::write(&file, sources)?;
    let mut command = Command::new("mmdebstrap");
    command.args(["--variant=minbase", &format!("--include={INCLUDED}")]);
    for (name, value) in [("Acquire::Check-Valid-Until", "false"), ("Acquire::Check-Date", "false")] {
        command.arg(format!("--aptopt={name} \"{value}\""));
    }
    command.arg("--dpkgopt=path-exclude=/usr/share/locale/*").arg(suite).arg(root).arg(&file);
    let (status, output) = guard::run("mmdebstrap", command, log, MAKE_MAX)?;
    // Its output names where packages come from.
    let reason = output.lines().rfind(|line| line.starts_with("E:")).unwrap_or("no reason").split("://").next();
    ensure!(status.success(), "mmdebstrap fails: {}", reason.unwrap_or_default());
    Ok(())
}

/// A running container.
#[derive(Debug)]
pub struct DebianContainer {
    process: GuardedProcess,
    /// The process that is its first one.
    leader: u32,
    logs: PathBuf,
}

impl DebianContainer {
    /// Starts the service manager of the system in `root`, and waits until it has started everything. Outputs are kept
    /// in `logs`. It has `disk`, a block device, as `/dev/disk-of-tests`.
    pub fn boot(root: &Path, disk: &str, logs: &Path) -> Result<DebianContainer> {
        let mut command = Command::new("systemd-nspawn");
        command.arg("--directory").arg(root).args(["--boot", "--register=no", "--keep-unit", "--console=read-only"]);
        command.args(["--resolv-conf=off", "--timezone=off", "--machine", &format!("nectary{}", std::process::id())]);
        // What services of Nectary do, and a container may not do unless it is said.
        command.arg("--system-call-filter=@memlock").arg(format!("--bind={disk}:{DISK}"));
        if Path::new(FUSE).exists() {
            command.arg(format!("--bind={FUSE}")).arg(format!("--property=DeviceAllow={FUSE}"));
        }
        let process = GuardedProcess::spawn("systemd-nspawn", command, &logs.join("boot.log"), None)?;
        let mut container = DebianContainer { leader: 0, process, logs: logs.to_owned() };
        let deadline = Instant::now() + BOOT_MAX;
        loop {
            if let Some(status) = container.process.try_status() {
                bail!("the container ended with {}: {}", guard::describe(status), container.process.log_tail());
            }
            ensure!(Instant::now() < deadline, "the container does not start: {}", container.process.log_tail());
            if let Some(leader) = first_child(container.process.id()) {
                container.leader = leader;
                if matches!(container.state().as_str(), "running" | "degraded") {
                    return Ok(container);
                }
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The state of its service manager.
    fn state(&self) -> String {
        let mut command = self.command("systemctl is-system-running 2>/dev/null");
        let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
    }

    /// A command that runs a script in the container, as root in its home.
    pub fn command(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.leader.to_string(), "--mount", "--uts", "--ipc", "--pid", "--cgroup"]);
        command.args(["/usr/bin/env", "-i", "HOME=/root", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"]);
        command.arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.args(["bash", "-euo", "pipefail", "-c", &format!("cd\n{script}")]);
        command
    }

    /// Runs a script in the container; returns its status and its output.
    pub fn run(&self, script: &str, limit: Duration) -> Result<(ExitStatus, String)> {
        let log = self.logs.join("script.log");
        let _ = fs::remove_file(&log);
        guard::run("a script in the container", self.command(script), &log, limit)
    }

    /// Runs a script that must succeed; returns its output.
    pub fn must(&self, script: &str, limit: Duration) -> Result<String> {
        let (status, output) = self.run(script, limit)?;
        ensure!(status.success(), "{script}\nended with {} and printed\n{output}", guard::describe(status));
        Ok(output)
    }
}

impl Drop for DebianContainer {
    fn drop(&mut self) {
        // All processes of the container end with its first one, but not with the program that made it.
        if let Some(leader) = first_child(self.process.id()) {
            // SAFETY: a plain system call. The process is a child of one that is not reaped yet.
            unsafe { libc::kill(leader as i32, libc::SIGKILL) };
            let _ = self.process.wait(END_MAX);
        }
    }
}

/// The first child of a process.
fn first_child(process: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}
