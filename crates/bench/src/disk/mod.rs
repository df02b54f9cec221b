//! The disks of contenders: one kernel device each, all made the same way.
//!
//! The layers: `/dev/loopN` with direct I/O → FUSE block file → the disk's timing model, if there is one → memory or a
//! file. Every contender uses the same layers, so they cost all contenders the same, and the kernel's page cache is not
//! used below the loop device. A bare disk is only `/dev/loopN` with direct I/O on a file (`bare`). Promises: disks of
//! equal size behave equally; a contender's process can read the time of its disks' models from a shared clock.

mod bare;
mod clock;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nectary_attach::{AttachOptions, Attachment};
use nectary_block::{
    DeviceRegistry, DeviceRequest, DiskKind as Model, Filter, IoFuture, ModelClock, ModelFilter, ModelOptions,
    OpenOptions, SharedDevice,
};
use serde::{Deserialize, Serialize};

pub(crate) use bare::BareDisk;
pub use clock::{CallCost, DiskClock, DiskTimekeeping, SLOTS_MAX, SharedClock};

use crate::Error;

/// The default queue depth of a modelled disk: the disk chooses its next request from this many waiting ones.
pub const QUEUE_DEPTH: usize = 32;
/// The name of the measured disk in SPECs of this crate.
const NAME: &str = "measured";

/// The properties of disks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskOptions {
    /// The name of the disk model that determines the time of operations; `None` for the speed of the device below.
    pub model: Option<String>,
    /// How the disk's time passes.
    pub time: DiskTimekeeping,
    /// The queue depth of a modelled disk.
    pub queue_depth: usize,
    /// The directory whose files hold the bytes; `None` for memory.
    pub folder: Option<PathBuf>,
    /// Whether the disk is bare: only a loop device on a file in that directory, with no model and no FUSE process
    /// below.
    pub is_bare: bool,
}

/// Counters of one disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskCounts {
    /// The number of operations that the kernel completed.
    pub operations: u64,
    /// The number of bytes read.
    pub read_bytes: u64,
    /// The number of bytes written.
    pub written_bytes: u64,
    /// The number of `operations` that are reads.
    pub reads: u64,
    /// The total time of the operations, including their time in queues, in milliseconds of the kernel's clock.
    pub kernel_ms: u64,
    /// The time in which the modelled disk served operations, in microseconds on its clock.
    pub busy_us: u64,
    /// The number of operations that the modelled disk served.
    pub served: u64,
    /// The number of operations that moved the modelled disk's arm.
    pub seeks: u64,
    /// The part of `busy_us` for moving the arm.
    pub seek_us: u64,
    /// The part of `busy_us` for waiting until the platter has turned to the first sector.
    pub rotation_us: u64,
    /// The part of `busy_us` for moving bytes.
    pub transfer_us: u64,
}

impl DiskCounts {
    /// The counts since `earlier`, an earlier reading of the same disk.
    pub fn since(&self, earlier: &DiskCounts) -> DiskCounts {
        DiskCounts {
            operations: self.operations.saturating_sub(earlier.operations),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            reads: self.reads.saturating_sub(earlier.reads),
            kernel_ms: self.kernel_ms.saturating_sub(earlier.kernel_ms),
            busy_us: self.busy_us.saturating_sub(earlier.busy_us),
            served: self.served.saturating_sub(earlier.served),
            seeks: self.seeks.saturating_sub(earlier.seeks),
            seek_us: self.seek_us.saturating_sub(earlier.seek_us),
            rotation_us: self.rotation_us.saturating_sub(earlier.rotation_us),
            transfer_us: self.transfer_us.saturating_sub(earlier.transfer_us),
        }
    }

    /// The sum over disks.
    pub fn sum(all: &[DiskCounts]) -> DiskCounts {
        all.iter().fold(DiskCounts::default(), |sum, one| DiskCounts {
            operations: sum.operations + one.operations,
            read_bytes: sum.read_bytes + one.read_bytes,
            written_bytes: sum.written_bytes + one.written_bytes,
            reads: sum.reads + one.reads,
            kernel_ms: sum.kernel_ms + one.kernel_ms,
            busy_us: sum.busy_us + one.busy_us,
            served: sum.served + one.served,
            seeks: sum.seeks + one.seeks,
            seek_us: sum.seek_us + one.seek_us,
            rotation_us: sum.rotation_us + one.rotation_us,
            transfer_us: sum.transfer_us + one.transfer_us,
        })
    }
}

