//! Measures how fast long bodies come from the disk through the proxy, and compares Nectary with nginx and with fio:
//! `e2e-campaigns bench-large --rounds 6 --mib 200,1000 --json out.json`.
//!
//! Each round reads a body that nobody has read since it was stored, once from each server, and as many bytes of the
//! store's file with fio. The page cache, which only nginx uses, is dropped before nginx answers. Ratios are computed
//! within a round. The exit code is 0 only if every body came from the cache and from the disk, and the median ratio to
//! fio at depth 1 reaches `--ratio-min`.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use nectary_e2e::bench;
use nectary_e2e::guard::{self, find_program};
use nectary_e2e::nectary::{NectaryProxy, ProxyCommand};
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::peers::PeerProxy;
use nectary_e2e::report::{ValueSpread, write_json};
use nectary_e2e::scratch::ScratchFolder;
use serde_json::{Value, json};

use crate::rounds::{NotRunPolicy, ProblemCounter};

/// The longest time of one answer.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// The depth with which fio reads in its second run.
const DEPTH: u32 = 4;

/// Measures long bodies from the disk through the proxy, beside nginx and fio.
#[derive(Args)]
pub struct BenchLargeArguments {
    /// Paired rounds of each length.
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    /// Lengths of the bodies, in MiB.
    #[arg(long, value_delimiter = ',', default_values_t = [200, 1000])]
    mib: Vec<u64>,
    /// The proxy's memory.
    #[arg(long, default_value = "256M")]
    memory: String,
    /// The least median ratio to fio at depth 1.
    #[arg(long, default_value_t = 0.8)]
    ratio_min: f64,
    /// Write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Further arguments of the proxy.
    #[arg(last = true)]
    proxy: Vec<String>,
}

/// MiB a second, by round.
#[derive(Default)]
struct LargeBodyRates {
    nectary: Vec<f64>,
    nginx: Vec<f64>,
    fio: Vec<f64>,
    fio_deep: Vec<f64>,
    /// The bytes that Nectary read from the disk, divided by those it sent.
    from_disk: Vec<f64>,
}

/// Runs the campaign.
pub fn campaign(arguments: &BenchLargeArguments) -> Result<ExitCode> {
    // SAFETY: a plain system call.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root || find_program("fio").is_none() || find_program("nginx").is_none() {
        return Ok(NotRunPolicy::Fails.exit("bench-large", "it needs root (to drop the page cache), fio and nginx"));
    }
    println!("bench-large: {}, {} rounds, {} of memory", bench::machine(), arguments.rounds, arguments.memory);
    let (mut missed, mut figures) = (Vec::new(), Vec::new());
    for &mib in &arguments.mib {
        let rates = measure(arguments, mib)?;
        let of = |own: &[f64]| ValueSpread::of_ratios(&rates.nectary, own);
        let (nginx, fio, deep) = (of(&rates.nginx), of(&rates.fio), of(&rates.fio_deep));
        println!("\nbodies of {mib} MiB, MiB/s: median (min-max), Nectary's ratio");
        for (name, series, ratio) in [
            ("nectary", &rates.nectary, None),
            ("nginx", &rates.nginx, Some(nginx)),
            ("fio, depth 1", &rates.fio, Some(fio)),
            ("fio, depth 4", &rates.fio_deep, Some(deep)),
        ] {
            let ratio = ratio.map(|ratio| ratio.to_string()).unwrap_or_default();
            println!("{name:14} {:>32}  {ratio}", ValueSpread::of(series).to_string());
        }
        let from_disk = ValueSpread::of(&rates.from_disk);
        println!("bytes read from the disk for each byte sent: {from_disk}");
        if fio.median < arguments.ratio_min {
            missed.push(format!("{mib} MiB: {fio} times fio, at least {} wanted", arguments.ratio_min));
        }
        if from_disk.min < 0.9 {
            missed.push(format!("{mib} MiB: a body came from memory: {from_disk}"));
        }
        figures.push(json!({
            "mib": mib, "nectary_mib_per_second": rates.nectary, "nginx_mib_per_second": rates.nginx,
            "fio_mib_per_second": rates.fio, "fio_depth_4_mib_per_second": rates.fio_deep,
            "nectary_ratio": {"nginx": nginx.median, "fio": fio.median, "fio_depth_4": deep.median},
        }));
    }
    if let Some(path) = &arguments.json {
        write_json(path, &json!({"bench": "large", "machine": bench::machine(), "lengths": figures}))?;
    }
    let mut problems = ProblemCounter::default();
    problems.extend(missed);
    Ok(problems.exit())
}

