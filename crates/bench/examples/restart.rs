//! Measures how fast a store recovers after SIGKILL, for several numbers of objects. The results are the times until
//! the first hit, until the first accepted write, and until the request rate and the 99th percentile of the latency are
//! as before.
//!
//! `cargo run --release -p nectary-bench --example restart -- [--folder DIR] [--objects N,N] [--body BYTES] [--memory
//! MIB] [--rounds N] [--json FILE]`
//!
//! For each number of objects a separate process fills a store and then serves a load from one thread: 16 requests run
//! at a time, the popularity of a key is 1/rank, and one request in twenty is a put. The process is killed and started
//! again, `--rounds` times. All times count from just before the process is started, as a client would see them. The
//! device is a file opened with O_DIRECT, so that the page cache does not speed up the restart. Each object has its own
//! copy of the bytes, like bytes from a socket, so that an object needs as much memory before a restart as after it.
//! The program prints whether each target of the design is met, and exits with 1 if one is missed.

use std::cell::{Cell, RefCell};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nectary_block::OpenOptions as DeviceOptions;
use nectary_store::{CreateOptions, KeyRef, OpenOptions, Store};

type Failure = Box<dyn std::error::Error>;

/// The number of requests that run at the same time.
const CONCURRENT: usize = 16;
/// One of this many requests is a put.
const PUT_EVERY: u64 = 20;
/// The interval at which a load reports.
const TICK: Duration = Duration::from_millis(250);
/// The time for which a load runs before its process is killed. Only the second half is measured.
const WARM: Duration = Duration::from_secs(10);
/// The longest time to wait until the load is as before.
const RETURN_MAX: Duration = Duration::from_secs(60);
/// The target for the first hit and the first accepted write.
const FIRST_MAX: Duration = Duration::from_secs(1);
/// The target for the time until the load is as before.
const RETURNED_MAX: Duration = Duration::from_secs(5);
/// With the largest number of objects, the first hit and write may take at most this many times as long as with the
/// smallest.
const GROWTH_MAX: f64 = 1.5;

#[derive(Clone)]
struct RestartOptions {
    folder: String,
    objects: Vec<u64>,
    body_bytes: usize,
    memory_mib: u64,
    rounds: usize,
    json: Option<String>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.first().map(String::as_str) {
        Some("serve") => serve(&words[1..]).map(|()| true),
        _ => parse(&words).and_then(|options| measure(&options)),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("restart: {error}");
            ExitCode::from(2)
        }
    }
}

fn parse(words: &[String]) -> Result<RestartOptions, Failure> {
    let folder = std::env::temp_dir().to_string_lossy().into_owned();
    let mut options = RestartOptions {
        folder,
        objects: vec![1_000_000, 10_000_000],
        body_bytes: 200,
        memory_mib: 512,
        rounds: 5,
        json: None,
    };
    for pair in words.chunks(2) {
        let [name, value] = pair else { return Err(format!("{} needs a value", pair[0]).into()) };
        match name.as_str() {
            "--folder" => options.folder.clone_from(value),
            "--objects" => options.objects = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--body" => options.body_bytes = value.parse()?,
            "--memory" => options.memory_mib = value.parse()?,
            "--rounds" => options.rounds = value.parse::<usize>()?.max(1),
            "--json" => options.json = Some(value.clone()),
            other => return Err(format!("{other} is not understood").into()),
        }
    }
    Ok(options)
}

/// The results of one restart.
struct RestartResult {
    /// The number of records that recovery replayed.
    records: u64,
    rate_before: f64,
    first_hit: Duration,
    first_write: Duration,
    /// The time until the request rate reached 95 % of the rate before; `None` if this took too long.
    rate: Option<Duration>,
    /// The time until the 99th percentile of the latency was at most 1/0.95 of the value before; `None` if this took
    /// too long.
    p99: Option<Duration>,
}

impl RestartResult {
    fn json(&self, objects: u64) -> serde_json::Value {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        serde_json::json!({
            "objects": objects,
            "records_replayed": self.records,
            "first_hit_s": self.first_hit.as_secs_f64(),
            "first_write_s": self.first_write.as_secs_f64(),
            "rate_returned_s": seconds(self.rate),
            "p99_returned_s": seconds(self.p99),
            "rate_before": self.rate_before,
        })
    }
}

