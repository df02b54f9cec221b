//! One execution: it runs programs with a new disk, file system, page cache and cache process.
//!
//! Owns: the order of steps, and the accounting of time. Promises: an execution leaves nothing behind; it returns
//! checksums of the programs' output and files, which the caller compares between policies. Leaves to others: the
//! cache's process (`mounted`), the image (`image`).
//!
//! The layers: program → FUSE mount of the cache's process → ext4 → loop device → FUSE block file → the disk's model →
//! memory. All mounts are in a mount namespace of this thread and the processes that it starts.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::image;
use super::mounted::{CacheProcessFigures, CacheProcessHandle, CacheProcessSetup};
use super::page_memory::{PageMemory, PageUse};
use super::programs::{DearProgram, path};
use super::{BLOCK_BYTES, CacheLane};
use crate::disk::{DiskCounts, DiskOptions, DiskTimekeeping, MeasuredDisk, SharedClock};
use crate::{Error, ExperimentErrorKind, sys};

/// The end of a program: its exit code, its resource usage, and the time from the start.
type Ended = (i32, sys::ResourceUsage, Duration);

/// The model of the paper's disk, and its queue depth.
pub const MODEL: &str = "hdd-1999";
pub const QUEUE_DEPTH: usize = 1;
/// The longest time that the programs of an execution may take.
const PATIENCE: Duration = Duration::from_secs(900);
/// The kernel's usual readahead, and none. *Units*: KiB, as `read_ahead_kb` has them.
const READ_AHEAD: [&str; 2] = ["128", "0"];
/// The disk's slot in the shared clock. It is never read: executions take the busy time from the disk's own counters.
const SLOT: usize = 0;

/// The result of one execution. Times are in seconds.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ProgramExecution {
    /// The figures of the cache; all zero with the page cache.
    pub cache: CacheProcessFigures,
    /// The number of blocks that the cache read.
    pub block_reads: u64,
    /// The number of requests to the block device, as the kernel counts them.
    pub device_requests: u64,
    /// The number of `device_requests` that are reads.
    pub device_reads: u64,
    /// The bytes of these reads.
    pub device_read_bytes: u64,
    /// The bytes of the other requests, with which the kernel writes back what the programs have written.
    pub device_written_bytes: u64,
    /// The number of requests that moved the disk's arm.
    pub seeks: u64,
    /// The part of `stall_s` in which the arm moved. The next two are parts of it, too; the rest is a fixed time for
    /// each request.
    pub seek_s: f64,
    /// The time in which the disk waited for the platter.
    pub rotation_s: f64,
    /// The time in which bytes moved.
    pub transfer_s: f64,
    /// The disk's total busy time from the start of the programs to the end of the last one.
    pub stall_s: f64,
    /// The disk's busy time after the end of the last program, in which it writes the remaining dirty data.
    pub late_s: f64,
    /// The processor time of the programs in user mode.
    pub user_s: f64,
    /// The processor time of the programs in the kernel.
    pub system_s: f64,
    /// The processor time of the cache's process in user mode.
    pub cache_user_s: f64,
    /// The processor time of the cache's process in the kernel.
    pub cache_system_s: f64,
    /// The real time from the start to the end of each program.
    pub elapsed_s: Vec<f64>,
    /// Whether the disk's clock was virtual.
    pub is_virtual: bool,
    /// The largest resident size of any of the programs' processes. *Units*: bytes.
    pub resident_bytes: u64,
    /// The memory of the kernel's page cache, if that is what the programs ran with.
    pub pages: Option<PageUse>,
    /// A checksum of each program's output and files.
    pub sums: Vec<u32>,
}

impl ProgramExecution {
    /// The response time. On a virtual clock it is the sum of the disk's busy time and all processor times, otherwise
    /// the mean real time of the programs.
    pub fn response_s(&self) -> f64 {
        match self.is_virtual {
            true => self.stall_s + self.user_s + self.system_s + self.cache_user_s + self.cache_system_s,
            false => self.elapsed_s.iter().sum::<f64>() / self.elapsed_s.len().max(1) as f64,
        }
    }

    /// The mean length of the disk's reads; 0 without reads. *Units*: blocks.
    pub fn run_blocks(&self) -> f64 {
        self.device_read_bytes as f64 / BLOCK_BYTES as f64 / self.device_reads.max(1) as f64
    }

