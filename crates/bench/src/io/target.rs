//! The target of a measurement: a directory, a file or a block device, and the targets that are refused.
//!
//! Owns: the rules of safety. In a directory the run makes its own files. An existing file or device is written to only
//! if the caller allows it, or if an earlier run of this command wrote the file. A device that is mounted or in use is
//! never written to. Leaves to others: the removal of files (`guardian`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nectary_block::{BlockDevice, FileDevice, FileEngine as BlockEngine, OpenOptions, format_size, is_block_device};

use super::job::StreamPlace;
use super::pattern::{BLOCK_BYTES, BlockPattern};
use crate::guardian::Guardian;
use crate::{Error, ExperimentErrorKind, sys};

/// The kind of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind {
    /// A directory, in which one file per stream is made.
    Folder,
    /// A regular file, of which each stream has a part.
    File,
    /// A block device, of which each stream has a part.
    Device,
}

/// How a run uses its target.
#[derive(Debug, Clone, Copy)]
pub struct TargetUse {
    /// The largest number of streams.
    pub streams: usize,
    /// The length of each stream. *Units*: bytes.
    pub bytes: u64,
    /// Whether anything is written.
    pub writes: bool,
    /// Whether existing contents may be overwritten.
    pub overwrite: bool,
}

/// A target that may be used.
#[derive(Debug)]
pub struct MeasurementTarget {
    /// The kind of the target.
    pub kind: TargetKind,
    /// The places of the streams.
    pub places: Vec<StreamPlace>,
    /// Whether this run writes the contents, so that it can compare them.
    pub is_own: bool,
    /// The directory in which files are made.
    pub folder: Option<PathBuf>,
}

fn usage(message: String) -> Error {
    Error::new(ExperimentErrorKind::Usage, message)
}

impl MeasurementTarget {
    /// Checks a path, and refuses a target that must not be used. It makes no files.
    ///
    /// *Errors*: [`ErrorKind::ResourceUsage`] for a mistake of the caller; the error of the device if it is mounted or in use.
    pub fn find(path: &Path, wish: TargetUse) -> Result<MeasurementTarget, Error> {
        let status = std::fs::metadata(path).map_err(|error| {
            usage(format!("{}: {error}; name a directory, an existing file, or a block device", path.display()))
        })?;
        if status.is_dir() {
            let (needed, free) = (wish.bytes * wish.streams as u64, sys::free_space(path)?);
            // The file system needs some space besides the files.
            if needed + needed / 16 > free {
                return Err(usage(format!(
                    "{}: {} stream(s) of {} do not fit, {} are free; make room there, or give a smaller --size",
                    path.display(),
                    wish.streams,
                    format_size(wish.bytes),
                    format_size(free)
                )));
            }
            return Ok(MeasurementTarget {
                kind: TargetKind::Folder,
                places: Vec::new(),
                is_own: true,
                folder: Some(path.to_owned()),
            });
        }
        let kind = if is_block_device(path) { TargetKind::Device } else { TargetKind::File };
        let size_bytes = probe(path, kind)?;
        let needed = wish.bytes * wish.streams as u64;
        if needed > size_bytes {
            return Err(usage(format!(
                "{}: it has {}, and {} stream(s) of {} need {}; give a smaller --size",
                path.display(),
                format_size(size_bytes),
                wish.streams,
                format_size(wish.bytes),
                format_size(needed)
            )));
        }
        if wish.writes && !wish.overwrite && (kind == TargetKind::Device || !is_known(path, needed)?) {
            let what = if kind == TargetKind::Device { "a device" } else { "a file that this command did not write" };
            return Err(usage(format!(
                "{}: {what} is not overwritten: add --overwrite if its contents may go, or only read (--op read)",
                path.display()
            )));
        }
        let place = |stream: usize| StreamPlace { path: path.to_owned(), start: stream as u64 * wish.bytes };
        let places = (0..wish.streams).map(place).collect();
        Ok(MeasurementTarget { kind, places, is_own: wish.writes, folder: None })
    }

