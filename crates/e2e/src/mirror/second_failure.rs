//! A donor's process is killed while another one is moved, and while a device grows.
//!
//! Owns: the cases, the moment of the kill, and the checks: the device answers, nothing that was acknowledged is lost,
//! and another client finds everything. The moved donor's copy is slowed down, so that there is a moment to kill in.
//!
//! | move | begins with | another one may be killed |
//! |---|---|---|
//! | `Replace` | `nectary ram replace` | a member, or the donor that takes the place |
//! | `Drain` | `nectary ram drain` | a member, or the spare |
//! | `Sigterm` | SIGTERM of a donor | a member, or the spare |
//! | `Spare` | SIGKILL of a donor, 30 s before | the spare that is filled; another one follows |
//! | `Grow` | `nectary ram grow` of a detached device | a member |

use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::pattern::{DevicePattern, PAUSE, PatternWriter};
use super::{DonorFault, DonorRig, ProbeCounts};
use crate::attach::TestFileSystem;
use crate::guard::{GuardedProcess, describe};
use crate::nectary::{ControlConnection, binary};
use crate::ram::{AttachedRamDevice, STEP_MAX, run, runtime};
use crate::rng::SeededRng;

/// The size of the device ([`TestFileSystem::Ext4`]). *Units*: bytes.
const DEVICE_BYTES: u64 = 64 << 20;
/// How fast a donor that takes a place is filled, in the form of tc.
const RATE: &str = "48mbps";
/// How fast the second half is filled if the kill is near the end, so that it is seen there on a busy machine, too.
const RATE_OF_SECOND_HALF: &str = "8mbps";
/// The writer's pause while the second half is filled slowly. Each write has a part of 512 KiB copied again, so the
/// copy comes near its end only if there are few: ten operations a second are five writes, 2.5 MB of the 8 MB.
const PAUSE_OF_SECOND_HALF: Duration = Duration::from_millis(100);
/// The interval between two looks at the progress.
const LOOK_EVERY: Duration = Duration::from_millis(3);
/// How long a lost donor may keep requests waiting. A donor is left after 0.8 s; the rest is for a busy machine.
const GAP_MAX: Duration = Duration::from_secs(10);
/// A lost donor is waited for so long before a spare takes its place.
const LOST_AFTER: Duration = Duration::from_secs(30);
/// The longest time of a copy up to the kill: clients' writes go over the same slow connection, and before it.
const COPY_MAX: Duration = Duration::from_secs(300);
/// The operations that a device must do after the kill.
const OPERATIONS: u64 = 50;

/// How a donor loses its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DonorMove {
    /// By a user, to a donor that is no spare.
    Replace,
    /// By a user, to a spare.
    Drain,
    /// By its own end, to a spare.
    Sigterm,
    /// It is killed, and a spare is filled.
    Spare,
    /// It keeps its place: the device grows.
    Grow,
}

/// When another donor is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillMoment {
    /// Some bytes are copied, less than a quarter.
    Early,
    /// At most an eighth is left.
    NearEnd,
}

/// Which donor is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillVictim {
    /// One that has a place.
    Member,
    /// The one that takes the place.
    Taker,
}

/// A case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecondFailureCase {
    /// `mirror` or `adaptive`.
    pub redundancy: &'static str,
    /// What happens meanwhile.
    pub moving: DonorMove,
    /// When.
    pub moment: KillMoment,
    /// Which donor is killed.
    pub victim: KillVictim,
}

impl fmt::Display for SecondFailureCase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SecondFailureCase { redundancy, moving, moment, victim } = self;
        write!(out, "{redundancy}, {moving:?}, {victim:?} killed {moment:?}")
    }
}

/// What happened in a case that lost nothing.
#[derive(Debug, Clone, Copy)]
pub struct SecondFailureResult {
    /// Whether the donor was killed at the wanted moment; else the move was over before.
    pub is_on_time: bool,
    /// The counts of the writes and reads.
    pub account: ProbeCounts,
}

impl SecondFailureCase {
    /// All cases: two kinds of redundancy, all moves, both moments, all victims.
    pub fn all() -> Vec<SecondFailureCase> {
        let mut cases = Vec::new();
        for redundancy in ["mirror", "adaptive"] {
            for moving in [DonorMove::Replace, DonorMove::Drain, DonorMove::Sigterm, DonorMove::Spare, DonorMove::Grow]
            {
                let victims: &[KillVictim] = match moving {
                    DonorMove::Spare => &[KillVictim::Taker],
                    DonorMove::Grow => &[KillVictim::Member],
                    _ => &[KillVictim::Member, KillVictim::Taker],
                };
                for (moment, victim) in [KillMoment::Early, KillMoment::NearEnd]
                    .into_iter()
                    .flat_map(|at| victims.iter().map(move |of| (at, *of)))
                {
                    cases.push(SecondFailureCase { redundancy, moving, moment, victim });
                }
            }
        }
        cases
    }

