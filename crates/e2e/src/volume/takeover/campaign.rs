//! A round: what goes wrong, and the judgement of everything that programs saw.
//!
//! Owns: the script of each kind of round, and what must hold at its end: no read was stale, histories are linearizable,
//! no lock was held twice, nothing synced is lost, every call returned, a leader without its lease ended by itself,
//! sessions ended only where the plan explains it, and the volume's check finds no problem.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::gaps::{Gap, Timeline, is_change, longest};
use super::history::{Act, Call, Outcome, Verdict, milliseconds, now};
use super::load::{Load, Survey, prepare};
use super::losses::Losses;
use super::plan::{Kind, LEASE, MOUNTS, Plan, Reach, SESSION_LEASE};
use super::site::{Attempt, Side, Site};
use super::{claims, locks, registers, sizes};

/// The time limit in which a leader that has lost its lease, or a disk that answers, ends by itself.
const END_MAX: Duration = Duration::from_secs(5);
/// The time limit in which calls return after everything works again.
const RETURN_MAX: Duration = Duration::from_secs(40);
/// Load after the last address has moved.
const MOVED: Duration = Duration::from_secs(2);
/// Shorter outages end no session.
const OUTAGE_MAX: Duration = Duration::from_millis(3500);
/// A leader survives stops that were shorter than this, as measured.
const BRIEF_MAX: Duration = Duration::from_millis(600);
/// The number of problems of a kind that are told.
const TOLD_MAX: usize = 4;
/// The least number of calls, of checked results, and of granted locks of a round.
const LEAST: [u64; 3] = [3000, 1500, 20];

/// What a round did and found.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// The number of calls.
    pub calls: u64,
    /// The number of results that were checked.
    pub checked: u64,
    /// The number of locks that were granted.
    pub granted: u64,
    /// The number of times that a server took over from the other one.
    pub takeovers: u64,
    /// The number of times that a server was refused because the other one leads.
    pub refused: u64,
    /// The number of times that a leader ended without a reason in the plan, and was started again.
    pub restarts: u64,
    /// The number of files that were lost with their session.
    pub ended: u64,
    /// How long a value that was read had been overwritten at most. *Units*: nanoseconds.
    pub stale_ns_max: u64,
    /// The longest time in which two programs held a lock. *Units*: nanoseconds.
    pub overlap_ns_max: u64,
    /// The longest time without a completed call, for each mount.
    pub gaps: Vec<Gap>,
    /// The longest time without a completed change of a name, for each mount.
    pub change_gaps: Vec<Gap>,
    /// What is wrong.
    pub problems: Vec<String>,
    /// What happened.
    pub timeline: Timeline,
}

impl fmt::Display for Done {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = self.gaps.iter().map(|gap| gap.ns).max().unwrap_or_default();
        write!(
            out,
            "{} calls, {} results checked, {} locks granted, {} takeovers, {} servers refused, {} restarted, {} files lost with their \
             session, longest stale read {} ms, longest lock overlap {} ms, longest gap {} ms",
            self.calls,
            self.checked,
            self.granted,
            self.takeovers,
            self.refused,
            self.restarts,
            self.ended,
            milliseconds(self.stale_ns_max),
            milliseconds(self.overlap_ns_max),
            milliseconds(gap)
        )
    }
}

/// The sums of a campaign.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    sum: Done,
    rounds: u64,
    takeovers_wanted: u64,
}

impl Totals {
    /// Adds a round that ran to its end.
    pub fn add(&mut self, plan: &Plan, done: &Done) {
        let sum = &mut self.sum;
        self.rounds += 1;
        self.takeovers_wanted += plan.takeovers();
        sum.calls += done.calls;
        sum.checked += done.checked;
        sum.granted += done.granted;
        sum.takeovers += done.takeovers;
        sum.refused += done.refused;
        sum.restarts += done.restarts;
        sum.ended += done.ended;
        sum.stale_ns_max = sum.stale_ns_max.max(done.stale_ns_max);
        sum.overlap_ns_max = sum.overlap_ns_max.max(done.overlap_ns_max);
        sum.gaps.extend(done.gaps.iter().cloned());
        sum.problems
            .extend(done.problems.iter().map(|problem| format!("{:?}, seed {}: {problem}", plan.kind, plan.seed)));
    }

