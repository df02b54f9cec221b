//! Tests the NBD client of a stock kernel with our server: a file system is made, filled and compared across
//! connections.
//!
//! Owns: the actions of the machine, and its expected output. In each session the machine connects, compares the files
//! of earlier sessions (the first session makes the file system), writes files of random bytes, each with an fsync,
//! unmounts, and disconnects. At the end this host checks the file system. Checksums of all files stay in the machine's
//! memory, so a file that changed is found. Leaves to others: the machine (`emulated`).

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::root::InitialFileSystem;
use super::{HOST, InstalledKernel, run};
use crate::nbd::{self, NbdServer};
use crate::scratch::{ScratchFolder, free_address};

/// The programs to copy into the machine, and the one that checks the file system afterwards.
pub const PROGRAMS: [&str; 4] = ["nbd-client", "mkfs.ext4", "e2fsck", "ldd"];
/// The modules that the machine loads; `crc32c_generic` is loaded by name when ext4 is mounted.
pub const MODULES: [&str; 5] = ["virtio_pci.ko", "virtio_net.ko", "crc32c_generic.ko", "ext4.ko", "nbd.ko"];
/// The time limit of the machine. It is long, because the machine is emulated on a processor that other programs use,
/// too.
const LIMIT: Duration = Duration::from_secs(600);
/// The size of the disk.
const DISK: &str = "64M";

/// The results of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelClientCounts {
    /// The number of sessions, each with its own connections.
    pub sessions: u64,
    /// The number of files written.
    pub files: u64,
    /// The bytes of these files.
    pub bytes: u64,
    /// The number of comparisons of a file with its checksum over a new connection.
    pub compared: u64,
    /// Requests that the server counted: reads, writes, flushes, trims, zeroes.
    pub requests: [u64; 5],
}

/// Runs `sessions` sessions with `files` files each on a device; the seed decides the files' lengths. In the device's
/// SPEC, `{file}` stands for the file with its contents.
pub fn check(
    kernel: &InstalledKernel,
    device: &str,
    sessions: u64,
    files: u64,
    seed: u64,
) -> Result<KernelClientCounts> {
    let scratch = ScratchFolder::new("nbd-kernel")?;
    let folder = scratch.path();
    let disk = scratch.join("disk.img");
    let port = free_address()?.port();
    let listen = format!("tcp:127.0.0.1:{port}");
    let export = format!("disk={}", device.replace("{file}", &disk.display().to_string()));
    let server = NbdServer::nectary(folder, "export", &[&export, "--size", DISK, "--nbd", &listen])?;
    let root = InitialFileSystem::new(&scratch.join("root"))?;
    ["nbd-client", "mkfs.ext4"].iter().try_for_each(|name| root.add_program(name))?;
    root.add_modules(kernel, &MODULES)?;
    root.add_script("init", INIT)?;
    let values = format!("HOST={HOST}\nPORT={port}\nSESSIONS={sessions}\nFILES={files}\nSEED={}\n", seed % 1_000_000);
    root.add_script("check", &CHECK.replace("# VALUES\n", &values))?;
    let printed = run(kernel, &root.pack()?, &scratch.join("machine.log"), LIMIT)?;
    let counts = counts(&printed).with_context(|| format!("the machine printed:\n{}", tail(&printed)))?;
    let requests = requests(folder)?;
    let (status, log) = server.terminate()?;
    if !status.success() {
        bail!("the server ended with {status}\n{log}");
    }
    nbd::run(folder, "e2fsck", &["-f", "-n", &disk.display().to_string()])?;
    Ok(KernelClientCounts { requests, ..counts })
}

/// Reads the counts that the machine printed.
fn counts(printed: &str) -> Result<KernelClientCounts> {
    let line = printed.lines().find_map(|line| line.trim().strip_prefix("COUNTS "));
    let line = line.context("it did not come to the end")?;
    let mut numbers = line.split(' ').map(|word| word.parse::<u64>());
    let mut next = || numbers.next().context("it printed fewer counts")?.context("a count is no number");
    Ok(KernelClientCounts { sessions: next()?, files: next()?, bytes: next()?, compared: next()?, requests: [0; 5] })
}

/// The server's own counts.
fn requests(folder: &Path) -> Result<[u64; 5]> {
    let status: Value = serde_json::from_str(&nbd::run(folder, "nectary", &["status", "--json"])?)?;
    let requests = &status[0]["status"]["detail"]["exports"][0]["requests"];
    let mut found = [0; 5];
    for (number, name) in found.iter_mut().zip(["reads", "writes", "flushes", "trims", "zeroes"]) {
        *number = requests[name].as_u64().with_context(|| format!("no {name} in {status}"))?;
    }
    Ok(found)
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// The machine's first program.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do
  insmod /modules/$module || echo "module $module was not loaded"
done
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
/check || echo "FAILED"
reboot -f
"#;

/// The script of the machine's checks. It ends at the first command that fails.
const CHECK: &str = r#"#!/bin/busybox sh
set -e
export PATH=/bin
# VALUES
files=0 bytes=0 compared=0 session=0
: >/sums
while [ $session -lt $SESSIONS ]; do
  session=$((session + 1))
  nbd-client $HOST $PORT /dev/nbd0 -N disk -C 2
  [ $session -gt 1 ] || mkfs.ext4 -q -F /dev/nbd0
  mount -t ext4 -o discard /dev/nbd0 /mnt
  cd /mnt
  if [ -s /sums ]; then
    md5sum -c /sums >/tmp/compared || { grep -v ': OK' /tmp/compared; exit 1; }
    compared=$((compared + $(grep -c ': OK' /tmp/compared)))
  fi
  number=0
  while [ $number -lt $FILES ]; do
    number=$((number + 1))
    kib=$(((SEED + session * 37 + number * 101) % 509 + 1))
    dd if=/dev/urandom of=$session-$number bs=1k count=$kib conv=fsync 2>/dev/null
    md5sum $session-$number >>/sums
    files=$((files + 1)) bytes=$((bytes + kib * 1024))
  done
  # What was deleted is trimmed.
  dd if=/dev/zero of=gone bs=64k count=16 conv=fsync 2>/dev/null
  rm gone
  sync
  cd /
  umount /mnt
  nbd-client -d /dev/nbd0
done
echo "COUNTS $session $files $bytes $compared"
"#;

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that did not reach the end is an error.
    #[test]
    fn kernel_client_counts_are_parsed() {
        let found = counts("Linux\r\nCOUNTS 3 12 4096 8\r\nreboot\r\n").unwrap();
        assert_eq!((found.sessions, found.files, found.bytes, found.compared), (3, 12, 4096, 8));
        assert!(counts("FAILED\n").is_err() && counts("COUNTS 3 12\n").is_err());
    }
}
