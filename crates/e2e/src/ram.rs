//! Runs donors of memory in network namespaces, and a device on them.
//!
//! Owns: network namespaces with a link to that of this process, running donors, and an attached device with its mount.
//! Promises that no namespace, link, mount, loop device or process remains when they are dropped. Knows only the
//! command line, not the implementation.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::attach::{TestFileSystem, missing, turns};
use crate::guard::{self, GuardedProcess, find_program};
use crate::nectary::{self, binary};
use crate::report::not_run;
use crate::scratch::ScratchFolder;
use crate::unmounting::unmount;

/// How long any one step may take.
pub const STEP_MAX: Duration = Duration::from_secs(60);
/// The number of namespaces of a process; each has an own net.
const NAMESPACES_MAX: u32 = 64 * 64;

/// Whether this machine cannot run a test with a file system on donors in network namespaces; prints the reason.
pub fn cannot(test: &str) -> bool {
    let mut reason = missing(TestFileSystem::Ext4);
    if find_program("ip").is_none() {
        reason = Some("there is no ip".to_owned());
    }
    if reason.is_none() {
        let tried = ScratchFolder::new("ram-namespaces").and_then(|scratch| NetworkNamespace::new(&scratch).map(drop));
        reason = tried.err().map(|error| format!("no network namespaces: {error:#}"));
    }
    if let Some(reason) = &reason {
        not_run(format!("{test}: {reason}"));
    }
    reason.is_some()
}

/// A network namespace with one link to the namespace of this process.
#[derive(Debug)]
pub struct NetworkNamespace {
    /// Its name.
    pub name: String,
    /// The address inside the namespace.
    pub address: String,
    /// The end of its link in the namespace of this process.
    link: String,
}

/// The second byte of this process's addresses. Its name among abstract sockets keeps other processes from taking it.
fn own_net() -> u32 {
    static NET: OnceLock<(u32, Option<UnixListener>)> = OnceLock::new();
    let taken = |net: u32| {
        let address = SocketAddr::from_abstract_name(format!("nectary-e2e-net-{net}")).ok()?;
        Some((net, Some(UnixListener::bind_addr(&address).ok()?)))
    };
    let first = std::process::id() % 200;
    NET.get_or_init(|| (0..200).find_map(|next| taken((first + next) % 200 + 10)).unwrap_or((first + 10, None))).0
}

impl NetworkNamespace {
    /// Makes another namespace; a process can have at most [`NAMESPACES_MAX`] at the same time.
    pub fn new(scratch: &ScratchFolder) -> Result<NetworkNamespace> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed) % NAMESPACES_MAX);
        let name = format!("nectary-{pid}-{number}");
        // Each namespace has a net of four addresses.
        let (high, middle, low) = (own_net(), 192 + number / 64, number % 64 * 4);
        let [outer, inner] = [1, 2].map(|host| format!("10.{high}.{middle}.{}", low + host));
        let link = format!("nrd{}-{number}", pid % 100_000);
        let this = NetworkNamespace { name: name.clone(), address: inner.clone(), link: link.clone() };
        for line in [
            format!("netns add {name}"),
            format!("link add {link} type veth peer name eth0 netns {name}"),
            format!("addr add {outer}/30 dev {link}"),
            format!("link set {link} up"),
            format!("-n {name} addr add {inner}/30 dev eth0"),
            format!("-n {name} link set eth0 up"),
            format!("-n {name} link set lo up"),
        ] {
            run(scratch, "ip", &line.split(' ').collect::<Vec<_>>())?;
        }
        Ok(this)
    }
}

impl NetworkNamespace {
    /// Takes the namespace's link down or up. While the link is down, packets are dropped without an answer.
    pub fn set_link(&self, scratch: &ScratchFolder, is_up: bool) -> Result<()> {
        let state = if is_up { "up" } else { "down" };
        run(scratch, "ip", &["-n", &self.name, "link", "set", "eth0", state]).map(drop)
    }

