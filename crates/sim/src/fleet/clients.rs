//! Clients, the origin, and who purges.
//!
//! Owns: requests of objects through a node: the gate is read when the request has come, the store a moment later,
//! and what it lacks is fetched from the origin and stored. What a node may not store passes through it.

use nectary_fleet::machine::FleetEvent;
use nectary_host::fleet::{FleetError, FleetPurge, NodeStanding, PurgeOutcome, PurgeWish};

use super::facts::{PurgeFact, PurgeSelection, URLS};
use super::requests::ObjectRequest;
use super::world::{FleetRunStage, FleetWorld, FleetWorldEvent, MILLISECOND, SECOND};

impl FleetWorld {
    /// A client sends a request to any node.
    pub fn some_request(&mut self) {
        let (node, url) = (self.random.below(self.nodes.len() as u64) as usize, self.random.below(URLS as u64));
        self.request(node, url as usize);
        if self.stage != FleetRunStage::Done {
            let after_us = self.between(50 * MILLISECOND, 350 * MILLISECOND);
            self.plan(after_us, FleetWorldEvent::SomeRequest);
        }
    }

    /// A client sends a request.
    fn request(&mut self, node: usize, url: usize) {
        let request = ObjectRequest::new(url, self.now_us);
        let after_us = self.between(MILLISECOND / 10, 3 * MILLISECOND);
        self.plan(after_us, FleetWorldEvent::Request { node, request });
    }

    /// A request has come to a node.
    pub fn on_request(&mut self, at: usize, request: ObjectRequest) {
        let clock = self.clock(at);
        let Some(process) = &self.nodes[at].process else { return };
        let (run, rules, standing) = (process.run, process.table, process.standing(clock));
        if standing == NodeStanding::ValidateOnly {
            // The origin answers, and nothing is stored.
            return self.coverage.met("request of a node that may not use its store");
        }
        let after_us = if self.random.chance(80) { MILLISECOND / 10 } else { self.between(0, 20 * MILLISECOND) };
        self.plan(
            after_us,
            FleetWorldEvent::Lookup {
                node: at,
                run,
                request: ObjectRequest { came_us: self.now_us, rules, standing, ..request },
            },
        );
    }

    /// A node looks into its store.
    pub fn look_up(&mut self, at: usize, run: u64, request: ObjectRequest) {
        if self.nodes[at].of(run).is_none() {
            return;
        }
        self.check_standing(at, request);
        if self.nodes[at].store.get(request.url, request.rules).is_some() {
            return self.check_response(at, request);
        }
        // A fetch by rules that are no longer in use stores nothing.
        if self.nodes[at].of(run).is_some_and(|process| process.gate_rules != request.rules) {
            return;
        }
        let began = self.nodes[at].store.begin_fill();
        if request.standing == NodeStanding::Member && self.ask_owner(at, request, began) {
            return;
        }
        let after_us = self.origin_time();
        self.plan(after_us, FleetWorldEvent::OriginAnswers { node: at, run, request, began });
    }

    fn origin_time(&mut self) -> u64 {
        let most_us = if self.random.chance(12) { 4 * SECOND } else { 30 * MILLISECOND };
        self.between(MILLISECOND, most_us)
    }

    /// The origin answers; the answer takes some time.
    pub fn on_origin(&mut self, at: usize, run: u64, request: ObjectRequest, began: u64) {
        let (version, after_us) = (self.versions[request.url], self.origin_time());
        self.plan(after_us, FleetWorldEvent::Filled { node: at, run, request, began, version });
    }

    /// The origin's answer is stored.
    pub fn on_filled(&mut self, at: usize, run: u64, request: ObjectRequest, (began, version): (u64, u64)) {
        let Some(process) = self.nodes[at].of(run) else { return };
        process.asks.retain(|_, last| *last != began);
        let is_visible = self.nodes[at].store.put(request.url, request.rules, version, began);
        self.tell(|| {
            let ObjectRequest { url, rules, came_us, .. } = request;
            format!(
                "{at} stores url {url} by rules {} version {version}, came at {came_us}, visible: {is_visible}",
                rules.0
            )
        });
        if !is_visible {
            self.coverage.met("fill stored nothing, as a purge came meanwhile");
        }
        let after_us = self.between(0, 5 * SECOND);
        self.plan(after_us, FleetWorldEvent::FlushObjects { node: at });
    }

    /// Somebody changes objects at the origin and purges them at a node.
    pub fn some_purge(&mut self) {
        if self.stage != FleetRunStage::Work {
            return;
        }
        let after_us = if self.random.chance(25) { 10 * MILLISECOND } else { self.between(0, 4 * SECOND) };
        self.plan(after_us, FleetWorldEvent::SomePurge);
        let at = self.random.below(self.nodes.len() as u64) as usize;
        self.purge_something(at);
    }

