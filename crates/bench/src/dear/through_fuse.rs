//! The cost of a hit for a program: a read through FUSE, compared with a FUSE file whose answer is always ready.
//!
//! Owns: the file that answers from a fixed buffer, and the order of rounds. This process serves this file and the
//! caches with the same request loop, and reads bypass the kernel's page cache. So the difference of their times is the
//! time of the buffer cache. The contenders take turns (A B B A …). Each round gives the median and the 99th percentile
//! of each contender's real times.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nectary_attach::{MountedTree, TreeOptions};
use nectary_block::Buffer;
use nectary_fuse::protocol::open_flags;
use nectary_fuse::{
    FuseChannel, FuseConnection, FuseFileSystem, FuseLimits, FuseMount, FuseRequest, LookupEntry, MountOptions,
    NodeAttributes, ReplyHandle, RequestCall, WorkerCrew,
};
use serde::Serialize;

use super::mounted;
use crate::random::SeededRandom;
use crate::statistics::{IntervalEstimate, estimate, order, paired_ratio};
use crate::{Error, ExperimentErrorKind};

/// The size of a block. *Units*: bytes.
const BLOCK_BYTES: usize = 8192;
/// The value of every byte of the files.
const FILL: u8 = 7;
/// The policies of the caches.
const POLICIES: [&str; 3] = ["lru", "dear", "adaptive"];
/// The name of the file whose reads are answered from a buffer.
const FIXED: &str = "fixed";
const FIXED_NODE: u64 = 2;
const VALID: Duration = Duration::from_secs(3600);

/// The size of a measurement.
pub struct MeasurementSize {
    /// The number of blocks of the file; all fit into a cache.
    pub blocks: u64,
    /// The number of reads per contender and round.
    pub batch: usize,
    /// The number of rounds; each round gives one pair.
    pub rounds: usize,
}

/// The size of the experiment's measurement.
pub const WHOLE: MeasurementSize = MeasurementSize { blocks: 8192, batch: 1000, rounds: 21 };

/// The result of one contender. *Units*: microseconds per read of a block.
#[derive(Debug, Clone, Serialize)]
pub struct ThroughFuse {
    /// The name of a policy, or `fixed`.
    pub name: &'static str,
    /// The median of the rounds' medians.
    pub median_us: IntervalEstimate,
    /// The median of the rounds' 99th percentiles.
    pub p99_us: IntervalEstimate,
    /// The median ratio to the fixed buffer: each round's medians are one pair.
    pub ratio: IntervalEstimate,
}

/// Measures a read through FUSE for the fixed buffer and under each policy. Makes its files and mounts in `folder`.
///
/// *Errors*: [`ExperimentErrorKind::Void`] if a read returned wrong bytes.
pub fn through_fuse(folder: &Path, extent: &MeasurementSize) -> Result<Vec<ThroughFuse>, Error> {
    let source = made(folder.join("cost-source"))?;
    let bytes = vec![FILL; extent.blocks as usize * BLOCK_BYTES];
    std::fs::write(source.join("file"), bytes).map_err(|error| Error::failed(source.display(), error))?;
    let fixed = FixedBufferMount::start(extent.blocks * BLOCK_BYTES as u64)?;
    let mut trees = Vec::new();
    for policy in POLICIES {
        let directory = made(folder.join(format!("cost-{policy}")))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let memory_bytes = {
            let runtime = runtime.map_err(|error| Error::failed("a runtime", error))?;
            let _inside = runtime.enter();
            mounted::memory_for(policy, extent.blocks)?
        };
        let cache = mounted::options(policy, memory_bytes);
        trees.push(MountedTree::start(TreeOptions {
            source: source.clone(),
            directory,
            cache,
            is_exclusive: false,
            uses_handles: true,
            passthrough_bytes: 0,
        })?);
    }
    let times = measure(&fixed, &trees, extent);
    for tree in &trees {
        if tree.unmount(false).is_err() {
            tree.unmount(true)?;
        }
        tree.finish()?;
    }
    fixed.finish()?;
    let times = times?;
    let names = std::iter::once(FIXED).chain(POLICIES);
    Ok(names.zip(&times).map(|(name, own)| own.against(name, &times[0])).collect())
}

fn made(folder: PathBuf) -> Result<PathBuf, Error> {
    std::fs::create_dir(&folder).map_err(|error| Error::failed(folder.display(), error))?;
    Ok(folder)
}

/// The results of the rounds of one contender, in microseconds.
#[derive(Default)]
struct FuseReadTimes {
    medians: Vec<f64>,
    p99s: Vec<f64>,
}

impl FuseReadTimes {
    fn against(&self, name: &'static str, fixed: &FuseReadTimes) -> ThroughFuse {
        ThroughFuse {
            name,
            median_us: estimate(&self.medians),
            p99_us: estimate(&self.p99s),
            ratio: paired_ratio(&self.medians, &fixed.medians),
        }
    }
}