    /// The mean length of the disk's writes; 0 without writes. *Units*: blocks.
    pub fn write_blocks(&self) -> f64 {
        self.device_written_bytes as f64 / BLOCK_BYTES as f64 / self.device_writes().max(1) as f64
    }

    /// The number of the disk's writes.
    pub fn device_writes(&self) -> u64 {
        self.device_requests.saturating_sub(self.device_reads)
    }
}

/// The environment of executions.
pub struct ExecutionEnvironment<'a> {
    /// The run's folder, which the guardian removes.
    pub folder: PathBuf,
    /// The image that each execution copies to its disk.
    pub image: PathBuf,
    /// The size of the disk. *Units*: bytes.
    pub disk_bytes: u64,
    /// The disk's clock.
    pub clock: Arc<SharedClock>,
    /// Makes the command that starts the process with the cache.
    pub mounted: &'a (dyn Fn() -> Command + Sync),
    /// The number of the next execution.
    pub next: u64,
}

/// The settings of one execution.
pub struct ExecutionSettings<'a> {
    /// The programs, which run at the same time.
    pub programs: &'a [&'static DearProgram],
    /// The cache under which they run.
    pub lane: &'a CacheLane,
    /// The size of the cache. *Units*: blocks.
    pub blocks: u64,
    /// How the disk's time passes.
    pub time: DiskTimekeeping,
    /// The file to which the references are recorded, if any.
    pub record: Option<PathBuf>,
}

