//! Runs the rounds: load, poll, kill, start, first hit, verify.
//!
//! Owns the proxy, the origin and the clients from round to round, and the room in the store: it makes a new one before
//! everything ever put into it would pass half of its size.

use super::client::{Client, ROUND_BYTES_MAX, Round, Stop, Tally};
use super::model::Poll;
use super::{Campaign, Plant, RoundReport};
use crate::guard;
use crate::http::Connection;
use crate::nectary::{Nectary, ProxyCommand, Sequences};
use crate::origin::Origin;
use crate::rng::Rng;
use crate::scratch::Scratch;
use anyhow::{Context, Result, bail};
use std::io::{Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Size of the store.
const STORE_BYTES: u64 = 1 << 30;
/// What a restart may cost of the store: segments that were open are not filled up.
const RESTART_BYTES: u64 = 32 << 20;
/// Clients that load the proxy at once.
const CLIENTS: usize = 4;
/// The highest number of a call at which the process is killed.
const CALLS_MAX: u64 = 12;
/// How often the sequences are read.
const POLL_INTERVAL: Duration = Duration::from_millis(40);
/// The longest time that a start or a clean stop may take before the run gives up.
const READY_MAX: Duration = Duration::from_secs(30);
/// What [`Plant::ZeroedStore`] overwrites.
const ZEROED_BYTES: std::ops::Range<u64> = (8 << 20)..(48 << 20);

/// The state that rounds hand on.
pub(super) struct Runner<'a> {
    campaign: &'a Campaign,
    command: ProxyCommand,
    origin: Origin,
    clients: Vec<Client>,
    charged: u64,
    nectary: Option<Nectary>,
}

impl<'a> Runner<'a> {
    /// An origin, a command line, clients without keys; nothing runs yet.
    pub(super) fn new(campaign: &'a Campaign, scratch: &Scratch) -> Result<Self> {
        let origin = Origin::start()?;
        let mut command = ProxyCommand::new(scratch.path(), Some(origin.url()))?;
        command.size = format!("{}M", STORE_BYTES >> 20);
        command.memory.clone_from(&campaign.memory[0]);
        command.arguments.clone_from(&campaign.arguments);
        let clients = (0..CLIENTS).map(|_| Client::new()).collect();
        Ok(Self { campaign, command, origin, clients, charged: 0, nectary: None })
    }

    /// One round: load, kill, start, verify.
    pub(super) fn round(&mut self, number: u64) -> Result<RoundReport> {
        let mut rng = Rng::new(self.campaign.seed ^ number.wrapping_mul(0x9e37_79b9));
        if self.charged + ROUND_BYTES_MAX + RESTART_BYTES > STORE_BYTES / 2 {
            self.renew_store()?;
        }
        for (index, client) in self.clients.iter_mut().enumerate() {
            client.begin_round(format!("{number}-{index}"), rng.split());
        }
        let bytes_before = self.origin.body_bytes();
        let nectary = match (self.nectary.take(), &self.campaign.kill_at_calls) {
            (Some(nectary), None) => nectary,
            (None, None) => self.command.start()?,
            (running, Some(calls)) => {
                running.map_or(Ok(()), |mut nectary| stop_cleanly(&mut nectary))?;
                self.start_to_be_killed(calls, 1 + rng.below(CALLS_MAX))?
            }
        };
        let load_for = Duration::from_millis(500 + rng.below(2500));
        let (mut tally, polls, at_kill) = self.load_and_kill(nectary, load_for)?;
        if self.campaign.plant == Some(Plant::ZeroedStore) {
            zero_front(&self.command.store)?;
        }
        self.command.memory.clone_from(&self.campaign.memory[(number % 2) as usize]);
        let stop = Stop::Killed { written: at_kill.written, polls: &polls };
        let (nectary, first_hit) = self.restart(stop)?;
        self.plant_after_restart(&nectary, stop)?;
        tally.add(&self.verify(&nectary, stop));
        self.nectary = Some(nectary);
        self.charged += self.origin.body_bytes() - bytes_before + RESTART_BYTES;
        let keys = self.clients.iter().map(|client| client.keys().len()).sum();
        Ok(RoundReport { round: number, tally, keys, written: at_kill.written, last: at_kill.last, first_hit })
    }