    /// Adds a round that could not be run.
    pub fn fail(&mut self, plan: &Plan, problem: String) {
        self.sum.problems.push(format!("{:?}, seed {}: {problem}", plan.kind, plan.seed));
    }

    /// Everything that is wrong after this number of rounds.
    pub fn problems(&self, rounds: u64) -> Vec<String> {
        let mut problems = self.sum.problems.clone();
        let wanted = [
            ("rounds", self.rounds, rounds),
            ("calls", self.sum.calls, LEAST[0] * rounds),
            ("takeovers", self.sum.takeovers, self.takeovers_wanted),
        ];
        for (what, count, least) in wanted {
            if count < least {
                problems.push(format!("{count} {what} instead of {least}"));
            }
        }
        problems
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} rounds, {}", self.rounds, self.sum)
    }
}

/// What a script notes for the judgement.
#[derive(Default)]
struct Notes {
    problems: Vec<String>,
    /// The longest time without a leader. *Units*: nanoseconds.
    outage_ns_max: u64,
    /// The mounts that were stopped, or cut off, for longer than their lease.
    victims: BTreeSet<usize>,
}

/// Runs a round.
pub fn round(plan: &Plan) -> Result<Done> {
    let mut site = Site::new(plan)?;
    let early: Vec<usize> = (0..MOUNTS).filter(|mount| !plan.is_late(*mount)).collect();
    prepare(&site.directory(early[0]))?;
    let mut load = Load::default();
    let began = now();
    for mount in early {
        load.start(mount, &site.directory(mount), plan.seed.wrapping_mul(31).wrapping_add(100 * mount as u64));
    }
    let mut notes = Notes::default();
    let played = play(&mut site, &mut load, plan, &mut notes);
    let mut surveys = Vec::new();
    let ended = played.and_then(|()| end(&mut site, &mut load, plan, &mut surveys));
    if let Err(error) = ended {
        notes.problems.push(format!("{error:#}"));
        drop(load.stop(Duration::ZERO, || Ok(())));
    }
    notes.outage_ns_max = site.outage_ns_max;
    let counts = (site.takeovers, site.refused, site.restarts);
    let mut done = judge(&load.calls(), plan, notes, &surveys, (began, &site.timeline()));
    (done.takeovers, done.refused, done.restarts) = counts;
    if done.takeovers < plan.takeovers() {
        done.problems.push(format!("{} takeovers instead of {}", done.takeovers, plan.takeovers()));
    }
    done.timeline = site.timeline();
    if done.problems.is_empty() {
        return Ok(done);
    }
    done.timeline.extend(site.last_words().into_iter().map(|words| (now(), words)));
    Ok(done)
}