    /// Runs the case. *Errors*: an operation failed or took too long, or an acknowledged byte is lost.
    pub fn run(self, seed: u64) -> Result<SecondFailureResult> {
        let survived = match self.moving {
            DonorMove::Grow => self.grow(seed),
            _ => self.move_donor(seed),
        };
        survived.with_context(|| format!("{self}, seed {seed}"))
    }

    fn members(self) -> usize {
        if self.redundancy == "mirror" { 2 } else { 3 }
    }

    fn rig(self, members: usize) -> Result<DonorRig> {
        DonorRig::new("ram-second", TestFileSystem::Ext4, self.redundancy, members as u32)
    }

    fn move_donor(self, seed: u64) -> Result<SecondFailureResult> {
        let members = self.members();
        let mut rig = self.rig(members)?;
        rig.add_spare()?;
        if self.moving == DonorMove::Spare {
            rig.add_spare()?;
        }
        let scratch = rig.scratch.clone();
        let (old, taker) = (rig.addresses[0].clone(), rig.addresses[members].trim_end_matches(";spare").to_owned());
        if self.moving == DonorMove::Replace {
            rig.addresses.truncate(members);
        }
        let disk = AttachedRamDevice::new(&scratch, &rig.spec())?;
        let mut control = ControlConnection::connect(&runtime(&scratch)?)?;
        let changes = DevicePattern::fill(&disk.device, DEVICE_BYTES)?.change(&disk.device, seed)?;
        rig.wait_for_trusted(members as u64)?;
        rig.namespaces[members].set_rate(&scratch, Some(RATE))?;
        let mut asked = None;
        let device = disk.device.as_str();
        match self.moving {
            DonorMove::Replace => asked = Some(self.ask(&rig, &["replace", device, &old, &taker])?),
            DonorMove::Drain => asked = Some(self.ask(&rig, &["drain", device, &old])?),
            DonorMove::Sigterm => rig.donors[0].as_mut().context("it runs")?.process.signal(libc::SIGTERM),
            DonorMove::Spare | DonorMove::Grow => rig.break_donor(0, DonorFault::Kill)?,
        }
        let is_on_time = self.wait_for_moment(&rig, &mut control, &changes)?;
        let dead = if self.victim == KillVictim::Member { 1 } else { members };
        rig.break_donor(dead, DonorFault::Kill)?;
        rig.namespaces[members].set_rate(&scratch, None)?;
        changes.set_pause(PAUSE);
        self.wait_for_answers(&changes)?;
        if let Some(mut asked) = asked {
            let status = asked.wait(STEP_MAX)?;
            println!("{self}: the command ended with {}", describe(status));
        }
        let present = self.wait_for_places(&mut control, members as u64, is_on_time)?;
        let (pattern, account) = changes.end()?;
        ensure!(account.errors == 0 && account.wrong == 0 && account.gap < GAP_MAX, "{account:?}");
        pattern.verify(device).context("on the same client")?;
        // The client ends without a word; the next one finds everything.
        disk.kill()?;
        again(&rig, &present, pattern, seed).context("after the client was killed")?;
        Ok(SecondFailureResult { is_on_time, account })
    }

    fn ask(self, rig: &DonorRig, arguments: &[&str]) -> Result<GuardedProcess> {
        let mut command = Command::new(binary()?);
        command.arg("ram").args(arguments).env("NECTARY_RUNTIME_DIR", runtime(&rig.scratch)?);
        GuardedProcess::spawn("nectary ram", command, &rig.scratch.join("asked.log"), None)
    }