    /// Somebody changes objects at the origin and purges them at this node.
    pub fn purge_something(&mut self, at: usize) {
        let wish = if self.random.chance(80) { PurgeWish::Applied } else { PurgeWish::Accepted };
        let target = match self.random.below(20) {
            0 => PurgeSelection::All,
            1..3 => PurgeSelection::Site,
            3..6 => PurgeSelection::Tag(self.random.below(2) as usize),
            _ => PurgeSelection::Url(self.random.below(URLS as u64) as usize),
        };
        self.purge(at, target, wish);
    }

    /// Changes objects at the origin and purges them at a node.
    pub fn purge(&mut self, at: usize, target: PurgeSelection, wish: PurgeWish) {
        let (urls, number) = (target.urls(), self.facts.len());
        let Some(process) = self.nodes[at].process.as_mut().filter(|process| !process.is_leaving) else { return };
        process.tickets += 1;
        let (run, rules, ticket) = (process.run, process.table, process.tickets);
        (0..URLS).filter(|url| urls & 1 << url != 0).for_each(|url| self.versions[url] += 1);
        let soft_since_s = self.random.chance(20).then_some(7).filter(|_| target != PurgeSelection::All);
        let purge = FleetPurge { scope: target.scope(rules, number), soft_since_s, rules };
        let has_keys = matches!(target, PurgeSelection::Url(_) | PurgeSelection::Site);
        self.facts.push(PurgeFact {
            key: (at, run, ticket),
            urls,
            rules: Some(rules).filter(|_| has_keys),
            versions: self.versions,
            logged_us: None,
            applied_us: None,
        });
        self.purges += 1;
        self.tell(|| format!("{at} gets purge {number} of {target:?} by rules {rules}, ticket {ticket}"));
        let after_us = self.between(0, 2 * MILLISECOND);
        let event = FleetEvent::PurgeRequested { ticket, purge, wish };
        self.plan(after_us, FleetWorldEvent::Event { node: at, run, event });
    }

    /// The caller of a purge has an answer.
    pub fn on_answer(&mut self, at: usize, key: (usize, u64, u64), result: Result<PurgeOutcome, FleetError>) {
        let Some(number) = self.facts.iter().position(|fact| fact.key == key) else { return };
        let (now_us, living) = (self.now_us, self.nodes.len());
        match result {
            Ok(outcome) if outcome.is_applied => {
                self.facts[number].applied_us = Some(now_us);
                self.applied.push(number);
                let fact = &self.facts[number];
                let urls = (0..URLS).filter(|url| fact.has(*url));
                urls.for_each(|url| self.least[url] = self.least[url].max(fact.versions[url]));
                self.coverage.met(match outcome.nodes == living {
                    true => "purge applied while all nodes lived",
                    false => "purge applied although a node was away",
                });
                self.ask_everywhere(self.facts[number].urls);
            }
            Ok(outcome) if outcome.is_queued => self.coverage.met("purge queued until etcd was back"),
            Ok(outcome) if !outcome.missing.is_empty() => {
                self.coverage.met("purge answered with missing nodes");
                self.check_missing(at, number, &outcome);
            }
            Err(FleetError::Unknown(_)) => self.coverage.met("purge of unknown outcome"),
            Err(FleetError::RulesDiffer) => self.coverage.met("purge refused by a node with other rules"),
            Ok(_) | Err(_) => {}
        }
    }

    /// Clients ask a node that has just come back.
    pub fn ask_soon(&mut self, node: usize) {
        for url in 0..URLS {
            let after_us = self.between(0, 20 * MILLISECOND);
            let request = ObjectRequest::new(url, self.now_us + after_us);
            self.plan(after_us + MILLISECOND, FleetWorldEvent::Request { node, request });
        }
    }

    /// Clients ask all nodes for what was purged.
    fn ask_everywhere(&mut self, urls: u32) {
        for node in 0..self.nodes.len() {
            for after_us in [0, 30 * MILLISECOND, 400 * MILLISECOND, 3 * SECOND] {
                let url = self.random.below(URLS as u64) as usize;
                if urls & 1 << url == 0 {
                    continue;
                }
                let request = ObjectRequest::new(url, self.now_us + after_us);
                let way_us = self.between(MILLISECOND / 10, 3 * MILLISECOND);
                self.plan(after_us + way_us, FleetWorldEvent::Request { node, request });
            }
        }
    }
}
