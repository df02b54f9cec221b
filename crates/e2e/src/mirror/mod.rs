//! Runs a file system on a network RAM disk with redundancy, while its donors are killed, stopped and cut off.
//!
//! Owns: donors in network namespaces with an attached device on them, the faults and their repair, a load whose every
//! byte is checked, and the counts of the load. Promises that nothing remains when a rig is dropped: no process, mount
//! or namespace. Leaves to others: the order of faults (the test, the campaign).

pub mod pattern;
pub mod second_failure;
mod spares;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::attach::TestFileSystem;
use crate::guard::GuardedProcess;
use crate::ram::{AttachedRamDevice, DonorProcess, NetworkNamespace, STEP_MAX, run};
use crate::rng::SeededRng;
use crate::scratch::ScratchFolder;

/// The minimum duration of a fault. It is longer than the delay of a donor's answer after which the device stops using
/// the donor.
const FAULT: Duration = Duration::from_millis(1500);
/// The interval between two readings of the status.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// How long the status has to say that no stripe is dirty. It may be older than the last write, and the donors remove a
/// mark only after the status does.
const CLEAN: Duration = Duration::from_secs(1);
/// The size of a block of the prober. *Units*: bytes.
const BLOCK: usize = 4096;
/// The number of blocks that the prober writes and reads in turn.
const BLOCKS: u64 = 64;
/// How long a donor that leaves keeps what it holds, which no test may reach: with it the last copy may end.
const GRACE: &str = "1h";
/// The number of files that are synced, and compared after faults.
const FILES: u64 = 24;

/// A fault of a donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DonorFault {
    /// Its process is killed, and another, empty one is started later.
    Kill,
    /// Its process is stopped with SIGSTOP.
    Stop,
    /// Its network drops all packets without an answer.
    Cut,
}

impl DonorFault {
    /// All faults.
    pub const ALL: [DonorFault; 3] = [DonorFault::Kill, DonorFault::Stop, DonorFault::Cut];
}

/// Donors of a network RAM disk, and the SPEC of the device on them.
pub struct DonorRig {
    /// The directory of the client's files.
    pub scratch: Arc<ScratchFolder>,
    donors_scratch: ScratchFolder,
    namespaces: Vec<NetworkNamespace>,
    donors: Vec<Option<DonorProcess>>,
    starts: u32,
    memory: String,
    system: TestFileSystem,
    redundancy: String,
    addresses: Vec<String>,
}

impl DonorRig {
    /// Starts `count` donors, and creates a device with this redundancy on them.
    pub fn new(name: &str, system: TestFileSystem, redundancy: &str, count: u32) -> Result<DonorRig> {
        let (scratch, donors_scratch) =
            (Arc::new(ScratchFolder::new(name)?), ScratchFolder::new(&format!("{name}-donors"))?);
        let megabytes = match system {
            TestFileSystem::Ext4 => 64,
            TestFileSystem::Btrfs => 192,
            TestFileSystem::Xfs => 320,
        };
        let namespaces = (0..count).map(|_| NetworkNamespace::new(&scratch)).collect::<Result<Vec<_>>>()?;
        let memory = format!("{}M", megabytes + 16);
        let mut rig = DonorRig {
            scratch,
            donors_scratch,
            namespaces,
            donors: Vec::new(),
            starts: 0,
            memory,
            system,
            redundancy: redundancy.to_owned(),
            addresses: Vec::new(),
        };
        for number in 0..count as usize {
            let donor = rig.start(number)?;
            rig.addresses.push(donor.address.clone());
            rig.donors.push(Some(donor));
        }
        run(&rig.scratch, "nectary", &["ram", "create", &rig.spec_with(&format!(",size={megabytes}M"))])?;
        Ok(rig)
    }

    fn spec_with(&self, more: &str) -> String {
        format!("ram({},id=disk,redundancy={}{more})", self.addresses.join(","), self.redundancy)
    }

    /// The SPEC of the device.
    pub fn spec(&self) -> String {
        self.spec_with("")
    }

    fn start(&mut self, number: usize) -> Result<DonorProcess> {
        self.starts += 1;
        self.start_in(number, &self.namespaces[number])
    }

