//! Executes one pass, and measures the time of each request.
//!
//! Owns: threads, rings and clocks. The requests of a stream are taken in order from one counter, so a pass that runs
//! out of time has done a first part of the requests. In the timed part a write stamps its blocks, and a read compares
//! the stamp of its first block. All bytes are compared after the timed part (`content`). There are two engines:
//! `Threads` has one thread for each request in flight, like xdd; `Uring` has one thread and one ring per stream,
//! through the file engine of `nectary-block`.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Instant;

use nectary_block::{Buffer, FileDevice, FileEngine as BlockEngine, IoContext, OpenOptions, SharedDevice, WriteFlags};
use tokio::runtime::Runtime;

use super::job::{CompletedRequest, IoPass, OpenMode, PassOutcome, StreamOutcome, StreamPlace, SubmissionEngine};
use super::pattern::{BLOCK_BYTES, BlockPattern, Stamp};
use crate::{Error, sys};

/// The requests of a stream, and the time that they took in seconds.
type Done = Result<(Vec<CompletedRequest>, f64), Error>;

/// Runs a pass; with `keep` the outcome contains each request.
///
/// *Errors*: [`ExperimentErrorKind::Void`](crate::ExperimentErrorKind::Void) if a read returned a wrong block;
/// [`ExperimentErrorKind::Failed`](crate::ExperimentErrorKind::Failed) if the system refused a request.
pub fn run(job: &IoPass, keep: bool) -> Result<PassOutcome, Error> {
    let stream =
        |number| StreamState { job: job.clone(), number, next: AtomicU64::new(0), pattern: BlockPattern::new() };
    let streams: Vec<Arc<StreamState>> = (0..job.places.len()).map(|number| Arc::new(stream(number))).collect();
    let (done, processor_s) = match job.engine {
        SubmissionEngine::Threads => threads(job, &streams)?,
        SubmissionEngine::Uring => uring(job, &streams)?,
    };
    let done = done.into_iter().collect::<Result<Vec<_>, _>>()?;
    let seconds = done.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
    let streams = done.into_iter().map(|(requests, seconds)| StreamOutcome::of(job, requests, seconds, keep)).collect();
    Ok(PassOutcome { streams, seconds, processor_s })
}

/// The state that the requests of one stream share.
struct StreamState {
    job: IoPass,
    number: usize,
    next: AtomicU64,
    pattern: BlockPattern,
}

impl StreamState {
    /// Takes the next request: returns its number, its offset in the stream, and whether it writes. `None` if the pass
    /// is over.
    fn claim(&self, began: Instant) -> Option<(u64, u64, bool)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let in_round = number % self.job.requests();
        if number != in_round && !self.job.is_repeated {
            return None;
        }
        let is_late = self.job.seconds_max.is_some_and(|max| began.elapsed().as_secs_f64() >= max);
        // Each stream makes at least one request.
        if is_late && number > 0 {
            return None;
        }
        Some((number, in_round * self.job.request_bytes, self.job.is_write(self.number, in_round)))
    }

    fn place(&self) -> &StreamPlace {
        &self.job.places[self.number]
    }

    fn stamp(&self, offset: u64, generation: u32) -> Stamp {
        Stamp { offset, generation, stream: self.number as u32 }
    }

    /// Stamps a buffer that is to be written at an offset.
    fn prepare(&self, buffer: &mut [u8], offset: u64) {
        BlockPattern::stamp(buffer, self.stamp(offset, self.job.write_generation));
    }

    /// Compares the stamp of the first block that was read.
    fn compare(&self, buffer: &[u8], offset: u64) -> Result<(), Error> {
        let Some(generation) = self.job.read_generations.get(self.number) else { return Ok(()) };
        let (expected, block) = (self.stamp(offset, *generation), &buffer[..BLOCK_BYTES]);
        match Stamp::decode(block) == Some(expected) {
            true => Ok(()),
            false => self.pattern.check(block, expected),
        }
    }

    fn failed(&self, error: impl std::fmt::Display) -> Error {
        Error::failed(self.place().path.display(), error)
    }
}

/// Lets all workers begin at the same time. A worker that ends earlier, for example because it panics, does not keep
/// the others waiting.
struct StartBarrier {
    state: Mutex<StartState>,
    /// Wakes the thread that waits for the workers.
    arrived: Condvar,
    /// Wakes the workers.
    begun: Condvar,
}

struct StartState {
    /// The number of workers that are not ready yet.
    missing: usize,
    began: Option<Instant>,
    is_given_up: bool,
}

impl StartBarrier {
    fn new(workers: usize) -> StartBarrier {
        let state = StartState { missing: workers, began: None, is_given_up: false };
        StartBarrier { state: Mutex::new(state), arrived: Condvar::new(), begun: Condvar::new() }
    }

