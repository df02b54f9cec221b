//! `bench limits`: the store's read and write rates as a share of fio's rates on the same device.
//!
//! Owns: two figures, each the median of paired runs. *Reads*: two threads get objects that are not in memory, 32 at
//! once. The rate is compared with that of fio's random reads of the same size, 32 at once, from one or from two
//! threads, whichever is faster. *Filling*: one task puts objects one after another and then flushes. The rate is
//! compared with that of fio's sequential writes of 1 MiB, and with that of a loop that does only what every store must
//! do: it copies the same bodies into buffers, computes their checksums, and writes two buffers at a time. All
//! three times include the final flush. Store and fio each use direct I/O on a file of the same size in the same
//! directory; each file is written once before the measurement. They take turns (A B B A …). Every byte that the store
//! returns is compared with the expected one. The report also compares the store's rates at 64 and 128 gets in flight
//! with the same reads of fio. If the store is slower than fio at 32 but not at 128, the cause is waiting; if it is
//! slower at both, the cause is processor time. Leaves to others: latencies as users see them (`store`).

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nectary_block::{Buffer, Context, OpenOptions as DeviceOptions, SharedDevice, WriteFlags};
use nectary_store::{CreateOptions, ErrorKind as StoreErrorKind, KeyRef, OpenOptions, Store};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::guardian::Guardian;
use crate::random::Random;
use crate::statistics::{estimate, paired_ratio};
use crate::store::Figure;
use crate::workload::content;
use crate::{Error, ErrorKind, machine, sys};

/// The number of reads in flight.
const DEPTH: usize = 32;
/// Higher numbers of gets in flight, which show how much the store waits. The rates at these numbers have no target.
const DEPTHS_BEYOND: [usize; 2] = [64, 128];
/// The number of threads that read from the store, like a proxy's workers; fio reads with its best number (`FIO_JOBS`).
const THREADS: usize = 2;
/// The numbers of threads with which fio reads. The highest rate counts, because the device can reach it.
const FIO_JOBS: [usize; 2] = [1, THREADS];
/// The memory of the store in bytes: far less than the data that are read, so that few reads find their object in
/// memory.
const MEMORY_BYTES: u64 = 32 << 20;
/// The target of both figures: the smallest accepted ratio to fio's rate.
const TARGET: f64 = 0.9;
/// The name of the page of `docs/results/`.
pub const PAGE: &str = "faster";
/// The number of fio's writes in flight.
const FIO_WRITES: usize = 4;
/// The size of a write of the copying loop, in bytes: the size of a store's append, unless an object is longer.
const COPIED_BYTES: usize = 2 << 20;
/// The number of different bodies, which objects use in turn. They are made before the measurement, as fio makes its
/// buffer. There are so many bodies that a wrong object almost always has a wrong body. The number is prime, because misplaced
/// data tend to be at round distances.
const BODIES: u32 = 1021;
/// The smallest size of a file, in bytes.
const BYTES_MIN: u64 = 256 << 20;

/// The settings of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitsOptions {
    /// The directory of the files.
    pub folder: PathBuf,
    /// The size of each file, in bytes.
    pub bytes: u64,
    /// The size of the objects, in bytes.
    pub object_bytes: u32,
    /// The number of paired runs of each figure.
    pub pairs: usize,
    /// The duration of each run of reads, in seconds.
    pub seconds: u64,
}

/// The report.
#[derive(Debug, Clone, Serialize)]
pub struct LimitsReport {
    /// `limits`.
    pub experiment: String,
    /// The command line and the machine.
    pub setting: Value,
    /// Ratios and rates.
    pub figures: Vec<Figure>,
    /// Each run of each figure, in the order in which they ran.
    pub rows: Vec<Value>,
    #[serde(skip)]
    text: String,
}

