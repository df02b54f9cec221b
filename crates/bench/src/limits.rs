//! `bench limits`: how much of what a device can do the store leaves to its users, beside fio on the same device.
//!
//! Owns: two figures, each the median of paired runs. Reads: objects that are not in memory, 32 at once, against fio's random reads of
//! the same size, 32 at once. Filling: objects put one after another, until they are flushed, against fio's sequential
//! writes of 1 MiB of as many bytes, until they are flushed. Both have a file of their own, of the same size, written once before, in
//! the same directory, both with direct I/O. Store and fio take turns (A B B A …). Every byte that the store gives back is
//! compared. Leaves to others: what users wait for (`store`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nectary_block::OpenOptions as DeviceOptions;
use nectary_store::{CreateOptions, ErrorKind as StoreErrorKind, KeyRef, OpenOptions, Store};
use serde::Serialize;
use serde_json::{Value, json};

use crate::guardian::Guardian;
use crate::random::Random;
use crate::statistics::{estimate, paired_ratio};
use crate::store::Figure;
use crate::workload::{Request, content};
use crate::{Error, ErrorKind, machine};

/// How many reads are under way at once.
const DEPTH: usize = 32;
/// What the store may use: far less than what is read, so that hardly anything is in memory.
const MEMORY_BYTES: u64 = 32 << 20;
/// What both should reach.
const TARGET: f64 = 0.9;
/// Writes of fio that are under way at once.
const FIO_WRITES: usize = 4;
/// How long a put that the disk is too slow for waits before it is tried again.
const PUT_PAUSE: Duration = Duration::from_micros(200);
/// Bytes that the smallest run needs.
const BYTES_MIN: u64 = 256 << 20;

/// What to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitsOptions {
    /// Where the files are.
    pub folder: PathBuf,
    /// The size of each file, in bytes.
    pub bytes: u64,
    /// The size of the objects, in bytes.
    pub object_bytes: u32,
    /// Paired runs of each figure.
    pub pairs: usize,
    /// How long each run of reads takes.
    pub seconds: u64,
}

/// What came of it.
#[derive(Debug, Clone, Serialize)]
pub struct LimitsReport {
    /// `limits`.
    pub experiment: String,
    /// How it was asked for and where it ran.
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

/// Rates of the store and of fio for the same figure.
#[derive(Default)]
struct Rates {
    store: Vec<f64>,
    fio: Vec<f64>,
}

/// Measures; `progress` is told how many of how many runs are done.
///
/// *Errors*: [`ErrorKind::Missing`] without fio; [`ErrorKind::Void`] where a byte was wrong.
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
    guardian.guard(&folder)?;
    std::fs::create_dir_all(&folder).map_err(|error| Error::failed(folder.display(), error))?;
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
    let of = 4 * options.pairs as u64 + 2;
    let mut done = 0;
    let mut step = || {
        progress(done, of);
        done += 1;
    };
    step();
    fio.write(options.bytes)?;
    step();
    let mut store = Filled::create(&folder.join("store"), options).await?;
    store.fill(options.bytes).await?;
    let fill_bytes = options.bytes / 4;
    let (mut fill, mut reads) = (Rates::default(), Rates::default());
    for pair in 0..options.pairs {
        for is_store in if pair % 2 == 0 { [true, false] } else { [false, true] } {
            step();
            match is_store {
                true => fill.store.push(store.fill(fill_bytes).await?),
                false => fill.fio.push(fio.write(fill_bytes)?),
            }
        }
    }
    // What one read takes, the record's header and the blocks that it touches included, is what fio reads.
    let (_, read_bytes) = store.read(Duration::from_millis(200)).await?;
    let read_bytes = read_bytes.next_multiple_of(4096);
    for pair in 0..options.pairs {
        for is_store in if pair % 2 == 0 { [true, false] } else { [false, true] } {
            step();
            match is_store {
                true => reads.store.push(store.read(Duration::from_secs(options.seconds)).await?.0),
                false => reads.fio.push(fio.read(read_bytes, options.seconds)?),
            }
        }
    }
    progress(of, of);
    store.store.close().await?;
    Ok(report(options, read_bytes, &fill, &reads))
}

/// A store in a file, and which objects it should have.
struct Filled {
    store: Store,
    object_bytes: u32,
    next: u32,
    random: Random,
}

impl Filled {
    async fn create(path: &Path, options: &LimitsOptions) -> Result<Filled, Error> {
        let open = DeviceOptions { create_bytes: Some(options.bytes), ..DeviceOptions::default() };
        let device = nectary_block::open(&format!("file:{}", path.display()), &open).await?;
        let create = CreateOptions { size_bytes: options.bytes, segment_bytes: None, force: true };
        Store::create(device.clone(), &create).await?;
        let open = OpenOptions { memory_bytes: MEMORY_BYTES, warm_up: false, ..OpenOptions::default() };
        let store = Store::open(device, open).await?;
        Ok(Filled { store, object_bytes: options.object_bytes, next: 0, random: Random::new(1) })
    }

    /// Puts objects of so many bytes together and flushes them; returns bytes a second.
    async fn fill(&mut self, bytes: u64) -> Result<f64, Error> {
        let began = Instant::now();
        let count = bytes.div_ceil(u64::from(self.object_bytes));
        for _ in 0..count {
            let request = self.request(self.next);
            self.next += 1;
            let body = Bytes::from(content::body(request.object, request.bytes));
            let key = request.key();
            while let Err(error) = self.store.put(KeyRef::new(key.as_bytes(), b""), Bytes::new(), body.clone()).await {
                match error.kind {
                    StoreErrorKind::Busy => tokio::time::sleep(PUT_PAUSE).await,
                    _ => return Err(error.into()),
                }
            }
        }
        self.store.sync().await?;
        Ok((count * u64::from(self.object_bytes)) as f64 / began.elapsed().as_secs_f64())
    }