/// A target of the design, with the measured value.
struct RestartTarget {
    what: String,
    value: f64,
    most: f64,
}

impl RestartTarget {
    fn holds(&self) -> bool {
        self.value <= self.most
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({ "what": self.what, "value": self.value, "most": self.most, "holds": self.holds() })
    }
}

fn measure(options: &RestartOptions) -> Result<bool, Failure> {
    println!(
        "| objects | round | records replayed | first hit ms | first write ms | 95 % of requests/s after s | p99 after s | requests/s before |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let (mut targets, mut firsts, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for &objects in &options.objects {
        let path = format!("{}/nectary-restart-{}.img", options.folder, std::process::id());
        let outcome = rounds(options, objects, &path);
        let _ = std::fs::remove_file(&path);
        let restarts = outcome?;
        let middle = |of: &dyn Fn(&RestartResult) -> Duration| {
            let mut list: Vec<_> = restarts.iter().map(of).collect();
            list.sort_unstable();
            list[list.len() / 2].as_secs_f64()
        };
        let (hit, write) = (middle(&|restart| restart.first_hit), middle(&|restart| restart.first_write));
        let rate = middle(&|restart| restart.rate.unwrap_or(RETURN_MAX));
        let p99 = middle(&|restart| restart.p99.unwrap_or(RETURN_MAX));
        let target = |what: &str, value: f64, most: Duration| RestartTarget {
            what: format!("{objects} objects: seconds until {what}, median of {}", restarts.len()),
            value,
            most: most.as_secs_f64(),
        };
        targets.push(target("the first hit", hit, FIRST_MAX));
        targets.push(target("the first write", write, FIRST_MAX));
        targets.push(target("95 % of requests/s", rate, RETURNED_MAX));
        targets.push(target("p99 is back", p99, RETURNED_MAX));
        firsts.push(hit.max(write));
        rows.extend(restarts.iter().map(|restart| restart.json(objects)));
    }
    if let [first, .., last] = &firsts[..] {
        let what = "first hit and write, the most objects against the fewest, times".to_owned();
        targets.push(RestartTarget { what, value: last / first, most: GROWTH_MAX });
    }
    for target in &targets {
        let verdict = if target.holds() { "ok    " } else { "MISSED" };
        println!("{verdict} {}: {:.2}, at most {:.2}", target.what, target.value, target.most);
    }
    if let Some(path) = &options.json {
        let targets: Vec<_> = targets.iter().map(RestartTarget::json).collect();
        let report = serde_json::json!({ "body_bytes": options.body_bytes, "memory_mib": options.memory_mib, "restarts": rows, "targets": targets });
        std::fs::write(path, format!("{report:#}\n"))?;
    }
    Ok(targets.iter().all(RestartTarget::holds))
}

fn rounds(options: &RestartOptions, objects: u64, path: &str) -> Result<Vec<RestartResult>, Failure> {
    // The file is sparse, so that it uses only the space that is written.
    std::fs::File::create(path)?.set_len(span_bytes(objects, options.body_bytes))?;
    let mut server = ServingProcess::start(options, objects, path, true)?;
    server.wait_for("write")?;
    let mut restarts = Vec::new();
    for round in 0..options.rounds {
        let before = server.steady()?;
        server.kill();
        server = ServingProcess::start(options, objects, path, false)?;
        let first_hit = server.wait_for("hit")?;
        let first_write = server.wait_for("write")?;
        let records = server.records()?;
        let (rate, p99) = server.returned(&before)?;
        let seconds = |time: Option<Duration>| time.map_or("-".to_owned(), |time| format!("{:.2}", time.as_secs_f64()));
        println!(
            "| {objects} | {round} | {records} | {} | {} | {} | {} | {:.0} |",
            first_hit.as_millis(),
            first_write.as_millis(),
            seconds(rate),
            seconds(p99),
            before.rate
        );
        restarts.push(RestartResult { records, rate_before: before.rate, first_hit, first_write, rate, p99 });
    }
    Ok(restarts)
}

/// The rate and the latency of a load.
struct LoadMeasurement {
    rate: f64,
    p99_us: f64,
}

/// A serving process. It is killed when this value is dropped.
struct ServingProcess {
    process: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    started: Instant,
}

impl Drop for ServingProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

