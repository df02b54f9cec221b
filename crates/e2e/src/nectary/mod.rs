//! The program under test: finds the `nectary` binary, runs the proxy, calls its control socket.
//!
//! Owns a running proxy as a user would run it: with its own runtime directory, an access log and a store. This file
//! uses only the command line and the control protocol (one line of JSON each way), not the implementation.

pub mod certificates;

use crate::guard::{self, GuardedProcess};
use crate::http::{HttpConnection, wait_listening};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// A connection to a control socket that was not used for this long is replaced before the next request.
const IDLE_MAX: Duration = Duration::from_secs(3);
/// The longest time of an answer of a control socket.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Finds the binary: `NECTARY_BIN`, else `nectary` in this program's target directory.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("NECTARY_BIN") {
        return Ok(PathBuf::from(path));
    }
    let own = std::env::current_exe()?;
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join("nectary")).find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "no nectary binary beside {}: run `cargo build --release -p nectary`, or set NECTARY_BIN",
            own.display()
        )
    })
}

/// The request header with the token that the proxies of this file accept.
pub const AUTHORIZATION: (&str, &str) = ("Authorization", "Bearer a-token-for-tests");

/// The settings with which a proxy is run.
#[derive(Clone, Debug)]
pub struct ProxyCommand {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Origin of a reverse proxy; `None` for a forward proxy.
    pub origin: Option<String>,
    /// SPEC of the store.
    pub store: String,
    /// Size of the store, as on the command line.
    pub size: String,
    /// Memory, as on the command line.
    pub memory: String,
    /// Directory for the control socket, the access log and the process's output.
    pub folder: PathBuf,
    /// Write an access log to `folder/access.log`.
    pub access_log: bool,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// Processor to run on.
    pub cpu: Option<usize>,
    /// Program and arguments to put before the binary, such as `strace …`.
    pub wrapper: Vec<String>,
}

impl ProxyCommand {
    /// A reverse proxy on a free port with its store as a file in `folder`, one worker, 64 MiB of memory.
    pub fn new(folder: &Path, origin: Option<String>) -> Result<Self> {
        Ok(Self {
            listen: crate::scratch::free_address()?,
            origin,
            store: folder.join("store").display().to_string(),
            size: "256M".to_owned(),
            memory: "64M".to_owned(),
            folder: folder.to_owned(),
            access_log: false,
            arguments: Vec::new(),
            cpu: None,
            wrapper: Vec::new(),
        })
    }

    /// The path of the access log.
    pub fn access_log_path(&self) -> PathBuf {
        self.folder.join("access.log")
    }

    /// The command line to run.
    pub fn command(&self) -> Result<Command> {
        let binary = binary()?;
        let mut command = match self.wrapper.split_first() {
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(binary);
                command
            }
            None => Command::new(binary),
        };
        command.arg("proxy").arg("--listen").arg(self.listen.to_string());
        if let Some(origin) = &self.origin {
            command.args(["--origin", origin]);
        }
        command.args(["--store", &self.store, "--size", &self.size, "--memory", &self.memory]);
        if self.access_log {
            command.arg("--access-log").arg(self.access_log_path());
        }
        let token = self.folder.join("token");
        std::fs::write(&token, "a-token-for-tests\n")?;
        command.arg("--admin-token-file").arg(token);
        command.args(&self.arguments).env("NECTARY_RUNTIME_DIR", self.runtime_folder());
        Ok(command)
    }

    /// The directory of the control socket.
    pub fn runtime_folder(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// Starts the proxy without waiting for it.
    pub fn spawn(&self) -> Result<NectaryProxy> {
        self.spawn_command(self.command()?)
    }

    fn spawn_command(&self, command: Command) -> Result<NectaryProxy> {
        let runtime = self.runtime_folder();
        std::fs::create_dir_all(&runtime)?;
        std::fs::set_permissions(&runtime, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        let process = GuardedProcess::spawn("nectary", command, &self.folder.join("nectary.log"), self.cpu)?;
        Ok(NectaryProxy { process, listen: self.listen, runtime })
    }

    /// Starts a proxy with a configuration file, in which it listens at `self.listen`, and waits until it accepts
    /// connections.
    pub fn start_with_file(&self, file: &Path) -> Result<NectaryProxy> {
        let mut command = Command::new(binary()?);
        command.args(["proxy", "--config"]).arg(file).env("NECTARY_RUNTIME_DIR", self.runtime_folder());
        let mut nectary = self.spawn_command(command)?;
        nectary.wait_ready(Duration::from_secs(30))?;
        Ok(nectary)
    }

    /// Starts the proxy and waits until it accepts connections.
    pub fn start(&self) -> Result<NectaryProxy> {
        let mut nectary = self.spawn()?;
        nectary.wait_ready(Duration::from_secs(30))?;
        Ok(nectary)
    }

    /// Runs the proxy with arguments that it must refuse; returns its exit status and output.
    pub fn run_to_refusal(&self, limit: Duration) -> Result<(ExitStatus, String)> {
        let before = std::fs::read_to_string(self.folder.join("nectary.log")).unwrap_or_default().len();
        let mut nectary = self.spawn()?;
        let status = nectary.process.wait(limit)?;
        let text = nectary.process.log_text();
        Ok((status, text.get(before..).unwrap_or_default().to_owned()))
    }
}

/// Runs another subcommand to its end; returns its exit status and output.
pub fn run(arguments: &[&str], folder: &Path) -> Result<(ExitStatus, String)> {
    let mut command = Command::new(binary()?);
    command.args(arguments).env("NECTARY_RUNTIME_DIR", folder.join("run"));
    let log = folder.join("command.log");
    let _ = std::fs::remove_file(&log);
    guard::run(&format!("nectary {}", arguments.join(" ")), command, &log, Duration::from_secs(60))
}

/// The store's progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreSequences {
    /// The highest sequence given to a put.
    pub last: u64,
    /// The highest sequence that survives a kill, like all lower ones.
    pub written: u64,
    /// The highest sequence that survives a power cut, like all lower ones.
    pub flushed: u64,
}

