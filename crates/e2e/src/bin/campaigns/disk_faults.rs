//! Runs a loaded proxy on a disk that hangs, is slow, or fails: `e2e-campaigns disk-faults --rounds 30 --seed 7`.
//!
//! In each round the fault begins and ends while clients ask without a pause; half of the rounds end the proxy during
//! the fault. Prints one line per round and the sums. The exit code is 0 only if every request was answered, or its
//! connection ended, within five seconds; no answer had a wrong byte, and no body was cut off whose origin serves ranges;
//! every purge was answered in time; the status said what is wrong; writing went on after the fault; and SIGTERM ended
//! the proxy in time.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use nectary_e2e::content;
use nectary_e2e::http::{HttpConnection, RequestFailure};
use nectary_e2e::nectary::{AUTHORIZATION, NectaryProxy, ProxyCommand, find};
use nectary_e2e::origin::{DeterministicOrigin, TargetAnswer};
use nectary_e2e::report::seed_or_new;
use nectary_e2e::scratch::ScratchFolder;

use crate::rounds::ProblemCounter;

/// The time in which every client needs an answer.
const LIMIT: Duration = Duration::from_secs(5);
/// Clients that ask at the same time.
const CLIENTS: u64 = 8;
/// The number of different URLs; most of them do not fit into the proxy's memory.
const URLS: u64 = 600;
/// How long the load runs before, during and after the fault.
const PHASES: [Duration; 3] = [Duration::from_secs(3), Duration::from_secs(7), Duration::from_secs(4)];
/// The time in which SIGTERM must end the proxy.
const END: Duration = Duration::from_secs(15);

/// A loaded proxy on a disk that hangs, is slow or fails: every client has its answer within five seconds.
#[derive(Args)]
pub struct DiskFaultsArguments {
    /// Rounds; each has one of the three faults.
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Chooses the URLs and the faults; a new one is drawn and printed without it.
    #[arg(long)]
    seed: Option<u64>,
}

/// What a disk does during the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DiskFault {
    Hang,
    Slow,
    Fail,
}

impl DiskFault {
    /// The SPEC of a store at `path` with this fault while `trigger` exists.
    fn store(self, path: &Path, trigger: &Path, seed: u64) -> String {
        let (path, trigger) = (path.display(), trigger.display());
        match self {
            DiskFault::Hang => format!("delay({path},read=1h,write=1h,flush=1h,when={trigger})"),
            DiskFault::Slow => format!("delay({path},read=300ms,write=700ms,flush=900ms,when={trigger})"),
            DiskFault::Fail => format!("error({path},rate={}%,seed={seed},when={trigger})", 20 + seed % 3 * 40),
        }
    }
}

/// The requests of a round.
#[derive(Default)]
struct FaultRoundCounts {
    answered: AtomicU64,
    /// Answers of the proxy that say that it failed.
    failed: AtomicU64,
    /// Connections that ended in the middle of a body that its origin cannot continue.
    cut: AtomicU64,
    /// Connections that ended in the middle of a body that its origin could have continued.
    cut_needlessly: AtomicU64,
    /// Answers with other bytes than the origin's.
    wrong: AtomicU64,
    /// Requests without an answer in the limit.
    unanswered: AtomicU64,
    slowest_ms: AtomicU64,
}

/// Runs the campaign.
pub fn campaign(arguments: &DiskFaultsArguments) -> Result<ExitCode> {
    let seed = seed_or_new(arguments.seed);
    let mut problems = ProblemCounter::default();
    let (mut answered, mut cut, mut resumed) = (0, 0, 0);
    for round in 0..arguments.rounds {
        let fault = [DiskFault::Hang, DiskFault::Slow, DiskFault::Fail][(round % 3) as usize];
        let ends_during = (seed + round / 3).is_multiple_of(2);
        let (counts, continued, found) = run(seed.wrapping_add(round), fault, ends_during)?;
        let load = |count: &AtomicU64| count.load(Ordering::Acquire);
        println!(
            "round {round} {fault:?}{}: {} answered (slowest {} ms), {continued} with a rest from the origin, {} failed, {} \
             cut, {} unanswered",
            if ends_during { ", ended during the fault" } else { "" },
            load(&counts.answered),
            load(&counts.slowest_ms),
            load(&counts.failed),
            load(&counts.cut),
            load(&counts.unanswered),
        );
        answered += load(&counts.answered);
        cut += load(&counts.cut);
        resumed += continued;
        problems.extend(found.into_iter().map(|what| format!("round {round} {fault:?}: {what}")));
    }
    let rounds = arguments.rounds;
    println!("disk-faults: {rounds} rounds, {answered} answered, {resumed} with a rest from the origin, {cut} cut");
    Ok(problems.exit())
}

