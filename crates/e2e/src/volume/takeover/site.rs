//! One disk, two servers that can reach it, and three mounts, all on this machine.
//!
//! Owns: the disk (a file), the exports over which servers reach it, the servers with their runtime directories, the
//! relays, the mounts, and the timeline of what was done to them. Promises: nothing remains when it is dropped; all
//! paths to the disk show the same bytes, because each of them bypasses the page cache.
//!
//! Each server has its own runtime directory and its own name of a host, as if it ran on another machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::super::apart::apart;
use super::super::{LIMIT, mount_options, spawn};
use super::gaps::Timeline;
use super::history::now;
use super::plan::{MOUNTS, ServerReach, TakeoverPlan};
use super::relay::SocketRelay;
use crate::guard::{GuardedProcess, describe, find_program};
use crate::nectary::binary;
use crate::scratch::ScratchFolder;
use crate::unmounting::{UnmountAttempt, when_free};

/// The size of the disk: each host that is lost costs about 50 MiB.
const SIZE: &str = "1G";
/// The free memory that a disk in memory needs, and some more.
const ROOM_BYTES: u64 = 2 << 30;
/// The pause between two attempts to start a server, or a mount.
const RETRY: Duration = Duration::from_millis(100);
/// The number of lines of a process's output that are shown if a round fails.
const LAST_LINES: usize = 6;
/// The program that exports the disk.
const EXPORTER: &str = "qemu-nbd";

/// A server: A or B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerSide {
    /// Leads first.
    A = 0,
    /// Takes over.
    B = 1,
}

impl ServerSide {
    /// The other one.
    pub fn other(self) -> ServerSide {
        match self {
            ServerSide::A => ServerSide::B,
            ServerSide::B => ServerSide::A,
        }
    }
}

/// The result of an attempt to start a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartAttempt {
    /// It leads.
    Leads,
    /// It ended with this output.
    Refused(String),
    /// It has neither led nor ended within the time limit, and was killed.
    Silent,
}

/// The processes of a round.
pub struct TakeoverSite {
    scratch: ScratchFolder,
    /// The exports of A's and B's disk, if they have one.
    exports: [Option<GuardedProcess>; 2],
    servers: [Option<GuardedProcess>; 2],
    relays: Vec<[SocketRelay; 2]>,
    mounts: [Option<GuardedProcess>; MOUNTS],
    reaches: [ServerReach; MOUNTS],
    is_second_exported: bool,
    is_in_memory: bool,
    timeline: Mutex<Timeline>,
    /// The number of times that a server took over from the other one.
    pub takeovers: u64,
    /// The number of times that a server was refused because another one leads.
    pub refused: u64,
    /// The number of times that a leader ended without a reason in the plan, such as a disk of a busy machine that did
    /// not answer for a lease, and was started again.
    pub restarts: u64,
    /// The longest time without a leader. *Units*: nanoseconds.
    pub outage_ns_max: u64,
    leader: Option<ServerSide>,
}

/// Returns the reason why this machine cannot run a round, if there is one.
pub fn missing() -> Option<String> {
    let lacks = |name: &&str| find_program(name).is_none();
    let program = [EXPORTER, "unshare"].into_iter().find(lacks);
    program.map(|name| format!("{name} is not installed: run `ci/setup test`")).or_else(|| crate::live::missing(false))
}

/// Whether there is room for a disk in memory.
fn has_room() -> Result<bool> {
    let folder = std::ffi::CString::new("/dev/shm")?;
    // SAFETY: zeroes are a valid value, which the call fills; the path lives across the call.
    let (found, room) = unsafe {
        let mut room: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(folder.as_ptr(), &mut room), room)
    };
    Ok(found == 0 && room.f_bavail * room.f_frsize >= ROOM_BYTES)
}