    /// Waits until the copy is as far as wanted. *Returns* whether it was seen so far before the move was over.
    fn wait_for_moment(self, rig: &DonorRig, control: &mut ControlConnection, changes: &PatternWriter) -> Result<bool> {
        let deadline = Instant::now() + COPY_MAX + LOST_AFTER;
        let (mut has_begun, mut is_slowed) = (false, self.moment == KillMoment::Early);
        loop {
            let (figures, _) = figures(control)?;
            let progress = match self.moving {
                DonorMove::Spare => (&figures["rebuild_copied_stripes"], &figures["rebuild_stripes"]),
                _ => (&figures["move_copied_bytes"], &figures["move_bytes"]),
            };
            if let (Some(copied), Some(all)) = (progress.0.as_u64(), progress.1.as_u64()) {
                has_begun |= copied > 0;
                if !is_slowed && copied >= all / 2 {
                    rig.namespaces[self.members()].set_rate(&rig.scratch, Some(RATE_OF_SECOND_HALF))?;
                    changes.set_pause(PAUSE_OF_SECOND_HALF);
                    is_slowed = true;
                }
                let is_due = match self.moment {
                    KillMoment::Early => copied > 0 && copied < all / 4,
                    KillMoment::NearEnd => copied >= all - all / 8,
                };
                if is_due {
                    println!("{self}: {copied} of {all}");
                    return Ok(true);
                }
            }
            let is_over = figures["replaced"] != 0 || has_begun && figures["donors_trusted"] == self.members();
            if is_over && figures["move_bytes"].is_null() {
                return Ok(false);
            }
            ensure!(Instant::now() < deadline, "the copy does not come so far: {figures}");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn wait_for_answers(self, changes: &PatternWriter) -> Result<()> {
        let (before, deadline) = (changes.done(), Instant::now() + STEP_MAX);
        while changes.done() < before + OPERATIONS {
            ensure!(Instant::now() < deadline, "the device does not answer");
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Waits until the device has settled with the donors that are left, and a spare that is free has a place where it
    /// is needed. *Returns* the SPEC that names the present donors.
    fn wait_for_places(self, control: &mut ControlConnection, members: u64, is_on_time: bool) -> Result<String> {
        let is_taken =
            self.moving == DonorMove::Spare || self.moving == DonorMove::Sigterm && self.victim == KillVictim::Member;
        let wanted = members - u64::from(!(is_taken && is_on_time));
        let deadline = Instant::now() + STEP_MAX + LOST_AFTER;
        loop {
            let (figures, spec) = figures(control)?;
            let is_settled = figures["view_stored"] == 1 && figures["move_bytes"].is_null();
            if is_settled && figures["donors_trusted"].as_u64() >= Some(wanted) {
                return Ok(spec);
            }
            ensure!(Instant::now() < deadline, "{wanted} donors are to be trusted: {figures}");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Kills a donor while a detached device grows, after a part of the time that growing takes.
    fn grow(self, seed: u64) -> Result<SecondFailureResult> {
        // A mirror without one of two donors is attached only if the other one knows that it is left.
        let mut rig = self.rig(3)?;
        let (scratch, spec) = (rig.scratch.clone(), rig.spec());
        let disk = AttachedRamDevice::new(&scratch, &spec)?;
        let pattern = DevicePattern::fill(&disk.device, DEVICE_BYTES)?;
        disk.detach()?;
        let mut took = Duration::MAX;
        for size in ["66M", "68M"] {
            let began = Instant::now();
            run(&scratch, "nectary", &["ram", "grow", &spec, "--size", size])?;
            took = took.min(began.elapsed());
        }
        let percents = if self.moment == KillMoment::Early { 10..40 } else { 50..90 };
        let share = percents.start + SeededRng::new(seed).below(percents.end - percents.start);
        let at = took.mul_f64(share as f64 / 100.0);
        let mut asked = self.ask(&rig, &["grow", &spec, "--size", "72M"])?;
        std::thread::sleep(at);
        rig.break_donor(1, DonorFault::Kill)?;
        let is_on_time = asked.try_status().is_none();
        let status = asked.wait(STEP_MAX)?;
        println!("{self}: after {at:?}; the command ended with {}", describe(status));
        let (pattern, account) = again(&rig, &spec, pattern, seed).context("without the killed donor")?;
        // With a new donor at its address it grows.
        rig.mend_donor(1, DonorFault::Kill)?;
        let disk = AttachedRamDevice::new(&scratch, &spec)?;
        rig.wait_for_trusted(3)?;
        disk.detach()?;
        run(&scratch, "nectary", &["ram", "grow", &spec, "--size", "72M"])?;
        let (_, later) = again(&rig, &spec, pattern, seed ^ 1).context("when it has grown")?;
        let operations = account.operations + later.operations;
        Ok(SecondFailureResult { is_on_time, account: ProbeCounts { operations, ..account } })
    }
}

/// The figures of the network RAM disk that is attached, and its present SPEC.
fn figures(control: &mut ControlConnection) -> Result<(Value, String)> {
    let status = control.status()?;
    let devices = status["detail"]["devices"].as_array().cloned().unwrap_or_default();
    let ram = devices.iter().find(|device| device["device"] == "ram");
    let figures = ram.map(|ram| ram["figures"].clone()).with_context(|| format!("no network RAM disk: {status}"))?;
    Ok((figures, status["detail"]["spec"].as_str().unwrap_or_default().to_owned()))
}

/// Attaches the device, checks the pattern, changes it for a while, and checks it again.
fn again(rig: &DonorRig, spec: &str, pattern: DevicePattern, seed: u64) -> Result<(DevicePattern, ProbeCounts)> {
    let disk = AttachedRamDevice::new(&rig.scratch, spec)?;
    pattern.verify(&disk.device)?;
    let changes = pattern.change(&disk.device, seed)?;
    let deadline = Instant::now() + STEP_MAX;
    while changes.done() < OPERATIONS {
        ensure!(Instant::now() < deadline, "the device does not answer");
        std::thread::sleep(LOOK_EVERY);
    }
    let (pattern, account) = changes.end()?;
    ensure!(account.errors == 0 && account.wrong == 0, "{account:?}");
    pattern.verify(&disk.device)?;
    disk.detach()?;
    Ok((pattern, account))
}