fn measure(arguments: &BenchLargeArguments, mib: u64) -> Result<LargeBodyRates> {
    let (scratch, origin) = (ScratchFolder::new("bench-large")?, DeterministicOrigin::start()?);
    let bytes = mib << 20;
    let peer = PeerProxy::nginx_in(ScratchFolder::new("bench-large-nginx")?, origin.address(), false, None)?;
    let mut command = ProxyCommand::new(scratch.path(), Some(origin.url()))?;
    command.size = format!("{}M", (arguments.rounds as u64 + 2) * mib * 2 + 1024);
    command.memory = arguments.memory.clone();
    command.arguments.extend(arguments.proxy.iter().cloned());
    let nectary = command.start()?;
    let target = |round: usize| format!("/large/{round}?size={bytes}&cc=max-age=86400");
    // The last body pushes the others out of memory; it is not measured.
    for round in 0..=arguments.rounds {
        for address in [nectary.listen, peer.address] {
            fill(&origin, address, &target(round), bytes)?;
        }
    }
    nectary.wait_written(Duration::from_secs(60))?;
    let mut rates = LargeBodyRates::default();
    let before = origin.requests();
    for round in 0..arguments.rounds {
        let mut order = [0, 1, 2, 3];
        if round % 2 == 1 {
            order.reverse();
        }
        for contestant in order {
            match contestant {
                0 => {
                    let read = read_bytes(&nectary)?;
                    rates.nectary.push(get(nectary.listen, &target(round), bytes)?);
                    rates.from_disk.push((read_bytes(&nectary)? - read) as f64 / bytes as f64);
                }
                1 => {
                    drop_page_cache()?;
                    rates.nginx.push(get(peer.address, &target(round), bytes)?);
                }
                2 => rates.fio.push(fio(&scratch, 1, bytes)?),
                _ => rates.fio_deep.push(fio(&scratch, DEPTH, bytes)?),
            }
        }
    }
    ensure!(origin.requests() == before, "a measured body came from the origin");
    Ok(rates)
}

/// Requests a body until it comes without a request to the origin.
fn fill(origin: &DeterministicOrigin, address: SocketAddr, target: &str, bytes: u64) -> Result<()> {
    for _ in 0..4 {
        let before = origin.requests();
        get(address, target, bytes)?;
        if origin.requests() == before {
            return Ok(());
        }
    }
    bail!("{address} does not store {target}")
}

/// Requests a body and drops it; returns MiB a second.
fn get(address: SocketAddr, target: &str, bytes: u64) -> Result<f64> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let began = Instant::now();
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut buffer = vec![0u8; 1 << 20];
    let (mut head, mut received) = (Vec::new(), 0u64);
    let is_end = |head: &[u8]| head.windows(4).position(|four| four == b"\r\n\r\n");
    loop {
        let length = stream.read(&mut buffer).with_context(|| format!("{address}: {target}"))?;
        if length == 0 {
            break;
        }
        if is_end(&head).is_some() {
            received += length as u64;
            continue;
        }
        head.extend_from_slice(&buffer[..length]);
        if let Some(end) = is_end(&head) {
            received = (head.len() - end - 4) as u64;
            ensure!(head.starts_with(b"HTTP/1.1 200"), "{address}: {}", String::from_utf8_lossy(&head[..end]));
            head.truncate(end + 4);
        }
    }
    ensure!(received == bytes, "{address}: {received} of {bytes} bytes of {target}");
    Ok(bytes as f64 / f64::from(1 << 20) / began.elapsed().as_secs_f64())
}

/// The bytes that the proxy has read from disks.
fn read_bytes(nectary: &NectaryProxy) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{}/io", nectary.process.id()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    Ok(line.context("the kernel does not count reads")?.parse()?)
}

fn drop_page_cache() -> Result<()> {
    Command::new("sync").status()?;
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the page cache")
}

/// Reads the store's file in sequence with direct I/O, 1 MiB a request; returns MiB a second.
fn fio(scratch: &ScratchFolder, depth: u32, bytes: u64) -> Result<f64> {
    let mut command = Command::new("fio");
    command.args(["--name=read", "--rw=read", "--bs=1M", "--direct=1", "--ioengine=io_uring", "--output-format=json"]);
    command.arg(format!("--filename={}", scratch.join("store").display()));
    // The head of the file has metadata, which may be holes.
    command.args([format!("--iodepth={depth}"), format!("--size={bytes}"), "--offset=512M".to_owned()]);
    let log: &Path = &scratch.join("fio.json");
    let _ = fs::remove_file(log);
    let (status, text) = guard::run("fio", command, log, ANSWER_MAX)?;
    ensure!(status.success(), "fio: {}\n{text}", guard::describe(status));
    let start = text.find('{').context("fio printed no figures")?;
    let value: Value = serde_json::from_str(&text[start..])?;
    let rate = value["jobs"][0]["read"]["bw_bytes"].as_f64().context("fio printed no rate")?;
    Ok(rate / f64::from(1 << 20))
}
