//! The rounds of a run: calls on all mounts, a comparison, a burst of calls, a fault, and comparisons.
//!
//! The comparison before a burst makes everything durable, because other hosts see all of it. Where a fault can lose
//! something, the burst is on one mount alone, and the tree is recorded after each of its calls: what another host sees
//! after the fault must be [what may be left](super::burst). Then the directory beside the volume gets this tree, and
//! the run goes on.
//!
//! What may be lost (`docs/volume.md`): names and attributes only if the mount was killed together with the server, or
//! keeps names by itself (`--local-names`); data only of a mount that was killed, or whose session was ended; nothing
//! that was done [a while](DURABLE_AFTER) before; nothing in all other faults, in which open files must go on, too.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::burst::CallBurst;
use super::hosts::{HeldProbe, TreeFault, TreeHosts, signal};
use super::sides::{CallEnd, TreeSides};
use super::snapshot::{TreeReader, TreeSnapshot};
use super::{PlantedMistake, TreeCallCounts, TreePlan};
use crate::rng::SeededRng;
use crate::volume::keeps_names_local;

/// The number of calls between two comparisons, if there are no faults.
const COMPARE_EVERY: u64 = 500;
/// The number of calls after which the paths that exist are listed again.
const KNOWN_CALLS: u64 = 20;
/// The least and the largest number of calls of a burst.
const BURST_CALLS: [u64; 2] = [6, 30];
/// Longer than the time after which a host that alone uses a directory keeps its names by itself.
const ALONE: Duration = Duration::from_millis(700);
/// Names and data are durable about a second after the call; the rest is for a busy machine.
const DURABLE_AFTER: Duration = Duration::from_secs(4);
/// The longest time from the begin of a call to the signal that interrupts it. *Units*: microseconds.
const SIGNAL_AFTER_US: u64 = 1500;
/// The longest time from a call to the fault beside it. *Units*: milliseconds.
const FAULT_AFTER_MS: u64 = 10;

/// A run.
struct TreeRun<'a> {
    plan: &'a TreePlan,
    hosts: TreeHosts,
    sides: TreeSides,
    rng: SeededRng,
    /// Paths that existed lately, and the number of calls after which they are listed again.
    known: Vec<PathBuf>,
    known_until: u64,
}

/// Does what the plan says, on a new volume. *Errors*: the first difference, or the volume's check found a problem.
pub fn run(plan: &TreePlan) -> Result<TreeCallCounts> {
    let mut run = TreeRun::new(plan)?;
    let done = run.rounds();
    let stalled = run.sides.check_beat();
    let ended = stalled.and(done).and_then(|()| run.end());
    let at = || format!("seed {}, after {} calls", plan.seed, run.sides.counts.calls);
    ended.map_err(|error| anyhow!("{error:#}\n{}", run.hosts.last_words())).with_context(at)?;
    Ok(run.sides.counts)
}

