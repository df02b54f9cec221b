//! The threads of a round, and their records.
//!
//! Owns: starting the threads of a mount, and waiting for them. Leaves to others: what they do (`jobs`).

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::history::{CallOutcome, CallRecorder, RecordedCall, milliseconds, now};
use super::jobs::{JOBS, MountSurvey, survey};
use super::worker::{MountWorker, RoundCounters};

/// The load of a round.
#[derive(Default)]
pub struct TakeoverLoad {
    common: Arc<RoundCounters>,
    recorders: Vec<Arc<CallRecorder>>,
    threads: Vec<JoinHandle<()>>,
}

impl TakeoverLoad {
    /// Starts the threads of one mount.
    pub fn start(&mut self, mount: usize, directory: &Path, seed: u64) {
        for (index, job) in JOBS.into_iter().enumerate() {
            let worker = self.worker(mount, directory, seed.wrapping_add(1 + index as u64));
            self.threads.push(std::thread::spawn(move || job(&worker)));
        }
    }

    fn worker(&mut self, mount: usize, directory: &Path, seed: u64) -> MountWorker {
        let number = self.common.worker.fetch_add(1, Ordering::Relaxed) as usize;
        let recorder = Arc::new(CallRecorder::new(mount, number));
        self.recorders.push(recorder.clone());
        MountWorker { common: self.common.clone(), recorder, directory: directory.to_owned(), mount, seed }
    }

    /// Lets the threads end, and waits for that; calls `meanwhile` again and again. *Errors*: that of `meanwhile`, and
    /// calls that have not returned within the limit.
    pub fn stop(&self, limit: Duration, mut meanwhile: impl FnMut() -> Result<()>) -> Result<()> {
        self.common.is_over.store(true, Ordering::Release);
        let began = Instant::now();
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            meanwhile()?;
            ensure!(began.elapsed() <= limit, "{}", self.pending().join("; "));
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Describes the calls that have not returned.
    fn pending(&self) -> Vec<String> {
        let at = now();
        let pending = self.calls().into_iter().filter(|call| call.outcome == CallOutcome::Pending);
        let words = pending.map(|call| {
            let since = at.saturating_sub(call.start);
            format!("mount {}: {:?} has not returned for {} ms", call.mount, call.act, milliseconds(since))
        });
        words.collect()
    }

    /// Returns all calls so far.
    pub fn calls(&self) -> Vec<RecordedCall> {
        self.recorders.iter().flat_map(|recorder| recorder.so_far()).collect()
    }

    /// Reads everything on a mount once more, in a thread. Its calls are in the record, too. *Errors*: as of `stop`.
    pub fn survey(
        &mut self,
        mount: usize,
        directory: &Path,
        limit: Duration,
        meanwhile: impl FnMut() -> Result<()>,
    ) -> Result<MountSurvey> {
        let worker = self.worker(mount, directory, 0);
        let found = Arc::new(Mutex::new(MountSurvey::default()));
        let result = found.clone();
        self.threads.push(std::thread::spawn(move || {
            let survey = survey(&worker);
            *result.lock().unwrap_or_else(PoisonError::into_inner) = survey;
        }));
        self.stop(limit, meanwhile)?;
        let survey = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(survey)
    }
}

impl Drop for TakeoverLoad {
    fn drop(&mut self) {
        self.common.is_over.store(true, Ordering::Release);
    }
}