impl LimitsReport {
    /// The report for people.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// The rates and processor times of the store and of fio in the runs of one figure.
#[derive(Default)]
struct Rates {
    store: Vec<f64>,
    fio: Vec<f64>,
    /// Processor time in microseconds, per read or per `object_bytes` written.
    store_processor: Vec<f64>,
    fio_processor: Vec<f64>,
}

impl Rates {
    fn add_store(&mut self, (rate, processor): (f64, f64)) {
        self.store.push(rate);
        self.store_processor.push(processor);
    }

    fn add_fio(&mut self, (rate, processor): (f64, f64)) {
        self.fio.push(rate);
        self.fio_processor.push(processor);
    }
}

/// Measures both figures; `progress` receives the number of completed runs and the number of all runs.
///
/// *Errors*: [`ErrorKind::Missing`] without fio; [`ErrorKind::Void`] if a byte was wrong.
pub fn limits(
    options: &LimitsOptions,
    guardian: Command,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<LimitsReport, Error> {
    if options.bytes < BYTES_MIN || options.pairs < 2 || options.seconds == 0 || options.object_bytes == 0 {
        let message = format!("{BYTES_MIN} bytes, 2 pairs, 1 second and objects of 1 byte are the least");
        return Err(Error::new(ErrorKind::Usage, message));
    }
    let folder = options.folder.join(format!("nectary-bench-limits-{}", std::process::id()));
    let mut guardian = Guardian::start(guardian)?;
    guardian.make_folder(&folder)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::failed("starting a runtime", error))?;
    let result = runtime.block_on(run(options, &folder, progress));
    drop(runtime);
    guardian.finish();
    result
}

async fn run(
    options: &LimitsOptions,
    folder: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<LimitsReport, Error> {
    let fio = Fio { path: folder.join("fio"), bytes: options.bytes };
    let of = (5 + DEPTHS_BEYOND.len() as u64) * options.pairs as u64 + 2;
    let mut done = 0;
    let mut step = || {
        progress(done, of);
        done += 1;
    };
    step();
    fio.write(options.bytes, options.object_bytes)?;
    step();
    let mut store = Filled::create(&folder.join("store"), options).await?;
    store.fill(options.bytes).await?;
    let fill_bytes = options.bytes / 4;
    let mut copier = Copier::create(&folder.join("copier"), options, &store.bodies).await?;
    copier.fill(options.bytes).await?;
    let (mut fill, mut reads) = (Rates::default(), Rates::default());
    let mut copied = Rates::default();
    for pair in 0..options.pairs {
        for is_store in if pair % 2 == 0 { [true, false] } else { [false, true] } {
            step();
            match is_store {
                true => fill.add_store(store.fill(fill_bytes).await?),
                false => fill.add_fio(fio.write(fill_bytes, options.object_bytes)?),
            }
        }
        step();
        copied.add_store(copier.fill(fill_bytes).await?);
    }
    copied.fio.clone_from(&fill.fio);
    copied.fio_processor.clone_from(&fill.fio_processor);
    drop(copier);
    // fio's reads are as large as the store's: the object and its record header, in whole blocks.
    let (_, read_bytes) = store.read(Duration::from_millis(200), DEPTH)?;
    let read_bytes = read_bytes.next_multiple_of(u64::from(store.block_bytes));
    let time = Duration::from_secs(options.seconds);
    let mut beyond = DEPTHS_BEYOND.map(|_| Rates::default());
    for pair in 0..options.pairs {
        for is_store in if pair % 2 == 0 { [true, false] } else { [false, true] } {
            step();
            match is_store {
                true => reads.add_store(store.read(time, DEPTH)?.0),
                false => {
                    let runs = FIO_JOBS.map(|jobs| fio.read(read_bytes, jobs, options.seconds));
                    let [one, several] = runs;
                    let (one, several) = (one?, several?);
                    reads.add_fio(if one.0 >= several.0 { one } else { several });
                }
            }
        }
        for (rates, depth) in beyond.iter_mut().zip(DEPTHS_BEYOND) {
            step();
            rates.add_store(store.read(time, depth)?.0);
        }
    }
    for rates in &mut beyond {
        rates.fio.clone_from(&reads.fio);
        rates.fio_processor.clone_from(&reads.fio_processor);
    }
    progress(of, of);
    store.store.close().await?;
    Ok(report(options, read_bytes, [&fill, &copied], &reads, &beyond))
}

/// A store in a file, and the objects that it should contain.
struct Filled {
    store: Store,
    block_bytes: u32,
    object_bytes: u32,
    bodies: Arc<Vec<Bytes>>,
    next: u32,
    random: Random,
}

impl Filled {
    async fn create(path: &Path, options: &LimitsOptions) -> Result<Filled, Error> {
        let open = DeviceOptions { create_bytes: Some(options.bytes), ..DeviceOptions::default() };
        let device = nectary_block::open(&format!("file:{}", path.display()), &open).await?;
        let block_bytes = device.geometry().block_bytes;
        let create =
            CreateOptions { size_bytes: options.bytes, segment_bytes: None, force: true, ..CreateOptions::default() };
        Store::create(device.clone(), &create).await?;
        let open = OpenOptions { memory_bytes: MEMORY_BYTES, warm_up: false, ..OpenOptions::default() };
        let store = Store::open(device, open).await?;
        let bodies = (0..BODIES).map(|number| content::body(number, options.object_bytes).into()).collect();
        let (object_bytes, bodies) = (options.object_bytes, Arc::new(bodies));
        Ok(Filled { store, block_bytes, object_bytes, bodies, next: 0, random: Random::new(1) })
    }

    /// Puts objects of `bytes` bytes in total and flushes them; returns bytes per second, and processor time per put.
    async fn fill(&mut self, bytes: u64) -> Result<(f64, f64), Error> {
        let (began, processor) = (Instant::now(), sys::processor_time());
        let count = bytes.div_ceil(u64::from(self.object_bytes));
        for _ in 0..count {
            let key = self.next.to_le_bytes();
            let body = self.bodies[(self.next % BODIES) as usize].clone();
            self.next += 1;
            while let Err(error) = self.store.put(KeyRef::new(&key, b""), Bytes::new(), body.clone()).await {
                match error.kind {
                    StoreErrorKind::Busy => self.store.wait_for_room().await,
                    _ => return Err(error.into()),
                }
            }
        }
        self.store.sync().await?;
        let rate = (count * u64::from(self.object_bytes)) as f64 / began.elapsed().as_secs_f64();
        Ok((rate, (sys::processor_time() - processor).as_secs_f64() * 1e6 / count as f64))
    }

    /// Reads random objects for `time`, `depth` at once. Returns the device reads per second, the processor time per
    /// read, and the mean size of a read.
    fn read(&mut self, time: Duration, depth: usize) -> Result<((f64, f64), u64), Error> {
        // Reads only the newer half of the objects, which the store will not overwrite soon.
        let held = self.store.stat().entries.min(u64::from(self.next)) as u32 / 2;
        let before = self.store.stat().counts;
        let (began, processor) = (Instant::now(), sys::processor_time());
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (store, bodies) = (self.store.clone(), self.bodies.clone());
                let (newest, seed) = (self.next - 1, self.random.next_u64());
                let reader = Reader { store, bodies, newest, held, until: began + time };
                std::thread::spawn(move || reader.run(depth / THREADS, seed))
            })
            .collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let seconds = began.elapsed().as_secs_f64();
        let processor = sys::processor_time() - processor;
        for ended in ended {
            ended.map_err(|_| Error::failed("a reader", "it panicked"))??;
        }
        let counts = self.store.stat().counts;
        let reads = counts.device_reads - before.device_reads;
        let bytes = counts.device_read_bytes - before.device_read_bytes;
        if reads == 0 {
            return Err(Error::failed("reading objects", "none came from the disk"));
        }
        Ok(((reads as f64 / seconds, processor.as_secs_f64() * 1e6 / reads as f64), bytes / reads))
    }
}

