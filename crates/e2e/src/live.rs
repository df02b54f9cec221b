//! A running cache: a mounted directory or an attached device, and the commands that show and change it.
//!
//! Owns: the process, its scratch folder with a runtime directory, and their removal: nothing remains when it is
//! dropped. This file uses only the command line and the control socket, not the implementation.

use crate::attach::turns;
use crate::guard::GuardedProcess;
use crate::nectary::binary;
use crate::scratch::ScratchFolder;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The time limit of every wait.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A running cache.
pub struct LiveCache {
    /// The process of the cache.
    pub process: GuardedProcess,
    /// Its folder, with the subfolders `source`, `shown` and `run`.
    pub scratch: ScratchFolder,
    /// Its directory or block device.
    pub name: String,
    is_mount: bool,
}

/// The result of a command.
#[derive(Debug)]
pub struct CommandOutput {
    /// Its exit code.
    pub code: i32,
    /// Its standard output.
    pub text: String,
    /// Its standard error stream.
    pub errors: String,
}

impl CommandOutput {
    /// Asserts the exit code.
    #[track_caller]
    pub fn exits(self, code: i32) -> CommandOutput {
        assert_eq!(self.code, code, "{self:?}");
        assert!(!self.errors.contains("panicked"), "{self:?}");
        self
    }

    /// Its output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Returns a description of what this machine lacks for a mounted cache (with `is_device`, for an attached one); `None`
/// if it lacks nothing.
pub fn missing(is_device: bool) -> Option<String> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0);
    let files: &[&str] = if is_device { &["/dev/fuse", "/dev/loop-control"] } else { &["/dev/fuse"] };
    match files.iter().find(|file| !Path::new(file).exists()) {
        Some(file) => Some(format!("there is no {file}")),
        None if !is_root => Some("it takes root".to_owned()),
        None => None,
    }
}

fn furnished(scratch: ScratchFolder) -> Result<ScratchFolder> {
    for folder in ["source", "shown", "run"] {
        fs::create_dir_all(scratch.join(folder))?;
    }
    fs::set_permissions(scratch.join("run"), fs::Permissions::from_mode(0o700))?;
    Ok(scratch)
}

impl LiveCache {
    /// Mounts `source` of a new folder at `shown`, after `fill` has put files into `source`.
    pub fn mounted(arguments: &[&str], fill: impl FnOnce(&Path)) -> Result<LiveCache> {
        LiveCache::mounted_in(ScratchFolder::new("live-mount")?, arguments, fill)
    }

    /// Mounts a source in memory, after `fill` has put files into it.
    pub fn mounted_in_memory(arguments: &[&str], fill: impl FnOnce(&Path)) -> Result<LiveCache> {
        LiveCache::mounted_in(ScratchFolder::in_memory("live-mount")?, arguments, fill)
    }

    /// Mounts a source by a process with a hard limit of open files, after `fill` has put files into it; with
    /// `in_memory` the source is in memory.
    pub fn mounted_under(
        descriptors: u64,
        in_memory: bool,
        arguments: &[&str],
        fill: impl FnOnce(&Path),
    ) -> Result<LiveCache> {
        let scratch =
            if in_memory { ScratchFolder::in_memory("live-mount")? } else { ScratchFolder::new("live-mount")? };
        let scratch = furnished(scratch)?;
        fill(&scratch.join("source"));
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"")]).arg(binary()?);
        command.args(["cache", "mount"]).arg(scratch.join("source")).arg(scratch.join("shown")).args(arguments);
        LiveCache::start(command, scratch, true)
    }

    fn mounted_in(scratch: ScratchFolder, arguments: &[&str], fill: impl FnOnce(&Path)) -> Result<LiveCache> {
        let scratch = furnished(scratch)?;
        fill(&scratch.join("source"));
        let mut command = Command::new(binary()?);
        command.args(["cache", "mount"]).arg(scratch.join("source")).arg(scratch.join("shown")).args(arguments);
        LiveCache::start(command, scratch, true)
    }

    /// Attaches a device; `{folder}` in the SPEC is a new folder.
    pub fn attached(spec: &str, arguments: &[&str]) -> Result<LiveCache> {
        let scratch = furnished(ScratchFolder::new("live-attach")?)?;
        let _turn = turns::beside();
        let spec = spec.replace("{folder}", &scratch.path().display().to_string());
        let mut command = Command::new(binary()?);
        command.args(["attach", &spec, "--foreground"]).args(arguments);
        LiveCache::start(command, scratch, false)
    }

    fn start(mut command: Command, scratch: ScratchFolder, is_mount: bool) -> Result<LiveCache> {
        command.env("NECTARY_RUNTIME_DIR", scratch.join("run"));
        let mut process = GuardedProcess::spawn("nectary", command, &scratch.join("log"), None)?;
        let began = Instant::now();
        loop {
            let text = process.log_text();
            if let Some(name) = text.lines().find(|line| line.starts_with('/')) {
                return Ok(LiveCache { process, scratch, name: name.to_owned(), is_mount });
            }
            let has_ended = process.try_status().is_some();
            ensure!(!has_ended && began.elapsed() < LIMIT, "it does not start\n{}", process.log_tail());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A path below the mounted directory.
    pub fn shown(&self, name: impl AsRef<Path>) -> PathBuf {
        self.scratch.join("shown").join(name)
    }

    /// A command of the program, ready to run.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary().expect("the binary"));
        command.args(arguments).env("NECTARY_RUNTIME_DIR", self.scratch.join("run")).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, arguments: &[&str]) -> CommandOutput {
        let output = self.command(arguments).output().expect("it runs");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        CommandOutput {
            code: output.status.code().unwrap_or(-1),
            text: text(output.stdout),
            errors: text(output.stderr),
        }
    }

    /// Sends bytes to the cache's control socket and returns the first line of the answer.
    pub fn control(&self, request: &[u8]) -> Result<Value> {
        let entries = fs::read_dir(self.scratch.join("run"))?.flatten().map(|entry| entry.path());
        let mut sockets = entries.filter(|path| path.extension().is_some_and(|extension| extension == "sock"));
        let socket = sockets.next().context("it has no control socket")?;
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        // A request that is too long is answered before all of it is read, so the write may fail.
        let _ = stream.write_all(request);
        let mut line = Vec::new();
        BufReader::new(stream.take(8 << 20)).read_until(b'\n', &mut line)?;
        serde_json::from_slice(&line).with_context(|| String::from_utf8_lossy(&line).into_owned())
    }

    /// Calls a method on the cache's control socket.
    pub fn ask(&self, method: &str, parameters: &Value) -> Result<Value> {
        let mut line = serde_json::to_vec(&serde_json::json!({ "method": method, "params": parameters }))?;
        line.push(b'\n');
        self.control(&line)
    }
}

impl Drop for LiveCache {
    fn drop(&mut self) {
        self.process.signal(libc::SIGTERM);
        if self.process.wait(LIMIT).is_err() {
            self.process.kill();
        }
        if self.is_mount {
            let _ = Command::new("umount").args(["-q", "-l", &self.name]).stderr(Stdio::null()).status();
        } else if self.process.try_status().is_some_and(|status| !status.success()) {
            let _ = Command::new("losetup").args(["-d", &self.name]).stderr(Stdio::null()).status();
        }
    }
}
