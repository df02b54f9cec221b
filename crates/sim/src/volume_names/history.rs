//! Records the calls of programs, and what the loss of hosts and servers may take back.
//!
//! Owns: the calls with their begin and end, the lives of sessions, and the losses of servers. The promises:
//! 1. What a call of a session that lives was told stays.
//! 2. A session that is lost loses at most its newest changes: those that it did not know to be durable, and none without
//!    all that it did after it. If its server does everything, it loses some only if the server is lost, too, and at most
//!    its last second. A session that ends by itself says how many it may have lost.
//! 3. Written data of a lost session may be lost until it is synced, or its file replaces another one.
//! 4. A host that is cut off for longer than its lease answers nothing.
//!
//! Leaves to others: the search for an order (`order`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nectary_volume::protocol::InodeAttributes;

use super::order::{NEVER, OrderStep};
use super::tree::{NamesCall, Tag, TreeOutcome};

/// What a lost session may lose: a second, and an append of the simulated disk.
const LOSS_MAX: Duration = Duration::from_millis(1300);
/// The longest time between two losses of servers in which sessions may not have repeated everything.
const RECOVERY_MAX: Duration = Duration::from_secs(15);
/// A host that is cut off for longer has no lease.
const LEASE_MAX: Duration = Duration::from_millis(5500);

/// The end of a session, and how many of its changes were answered and not known to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SessionEnd {
    at: TickTime,
    unstored: u64,
}

/// A call.
#[derive(Debug, Clone)]
struct RecordedNamesCall {
    session: usize,
    invoked: u64,
    returned: u64,
    begun_at: Duration,
    ended_at: Duration,
    call: NamesCall,
    outcome: Option<TreeOutcome>,
    /// Whether it was certainly not made.
    is_void: bool,
    /// The file whose data is committed before this call.
    commits: Option<Tag>,
}

/// What is known to be durable: all changes of names that were answered before a tick, and the data of a file.
#[derive(Debug, Clone, Copy)]
struct DurableChanges {
    done: u64,
    before: u64,
    file: Option<Tag>,
}

#[derive(Debug, Clone, Default)]
struct SessionTimeline {
    end: Option<SessionEnd>,
    synced: Vec<DurableChanges>,
    /// Since when its host is cut off.
    cut_since: Option<Duration>,
}

/// A tick, and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TickTime {
    tick: u64,
    at: Duration,
}

/// From when on the changes of a session may be lost: those that end at this tick or later, and at this time or later.
#[derive(Debug, Clone, Copy)]
struct LossOnset {
    tick: u64,
    at: Duration,
}

/// All calls.
#[derive(Debug, Clone, Default)]
pub struct NamesHistory {
    /// Whether sessions make and remove names themselves.
    are_names_local: bool,
    calls: Vec<RecordedNamesCall>,
    lives: Vec<SessionTimeline>,
    /// When servers were lost.
    crashes: Vec<TickTime>,
    tags: BTreeMap<u64, Tag>,
    tick: u64,
    now: Duration,
    /// The first violation.
    pub broken: Option<String>,
}

impl NamesHistory {
    /// Makes a history of sessions that make and remove names themselves, or do not.
    pub fn new(are_names_local: bool) -> NamesHistory {
        NamesHistory { are_names_local, ..NamesHistory::default() }
    }

    /// Sets the time.
    pub fn at(&mut self, now: Duration) -> &mut NamesHistory {
        self.now = now;
        self
    }

    /// Returns the present tick.
    pub fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    fn moment(&mut self) -> TickTime {
        TickTime { tick: self.tick(), at: self.now }
    }

    /// Returns the time of the last event.
    pub fn since_start(&self) -> Duration {
        self.now
    }

    /// Returns the last tick.
    pub fn last_tick(&self) -> u64 {
        self.tick
    }

    /// Notes a violation.
    pub fn is_broken(&mut self, what: String) {
        let now = self.now;
        self.broken.get_or_insert_with(|| format!("{what} (at {} ms)", now.as_millis()));
    }

