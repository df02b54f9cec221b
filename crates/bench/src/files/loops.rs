//! The loops of `lat_fs`: they create files, delete them in a given order, and measure the time of the file system's
//! sync.
//!
//! Owns: names, bytes, the order of deletion and the clock. The method of HBench-OS and lmbench is published: N files
//! of one size are created in one directory, each opened, written and closed; then all are deleted. The time of each
//! loop is divided by N. Promises: names, bytes and orders are made before the clock starts; the same seed gives the
//! same order; created files are counted and some are compared; a wrong byte makes the run void. Leaves to others: file
//! systems and devices below the directory (`contender`).

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::random::SeededRandom;
use crate::workload::content;
use crate::{Error, ExperimentErrorKind, sys};

/// The number of different bodies, which files use in turn. The number is prime, because misplaced data tend to be at
/// round distances.
const BODIES: u32 = 61;
/// How many files of a loop are read back and compared.
const COMPARED: u64 = 64;

/// The orders of deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeletionOrder {
    /// In the order of creation.
    Forward,
    /// In the opposite order.
    Reverse,
    /// In a random order, which the seed determines.
    Random,
}

impl DeletionOrder {
    /// Its name in reports and figures.
    pub fn name(self) -> &'static str {
        match self {
            DeletionOrder::Forward => "forward",
            DeletionOrder::Reverse => "reverse",
            DeletionOrder::Random => "random",
        }
    }

    /// The numbers of `files` files in this order.
    pub fn of(self, files: u32, seed: u64) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..files).collect();
        match self {
            DeletionOrder::Forward => {}
            DeletionOrder::Reverse => numbers.reverse(),
            DeletionOrder::Random => {
                let mut random = SeededRandom::new(seed);
                // The shuffle of Fisher and Yates.
                for last in (1..numbers.len()).rev() {
                    numbers.swap(last, random.below(last as u64 + 1) as usize);
                }
            }
        }
        numbers
    }
}

/// Two loops over the same files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLoops {
    /// The directory in which the loops make their own directory.
    pub folder: PathBuf,
    /// The number of files.
    pub files: u32,
    /// The size of each file, in bytes.
    pub bytes: u32,
    /// The order of deletion.
    pub order: DeletionOrder,
    /// Whether each file is opened with `O_SYNC` and the directory is flushed after each step. A file system that is
    /// mounted synchronously does not need this.
    pub is_flushed_each: bool,
    /// The seed of the random order.
    pub seed: u64,
}

/// The times of two loops. *Units*: seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LoopTimes {
    /// The time to create all files.
    pub create_s: f64,
    /// The time of the sync after the creation.
    pub create_sync_s: f64,
    /// The time to delete all files.
    pub delete_s: f64,
    /// The time of the sync after the deletion.
    pub delete_sync_s: f64,
}

impl FileLoops {
    /// Runs both loops, and removes everything that they made.
    ///
    /// *Errors*: [`ExperimentErrorKind::Void`] if a file is missing, or if its bytes are not those that were written.
    pub fn run(&self) -> Result<LoopTimes, Error> {
        let ready = self.ready()?;
        let mut taken = LoopTimes::default();
        let mut began = Instant::now();
        let mut lap = || std::mem::replace(&mut began, Instant::now()).elapsed().as_secs_f64();
        lap();
        ready.create()?;
        taken.create_s = lap();
        ready.sync()?;
        taken.create_sync_s = lap();
        ready.compare()?;
        lap();
        ready.delete()?;
        taken.delete_s = lap();
        ready.sync()?;
        taken.delete_sync_s = lap();
        ready.end()?;
        Ok(taken)
    }