impl ServingProcess {
    fn start(options: &RestartOptions, objects: u64, path: &str, fill: bool) -> Result<ServingProcess, Failure> {
        let started = Instant::now();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", path, &objects.to_string(), &options.body_bytes.to_string()]);
        command.args([options.memory_mib.to_string().as_str(), if fill { "fill" } else { "open" }]);
        let mut process = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn()?;
        let stdout = process.stdout.take().ok_or("its output is piped")?;
        Ok(ServingProcess { process, lines: BufReader::new(stdout).lines(), started })
    }

    fn kill(&mut self) {
        // `Child::kill` sends SIGKILL.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn line(&mut self) -> Result<Vec<String>, Failure> {
        let line = self.lines.next().ok_or("the serving process ended")??;
        Ok(line.split(' ').map(str::to_owned).collect())
    }

    fn wait_for(&mut self, word: &str) -> Result<Duration, Failure> {
        while self.line()?[0] != word {}
        Ok(self.started.elapsed())
    }

    fn records(&mut self) -> Result<u64, Failure> {
        let line = self.line()?;
        match &line[..] {
            [word, records] if word == "replayed" => Ok(records.parse()?),
            _ => Err("the serving process says something else".into()),
        }
    }

    fn load(&mut self) -> Result<LoadMeasurement, Failure> {
        loop {
            if let [word, rate, p99_us] = &self.line()?[..]
                && word == "load"
            {
                return Ok(LoadMeasurement { rate: rate.parse()?, p99_us: p99_us.parse()? });
            }
        }
    }

    /// Returns the load that the process reaches after it has run for a while.
    fn steady(&mut self) -> Result<LoadMeasurement, Failure> {
        let begun = Instant::now();
        let (mut rates, mut p99) = (Vec::new(), Vec::new());
        while begun.elapsed() < WARM {
            let load = self.load()?;
            if begun.elapsed() > WARM / 2 {
                rates.push(load.rate);
                p99.push(load.p99_us);
            }
        }
        rates.sort_by(f64::total_cmp);
        p99.sort_by(f64::total_cmp);
        Ok(LoadMeasurement { rate: rates[rates.len() / 2], p99_us: p99[p99.len() / 2] })
    }

    /// Returns the times, from the start of the process, at which the rate and the latency were as before; `None` if
    /// this took too long.
    fn returned(&mut self, before: &LoadMeasurement) -> Result<(Option<Duration>, Option<Duration>), Failure> {
        let (mut rate, mut p99) = (None, None);
        while self.started.elapsed() < RETURN_MAX && (rate.is_none() || p99.is_none()) {
            let load = self.load()?;
            let now = self.started.elapsed();
            if load.rate >= before.rate * 0.95 {
                rate.get_or_insert(now);
            }
            if load.p99_us * 0.95 <= before.p99_us {
                p99.get_or_insert(now);
            }
        }
        Ok((rate, p99))
    }
}

/// The size of a store for these objects, in bytes. A store has room for one index entry per 1024 bytes, so twice the
/// size of the objects is enough.
fn span_bytes(objects: u64, body_bytes: usize) -> u64 {
    (objects * (body_bytes as u64 + 400).max(1100) * 2).max(64 << 20).next_multiple_of(1 << 20)
}

fn name(number: u64) -> String {
    format!("http://example.invalid/object/{number}")
}

fn say(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}

/// Runs the serving process. Its arguments are PATH OBJECTS BODY_BYTES MEMORY_MIB fill|open.
fn serve(words: &[String]) -> Result<(), Failure> {
    let [path, objects, body_bytes, memory_mib, mode] = words else {
        return Err("serve: five words are expected".into());
    };
    let (objects, body_bytes): (u64, usize) = (objects.parse()?, body_bytes.parse()?);
    let size = span_bytes(objects, body_bytes);
    let options = OpenOptions { memory_bytes: memory_mib.parse::<u64>()? << 20, ..OpenOptions::default() };
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let device_options = DeviceOptions { create_bytes: Some(size), ..DeviceOptions::default() };
        let device = nectary_block::open(path, &device_options).await?;
        if mode == "fill" {
            Store::create(device.clone(), &CreateOptions { force: true, ..CreateOptions::default() }).await?;
        }
        let store = Store::open(device, options).await?;
        let body = Bytes::from(vec![7u8; body_bytes]);
        if mode == "fill" {
            fill(&store, objects, &body).await?;
        } else {
            let recovery = store.stat().recovery;
            eprintln!(
                "recovered in {} ms: {} appends, {} records replayed",
                recovery.duration_us / 1000,
                recovery.appends,
                recovery.records
            );
        }
        let mut number = objects / 2;
        while store.get(KeyRef::new(name(number).as_bytes(), b"")).await.is_none() {
            number = (number + 1) % objects;
        }
        say("hit")?;
        let first = name(number);
        while store.put(KeyRef::new(first.as_bytes(), b""), "metadata".into(), body.clone()).await.is_err() {
            tokio::task::yield_now().await;
        }
        say("write")?;
        say(&format!("replayed {}", store.stat().recovery.records))?;
        load(store, objects, body).await
    })
}