    /// Returns the number of calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.len() as u64
    }

    /// Returns the number of sessions.
    pub fn sessions(&self) -> usize {
        self.lives.len()
    }

    /// Notes a new session; returns its number.
    pub fn session(&mut self) -> usize {
        self.lives.push(SessionTimeline::default());
        self.lives.len() - 1
    }

    /// Notes the end of a session that did not know so many of its changes to be durable.
    pub fn ended(&mut self, session: usize, unstored: u64) {
        let at = self.moment();
        self.lives[session].end.get_or_insert(SessionEnd { at, unstored });
    }

    /// Notes that the host of a session is cut off, or no more.
    pub fn cut(&mut self, session: usize, is_cut: bool) {
        self.lives[session].cut_since = is_cut.then_some(self.now);
    }

    /// Notes the loss of a server.
    pub fn crashed(&mut self) {
        let now = self.moment();
        self.crashes.push(now);
    }

    /// Begins a call; `commits` is a file whose data it commits first.
    pub fn begin(&mut self, session: usize, call: NamesCall, commits: Option<Tag>) -> usize {
        let (invoked, begun_at) = (self.tick(), self.now);
        self.calls.push(RecordedNamesCall {
            session,
            invoked,
            returned: NEVER,
            begun_at,
            ended_at: Duration::MAX,
            call,
            outcome: None,
            is_void: false,
            commits,
        });
        self.calls.len() - 1
    }

    /// Ends a call.
    pub fn end(&mut self, call: usize, outcome: TreeOutcome) {
        let (returned, ended_at) = (self.tick(), self.now);
        let call = &mut self.calls[call];
        let cut_since = self.lives[call.session].cut_since;
        if let Some(since) = cut_since.filter(|since| call.begun_at > *since + LEASE_MAX) {
            let what =
                format!("{:?} is {outcome:?} on a host that is cut off since {} ms", call.call, since.as_millis());
            return self.is_broken(what);
        }
        (call.returned, call.ended_at, call.outcome) = (returned, ended_at, Some(outcome));
    }

    /// Notes that a call was certainly not made.
    pub fn void(&mut self, call: usize) {
        self.calls[call].is_void = true;
    }

    /// Notes that all changes of names that a session was told of before a tick are durable, and what it wrote to a file.
    pub fn synced(&mut self, session: usize, before: u64, file: Option<Tag>) {
        let done = self.tick();
        self.lives[session].synced.push(DurableChanges { done, before, file });
    }

    /// Returns the history up to a tick, at which everything is lost. `unstored`: how many changes of a session were answered
    /// and not known to be durable then.
    pub fn until(&self, tick: u64, unstored: impl Fn(usize) -> u64) -> NamesHistory {
        let calls: Vec<RecordedNamesCall> = self.calls.iter().filter(|call| call.invoked <= tick).cloned().collect();
        let times = calls.iter().flat_map(|call| [(call.invoked, call.begun_at), (call.returned, call.ended_at)]);
        let at = times.filter(|(when, _)| *when <= tick).map(|(_, at)| at).max().unwrap_or_default();
        let calls = calls.into_iter().map(|call| match call.returned > tick {
            true => RecordedNamesCall { returned: NEVER, ended_at: Duration::MAX, outcome: None, ..call },
            false => call,
        });
        let calls: Vec<RecordedNamesCall> = calls.collect();
        let lives = self.lives.iter().enumerate().map(|(session, life)| SessionTimeline {
            end: life
                .end
                .filter(|end| end.at.tick <= tick)
                .or_else(|| Some(SessionEnd { at: TickTime { tick, at }, unstored: unstored(session) })),
            synced: life.synced.iter().filter(|synced| synced.done <= tick).copied().collect(),
            cut_since: None,
        });
        let mut crashes: Vec<TickTime> = self.crashes.iter().filter(|crash| crash.tick <= tick).copied().collect();
        crashes.push(TickTime { tick, at });
        // What has no answer may get another number.
        let made = calls.iter().filter(|call| call.outcome.is_some()).filter_map(|call| call.call.made());
        let made: BTreeSet<Tag> = made.collect();
        let tags = self.tags.iter().filter(|(_, tag)| made.contains(tag)).map(|(number, tag)| (*number, *tag));
        let (lives, tags) = (lives.collect(), tags.collect());
        NamesHistory { are_names_local: self.are_names_local, calls, lives, crashes, tags, tick, now: at, broken: None }
    }

    /// Learns attributes: a number names one file for ever. Returns the file's tag.
    pub fn tag_of(&mut self, found: &InodeAttributes) -> Tag {
        let tag = Tag::from(found.inode.owner);
        let known = *self.tags.entry(found.number).or_insert(tag);
        if known != tag {
            self.is_broken(format!("inode number {} is of file {known}, and of file {tag}", found.number));
        }
        tag
    }

    /// Returns the calls, and for each of its indices a description.
    pub fn steps(&self) -> Vec<OrderStep> {
        let losses: Vec<Option<LossOnset>> = (0..self.lives.len()).map(|session| self.lost_since(session)).collect();
        let may_be_lost: Vec<bool> =
            self.calls.iter().map(|call| self.may_be_lost(call, losses[call.session])).collect();
        let is_ended = |call: &RecordedNamesCall| self.lives[call.session].end.is_some();
        let is_kept = |at: &usize| {
            let call = &self.calls[*at];
            let is_seen = call.outcome.is_some() && !may_be_lost[*at];
            // What is refused changes nothing.
            let may_change = call.call.is_change() && !matches!(call.outcome, Some(TreeOutcome::Refused(_)));
            !call.is_void && (may_change || is_seen)
        };
        let kept: Vec<usize> = (0..self.calls.len()).filter(is_kept).collect();
        let mut steps: Vec<OrderStep> = Vec::new();
        for at in &kept {
            let call = &self.calls[*at];
            let is_optional = may_be_lost[*at] || call.outcome.is_none() && is_ended(call);
            let is_before = |(_, other): &(usize, &usize)| {
                let other = &self.calls[**other];
                other.session == call.session && other.returned < call.invoked && other.call.is_change()
            };
            let is_needed = |(_, other): &(usize, &usize)| match &self.calls[**other].call {
                NamesCall::Write(file, _) => call.commits == Some(*file),
                _ => is_optional && !call.call.is_of_data() && may_be_lost[**other],
            };
            let before = kept.iter().enumerate().take(steps.len()).filter(is_before);
            let needs: Vec<usize> = before.filter(is_needed).map(|(index, _)| index).collect();
            steps.push(OrderStep {
                invoked: call.invoked,
                returned: call.returned,
                call: call.call.clone(),
                outcome: call.outcome.clone(),
                is_optional,
                needs,
            });
        }
        steps
    }

    /// Describes a call.
    pub fn describe(step: &OrderStep) -> String {
        format!("{:?}: {:?} ({} to {})", step.call, step.outcome, step.invoked, step.returned)
    }

    /// Returns from when on the changes of a session may be lost.
    fn lost_since(&self, session: usize) -> Option<LossOnset> {
        let SessionEnd { at: end, unstored } = self.lives[session].end?;
        if unstored == 0 {
            return None;
        }
        let of_session =
            self.calls.iter().filter(|call| call.session == session && call.outcome == Some(TreeOutcome::Done));
        // The others are durable when they are answered, or have no operation.
        let is_operation = |call: &&RecordedNamesCall| {
            call.call.is_change() && !matches!(call.call, NamesCall::Write(..) | NamesCall::Cut(_))
        };
        let mut changes: Vec<&RecordedNamesCall> = of_session.filter(is_operation).collect();
        changes.sort_by_key(|call| call.returned);
        // Calls at the same time may end in another order than that of the operations.
        let (mut left, mut tick) = (unstored, u64::MAX);
        for call in changes.iter().rev() {
            if left == 0 {
                break;
            }
            // A rename of a file to another of its names is no operation.
            left -= u64::from(!matches!(call.call, NamesCall::Rename { .. }));
            tick = tick.min(call.invoked);
        }
        // The programs of the others have no answers yet, but other programs of the session may have seen them.
        if left > 0 {
            tick = 0;
        }
        if self.are_names_local {
            return Some(LossOnset { tick, at: Duration::ZERO });
        }
        // It has repeated everything to a server if that answered a later change.
        let is_recovered = |crash: &Duration| changes.iter().any(|call| call.begun_at > *crash);
        let mut since: Option<Duration> = None;
        for crash in self.crashes.iter().rev().map(|crash| crash.at).filter(|crash| *crash <= end.at + LOSS_MAX) {
            let is_near = since.is_some_and(|since| since.saturating_sub(crash) < RECOVERY_MAX);
            if is_near || since.is_none() && !is_recovered(&crash) {
                since = Some(crash);
            }
        }
        since.map(|since| LossOnset { tick, at: since.saturating_sub(LOSS_MAX) })
    }

    fn may_be_lost(&self, call: &RecordedNamesCall, loss: Option<LossOnset>) -> bool {
        let life = &self.lives[call.session];
        if call.outcome.is_none() || life.end.is_none() {
            return false;
        }
        let is_late = loss.is_some_and(|loss| call.returned >= loss.tick && call.ended_at >= loss.at);
        // What it saw, or what it was refused for, may have been its own.
        match call.call {
            NamesCall::Write(file, _) => {
                !life.synced.iter().any(|synced| synced.file == Some(file) && call.returned < synced.before)
            }
            // A truncation is answered when everything is durable.
            NamesCall::Cut(_) => false,
            NamesCall::Read(file) | NamesCall::Stat(file) => is_late || self.has_unsynced_data(call, file),
            _ if !call.call.is_change() || call.outcome != Some(TreeOutcome::Done) => is_late,
            _ => is_late && !life.synced.iter().any(|synced| call.returned < synced.before),
        }
    }

    /// Whether the session of a call had written to a file before it ended, and may lose that.
    fn has_unsynced_data(&self, call: &RecordedNamesCall, of: Tag) -> bool {
        let before = self.calls.iter().filter(|other| other.session == call.session && other.invoked < call.returned);
        let mut written = before.filter(|other| matches!(other.call, NamesCall::Write(file, _) if file == of));
        written.any(|other| other.outcome.is_none() || self.may_be_lost(other, None))
    }
}