/// Does only what every store must do with a body: computes its checksum, copies it and writes it.
struct Copier {
    device: SharedDevice,
    bodies: Arc<Vec<Bytes>>,
    spare: Vec<Buffer>,
    buffer_bytes: usize,
    position: u64,
}

impl Copier {
    async fn create(path: &Path, options: &LimitsOptions, bodies: &Arc<Vec<Bytes>>) -> Result<Copier, Error> {
        let open = DeviceOptions { create_bytes: Some(options.bytes), ..DeviceOptions::default() };
        let device = nectary_block::open(&format!("file:{}", path.display()), &open).await?;
        let block_bytes = device.geometry().block_bytes as usize;
        let buffer_bytes = COPIED_BYTES.max((options.object_bytes as usize).next_multiple_of(block_bytes));
        let spare = (0..2).map(|_| Buffer::zeroed(buffer_bytes)).collect();
        Ok(Copier { device, bodies: Arc::clone(bodies), spare, buffer_bytes, position: 0 })
    }

    /// Writes about `bytes` bytes and flushes them; returns bytes of bodies per second, and processor time per body.
    async fn fill(&mut self, bytes: u64) -> Result<(f64, f64), Error> {
        let (began, processor) = (Instant::now(), sys::processor_time());
        let (mut in_flight, mut filled, mut count) = (VecDeque::<JoinHandle<Result<Vec<Buffer>, _>>>::new(), 0, 0_u32);
        let ended = |error| Error::failed("a write", error);
        let mut bodies = self.bodies.iter().cycle();
        while filled < bytes {
            let mut buffer = match self.spare.pop() {
                Some(buffer) => buffer,
                None => match in_flight.pop_front() {
                    Some(written) => written.await.map_err(ended)??.remove(0),
                    None => Buffer::zeroed(self.buffer_bytes),
                },
            };
            let mut rest = &mut buffer[..];
            let mut sum = 0;
            while let Some(body) = bodies.next().filter(|body| body.len() <= rest.len()) {
                sum ^= crc32c::crc32c(body);
                let (place, after) = rest.split_at_mut(body.len());
                place.copy_from_slice(body);
                rest = after;
                filled += body.len() as u64;
                count += 1;
            }
            std::hint::black_box(sum);
            if self.position + self.buffer_bytes as u64 > self.device.geometry().size_bytes {
                self.position = 0;
            }
            let write = self.device.write_at(self.position, vec![buffer], WriteFlags::default(), Context::default());
            in_flight.push_back(tokio::spawn(write));
            // Submits the write now, not when the next buffer is full.
            tokio::task::yield_now().await;
            self.position += self.buffer_bytes as u64;
        }
        for written in in_flight {
            self.spare.push(written.await.map_err(ended)??.remove(0));
        }
        self.device.flush(Context::default()).await?;
        let rate = filled as f64 / began.elapsed().as_secs_f64();
        Ok((rate, (sys::processor_time() - processor).as_secs_f64() * 1e6 / f64::from(count.max(1))))
    }
}

