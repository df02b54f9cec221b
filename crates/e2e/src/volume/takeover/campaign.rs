//! A round, and the judgement of everything that programs saw in it.
//!
//! Owns: what must hold at the end of a round: no read was stale, histories are linearizable, no lock was held twice,
//! nothing synced is lost, every call returned, sessions ended only where the plan explains it, and the volume's check
//! finds no problem. Leaves to others: what goes wrong (`script`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::gaps::{CallGap, Timeline, is_change, longest};
use super::history::{CallAction, CallOutcome, HistoryVerdict, RecordedCall, milliseconds, now};
use super::jobs::MountSurvey;
use super::load::TakeoverLoad;
use super::losses::{self, SessionLosses};
use super::plan::{MOUNTS, ServerReach, TakeoverPlan};
use super::script::{RETURN_MAX, ScriptNotes, play};
use super::site::TakeoverSite;
use super::worker::prepare;
use super::{claims, locks, registers, sizes};
/// Load after the last address has moved.
const MOVED: Duration = Duration::from_secs(2);
/// Shorter outages end no session.
const OUTAGE_MAX: Duration = Duration::from_millis(3500);
/// The number of problems of a kind that are told.
const TOLD_MAX: usize = 4;
/// The least number of calls, of checked results, and of granted locks of a round.
const LEAST: [u64; 3] = [3000, 1500, 20];

/// What a round did and found.
#[derive(Debug, Clone, Default)]
pub struct TakeoverOutcome {
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
    pub gaps: Vec<CallGap>,
    /// The longest time without a completed change of a name, for each mount.
    pub change_gaps: Vec<CallGap>,
    /// What is wrong.
    pub problems: Vec<String>,
    /// What happened.
    pub timeline: Timeline,
}

impl fmt::Display for TakeoverOutcome {
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
pub struct TakeoverTotals {
    sum: TakeoverOutcome,
    rounds: u64,
    takeovers_wanted: u64,
}

impl TakeoverTotals {
    /// Adds a round that ran to its end.
    pub fn add(&mut self, plan: &TakeoverPlan, done: &TakeoverOutcome) {
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
    pub fn fail(&mut self, plan: &TakeoverPlan, problem: String) {
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

impl fmt::Display for TakeoverTotals {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} rounds, {}", self.rounds, self.sum)
    }
}

/// Runs a round.
pub fn round(plan: &TakeoverPlan) -> Result<TakeoverOutcome> {
    let mut site = TakeoverSite::new(plan)?;
    let early: Vec<usize> = (0..MOUNTS).filter(|mount| !plan.is_late(*mount)).collect();
    prepare(&site.directory(early[0]))?;
    let mut load = TakeoverLoad::default();
    let began = now();
    for mount in early {
        load.start(mount, &site.directory(mount), plan.seed.wrapping_mul(31).wrapping_add(100 * mount as u64));
    }
    let mut notes = ScriptNotes::default();
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

/// Ends the load, looks at every mount once more, and ends everything.
fn end(
    site: &mut TakeoverSite,
    load: &mut TakeoverLoad,
    plan: &TakeoverPlan,
    surveys: &mut Vec<MountSurvey>,
) -> Result<()> {
    site.move_all();
    if plan.reaches.iter().any(|reach| matches!(reach, ServerReach::Stays | ServerReach::MovesInPart)) {
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
fn judge(
    calls: &[RecordedCall],
    plan: &TakeoverPlan,
    notes: ScriptNotes,
    surveys: &[MountSurvey],
    (began, timeline): (u64, &Timeline),
) -> TakeoverOutcome {
    let losses = SessionLosses::of(calls);
    let mut problems = notes.problems.clone();
    let mut verdicts = vec![registers::check(calls, &losses), claims::check(calls, &losses)];
    if let Some(first) = surveys.first().filter(|_| surveys.len() == MOUNTS) {
        verdicts.push(sizes::check(calls, &losses, &first.records));
        if surveys.iter().any(|survey| survey != first) {
            problems.push("the mounts show different files of records at the end".to_owned());
        }
    }
    let mut verdict = HistoryVerdict::default();
    for mut found in verdicts {
        found.problems = told(found.problems);
        verdict.add(found);
    }
    let held = locks::check(calls);
    let (calls_done, ended) =
        (calls.iter().filter(|call| call.outcome != CallOutcome::Pending).count() as u64, ended(calls));
    problems.extend(verdict.problems.iter().cloned());
    problems.extend(told(held.problems));
    problems.extend(errors(calls, plan, &notes, &losses));
    let counts = [("calls", calls_done), ("checked results", verdict.checked), ("locks", held.granted)];
    for ((what, count), least) in counts.into_iter().zip(LEAST) {
        if count < least {
            problems.push(format!("only {count} {what}, {least} at least are expected"));
        }
    }
    let until = timeline.iter().find(|(_, what)| what == "the load ends").map_or(now(), |(at, _)| *at);
    let gap = |counts: fn(&RecordedCall) -> bool| {
        (0..MOUNTS).map(|mount| longest(calls, (mount, began, until), timeline, counts)).collect()
    };
    let HistoryVerdict { checked, stale_ns_max, .. } = verdict;
    TakeoverOutcome {
        calls: calls_done,
        checked,
        granted: held.granted,
        ended,
        stale_ns_max,
        overlap_ns_max: held.overlap_ns_max,
        gaps: gap(|_| true),
        change_gaps: gap(is_change),
        problems,
        ..TakeoverOutcome::default()
    }
}

/// The number of open files that were lost with their session.
fn ended(calls: &[RecordedCall]) -> u64 {
    let lost = calls.iter().filter(|call| call.handle > 0 && call.outcome == CallOutcome::Failed(libc::EIO));
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
fn errors(calls: &[RecordedCall], plan: &TakeoverPlan, notes: &ScriptNotes, losses: &SessionLosses) -> Vec<String> {
    let mut errors: BTreeMap<(usize, i32), (u64, CallAction, u64)> = BTreeMap::new();
    for call in calls {
        let CallOutcome::Failed(errno) = call.outcome else { continue };
        let may_end = plan.reaches[call.mount] == ServerReach::Stays
            || notes.victims.contains(&call.mount)
            || notes.outage_ns_max > OUTAGE_MAX.as_nanos() as u64;
        // The file that was to replace a name may be lost with its session, before the next one renames it.
        let is_lost = errno == libc::ENOENT && losses::is_change(call.act) && losses.is_hit(call.mount);
        if !(may_end && (errno == libc::EIO || is_lost)) {
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
