//! What is done to servers and mounts in each kind of round.
//!
//! Owns: the order of the steps, and what must follow from them at once: a leader without its lease ends by itself, and a
//! server is refused while another one leads. Leaves to others: what programs on the mounts see meanwhile (`campaign`).

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::history::now;
use super::load::TakeoverLoad;
use super::plan::{LEASE, MOUNTS, SESSION_LEASE, ServerReach, TakeoverKind, TakeoverPlan};
use super::site::{ServerSide, StartAttempt, TakeoverSite};

/// The time limit in which a leader that has lost its lease, or a disk that answers, ends by itself. It is long, because
/// a busy machine may not run it for seconds.
const END_MAX: Duration = Duration::from_secs(15);
/// The time limit in which calls return after everything works again.
pub const RETURN_MAX: Duration = Duration::from_secs(40);
/// A leader survives stops that were shorter than this, as measured.
const BRIEF_MAX: Duration = Duration::from_millis(600);

/// What a script notes for the judgement.
#[derive(Default)]
pub struct ScriptNotes {
    /// What is wrong.
    pub problems: Vec<String>,
    /// The longest time without a leader. *Units*: nanoseconds.
    pub outage_ns_max: u64,
    /// The mounts that were stopped, or cut off, for longer than their lease.
    pub victims: BTreeSet<usize>,
}

/// Does what the plan says.
pub fn play(
    site: &mut TakeoverSite,
    load: &mut TakeoverLoad,
    plan: &TakeoverPlan,
    notes: &mut ScriptNotes,
) -> Result<()> {
    site.pass(plan.before)?;
    match plan.kind {
        TakeoverKind::DiskHangs | TakeoverKind::Divided => hang(site, plan, notes, (ServerSide::A, true))?,
        TakeoverKind::Stops => hang(site, plan, notes, (ServerSide::A, false))?,
        TakeoverKind::BackAndForth => {
            let order = [(ServerSide::A, true), (ServerSide::B, plan.is_second_exported), (ServerSide::A, false)];
            for (index, trouble) in order.into_iter().enumerate() {
                hang(site, plan, notes, trouble)?;
                if index < 2 {
                    site.kill(trouble.0);
                    site.pass(plan.before)?;
                }
            }
        }
        TakeoverKind::DiskHangsBriefly | TakeoverKind::StopsBriefly => brief(site, plan, notes)?,
        TakeoverKind::Race => race(site, plan, notes)?,
        TakeoverKind::DiskIsLost => {
            site.note("A's export is killed");
            site.kill_export(ServerSide::A);
            lead(site, plan, now(), ServerSide::B)?;
            must_end(site, notes, ServerSide::A, "its export was killed");
        }
        TakeoverKind::Killed | TakeoverKind::LateMount | TakeoverKind::HandsOver => {
            let since = now();
            match plan.kind {
                TakeoverKind::HandsOver => site.terminate(ServerSide::A)?,
                _ => site.kill(ServerSide::A),
            }
            site.note("server A is ended");
            if plan.kind == TakeoverKind::LateMount {
                late(site, load, plan, since)?;
            } else {
                lead(site, plan, since, ServerSide::B)?;
            }
        }
        TakeoverKind::SameNumber => same_number(site, plan, notes)?,
        TakeoverKind::NetworkCut => {
            cut(site, 0..MOUNTS, &[ServerSide::A], true);
            let since = now();
            // B cannot lead: A's lease is renewed.
            if is_refused(site, notes, &[])? {
                site.kill(ServerSide::A);
                site.note("server A is killed");
                lead(site, plan, since, ServerSide::B)?;
            }
            cut(site, 0..MOUNTS, &[ServerSide::A], false);
        }
        TakeoverKind::MountStops | TakeoverKind::MountIsCut => {
            let victim = plan.victim();
            notes.victims.insert(victim);
            let set = |site: &mut TakeoverSite, is_stopped: bool| match plan.kind {
                TakeoverKind::MountIsCut => cut(site, victim..victim + 1, &[ServerSide::A, ServerSide::B], is_stopped),
                _ => {
                    site.note(format!("mount {victim} {}", if is_stopped { "is stopped" } else { "goes on" }));
                    site.signal_mount(victim, if is_stopped { libc::SIGSTOP } else { libc::SIGCONT });
                }
            };
            set(site, true);
            let hung = hang(site, plan, notes, (ServerSide::A, plan.seed.is_multiple_of(2)));
            site.pass(SESSION_LEASE + 2 * LEASE)?;
            set(site, false);
            hung?;
        }
        TakeoverKind::Restarts => {
            for side in [ServerSide::A, ServerSide::A, ServerSide::B] {
                let since = now();
                let leader = site.leader().unwrap_or(ServerSide::A);
                site.kill(leader);
                site.note(format!("server {leader:?} is killed"));
                lead(site, plan, since, side)?;
                site.pass(plan.before)?;
            }
        }
        TakeoverKind::BothDisksHang => both_hang(site, plan, notes)?,
    }
    for mount in (0..MOUNTS).filter(|mount| plan.reaches[*mount] == ServerReach::OnlySecond) {
        let process = site.begin_mount(mount)?;
        site.mount(mount, process)?;
        load.start(mount, &site.directory(mount), plan.seed);
    }
    site.pass(plan.after)?;
    Ok(())
}