async fn fill(store: &Store, objects: u64, body: &Bytes) -> Result<(), Failure> {
    let begun = Instant::now();
    for number in 0..objects {
        let name = name(number);
        while store.put(KeyRef::new(name.as_bytes(), b""), own(b"metadata"), own(body)).await.is_err() {
            store.sync().await?;
        }
        if number % 100_000 == 0 {
            eprint!("\rfilling: {number} of {objects} objects, {:.0} s", begun.elapsed().as_secs_f64());
        }
    }
    store.sync().await?;
    let stat = store.stat();
    eprintln!(
        "\rfilled: {} entries of {objects} objects in {:.0} s, index {:.2} bytes an entry, {} evicted from it, {} checkpoints",
        stat.entries,
        begun.elapsed().as_secs_f64(),
        stat.index_bytes as f64 / stat.entries.max(1) as f64,
        stat.index_evictions,
        stat.counts.checkpoints
    );
    Ok(())
}

/// Sends requests until the process is killed, or until its output has no reader.
async fn load(store: Store, objects: u64, body: Bytes) -> Result<(), Failure> {
    let times: Rc<RefCell<Vec<u32>>> = Rc::default();
    let state = Rc::new(Cell::new(0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(std::process::id())));
    let local = tokio::task::LocalSet::new();
    for _ in 0..CONCURRENT {
        let (store, body, times, state) = (store.clone(), body.clone(), times.clone(), state.clone());
        local.spawn_local(async move {
            loop {
                let random = next(&state);
                let name = name(popular(random, objects));
                let key = KeyRef::new(name.as_bytes(), b"");
                let begun = Instant::now();
                if random.is_multiple_of(PUT_EVERY) || store.get(key).await.is_none() {
                    // A put that is refused because the disk is too slow is not stored, as in a real cache.
                    let _ = store.put(key, own(b"metadata"), own(&body)).await;
                }
                times.borrow_mut().push(begun.elapsed().as_micros() as u32);
                if random.is_multiple_of(64) {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    local
        .run_until(async {
            let mut begun = Instant::now();
            let (opened, mut was_warming) = (begun, true);
            loop {
                tokio::time::sleep(TICK).await;
                if was_warming && !store.stat().warming {
                    was_warming = false;
                    let stat = store.stat();
                    eprintln!(
                        "warm after {:.2} s: {} objects read of {} in memory, {} MiB of {}",
                        opened.elapsed().as_secs_f64(),
                        stat.counts.warmed,
                        stat.memory_entries,
                        stat.memory_used_bytes >> 20,
                        stat.memory_capacity_bytes >> 20
                    );
                }
                let mut list = times.take();
                list.sort_unstable();
                let p99 = list.get(list.len() * 99 / 100).copied().unwrap_or(0);
                say(&format!("load {:.0} {p99}", list.len() as f64 / begun.elapsed().as_secs_f64()))?;
                begun = Instant::now();
            }
        })
        .await
}

fn own(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn next(state: &Cell<u64>) -> u64 {
    let mut x = state.get();
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    state.set(x);
    x
}

/// Draws the number of an object. An object's probability is proportional to 1/rank, and the ranks are scattered over
/// the numbers.
fn popular(random: u64, objects: u64) -> u64 {
    let share = (random >> 11) as f64 / (1u64 << 53) as f64;
    let rank = (share * (objects as f64).ln()).exp() as u64;
    rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % objects
}