/// One thread that reads.
#[derive(Clone)]
struct Reader {
    store: Store,
    bodies: Arc<Vec<Bytes>>,
    /// The number of the newest object; the newest `held` objects are read.
    newest: u32,
    held: u32,
    until: Instant,
}

impl Reader {
    fn run(self, depth: usize, seed: u64) -> Result<(), Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::failed("starting a runtime", error))?;
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            let mut random = Random::new(seed);
            for _ in 0..depth {
                tasks.spawn(self.clone().read(Random::new(random.next_u64())));
            }
            while let Some(done) = tasks.join_next().await {
                done.map_err(|error| Error::failed("a reader", error))??;
            }
            Ok(())
        })
    }

    /// Reads one object after the other.
    async fn read(self, mut random: Random) -> Result<(), Error> {
        while Instant::now() < self.until {
            let object = self.newest - random.below(self.held.into()) as u32;
            let Some(found) = self.store.get(KeyRef::new(&object.to_le_bytes(), b"")).await else { continue };
            let Some(body) = found.whole() else { continue };
            if *body != self.bodies[(object % BODIES) as usize] {
                let message = format!("the run is void: what object {object} has is not what was put");
                return Err(Error::new(ErrorKind::Void, message));
            }
        }
        Ok(())
    }
}

/// Runs fio on a file.
struct Fio {
    path: PathBuf,
    bytes: u64,
}