    /// Starts the proxy under `strace`, which kills it at the `nth` of these calls of any thread.
    fn start_to_be_killed(&self, calls: &str, nth: u64) -> Result<Nectary> {
        let mut command = self.command.clone();
        let log = command.folder.join("strace.log").display().to_string();
        let inject = format!("inject={calls}:signal=SIGKILL:when={nth}");
        let words =
            ["strace", "-f", "-qq", "--seccomp-bpf", "-o", &log, "-e", &format!("trace={calls}"), "-e", &inject];
        command.wrapper = words.map(str::to_owned).to_vec();
        let mut nectary = command.spawn()?;
        match nectary.wait_ready(READY_MAX) {
            // It may be killed before it is ready: that is a crash state as good as any.
            Err(_) if nectary.process.try_status().is_some() => self.command.start(),
            Err(error) => Err(error),
            Ok(()) => Ok(nectary),
        }
    }

    /// Loads the proxy from all clients for a time, reads the sequences a last time, and kills it.
    fn load_and_kill(&mut self, mut nectary: Nectary, load_for: Duration) -> Result<(Tally, Vec<Poll>, Sequences)> {
        let round = Round {
            origin: &self.origin,
            killed: AtomicBool::new(false),
            may_break: self.campaign.kill_at_calls.is_some(),
            body_bytes_begin: self.origin.body_bytes(),
            pace: (Instant::now(), load_for),
            flip_byte: AtomicBool::new(false),
        };
        let address = nectary.listen;
        let mut tally = Tally::default();
        let polled = std::thread::scope(|scope| {
            let clients = self.clients.iter_mut();
            let threads: Vec<_> = clients.map(|client| scope.spawn(|| client.load(address, &round))).collect();
            let polled = poll(&mut nectary, load_for, round.may_break);
            round.killed.store(true, Ordering::SeqCst);
            nectary.process.kill();
            for thread in threads {
                match thread.join() {
                    Ok(counted) => tally.add(&counted),
                    Err(_) => tally.wrong += 1,
                }
            }
            polled
        });
        let log = nectary.process.log_text();
        if let Some(line) = log.lines().find(|line| line.contains("panicked at")) {
            bail!("nectary panicked: {line}");
        }
        let (polls, at_kill) = polled.with_context(|| nectary.process.log_tail())?;
        Ok((tally, polls, at_kill))
    }

    /// Starts the proxy again; gives the time from exec to the first hit of a key that has to hit.
    fn restart(&mut self, stop: Stop<'_>) -> Result<(Nectary, Option<Duration>)> {
        let keys = self.clients.iter().flat_map(|client| client.keys());
        let mut demanded = keys.filter(|key| stop.expectation(key).must_hit).map(|key| key.target.as_str());
        let mut nectary = self.command.spawn()?;
        let mut connection = Connection::new(nectary.listen, Duration::from_secs(5));
        let mut target = demanded.next();
        while let Some(asked) = target {
            // A miss must not fetch what the verification will look for.
            match connection.request("GET", asked, &[("Cache-Control", "only-if-cached")]) {
                Ok(response) if response.is_hit() => {
                    let taken = nectary.process.started().elapsed();
                    return Ok((nectary, Some(taken)));
                }
                Ok(_) => target = demanded.next(),
                Err(_) if nectary.process.started().elapsed() > READY_MAX => {
                    bail!("no answer {READY_MAX:?} after exec\n{}", nectary.process.log_tail())
                }
                Err(_) => {
                    if let Some(status) = nectary.process.try_status() {
                        let end = guard::describe(status);
                        bail!("nectary ended with {end} after a kill\n{}", nectary.process.log_tail());
                    }
                    std::thread::sleep(Duration::from_micros(500));
                }
            }
        }
        nectary.wait_ready(READY_MAX)?;
        Ok((nectary, None))
    }

