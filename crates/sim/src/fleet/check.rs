//! What must hold: of each response, each batch, each mark, and at the end.
//!
//! A response of a member that was requested after a purge was answered as applied does not show what it purged. A
//! node that is cut may show it for `serve-when-cut` after etcd has kept its lease. What a store has purged never
//! comes back, for any client. A batch has its purges in order, and no mark is before a purge.

use nectary_host::fleet::{AppliedMark, FleetState, LoggedPurge, NodeStanding, PurgeOutcome, PurgeWish};

use super::bugs::{FleetBug, is_planted};
use super::facts::{PurgeSelection, URLS};
use super::requests::{ObjectRequest, PeerRequest};
use super::world::{FleetRunStage, FleetWorld, FleetWorldEvent, MILLISECOND, SECOND};

/// Slowness of clocks, in millionths, and a moment.
const CUT_SLACK: (u64, u64) = (1_050_000, 10 * MILLISECOND);

impl FleetWorld {
    /// How long a node may serve what was purged, as it is cut off.
    fn cut_until(&self, at: usize) -> u64 {
        let cut_us = self.settings.rules.serve_when_cut.as_micros() as u64;
        self.nodes[at].member_us + cut_us * CUT_SLACK.0 / SECOND + CUT_SLACK.1
    }

    /// Checks that a member has made the purges that were applied before the request was sent.
    pub fn check_standing(&mut self, at: usize, request: ObjectRequest) {
        if request.standing != NodeStanding::Member {
            return;
        }
        let store = &mut self.nodes[at].store;
        while let Some(number) = self.applied.get(store.checked) {
            let fact = &self.facts[*number];
            let is_before = fact.applied_us.is_some_and(|applied| applied < request.sent_us);
            match store.has_made(*number, fact.logged_us.unwrap_or(0)) {
                true => store.checked += 1,
                false if is_before => {
                    let broken = format!("node {at} is a member and serves without purge {number}, which was applied");
                    return self.break_with(broken);
                }
                false => return,
            }
        }
    }

    /// Checks what a node answers from its store.
    pub fn check_response(&mut self, at: usize, request: ObjectRequest) {
        let ObjectRequest { url, sent_us, came_us, rules, standing } = request;
        let store = &self.nodes[at].store;
        let Some(stored) = store.get(url, rules).cloned() else { return };
        self.responses += 1;
        let version = stored.version;
        let is_older = version < self.least[url];
        let shown = self.facts.iter().enumerate().filter(|_| is_older).find(|(_, fact)| {
            let is_applied = fact.applied_us.is_some_and(|applied| applied < sent_us);
            is_applied && fact.has(url) && version < fact.versions[url]
        });
        let is_purged = version < store.least[url];
        let back = store.made.iter().filter(|_| is_purged).find(|made| {
            // A purge by other rules may miss the object; the gate is shut when the batch is applied.
            let rules = made.fact.and_then(|fact| self.facts[fact].rules);
            let is_hit =
                made.ended_us.is_some_and(|ended| ended < came_us) || rules.is_none_or(|rules| rules == stored.rules);
            is_hit && made.urls & 1 << url != 0 && version < made.versions[url]
        });
        let (is_cut, is_shown) = (standing == NodeStanding::Cut, shown.is_some());
        let may_show = is_cut && came_us <= self.cut_until(at);
        let broken = match (shown, back) {
            (_, Some(made)) => Some(format!(
                "node {at} shows version {version} of url {url} again, which it has purged ({:?})",
                made.fact
            )),
            (Some((number, _)), None) if !may_show => Some(format!(
                "node {at}, {standing:?}, shows version {version} of url {url}, which the applied purge {number} purged"
            )),
            _ => None,
        };
        self.coverage.met(if is_cut { "response of a node that is cut" } else { "response of a member" });
        if is_cut && is_shown {
            self.coverage.met("response of a node that is cut, of what was purged");
        }
        self.tell(|| format!("{at} serves url {url} by rules {} version {version}, {standing:?}", rules.0));
        broken.into_iter().for_each(|broken| self.break_with(broken));
    }

    /// Checks what an owner has answered for a node.
    pub fn check_answer(&mut self, ask: &PeerRequest, version: u64) {
        let ObjectRequest { url, sent_us, .. } = ask.request;
        self.responses += 1;
        let is_older = version < self.least[url];
        let shown = self.facts.iter().filter(|_| is_older).any(|fact| {
            let is_applied = fact.applied_us.is_some_and(|applied| applied < sent_us);
            is_applied && fact.has(url) && version < fact.versions[url]
        });
        if shown || version < ask.least {
            let (owner, node) = (ask.owner, ask.node);
            let why = if shown { "a purge that was applied" } else { "a purge of this node" };
            self.break_with(format!("owner {owner} gives node {node} version {version} of url {url}, against {why}"));
        }
    }