fn measure(
    fixed: &FixedBufferMount,
    trees: &[MountedTree],
    extent: &MeasurementSize,
) -> Result<Vec<FuseReadTimes>, Error> {
    let &MeasurementSize { blocks, batch, rounds } = extent;
    let mut files = vec![open(Path::new(&fixed.mount.path(FIXED)))?];
    for tree in trees {
        files.push(open(&tree.options().directory.join("file"))?);
    }
    let mut buffer = Buffer::zeroed(BLOCK_BYTES);
    // Reads all blocks once, so that they are in memory.
    for file in &files {
        for block in 0..blocks {
            read(file, block, &mut buffer)?;
        }
    }
    let mut random = SeededRandom::new(blocks);
    let mut times: Vec<FuseReadTimes> = files.iter().map(|_| FuseReadTimes::default()).collect();
    for round in 0..rounds {
        for index in order(files.len(), round) {
            let mut took = Vec::with_capacity(batch);
            for _ in 0..batch {
                let block = random.below(blocks);
                let began = Instant::now();
                read(&files[index], block, &mut buffer)?;
                took.push(began.elapsed().as_secs_f64() * 1e6);
            }
            took.sort_by(f64::total_cmp);
            times[index].medians.push(took[batch / 2]);
            times[index].p99s.push(took[batch * 99 / 100]);
        }
    }
    for tree in trees {
        let stats = tree.figures().cache;
        if stats.misses > blocks {
            let misses = format!("{} of {blocks} blocks were read, so not all reads were hits", stats.misses);
            return Err(Error::new(ExperimentErrorKind::Void, misses));
        }
    }
    Ok(times)
}

fn open(path: &Path) -> Result<File, Error> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
    opened.map_err(|error| Error::failed(path.display(), error))
}

fn read(file: &File, block: u64, buffer: &mut Buffer) -> Result<(), Error> {
    file.read_exact_at(buffer, block * BLOCK_BYTES as u64).map_err(|error| Error::failed("a read", error))?;
    match buffer[0] == FILL && buffer[BLOCK_BYTES - 1] == FILL {
        true => Ok(()),
        false => Err(Error::new(ExperimentErrorKind::Void, format!("block {block} has other bytes"))),
    }
}

/// A mount with one file, whose reads are answered from a buffer.
struct FixedBufferMount {
    mount: FuseMount,
    crew: WorkerCrew,
}

impl FixedBufferMount {
    fn start(file_bytes: u64) -> Result<FixedBufferMount, Error> {
        let failed = |error: nectary_fuse::Error| Error::failed("a file system that answers from a buffer", error);
        let options =
            MountOptions { source: FIXED.to_owned(), root_mode: libc::S_IFDIR | 0o500, ..MountOptions::default() };
        let channel = FuseChannel::open(true).map_err(failed)?;
        let mount = FuseMount::new(&channel, &options).map_err(failed)?;
        let file_system = Arc::new(FixedBufferFile { bytes: vec![FILL; 1 << 20], file_bytes });
        let connection = FuseConnection::new(file_system, FuseLimits::default());
        let crew = WorkerCrew::start(connection, channel, FIXED)
            .map_err(|error| Error::failed("a file system that answers from a buffer", error))?;
        Ok(FixedBufferMount { mount, crew })
    }

    fn finish(self) -> Result<(), Error> {
        drop(self.mount);
        self.crew.wait().map_err(|error| Error::failed("a file system that answers from a buffer", error))
    }
}

struct FixedBufferFile {
    bytes: Vec<u8>,
    file_bytes: u64,
}

impl FixedBufferFile {
    fn attributes(&self, node: u64) -> NodeAttributes {
        let (mode, size) = match node {
            FIXED_NODE => (libc::S_IFREG | 0o400, self.file_bytes),
            _ => (libc::S_IFDIR | 0o500, 0),
        };
        NodeAttributes { number: node, mode, size, links: 1, ..NodeAttributes::default() }
    }
}

impl FuseFileSystem for FixedBufferFile {
    fn serve(&self, request: FuseRequest<'_>, reply: ReplyHandle) {
        match request.call {
            RequestCall::Read(read) => reply.bytes(&self.bytes[..(read.size as usize).min(self.bytes.len())]),
            RequestCall::LookUp { .. } => reply.entry(&LookupEntry {
                node: FIXED_NODE,
                generation: 0,
                attributes: self.attributes(FIXED_NODE),
                entry_valid: VALID,
                attributes_valid: VALID,
            }),
            RequestCall::GetAttributes { .. } => reply.attributes(&self.attributes(request.node), VALID),
            RequestCall::Open { .. } => reply.opened(0, open_flags::DIRECT_IO | open_flags::NO_FLUSH),
            RequestCall::Release { .. } => reply.ok(),
            _ => reply.errno(libc::ENOSYS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The baseline is a FUSE file that answers from a fixed buffer.
    #[test]
    fn fuse_hit_has_fixed_baseline() {
        let folder = std::env::temp_dir().join(format!("nectary-through-fuse-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let found = through_fuse(&folder, &MeasurementSize { blocks: 512, batch: 50, rounds: 3 });
        std::fs::remove_dir_all(&folder).unwrap();
        let found = match found {
            Ok(found) => found,
            Err(error) if !Path::new("/dev/fuse").exists() => return println!("NOT RUN: {error}"),
            Err(error) => panic!("{error}"),
        };
        let names: Vec<&str> = found.iter().map(|one| one.name).collect();
        assert_eq!(names, ["fixed", "lru", "dear", "adaptive"]);
        assert_eq!(found[0].ratio.value, 1.0);
        for one in &found {
            assert!(one.median_us.value > 0.0 && one.p99_us.value >= one.median_us.value, "{one:?}");
        }
    }
}