/// An attached disk. Dropping it detaches it, unless it is still in use.
pub struct MeasuredDisk {
    below: DiskBacking,
}

/// The layer below a disk's loop device.
enum DiskBacking {
    Attached(Attachment),
    Bare(BareDisk),
}

impl MeasuredDisk {
    /// Makes a disk of `bytes` bytes, which keeps its time in a slot of the shared clock.
    pub fn attach(
        options: &DiskOptions,
        bytes: u64,
        name: &str,
        clock: &Arc<SharedClock>,
        slot: usize,
    ) -> Result<MeasuredDisk, Error> {
        if let (true, Some(folder)) = (options.is_bare, &options.folder) {
            let path = folder.join(format!("{name}.disk"));
            return Ok(MeasuredDisk { below: DiskBacking::Bare(BareDisk::new(&path, bytes)?) });
        }
        let below = match &options.folder {
            None => format!("memory:{bytes}"),
            Some(folder) => format!("file:{}", folder.join(format!("{name}.disk")).display()),
        };
        let model = match &options.model {
            None => None,
            Some(kind) => {
                let kind = Model::parse(kind).map_err(|error| Error::new(crate::ExperimentErrorKind::Usage, error))?;
                let real = ModelOptions { queue_depth: options.queue_depth, ..ModelOptions::new(kind) };
                Some(match options.time {
                    DiskTimekeeping::Virtual => ModelOptions { clock: ModelClock::Virtual, ..real },
                    DiskTimekeeping::Real { speed } => ModelOptions { speed, ..real },
                })
            }
        };
        let registry = registry(model, clock.clone(), slot);
        let open = OpenOptions { create_bytes: Some(bytes), ..OpenOptions::default() };
        let spec = format!("{NAME}({below})");
        let options = AttachOptions { read_only: false, open };
        // Attaches on a separate thread: the kernel's exemptions for threads that serve a disk must not apply to the
        // caller.
        let thread = std::thread::spawn(move || Attachment::start(registry, &spec, options));
        let attachment = thread.join().map_err(|_| Error::failed("attaching a disk", "its thread panicked"))??;
        Ok(MeasuredDisk { below: DiskBacking::Attached(attachment) })
    }

    /// The block device.
    pub fn path(&self) -> &Path {
        match &self.below {
            DiskBacking::Attached(attachment) => attachment.path(),
            DiskBacking::Bare(disk) => disk.path(),
        }
    }

    /// Its counters so far.
    pub fn counts(&self) -> DiskCounts {
        let mut counts = counts_of(self.path());
        let figures = match &self.below {
            DiskBacking::Attached(attachment) => attachment.device_figures(),
            DiskBacking::Bare(_) => Vec::new(),
        };
        for figures in figures {
            if figures.device == "model" {
                let value = |name| figures.values.iter().find(|entry| entry.0 == name).map_or(0, |entry| entry.1);
                (counts.busy_us, counts.served, counts.seeks) = (value("busy_us"), value("operations"), value("seeks"));
                (counts.seek_us, counts.rotation_us) = (value("seek_us"), value("rotation_us"));
                counts.transfer_us = value("transfer_us");
            }
        }
        counts
    }
}

impl Drop for MeasuredDisk {
    fn drop(&mut self) {
        // The disk's users have been killed before. A disk that cannot be released now is released when this process
        // ends.
        match &mut self.below {
            DiskBacking::Attached(attachment) if attachment.release().is_ok() => drop(attachment.finish()),
            DiskBacking::Attached(attachment) => drop(attachment.release_when_unused()),
            // Dropping a bare disk releases it.
            DiskBacking::Bare(_) => {}
        }
    }
}

/// The kernel's counters of a block device.
fn counts_of(device: &Path) -> DiskCounts {
    let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    kernel_counts(&std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap_or_default())
}

/// Reads a line of `/sys/block/NAME/stat`; sectors have 512 bytes there.
fn kernel_counts(text: &str) -> DiskCounts {
    let fields: Vec<u64> = text.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    let field = |index: usize| fields.get(index).copied().unwrap_or(0);
    DiskCounts {
        operations: field(0) + field(4),
        reads: field(0),
        read_bytes: field(2) * 512,
        written_bytes: field(6) * 512,
        kernel_ms: field(3) + field(7),
        ..DiskCounts::default()
    }
}