impl TreeRun<'_> {
    fn new(plan: &TreePlan) -> Result<TreeRun<'_>> {
        ensure!(plan.hosts >= 1 && (plan.faults == 0 || plan.hosts >= 2), "{} hosts are too few", plan.hosts);
        let hosts = TreeHosts::new(plan.hosts)?;
        let roots: Vec<PathBuf> = hosts.places.iter().map(|place| place.join("tree")).collect();
        let model = hosts.volume.scratch.join("beside");
        for root in [&roots[0], &model] {
            fs::create_dir(root).with_context(|| root.display().to_string())?;
        }
        let sides = TreeSides::new(roots, model, hosts.beat());
        Ok(TreeRun { plan, hosts, sides, rng: SeededRng::new(plan.seed), known: Vec::new(), known_until: 0 })
    }

    fn rounds(&mut self) -> Result<()> {
        let TreePlan { calls, faults, planted, .. } = *self.plan;
        let mut kinds = Vec::new();
        for number in 0..faults {
            if kinds.is_empty() {
                kinds.clone_from(&self.plan.kinds);
            }
            let fault = kinds.swap_remove(self.rng.index(kinds.len()));
            // What is drawn in a round does not depend on what was lost in those before.
            let mut rng = self.rng.split();
            let until = (calls * (number + 1)).div_ceil(faults);
            self.round(fault, number, until, &mut rng).with_context(|| format!("fault {number}, {fault:?}"))?;
        }
        let mut rng = self.rng.split();
        while self.sides.counts.calls < calls {
            self.sides.is_wrong = planted == Some(PlantedMistake::WrongByte) && self.sides.counts.calls > calls / 3;
            self.call(&mut rng)?;
            if self.sides.counts.calls.is_multiple_of(COMPARE_EVERY) {
                self.compare()?;
            }
        }
        self.compare()
    }

    /// Makes a call on any host.
    fn call(&mut self, rng: &mut SeededRng) -> Result<()> {
        if self.sides.counts.calls >= self.known_until {
            self.known = self.known()?;
            self.known_until = self.sides.counts.calls + KNOWN_CALLS;
        }
        let host = rng.index(self.plan.hosts);
        let drawn = self.sides.draw(rng, host, false, &self.known);
        self.sides.make(&drawn, host, false).map(drop)
    }

    /// Compares the tree that each host shows with the directory beside the volume. What a host has not shown to others
    /// before is durable then.
    fn compare(&mut self) -> Result<()> {
        let expected = TreeReader::default().read(&self.sides.model)?;
        for host in 0..self.plan.hosts {
            let found = self.look(host)?;
            if let Some(difference) = found.differs(&expected) {
                bail!("the tree of host {host}: {difference}");
            }
        }
        Ok(())
    }

    fn look(&mut self, host: usize) -> Result<TreeSnapshot> {
        let found = TreeReader::default().read(&self.sides.roots[host]);
        let found = found.with_context(|| format!("the tree of host {host}"))?;
        self.sides.counts.compared += 1;
        self.sides.counts.entries += found.entries.len() as u64;
        self.sides.check_beat()?;
        Ok(found)
    }

    fn round(&mut self, fault: TreeFault, number: u64, until: u64, rng: &mut SeededRng) -> Result<()> {
        let [least, most] = BURST_CALLS;
        let calls = least + rng.below(most - least + 1);
        while self.sides.counts.calls + calls < until {
            self.call(rng)?;
        }
        self.compare().context("before it")?;
        let host = rng.index(self.plan.hosts);
        match fault.is_beside_calls() {
            true => self.beside(fault, host, calls, rng)?,
            false => self.after_burst(fault, number, (host, calls), rng)?,
        }
        *self.sides.counts.faults.entry(fault).or_default() += 1;
        self.compare().context("after it")?;
        self.hosts.check()
    }

    /// Makes calls during a fault that loses nothing.
    fn beside(&mut self, fault: TreeFault, host: usize, calls: u64, rng: &mut SeededRng) -> Result<()> {
        let known = self.known()?;
        let (first, after) = (rng.below(calls), Duration::from_millis(rng.below(FAULT_AFTER_MS)));
        let (draw, plan) = (rng.next_u64(), self.plan);
        let TreeRun { hosts, sides, .. } = self;
        std::thread::scope(|scope| {
            let mut disturbance = None;
            let mut hosts = Some(hosts);
            for number in 0..calls {
                if let Some(hosts) = hosts.take_if(|_| number == first) {
                    disturbance = Some(scope.spawn(move || {
                        std::thread::sleep(after);
                        hosts.disturb(fault, host, draw)
                    }));
                }
                let is_alone = fault == TreeFault::LoneCut;
                let caller = if is_alone { host } else { rng.index(plan.hosts) };
                let drawn = sides.draw(rng, caller, is_alone, &known);
                sides.make(&drawn, caller, false)?;
            }
            disturbance.map_or(Ok(()), |thread| thread.join().map_err(|_| anyhow!("the fault panicked"))?)
        })
    }

    /// The paths that exist, in order.
    fn known(&self) -> Result<Vec<PathBuf>> {
        let (model, mut paths) = (&self.sides.model, Vec::new());
        let mut directories = vec![model.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    directories.push(entry.path());
                }
                paths.push(entry.path().strip_prefix(model)?.to_owned());
            }
        }
        paths.sort();
        Ok(paths)
    }

    /// Makes a burst of calls on one host, lets it be lost, and judges what is left.
    fn after_burst(
        &mut self,
        fault: TreeFault,
        number: u64,
        (host, calls): (usize, u64),
        rng: &mut SeededRng,
    ) -> Result<()> {
        let others: Vec<usize> = (0..self.plan.hosts).filter(|other| *other != host).collect();
        let other = others[rng.index(others.len())];
        let probe = match fault.kills_mount() {
            true => None,
            false => Some(HeldProbe::new(&self.hosts.places[host], number)?),
        };
        let mut burst = self.burst(fault, number, (host, other, calls), rng)?;
        if !keeps_names_local() && fault != TreeFault::BothKill {
            burst.states.keep_names(burst.last_returned);
        }
        let found = match probe {
            None => {
                self.sides.close(host);
                self.hosts.recover(fault, host)?;
                self.look(other)?
            }
            Some(probe) => {
                probe.hold()?;
                self.hosts.set_away(fault, host, true);
                let found =
                    probe.need(&self.hosts.places[other]).and_then(|is_there| Ok((is_there, self.look(other)?)));
                self.hosts.set_away(fault, host, false);
                let (is_committed, found) = found.context("while the host was away")?;
                probe.end(is_committed)?;
                self.sides.close(host);
                self.hear_of_loss(host)?;
                found
            }
        };
        let remains = burst.states.explain(&found).map_err(|reason| anyhow!("the tree of host {other}: {reason}"))?;
        self.sides.counts.lost_calls += remains.calls;
        self.sides.counts.lost_files += remains.files;
        self.sides.counts.strict += u64::from(burst.states.is_all_kept());
        if !remains.is_all() || found.differs(burst.states.last_state()).is_some() {
            // Open files beside the volume may have bytes that are lost on it.
            self.sides.close_all();
            fs::remove_dir_all(&self.sides.model)?;
            fs::create_dir(&self.sides.model)?;
            found.build(&self.sides.model)?;
        }
        Ok(())
    }

    /// Makes the calls of a burst, and records the tree after each of them. For a kill, sends the signals.
    fn burst(
        &mut self,
        fault: TreeFault,
        number: u64,
        (host, other, calls): (usize, usize, u64),
        rng: &mut SeededRng,
    ) -> Result<RecordedBurst> {
        self.sides.begin_burst();
        let mut reader = TreeReader::keeping();
        let mut states = CallBurst::new(reader.read(&self.sides.model)?);
        let is_raced = fault.kills_mount() && self.plan.planted.is_none() && rng.chance(0.5);
        let [pause, look] = [0.7, 0.25].map(|chance| rng.chance(chance).then(|| rng.below(calls)));
        // Without a pause the host keeps no name by itself.
        let pause = pause.filter(|_| keeps_names_local());
        let mut end = CallEnd::Returned;
        let processes = self.hosts.killed(fault, host, rng.chance(0.5));
        for call in 0..calls {
            if pause == Some(call) {
                std::thread::sleep(ALONE);
            }
            if let Some(mistake) = self.plan.planted.filter(|_| call == calls / 2) {
                self.sides.plant(mistake, host, number)?;
            }
            let known: Vec<PathBuf> = states.last_state().entries.keys().cloned().collect();
            let drawn = self.sides.draw(rng, host, true, &known);
            let before = self.sides.before(&drawn);
            let killer = (is_raced && call + 1 == calls).then(|| {
                let (after, processes) = (Duration::from_micros(rng.below(SIGNAL_AFTER_US)), processes.clone());
                std::thread::spawn(move || {
                    std::thread::sleep(after);
                    processes.into_iter().for_each(|process| signal(process, libc::SIGKILL));
                })
            });
            let succeeded = self.succeeded();
            let is_killed = killer.is_some();
            let made = self.sides.make(&drawn, host, is_killed);
            if let Some(killer) = killer {
                killer.join().map_err(|_| anyhow!("the signals panicked"))?;
            }
            end = made?;
            let has_succeeded = end == CallEnd::Returned && self.succeeded() > succeeded;
            if let Some(inode) = self.sides.changed(&drawn, before) {
                reader.forget(inode);
            }
            let marks = if has_succeeded { self.sides.marks(&drawn, before) } else { Vec::new() };
            states.add(reader.read(&self.sides.model)?, marks);
            if look == Some(call) && !is_killed {
                self.compare_with(other, states.last_state())?;
                states.keep_all();
            }
        }
        let last_returned = states.last() - usize::from(end == CallEnd::Interrupted);
        if !is_raced {
            match rng.below(6) {
                _ if self.plan.planted.is_some() => self.sync(&mut states, host)?,
                0 => self.sync(&mut states, host)?,
                1 => {
                    std::thread::sleep(DURABLE_AFTER);
                    states.keep_all();
                }
                _ => {}
            }
            if fault.kills_mount() {
                processes.into_iter().for_each(|process| signal(process, libc::SIGKILL));
            }
        }
        Ok(RecordedBurst { states, last_returned })
    }

    fn compare_with(&mut self, host: usize, expected: &TreeSnapshot) -> Result<()> {
        match self.look(host)?.differs(expected) {
            Some(difference) => bail!("in a burst of another host, the tree of host {host}: {difference}"),
            None => Ok(()),
        }
    }

    /// Lets `fsync` of a directory report, once, that changes of names of the ended session may be lost.
    fn hear_of_loss(&self, host: usize) -> Result<()> {
        let sync = || File::open(&self.sides.roots[host]).context("the root")?.sync_all().context("fsync of the root");
        sync().or_else(|_| sync())
    }

    fn sync(&self, states: &mut CallBurst, host: usize) -> Result<()> {
        let root = File::open(&self.sides.roots[host]).context("the root")?;
        root.sync_all().context("fsync of the root")?;
        states.keep_names(states.last());
        Ok(())
    }

    fn succeeded(&self) -> u64 {
        self.sides.counts.succeeded.values().sum()
    }

    /// Removes the tree, and ends the volume.
    fn end(&mut self) -> Result<()> {
        self.sides.close_all();
        fs::remove_dir_all(&self.sides.roots[self.plan.hosts - 1])?;
        ensure!(!self.sides.roots[0].exists(), "{} is not removed", self.sides.roots[0].display());
        self.hosts.finish()
    }
}

/// A burst that has ended, with the fault if it is a kill.
struct RecordedBurst {
    states: CallBurst,
    /// The number of the state after the last call that returned.
    last_returned: usize,
}
