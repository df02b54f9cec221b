//! The rules of fixed members: a state machine without I/O, clock or randomness.
//!
//! Owns: what is told to whom, and when this node may serve. Events and the time go in, actions come out
//! ([`FixedMachine::on_event`]); a driver does them, and reports each of them with an event. Its parts are `requests`,
//! `returning` and `taking`.
//!
//! # Invariants
//! 1. **Told is durable.** What a node says that it has is in its file, and applied by its store.
//! 2. **Nothing is left out.** A log is taken without gaps. If purges that a node lacks are no longer kept, it purges
//!    everything instead.
//! 3. **Returning.** A node that started, or stood still for a lease, serves only when it has what the others have: all of
//!    them, or one that serves, while the rest are known to be down, or have been silent for a lease. If it hears of
//!    no such node for six leases, it purges everything. It says that it serves only if it was told so itself, or has
//!    spoken with all others.
//! 4. **Applied.** A purge is applied when each member has said that it has it. An answer names those that have not.
//! 5. **Keys have rules**, as in a fleet by etcd.
//!
//! *Circle*: [`FixedMachine`] has a field of each part, and the parts add methods to it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use nectary_host::fleet::{
    AppliedMark, FleetError, FleetNode, FleetPurge, FleetView, NodeName, PurgeOutcome, PurgeWish, RulesHash,
};

use super::known_logs::{FixedPurge, FixedStep, KnownLogs, LOGS_MAX, LogExtents, covers};
use super::log_file::LoadedLog;
use super::messages::{PURGES_BYTES_MAX, SyncMessage, members_hash};
use super::returning::{ReturnAnswer, ReturnPart};
use super::taking::TakePart;
use crate::machine::{FleetRules, GateTimes};
use crate::purge_bucket::PurgeBucket;

/// The first pause after a failure; each further one is twice as long, up to a quarter of a lease.
pub(super) const PAUSE_MIN: Duration = Duration::from_millis(250);
/// The most bytes of steps that wait to be taken, about, but for those of this node's own purges.
const PENDING_BYTES_MAX: u64 = 16 << 20;
/// As many bytes of purges as the log may have are accepted in this time.
pub(super) const SIZE_PERIOD: Duration = Duration::from_secs(60);

/// Something that happened.
#[derive(Debug, Clone)]
pub(super) enum FixedEvent {
    /// Time has passed, and the time of the day in seconds since 1970. Comes at most every 50 ms.
    Tick { now_s: u64 },
    /// The host may have stood still for this time.
    Paused { time: Duration },
    /// A member has answered.
    Answered { member: usize, asked: Duration, answer: Box<SyncMessage> },
    /// A member has not answered; if it is refused, no process listens there.
    Silent { member: usize, asked: Duration, is_refused: bool, why: String },
    /// A member asks.
    Asked { ticket: u64, message: Box<SyncMessage> },
    /// A batch is durable.
    Taken { batch: u64 },
    /// A batch is not durable.
    TakeFailed { batch: u64, why: String },
    /// The file was rewritten, or that has failed.
    Rewritten,
    /// Somebody wants to purge.
    PurgeRequested { ticket: u64, purge: FleetPurge, wish: PurgeWish, now_s: u64 },
    /// The rules of this node are others now.
    RulesChanged(RulesHash),
    /// The node stops.
    Leave,
}

/// Something to do.
#[derive(Debug)]
pub(super) enum FixedAction {
    /// Send a message to a member. Ends with `Answered` or `Silent`.
    Ask { member: usize, message: SyncMessage },
    /// Answer a member.
    Reply { ticket: u64, result: Result<SyncMessage, String> },
    /// Append steps to the file, of which the first has this place, make their purges, and then note the mark. Ends with
    /// `Taken` or `TakeFailed`.
    Take { batch: u64, first: u64, steps: Vec<FixedStep>, mark: AppliedMark },
    /// Rewrite the file with these steps at its end. Ends with `Rewritten`.
    Rewrite { extents: LogExtents, steps: Vec<FixedStep> },
    /// Answer a request.
    Answer { ticket: u64, result: Result<PurgeOutcome, FleetError> },
    /// Write a line for the operator.
    Note(String),
}

