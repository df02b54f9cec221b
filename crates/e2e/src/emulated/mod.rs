//! A stock kernel in an emulated machine, for clients that this host's kernel does not have.
//!
//! Owns: the list of required programs, and one run of the machine: its kernel, its first file system, and its output.
//! The machine has no disk; it reaches 127.0.0.1 of this host as [`HOST`]. Leaves to others: the contents of the file
//! system (`root`), and the actions of the machine (`kernel_client`).

pub mod kernel_client;
pub mod root;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::guard::{self, find_program};

/// This host's address in the machine.
pub const HOST: &str = "10.0.2.2";
/// The programs of this host that a machine needs.
const PROGRAMS: [&str; 2] = ["qemu-system-x86_64", "busybox"];
/// The memory of the machine. *Units*: MiB.
const MEMORY_MIB: u32 = 384;

/// A kernel that is installed on this host; it need not be the running one.
#[derive(Debug, Clone)]
pub struct InstalledKernel {
    /// Its image.
    pub image: PathBuf,
    /// The directory of its modules.
    pub modules: PathBuf,
}

impl InstalledKernel {
    /// Finds the first kernel under `/boot`, in the order of names, that has all of these modules (such as `nbd.ko`).
    pub fn find(modules: &[&str]) -> Option<InstalledKernel> {
        let mut found: Vec<InstalledKernel> =
            std::fs::read_dir("/boot").ok()?.flatten().filter_map(|entry| kernel(&entry)).collect();
        found.sort_by(|one, other| one.image.cmp(&other.image));
        found.into_iter().find(|kernel| root::module_files(&kernel.modules, modules).is_ok())
    }
}

fn kernel(entry: &std::fs::DirEntry) -> Option<InstalledKernel> {
    let name = entry.file_name();
    let version = name.to_str()?.strip_prefix("vmlinuz-")?;
    let modules = Path::new("/lib/modules").join(version);
    modules.is_dir().then(|| InstalledKernel { image: entry.path(), modules })
}

/// The missing programs, among those that a machine needs and `others`.
pub fn missing(others: &[&'static str]) -> Vec<&'static str> {
    PROGRAMS.iter().chain(others).copied().filter(|name| find_program(name).is_none()).collect()
}

/// Runs a machine with a kernel and a packed file system until it ends by itself; returns its output.
///
/// *Errors*: it does not end within `limit`, or qemu fails.
pub fn run(kernel: &InstalledKernel, packed: &Path, log: &Path, limit: Duration) -> Result<String> {
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-accel", "tcg", "-cpu", "max", "-m", &MEMORY_MIB.to_string(), "-nographic", "-no-reboot"]);
    command.args(["-nodefaults", "-serial", "stdio", "-nic", "user,model=virtio-net-pci"]);
    command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(packed);
    // A panic ends the machine.
    command.args(["-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on"]);
    let (status, text) = guard::run("qemu-system-x86_64", command, log, limit)?;
    if !status.success() {
        anyhow::bail!("qemu-system-x86_64: {}\n{text}", guard::describe(status));
    }
    Ok(text)
}

/// The path of a program of this host.
fn program(name: &str) -> Result<PathBuf> {
    find_program(name).with_context(|| format!("there is no {name}"))
}