    /// Makes the files in a directory; their directory is registered with the guardian first.
    pub fn make(&mut self, guardian: &mut Guardian, streams: usize) -> Result<(), Error> {
        let Some(parent) = &self.folder else { return Ok(()) };
        let folder = parent.join(format!("nectary-bench-io-{}", std::process::id()));
        guardian.make_folder(&folder)?;
        for stream in 0..streams {
            let path = folder.join(format!("stream-{stream}"));
            File::create_new(&path).map_err(|error| Error::failed(path.display(), error))?;
            self.places.push(StreamPlace { path, start: 0 });
        }
        Ok(())
    }

    /// Whether streams are on a block device.
    pub fn is_device(&self) -> bool {
        self.kind == TargetKind::Device
    }
}

/// Opens a file or disk as its only user, and returns its size. A mounted disk is refused with its mount point.
fn probe(path: &Path, kind: TargetKind) -> Result<u64, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::failed("starting a runtime", error))?;
    let options =
        OpenOptions { create_bytes: None, engine: BlockEngine::Posix, direct: true, ..OpenOptions::default() };
    let device = runtime.block_on(async {
        match kind {
            TargetKind::Device => FileDevice::open_disk(path, &options).await,
            _ => FileDevice::open_file(path, &options).await,
        }
    });
    let size_bytes = match device {
        Ok(device) => device.geometry().size_bytes,
        Err(error) if error.kind == nectary_block::DeviceErrorKind::Busy => {
            return Err(Error::new(ExperimentErrorKind::Busy, format!("{}: {}", path.display(), error.detail)));
        }
        Err(error) => return Err(error.into()),
    };
    Ok(size_bytes - size_bytes % BLOCK_BYTES as u64)
}

/// Whether an earlier run of this command wrote a file: a sample of blocks must all have its pattern.
fn is_known(path: &Path, bytes: u64) -> Result<bool, Error> {
    let file = File::open(path).map_err(|error| Error::failed(path.display(), error))?;
    let (pattern, blocks) = (BlockPattern::new(), bytes / BLOCK_BYTES as u64);
    let mut block = vec![0; BLOCK_BYTES];
    for index in (0..=64).map(|part| blocks.saturating_sub(1) * part / 64) {
        file.read_exact_at(&mut block, index * BLOCK_BYTES as u64)
            .map_err(|error| Error::failed(path.display(), error))?;
        if !pattern.is_own(&block) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::content::fill;
    use super::*;

    /// Only files of an earlier run are overwritten without the option.
    #[test]
    fn foreign_files_kept_without_overwrite() {
        let folder = std::env::temp_dir().join(format!("nectary-bench-io-target-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let wish = TargetUse { streams: 2, bytes: 512 << 10, writes: true, overwrite: false };
        let error = MeasurementTarget::find(&path, wish).unwrap_err();
        assert!(error.kind == ExperimentErrorKind::Usage && error.message.contains("--overwrite"), "{error}");
        let read = MeasurementTarget::find(&path, TargetUse { writes: false, ..wish }).unwrap();
        assert!(read.kind == TargetKind::File && !read.is_own, "other people's bytes are not compared");
        let told = MeasurementTarget::find(&path, TargetUse { overwrite: true, ..wish }).unwrap();
        assert_eq!(told.places.iter().map(|place| place.start).collect::<Vec<_>>(), [0, 512 << 10]);
        fill(&told.places, wish.bytes, 1).unwrap();
        assert!(MeasurementTarget::find(&path, wish).unwrap().is_own);
        // One block with other contents makes the file foreign.
        File::options().write(true).open(&path).unwrap().write_all_at(&[7], (1 << 20) - 1).unwrap();
        assert!(MeasurementTarget::find(&path, wish).is_err());
        let error = MeasurementTarget::find(&path, TargetUse { bytes: 1 << 20, ..wish }).unwrap_err();
        assert!(error.message.contains("it has 1M") && error.message.contains("--size"), "{error}");
        let error = MeasurementTarget::find(&folder.join("no"), wish).unwrap_err();
        assert!(error.kind == ExperimentErrorKind::Usage && error.message.contains("directory"), "{error}");
        let error = MeasurementTarget::find(&folder, TargetUse { bytes: 1 << 60, ..wish }).unwrap_err();
        assert!(error.message.contains("do not fit"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