/// Another member.
#[derive(Debug)]
pub(super) struct OtherMember {
    pub name: NodeName,
    /// What it said of itself.
    pub node: Option<FleetNode>,
    /// When the last request was sent that it answered, or its own one came.
    pub heard: Option<Duration>,
    /// When it last answered, if only in part.
    pub(super) answered: Option<Duration>,
    /// Whether it has refused a connection since.
    is_down: bool,
    /// Whether it has more than its last answer brought.
    pub(super) is_partial: bool,
    /// What it has said that it has.
    pub extents: LogExtents,
    /// Whether its list of members is another one.
    pub differs: bool,
    /// Why it does not answer.
    pub trouble: Option<String>,
    is_asking: bool,
    pub(super) ask_at: Duration,
    pause: Duration,
    pub(super) returned: ReturnAnswer,
}

/// A purge whose caller waits.
#[derive(Debug)]
pub(super) struct UnconfirmedPurge {
    pub wish: PurgeWish,
    pub deadline: Duration,
    pub number: u64,
}

/// What this process has done.
#[derive(Debug, Default)]
pub(super) struct FixedCounts {
    pub accepted: u64,
    pub refused: u64,
    pub applied: u64,
    pub everything_purged: u64,
    pub cuts: u64,
}

/// The state of one node.
#[derive(Debug)]
pub(super) struct FixedMachine {
    pub(super) rules: FleetRules,
    /// How long a node serves that does not hear from a member; `None`: on and on.
    serve_limit: Option<Duration>,
    fleet: String,
    pub(super) own: FleetNode,
    identity: u128,
    members: u64,
    pub(super) others: Vec<OtherMember>,
    pub(super) view: Arc<FleetView>,
    pub(super) known: KnownLogs,
    pub(super) taking: TakePart,
    /// What is known, and what waits.
    pub(super) queued: LogExtents,
    /// The place of the last step that was queued.
    pub(super) last_place: u64,
    pub(super) mark: AppliedMark,
    pub(super) returning: ReturnPart,
    pub(super) last_event: Duration,
    /// Members that wait for an answer: the ticket, the place that must be taken before, and what they have.
    replies: Vec<(u64, u64, LogExtents)>,
    /// The ticket of the last request of each member.
    last_asked: BTreeMap<usize, u64>,
    pub(super) waiting: BTreeMap<u64, UnconfirmedPurge>,
    pub(super) counted: PurgeBucket,
    pub(super) sized: PurgeBucket,
    /// The time of the day, by the last tick. *Units*: seconds since 1970.
    pub(super) now_s: u64,
    pub(super) counts: FixedCounts,
    pub(super) actions: Vec<FixedAction>,
    pub(super) is_leaving: bool,
}

impl FixedMachine {
    /// Begins with what the file of this node has, and what its store has applied of it.
    pub fn new(
        rules: FleetRules,
        serve_limit: Option<Duration>,
        (fleet, own): (String, FleetNode),
        members: &[NodeName],
        loaded: LoadedLog,
        mark: AppliedMark,
        now: Duration,
    ) -> FixedMachine {
        let others = members.iter().filter(|name| **name != own.name).map(|name| OtherMember {
            name: name.clone(),
            node: None,
            heard: None,
            answered: None,
            is_down: false,
            is_partial: false,
            extents: LogExtents::new(),
            differs: false,
            trouble: None,
            is_asking: false,
            ask_at: now,
            pause: Duration::ZERO,
            returned: ReturnAnswer::None,
        });
        let (count, period) = rules.purge_rate;
        let is_fit = loaded.fits(mark);
        let LoadedLog { head, steps, is_new } = loaded;
        let last = head.base + steps.len() as u64;
        let mut known = if is_fit { KnownLogs::new(head.extents.clone()) } else { KnownLogs::default() };
        let is_of_file = is_fit && mark.fleet == head.identity;
        let applied = if is_of_file { mark.revision } else { head.base };
        let mut pending: VecDeque<FixedStep> = steps.into();
        let done = usize::try_from(applied - head.base).unwrap_or(usize::MAX).min(pending.len());
        pending.drain(..done).for_each(|step| known.take(&step));
        let mut queued = if is_fit { known.clone() } else { KnownLogs::new(head.extents.clone()) };
        pending.iter().for_each(|step| queued.take(step));
        let others = others.collect();
        let mut machine = FixedMachine {
            counted: PurgeBucket::new(u64::from(count), period),
            sized: PurgeBucket::new(rules.log_bytes_max.max(1 << 20), SIZE_PERIOD),
            now_s: 0,
            rules,
            serve_limit,
            fleet,
            identity: head.identity,
            members: members_hash(members),
            others,
            view: Arc::new(FleetView::default()),
            known,
            taking: TakePart::new(now, pending, last),
            queued: queued.extents().clone(),
            last_place: last,
            mark: if is_of_file { mark } else { AppliedMark::NONE },
            own,
            returning: ReturnPart::new(now, is_new && mark == AppliedMark::NONE),
            last_event: now,
            replies: Vec::new(),
            last_asked: BTreeMap::new(),
            waiting: BTreeMap::new(),
            counts: FixedCounts::default(),
            actions: Vec::new(),
            is_leaving: false,
        };
        if !is_fit {
            machine.purge_everything(LogExtents::new(), "its store does not fit to its `purge-log`");
            machine.returning.must_reach = Some(machine.last_place);
        }
        machine.remake_view(now);
        machine
    }