    /// Limits what is sent to the namespace, in the form of tc (`64mbps` is 64 MB a second), or removes the limit.
    pub fn set_rate(&self, scratch: &ScratchFolder, rate: Option<&str>) -> Result<()> {
        let of_link = ["dev", self.link.as_str(), "root"];
        let Some(rate) = rate else {
            return run(scratch, "tc", &[&["qdisc", "del"][..], &of_link].concat()).map(drop);
        };
        let limit = ["tbf", "rate", rate, "burst", "256kb", "latency", "100ms"];
        run(scratch, "tc", &[&["qdisc", "replace"][..], &of_link, &limit].concat()).map(drop)
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        // This also removes the link.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// A running `nectary ram donate`.
#[derive(Debug)]
pub struct DonorProcess {
    /// The process.
    pub process: GuardedProcess,
    /// The address at which it listens, in the form that a SPEC needs.
    pub address: String,
}

impl DonorProcess {
    /// Starts a donor at a free port of this machine, or at port 7070 of a namespace.
    pub fn start(
        scratch: &ScratchFolder,
        name: &str,
        inside: Option<&NetworkNamespace>,
        arguments: &[&str],
    ) -> Result<DonorProcess> {
        let run = runtime(scratch)?;
        let mut command = match inside {
            None => Command::new(binary()?),
            Some(namespace) => {
                // Do not use `ip netns exec`: its copy of all mounts would keep file systems mounted for as long as the
                // donor runs.
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{}", namespace.name)).arg(binary()?);
                command
            }
        };
        let listen = inside.map_or("127.0.0.1:0".to_owned(), |namespace| format!("{}:7070", namespace.address));
        command.args(["ram", "donate", "--listen", &listen]).args(arguments);
        if inside.is_some() {
            command.arg("--insecure");
        }
        command.env("NECTARY_RUNTIME_DIR", run);
        let mut process = GuardedProcess::spawn(name, command, &scratch.join(&format!("{name}.log")), None)?;
        let address = wait_for_line(&mut process, |line| line.contains(':') && !line.contains(' '))?;
        Ok(DonorProcess { process, address })
    }
}

/// Waits for a line of a process's output that `is_it` accepts.
fn wait_for_line(process: &mut GuardedProcess, is_it: impl Fn(&str) -> bool) -> Result<String> {
    let deadline = Instant::now() + STEP_MAX;
    loop {
        let text = process.log_text();
        // Take only lines that are complete.
        if let Some(line) =
            text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).find(|line| is_it(line))
        {
            return Ok(line.to_owned());
        }
        if let Some(status) = process.try_status() {
            bail!("it ended with {}\n{}", guard::describe(status), process.log_tail());
        }
        ensure!(Instant::now() < deadline, "it is not ready\n{}", process.log_tail());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Makes the runtime directory of all processes of a test.
pub fn runtime(scratch: &ScratchFolder) -> Result<PathBuf> {
    let run = scratch.join("run");
    fs::create_dir_all(&run)?;
    fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    Ok(run)
}

/// Runs a program to its end; returns its output, or an error if it fails.
pub fn run(scratch: &ScratchFolder, program: &str, arguments: &[&str]) -> Result<String> {
    crate::nbd::run(scratch.path(), program, arguments)
}

/// A device that is attached to the kernel, with a directory to mount it.
pub struct AttachedRamDevice<'a> {
    scratch: &'a ScratchFolder,
    /// The block device.
    pub device: String,
    /// The directory where it is mounted.
    pub place: PathBuf,
    process: GuardedProcess,
    is_frozen: bool,
}

impl AttachedRamDevice<'_> {
    /// Attaches the device of a SPEC.
    pub fn new<'a>(scratch: &'a ScratchFolder, spec: &str) -> Result<AttachedRamDevice<'a>> {
        AttachedRamDevice::with(scratch, spec, &[])
    }

    /// Attaches the device of a SPEC with further options.
    pub fn with<'a>(scratch: &'a ScratchFolder, spec: &str, options: &[&str]) -> Result<AttachedRamDevice<'a>> {
        let mut command = Command::new(binary()?);
        command.args(["attach", spec, "--foreground"]).args(options).env("NECTARY_RUNTIME_DIR", runtime(scratch)?);
        // Remove the log of an earlier attachment: its line would be mistaken for that of this attachment.
        let log = scratch.join("attach.log");
        let _ = fs::remove_file(&log);
        let _turn = turns::beside();
        let mut process = GuardedProcess::spawn("nectary attach", command, &log, None)?;
        let device = wait_for_line(&mut process, |line| line.starts_with("/dev/loop"))?;
        let place = scratch.join("mnt");
        fs::create_dir_all(&place)?;
        Ok(AttachedRamDevice { scratch, device, place, process, is_frozen: false })
    }

    /// Mounts the file system on the device.
    pub fn mount(&self) -> Result<()> {
        run(self.scratch, "mount", &[&self.device, &self.place.display().to_string()]).map(drop)
    }

    /// Unmounts the file system. *Errors*: it stays in use; the error names the users.
    pub fn unmount(&self) -> Result<()> {
        unmount(&self.place, STEP_MAX)
    }

    /// Freezes the mounted file system: it writes back what it holds, and writes nothing after that.
    pub fn freeze(&mut self) -> Result<()> {
        self.is_frozen = true;
        run(self.scratch, "fsfreeze", &["--freeze", &self.place.display().to_string()]).map(drop)
    }

    /// Takes the file system away, even if it is in use or its device fails. It is thawed before, because a frozen file
    /// system keeps its device.
    fn force_unmount(&mut self) {
        if std::mem::take(&mut self.is_frozen) {
            let _ = Command::new("fsfreeze").arg("--unfreeze").arg(&self.place).status();
        }
        let _ = Command::new("umount").args(["-q", "-l"]).arg(&self.place).status();
    }

    /// Stops the attaching process with SIGSTOP, and waits until it has stopped.
    pub fn stop(&mut self) -> Result<()> {
        self.process.signal(libc::SIGSTOP);
        let deadline = Instant::now() + STEP_MAX;
        let stat = format!("/proc/{}/stat", self.process.id());
        while !fs::read_to_string(&stat)?.contains(") T ") {
            ensure!(Instant::now() < deadline, "the process does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Lets the stopped process continue.
    pub fn go_on(&mut self) {
        self.process.signal(libc::SIGCONT);
    }

    /// Kills the attaching process, and releases its leftovers, if no attachment of another test did so before.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill();
        self.force_unmount();
        let (status, text) = nectary::run(&["detach", &self.device], self.scratch.path())?;
        let is_free = text.contains("is not attached") && !text.contains("cannot be released");
        ensure!(status.success() || is_free, "what a killed client left is not released: {text}");
        Ok(())
    }

    /// Tries to detach the device; returns whether this succeeded, and the messages.
    pub fn try_detach(&self) -> Result<(bool, String)> {
        let (status, text) = nectary::run(&["detach", &self.device], self.scratch.path())?;
        Ok((status.success(), text))
    }

    /// Detaches the device, even if its data cannot be written back, and waits until its process has ended,
    /// successfully or not. Returns the messages of that process.
    pub fn detach(mut self) -> Result<String> {
        let (status, text) = nectary::run(&["detach", &self.device, "--force"], self.scratch.path())?;
        self.process.wait(STEP_MAX).context("the attaching process does not end")?;
        let log = self.process.log_text();
        println!("nectary detach: {}: {text}", guard::describe(status));
        // Another test may use the device's number by now, so its existence proves nothing. A second call finds a device
        // that the ended process has left.
        let (_, text) = nectary::run(&["detach", &self.device], self.scratch.path())?;
        let left = format!("{}: released, its process {} is gone", self.device, self.process.id());
        ensure!(!text.contains(&left), "the ended process left its device: {text}");
        Ok(log)
    }
}

impl Drop for AttachedRamDevice<'_> {
    fn drop(&mut self) {
        self.force_unmount();
        if self.process.try_status().is_none() {
            self.process.signal(libc::SIGTERM);
            let _ = self.process.wait(Duration::from_secs(5));
            self.process.kill();
            // This releases the leftovers of a killed process.
            let _ = nectary::run(&["detach", &self.device], self.scratch.path());
        }
    }
}
