//! Runs a shared volume: a disk, its server, and mounts of the volume on this machine.
//!
//! Owns: the processes, their scratch folder with a runtime directory, and their removal: nothing remains when the
//! volume is dropped. Knows only the command line, not the implementation.

mod apart;
pub mod databases;
pub mod exercise;
pub mod freshness;
pub mod kills;
pub mod maps;
pub mod posix;
pub mod programs;
pub mod rights;
pub mod takeover;
pub mod trees;

use crate::guard::{GuardedProcess, describe};
use crate::nectary::binary;
use crate::scratch::ScratchFolder;
use crate::unmounting::{UnmountAttempt, when_free};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The lease of a volume's server, if no other is named: long enough for a disk that a busy machine keeps waiting, short
/// enough for tests that wait for the end of one.
const LEASE: &str = "3s";
/// The time that a server has to free files without a name.
const FREE_TIME: Duration = Duration::from_millis(500);
/// The time limit of every wait.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Whether mounts of this process keep names by themselves.
static LOCAL_NAMES: AtomicBool = AtomicBool::new(false);

/// Gives all later mounts of this process `--local-names`.
pub fn keep_names_local() {
    LOCAL_NAMES.store(true, Ordering::Relaxed);
}

/// Whether all later mounts of this process get `--local-names`.
pub fn keeps_names_local() -> bool {
    LOCAL_NAMES.load(Ordering::Relaxed)
}

/// The options of a mount: these, and those of all mounts of this process.
fn mount_options<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut options = more.to_vec();
    if keeps_names_local() {
        options.push("--local-names");
    }
    options
}

/// A volume with a server and mounts.
pub struct VolumeRig {
    /// The folder: `disk`, `m0`, `m1`, … and `run`.
    pub scratch: ScratchFolder,
    server: Option<GuardedProcess>,
    mounts: Vec<Option<GuardedProcess>>,
}

impl VolumeRig {
    /// Formats a disk of this size, and starts its server.
    pub fn new(size: &str) -> Result<VolumeRig> {
        VolumeRig::leased(size, LEASE)
    }

    /// As [`new`](VolumeRig::new), with a longer lease for a server that must outlast a slow disk.
    pub fn leased(size: &str, lease: &str) -> Result<VolumeRig> {
        let scratch = ScratchFolder::new("volume")?;
        // Some of the tests run as other users.
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
        fs::create_dir_all(scratch.join("run"))?;
        fs::set_permissions(scratch.join("run"), fs::Permissions::from_mode(0o700))?;
        let mut volume = VolumeRig { scratch, server: None, mounts: Vec::new() };
        let disk = volume.disk();
        volume.run(&["volume", "format", &disk, "--size", size, "--lease", lease])?;
        volume.serve()?;
        Ok(volume)
    }

    /// The SPEC of the disk.
    pub fn disk(&self) -> String {
        self.scratch.join("disk").display().to_string()
    }

    /// The address of the server.
    pub fn address(&self) -> String {
        format!("unix:{}", self.scratch.join("server").display())
    }