    fn start_in(&self, number: usize, namespace: &NetworkNamespace) -> Result<DonorProcess> {
        // Use another name for each start, because each donor's address is read from its own log.
        let name = format!("donor-{number}-{}", self.starts);
        let options = ["--memory", &self.memory, "--on-demand", "--grace", GRACE];
        DonorProcess::start(&self.donors_scratch, &name, Some(namespace), &options)
    }

    /// Makes the file system, and mounts it.
    pub fn make(&self, disk: &AttachedRamDevice<'_>) -> Result<()> {
        let (program, options) = match self.system {
            TestFileSystem::Ext4 => ("mkfs.ext4", ["-q", "-F"]),
            TestFileSystem::Xfs => ("mkfs.xfs", ["-q", "-f"]),
            TestFileSystem::Btrfs => ("mkfs.btrfs", ["-q", "-f"]),
        };
        run(&self.scratch, program, &[&options[..], &[disk.device.as_str()]].concat())?;
        disk.mount()
    }

    /// Checks the file system on a device that is not mounted.
    pub fn check(&self, disk: &AttachedRamDevice<'_>) -> Result<()> {
        let command: &[&str] = match self.system {
            TestFileSystem::Ext4 => &["fsck.ext4", "-f", "-n"],
            TestFileSystem::Xfs => &["xfs_repair", "-n"],
            TestFileSystem::Btrfs => &["btrfs", "check", "--readonly"],
        };
        let deadline = Instant::now() + STEP_MAX;
        loop {
            // A device is busy for a moment after it was unmounted.
            match run(&self.scratch, command[0], &[&command[1..], &[disk.device.as_str()]].concat()) {
                Err(error) if error.to_string().contains("busy") && Instant::now() < deadline => {
                    std::thread::sleep(LOOK_EVERY);
                }
                checked => return checked.map(drop),
            }
        }
    }

    /// Changes a byte of each copy of `pattern` in the memory of a donor's process; returns the number of copies.
    pub fn flip(&self, number: usize, pattern: &[u8]) -> Result<usize> {
        let pid = self.donors[number].as_ref().context("it does not run")?.process.id();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        let mut flipped = 0;
        for line in maps.lines().filter(|line| line.contains(" rw")) {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let Some((from, to)) = range else { continue };
            let (from, to) = (u64::from_str_radix(from, 16)?, u64::from_str_radix(to, 16)?);
            let mut bytes = vec![0; usize::try_from(to - from)?];
            if memory.read_exact_at(&mut bytes, from).is_err() {
                continue;
            }
            let mut at = 0;
            // Search for the first byte of the pattern, because that byte is rare.
            while let Some(found) = bytes[at..].iter().position(|byte| *byte == pattern[0]) {
                at += found;
                if bytes[at..].starts_with(pattern) {
                    memory.write_all_at(&[bytes[at + 9] ^ 1], from + at as u64 + 9)?;
                    flipped += 1;
                }
                at += 1;
            }
        }
        Ok(flipped)
    }