/// Does what the plan says.
fn play(site: &mut Site, load: &mut Load, plan: &Plan, notes: &mut Notes) -> Result<()> {
    site.pass(plan.before)?;
    match plan.kind {
        Kind::DiskHangs | Kind::Divided => hang(site, plan, notes, (Side::A, true))?,
        Kind::Stops => hang(site, plan, notes, (Side::A, false))?,
        Kind::BackAndForth => {
            let order = [(Side::A, true), (Side::B, plan.is_second_exported), (Side::A, false)];
            for (index, trouble) in order.into_iter().enumerate() {
                hang(site, plan, notes, trouble)?;
                if index < 2 {
                    site.kill(trouble.0);
                    site.pass(plan.before)?;
                }
            }
        }
        Kind::DiskHangsBriefly | Kind::StopsBriefly => brief(site, plan, notes)?,
        Kind::Race => race(site, plan, notes)?,
        Kind::DiskIsLost => {
            site.note("A's export is killed");
            site.kill_export(Side::A);
            lead(site, plan, now(), Side::B)?;
            must_end(site, notes, Side::A, "its export was killed");
        }
        Kind::Killed | Kind::LateMount | Kind::HandsOver => {
            let since = now();
            match plan.kind {
                Kind::HandsOver => site.terminate(Side::A)?,
                _ => site.kill(Side::A),
            }
            site.note("server A is ended");
            if plan.kind == Kind::LateMount {
                late(site, load, plan, since)?;
            } else {
                lead(site, plan, since, Side::B)?;
            }
        }
        Kind::SameNumber => same_number(site, plan, notes)?,
        Kind::NetworkCut => {
            cut(site, 0..MOUNTS, &[Side::A], true);
            let since = now();
            // B cannot lead: A's lease is renewed.
            refused(site, notes, &[])?;
            site.kill(Side::A);
            site.note("server A is killed");
            lead(site, plan, since, Side::B)?;
            cut(site, 0..MOUNTS, &[Side::A], false);
        }
        Kind::MountStops | Kind::MountIsCut => {
            let victim = plan.victim();
            notes.victims.insert(victim);
            let set = |site: &mut Site, is_stopped: bool| match plan.kind {
                Kind::MountIsCut => cut(site, victim..victim + 1, &[Side::A, Side::B], is_stopped),
                _ => {
                    site.note(format!("mount {victim} {}", if is_stopped { "is stopped" } else { "goes on" }));
                    site.signal_mount(victim, if is_stopped { libc::SIGSTOP } else { libc::SIGCONT });
                }
            };
            set(site, true);
            let hung = hang(site, plan, notes, (Side::A, plan.seed.is_multiple_of(2)));
            site.pass(SESSION_LEASE + 2 * LEASE)?;
            set(site, false);
            hung?;
        }
        Kind::Restarts => {
            for side in [Side::A, Side::A, Side::B] {
                let since = now();
                let leader = site.leader().unwrap_or(Side::A);
                site.kill(leader);
                site.note(format!("server {leader:?} is killed"));
                lead(site, plan, since, side)?;
                site.pass(plan.before)?;
            }
        }
        Kind::BothDisksHang => both_hang(site, plan, notes)?,
    }
    for mount in (0..MOUNTS).filter(|mount| plan.reaches[*mount] == Reach::OnlySecond) {
        let process = site.begin_mount(mount)?;
        site.mount(mount, process)?;
        load.start(mount, &site.directory(mount), plan.seed);
    }
    site.pass(plan.after)?;
    Ok(())
}

/// Starts a server until it leads; `since` is the time from which on there is no leader that works.
fn lead(site: &mut Site, plan: &Plan, since: u64, side: Side) -> Result<()> {
    std::thread::sleep(plan.notice);
    site.replace(side, &[], since)
}

/// The leader's disk hangs, or its process is stopped; the other server takes over; then the trouble ends.
fn hang(site: &mut Site, plan: &Plan, notes: &mut Notes, (side, is_disk): (Side, bool)) -> Result<()> {
    let since = now();
    trouble(site, side, is_disk, true);
    let led = lead(site, plan, since, side.other());
    if is_disk && led.is_ok() {
        must_end(site, notes, side, "its disk hung");
    }
    site.pass(plan.back)?;
    trouble(site, side, is_disk, false);
    led?;
    must_end(site, notes, side, "the other server leads");
    Ok(())
}

fn trouble(site: &mut Site, side: Side, is_disk: bool, begins: bool) {
    let what = if is_disk { "disk" } else { "process" };
    site.note(format!("{side:?}'s {what} {}", if begins { "stands still" } else { "goes on" }));
    let signal = if begins { libc::SIGSTOP } else { libc::SIGCONT };
    if is_disk { site.signal_export(side, signal) } else { site.signal(side, signal) }
}

fn must_end(site: &mut Site, notes: &mut Notes, side: Side, why: &str) {
    if !site.ends_within(side, END_MAX) {
        notes.problems.push(format!("server {side:?} still runs {END_MAX:?} after {why}"));
    }
}

/// B must be refused: A leads.
fn refused(site: &mut Site, notes: &mut Notes, more: &[&str]) -> Result<()> {
    match site.start(Side::B, more, RETURN_MAX)? {
        Attempt::Refused(words) if words.contains("serves") => site.note("server B is refused"),
        attempt => notes.problems.push(format!("server B was started while A leads: {attempt:?}")),
    }
    Ok(())
}

/// A trouble that is shorter than the lease.
fn brief(site: &mut Site, plan: &Plan, notes: &mut Notes) -> Result<()> {
    let is_disk = plan.kind == Kind::DiskHangsBriefly;
    for _ in 0..3 {
        let since = now();
        trouble(site, Side::A, is_disk, true);
        std::thread::sleep(plan.brief);
        trouble(site, Side::A, is_disk, false);
        let stopped = Duration::from_nanos(now() - since);
        std::thread::sleep(LEASE);
        if site.has_ended(Side::A) {
            // A busy machine stops a process for longer than the plan says.
            if stopped < BRIEF_MAX {
                notes.problems.push(format!("server A has ended after it stood still for {stopped:?}"));
            }
            return lead(site, plan, since, Side::B);
        }
        refused(site, notes, &[])?;
    }
    Ok(())
}