impl ExecutionEnvironment<'_> {
    /// The directory in which programs see their files.
    pub fn shown(&self) -> PathBuf {
        self.folder.join("shown")
    }

    /// Executes the programs of an order.
    ///
    /// *Errors*: [`ExperimentErrorKind::Failed`]; if a program fails, the message has the end of its error output.
    pub fn execute(&mut self, order: &ExecutionSettings<'_>) -> Result<ProgramExecution, Error> {
        let name = format!("disk-{}", self.next);
        self.next += 1;
        let file = self.folder.join(format!("{name}.disk"));
        image::copy(&self.image, &file)?;
        let options = DiskOptions {
            model: Some(MODEL.to_owned()),
            time: order.time,
            queue_depth: QUEUE_DEPTH,
            folder: Some(self.folder.clone()),
            is_bare: false,
        };
        let disk = MeasuredDisk::attach(&options, self.disk_bytes, &name, &self.clock, SLOT)?;
        let read_ahead = ReadAhead::set(disk.path(), READ_AHEAD[usize::from(!order.lane.reads_ahead)])?;
        let below = if order.lane.policy.is_some() { self.folder.join("source") } else { self.shown() };
        let mounted = MountedDisk::new(disk.path(), &below)?;
        let result = self.execute_on(order, &disk, &below);
        let unmounted = mounted.unmount();
        drop(read_ahead);
        drop(disk);
        let removed = std::fs::remove_file(&file).map_err(|error| Error::failed(file.display(), error));
        let execution = result?;
        unmounted.and(removed)?;
        Ok(execution)
    }

    fn execute_on(
        &self,
        order: &ExecutionSettings<'_>,
        disk: &MeasuredDisk,
        below: &Path,
    ) -> Result<ProgramExecution, Error> {
        let setup = |policy: &str| CacheProcessSetup {
            source: below.to_owned(),
            directory: self.shown(),
            policy: policy.to_owned(),
            blocks: order.blocks,
            by_session: order.lane.by_session,
            record: order.record.clone(),
        };
        let mut client = match order.lane.policy {
            Some(policy) => Some(CacheProcessHandle::start((self.mounted)(), &setup(policy))?),
            None => None,
        };
        let pages = match order.lane.policy {
            Some(_) => None,
            None => Some(PageMemory::start(&self.group_name(), order.blocks * BLOCK_BYTES)?),
        };
        let before =
            (client.as_mut().map_or(Ok(CacheProcessFigures::default()), CacheProcessHandle::figures)?, disk.counts());
        let ended = self.run_programs(order, pages.as_ref())?;
        // What reads the programs' files from now on is not theirs.
        let after = (
            client.as_mut().map_or(Ok(CacheProcessFigures::default()), CacheProcessHandle::end_record)?,
            disk.counts(),
        );
        let pages = pages.map(PageMemory::finish);
        let inside = File::open(below).map_err(|error| Error::failed(below.display(), error))?;
        sys::sync_file_system(&inside)?;
        drop(inside);
        let late = disk.counts().since(&after.1);
        let sums = self.sums(order)?;
        if let Some(client) = client {
            client.finish()?;
        }
        if after.0.errors > 0 {
            return Err(Error::failed("the cache", format!("{} reads failed", after.0.errors)));
        }
        let counts: DiskCounts = after.1.since(&before.1);
        let mut execution = ProgramExecution {
            cache: after.0,
            block_reads: after.0.block_reads - before.0.block_reads,
            device_requests: counts.operations,
            device_reads: counts.reads,
            device_read_bytes: counts.read_bytes,
            device_written_bytes: counts.written_bytes,
            seeks: counts.seeks,
            seek_s: counts.seek_us as f64 / 1e6,
            rotation_s: counts.rotation_us as f64 / 1e6,
            transfer_s: counts.transfer_us as f64 / 1e6,
            pages,
            stall_s: counts.busy_us as f64 / 1e6,
            late_s: late.busy_us as f64 / 1e6,
            cache_user_s: after.0.user_s - before.0.user_s,
            cache_system_s: after.0.system_s - before.0.system_s,
            is_virtual: order.time == DiskTimekeeping::Virtual,
            sums,
            ..ProgramExecution::default()
        };
        if order.lane.policy.is_none() {
            execution.block_reads = counts.read_bytes / BLOCK_BYTES;
        }
        for (usage, elapsed) in ended {
            execution.user_s += usage.user.as_secs_f64();
            execution.system_s += usage.system.as_secs_f64();
            execution.resident_bytes = execution.resident_bytes.max(usage.resident_bytes);
            execution.elapsed_s.push(elapsed.as_secs_f64());
        }
        Ok(execution)
    }

    fn group_name(&self) -> String {
        format!("nectary-bench-{}", std::process::id())
    }

    /// The files that get a program's standard output and error output.
    fn outputs(&self, program: &DearProgram) -> [PathBuf; 2] {
        ["printed", "said"].map(|kind| self.folder.join(format!("{kind}-{}", program.name)))
    }

    fn start(&self, program: &DearProgram, pages: Option<&PageMemory>) -> Result<Child, Error> {
        let mut words: Vec<String> = Vec::new();
        if let Some(pages) = pages {
            words.extend(["sh", "-ec", "echo $$ > \"$0\"; exec \"$@\""].map(str::to_owned));
            words.push(pages.joins().display().to_string());
        }
        words.push("setpriv".to_owned());
        if program.is_nobody {
            words.extend(["--reuid=nobody", "--regid=nogroup", "--clear-groups"].map(str::to_owned));
        }
        // Each program has its own session, which contains all its processes.
        words.extend(["--pdeathsig", "KILL", "setsid", "sh", "-ec", program.script].map(str::to_owned));
        let [printed, said] = self.outputs(program);
        let create = |path: &PathBuf| File::create(path).map_err(|error| Error::failed(path.display(), error));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(self.shown().join(program.name));
        command.env_clear().env("PATH", path()).env("LC_ALL", "C").env("HOME", ".").env("TMPDIR", ".");
        command.stdin(Stdio::null()).stdout(create(&printed)?).stderr(create(&said)?);
        command.spawn().map_err(|error| Error::failed(format!("starting {}", program.name), error))
    }

    /// Starts all programs, and waits until each has ended.
    fn run_programs(
        &self,
        order: &ExecutionSettings<'_>,
        pages: Option<&PageMemory>,
    ) -> Result<Vec<(sys::ResourceUsage, Duration)>, Error> {
        let began = Instant::now();
        let mut running: Vec<RunningProgram> = Vec::new();
        for program in order.programs {
            running.push(RunningProgram { child: self.start(program, pages)?, is_reaped: false });
        }
        // Each program has a thread that waits for it, because the time of its end is measured.
        let ended: Vec<Result<Option<Ended>, Error>> = std::thread::scope(|scope| {
            let wait = |child: u32| {
                sys::wait_for(child, PATIENCE).map(|ended| ended.map(|(code, usage)| (code, usage, began.elapsed())))
            };
            let threads: Vec<_> = running
                .iter()
                .map(|running| running.child.id())
                .map(|child| scope.spawn(move || wait(child)))
                .collect();
            let lost = |_| Err(Error::failed("waiting for a program", "its thread panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
        });
        let mut usages = Vec::new();
        let mut problem = None;
        for ((running, program), ended) in running.iter_mut().zip(order.programs).zip(ended) {
            running.is_reaped = matches!(ended, Ok(Some(_)));
            match ended {
                Ok(Some((0, usage, elapsed))) => usages.push((usage, elapsed)),
                Ok(Some((code, ..))) => {
                    let said = std::fs::read(&self.outputs(program)[1]).unwrap_or_default();
                    let said = String::from_utf8_lossy(&said);
                    let last: Vec<&str> = said.lines().rev().take(3).collect();
                    let how = format!("exit code {code} under {}: {}", order.lane.name, last.join("; "));
                    problem = Some(Error::failed(program.name, how));
                }
                Ok(None) => {
                    let how = format!("it did not end within {PATIENCE:?} under {}", order.lane.name);
                    problem = Some(Error::failed(program.name, how));
                }
                Err(error) => problem = Some(error),
            }
        }
        problem.map_or(Ok(usages), Err)
    }

    /// A checksum of each program's output and files.
    fn sums(&self, order: &ExecutionSettings<'_>) -> Result<Vec<u32>, Error> {
        let sum = |program: &&'static DearProgram| {
            let left = program.leaves.iter().map(|name| self.shown().join(program.name).join(name));
            let mut sum = 0;
            for path in std::iter::once(self.outputs(program)[0].clone()).chain(left) {
                let bytes = std::fs::read(&path).map_err(|error| Error::failed(path.display(), error))?;
                sum = crc32c::crc32c_append(sum, &bytes);
            }
            Ok(sum)
        };
        order.programs.iter().map(sum).collect()
    }
}