impl Fio {
    /// Writes with fio; returns bytes per second, and processor time per `unit` bytes.
    fn write(&self, bytes: u64, unit: u32) -> Result<(f64, f64), Error> {
        let arguments = ["--rw=write", "--bs=1M", "--end_fsync=1"];
        let more = [format!("--io_size={bytes}"), format!("--iodepth={FIO_WRITES}")];
        let report = self.run(&arguments, &more)?;
        let rate = number(&report, "write", "bw_bytes")?;
        Ok((rate, processor_share(&report) * 1e6 / rate * f64::from(unit)))
    }

    /// Reads with fio; returns reads per second, and processor time per read.
    fn read(&self, bytes: u64, jobs: usize, seconds: u64) -> Result<(f64, f64), Error> {
        let arguments = ["--rw=randread", "--time_based", "--norandommap", "--group_reporting"];
        let depth = [format!("--numjobs={jobs}"), format!("--iodepth={}", DEPTH / jobs)];
        let more =
            [format!("--bs={bytes}"), format!("--runtime={seconds}")].into_iter().chain(depth).collect::<Vec<_>>();
        let report = self.run(&arguments, &more)?;
        let rate = number(&report, "read", "iops")?;
        // With several jobs, fio reports the mean per job.
        Ok((rate, processor_share(&report) * jobs as f64 * 1e6 / rate))
    }

