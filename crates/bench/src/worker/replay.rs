//! Replays a piece of the workload against a contender, and verifies every byte that the contender returns.
//!
//! Each request is a get; a miss is followed by a put of the object, as if an origin had answered immediately. A piece
//! ends when all put objects are written, so that no contender writes while another is measured. Times are measured on
//! the disk's clock, during the calls of the contender. The time to make and compare bodies is not counted with a
//! virtual clock or one thread; with several threads in real time it is part of the run's time. With one thread in real
//! time, the time of the memory group's keeper is not counted either, which favours contenders that exceed their
//! allowance.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::timeline::ThreadTimeline;
use crate::contender::{ContenderStorage, ObjectHit};
use crate::disk::{CallCost, DiskClock};
use crate::group::MemoryKeeper;
use crate::workload::{ProxyRequest, content};
use crate::{Error, ExperimentErrorKind};

/// The results of a piece of the workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PieceResult {
    /// The number of requests.
    pub requests: u64,
    /// The number of requests found in the contender's memory.
    pub memory_hits: u64,
    /// The number of requests found on the contender's disk.
    pub disk_hits: u64,
    /// The number of bytes of the hits, all of which were compared.
    pub hit_bytes: u64,
    /// The number of bytes of the objects that were put.
    pub put_bytes: u64,
    /// The time in gets that went to the disk, in seconds.
    pub disk_get_s: f64,
    /// The time in all gets that found their object, in seconds.
    pub hit_s: f64,
    /// The time in puts, in seconds.
    pub put_s: f64,
    /// The time of the whole piece, in seconds.
    pub run_s: f64,
    /// The part of `run_s` in which the contender writes its waiting objects at the end, in seconds.
    pub settle_s: f64,
    /// The part of `run_s` in which requests waited for the contender's daemons, in seconds; always 0 for a replay in
    /// real time.
    pub daemon_s: f64,
    /// The part of `run_s` in which the keeper reclaims memory beyond the allowance, in seconds; always 0 for a
    /// replay in real time.
    pub pressure_s: f64,
    /// The harness's own time between calls, in seconds; measured with one thread in real time, otherwise 0. No other
    /// elapsed time includes it.
    pub harness_s: f64,
    /// The processor time of the contender's process, including the harness, in seconds.
    pub processor_s: f64,
    /// The time that requests waited for busy disks, in seconds, summed over all disks; 0 in real time.
    pub waited_s: f64,
}

impl PieceResult {
    /// Adds the results of another piece.
    pub fn add(&mut self, other: &PieceResult) {
        self.requests += other.requests;
        self.memory_hits += other.memory_hits;
        self.disk_hits += other.disk_hits;
        self.hit_bytes += other.hit_bytes;
        self.put_bytes += other.put_bytes;
        self.disk_get_s += other.disk_get_s;
        self.hit_s += other.hit_s;
        self.put_s += other.put_s;
        self.run_s += other.run_s;
        self.settle_s += other.settle_s;
        self.daemon_s += other.daemon_s;
        self.pressure_s += other.pressure_s;
        self.harness_s += other.harness_s;
        self.processor_s += other.processor_s;
        self.waited_s += other.waited_s;
    }

    /// The number of requests that missed; each was followed by a put.
    pub fn misses(&self) -> u64 {
        self.requests - self.memory_hits - self.disk_hits
    }

    /// The share of requests that found their object.
    pub fn hit_rate(&self) -> f64 {
        (self.memory_hits + self.disk_hits) as f64 / self.requests.max(1) as f64
    }
}

/// Replays a workload against a contender, with its clock, its threads and its memory group.
pub struct WorkloadPlayer {
    clock: DiskClock,
    timeline: ThreadTimeline,
    keeper: Option<Arc<MemoryKeeper>>,
    /// The time that each disk had used when the last call ended. Disk time between two calls is charged to the next
    /// call.
    charged: Vec<Duration>,
}