    /// A command of the program, ready to run.
    pub fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(binary()?);
        command.args(arguments).env("NECTARY_RUNTIME_DIR", self.scratch.join("run")).stdin(Stdio::null());
        Ok(command)
    }

    /// Runs a command to its end; returns its output, or an error if it fails.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let (code, text) = self.try_run(arguments)?;
        ensure!(code == Some(0), "{}: exit code {code:?}\n{text}", arguments.join(" "));
        Ok(text)
    }

    /// Runs a command to its end, however that is; returns its exit code and its output.
    pub fn try_run(&self, arguments: &[&str]) -> Result<(Option<i32>, String)> {
        let log = self.scratch.join("command.log");
        let _ = fs::remove_file(&log);
        let mut process = spawn(self.command(arguments)?, &log)?;
        let status = process.wait(LIMIT)?;
        Ok((status.code(), process.log_text()))
    }

    /// Starts the server, and waits until it serves.
    pub fn serve(&mut self) -> Result<()> {
        let (disk, address) = (self.disk(), self.address());
        let command = self.command(&["volume", "serve", &disk, "--listen", &address])?;
        self.server = Some(started(command, &self.scratch.join("server.log"), "unix:")?);
        Ok(())
    }

    /// Starts the server at a TCP address, with further options; returns where it listens.
    pub fn serve_at(&mut self, address: &str, more: &[&str]) -> Result<String> {
        let (disk, log) = (self.disk(), self.scratch.join("server.log"));
        let before = fs::read(&log).unwrap_or_default().len();
        let command = self.command(&[&["volume", "serve", &disk, "--listen", address], more].concat())?;
        let shown = address.trim_end_matches(|letter: char| letter.is_ascii_digit());
        self.server = Some(started(command, &log, shown)?);
        let text = self.log("server");
        let line = text.get(before..).and_then(|text| text.lines().find(|line| line.starts_with(shown)));
        line.map(str::to_owned).context("it does not say where it listens")
    }

    /// Starts the server, which reaches the disk by another SPEC, with further options.
    pub fn serve_from(&mut self, disk: &str, more: &[&str]) -> Result<()> {
        let address = self.address();
        let command = self.command(&[&["volume", "serve", disk, "--listen", &address], more].concat())?;
        self.server = Some(started(command, &self.scratch.join("server.log"), "unix:")?);
        Ok(())
    }

    /// Kills the server.
    pub fn kill_server(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill();
        }
    }

    /// Sends a signal to the server's process.
    pub fn signal_server(&mut self, signal: i32) {
        if let Some(server) = &mut self.server {
            server.signal(signal);
        }
    }

    /// Ends the server with SIGTERM; an error if it fails.
    pub fn stop_server(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        server.signal(libc::SIGTERM);
        let status = server.wait(LIMIT)?;
        ensure!(status.success(), "{}\n{}", describe(status), server.log_tail());
        Ok(())
    }

    /// Mounts the volume once more; returns the directory.
    pub fn mount(&mut self) -> Result<PathBuf> {
        self.mount_from(&self.address(), &[])
    }

    /// Mounts the volume once more with further options; returns the directory.
    pub fn mount_with(&mut self, more: &[&str]) -> Result<PathBuf> {
        self.mount_from(&self.address(), more)
    }

    /// The number of a mount's process.
    pub fn mount_process(&self, index: usize) -> u32 {
        self.mounts[index].as_ref().map_or(0, GuardedProcess::id)
    }

    /// The number of the server's process.
    pub fn server_process(&self) -> u32 {
        self.server.as_ref().map_or(0, GuardedProcess::id)
    }

    /// Mounts it once more, from a server at this address, with further options; returns where.
    pub fn mount_from(&mut self, address: &str, more: &[&str]) -> Result<PathBuf> {
        self.mount_by(&self.disk(), address, more)
    }

    /// Mounts it once more, by another SPEC of the disk; returns where.
    pub fn mount_of(&mut self, disk: &str) -> Result<PathBuf> {
        self.mount_by(disk, &self.address(), &[])
    }

    fn mount_by(&mut self, disk: &str, address: &str, more: &[&str]) -> Result<PathBuf> {
        let (directory, process) = self.begin_mount(self.mounts.len(), disk, address, more)?;
        self.mounts.push(Some(process));
        Ok(directory)
    }

    /// Mounts it again at the place of a mount that was killed, from a server at this address.
    pub fn mount_again(&mut self, index: usize, address: &str) -> Result<()> {
        let (_, process) = self.begin_mount(index, &self.disk(), address, &[])?;
        self.mounts[index] = Some(process);
        Ok(())
    }

    fn begin_mount(&self, index: usize, disk: &str, address: &str, more: &[&str]) -> Result<(PathBuf, GuardedProcess)> {
        let directory = self.scratch.join(&format!("m{index}"));
        fs::create_dir_all(&directory)?;
        let shown = directory.display().to_string();
        let options = mount_options(more);
        let command =
            self.command(&[&["volume", "mount", disk, &shown, "--server", address], &options[..]].concat())?;
        let process = started(command, &self.scratch.join(&format!("m{index}.log")), "/")?;
        Ok((directory, process))
    }

    /// Kills a mount's process.
    pub fn kill_mount(&mut self, index: usize) {
        if let Some(mut process) = self.mounts[index].take() {
            process.kill();
        }
        let place = self.scratch.join(&format!("m{index}"));
        let _ = apart::apart(move || Command::new("umount").args(["-q", "-l"]).arg(place).status());
    }

    /// Kills the processes of all mounts: this ends every call on them.
    pub fn kill_mounts(&mut self) {
        (0..self.mounts.len()).for_each(|index| self.kill_mount(index));
    }

    /// Sends a signal to a mount's process.
    pub fn signal_mount(&mut self, index: usize, signal: i32) {
        if let Some(process) = &mut self.mounts[index] {
            process.signal(signal);
        }
    }

    /// Waits until the process of a mount has ended; an error if it fails.
    pub fn wait_mount(&mut self, index: usize) -> Result<()> {
        let Some(mut process) = self.mounts[index].take() else { return Ok(()) };
        let status = process.wait(LIMIT)?;
        ensure!(status.success(), "{}\n{}", describe(status), process.log_tail());
        Ok(())
    }

    /// Unmounts one mount, which may be in use for a moment; an error if the command or the mount's process fails.
    pub fn unmount(&mut self, index: usize) -> Result<()> {
        let place = self.scratch.join(&format!("m{index}"));
        let command = ["volume", "umount", &place.display().to_string()];
        when_free(&place, LIMIT, || UnmountAttempt::of_command(self.try_run(&command)?))?;
        self.wait_mount(index)
    }

    /// Unmounts everything, ends the server and checks the volume; returns the report of the check.
    pub fn finish(&mut self) -> Result<Value> {
        for index in 0..self.mounts.len() {
            if self.mounts[index].is_some() {
                self.unmount(index)?;
            }
        }
        self.stop_server()?;
        self.check()
    }

    /// Unmounts everything, ends the server, and requires that the check finds no problem.
    pub fn finish_whole(&mut self) -> Result<()> {
        let check = self.finish()?;
        ensure!(check["problems"].as_array().map(Vec::len) == Some(0), "the volume's check: {check}");
        Ok(())
    }

    /// As [`finish_whole`](Self::finish_whole), and requires that the volume has no file, and no space in use by one.
    pub fn finish_empty(&mut self) -> Result<()> {
        self.finish_whole()?;
        let began = Instant::now();
        while let Err(error) = self.require_empty() {
            ensure!(began.elapsed() < LIMIT, "{error:#}");
            // Files without a name are freed in the background, also after the next start.
            self.serve()?;
            std::thread::sleep(FREE_TIME);
            self.stop_server()?;
        }
        Ok(())
    }

    fn require_empty(&self) -> Result<()> {
        let info: Value = serde_json::from_str(&self.run(&["volume", "info", &self.disk(), "--json"])?)?;
        for (field, expected) in [("inodes", 1), ("data_bytes", 0), ("granted_bytes", 0), ("quarantined_bytes", 0)] {
            ensure!(info[field] == expected, "{field} is {}, not {expected}, of an empty volume", info[field]);
        }
        Ok(())
    }

    /// Checks the volume while no server runs; returns the report.
    pub fn check(&self) -> Result<Value> {
        let disk = self.disk();
        let text = self.run(&["volume", "check", &disk, "--json"])?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Returns the output of a process.
    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.scratch.join(&format!("{name}.log"))).unwrap_or_default()
    }
}

fn spawn(command: Command, log: &Path) -> Result<GuardedProcess> {
    let log = log.to_owned();
    apart::apart(move || GuardedProcess::spawn("nectary volume", command, &log, None))
}

/// Starts a process, and waits for a line that begins with `line`.
fn started(command: Command, log: &Path, line: &str) -> Result<GuardedProcess> {
    let before = fs::read(log).unwrap_or_default().len();
    let mut process = spawn(command, log)?;
    let began = Instant::now();
    loop {
        let text = process.log_text();
        if text.get(before..).is_some_and(|text| text.lines().any(|found| found.starts_with(line))) {
            return Ok(process);
        }
        let has_ended = process.try_status().is_some();
        ensure!(!has_ended && began.elapsed() < LIMIT, "it does not start\n{}", process.log_tail());
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for VolumeRig {
    fn drop(&mut self) {
        for index in 0..self.mounts.len() {
            self.kill_mount(index);
        }
        self.kill_server();
    }
}
