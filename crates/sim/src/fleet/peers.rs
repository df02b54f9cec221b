//! Nodes that share keys: the owner of an object is asked, and what it answers is kept in memory.
//!
//! Owns: the driver's part of `docs/formats/fleet.md` about requests between nodes: an owner answers when it has
//! applied what the asking node has, and a copy is kept only if the owner had applied all that the asking node had
//! begun to apply. A slow owner is not waited for: the origin is asked as well, and the first answer counts.

use nectary_fleet::shares::FleetShares;
use nectary_host::fleet::NodeStanding;

use super::bugs::{FleetBug, is_planted};
use super::facts::key_of;
use super::requests::{ObjectRequest, PeerRequest};
use super::world::{FleetWorld, FleetWorldEvent, MILLISECOND};

/// How long an owner waits until it has applied what the asking node has.
const WAIT_US: u64 = 500 * MILLISECOND;

impl FleetWorld {
    fn peer_time(&mut self) -> u64 {
        let most_us = if self.random.chance(25) { 400 * MILLISECOND } else { 3 * MILLISECOND };
        self.between(MILLISECOND / 5, most_us)
    }

    /// Asks the owner of an object, if that is another node; returns whether it does.
    pub fn ask_owner(&mut self, at: usize, request: ObjectRequest, began: u64) -> bool {
        let number = self.number();
        let node = &mut self.nodes[at];
        let least = node.store.least_of(request.url);
        let Some(process) = node.process.as_mut().filter(|_| self.settings.are_shared) else { return false };
        let shares = FleetShares::new(process.machine.view().clone(), &node.name);
        let owners = shares.owners(&key_of(request.rules, request.url));
        let Some(name) = owners.others().next().map(|owner| owner.name.clone()) else { return false };
        let (run, fleet, applied) = (process.run, process.machine.mark().fleet, process.machine.applied());
        let begun = process.begun;
        process.asks.insert(number, began);
        let Some(owner) = self.nodes.iter().position(|node| node.name == name) else { return false };
        let until_us = self.now_us + WAIT_US;
        let ask = PeerRequest {
            node: at,
            run,
            owner,
            number,
            request,
            began,
            fleet,
            applied,
            begun,
            least,
            until_us,
            seen: 0,
        };
        let (after_us, patience_us) = (self.peer_time(), self.between(20 * MILLISECOND, 150 * MILLISECOND));
        self.plan(patience_us, FleetWorldEvent::Impatient(ask.clone()));
        self.plan(after_us, FleetWorldEvent::PeerAsks(ask));
        true
    }

    /// A request of another node has come to an owner.
    pub fn on_peer(&mut self, mut ask: PeerRequest) {
        let clock = self.clock(ask.owner);
        let owner = &mut self.nodes[ask.owner];
        let Some(process) = owner.process.as_mut() else { return };
        let is_member = process.standing(clock) == NodeStanding::Member && process.table == ask.request.rules;
        if !is_member || process.machine.mark().fleet != ask.fleet {
            return;
        }
        ask.seen = process.machine.applied();
        if ask.seen < ask.applied && !is_planted(FleetBug::OwnerBehind) {
            if self.now_us < ask.until_us {
                self.plan(10 * MILLISECOND, FleetWorldEvent::PeerAsks(ask));
            }
            return;
        }
        if let Some(stored) = owner.store.get(ask.request.url, ask.request.rules) {
            let (version, after_us) = (stored.version, self.peer_time());
            return self.plan(after_us, FleetWorldEvent::PeerAnswers(ask, version));
        }
        let (run, began, after_us) = (process.run, owner.store.begin_fill(), self.peer_time());
        self.plan(after_us, FleetWorldEvent::OwnerFetches { run, began, ask });
    }

    /// The origin answers an owner, which stores it and answers.
    pub fn on_owner_fetch(&mut self, run: u64, began: u64, ask: PeerRequest) {
        let (version, after_us) = (self.versions[ask.request.url], self.peer_time());
        if self.nodes[ask.owner].of(run).is_some() {
            self.nodes[ask.owner].store.put(ask.request.url, ask.request.rules, version, began);
            self.plan(after_us, FleetWorldEvent::PeerAnswers(ask, version));
        }
    }

    /// An owner has answered.
    pub fn on_peer_answer(&mut self, ask: PeerRequest, version: u64) {
        let Some(process) = self.nodes[ask.node].of(ask.run) else { return };
        if process.asks.remove(&ask.number).is_none() {
            return;
        }
        let is_later = is_planted(FleetBug::SecondOvertakes);
        let began = if is_later { self.nodes[ask.node].store.begin_fill() } else { ask.began };
        self.coverage.met("response of an owner");
        if ask.seen >= ask.begun || is_planted(FleetBug::CopySurvives) {
            self.nodes[ask.node].store.put_copy(ask.request.url, ask.request.rules, version, began);
            self.coverage.met("copy kept in memory");
        } else {
            self.coverage.met("copy not kept, as the owner was behind");
        }
        self.check_answer(&ask, version);
    }

    /// An owner has not answered for some time: the origin is asked, in the fill that has begun before.
    pub fn on_impatience(&mut self, ask: PeerRequest) {
        let Some(process) = self.nodes[ask.node].of(ask.run) else { return };
        if !process.asks.contains_key(&ask.number) {
            return;
        }
        self.coverage.met("slow owner not waited for");
        let PeerRequest { node, run, request, began, .. } = ask;
        self.plan(MILLISECOND, FleetWorldEvent::OriginAnswers { node, run, request, began });
    }
}