impl TakeoverSite {
    /// Formats the disk; starts the exports, the relays, A, and the mounts that can reach A.
    pub fn new(plan: &TakeoverPlan) -> Result<TakeoverSite> {
        let scratch = match plan.is_in_memory && has_room()? {
            true => ScratchFolder::in_memory("takeover")?,
            false => ScratchFolder::new("takeover")?,
        };
        // Files in memory have no other bytes than those of the page cache.
        let is_in_memory = super::super::posix::kind_of(scratch.path())? == "tmpfs";
        let mut site = TakeoverSite {
            scratch,
            is_in_memory,
            exports: [None, None],
            servers: [None, None],
            relays: Vec::new(),
            mounts: [const { None }; MOUNTS],
            reaches: plan.reaches,
            is_second_exported: plan.is_second_exported,
            timeline: Mutex::default(),
            takeovers: 0,
            refused: 0,
            restarts: 0,
            outage_ns_max: 0,
            leader: None,
        };
        for folder in ["run-a", "run-b", "run-m"] {
            fs::create_dir_all(site.scratch.join(folder))?;
            fs::set_permissions(site.scratch.join(folder), fs::Permissions::from_mode(0o700))?;
        }
        let disk = site.file();
        let (code, text) = site.try_run(&["volume", "format", &disk, "--size", SIZE, "--lease", "1s"], LIMIT)?;
        ensure!(code == Some(0), "volume format: exit code {code:?}\n{text}");
        site.export(ServerSide::A)?;
        if site.is_second_exported {
            site.export(ServerSide::B)?;
        }
        for mount in 0..MOUNTS {
            let relay =
                |side: ServerSide| SocketRelay::new(site.scratch.join(&format!("r{mount}{side:?}")), site.socket(side));
            site.relays.push([relay(ServerSide::A)?, relay(ServerSide::B)?]);
        }
        match site.start(ServerSide::A, &[], LIMIT)? {
            StartAttempt::Leads => {}
            attempt => bail!("server A: {attempt:?}"),
        }
        for mount in (0..MOUNTS).filter(|mount| !plan.is_late(*mount)) {
            let process = site.begin_mount(mount)?;
            site.mount(mount, process)?;
        }
        Ok(site)
    }