/// Starts a server until it leads; `since` is the time from which on there is no leader that works.
fn lead(site: &mut TakeoverSite, plan: &TakeoverPlan, since: u64, side: ServerSide) -> Result<()> {
    std::thread::sleep(plan.notice);
    site.replace(side, &[], since)
}

/// The leader's disk hangs, or its process is stopped; the other server takes over; then the trouble ends.
fn hang(
    site: &mut TakeoverSite,
    plan: &TakeoverPlan,
    notes: &mut ScriptNotes,
    (side, is_disk): (ServerSide, bool),
) -> Result<()> {
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

fn trouble(site: &mut TakeoverSite, side: ServerSide, is_disk: bool, begins: bool) {
    let what = if is_disk { "disk" } else { "process" };
    site.note(format!("{side:?}'s {what} {}", if begins { "stands still" } else { "goes on" }));
    let signal = if begins { libc::SIGSTOP } else { libc::SIGCONT };
    if is_disk { site.signal_export(side, signal) } else { site.signal(side, signal) }
}

fn must_end(site: &mut TakeoverSite, notes: &mut ScriptNotes, side: ServerSide, why: &str) {
    if !site.ends_within(side, END_MAX) {
        notes.problems.push(format!("server {side:?} still runs {END_MAX:?} after {why}"));
    }
}

/// Starts B, which must be refused, because A leads. Returns false if B leads all the same: on a busy machine A may have
/// lost its lease, and then it must end.
fn is_refused(site: &mut TakeoverSite, notes: &mut ScriptNotes, more: &[&str]) -> Result<bool> {
    match site.start(ServerSide::B, more, RETURN_MAX)? {
        StartAttempt::Refused(words) if words.contains("it renews its lease") => site.note("server B is refused"),
        StartAttempt::Leads => {
            must_end(site, notes, ServerSide::A, "B leads");
            return Ok(false);
        }
        attempt => notes.problems.push(format!("server B was not refused while A leads: {attempt:?}")),
    }
    Ok(true)
}

/// A trouble that is shorter than the lease.
fn brief(site: &mut TakeoverSite, plan: &TakeoverPlan, notes: &mut ScriptNotes) -> Result<()> {
    let is_disk = plan.kind == TakeoverKind::DiskHangsBriefly;
    for _ in 0..3 {
        let since = now();
        trouble(site, ServerSide::A, is_disk, true);
        std::thread::sleep(plan.brief);
        trouble(site, ServerSide::A, is_disk, false);
        let stopped = Duration::from_nanos(now() - since);
        std::thread::sleep(LEASE);
        if site.has_ended(ServerSide::A) {
            // A busy machine stops a process for longer than the plan says.
            if stopped < BRIEF_MAX {
                notes.problems.push(format!("server A has ended after it stood still for {stopped:?}"));
            }
            return lead(site, plan, since, ServerSide::B);
        }
        if !is_refused(site, notes, &[])? {
            break;
        }
    }
    Ok(())
}

/// A trouble about as long as the lease, while the other server tries to lead.
fn race(site: &mut TakeoverSite, plan: &TakeoverPlan, notes: &mut ScriptNotes) -> Result<()> {
    for is_disk in [true, false] {
        if site.leader() != Some(ServerSide::A) || site.has_ended(ServerSide::A) {
            break;
        }
        let since = now();
        trouble(site, ServerSide::A, is_disk, true);
        let mut goes_on = Some(since + plan.brief.as_nanos() as u64);
        loop {
            // An attempt is killed when the trouble ends meanwhile, so that the trouble ends in time.
            let left = goes_on.map_or(RETURN_MAX, |at| Duration::from_nanos(at.saturating_sub(now())));
            let attempt = site.start(ServerSide::B, &[], left)?;
            if goes_on.is_some_and(|at| at <= now()) || attempt == StartAttempt::Leads {
                goes_on = None;
                trouble(site, ServerSide::A, is_disk, false);
            }
            if attempt == StartAttempt::Leads {
                site.outage_ns_max = site.outage_ns_max.max(now() - since);
                must_end(site, notes, ServerSide::A, "B leads");
                break;
            }
            let leads_on = goes_on.is_none() && !site.has_ended(ServerSide::A);
            if leads_on && now() - since > (plan.brief + 2 * LEASE).as_nanos() as u64 {
                break;
            }
            ensure!(now() - since < RETURN_MAX.as_nanos() as u64, "neither A nor B leads: {attempt:?}");
        }
    }
    Ok(())
}

/// A mount is started while nobody leads.
fn late(site: &mut TakeoverSite, load: &mut TakeoverLoad, plan: &TakeoverPlan, since: u64) -> Result<()> {
    let mount = plan.victim();
    let process = site.begin_mount(mount)?;
    lead(site, plan, since, ServerSide::B)?;
    site.mount(mount, process)?;
    load.start(mount, &site.directory(mount), plan.seed ^ 2);
    Ok(())
}

/// B is started with A's number by mistake.
fn same_number(site: &mut TakeoverSite, plan: &TakeoverPlan, notes: &mut ScriptNotes) -> Result<()> {
    for _ in 0..2 {
        if !is_refused(site, notes, &["--number", "0"])? || site.has_ended(ServerSide::A) {
            notes.problems.push("server A has ended because another one was started with its number".to_owned());
            return Ok(());
        }
    }
    let since = now();
    site.kill(ServerSide::A);
    site.note("server A is killed");
    std::thread::sleep(plan.notice);
    site.replace(ServerSide::B, &["--number", "0"], since)
}

/// A's disk hangs, and B is started while its own disk hangs.
fn both_hang(site: &mut TakeoverSite, plan: &TakeoverPlan, notes: &mut ScriptNotes) -> Result<()> {
    let since = now();
    trouble(site, ServerSide::A, true, true);
    if plan.is_second_exported {
        trouble(site, ServerSide::B, true, true);
    }
    // If B's disk hangs, B neither leads nor ends; it is killed while it tries.
    if site.start(ServerSide::B, &[], plan.notice + LEASE / 2)? == StartAttempt::Leads && plan.is_second_exported {
        bail!("server B leads without a disk");
    }
    trouble(site, ServerSide::A, true, false);
    if site.leader() == Some(ServerSide::B) {
        must_end(site, notes, ServerSide::A, "B leads");
    }
    if plan.is_second_exported {
        std::thread::sleep(plan.notice);
        trouble(site, ServerSide::B, true, false);
    }
    std::thread::sleep(LEASE);
    if site.leader() == Some(ServerSide::A) && site.has_ended(ServerSide::A) {
        lead(site, plan, since, ServerSide::B)?;
    }
    Ok(())
}

fn cut(site: &TakeoverSite, mounts: std::ops::Range<usize>, sides: &[ServerSide], is_cut: bool) {
    let words = if is_cut { "cut off from" } else { "connected again to" };
    site.note(format!("mounts {mounts:?} are {words} {sides:?}"));
    for mount in mounts {
        sides.iter().for_each(|side| site.set_cut(mount, *side, is_cut));
    }
}