    /// The part of one worker.
    fn part(&self) -> BarrierGuard<'_> {
        BarrierGuard(self)
    }

    /// Waits until all workers are ready or have ended, and lets them begin; returns the start time.
    fn go(&self) -> Instant {
        let waited = self.arrived.wait_while(self.lock(), |state| state.missing > 0);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let began = *state.began.get_or_insert_with(Instant::now);
        drop(state);
        self.begun.notify_all();
        began
    }

    /// Makes the workers end before they begin.
    fn give_up(&self) {
        self.lock().is_given_up = true;
        self.begun.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, StartState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's part in the start. Dropping it means that the worker is ready, or has ended.
struct BarrierGuard<'a>(&'a StartBarrier);

impl BarrierGuard<'_> {
    /// Waits until all workers may begin; returns the start time.
    fn wait(self) -> Result<Instant, Error> {
        let start = self.0;
        drop(self);
        let waited = start.begun.wait_while(start.lock(), |state| state.began.is_none() && !state.is_given_up);
        let began = waited.unwrap_or_else(PoisonError::into_inner).began;
        began.ok_or_else(|| Error::failed("the pass", "it did not begin"))
    }
}

impl Drop for BarrierGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().missing -= 1;
        self.0.arrived.notify_all();
    }
}

/// Starts a worker. If the system refuses to, the workers that were started end.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    start: &StartBarrier,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Error> {
    std::thread::Builder::new().spawn_scoped(scope, work).map_err(|error| {
        start.give_up();
        Error::failed("starting a thread of the pass", format!("{error}; use fewer streams, or a smaller depth"))
    })
}

fn last_end(requests: &[CompletedRequest]) -> f64 {
    requests.iter().map(|request| request.end_ns).max().unwrap_or(0) as f64 / 1e9
}

/// Opens a stream's file for its requests.
fn open(job: &IoPass, place: &StreamPlace, flags: i32) -> Result<File, Error> {
    let mut options = File::options();
    options.read(true).write(job.operation.writes()).custom_flags(job.mode.flags() | flags);
    let file = options.open(&place.path).map_err(|error| refused(job, place, &error))?;
    if job.is_fresh && !job.is_device {
        file.set_len(0).map_err(|error| refused(job, place, &error))?;
    }
    Ok(file)
}

/// Makes the error of a refused call; its message says what to do.
fn refused(job: &IoPass, place: &StreamPlace, error: &std::io::Error) -> Error {
    let what = match error.raw_os_error() {
        Some(libc::ENOSPC) => "; make room there, or give a smaller --size",
        Some(libc::EBUSY) => "; it is mounted or in use: unmount it first",
        Some(libc::EINVAL) if job.mode.is_direct() => {
            "; O_DIRECT is not taken there in requests of this size: leave --mode direct out"
        }
        _ => "",
    };
    let (operation, mode, size) = (job.operation.name(), job.mode.name(), job.request_bytes);
    Error::failed(place.path.display(), format!("{operation}, {mode}, requests of {size} bytes: {error}{what}"))
}

fn lost<T>(_: T) -> Error {
    Error::failed("a thread of the pass", "it panicked")
}

fn threads(job: &IoPass, streams: &[Arc<StreamState>]) -> Result<(Vec<Done>, f64), Error> {
    // The device is also opened exclusively, so that it cannot be mounted while it is written to.
    let is_claimed = job.is_device && job.operation.writes();
    let _claims = is_claimed.then(|| open(job, &job.places[0], libc::O_EXCL)).transpose()?;
    let files = job.places.iter().map(|place| open(job, place, 0)).collect::<Result<Vec<_>, _>>()?;
    let start = StartBarrier::new(job.places.len() * job.depth);
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for (stream, file) in streams.iter().zip(&files) {
            let mut of_stream = Vec::new();
            for _ in 0..job.depth {
                let part = start.part();
                of_stream.push(spawn(scope, &start, move || worker(stream, file, part))?);
            }
            workers.push(of_stream);
        }
        let before = sys::processor_time();
        let began = start.go();
        let mut done = Vec::new();
        for (workers, (stream, file)) in workers.into_iter().zip(streams.iter().zip(&files)) {
            let mut requests = Vec::new();
            for worker in workers {
                requests.extend(worker.join().map_err(lost)??);
            }
            let mut seconds = last_end(&requests);
            if job.is_synced && job.operation.writes() {
                file.sync_data().map_err(|error| refused(job, stream.place(), &error))?;
                seconds = began.elapsed().as_secs_f64();
            }
            done.push(Ok((requests, seconds)));
        }
        Ok((done, (sys::processor_time() - before).as_secs_f64()))
    })
}