/// The readahead of a device; dropping this sets it to what it was, because the next user of the device keeps it.
struct ReadAhead {
    file: PathBuf,
    before: String,
}

impl ReadAhead {
    /// Sets the readahead of `device`. *Units*: KiB, in digits.
    fn set(device: &Path, text: &str) -> Result<ReadAhead, Error> {
        let name = device.file_name().unwrap_or_default();
        let file = Path::new("/sys/block").join(name).join("queue/read_ahead_kb");
        let failed = |error: std::io::Error| Error::failed(file.display(), error);
        let before = std::fs::read_to_string(&file).map_err(failed)?;
        std::fs::write(&file, text).map_err(failed)?;
        Ok(ReadAhead { before: before.trim().to_owned(), file })
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.file, &self.before);
    }
}

/// A running program; dropping this kills its session if it has not ended.
struct RunningProgram {
    child: Child,
    is_reaped: bool,
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if !self.is_reaped {
            sys::kill_group(self.child.id());
            let _ = self.child.wait();
        }
    }
}

/// A mounted file system; unmounted when dropped.
struct MountedDisk {
    place: Option<PathBuf>,
}

impl MountedDisk {
    fn new(device: &Path, place: &Path) -> Result<MountedDisk, Error> {
        sys::mount(device, place, "ext4", sys::MountSyncMode::Later)?;
        Ok(MountedDisk { place: Some(place.to_owned()) })
    }

    fn unmount(mut self) -> Result<(), Error> {
        self.place.take().map_or(Ok(()), |place| sys::unmount(&place))
    }
}

impl Drop for MountedDisk {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let _ = sys::unmount(&place);
        }
    }
}

/// Checks that two executions of the same programs gave the same bytes. *Errors*: [`ExperimentErrorKind::Void`] if they did not.
pub fn compare(
    base: &ProgramExecution,
    other: &ProgramExecution,
    programs: &[&DearProgram],
    lane: &str,
) -> Result<(), Error> {
    for ((left, right), program) in base.sums.iter().zip(&other.sums).zip(programs) {
        if left != right {
            let message = format!("{} gave other bytes under {lane} than under LRU", program.name);
            return Err(Error::new(ExperimentErrorKind::Void, message));
        }
    }
    Ok(())
}