    /// Reads objects at random for a while; returns reads of the device a second, and their mean size.
    async fn read(&mut self, time: Duration) -> Result<(f64, u64), Error> {
        // The younger half: none of it is overwritten soon.
        let held = self.store.stat().entries.min(u64::from(self.next)) as u32 / 2;
        let before = self.store.stat().counts;
        let began = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..DEPTH {
            let store = self.store.clone();
            let mut random = Random::new(self.random.next_u64());
            let (next, bytes) = (self.next, self.object_bytes);
            tasks.spawn(async move {
                while began.elapsed() < time {
                    let object = next - 1 - random.below(held.into()) as u32;
                    let request = Request { client: 0, object, bytes, page: None };
                    let key = request.key();
                    let Some(found) = store.get(KeyRef::new(key.as_bytes(), b"")).await else { continue };
                    let Some(body) = found.whole() else { continue };
                    if let Some(position) = content::first_wrong(object, bytes, std::slice::from_ref(body)) {
                        let message =
                            format!("the run is void: byte {position} of object {object} is not what was put");
                        return Err(Error::new(ErrorKind::Void, message));
                    }
                }
                Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.map_err(|error| Error::failed("a reader", error))??;
        }
        let seconds = began.elapsed().as_secs_f64();
        let counts = self.store.stat().counts;
        let reads = counts.device_reads - before.device_reads;
        let bytes = counts.device_read_bytes - before.device_read_bytes;
        if reads == 0 {
            return Err(Error::failed("reading objects", "none came from the disk"));
        }
        Ok((reads as f64 / seconds, bytes / reads))
    }

    fn request(&self, object: u32) -> Request {
        Request { client: 0, object, bytes: self.object_bytes, page: None }
    }
}

/// fio on a file.
struct Fio {
    path: PathBuf,
    bytes: u64,
}

impl Fio {
    fn write(&self, bytes: u64) -> Result<f64, Error> {
        let arguments = ["--rw=write", "--bs=1M", "--end_fsync=1"];
        let more = [format!("--io_size={bytes}"), format!("--iodepth={FIO_WRITES}")];
        number(&self.run(&arguments, &more)?, "write", "bw_bytes")
    }

    fn read(&self, bytes: u64, seconds: u64) -> Result<f64, Error> {
        let arguments = ["--rw=randread", "--time_based", "--norandommap"];
        let more = [format!("--bs={bytes}"), format!("--runtime={seconds}"), format!("--iodepth={DEPTH}")];
        number(&self.run(&arguments, &more)?, "read", "iops")
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
        // Warnings may stand before it.
        let json = text.find('{').map_or("", |start| &text[start..]);
        serde_json::from_str(json).map_err(|error| Error::failed("fio's report", error))
    }
}

fn number(report: &Value, direction: &str, name: &str) -> Result<f64, Error> {
    let value = report["jobs"][0][direction][name].as_f64();
    let value = value.filter(|value| *value > 0.0);
    value.ok_or_else(|| Error::failed("fio's report", format!("there is no {direction} {name} in it")))
}

fn report(options: &LimitsOptions, read_bytes: u64, fill: &Rates, reads: &Rates) -> LimitsReport {
    let mut figures = Vec::new();
    let mut rows = Vec::new();
    let mut text = format!("bench limits: {}\n", machine::describe());
    text.push_str(&format!(
        "{} pairs on files of {} MiB in {}; objects of {} bytes, {read_bytes} bytes a read\n",
        options.pairs,
        options.bytes >> 20,
        options.folder.display(),
        options.object_bytes
    ));
    for (name, unit, by, rates) in [("read.depth32", "reads/s", 1.0, reads), ("fill", "MB/s", 1e6, fill)] {
        let ratio = paired_ratio(&rates.store, &rates.fio);
        let figure = |name: String, unit, found: crate::statistics::Estimate, target| {
            let (value, low, high) = (found.value, found.low, found.high);
            Figure { name, value, unit, low, high, target }
        };
        let main = figure(format!("limits.{name}.of_fio"), "x", ratio, Some(TARGET));
        let scaled = |rates: &[f64]| estimate(&rates.iter().map(|rate| rate / by).collect::<Vec<f64>>());
        let (store, fio) = (scaled(&rates.store), scaled(&rates.fio));
        text.push_str(&format!(
            "  {name:14} nectary {:9.1} {unit}   fio {:9.1} {unit}   ratio {:.3} ({:.3} to {:.3})  target {TARGET}{}\n",
            store.value,
            fio.value,
            ratio.value,
            ratio.low,
            ratio.high,
            if main.is_short() { "  SHORT" } else { "" }
        ));
        figures.push(main);
        figures.push(figure(format!("limits.{name}.nectary"), unit, store, None));
        figures.push(figure(format!("limits.{name}.fio"), unit, fio, None));
        rows.push(json!({ "figure": name, "unit": unit, "nectary": rates.store, "fio": rates.fio, "divided_by": by }));
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
        let half = Rates { store: vec![50.0, 50.0], fio: vec![100.0, 100.0] };
        let whole = Rates { store: vec![95.0, 95.0], fio: vec![100.0, 100.0] };
        let report = report(&options, 12_288, &half, &whole);
        assert_eq!(report.figures[0].name, "limits.fill.of_fio");
        assert!(report.figures[0].is_short() && !report.figures[1].is_short());
        assert_eq!(report.text().matches("SHORT").count(), 1);
    }
}