    /// Makes the directory, and everything that is not measured.
    pub(super) fn ready(&self) -> Result<PreparedLoops<'_>, Error> {
        let folder = self.folder.join(format!("lat-fs-{}", self.files));
        let failed = |error: std::io::Error| Error::failed(folder.display(), error);
        fs::create_dir(&folder).map_err(failed)?;
        let opened = File::open(&folder).map_err(failed)?;
        // Syncs before the clock starts, so that the directory's creation is not measured.
        sys::sync_file_system(&opened)?;
        let paths: Vec<PathBuf> = (0..self.files).map(|number| folder.join(format!("{number:07}"))).collect();
        let order = self.order.of(self.files, self.seed);
        Ok(PreparedLoops { loops: self, folder, opened, paths, bodies: bodies(self.bytes), order })
    }

    fn create(&self, paths: &[PathBuf], bodies: &[Vec<u8>], folder: &File) -> Result<(), Error> {
        let mut options = File::options();
        options.write(true).create_new(true);
        if self.is_flushed_each {
            options.custom_flags(libc::O_SYNC);
        }
        for (path, body) in paths.iter().zip(bodies.iter().cycle()) {
            let written = options.open(path).and_then(|mut file| file.write_all(body));
            written.map_err(|error| Error::failed(path.display(), error))?;
            if self.is_flushed_each {
                folder.sync_all().map_err(|error| Error::failed(path.display(), error))?;
            }
        }
        Ok(())
    }

    /// Counts the files, and compares some of them.
    fn compare(&self, folder: &Path, paths: &[PathBuf], bodies: &[Vec<u8>]) -> Result<(), Error> {
        let found = fs::read_dir(folder).map_err(|error| Error::failed(folder.display(), error))?.count();
        if found != paths.len() {
            let message =
                format!("the run is void: {} has {found} files, {} were created", folder.display(), paths.len());
            return Err(Error::new(ExperimentErrorKind::Void, message));
        }
        let mut random = SeededRandom::new(self.seed);
        for _ in 0..COMPARED.min(paths.len() as u64) {
            let number = random.below(paths.len() as u64) as usize;
            compare(&paths[number], &bodies[number % bodies.len()])?;
        }
        Ok(())
    }
}

/// The files of loops, whose steps can be measured one by one.
pub(super) struct PreparedLoops<'a> {
    loops: &'a FileLoops,
    folder: PathBuf,
    opened: File,
    paths: Vec<PathBuf>,
    bodies: Vec<Vec<u8>>,
    order: Vec<u32>,
}

impl PreparedLoops<'_> {
    /// Creates all files.
    pub fn create(&self) -> Result<(), Error> {
        self.loops.create(&self.paths, &self.bodies, &self.opened)
    }

    /// Counts the files, and compares some of them. *Errors*: [`ExperimentErrorKind::Void`].
    pub fn compare(&self) -> Result<(), Error> {
        self.loops.compare(&self.folder, &self.paths, &self.bodies)
    }

    /// Requests the attributes of all files. *Errors*: [`ExperimentErrorKind::Void`] if one has another size.
    pub fn stat(&self) -> Result<(), Error> {
        for path in &self.paths {
            let found = fs::symlink_metadata(path).map_err(|error| Error::failed(path.display(), error))?;
            if !found.is_file() || found.len() != u64::from(self.loops.bytes) {
                let message = format!("the run is void: {} has {} bytes", path.display(), found.len());
                return Err(Error::new(ExperimentErrorKind::Void, message));
            }
        }
        Ok(())
    }

    /// Deletes all files.
    pub fn delete(&self) -> Result<(), Error> {
        for &number in &self.order {
            let path = &self.paths[number as usize];
            fs::remove_file(path).map_err(|error| Error::failed(path.display(), error))?;
            if self.loops.is_flushed_each {
                self.opened.sync_all().map_err(|error| Error::failed(self.folder.display(), error))?;
            }
        }
        Ok(())
    }

    /// Writes what the file system has in memory to its device.
    pub fn sync(&self) -> Result<(), Error> {
        sys::sync_file_system(&self.opened)
    }

    /// Removes the directory. *Errors*: a file was not deleted.
    pub fn end(&self) -> Result<(), Error> {
        fs::remove_dir(&self.folder).map_err(|error| Error::failed(self.folder.display(), error))
    }
}

fn bodies(bytes: u32) -> Vec<Vec<u8>> {
    (0..BODIES).map(|number| content::body(number, bytes)).collect()
}

fn compare(path: &Path, body: &[u8]) -> Result<(), Error> {
    let mut found = Vec::with_capacity(body.len());
    let read = File::open(path).and_then(|mut file| file.read_to_end(&mut found));
    read.map_err(|error| Error::failed(path.display(), error))?;
    if found != body {
        let message = format!("the run is void: {} does not have the bytes that were written", path.display());
        return Err(Error::new(ExperimentErrorKind::Void, message));
    }
    Ok(())
}

/// Files that stay on a file system while it is unmounted and mounted again, so that the next read comes from its
/// device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistentFiles {
    /// The directory of the files.
    pub folder: PathBuf,
    /// The size of each file, in bytes.
    pub bytes: u32,
}

impl PersistentFiles {
    fn path(&self, number: usize) -> PathBuf {
        self.folder.join(format!("kept-{number}"))
    }

