//! Runs the rounds. The steps of a round are load, poll, kill, start, first hit, and verify.
//!
//! Owns the proxy, the origin and the clients across rounds, and the count of the store's used space. If the ring must
//! not complete a cycle, a new store is made before all puts together exceed half of its size.

use super::client::{ClientTally, KeyClient, KillRound};
use super::model::{KeyModel, ProcessStop, SequencePoll};
use super::purges::{PurgeReach, WidePurgeScope, WidePurges};
use super::{PlantedBug, RoundReport, SigkillCampaign};
use crate::guard;
use crate::http::HttpConnection;
use crate::nectary::{AUTHORIZATION, NectaryProxy, ProxyCommand, RingPosition, StoreSequences};
use crate::origin::DeterministicOrigin;
use crate::rng::SeededRng;
use crate::scratch::ScratchFolder;
use anyhow::{Context, Result, bail};
use std::io::{Seek, SeekFrom, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The bytes of the ring that a restart may skip, because open segments are not filled further after it.
const RESTART_BYTES: u64 = 32 << 20;
/// The highest number of the call at which the process is killed.
const CALLS_MAX: u64 = 12;
/// The interval at which the sequences are read.
const POLL_INTERVAL: Duration = Duration::from_millis(40);
/// The latest moment of the purge of everything, as a share of the round. Objects that are put later must be found.
const PURGE_ALL_AFTER_MAX: f64 = 0.6;
/// The extra time that a round may take on a slow machine until the ring has completed its cycles.
const LAPS_WAIT_MAX: Duration = Duration::from_secs(20);
/// The longest time that a start or a clean stop may take before the run gives up.
const READY_MAX: Duration = Duration::from_secs(30);
/// The range of the store's file that [`PlantedBug::ZeroedStore`] overwrites, in bytes.
const ZEROED_BYTES: std::ops::Range<u64> = (8 << 20)..(48 << 20);

/// The state that is passed from round to round.
pub(super) struct SigkillRunner<'a> {
    campaign: &'a SigkillCampaign,
    command: ProxyCommand,
    origin: DeterministicOrigin,
    clients: Vec<KeyClient>,
    purges: WidePurges,
    charged: u64,
    nectary: Option<NectaryProxy>,
}

impl<'a> SigkillRunner<'a> {
    /// Prepares an origin, a command line, and clients without keys; the proxy does not run yet.
    pub(super) fn new(campaign: &'a SigkillCampaign, scratch: &ScratchFolder) -> Result<Self> {
        let origin = DeterministicOrigin::start()?;
        let mut command = ProxyCommand::new(scratch.path(), Some(origin.url()))?;
        command.size = format!("{}M", campaign.load.store_bytes >> 20);
        command.memory.clone_from(&campaign.memory[0]);
        command.arguments.clone_from(&campaign.arguments);
        let clients = (0..campaign.load.clients).map(|_| KeyClient::new()).collect();
        Ok(Self { campaign, command, origin, clients, purges: WidePurges::default(), charged: 0, nectary: None })
    }