/// The position of the store's ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPosition {
    /// The segment epoch that is being written.
    pub head: u64,
    /// The number of segments in the ring.
    pub segment_count: u64,
    /// The longest body that is stored in one piece, in bytes; longer bodies are stored in fragments.
    pub whole_bytes_max: u64,
}

impl RingPosition {
    /// The number of cycles that the ring has completed since `before`.
    pub fn laps_since(self, before: RingPosition) -> f64 {
        self.head.saturating_sub(before.head) as f64 / self.segment_count.max(1) as f64
    }

    /// The oldest epoch in which a body of this length is certain to be found. The next segment is reclaimed before the
    /// head reaches it. Fragments in the oldest quarter may count as lost, so that no body breaks off while it is read.
    pub fn tail(self, body_bytes: u64) -> u64 {
        let leaving = if body_bytes > self.whole_bytes_max { self.segment_count / 4 } else { 0 };
        (self.head + 2 + leaving).saturating_sub(self.segment_count)
    }
}

/// A running proxy.
#[derive(Debug)]
pub struct NectaryProxy {
    /// The process.
    pub process: GuardedProcess,
    /// Where it listens.
    pub listen: SocketAddr,
    runtime: PathBuf,
}

impl NectaryProxy {
    /// Waits until the proxy accepts connections; if the process ends before that, fails at once with its output.
    pub fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            if wait_listening(self.listen, Duration::from_millis(20)).is_ok() {
                return Ok(());
            }
            if let Some(status) = self.process.try_status() {
                bail!("nectary ended with {}\n{}", guard::describe(status), self.process.log_tail());
            }
            if Instant::now() > deadline {
                bail!("nectary does not listen on {} after {limit:?}\n{}", self.listen, self.process.log_tail());
            }
        }
    }

    /// A client of the proxy with long timeouts.
    pub fn client(&self) -> HttpConnection {
        HttpConnection::new(self.listen, Duration::from_secs(30))
    }

    /// Opens the control socket.
    pub fn control(&self) -> Result<ControlConnection> {
        ControlConnection::connect(&self.runtime)
    }

    /// Sends SIGTERM and waits for the end.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.process.signal(libc::SIGTERM);
        self.process.wait(limit)
    }

    /// Waits until all puts are written, so that they would survive a kill.
    pub fn wait_written(&self, limit: Duration) -> Result<StoreSequences> {
        let mut control = self.control()?;
        let target = control.sequences()?.last;
        let deadline = Instant::now() + limit;
        loop {
            let now = control.sequences()?;
            if now.written >= target {
                return Ok(now);
            }
            if Instant::now() > deadline {
                bail!("sequence {target} is not written after {limit:?}: {now:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A connection to the control socket. A process closes one that is idle for ten seconds, so one that was not used for
/// [`IDLE_MAX`] is replaced before the next request.
#[derive(Debug)]
pub struct ControlConnection {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
    used: Instant,
}

impl ControlConnection {
    /// Connects to the only socket in a runtime directory.
    pub fn connect(runtime: &Path) -> Result<Self> {
        let mut found = None;
        for entry in std::fs::read_dir(runtime).with_context(|| format!("cannot read {}", runtime.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_socket() && found.replace(entry.path()).is_some() {
                bail!("several sockets in {}", runtime.display());
            }
        }
        let path = found.with_context(|| format!("no control socket in {}", runtime.display()))?;
        ControlConnection::to(path)
    }

    fn to(socket: PathBuf) -> Result<Self> {
        let stream = UnixStream::connect(&socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Self { socket, stream: BufReader::new(stream), used: Instant::now() })
    }

    /// Calls a method and waits for the answer.
    pub fn request(&mut self, method: &str) -> Result<Value> {
        self.request_with(method, &Value::Null)
    }

    /// Calls a method with parameters and waits for the answer.
    pub fn request_with(&mut self, method: &str, params: &Value) -> Result<Value> {
        let request = serde_json::json!({ "method": method, "params": params });
        if self.used.elapsed() >= IDLE_MAX {
            *self = ControlConnection::to(self.socket.clone())?;
        }
        let failed = || format!("control socket: {method}");
        self.stream.get_mut().write_all(format!("{request}\n").as_bytes()).with_context(failed)?;
        let mut line = String::new();
        self.stream.read_line(&mut line).with_context(failed)?;
        self.used = Instant::now();
        let mut answer: Value = serde_json::from_str(&line).with_context(|| format!("control answer {line:?}"))?;
        match answer.get_mut("ok") {
            Some(value) => Ok(value.take()),
            None => bail!("control socket: {method}: {line}"),
        }
    }

    /// The status of the proxy.
    pub fn status(&mut self) -> Result<Value> {
        self.request("status")
    }

    /// The store's progress.
    pub fn sequences(&mut self) -> Result<StoreSequences> {
        Ok(self.progress()?.0)
    }

    /// The store's progress, and the position of its ring.
    pub fn progress(&mut self) -> Result<(StoreSequences, RingPosition)> {
        let status = self.status()?;
        let number = |name: &str| find(&status, name).and_then(Value::as_u64).with_context(|| format!("no {name}"));
        let found = find(&status, "sequences").with_context(|| format!("no sequences in the status {status}"))?;
        let sequence = |name: &str| found[name].as_u64().with_context(|| format!("no {name} in {found}"));
        let sequences =
            StoreSequences { last: sequence("last")?, written: sequence("written")?, flushed: sequence("flushed")? };
        let (head, segment_count) = (number("head_epoch")?, number("segment_count")?);
        Ok((sequences, RingPosition { head, segment_count, whole_bytes_max: number("whole_bytes_max")? }))
    }

    /// Purges objects; the parameters are those of the method `purge`.
    pub fn purge(&mut self, params: &Value) -> Result<()> {
        self.request_with("purge", params).map(|_| ())
    }
}

/// Finds the first member of this name at any depth.
pub fn find<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(members) => members.get(name).or_else(|| members.values().find_map(|member| find(member, name))),
        Value::Array(elements) => elements.iter().find_map(|element| find(element, name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process closes a connection that is not used for a while.
    #[test]
    fn idle_control_connection_is_replaced() {
        let scratch = crate::scratch::ScratchFolder::new("control").unwrap();
        let listener = std::os::unix::net::UnixListener::bind(scratch.join("part.sock")).unwrap();
        let process = std::thread::spawn(move || {
            for number in 1..=2 {
                let mut stream = BufReader::new(listener.accept().unwrap().0);
                stream.read_line(&mut String::new()).unwrap();
                stream.get_mut().write_all(format!("{{\"ok\":{number}}}\n").as_bytes()).unwrap();
            }
        });
        let mut control = ControlConnection::connect(scratch.path()).unwrap();
        assert_eq!(control.status().unwrap(), 1);
        control.used = Instant::now().checked_sub(IDLE_MAX).unwrap();
        assert_eq!(control.status().unwrap(), 2);
        process.join().unwrap();
    }

    #[test]
    fn members_are_found_at_any_depth() {
        let value = serde_json::json!({"a": [{"b": 1}, {"sequences": {"last": 7}}]});
        assert_eq!(find(&value, "sequences").unwrap()["last"], 7);
        assert!(find(&value, "c").is_none());
    }
}