impl WorkloadPlayer {
    /// Makes a player with `threads` threads on a clock; `keeper` holds the contender's memory group at its allowance,
    /// and is `None` without a memory group.
    pub fn new(clock: DiskClock, threads: usize, keeper: Option<MemoryKeeper>) -> WorkloadPlayer {
        let timeline = ThreadTimeline::new(threads, clock.disks());
        let charged = clock.cost().disks;
        WorkloadPlayer { clock, timeline, keeper: keeper.map(Arc::new), charged }
    }

    /// Replays requests; all requests of a client are on the same thread.
    ///
    /// *Errors*: [`ExperimentErrorKind::Void`] at the first wrong body.
    pub fn replay(&mut self, storage: &dyn ContenderStorage, requests: &[ProxyRequest]) -> Result<PieceResult, Error> {
        let before = crate::sys::processor_time();
        let mut piece = match self.clock.is_virtual() {
            true => self.replay_virtual(storage, requests),
            false => self.replay_real(storage, requests),
        }?;
        piece.processor_s = (crate::sys::processor_time() - before).as_secs_f64();
        Ok(piece)
    }

    /// The [`MemoryKeeper`] that holds the contender's memory group at its allowance; `None` without a memory group.
    pub fn keeper(&self) -> Option<&MemoryKeeper> {
        self.keeper.as_deref()
    }

    fn replay_virtual(
        &mut self,
        storage: &dyn ContenderStorage,
        requests: &[ProxyRequest],
    ) -> Result<PieceResult, Error> {
        let mut piece = PieceResult::default();
        let threads = self.timeline.threads();
        let waited = self.timeline.waited();
        let began = self.timeline.now(0);
        let next_of = |thread: usize, from: usize| {
            (from..requests.len()).find(|index| requests[*index].client as usize % threads == thread)
        };
        let mut next: Vec<Option<usize>> = (0..threads).map(|thread| next_of(thread, 0)).collect();
        while let Some(thread) = self.timeline.next(|thread| next[thread].is_some()) {
            let Some(index) = next[thread] else { break };
            next[thread] = next_of(thread, index + 1);
            let request = &requests[index];
            let (found, cost) = self.measure(|| storage.get(request))?;
            let took = self.timeline.run(thread, &cost).as_secs_f64();
            if !piece.count_get(request, found, took)? {
                let body = Bytes::from(content::body(request.object, request.bytes));
                let ((), cost) = self.measure(|| storage.put(request, body))?;
                piece.put_s += self.timeline.run(thread, &cost).as_secs_f64();
            }
            let now = self.timeline.now(thread);
            let ((), cost) = self.measure(|| storage.tick(now))?;
            let before = self.timeline.now(thread);
            self.timeline.run_daemon(thread, &cost);
            piece.daemon_s += (self.timeline.now(thread) - before).as_secs_f64();
            if let Some(keeper) = self.keeper.clone().filter(|keeper| keeper.is_due()) {
                let ((), cost) = self.measure(|| keeper.keep())?;
                piece.pressure_s += self.timeline.run(thread, &cost).as_secs_f64();
            }
        }
        let ((), cost) = self.measure(|| storage.settle())?;
        piece.settle_s = self.timeline.join(&cost).as_secs_f64();
        piece.run_s = (self.timeline.now(0) - began).as_secs_f64();
        piece.waited_s = (self.timeline.waited() - waited).as_secs_f64();
        Ok(piece)
    }

    /// Calls a contender and returns the cost of the call. The cost includes the work of the disks since the previous
    /// call, because disks continue to work while the harness makes and compares bodies.
    fn measure<T>(&mut self, what: impl FnOnce() -> Result<T, Error>) -> Result<(T, CallCost), Error> {
        let before = CallCost { disks: std::mem::take(&mut self.charged), processor: self.clock.cost().processor };
        let done = what();
        let after = self.clock.cost();
        self.charged = after.disks.clone();
        Ok((done?, after.since(&before)))
    }