    fn verify(&mut self, nectary: &Nectary, stop: Stop<'_>) -> Tally {
        let round = Round {
            origin: &self.origin,
            killed: AtomicBool::new(false),
            may_break: false,
            body_bytes_begin: 0,
            pace: (Instant::now(), Duration::ZERO),
            flip_byte: AtomicBool::new(self.campaign.plant == Some(Plant::WrongByte)),
        };
        let mut tally = Tally::default();
        std::thread::scope(|scope| {
            let clients = self.clients.iter_mut();
            let threads: Vec<_> =
                clients.map(|client| scope.spawn(|| client.verify(nectary.listen, &round, stop))).collect();
            for thread in threads {
                match thread.join() {
                    Ok(counted) => tally.add(&counted),
                    Err(_) => tally.wrong += 1,
                }
            }
        });
        tally
    }

    /// Stops cleanly, starts again, and expects everything that was ever stored.
    pub(super) fn clean_stop(&mut self) -> Result<Tally> {
        let Some(mut nectary) = self.nectary.take() else { return Ok(Tally::default()) };
        stop_cleanly(&mut nectary)?;
        let mut nectary = self.command.start()?;
        let tally = self.verify(&nectary, Stop::Clean);
        stop_cleanly(&mut nectary)?;
        Ok(tally)
    }

    fn renew_store(&mut self) -> Result<()> {
        if let Some(mut nectary) = self.nectary.take() {
            stop_cleanly(&mut nectary)?;
        }
        std::fs::remove_file(&self.command.store)?;
        self.clients.iter_mut().for_each(Client::forget);
        self.charged = 0;
        Ok(())
    }

    /// Makes the bugs that need a running proxy.
    fn plant_after_restart(&self, nectary: &Nectary, stop: Stop<'_>) -> Result<()> {
        let mut keys = self.clients.iter().flat_map(|client| client.keys());
        let mut client = nectary.client();
        match self.campaign.plant {
            Some(Plant::LostObject) => {
                let key = keys.find(|key| stop.expectation(key).must_hit).context("no key to lose")?;
                client.request("PURGE", &key.target, &[])?;
            }
            Some(Plant::ForgottenPurge) => {
                let key = keys.find(|key| stop.expectation(key).must_miss).context("no purged key")?;
                while !client.get(&key.target)?.is_hit() {}
            }
            Some(Plant::WrongByte | Plant::ZeroedStore) | None => {}
        }
        Ok(())
    }
}

/// Polls the sequences until the time is over, or, where it `may_end`, until the process has ended; the last poll is the
/// one just before the kill.
fn poll(nectary: &mut Nectary, load_for: Duration, may_end: bool) -> Result<(Vec<Poll>, Sequences)> {
    let mut control = nectary.control()?;
    let end = Instant::now() + load_for;
    let mut polls = Vec::new();
    let mut at_kill = Sequences::default();
    loop {
        let began = Instant::now();
        match control.sequences() {
            Ok(sequences) => at_kill = sequences,
            Err(_) if may_end && nectary.process.wait(READY_MAX).is_ok() => return Ok((polls, at_kill)),
            Err(error) => return Err(error),
        }
        polls.push(Poll { began, last: at_kill.last });
        if began >= end {
            return Ok((polls, at_kill));
        }
        std::thread::sleep(POLL_INTERVAL.min(end - began));
    }
}

fn stop_cleanly(nectary: &mut Nectary) -> Result<()> {
    let status = nectary.terminate(READY_MAX)?;
    if !status.success() {
        bail!("SIGTERM: {}\n{}", guard::describe(status), nectary.process.log_tail());
    }
    Ok(())
}

/// Overwrites the front of the store behind its superblock, where the first round's objects are.
fn zero_front(store: &str) -> Result<()> {
    let mut file = std::fs::File::options().write(true).open(store)?;
    file.seek(SeekFrom::Start(ZEROED_BYTES.start))?;
    file.write_all(&vec![0; (ZEROED_BYTES.end - ZEROED_BYTES.start) as usize])?;
    Ok(())
}