/// A trouble about as long as the lease, while the other server tries to lead.
fn race(site: &mut Site, plan: &Plan, notes: &mut Notes) -> Result<()> {
    for is_disk in [true, false] {
        if site.leader() != Some(Side::A) || site.has_ended(Side::A) {
            break;
        }
        let since = now();
        trouble(site, Side::A, is_disk, true);
        let mut goes_on = Some(since + plan.brief.as_nanos() as u64);
        loop {
            // An attempt is killed when the trouble ends meanwhile, so that the trouble ends in time.
            let left = goes_on.map_or(RETURN_MAX, |at| Duration::from_nanos(at.saturating_sub(now())));
            let attempt = site.start(Side::B, &[], left)?;
            if goes_on.is_some_and(|at| at <= now()) || attempt == Attempt::Leads {
                goes_on = None;
                trouble(site, Side::A, is_disk, false);
            }
            if attempt == Attempt::Leads {
                site.outage_ns_max = site.outage_ns_max.max(now() - since);
                must_end(site, notes, Side::A, "B leads");
                break;
            }
            let leads_on = goes_on.is_none() && !site.has_ended(Side::A);
            if leads_on && now() - since > (plan.brief + 2 * LEASE).as_nanos() as u64 {
                break;
            }
            ensure!(now() - since < RETURN_MAX.as_nanos() as u64, "neither A nor B leads: {attempt:?}");
        }
    }
    Ok(())
}

/// A mount is started while nobody leads.
fn late(site: &mut Site, load: &mut Load, plan: &Plan, since: u64) -> Result<()> {
    let mount = plan.victim();
    let process = site.begin_mount(mount)?;
    lead(site, plan, since, Side::B)?;
    site.mount(mount, process)?;
    load.start(mount, &site.directory(mount), plan.seed ^ 2);
    Ok(())
}

/// B is started with A's number by mistake.
fn same_number(site: &mut Site, plan: &Plan, notes: &mut Notes) -> Result<()> {
    for _ in 0..2 {
        refused(site, notes, &["--number", "0"])?;
        if site.has_ended(Side::A) {
            notes.problems.push("server A has ended because another one was started with its number".to_owned());
        }
    }
    let since = now();
    site.kill(Side::A);
    site.note("server A is killed");
    std::thread::sleep(plan.notice);
    site.replace(Side::B, &["--number", "0"], since)
}

/// A's disk hangs, and B is started while its own disk hangs.
fn both_hang(site: &mut Site, plan: &Plan, notes: &mut Notes) -> Result<()> {
    let since = now();
    trouble(site, Side::A, true, true);
    if plan.is_second_exported {
        trouble(site, Side::B, true, true);
    }
    // If B's disk hangs, B neither leads nor ends; it is killed while it tries.
    if site.start(Side::B, &[], plan.notice + LEASE / 2)? == Attempt::Leads && plan.is_second_exported {
        bail!("server B leads without a disk");
    }
    trouble(site, Side::A, true, false);
    if site.leader() == Some(Side::B) {
        must_end(site, notes, Side::A, "B leads");
    }
    if plan.is_second_exported {
        std::thread::sleep(plan.notice);
        trouble(site, Side::B, true, false);
    }
    std::thread::sleep(LEASE);
    if site.leader() == Some(Side::A) && site.has_ended(Side::A) {
        lead(site, plan, since, Side::B)?;
    }
    Ok(())
}

fn cut(site: &Site, mounts: std::ops::Range<usize>, sides: &[Side], is_cut: bool) {
    let words = if is_cut { "cut off from" } else { "connected again to" };
    site.note(format!("mounts {mounts:?} are {words} {sides:?}"));
    for mount in mounts {
        sides.iter().for_each(|side| site.set_cut(mount, *side, is_cut));
    }
}