    /// Takes an event. Times never go back. The actions are to be begun in their order.
    pub fn on_event(&mut self, now: Duration, event: FixedEvent) -> Vec<FixedAction> {
        let pause = if let FixedEvent::Paused { time } = &event { *time } else { Duration::ZERO };
        let stood_still = now + pause > self.last_event + self.rules.lease;
        self.last_event = now;
        if stood_still {
            self.begin_return(now);
        }
        match event {
            FixedEvent::Tick { now_s: seconds } => {
                self.now_s = seconds;
                self.trim(now);
            }
            FixedEvent::Paused { .. } => {}
            FixedEvent::Answered { member, asked, answer } => self.on_answered(now, member, asked, *answer),
            FixedEvent::Silent { member, asked, is_refused, why } => {
                self.on_silent(now, member, asked, is_refused, why);
            }
            FixedEvent::Asked { ticket, message } => self.on_asked(now, ticket, *message),
            FixedEvent::Taken { batch } => self.on_taken(now, batch),
            FixedEvent::TakeFailed { batch, why } => self.on_take_failed(now, batch, why),
            FixedEvent::Rewritten => (self.taking.is_rewriting, self.taking.moved) = (false, now),
            FixedEvent::PurgeRequested { ticket, purge, wish, now_s } => {
                self.on_purge_requested(now, ticket, purge, wish, now_s);
            }
            FixedEvent::RulesChanged(rules) if rules != self.own.rules => {
                self.own.rules = rules;
                self.ask_all(now);
            }
            FixedEvent::RulesChanged(_) => {}
            FixedEvent::Leave => self.on_leave(),
        }
        self.remake_view(now);
        self.turn_return(now);
        self.take_next(now);
        self.ask_due(now);
        self.settle(now);
        std::mem::take(&mut self.actions)
    }

    /// Until when this node may serve. The driver sets the gate before it does an action.
    pub fn gate(&self, now: Duration) -> GateTimes {
        let is_shut = self.is_leaving || !self.returning.is_open || self.has_other_rules() || self.is_stuck(now);
        if is_shut || !self.mark.rules.fits(self.own.rules) {
            return GateTimes::default();
        }
        // A process that stands still finds this time over.
        let running_until = now + self.rules.lease - self.rules.drift();
        let Some(limit) = self.serve_limit else {
            return GateTimes { member_until: running_until, serve_until: running_until };
        };
        let heard = self.others.iter().map(|other| other.heard.unwrap_or(self.returning.came)).min().unwrap_or(now);
        let member_until = running_until.min(heard + self.rules.lease);
        GateTimes { member_until, serve_until: running_until.min((heard + limit).max(member_until)) }
    }

    /// The rules of this node, by which the gate counts.
    pub fn rules_hash(&self) -> RulesHash {
        self.own.rules
    }

    /// Whether the rules of this node are not those of most nodes.
    pub fn has_other_rules(&self) -> bool {
        self.view.rules != self.own.rules
    }