    fn replay_real(&self, storage: &dyn ContenderStorage, requests: &[ProxyRequest]) -> Result<PieceResult, Error> {
        let threads = self.timeline.threads();
        let began = self.clock.now();
        let mut sum = PieceResult::default();
        let parts = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|index| {
                    let part = requests.iter().filter(move |request| request.client as usize % threads == index);
                    scope.spawn(move || self.replay_part(storage, part))
                })
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<PieceResult, Error>>| {
                thread.join().unwrap_or_else(|_| Err(Error::failed("a contender", "its thread panicked")))
            };
            running.into_iter().map(join).collect::<Vec<_>>()
        });
        for part in parts {
            sum.add(&part?);
        }
        let settling = self.clock.now();
        storage.settle()?;
        let ended = self.clock.now();
        sum.settle_s = (ended - settling).as_secs_f64();
        let elapsed_s = (ended - began).as_secs_f64();
        if threads == 1 {
            sum.harness_s = (elapsed_s - sum.run_s - sum.settle_s).max(0.0);
        }
        sum.run_s = elapsed_s - sum.harness_s;
        Ok(sum)
    }

    fn replay_part<'a>(
        &self,
        storage: &dyn ContenderStorage,
        requests: impl Iterator<Item = &'a ProxyRequest>,
    ) -> Result<PieceResult, Error> {
        let mut piece = PieceResult::default();
        let seconds = |since: Duration| (self.clock.now().saturating_sub(since)).as_secs_f64();
        for request in requests {
            let began = self.clock.now();
            let found = storage.get(request)?;
            let took = seconds(began);
            piece.run_s += took;
            if !piece.count_get(request, found, took)? {
                let body = Bytes::from(content::body(request.object, request.bytes));
                let began = self.clock.now();
                storage.put(request, body)?;
                let took = seconds(began);
                piece.put_s += took;
                piece.run_s += took;
            }
            let began = self.clock.now();
            storage.tick(began)?;
            piece.run_s += seconds(began);
            if let Some(keeper) = &self.keeper
                && keeper.is_due()
            {
                keeper.keep()?;
            }
        }
        Ok(piece)
    }
}

impl PieceResult {
    /// Counts a request and verifies the found body; returns whether the request was a hit.
    fn count_get(&mut self, request: &ProxyRequest, found: Option<ObjectHit>, took_s: f64) -> Result<bool, Error> {
        self.requests += 1;
        let Some(found) = found else {
            self.put_bytes += u64::from(request.bytes);
            return Ok(false);
        };
        if let Some(position) = content::first_wrong(request.object, request.bytes, &found.pieces) {
            return Err(void(request, position));
        }
        self.hit_bytes += u64::from(request.bytes);
        self.hit_s += took_s;
        match found.in_memory {
            true => self.memory_hits += 1,
            false => {
                self.disk_hits += 1;
                self.disk_get_s += took_s;
            }
        }
        Ok(true)
    }
}

