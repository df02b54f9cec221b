//! Creates, stats and unlinks by several threads at once.
//!
//! Owns: the threads, and the clock of each step. Every thread has its own directory, as programs that have nothing to
//! do with each other. A step begins in all threads at once and ends with the last of them. Between two steps the file
//! system's sync runs outside of the clock. Leaves to others: the loop of one thread (`loops`).

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::loops::{DeletionOrder, FileLoops, PreparedLoops};
use crate::Error;

/// The loops of several threads over their own files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadedLoops {
    /// The directory in which the threads make their own directories.
    pub folder: PathBuf,
    /// The number of files of all threads.
    pub files: u32,
    /// The number of threads.
    pub threads: u32,
    /// The size of each file, in bytes.
    pub bytes: u32,
    /// Whether each file is opened with `O_SYNC` and the directory is flushed after each create and unlink.
    pub is_flushed_each: bool,
    /// The seed of the order in which files are unlinked.
    pub seed: u64,
}

/// The time of each step over all files. *Units*: seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// The time to create all files.
    pub create_s: f64,
    /// The time to request the attributes of all files, directly after they were requested once.
    pub stat_s: f64,
    /// The time to unlink all files.
    pub unlink_s: f64,
}

impl ThreadedLoops {
    /// Runs the three steps, and removes everything that they made.
    ///
    /// *Errors*: [`ExperimentErrorKind::Void`](crate::ExperimentErrorKind::Void) if a file is missing or has another size.
    pub fn run(&self) -> Result<StepTimes, Error> {
        let parts: Vec<FileLoops> = (0..self.threads).map(|thread| self.part(thread)).collect();
        for part in &parts {
            fs::create_dir(&part.folder).map_err(|error| Error::failed(part.folder.display(), error))?;
        }
        let ready = parts.iter().map(FileLoops::ready).collect::<Result<Vec<_>, _>>()?;
        let create_s = measured(&ready, PreparedLoops::create)?;
        ready.iter().try_for_each(PreparedLoops::compare)?;
        // The kernel may show what it is told now: a file system says nothing of a new file that others may change at once.
        at_once(&ready, PreparedLoops::stat)?;
        let stat_s = measured(&ready, PreparedLoops::stat)?;
        let unlink_s = measured(&ready, PreparedLoops::delete)?;
        for (ready, part) in ready.iter().zip(&parts) {
            ready.end()?;
            fs::remove_dir(&part.folder).map_err(|error| Error::failed(part.folder.display(), error))?;
        }
        Ok(StepTimes { create_s, stat_s, unlink_s })
    }

    /// The loops of one thread. The first threads have a file more if the files cannot be divided evenly.
    fn part(&self, thread: u32) -> FileLoops {
        let more = u32::from(thread < self.files % self.threads);
        FileLoops {
            folder: self.folder.join(format!("thread-{thread}")),
            files: self.files / self.threads + more,
            bytes: self.bytes,
            order: DeletionOrder::Random,
            is_flushed_each: self.is_flushed_each,
            seed: self.seed + u64::from(thread),
        }
    }

    /// How long the steps may take before the caller gives up.
    pub(super) fn patience(&self) -> Duration {
        // A disk with a slow flush takes some 60 ms for a durable file.
        Duration::from_secs(120) + Duration::from_millis(u64::from(self.files) * 400)
    }
}

/// One of the three steps.
type Step<'a> = fn(&PreparedLoops<'a>) -> Result<(), Error>;

/// The time of a step, in seconds. The sync that follows is not counted.
fn measured<'a>(ready: &[PreparedLoops<'a>], step: Step<'a>) -> Result<f64, Error> {
    let took = at_once(ready, step)?;
    ready.first().map_or(Ok(()), PreparedLoops::sync)?;
    Ok(took.as_secs_f64())
}

/// Does a step in one thread for each of `ready`; returns the time until the last thread has ended.
fn at_once<'a>(ready: &[PreparedLoops<'a>], step: Step<'a>) -> Result<Duration, Error> {
    std::thread::scope(|scope| {
        let (mut starts, mut threads) = (Vec::new(), Vec::new());
        for one in ready {
            let (start, started) = sync_channel::<()>(1);
            // If a thread cannot be started, the others are told nothing, and end.
            let work = move || if started.recv().is_ok() { step(one) } else { Ok(()) };
            let thread = std::thread::Builder::new().spawn_scoped(scope, work);
            threads.push(thread.map_err(|error| Error::failed("starting a thread of the loops", error))?);
            starts.push(start);
        }
        let began = Instant::now();
        for start in &starts {
            // This fails only if the thread has ended.
            let _ = start.send(());
        }
        let lost = |_| Err(Error::failed("a thread of the loops", "it panicked"));
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect();
        let took = began.elapsed();
        results.into_iter().collect::<Result<(), Error>>().map(|()| took)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExperimentErrorKind;

    fn together(name: &str) -> ThreadedLoops {
        let folder = std::env::temp_dir().join(format!("nectary-bench-together-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        ThreadedLoops { folder, files: 50, threads: 4, bytes: 10, is_flushed_each: false, seed: 1 }
    }

    /// The files are divided among the threads, and none is left.
    #[test]
    fn threads_divide_all_files() {
        let together = together("all");
        let files: Vec<u32> = (0..4).map(|thread| together.part(thread).files).collect();
        assert_eq!(files, [13, 13, 12, 12]);
        for is_flushed_each in [false, true] {
            let steps = ThreadedLoops { is_flushed_each, ..together.clone() }.run().unwrap();
            assert!(steps.create_s > 0.0 && steps.stat_s > 0.0 && steps.unlink_s > 0.0, "{steps:?}");
        }
        // More threads than files.
        ThreadedLoops { files: 2, ..together.clone() }.run().unwrap();
        // Fails if a step left anything behind.
        fs::remove_dir(together.folder).unwrap();
    }

    /// A file of another size makes a run void, and a missing file fails it.
    #[test]
    fn wrong_size_voids_threaded_loops() {
        let together = together("void");
        let part = together.part(0);
        fs::create_dir(&part.folder).unwrap();
        let ready = part.ready().unwrap();
        ready.create().unwrap();
        ready.stat().unwrap();
        let path = part.folder.join("lat-fs-13/0000003");
        fs::write(&path, "other size").unwrap();
        ready.stat().unwrap();
        fs::write(&path, "short").unwrap();
        assert_eq!(ready.stat().unwrap_err().kind, ExperimentErrorKind::Void);
        fs::remove_file(&path).unwrap();
        assert_eq!(ready.stat().unwrap_err().kind, ExperimentErrorKind::Failed);
        assert_eq!(at_once(&[ready], PreparedLoops::delete).unwrap_err().kind, ExperimentErrorKind::Failed);
        fs::remove_dir_all(together.folder).unwrap();
    }
}