/// The loop of one thread, which has one request in flight.
fn worker(stream: &StreamState, file: &File, part: BarrierGuard<'_>) -> Result<Vec<CompletedRequest>, Error> {
    let (job, place) = (&stream.job, stream.place());
    let mut buffer = stream.pattern.buffer(job.request_bytes);
    let mut requests = Vec::with_capacity((job.requests() as usize).div_ceil(job.depth));
    let began = part.wait()?;
    while let Some((number, offset, is_write)) = stream.claim(began) {
        if is_write {
            stream.prepare(&mut buffer, offset);
        }
        let start_ns = began.elapsed().as_nanos() as u64;
        let moved = match is_write {
            true => file.write_at(&buffer, place.start + offset),
            false => file.read_at(&mut buffer, place.start + offset),
        };
        let end_ns = began.elapsed().as_nanos() as u64;
        let moved = moved.map_err(|error| refused(job, place, &error))?;
        if moved as u64 != job.request_bytes {
            let how = format!("a request of {} bytes at {offset} moved only {moved}", job.request_bytes);
            return Err(stream.failed(how));
        }
        requests.push(CompletedRequest { number, start_ns, end_ns, is_write });
        if !is_write {
            stream.compare(&buffer, offset)?;
        }
    }
    Ok(requests)
}

fn runtime() -> Result<Runtime, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Error::failed("starting a runtime", error))
}

fn uring(job: &IoPass, streams: &[Arc<StreamState>]) -> Result<(Vec<Done>, f64), Error> {
    let devices = runtime()?.block_on(open_devices(job))?;
    let start = StartBarrier::new(streams.len());
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for (stream, device) in streams.iter().zip(&devices) {
            let (stream, device, part) = (Arc::clone(stream), device.clone(), start.part());
            workers.push(spawn(scope, &start, move || ring(&stream, &device, part))?);
        }
        let before = sys::processor_time();
        start.go();
        let done = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| Err(lost(panic)))).collect();
        Ok((done, (sys::processor_time() - before).as_secs_f64()))
    })
}

/// Opens the device of each stream; streams on the same file or disk share it.
async fn open_devices(job: &IoPass) -> Result<Vec<SharedDevice>, Error> {
    let options = OpenOptions {
        create_bytes: None,
        engine: BlockEngine::Uring,
        direct: job.mode.is_direct(),
        ..OpenOptions::default()
    };
    let mut devices: Vec<SharedDevice> = Vec::new();
    for (number, place) in job.places.iter().enumerate() {
        let same = job.places[..number].iter().position(|other| other.path == place.path);
        if let Some(same) = same {
            devices.push(devices[same].clone());
            continue;
        }
        let device = match job.is_device {
            true => FileDevice::open_disk(&place.path, &options).await?,
            false => FileDevice::open_file(&place.path, &options).await?,
        };
        if device.is_direct() != job.mode.is_direct() {
            return Err(refused(job, place, &std::io::Error::from_raw_os_error(libc::EINVAL)));
        }
        devices.push(Arc::new(device));
    }
    Ok(devices)
}

/// Makes all requests of a stream on one ring.
fn ring(stream: &Arc<StreamState>, device: &SharedDevice, part: BarrierGuard<'_>) -> Done {
    let runtime = runtime()?;
    // The first operation makes the ring.
    runtime.block_on(async { device.flush(IoContext::default()).await })?;
    let job = &stream.job;
    let buffers: Vec<Buffer> = (0..job.depth).map(|_| stream.pattern.buffer(job.request_bytes)).collect();
    let began = part.wait()?;
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for buffer in buffers {
            tasks.spawn(slot(Arc::clone(stream), device.clone(), buffer, began));
        }
        let mut requests = Vec::new();
        while let Some(done) = tasks.join_next().await {
            requests.extend(done.map_err(lost)??);
        }
        let mut seconds = last_end(&requests);
        if job.is_synced && job.operation.writes() {
            device.flush(IoContext::default()).await?;
            seconds = began.elapsed().as_secs_f64();
        }
        Ok((requests, seconds))
    })
}

/// The loop of one of the ring's slots, which has one request in flight.
async fn slot(
    stream: Arc<StreamState>,
    device: SharedDevice,
    mut buffer: Buffer,
    began: Instant,
) -> Result<Vec<CompletedRequest>, Error> {
    let job = &stream.job;
    let flags = WriteFlags { fua: matches!(job.mode, OpenMode::Dsync | OpenMode::DirectDsync) };
    let mut requests = Vec::with_capacity((job.requests() as usize).div_ceil(job.depth));
    while let Some((number, offset, is_write)) = stream.claim(began) {
        let position = stream.place().start + offset;
        if is_write {
            stream.prepare(&mut buffer, offset);
        }
        let start_ns = began.elapsed().as_nanos() as u64;
        let mut buffers = match is_write {
            true => device.write_at(position, vec![buffer], flags, IoContext::default()).await?,
            false => device.read_at(position, vec![buffer], IoContext::default()).await?,
        };
        let end_ns = began.elapsed().as_nanos() as u64;
        buffer = buffers.pop().ok_or_else(|| stream.failed("a request gave no buffer back"))?;
        requests.push(CompletedRequest { number, start_ns, end_ns, is_write });
        if !is_write {
            stream.compare(&buffer, offset)?;
        }
    }
    Ok(requests)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