    /// Runs one round: load, kill, start, verify.
    pub(super) fn round(&mut self, number: u64) -> Result<RoundReport> {
        let mut rng = SeededRng::new(self.campaign.seed ^ number.wrapping_mul(0x9e37_79b9));
        let load = self.campaign.load;
        if load.laps_min == 0.0 && self.charged + load.round_bytes_max + RESTART_BYTES > load.store_bytes / 2 {
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
        let purge_all_after = (load.wide_purges > 0.0).then(|| PURGE_ALL_AFTER_MAX * rng.unit());
        let loaded = self.load_and_kill(nectary, load_for, purge_all_after)?;
        if self.campaign.plant == Some(PlantedBug::ZeroedStore) {
            zero_front(&self.command.store)?;
        }
        self.command.memory.clone_from(&self.campaign.memory[(number % 2) as usize]);
        let (at_kill, ring) = loaded.at_kill;
        let mut stop = ProcessStop { killed: Some((at_kill.written, &loaded.polls)), ring };
        let (nectary, first_hit) = self.restart(stop)?;
        stop.ring = nectary.control()?.progress()?.1;
        let is_planted = self.plant_after_restart(&nectary, stop)?;
        stop.ring = settled(&nectary)?;
        let mut tally = loaded.tally;
        tally.add(&self.verify(&nectary, stop)?);
        self.nectary = Some(nectary);
        self.charged += self.origin.body_bytes() - bytes_before + RESTART_BYTES;
        let keys = self.clients.iter().map(|client| client.keys().len()).sum();
        let (written, last) = (at_kill.written, at_kill.last);
        Ok(RoundReport { round: number, tally, keys, written, last, laps: loaded.laps, is_planted, first_hit })
    }

    /// Starts the proxy under `strace`, which kills it at the `nth` of these calls in any thread.
    fn start_to_be_killed(&self, calls: &str, nth: u64) -> Result<NectaryProxy> {
        let mut command = self.command.clone();
        let log = command.folder.join("strace.log").display().to_string();
        let inject = format!("inject={calls}:signal=SIGKILL:when={nth}");
        let words =
            ["strace", "-f", "-qq", "--seccomp-bpf", "-o", &log, "-e", &format!("trace={calls}"), "-e", &inject];
        command.wrapper = words.map(str::to_owned).to_vec();
        let mut nectary = command.spawn()?;
        match nectary.wait_ready(READY_MAX) {
            // It may be killed before it is ready; that is a valid crash state too.
            Err(_) if nectary.process.try_status().is_some() => self.command.start(),
            Err(error) => Err(error),
            Ok(()) => Ok(nectary),
        }
    }

    /// Loads the proxy with all clients for a time, reads the sequences a last time, and kills it.
    fn load_and_kill(
        &mut self,
        mut nectary: NectaryProxy,
        load_for: Duration,
        purge_all_after: Option<f64>,
    ) -> Result<LoadResult> {
        // `strace` may have killed the process already; then all values are 0.
        let ring_before = nectary.control().and_then(|mut control| control.progress()).unwrap_or_default().1;
        let mut clients = std::mem::take(&mut self.clients);
        let pace = (Instant::now(), load_for);
        let mut round = self.round_of(pace);
        round.may_break = self.campaign.kill_at_calls.is_some();
        round.purge_all_after = Mutex::new(purge_all_after);
        round.head = AtomicU64::new(ring_before.head);
        round.whole_bytes_max = ring_before.whole_bytes_max;
        let address = nectary.listen;
        let mut tally = ClientTally::default();
        let polled = std::thread::scope(|scope| {
            let round = &round;
            let threads: Vec<_> =
                clients.iter_mut().map(|client| scope.spawn(|| client.load(address, round))).collect();
            let polled = poll(&mut nectary, load_for, ring_before, round);
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
        self.clients = clients;
        let log = nectary.process.log_text();
        if let Some(line) = log.lines().find(|line| line.contains("panicked at")) {
            bail!("nectary panicked: {line}");
        }
        let (polls, at_kill) = polled.with_context(|| nectary.process.log_tail())?;
        self.purges.killed();
        for client in &mut self.clients {
            client.take_note_of(&self.purges);
            tally.add(&client.judge_missed(&polls));
        }
        let laps = at_kill.1.laps_since(ring_before);
        Ok(LoadResult { tally, polls, at_kill, laps })
    }

    /// Makes the state that clients share in a round; it has no planted bug yet.
    fn round_of(&self, pace: (Instant, Duration)) -> KillRound<'_> {
        KillRound {
            load: self.campaign.load,
            origin: &self.origin,
            runtime: self.command.runtime_folder(),
            purges: &self.purges,
            whole_bytes_max: u64::MAX,
            head: AtomicU64::new(0),
            killed: AtomicBool::new(false),
            may_break: false,
            body_bytes_begin: self.origin.body_bytes(),
            pace,
            purge_all_after: Mutex::new(None),
            flip_byte: AtomicBool::new(false),
        }
    }

    /// Starts the proxy again; returns the time from exec to the first hit of a key that must hit.
    fn restart(&mut self, stop: ProcessStop<'_>) -> Result<(NectaryProxy, Option<Duration>)> {
        let keys = self.clients.iter().flat_map(|client| client.keys());
        let mut demanded = keys.filter(|key| key.after(stop).must_hit).map(|key| key.target.as_str());
        let mut nectary = self.command.spawn()?;
        let mut connection = HttpConnection::new(nectary.listen, Duration::from_secs(5));
        let mut target = demanded.next();
        while let Some(asked) = target {
            // This request must not fetch an object on a miss, because the verification gets the object later. A miss
            // is possible if the ring has overwritten the object since the last poll.
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

    /// Compares every key with its model; nothing may be stored during this time.
    fn verify(&mut self, nectary: &NectaryProxy, stop: ProcessStop<'_>) -> Result<ClientTally> {
        let requests_before = self.origin.requests();
        let mut clients = std::mem::take(&mut self.clients);
        let mut round = self.round_of((Instant::now(), Duration::ZERO));
        round.flip_byte = AtomicBool::new(self.campaign.plant == Some(PlantedBug::WrongByte));
        let mut tally = ClientTally::default();
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                clients.iter_mut().map(|client| scope.spawn(|| client.verify(nectary.listen, &round, stop))).collect();
            for thread in threads {
                match thread.join() {
                    Ok(counted) => tally.add(&counted),
                    Err(_) => tally.wrong += 1,
                }
            }
        });
        self.clients = clients;
        // The rest of a body whose first record is whole, but not all others, comes from the origin.
        let are_records_damaged = self.campaign.plant == Some(PlantedBug::ZeroedStore);
        let asked = if are_records_damaged { 0 } else { self.origin.requests() - requests_before };
        let ring = nectary.control()?.progress()?.1;
        if asked > 0 || ring != stop.ring {
            bail!("the origin was asked {asked} times while keys were compared; {:?} became {ring:?}", stop.ring);
        }
        Ok(tally)
    }

    /// Stops cleanly, starts again, and expects everything that was stored and not overwritten by the ring.
    pub(super) fn clean_stop(&mut self) -> Result<ClientTally> {
        let Some(mut nectary) = self.nectary.take() else { return Ok(ClientTally::default()) };
        stop_cleanly(&mut nectary)?;
        let mut nectary = self.command.start()?;
        let ring = nectary.control()?.progress()?.1;
        let tally = self.verify(&nectary, ProcessStop { killed: None, ring })?;
        stop_cleanly(&mut nectary)?;
        Ok(tally)
    }

    fn renew_store(&mut self) -> Result<()> {
        if let Some(mut nectary) = self.nectary.take() {
            stop_cleanly(&mut nectary)?;
        }
        std::fs::remove_file(&self.command.store)?;
        self.clients.iter_mut().for_each(KeyClient::forget);
        self.charged = 0;
        Ok(())
    }

    /// Plants the bug of the campaign, unless it is planted at another moment; true if there was a key for it.
    fn plant_after_restart(&mut self, nectary: &NectaryProxy, stop: ProcessStop<'_>) -> Result<bool> {
        let Some(plant) = self.campaign.plant else { return Ok(false) };
        let mut keys = self.clients.iter_mut().flat_map(|client| client.keys_mut());
        let is_wanted = |key: &&mut KeyModel| match plant {
            PlantedBug::ForgottenPurge => key.is_purged(),
            _ => key.after(stop).must_hit,
        };
        let Some(key) = keys.find(is_wanted) else { return Ok(false) };
        let now = Instant::now();
        let mut client = nectary.client();
        let scope = match plant {
            PlantedBug::WrongByte | PlantedBug::ZeroedStore => return Ok(true),
            PlantedBug::LostObject => {
                return Ok(client.request("PURGE", &key.target, &[AUTHORIZATION]).map(|_| true)?);
            }
            PlantedBug::ForgottenPurge => {
                while !client.get(&key.target)?.is_hit() {}
                return Ok(true);
            }
            PlantedBug::VersionNeverPut => {
                key.believe_in_a_version_never_put(now);
                return Ok(true);
            }
            PlantedBug::KeyNeverPurged => {
                key.purged(PurgeReach { dead_before: Some(now), ..PurgeReach::default() });
                return Ok(true);
            }
            PlantedBug::TagNeverPurged => WidePurgeScope::Tag(key.tag),
            PlantedBug::PrefixNeverPurged => WidePurgeScope::Prefix(key.prefix),
            PlantedBug::AllNeverPurged => WidePurgeScope::All,
        };
        self.purges.returned(scope, self.purges.sent(scope));
        self.clients.iter_mut().for_each(|client| client.take_note_of(&self.purges));
        Ok(true)
    }
}

/// The results of the load.
struct LoadResult {
    tally: ClientTally,
    polls: Vec<SequencePoll>,
    /// The last poll, just before the kill.
    at_kill: (StoreSequences, RingPosition),
    laps: f64,
}

/// Polls until the time is over and the ring has completed its cycles, or until `strace` has killed the process. Also
/// returns the last poll, just before the kill.
fn poll(
    nectary: &mut NectaryProxy,
    load_for: Duration,
    ring_before: RingPosition,
    round: &KillRound<'_>,
) -> Result<(Vec<SequencePoll>, (StoreSequences, RingPosition))> {
    let mut control = nectary.control()?;
    let end = Instant::now() + load_for;
    let mut polls = Vec::new();
    let mut at_kill = Default::default();
    loop {
        let began = Instant::now();
        match control.progress() {
            Ok(progress) => at_kill = progress,
            Err(_) if round.may_break && nectary.process.wait(READY_MAX).is_ok() => return Ok((polls, at_kill)),
            Err(error) => return Err(error),
        }
        let (sequences, ring) = at_kill;
        round.head.store(ring.head, Ordering::SeqCst);
        polls.push(SequencePoll { began, last: sequences.last, ring });
        let is_over = ring.laps_since(ring_before) >= round.load.laps_min || began >= end + LAPS_WAIT_MAX;
        if began >= end && is_over {
            return Ok((polls, at_kill));
        }
        let left = end.saturating_duration_since(began);
        std::thread::sleep(if left.is_zero() { POLL_INTERVAL } else { POLL_INTERVAL.min(left) });
    }
}

/// Waits until all puts are written; returns the position of the ring.
fn settled(nectary: &NectaryProxy) -> Result<RingPosition> {
    let mut control = nectary.control()?;
    let deadline = Instant::now() + READY_MAX;
    loop {
        let (sequences, ring) = control.progress()?;
        if sequences.written >= sequences.last {
            return Ok(ring);
        }
        if Instant::now() > deadline {
            bail!("{sequences:?}: not written {READY_MAX:?} after the last request");
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn stop_cleanly(nectary: &mut NectaryProxy) -> Result<()> {
    let status = nectary.terminate(READY_MAX)?;
    if !status.success() {
        bail!("SIGTERM: {}\n{}", guard::describe(status), nectary.process.log_tail());
    }
    Ok(())
}

/// Overwrites the beginning of the store after its superblock, where the first round's objects are.
fn zero_front(store: &str) -> Result<()> {
    let mut file = std::fs::File::options().write(true).open(store)?;
    let end = ZEROED_BYTES.end.min(file.metadata()?.len());
    file.seek(SeekFrom::Start(ZEROED_BYTES.start))?;
    file.write_all(&vec![0; (end - ZEROED_BYTES.start) as usize])?;
    Ok(())
}