/// Runs one round. Returns the counts, the number of bodies whose rest came from the origin, and the problems.
fn run(seed: u64, fault: DiskFault, ends_during: bool) -> Result<(Arc<FaultRoundCounts>, u64, Vec<String>)> {
    let scratch = ScratchFolder::new("disk-faults")?;
    let trigger = scratch.join("fault");
    let origin = DeterministicOrigin::start()?;
    let mut command = ProxyCommand::new(scratch.path(), Some(origin.url()))?;
    command.store = fault.store(&scratch.join("store"), &trigger, seed);
    command.size = "128M".into();
    command.memory = "16M".into();
    let mut nectary = command.start()?;
    let (counts, stop) = (Arc::new(FaultRoundCounts::default()), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (counts, stop, address) = (Arc::clone(&counts), Arc::clone(&stop), command.listen);
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ client << 32 | 1;
            std::thread::spawn(move || {
                let mut connection = HttpConnection::new(address, LIMIT);
                while !stop.load(Ordering::Acquire) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let url = (random >> 33) % URLS;
                    // One URL of 30 has several fragments, and the origin serves ranges of half of these.
                    let what = match url % 60 {
                        0 => "size=3000000&ranges",
                        30 => "size=3000000",
                        _ => "size=40000",
                    };
                    ask(&mut connection, &format!("/o/{url}?{what}"), &counts, &stop);
                }
            })
        })
        .collect();
    let mut problems = Vec::new();
    std::thread::sleep(PHASES[0]);
    std::fs::write(&trigger, b"")?;
    std::thread::sleep(PHASES[1] / 2);
    let begun = Instant::now();
    let purged = HttpConnection::new(command.listen, LIMIT).request("PURGE", "/o/1?size=40000", &[AUTHORIZATION]);
    if purged.is_err() || begun.elapsed() > LIMIT {
        problems.push(format!("a purge was not answered: {:?} after {:?}", purged.err(), begun.elapsed()));
    }
    if fault != DiskFault::Slow && state(&nectary)? == "healthy" {
        problems.push("the status says that all is well during the fault".to_owned());
    }
    std::thread::sleep(PHASES[1] / 2);
    if !ends_during {
        std::fs::remove_file(&trigger)?;
        std::thread::sleep(PHASES[2]);
        problems.extend(resumes(&nectary, fault).err().map(|error| format!("{error:#}")));
    }
    stop.store(true, Ordering::Release);
    clients.into_iter().for_each(|client| drop(client.join()));
    let resumed = find(&nectary.control()?.status()?, "resumed").and_then(|count| count.as_u64()).unwrap_or(0);
    let begun = Instant::now();
    if let Err(error) = nectary.terminate(END) {
        problems.push(format!("SIGTERM did not end it after {:?}: {error:#}", begun.elapsed()));
    }
    let _ = std::fs::remove_file(&trigger);
    let unanswered = counts.unanswered.load(Ordering::Acquire);
    if unanswered > 0 {
        problems.push(format!("{unanswered} requests were not answered in {LIMIT:?}"));
    }
    if counts.answered.load(Ordering::Acquire) < 100 {
        problems.push("there was hardly any load".to_owned());
    }
    for (count, what) in [(&counts.wrong, "answers had wrong bytes"), (&counts.cut_needlessly, "bodies were cut off")] {
        let count = count.load(Ordering::Acquire);
        if count > 0 {
            problems.push(format!("{count} {what}"));
        }
    }
    Ok((counts, resumed, problems))
}

fn ask(connection: &mut HttpConnection, target: &str, counts: &FaultRoundCounts, stop: &AtomicBool) {
    let begun = Instant::now();
    let result = connection.get(target);
    let taken = begun.elapsed();
    if stop.load(Ordering::Acquire) {
        return;
    }
    counts.slowest_ms.fetch_max(taken.as_millis() as u64, Ordering::AcqRel);
    let bytes = TargetAnswer::parse(target).bytes;
    let is_right = |body: &[u8]| content::first_difference(content::seed(target, 1), 0, body).is_none();
    let counter = match result {
        _ if taken > LIMIT => &counts.unanswered,
        Ok(response) if response.status == 200 && response.body.len() as u64 == bytes && is_right(&response.body) => {
            &counts.answered
        }
        Ok(response) if response.status == 200 => &counts.wrong,
        Ok(_) => &counts.failed,
        Err(RequestFailure::Truncated { response, .. }) if !is_right(&response.body) => &counts.wrong,
        Err(RequestFailure::Truncated { .. }) if target.ends_with("ranges") => &counts.cut_needlessly,
        Err(RequestFailure::Truncated { .. }) => &counts.cut,
        Err(_) => &counts.unanswered,
    };
    counter.fetch_add(1, Ordering::AcqRel);
}

/// Checks that objects are written again after the fault. A disk that failed too often takes no more writes.
fn resumes(nectary: &NectaryProxy, fault: DiskFault) -> Result<()> {
    if fault == DiskFault::Fail && state(nectary)? == "broken" {
        return Ok(());
    }
    let (mut control, mut client) = (nectary.control()?, nectary.client());
    let before = control.sequences()?.written;
    let begun = Instant::now();
    while control.sequences()?.written <= before {
        anyhow::ensure!(begun.elapsed() < Duration::from_secs(20), "nothing is written after the fault");
        client.get(&format!("/new/{}?size=40000", begun.elapsed().as_millis()))?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The state of the proxy: healthy, degraded or broken.
fn state(nectary: &NectaryProxy) -> Result<String> {
    let status = nectary.control()?.status()?;
    let state = find(&status, "state").and_then(|state| state.as_str());
    Ok(state.context("the status has no state")?.to_owned())
}