fn registry(model: Option<ModelOptions>, clock: Arc<SharedClock>, slot: usize) -> DeviceRegistry {
    let mut registry = DeviceRegistry::with_builtins();
    registry.register(NAME, move |mut arguments| {
        let clock = clock.clone();
        async move {
            let inner = arguments.device().await?;
            arguments.finish()?;
            let Some(options) = model else { return Ok(inner) };
            let model = Arc::new(ModelFilter::new(inner, options));
            let device: SharedDevice = model.clone();
            Ok(Arc::new(ClockedDevice { device, model, clock, slot }) as SharedDevice)
        }
    });
    registry
}

/// Updates the shared clock with the model's time after each operation.
struct ClockedDevice {
    device: SharedDevice,
    model: Arc<ModelFilter>,
    clock: Arc<SharedClock>,
    slot: usize,
}

impl Filter for ClockedDevice {
    fn inner(&self) -> &SharedDevice {
        &self.device
    }
    fn spec(&self) -> String {
        self.device.spec()
    }
    fn around<T: Send + 'static>(
        &self,
        _request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let running = operation(&self.device);
        let (model, clock, slot) = (self.model.clone(), self.clock.clone(), self.slot);
        Box::pin(async move {
            let result = running.await;
            clock.set(slot, model.snapshot().busy);
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read() {
        let counts = kernel_counts("   10  1  80  5   20  2  160  7  0  9  12  0 0 0 0 0 0\n");
        let expected = DiskCounts {
            operations: 30,
            reads: 10,
            read_bytes: 40_960,
            written_bytes: 81_920,
            kernel_ms: 12,
            ..counts
        };
        assert_eq!(counts, expected);
        assert_eq!(kernel_counts("nonsense"), DiskCounts::default());
        assert_eq!(counts.since(&counts), DiskCounts::default());
    }

    /// Requests that are sent together are served in the order that takes the least time.
    #[tokio::test]
    async fn queued_requests_take_least_time() {
        let path = std::env::temp_dir().join(format!("nectary-bench-queue-{}", std::process::id()));
        let clock = Arc::new(SharedClock::create(&path).unwrap());
        let mut busy = Vec::new();
        for (slot, queue_depth) in [(1, 1), (2, QUEUE_DEPTH)] {
            let options = ModelOptions { clock: ModelClock::Virtual, queue_depth, ..ModelOptions::new(Model::Hdd1999) };
            let registry = registry(Some(options), clock.clone(), slot);
            let device = registry.open("measured(memory:64M)", &OpenOptions::default()).await.unwrap();
            let mut random = crate::random::SeededRandom::new(3);
            let write = |offset| {
                let buffers = vec![nectary_block::Buffer::zeroed(4096)];
                device.write_at(offset, buffers, Default::default(), Default::default())
            };
            let writes: Vec<_> = (0..64).map(|_| write(random.below(1 << 14) * 4096)).collect();
            let writes: Vec<_> = writes.into_iter().map(tokio::spawn).collect();
            for write in writes {
                write.await.unwrap().unwrap();
            }
            busy.push(clock.get(slot));
        }
        assert!(busy[1] * 3 < busy[0] * 2, "{busy:?}");
        std::fs::remove_file(path).unwrap();
    }

    #[tokio::test]
    async fn clock_matches_model_time() {
        let path = std::env::temp_dir().join(format!("nectary-bench-clock-{}", std::process::id()));
        let clock = Arc::new(SharedClock::create(&path).unwrap());
        let options = ModelOptions { clock: ModelClock::Virtual, ..ModelOptions::new(Model::Hdd1999) };
        let registry = registry(Some(options), clock.clone(), 3);
        let device = registry.open("measured(memory:64M)", &OpenOptions::default()).await.unwrap();
        let other = SharedClock::open(&path).unwrap();
        assert_eq!(other.get(3), std::time::Duration::ZERO);
        for offset in [0, 32 << 20, 0] {
            nectary_block::read(&*device, offset, 4096).await.unwrap();
        }
        let busy = other.get(3).as_millis();
        assert!((10..60).contains(&busy), "two long seeks took {busy} ms");
        std::fs::remove_file(path).unwrap();
    }
}