    /// Adds an event to the timeline.
    pub fn note(&self, what: impl Into<String>) {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner).push((now(), what.into()));
    }

    /// Returns what has happened.
    pub fn timeline(&self) -> Timeline {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The server that started last as leader, if it was not ended on purpose.
    pub fn leader(&self) -> Option<ServerSide> {
        self.leader
    }

    /// The directory of a mount.
    pub fn directory(&self, mount: usize) -> PathBuf {
        self.scratch.join(&format!("m{mount}"))
    }

    fn file(&self) -> String {
        self.scratch.join("disk").display().to_string()
    }

    /// The SPEC of a device that takes the time of a disk.
    fn timed(&self, device: &str) -> String {
        match self.is_in_memory {
            true => format!("delay(\"{device}\",write=1ms,flush=3ms)"),
            false => device.to_owned(),
        }
    }

    /// The SPEC of the disk for mounts.
    fn disk(&self) -> String {
        self.timed(&self.file())
    }

    fn socket(&self, side: ServerSide) -> PathBuf {
        self.scratch.join(&format!("server-{side:?}"))
    }

    fn export_socket(&self, side: ServerSide) -> PathBuf {
        self.scratch.join(&format!("export-{side:?}"))
    }

    /// Starts the export of a server's disk.
    pub fn export(&mut self, side: ServerSide) -> Result<()> {
        let socket = self.export_socket(side);
        let _ = fs::remove_file(&socket);
        let mut command = Command::new(EXPORTER);
        let image = format!("driver=raw,file.driver=file,file.filename={},file.locking=off", self.file());
        // With these modes, the export and the processes that open the file see the same bytes.
        let cache = if self.is_in_memory { "writeback" } else { "none" };
        command.args(["-t", "-e", "16", "--aio=threads", "-x", "disk", "--cache", cache]);
        command.args(["--image-opts", &image, "-k"]).arg(&socket);
        let mut process = spawn(command, &self.scratch.join(&format!("export-{side:?}.log")))?;
        let began = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            let has_ended = process.try_status().is_some();
            ensure!(!has_ended && began.elapsed() < LIMIT, "the export does not start\n{}", process.log_tail());
            std::thread::sleep(Duration::from_millis(5));
        }
        self.exports[side as usize] = Some(process);
        Ok(())
    }

    /// Sends a signal to the export of a server's disk, or, if it has none, to the server.
    pub fn signal_export(&mut self, side: ServerSide, signal: i32) {
        match &mut self.exports[side as usize] {
            Some(export) => export.signal(signal),
            None => self.signal(side, signal),
        }
    }

    /// Kills the export of a server's disk.
    pub fn kill_export(&mut self, side: ServerSide) {
        self.exports[side as usize] = None;
    }

    /// A command of the program, with a runtime directory; for a server, on a host with another name.
    fn command(&self, side: Option<ServerSide>, arguments: &[&str]) -> Result<Command> {
        let binary = binary()?;
        let (mut command, run) = match side {
            None => (Command::new(binary), "run-m"),
            Some(side) => {
                let run = if side == ServerSide::A { "run-a" } else { "run-b" };
                let script = "echo \"$0\" > /proc/sys/kernel/hostname && exec \"$@\"";
                let mut command = Command::new("unshare");
                command.args(["--uts", "sh", "-c", script, &run.replace("run", "host")]).arg(binary);
                (command, run)
            }
        };
        command.args(arguments).env("NECTARY_RUNTIME_DIR", self.scratch.join(run));
        Ok(command)
    }

    /// Runs a command to its end; returns its exit code and its output.
    fn try_run(&self, arguments: &[&str], limit: Duration) -> Result<(Option<i32>, String)> {
        let log = self.scratch.join("command.log");
        let _ = fs::remove_file(&log);
        let mut process = spawn(self.command(None, arguments)?, &log)?;
        let status = process.wait(limit)?;
        Ok((status.code(), process.log_text()))
    }

    fn log(&self, side: ServerSide) -> PathBuf {
        self.scratch.join(&format!("server-{side:?}.log"))
    }

    /// The SPEC over which a server reaches the disk.
    fn spec(&self, side: ServerSide) -> String {
        match side == ServerSide::A || self.is_second_exported {
            true => self.timed(&format!("nbd+unix:///disk?socket={}", self.export_socket(side).display())),
            false => self.disk(),
        }
    }

    /// Starts a server once, with further options.
    pub fn start(&mut self, side: ServerSide, more: &[&str], limit: Duration) -> Result<StartAttempt> {
        let number = (side as u32).to_string();
        let (spec, listen) = (self.spec(side), format!("unix:{}", self.socket(side).display()));
        // The last `--number` of the command line counts, so only one is given.
        let number: &[&str] = if more.contains(&"--number") { &[] } else { &["--number", &number] };
        let arguments = [&["volume", "serve", &spec, "--listen", &listen], number, more].concat();
        let log = self.log(side);
        let before = fs::read(&log).unwrap_or_default().len();
        let mut process = spawn(self.command(Some(side), &arguments)?, &log)?;
        let began = Instant::now();
        loop {
            let text = process.log_text();
            let text = text.get(before..).unwrap_or_default();
            if text.lines().any(|line| line.starts_with("unix:")) {
                let before = self.leader.replace(side);
                self.takeovers += u64::from(before.is_some_and(|before| before != side));
                self.note(format!("server {side:?} leads"));
                self.servers[side as usize] = Some(process);
                self.follow(side);
                return Ok(StartAttempt::Leads);
            }
            if process.try_status().is_some() {
                let words = process.log_text().get(before..).unwrap_or_default().trim().to_owned();
                let is_led = words.contains("serves the volume") || words.contains("serves this volume");
                self.refused += u64::from(is_led);
                return Ok(StartAttempt::Refused(words));
            }
            if began.elapsed() > limit {
                return Ok(StartAttempt::Silent);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts a server again and again until it leads.
    fn take_over(&mut self, side: ServerSide, more: &[&str]) -> Result<()> {
        self.note(format!("server {side:?} is started until it leads"));
        let began = Instant::now();
        loop {
            match self.start(side, more, LIMIT)? {
                StartAttempt::Leads => return Ok(()),
                StartAttempt::Silent => bail!("server {side:?} neither leads nor ends within {LIMIT:?}"),
                StartAttempt::Refused(words) => {
                    ensure!(began.elapsed() < LIMIT, "server {side:?} does not lead within {LIMIT:?}: {words}");
                }
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Starts a server until it leads; `since` is the time from which on there is no leader that works.
    pub fn replace(&mut self, side: ServerSide, more: &[&str], since: u64) -> Result<()> {
        self.take_over(side, more)?;
        self.outage_ns_max = self.outage_ns_max.max(now() - since);
        Ok(())
    }

    /// Starts the leader again if it has ended, as a supervisor would.
    pub fn supervise(&mut self) -> Result<()> {
        let Some(leader) = self.leader.filter(|leader| self.has_ended(*leader)) else { return Ok(()) };
        self.restarts += 1;
        let text = fs::read_to_string(self.log(leader)).unwrap_or_default();
        let why = text.lines().rev().find(|line| line.contains("error")).unwrap_or_default();
        self.note(format!("server {leader:?} has ended by itself, and is started again: {why}"));
        self.replace(leader, &[], now())
    }

    /// Waits, while the leader is supervised.
    pub fn pass(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.supervise()?;
            std::thread::sleep(Duration::from_millis(10).min(until.saturating_duration_since(Instant::now())));
        }
        Ok(())
    }

    /// Moves the addresses that follow a leader.
    fn follow(&mut self, side: ServerSide) {
        let target = self.socket(side);
        for (mount, relays) in self.relays.iter().enumerate() {
            match self.reaches[mount] {
                ServerReach::Moves => relays[0].move_to(&target, |_| true),
                // The first connection and every second one after it is broken.
                ServerReach::MovesInPart => relays[0].move_to(&target, |connection| connection % 2 == 0),
                _ => {}
            }
        }
    }

    /// Moves every address to the leader that does not lead there: what an operator does in the end.
    pub fn move_all(&mut self) {
        let Some(leader) = self.leader else { return };
        let target = self.socket(leader);
        for (mount, relays) in self.relays.iter().enumerate() {
            if matches!(self.reaches[mount], ServerReach::Stays | ServerReach::MovesInPart) {
                relays[0].move_to(&target, |_| true);
            }
        }
    }

    /// Sends a signal to a server.
    pub fn signal(&mut self, side: ServerSide, signal: i32) {
        if let Some(server) = &mut self.servers[side as usize] {
            server.signal(signal);
        }
    }

    /// Kills a server.
    pub fn kill(&mut self, side: ServerSide) {
        if let Some(mut server) = self.servers[side as usize].take() {
            server.kill();
        }
    }

    /// Whether a server's process has ended by itself.
    pub fn has_ended(&mut self, side: ServerSide) -> bool {
        self.servers[side as usize].as_mut().is_none_or(|server| server.try_status().is_some())
    }

    /// Waits until a server's process has ended by itself; returns false if it has not within the limit.
    pub fn ends_within(&mut self, side: ServerSide, limit: Duration) -> bool {
        let began = Instant::now();
        while !self.has_ended(side) {
            if began.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.note(format!("server {side:?} has ended"));
        true
    }

    /// Ends a server with SIGTERM; an error if it fails.
    pub fn terminate(&mut self, side: ServerSide) -> Result<()> {
        let Some(mut server) = self.servers[side as usize].take() else { return Ok(()) };
        server.signal(libc::SIGTERM);
        let status = server.wait(LIMIT)?;
        ensure!(status.success(), "server {side:?}: {}\n{}", describe(status), server.log_tail());
        Ok(())
    }

    /// Cuts the network between a mount and a server, or makes it whole again.
    pub fn set_cut(&self, mount: usize, side: ServerSide, is_cut: bool) {
        self.relays[mount][side as usize].set_cut(is_cut);
    }

    /// Starts the process of a mount, which needs a leader.
    pub fn begin_mount(&self, mount: usize) -> Result<GuardedProcess> {
        let directory = self.directory(mount);
        fs::create_dir_all(&directory)?;
        let relay = |side: ServerSide| format!("unix:{}", self.relays[mount][side as usize].socket.display());
        let servers = match self.reaches[mount] {
            ServerReach::Both => [relay(ServerSide::A), relay(ServerSide::B)].join(","),
            ServerReach::Reversed => [relay(ServerSide::B), relay(ServerSide::A)].join(","),
            ServerReach::Stays | ServerReach::Moves | ServerReach::MovesInPart => relay(ServerSide::A),
            ServerReach::OnlySecond => relay(ServerSide::B),
        };
        let (disk, shown) = (self.disk(), directory.display().to_string());
        let words = ["volume", "mount", &disk, &shown, "--server", &servers];
        let command = self.command(None, &[&words[..], &mount_options(&[])[..]].concat())?;
        spawn(command, &self.mount_log(mount))
    }

    /// Waits until the volume is mounted by this process; starts it again if it ends before, as an operator would.
    pub fn mount(&mut self, mount: usize, mut process: GuardedProcess) -> Result<()> {
        let began = Instant::now();
        let shown = self.directory(mount).display().to_string();
        while !process.log_text().lines().any(|line| line == shown) {
            ensure!(began.elapsed() < LIMIT, "mount {mount} is not there\n{}", process.log_tail());
            if process.try_status().is_some() {
                std::thread::sleep(RETRY);
                process = self.begin_mount(mount)?;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.mounts[mount] = Some(process);
        self.note(format!("mount {mount} is there"));
        Ok(())
    }

    /// Sends a signal to a mount's process.
    pub fn signal_mount(&mut self, mount: usize, signal: i32) {
        if let Some(process) = &mut self.mounts[mount] {
            process.signal(signal);
        }
    }

    fn mount_log(&self, mount: usize) -> PathBuf {
        self.scratch.join(&format!("m{mount}.log"))
    }

    /// What the processes printed last.
    pub fn last_words(&self) -> Vec<String> {
        let servers = [ServerSide::A, ServerSide::B].map(|side| (format!("server {side:?}"), self.log(side)));
        let mounts = (0..MOUNTS).map(|mount| (format!("mount {mount}"), self.mount_log(mount)));
        let words = servers.into_iter().chain(mounts).map(|(name, log)| {
            let text = fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("{name} printed: {}", lines[lines.len().saturating_sub(LAST_LINES)..].join(" / "))
        });
        words.collect()
    }

    /// Kills a mount, so that every call on it returns.
    fn kill_mount(&mut self, mount: usize) {
        if let Some(mut process) = self.mounts[mount].take() {
            process.kill();
        }
        let directory = self.directory(mount);
        let unmounted = apart(move || Command::new("umount").args(["-q", "-l"]).arg(directory).status());
        drop(unmounted);
    }

    /// Unmounts everything, ends the leader, and checks the volume; returns the problems that the check found.
    pub fn finish(&mut self) -> Result<Vec<Value>> {
        for mount in 0..MOUNTS {
            if let Some(process) = &mut self.mounts[mount] {
                ensure!(process.try_status().is_none(), "mount {mount} has ended\n{}", process.log_tail());
                let place = self.directory(mount);
                let command = ["volume", "umount", &place.display().to_string()];
                when_free(&place, LIMIT, || UnmountAttempt::of_command(self.try_run(&command, LIMIT)?))?;
                let Some(mut process) = self.mounts[mount].take() else { continue };
                let status = process.wait(LIMIT)?;
                ensure!(status.success(), "mount {mount}: {}\n{}", describe(status), process.log_tail());
            }
        }
        if let Some(leader) = self.leader {
            self.terminate(leader)?;
        }
        for side in [ServerSide::A, ServerSide::B] {
            self.signal_export(side, libc::SIGCONT);
            self.kill(side);
        }
        let disk = self.disk();
        let (code, text) = self.try_run(&["volume", "check", &disk, "--json"], LIMIT)?;
        let report: Value = serde_json::from_str(&text).with_context(|| format!("volume check: {code:?}: {text}"))?;
        report["problems"].as_array().cloned().with_context(|| format!("volume check: {text}"))
    }
}

impl Drop for TakeoverSite {
    fn drop(&mut self) {
        // A mount is killed first: calls on it must return before its directory can be removed.
        for mount in 0..MOUNTS {
            self.kill_mount(mount);
        }
        for side in [ServerSide::A, ServerSide::B] {
            self.kill(side);
            self.kill_export(side);
        }
    }
}