    fn run(&self, arguments: &[&str], more: &[String]) -> Result<Value, Error> {
        let mut command = Command::new("fio");
        command.args(["--name=limit", "--direct=1", "--ioengine=io_uring", "--output-format=json"]);
        command.arg(format!("--filename={}", self.path.display())).arg(format!("--size={}", self.bytes));
        command.args(arguments).args(more).stdin(Stdio::null());
        let output = command
            .output()
            .map_err(|error| Error::new(ErrorKind::Missing, format!("fio: {error}; install the Debian package fio")))?;
        if !output.status.success() {
            return Err(Error::failed("fio", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        // Warnings may precede the report.
        let json = text.find('{').map_or("", |start| &text[start..]);
        serde_json::from_str(json).map_err(|error| Error::failed("fio's report", error))
    }
}

fn number(report: &Value, direction: &str, name: &str) -> Result<f64, Error> {
    let value = report["jobs"][0][direction][name].as_f64();
    let value = value.filter(|value| *value > 0.0);
    value.ok_or_else(|| Error::failed("fio's report", format!("there is no {direction} {name} in it")))
}

/// The share of one processor that fio used.
fn processor_share(report: &Value) -> f64 {
    ["usr_cpu", "sys_cpu"].iter().filter_map(|name| report["jobs"][0][name].as_f64()).sum::<f64>() / 100.0
}

fn report(
    options: &LimitsOptions,
    read_bytes: u64,
    [fill, copied]: [&Rates; 2],
    reads: &Rates,
    beyond: &[Rates; DEPTHS_BEYOND.len()],
) -> LimitsReport {
    let mut figures = Vec::new();
    let mut rows = Vec::new();
    let mut text = format!("bench limits: {}\n", machine::describe());
    text.push_str(&format!(
        "{} pairs on files of {} MiB in {}; objects of {} bytes, {read_bytes} bytes a read; us: processor time a read or an object\n",
        options.pairs,
        options.bytes >> 20,
        options.folder.display(),
        options.object_bytes
    ));
    let [twice, four_times] = beyond;
    let measured = [
        ("read.depth32", "reads/s", 1.0, reads, Some(TARGET)),
        ("read.gets64", "reads/s", 1.0, twice, None),
        ("read.gets128", "reads/s", 1.0, four_times, None),
        ("fill", "MB/s", 1e6, fill, Some(TARGET)),
        ("fill.copied", "MB/s", 1e6, copied, None),
    ];
    for (name, unit, by, rates, target) in measured {
        let ratio = paired_ratio(&rates.store, &rates.fio);
        let figure = |name: String, unit, found: crate::statistics::Estimate, target| {
            let (value, low, high) = (found.value, found.low, found.high);
            Figure { name, value, unit, low, high, target, is_at_most: false, is_judged: true }
        };
        let main = figure(format!("limits.{name}.of_fio"), "x", ratio, target);
        let scaled = |rates: &[f64]| estimate(&rates.iter().map(|rate| rate / by).collect::<Vec<f64>>());
        let (store, fio) = (scaled(&rates.store), scaled(&rates.fio));
        let verdict = match (main.is_short(), target) {
            (true, _) => "  SHORT",
            (false, Some(_)) => "  reached",
            (false, None) => "",
        };
        text.push_str(&format!(
            "  {name:14} nectary {:9.1} {unit} {:5.1} us   fio {:9.1} {unit} {:5.1} us   ratio {:.3} ({:.3} to {:.3}){}{}\n",
            store.value,
            estimate(&rates.store_processor).value,
            fio.value,
            estimate(&rates.fio_processor).value,
            ratio.value,
            ratio.low,
            ratio.high,
            target.map(|target| format!("  target {target}")).unwrap_or_default(),
            verdict
        ));
        figures.push(main);
        figures.push(figure(format!("limits.{name}.nectary"), unit, store, None));
        figures.push(figure(format!("limits.{name}.fio"), unit, fio, None));
        rows.push(json!({ "figure": name, "unit": unit, "nectary": rates.store, "fio": rates.fio, "divided_by": by,
            "processor_us": { "nectary": rates.store_processor, "fio": rates.fio_processor } }));
    }
    figures.sort_by_key(|figure| !figure.is_short());
    let setting = json!({
        "folder": options.folder, "bytes": options.bytes, "object_bytes": options.object_bytes, "pairs": options.pairs,
        "seconds": options.seconds, "depth": DEPTH, "memory_bytes": MEMORY_BYTES, "read_bytes": read_bytes,
        "machine": machine::describe(),
    });
    LimitsReport { experiment: "limits".to_owned(), setting, figures, rows, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fios_report_is_read_and_what_is_not_there_is_an_error() {
        let report = json!({ "jobs": [{ "read": { "iops": 12.5 }, "write": { "bw_bytes": 0 } }] });
        assert_eq!(number(&report, "read", "iops").unwrap(), 12.5);
        assert!(number(&report, "write", "bw_bytes").is_err());
        assert!(number(&Value::Null, "read", "iops").is_err());
    }

    #[test]
    fn half_of_fios_rate_is_short_and_stands_first() {
        let options = LimitsOptions { folder: "/tmp".into(), bytes: 1 << 30, object_bytes: 8000, pairs: 2, seconds: 1 };
        let mut rates = [Rates::default(), Rates::default()];
        for (rates, store) in rates.iter_mut().zip([50.0, 95.0]) {
            for _ in 0..options.pairs {
                rates.add_store((store, 20.0));
                rates.add_fio((100.0, 10.0));
            }
        }
        let [half, whole] = rates;
        let beyond = [Rates::default(), Rates::default()];
        let report = report(&options, 12_288, [&half, &half], &whole, &beyond);
        assert_eq!(report.figures[0].name, "limits.fill.of_fio");
        assert!(report.figures[0].is_short() && !report.figures[1].is_short());
        for verdict in ["target 0.9  SHORT", "target 0.9  reached"] {
            assert_eq!(report.text().matches(verdict).count(), 1, "{}", report.text());
        }
    }
}