fn void(request: &ProxyRequest, position: u64) -> Error {
    let ProxyRequest { object, bytes, .. } = request;
    let message = format!("the run is void: byte {position} of object {object} ({bytes} bytes) is not what was put");
    Error::new(ExperimentErrorKind::Void, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::MemoryContender;
    use crate::disk::{DiskTimekeeping, SharedClock};
    use crate::workload::{RequestGenerator, WorkloadLaws};

    fn run(wrong: Option<u32>, time: DiskTimekeeping, threads: usize) -> Result<PieceResult, Error> {
        let requests: Vec<ProxyRequest> = RequestGenerator::new(WorkloadLaws::seed_trace(1, 0.001)).collect();
        let clock = DiskClock::new(time, None, Vec::new());
        WorkloadPlayer::new(clock, threads, None).replay(&MemoryContender::new(wrong), &requests)
    }

    /// A virtual clock with one disk, and the page with the disk's time.
    fn clock(name: &str) -> (std::path::PathBuf, Arc<SharedClock>, DiskClock) {
        let path = std::env::temp_dir().join(format!("nectary-bench-{name}-{}", std::process::id()));
        let page = Arc::new(SharedClock::create(&path).unwrap());
        let clock = DiskClock::new(DiskTimekeeping::Virtual, Some(page.clone()), vec![1]);
        (path, page, clock)
    }

    /// Disk time between two calls is part of the cost of the next call.
    #[test]
    fn disk_time_between_calls_counts() {
        let (path, page, clock) = clock("between");
        let mut player = WorkloadPlayer::new(clock, 1, None);
        let mut cost = || player.measure(|| Ok(())).unwrap().1.disks[0].as_millis();
        assert_eq!(cost(), 0);
        // The contender's own thread writes while the harness compares a body.
        page.set(1, Duration::from_millis(5));
        assert_eq!((cost(), cost()), (5, 0));
        std::fs::remove_file(path).unwrap();
    }

    /// A contender whose daemon uses the disk for 2 ms per call.
    struct DaemonContender(MemoryContender, Arc<SharedClock>);

    impl ContenderStorage for DaemonContender {
        fn get(&self, request: &ProxyRequest) -> Result<Option<ObjectHit>, Error> {
            self.0.get(request)
        }
        fn put(&self, request: &ProxyRequest, body: Bytes) -> Result<(), Error> {
            self.0.put(request, body)
        }
        fn delete(&self, request: &ProxyRequest) -> Result<(), Error> {
            self.0.delete(request)
        }
        fn tick(&self, _now: Duration) -> Result<(), Error> {
            self.1.set(1, self.1.get(1) + Duration::from_millis(2));
            Ok(())
        }
        fn settle(&self) -> Result<(), Error> {
            self.0.settle()
        }
        fn counters(&self) -> serde_json::Value {
            self.0.counters()
        }
    }

    /// Work that the harness does instead of the kernel is counted separately.
    #[test]
    fn daemon_time_is_counted_apart() {
        let (path, page, clock) = clock("daemon");
        let requests: Vec<ProxyRequest> = RequestGenerator::new(WorkloadLaws::seed_trace(1, 0.0005)).collect();
        let storage = DaemonContender(MemoryContender::new(None), page);
        let piece = WorkloadPlayer::new(clock, 1, None).replay(&storage, &requests).unwrap();
        let expected_s = requests.len() as f64 * 0.002;
        assert!((expected_s..expected_s * 1.5).contains(&piece.daemon_s), "{piece:?}");
        assert!(piece.run_s >= piece.daemon_s && piece.hit_s + piece.put_s < expected_s, "{piece:?}");
        std::fs::remove_file(path).unwrap();
    }

    const TIMES: [DiskTimekeeping; 2] = [DiskTimekeeping::Virtual, DiskTimekeeping::Real { speed: 2.0 }];

    /// Every request is a hit except the first one for its object.
    #[test]
    fn hits_are_repeated_requests() {
        let requests: Vec<ProxyRequest> = RequestGenerator::new(WorkloadLaws::seed_trace(1, 0.001)).collect();
        let distinct: std::collections::HashSet<u32> = requests.iter().map(|request| request.object).collect();
        for time in TIMES {
            let piece = run(None, time, 1).unwrap();
            assert_eq!(piece.requests, requests.len() as u64);
            assert_eq!(piece.misses(), distinct.len() as u64);
            assert_eq!(run(None, time, 4).unwrap().requests, piece.requests);
        }
    }

    #[test]
    fn wrong_byte_voids_replay() {
        for (time, threads) in [(TIMES[0], 1), (TIMES[0], 4), (TIMES[1], 4)] {
            let error = run(Some(17), time, threads).unwrap_err();
            assert_eq!(error.kind, ExperimentErrorKind::Void);
            assert!(error.message.contains("object 17 "), "{error}");
        }
    }
}