    /// Whether a member was heard in a lease.
    pub fn is_living(&self, other: &OtherMember, now: Duration) -> bool {
        !other.is_down && other.heard.is_some_and(|heard| now < heard + self.rules.lease)
    }

    /// What is known, also what waits.
    pub fn queued(&self) -> &LogExtents {
        &self.queued
    }

    /// The identity of the file.
    pub fn identity(&self) -> u128 {
        self.identity
    }

    pub(super) fn own_log(&self) -> u64 {
        self.identity as u64
    }

    /// Takes what a member has, and this node lacks.
    fn learn(&mut self, message: &SyncMessage) {
        let named = message.extents.keys().chain(message.purges.iter().map(|purge| &purge.log));
        // This node's own log needs a place, too.
        let logs: BTreeSet<u64> = named.chain(self.queued.keys()).copied().chain([self.own_log()]).collect();
        if logs.len() > LOGS_MAX {
            return self.note("fleet: a message of another node names too many logs, and is not taken");
        }
        let through = |queued: &LogExtents, log: &u64| queued.get(log).map_or(0, |extent| extent.through);
        if message.extents.iter().any(|(log, extent)| through(&self.queued, log) < extent.floor) {
            self.purge_everything(message.extents.clone(), "the others no longer keep purges that it missed");
        }
        // A store that stands still does not fill the memory: the others keep what is not taken.
        for purge in &message.purges {
            if self.taking.pending_bytes > PENDING_BYTES_MAX {
                return;
            }
            if purge.number == through(&self.queued, &purge.log) + 1 {
                self.queue(FixedStep::Purge(purge.clone()));
            }
        }
    }

    /// What this node says of itself.
    fn message(&self, purges: Vec<Arc<FixedPurge>>) -> SyncMessage {
        SyncMessage {
            fleet: self.fleet.clone(),
            members: self.members,
            node: self.own.clone(),
            serves: self.returning.is_open && self.returning.knows,
            extents: self.known.extents().clone(),
            purges,
        }
    }

    fn on_answered(&mut self, now: Duration, member: usize, asked: Duration, answer: SyncMessage) {
        let Some(other) = self.others.get_mut(member) else { return };
        (other.is_asking, other.pause) = (false, Duration::ZERO);
        if answer.node.name != other.name || answer.fleet != self.fleet {
            let (name, fleet) = (&answer.node.name, &answer.fleet);
            other.trouble = Some(format!("{name} of the fleet {fleet} answers there"));
            other.ask_at = now + self.rules.lease / 4;
            return;
        }
        other.heard = other.heard.max(Some(asked));
        (other.answered, other.is_down) = (Some(now), false);
        other.trouble = None;
        self.note_member(member, &answer);
        let before = self.last_place;
        self.learn(&answer);
        let own = self.own_log();
        let is_whole = covers(&self.queued, &answer.extents);
        let other = &mut self.others[member];
        // It has more than a message takes, or lacks what was accepted meanwhile.
        let lacks = other.extents.get(&own).map_or(0, |extent| extent.through) < self.known.through(own);
        other.ask_at = if lacks { now } else { now + self.rules.lease / 4 };
        other.is_partial = !is_whole;
        if self.last_place > before && answer.serves {
            self.returning.learnt = now;
        }
        if !is_whole {
            // What is left comes when that is taken.
            return;
        }
        if asked >= self.returning.came {
            other.returned = ReturnAnswer::Asked { serves: answer.serves };
        }
    }

    fn note_member(&mut self, member: usize, message: &SyncMessage) {
        let (members, other) = (self.members, &mut self.others[member]);
        if other.node.as_ref().is_some_and(|node| node.run != message.node.run) {
            // Its new process may have lost what it had.
            other.extents = LogExtents::new();
        }
        other.node = Some(message.node.clone());
        other.differs = message.members != members;
        for (log, extent) in &message.extents {
            if other.extents.len() >= LOGS_MAX && !other.extents.contains_key(log) {
                continue;
            }
            let known = other.extents.entry(*log).or_default();
            known.through = known.through.max(extent.through);
        }
    }