/// Ends the load, looks at every mount once more, and ends everything.
fn end(site: &mut Site, load: &mut Load, plan: &Plan, surveys: &mut Vec<Survey>) -> Result<()> {
    site.move_all();
    if plan.reaches.iter().any(|reach| matches!(reach, Reach::Stays | Reach::MovesInPart)) {
        site.note("all addresses lead to the leader");
        site.pass(MOVED)?;
    }
    site.note("the load ends");
    load.stop(RETURN_MAX, || site.supervise())?;
    for mount in 0..MOUNTS {
        let directory = site.directory(mount);
        surveys.push(load.survey(mount, &directory, RETURN_MAX, || site.supervise())?);
    }
    site.note("every mount was read");
    let problems = site.finish()?;
    ensure!(problems.is_empty(), "volume check: {problems:?}");
    Ok(())
}

/// Judges what programs saw.
fn judge(calls: &[Call], plan: &Plan, notes: Notes, surveys: &[Survey], (began, timeline): (u64, &Timeline)) -> Done {
    let losses = Losses::of(calls);
    let mut problems = notes.problems.clone();
    let mut verdicts = vec![registers::check(calls, &losses), claims::check(calls)];
    if let Some(first) = surveys.first().filter(|_| surveys.len() == MOUNTS) {
        verdicts.push(sizes::check(calls, &losses, &first.records));
        if surveys.iter().any(|survey| survey != first) {
            problems.push("the mounts show different files of records at the end".to_owned());
        }
    }
    let mut verdict = Verdict::default();
    for mut found in verdicts {
        found.problems = told(found.problems);
        verdict.add(found);
    }
    let held = locks::check(calls);
    let (calls_done, ended) =
        (calls.iter().filter(|call| call.outcome != Outcome::Pending).count() as u64, ended(calls));
    problems.extend(verdict.problems.iter().cloned());
    problems.extend(told(held.problems));
    problems.extend(errors(calls, plan, &notes));
    let counts = [("calls", calls_done), ("checked results", verdict.checked), ("locks", held.granted)];
    for ((what, count), least) in counts.into_iter().zip(LEAST) {
        if count < least {
            problems.push(format!("only {count} {what}, {least} at least are expected"));
        }
    }
    let until = timeline.iter().find(|(_, what)| what == "the load ends").map_or(now(), |(at, _)| *at);
    let gap = |counts: fn(&Call) -> bool| {
        (0..MOUNTS).map(|mount| longest(calls, (mount, began, until), timeline, counts)).collect()
    };
    let Verdict { checked, stale_ns_max, .. } = verdict;
    Done {
        calls: calls_done,
        checked,
        granted: held.granted,
        ended,
        stale_ns_max,
        overlap_ns_max: held.overlap_ns_max,
        gaps: gap(|_| true),
        change_gaps: gap(is_change),
        problems,
        ..Done::default()
    }
}

/// The number of open files that were lost with their session.
fn ended(calls: &[Call]) -> u64 {
    let lost = calls.iter().filter(|call| call.handle > 0 && call.outcome == Outcome::Failed(libc::EIO));
    lost.map(|call| call.handle).collect::<BTreeSet<u32>>().len() as u64
}

/// The first problems of a list without repetitions, and the number of the others.
fn told(problems: Vec<String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut problems: Vec<String> = problems.into_iter().filter(|problem| seen.insert(problem.clone())).collect();
    let more = problems.len().saturating_sub(TOLD_MAX);
    problems.truncate(TOLD_MAX);
    if more > 0 {
        problems.push(format!("and {more} more like these"));
    }
    problems
}

/// Calls failed that should not: other errors than EIO, or EIO although no session may have been ended.
fn errors(calls: &[Call], plan: &Plan, notes: &Notes) -> Vec<String> {
    let mut errors: BTreeMap<(usize, i32), (u64, Act, u64)> = BTreeMap::new();
    for call in calls {
        let Outcome::Failed(errno) = call.outcome else { continue };
        let may_end = plan.reaches[call.mount] == Reach::Stays
            || notes.victims.contains(&call.mount)
            || notes.outage_ns_max > OUTAGE_MAX.as_nanos() as u64;
        if !(may_end && errno == libc::EIO) {
            let first = errors.entry((call.mount, errno)).or_insert((0, call.act, call.end));
            first.0 += 1;
        }
    }
    let words = errors.into_iter().map(|((mount, errno), (count, act, at))| {
        let (error, at) = (std::io::Error::from_raw_os_error(errno), milliseconds(at));
        format!("mount {mount}: {count} calls failed: {error}; the first is {act:?} at {at} ms")
    });
    words.collect()
}