    /// Runs `ram check`; returns its exit code and its JSON output.
    pub fn check_donors(&self) -> Result<(Option<i32>, Value)> {
        let (status, text) =
            crate::nbd::try_run(self.scratch.path(), "nectary", &["ram", "check", "--json", &self.spec()])?;
        Ok((status.code(), serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// Breaks a donor with a fault.
    pub fn break_donor(&mut self, number: usize, fault: DonorFault) -> Result<()> {
        let donor = self.donors[number].as_mut().context("it does not run")?;
        match fault {
            DonorFault::Kill => donor.process.kill(),
            DonorFault::Stop => donor.process.signal(libc::SIGSTOP),
            DonorFault::Cut => self.namespaces[number].set_link(&self.scratch, false)?,
        }
        Ok(())
    }

    /// Ends a fault of a donor.
    pub fn mend_donor(&mut self, number: usize, fault: DonorFault) -> Result<()> {
        match fault {
            DonorFault::Kill => {
                self.donors[number] = None;
                self.donors[number] = Some(self.start(number)?);
            }
            DonorFault::Stop => {
                let donor = self.donors[number].as_mut().context("it does not run")?;
                donor.process.signal(libc::SIGCONT);
            }
            DonorFault::Cut => self.namespaces[number].set_link(&self.scratch, true)?,
        }
        Ok(())
    }

    /// Returns the figures of the attached device from the status.
    pub fn figures(&self) -> Result<Value> {
        let (_, text) = crate::nbd::try_run(self.scratch.path(), "nectary", &["status", "--json"])?;
        let status: Value = serde_json::from_str(&text).with_context(|| format!("no status: {text}"))?;
        let parts = status.as_array().cloned().unwrap_or_default();
        let devices = parts.iter().filter_map(|part| part["status"]["detail"]["devices"].as_array());
        let ram = devices.flatten().find(|device| device["device"] == "ram");
        ram.map(|ram| ram["figures"].clone()).with_context(|| format!("no network RAM disk in {status}"))
    }

    /// Waits until `count` donors have every block that is placed on them.
    pub fn wait_for_trusted(&self, count: u64) -> Result<()> {
        let deadline = Instant::now() + STEP_MAX;
        loop {
            let figures = self.figures()?;
            let is_told = figures["view_stored"] == 1;
            if figures["donors_trusted"] == count && figures["donors_up"] == count && is_told {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "{count} donors are to be trusted: {figures}");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until no donor has a stripe that is marked as dirty; nothing may write meanwhile.
    fn wait_for_clean(&self) -> Result<()> {
        let deadline = Instant::now() + STEP_MAX;
        let mut since = Instant::now();
        while since.elapsed() < CLEAN {
            let figures = self.figures()?;
            if figures["dirty_stripes"] != 0 {
                ensure!(Instant::now() < deadline, "stripes stay dirty: {figures}");
                since = Instant::now();
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Replaces a donor by a new one, and ends the former donor, which then holds nothing.
    pub fn replace(&mut self, disk: &AttachedRamDevice<'_>, number: usize) -> Result<()> {
        let namespace = NetworkNamespace::new(&self.scratch)?;
        self.starts += 1;
        let donor = self.start_in(number, &namespace)?;
        let (old, new) = (self.addresses[number].clone(), donor.address.clone());
        run(&self.scratch, "nectary", &["ram", "replace", &disk.device, &old, &new])?;
        self.addresses[number] = new;
        let former = self.donors[number].replace(donor);
        let left = std::mem::replace(&mut self.namespaces[number], namespace);
        let mut former = former.context("it does not run")?.process;
        former.signal(libc::SIGTERM);
        ensure!(former.wait(STEP_MAX)?.success(), "the former donor: {}", former.log_tail());
        ensure!(former.log_text().contains("holds nothing, and ends"), "the former donor: {}", former.log_tail());
        drop(left);
        Ok(())
    }

    /// Breaks one donor while the load runs, ends the fault, and waits until the device is whole again.
    pub fn fault_under(&mut self, load: &ProbedLoad, number: usize, fault: DonorFault) -> Result<()> {
        let all = self.donors.len() as u64;
        // The device may have stopped using a donor that was late on a busy machine. Wait until this donor is filled
        // again before another one is broken.
        self.wait_for_trusted(all)?;
        let before = load.done();
        self.break_donor(number, fault)?;
        self.wait_for_trusted(all - 1).with_context(|| format!("donor {number} is not left after {fault:?}"))?;
        // The load must continue without the donor.
        let deadline = Instant::now() + STEP_MAX;
        let since = Instant::now();
        while load.done() < before + 50 || since.elapsed() < FAULT {
            ensure!(Instant::now() < deadline, "the load stands still after {fault:?} of donor {number}");
            ensure!(!load.has_ended(), "the load has ended after {fault:?} of donor {number}");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.mend_donor(number, fault)?;
        self.wait_for_trusted(all).with_context(|| format!("donor {number} is not taken back after {fault:?}"))
    }
}

/// The results of a round.
#[derive(Debug, Clone, Copy, Default)]
pub struct DonorRoundResult {
    /// The number of donors of the device.
    pub donors: u32,
    /// The number of faults.
    pub faults: u32,
    /// The prober's counts during the faults.
    pub account: ProbeCounts,
}

/// Breaks one donor after another with the given faults under a load. Then kills a donor and, while it is gone, the
/// client, and compares every byte that was synced.
///
/// *Errors*: the first problem.
pub fn round(
    name: &str,
    system: TestFileSystem,
    redundancy: &str,
    donors: u32,
    faults: &[DonorFault],
    seed: u64,
) -> Result<DonorRoundResult> {
    let mut rng = SeededRng::new(seed);
    let mut rig = DonorRig::new(name, system, redundancy, donors)?;
    let spec = rig.spec();
    let scratch = rig.scratch.clone();
    let mut disk = AttachedRamDevice::new(&scratch, &spec)?;
    rig.make(&disk)?;
    let files = VerifiedFiles::write(&disk.place, rng.next_u64())?;
    let load = ProbedLoad::start(&scratch, &disk.place, rng.below(1 << 31))?;
    let first = rng.below(u64::from(donors)) as usize;
    for (turn, fault) in faults.iter().enumerate() {
        rig.fault_under(&load, (first + turn) % donors as usize, *fault)?;
    }
    let account = load.end()?;
    let mut round = DonorRoundResult { donors, faults: faults.len() as u32, account };
    ensure!(account.errors == 0 && account.wrong == 0, "the prober: {account:?}");
    // The remaining donors have all blocks, including the donor that was repaired last.
    let gone = (first + faults.len()) % donors as usize;
    rig.break_donor(gone, DonorFault::Kill)?;
    round.faults += 1;
    rig.wait_for_trusted(u64::from(donors) - 1)?;
    let right = |place: &Path, files: &VerifiedFiles, when: &str| {
        let problems = files.problems(place);
        ensure!(problems.is_empty(), "{when}: {}", problems.join("; "));
        Ok(())
    };
    right(&disk.place, &files, "without a donor")?;
    let later = VerifiedFiles::write(&disk.place, rng.next_u64())?;
    disk.unmount()?;
    rig.check(&disk)?;
    disk.mount()?;
    // Synced files survive the client while one donor is gone; with parity in place, if nothing was just changed. A
    // file system also writes by itself, so it is frozen first.
    if redundancy == "parity" {
        disk.freeze()?;
        rig.wait_for_clean()?;
    }
    disk.kill()?;
    let disk = AttachedRamDevice::new(&scratch, &spec)?;
    disk.mount()?;
    right(&disk.place, &later, "after the client was killed")?;
    disk.unmount()?;
    rig.check(&disk)?;
    // Then the killed donor is started again, empty.
    rig.mend_donor(gone, DonorFault::Kill)?;
    rig.wait_for_trusted(u64::from(donors))?;
    disk.detach()?;
    Ok(round)
}

/// Returns the bytes of a block or a file, which depend on its number and its version.
fn content(number: u64, version: u64, length: usize) -> Vec<u8> {
    let mut rng = SeededRng::new(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version);
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    bytes.truncate(length);
    bytes
}

/// Files that are written once and synced.
#[derive(Debug, Clone)]
pub struct VerifiedFiles {
    seed: u64,
}

impl VerifiedFiles {
    /// Writes and syncs the files.
    pub fn write(place: &Path, seed: u64) -> Result<VerifiedFiles> {
        for number in 0..FILES {
            let file = File::create(place.join(format!("file-{number}")))?;
            file.write_all_at(&VerifiedFiles::bytes(seed, number), 0)?;
            file.sync_all()?;
        }
        File::open(place)?.sync_all()?;
        Ok(VerifiedFiles { seed })
    }

    fn bytes(seed: u64, number: u64) -> Vec<u8> {
        content(number, seed, 1 + (number as usize * 37_813) % (256 << 10))
    }

    /// Reads the files without the page cache, and describes those that are wrong.
    pub fn problems(&self, place: &Path) -> Vec<String> {
        let mut problems = Vec::new();
        let _ = fs::write("/proc/sys/vm/drop_caches", "1");
        for number in 0..FILES {
            let path = place.join(format!("file-{number}"));
            match fs::read(&path) {
                Ok(found) if found == VerifiedFiles::bytes(self.seed, number) => {}
                Ok(_) => problems.push(format!("{}: other bytes", path.display())),
                Err(error) => problems.push(format!("{}: {error}", path.display())),
            }
        }
        problems
    }
}

/// The counts of a prober.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProbeCounts {
    /// The number of reads and writes.
    pub operations: u64,
    /// The number of reads and writes that failed.
    pub errors: u64,
    /// The number of blocks whose bytes differ from those written.
    pub wrong: u64,
    /// The longest time that one operation took.
    pub gap: Duration,
}

/// The load on a mounted file system: `fio --verify` and a prober.
pub struct ProbedLoad {
    fio: GuardedProcess,
    log: PathBuf,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    prober: Option<JoinHandle<Result<ProbeCounts>>>,
}

/// Memory with the alignment that direct I/O needs.
#[repr(C, align(4096))]
struct ProbeBlock([u8; BLOCK]);

/// Writes and reads blocks in turn; counts errors and blocks with wrong bytes.
fn probe(path: &Path, stop: &AtomicBool, done: &AtomicU64) -> Result<ProbeCounts> {
    let file =
        File::options().create(true).truncate(true).read(true).write(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut memory = Box::new(ProbeBlock([0; BLOCK]));
    let mut versions = vec![0u64; BLOCKS as usize];
    let mut account = ProbeCounts::default();
    while !stop.load(Ordering::Relaxed) {
        let (turn, version) = (account.operations / 2 % BLOCKS, account.operations / 2 / BLOCKS + 1);
        let is_write = account.operations % 2 == 0;
        // Read a different block from the one that was just written.
        let block = if is_write { turn } else { turn * 7 % BLOCKS };
        let began = Instant::now();
        let offset = block * BLOCK as u64;
        if is_write {
            memory.0.copy_from_slice(&content(block, version, BLOCK));
            match file.write_all_at(&memory.0, offset) {
                Ok(()) => versions[block as usize] = version,
                Err(_) => account.errors += 1,
            }
        } else if versions[block as usize] > 0 {
            match file.read_exact_at(&mut memory.0, offset) {
                Ok(()) => {
                    let expected = content(block, versions[block as usize], BLOCK);
                    account.wrong += u64::from(memory.0[..] != expected[..]);
                }
                Err(_) => account.errors += 1,
            }
        }
        account.gap = account.gap.max(began.elapsed());
        account.operations += 1;
        done.store(account.operations, Ordering::Relaxed);
    }
    Ok(account)
}

impl ProbedLoad {
    /// Starts the load in a directory.
    pub fn start(scratch: &ScratchFolder, place: &Path, seed: u64) -> Result<ProbedLoad> {
        let log = scratch.join("fio.log");
        let _ = fs::remove_file(&log);
        let mut command = Command::new("fio");
        command.args(["--name=load", "--rw=randwrite", "--size=8M", "--bsrange=4k-64k", "--direct=1"]);
        command.args(["--ioengine=libaio", "--iodepth=8", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1"]);
        // Write and verify the file over and over, with other bytes each time.
        command.args(["--loops=1000000", "--rate=12m", "--verify_backlog=64", "--fallocate=none"]);
        command.arg(format!("--randseed={seed}")).arg(format!("--filename={}", place.join("verified").display()));
        command.current_dir(scratch.path());
        let fio = GuardedProcess::spawn("fio", command, &log, None)?;
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let prober = {
            let (path, stop, done) = (place.join("probed"), Arc::clone(&stop), Arc::clone(&done));
            std::thread::spawn(move || probe(&path, &stop, &done))
        };
        Ok(ProbedLoad { fio, log, stop, done, prober: Some(prober) })
    }

    /// Returns the number of the prober's operations so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Whether the prober has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.prober.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the load. *Errors*: fio found an error or a wrong byte, or ended by itself.
    pub fn end(mut self) -> Result<ProbeCounts> {
        self.stop.store(true, Ordering::Relaxed);
        let early = self.fio.try_status();
        let deadline = Instant::now() + STEP_MAX;
        // fio forgets a signal that it gets before its job runs, so the signal is repeated.
        while self.fio.try_status().is_none() && Instant::now() < deadline {
            self.fio.signal(libc::SIGINT);
            std::thread::sleep(Duration::from_millis(100));
        }
        let status = self.fio.wait(Duration::ZERO)?;
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let prober = self.prober.take().context("it has ended")?;
        let account = prober.join().map_err(|_| anyhow::anyhow!("the prober panicked"))??;
        if early.is_some() || text.contains("verify:") || text.contains("err=5") {
            bail!("fio ended with {}: {text}", crate::guard::describe(status));
        }
        Ok(account)
    }
}

impl Drop for ProbedLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.fio.kill();
        if let Some(prober) = self.prober.take() {
            let _ = prober.join();
        }
    }
}