    /// Checks a batch before it is made.
    pub fn check_batch(&mut self, at: usize, purges: &[LoggedPurge], mark: AppliedMark) {
        let has = self.nodes[at].store.mark;
        let is_ordered = purges.windows(2).all(|pair| pair[0].revision < pair[1].revision);
        let is_marked = purges.last().is_none_or(|last| last.revision == mark.revision);
        let is_back = has.fleet == mark.fleet && mark.revision < has.revision && !self.is_cleared(purges);
        let is_alone =
            self.nodes[at].process.as_ref().is_none_or(|process| process.batches.values().all(|it| it.batch.is_none()));
        let is_alone = is_alone || is_planted(FleetBug::ReportedBeforeApplied);
        if !is_ordered || !is_marked || is_back || !is_alone {
            let revisions: Vec<u64> = purges.iter().map(|purge| purge.revision).collect();
            self.break_with(format!("node {at} with {has:?} gets a batch of {revisions:?} and {mark:?}"));
        }
    }

    fn is_cleared(&self, purges: &[LoggedPurge]) -> bool {
        purges.iter().any(|logged| FleetWorld::is_everything(&logged.purge))
    }

    /// Checks that a store has made each purge of the log up to its mark.
    pub fn check_mark(&mut self, at: usize, mark: AppliedMark) {
        let identity = self.etcd.model.identity();
        let node = &self.nodes[at];
        if identity != Some(mark.fleet) || self.now_us < self.etcd.down_until_us {
            return;
        }
        let of = |name: &nectary_host::fleet::NodeName| self.nodes.iter().position(|node| node.name == *name);
        let missed =
            self.etcd.model.logged().filter(|(_, revision)| *revision <= mark.revision).find_map(|(key, _)| {
                let key = (of(&key.0)?, key.1, key.2);
                let number = self.facts.iter().position(|fact| fact.key == key)?;
                (!node.store.has_made(number, self.facts[number].logged_us.unwrap_or(0))).then_some(number)
            });
        if let Some(number) = missed {
            self.break_with(format!("node {at} says that it has applied {mark:?}, without purge {number}"));
        }
    }

    /// Checks that no node has held up a purge for several leases.
    pub fn check_missing(&mut self, at: usize, number: usize, outcome: &PurgeOutcome) {
        let Some(logged_us) = self.facts[number].logged_us else { return };
        let is_quiet = self.nodes[at].troubled_until_us.max(self.etcd.down_until_us) < logged_us;
        if !is_quiet || self.now_us < logged_us + self.settings.lease_us * 4 {
            return;
        }
        let held = outcome
            .missing
            .iter()
            .find(|name| self.etcd.model.node(name).is_some_and(|node| node.since <= outcome.revision));
        if let Some(name) = held {
            self.break_with(format!("node {name} lives, and has held up purge {number} for more than four leases"));
        }
    }

    /// Goes on with the next stage if this one is over.
    pub fn advance_stage(&mut self) {
        let limit_us = self.stage_us + self.settings.heal_us + self.settings.lease_us * 5 + 30 * SECOND;
        match self.stage {
            FleetRunStage::Work => {
                self.heal();
                (self.stage, self.stage_us) = (FleetRunStage::Settle, self.now_us);
            }
            FleetRunStage::Settle if self.now_us <= self.stage_us + self.settings.heal_us + SECOND => {}
            FleetRunStage::Settle => match self.unsettled() {
                None => {
                    (self.stage, self.stage_us, self.first_of_last) =
                        (FleetRunStage::Last, self.now_us, self.facts.len());
                    for node in 0..self.nodes.len() {
                        self.purge(node, PurgeSelection::Url(node % URLS), PurgeWish::Applied);
                    }
                }
                Some(why) if self.now_us > limit_us => self.break_with(format!("nothing fails any more, but {why}")),
                Some(_) => {}
            },
            FleetRunStage::Last => {
                let open = self.facts[self.first_of_last..].iter().find(|fact| fact.applied_us.is_none());
                let last_us = self.facts.iter().filter_map(|fact| fact.applied_us).max().unwrap_or(0);
                match open.map(|fact| fact.key) {
                    None if self.now_us > last_us + 4 * SECOND => self.stage = FleetRunStage::Done,
                    Some(key) if self.now_us > limit_us => {
                        self.break_with(format!("nothing fails any more, but purge {key:?} is not applied"));
                    }
                    _ => {}
                }
            }
            FleetRunStage::Done => {}
        }
        self.plan(200 * MILLISECOND, FleetWorldEvent::Settled);
    }

    /// What is not as it should be when nothing fails.
    fn unsettled(&self) -> Option<String> {
        if self.etcd.model.living() != self.nodes.len() {
            return Some(format!("{} nodes live", self.etcd.model.living()));
        }
        (0..self.nodes.len()).find_map(|at| {
            let (node, clock) = (&self.nodes[at], self.clock(at));
            let Some(process) = &node.process else { return Some(format!("node {at} does not run")) };
            let Some(known) = self.etcd.model.node(&node.name) else { return Some(format!("node {at} does not live")) };
            let (state, view) = (process.machine.state(clock), process.machine.view());
            if state != FleetState::Member || process.machine.mark().fleet != self.etcd.model.identity().unwrap_or(0) {
                return Some(format!("node {at} is {state:?} with {:?}", process.machine.mark()));
            }
            if known.run != process.run || known.rules != process.table {
                return Some(format!("etcd has {known:?} of node {at} with rules {}", process.table));
            }
            let is_known = view.nodes.len() == self.nodes.len() && view.nodes.iter().all(|it| it.rules == known.rules);
            (!is_known).then(|| format!("node {at} knows {view:?}"))
        })
    }
}