    fn on_silent(&mut self, now: Duration, member: usize, asked: Duration, is_refused: bool, why: String) {
        let most = self.rules.lease / 4;
        let Some(other) = self.others.get_mut(member) else { return };
        other.is_asking = false;
        other.pause = (other.pause * 2).max(PAUSE_MIN).min(most);
        other.ask_at = now + other.pause;
        other.trouble = Some(why);
        if is_refused && other.heard.is_none_or(|heard| heard <= asked) {
            other.is_down = true;
            if asked >= self.returning.came && other.returned == ReturnAnswer::None {
                other.returned = ReturnAnswer::Down;
            }
        }
    }

    fn on_asked(&mut self, now: Duration, ticket: u64, message: SyncMessage) {
        let refused = |why: String| FixedAction::Reply { ticket, result: Err(why) };
        if self.is_leaving {
            return self.actions.push(refused("this node stops".to_owned()));
        }
        let found = self.others.iter().position(|other| other.name == message.node.name);
        let Some(member) = found.filter(|_| message.fleet == self.fleet) else {
            let (name, fleet) = (&message.node.name, &message.fleet);
            let own = &self.own.name;
            return self.actions.push(refused(format!("{name} of the fleet {fleet} is no other member at {own}")));
        };
        let other = &mut self.others[member];
        (other.heard, other.is_down) = (Some(now), false);
        if other.pause > Duration::ZERO {
            // It is there again.
            (other.pause, other.ask_at) = (Duration::ZERO, now);
        }
        if other.returned == ReturnAnswer::Down {
            other.returned = ReturnAnswer::None;
        }
        self.note_member(member, &message);
        self.learn(&message);
        // What the message brought must be durable before it is answered, or the answer would be of no use.
        // A member that asks again no longer waits for the answer before.
        if let Some(former) = self.last_asked.insert(member, ticket)
            && let Some(at) = self.replies.iter().position(|(ticket, ..)| *ticket == former)
        {
            self.replies.swap_remove(at);
            self.actions.push(FixedAction::Reply { ticket: former, result: Err("it has asked again".to_owned()) });
        }
        self.replies.push((ticket, self.last_place, message.extents));
        self.reply();
    }

    /// Answers those who wait for nothing more.
    pub(super) fn reply(&mut self) {
        let place = self.last_place - self.behind();
        let (due, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.replies).into_iter().partition(|(_, must, _)| *must <= place);
        self.replies = rest;
        for (ticket, _, extents) in due {
            let result = Ok(self.message(self.known.above(&extents, None, PURGES_BYTES_MAX)));
            self.actions.push(FixedAction::Reply { ticket, result });
        }
    }

    /// Asks all members soon, but for those that do not answer.
    pub(super) fn ask_all(&mut self, now: Duration) {
        for other in self.others.iter_mut().filter(|other| other.pause.is_zero()) {
            other.ask_at = now;
        }
    }

    /// Asks the members whose turn it is. What this node has accepted, and they lack as far as it knows, goes along; the rest
    /// comes with answers to their own requests.
    fn ask_due(&mut self, now: Duration) {
        if self.is_leaving {
            return;
        }
        for member in 0..self.others.len() {
            let other = &self.others[member];
            if other.is_asking || now < other.ask_at {
                continue;
            }
            let purges = self.known.above(&other.extents, Some(self.own_log()), PURGES_BYTES_MAX);
            let message = self.message(purges);
            self.others[member].is_asking = true;
            // A purge that is taken meanwhile is sent when this one is answered.
            self.others[member].ask_at = now + self.rules.lease / 4;
            self.actions.push(FixedAction::Ask { member, message });
        }
    }

    fn on_leave(&mut self) {
        self.is_leaving = true;
        let replies = std::mem::take(&mut self.replies);
        let stops = || Err("this node stops".to_owned());
        self.actions.extend(replies.into_iter().map(|(ticket, ..)| FixedAction::Reply { ticket, result: stops() }));
    }

    /// Makes the view again after a change of the living nodes.
    fn remake_view(&mut self, now: Duration) {
        let living = self.others.iter().filter(|other| self.is_living(other, now));
        let nodes: Vec<FleetNode> = living.filter_map(|other| other.node.clone()).chain([self.own.clone()]).collect();
        let view = FleetView::new(self.view.number + 1, nodes);
        if view.nodes != self.view.nodes {
            self.view = Arc::new(view);
        }
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.actions.push(FixedAction::Note(text.into()));
    }
}