    /// Makes and flushes the files.
    pub fn make(&self) -> Result<(), Error> {
        for (number, body) in bodies(self.bytes).iter().enumerate() {
            let path = self.path(number);
            let made = File::create(&path).and_then(|mut file| file.write_all(body).and_then(|()| file.sync_all()));
            made.map_err(|error| Error::failed(path.display(), error))?;
        }
        Ok(())
    }

    /// Compares and removes the files. *Errors*: [`ExperimentErrorKind::Void`] for a wrong byte.
    pub fn check(&self) -> Result<(), Error> {
        for (number, body) in bodies(self.bytes).iter().enumerate() {
            let path = self.path(number);
            compare(&path, body)?;
            fs::remove_file(&path).map_err(|error| Error::failed(path.display(), error))?;
        }
        Ok(())
    }
}

/// Converts the time of a loop over `files` files to milliseconds per file.
pub fn ms_a_file(seconds: f64, files: u32) -> f64 {
    seconds * 1e3 / f64::from(files.max(1))
}

/// How long `loops` may take before the caller gives up.
pub(super) fn patience(loops: &FileLoops) -> Duration {
    // On a synchronous mount, creating and deleting one file takes about 85 ms on a disk from 1999, and about 190 ms on
    // a mirror over links of 10 Mb/s.
    Duration::from_secs(120) + Duration::from_millis(u64::from(loops.files) * 400)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every order has each file once, and a seed always gives the same order.
    #[test]
    fn deletion_orders_complete_and_seeded() {
        assert_eq!(DeletionOrder::Forward.of(4, 1), [0, 1, 2, 3]);
        assert_eq!(DeletionOrder::Reverse.of(4, 1), [3, 2, 1, 0]);
        let random = DeletionOrder::Random.of(1000, 7);
        assert_eq!(random, DeletionOrder::Random.of(1000, 7));
        assert_ne!(random, DeletionOrder::Random.of(1000, 8));
        let mut sorted = random.clone();
        sorted.sort_unstable();
        assert!(sorted == DeletionOrder::Forward.of(1000, 0) && random != sorted);
        assert!(DeletionOrder::Random.of(0, 1).is_empty());
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("nectary-bench-loops-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        folder
    }

    /// Loops take time in each order of deletion, and leave no files.
    #[test]
    fn loops_take_time_and_clean_up() {
        let folder = folder("all");
        for order in [DeletionOrder::Forward, DeletionOrder::Reverse, DeletionOrder::Random] {
            for is_flushed_each in [false, true] {
                let loops =
                    FileLoops { folder: folder.clone(), files: 20, bytes: 2048, order, is_flushed_each, seed: 1 };
                let taken = loops.run().unwrap();
                assert!(taken.create_s > 0.0 && taken.delete_s > 0.0 && taken.create_sync_s > 0.0, "{taken:?}");
            }
        }
        // Fails if a loop left anything behind.
        fs::remove_dir(folder).unwrap();
    }

    /// A wrong byte makes a run void, and so does a missing file.
    #[test]
    fn damaged_files_void_loops() {
        let folder = folder("void");
        let loops = FileLoops {
            folder: folder.clone(),
            files: 5,
            bytes: 100,
            order: DeletionOrder::Forward,
            is_flushed_each: false,
            seed: 1,
        };
        let paths: Vec<PathBuf> = (0..5).map(|number| folder.join(format!("{number}"))).collect();
        let bodies = bodies(100);
        let opened = File::open(&folder).unwrap();
        loops.create(&paths, &bodies, &opened).unwrap();
        loops.compare(&folder, &paths, &bodies).unwrap();
        for path in &paths {
            fs::write(path, "other").unwrap();
        }
        let void = loops.compare(&folder, &paths, &bodies).unwrap_err();
        assert!(void.kind == ExperimentErrorKind::Void && void.message.contains("does not have the bytes"), "{void}");
        fs::remove_file(&paths[3]).unwrap();
        let void = loops.compare(&folder, &paths, &bodies).unwrap_err();
        assert!(
            void.kind == ExperimentErrorKind::Void && void.message.contains("has 4 files, 5 were created"),
            "{void}"
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn kept_files_are_compared_and_removed() {
        let folder = folder("kept");
        let kept = PersistentFiles { folder: folder.clone(), bytes: 2048 };
        kept.make().unwrap();
        kept.check().unwrap();
        kept.make().unwrap();
        fs::write(folder.join("kept-7"), "other").unwrap();
        assert_eq!(kept.check().unwrap_err().kind, ExperimentErrorKind::Void);
        fs::remove_dir_all(folder).unwrap();
    }
}
