//! The figures of the machine.
//!
//! Owns: what is wrong, and what to do about it. Leaves to others: the names of fleet and connection (the driver).

use std::collections::BTreeMap;
use std::time::Duration;

use nectary_host::PartProblem;
use nectary_host::fleet::{FleetFigures, FleetState, NodeFigures, RulesHash};

use super::FleetMachine;
use crate::shares::FleetShares;

/// A node that has not applied a purge for this long is shown.
const BEHIND_MAX: Duration = Duration::from_secs(5);

/// A process that has the name of this node, and says so again and again, is shown for this long.
const CLAIM_TIME: Duration = Duration::from_secs(10);

/// The different rules that a problem names.
const RULES_SHOWN_MAX: usize = 4;

/// What this process has done.
#[derive(Debug, Default)]
pub(super) struct MachineCounts {
    pub accepted: u64,
    pub refused: u64,
    pub applied: u64,
    pub everything_purged: u64,
    pub cuts: u64,
}

impl FleetMachine {
    /// What this node is doing.
    pub fn state(&self, now: Duration) -> FleetState {
        if self.is_leaving {
            FleetState::Left
        } else if !self.is_member(now) {
            FleetState::Away
        } else if self.has_other_rules() {
            FleetState::RulesDiffer
        } else if !self.is_caught_up() {
            FleetState::CatchingUp
        } else {
            FleetState::Member
        }
    }

    /// The figures, without the names that the machine does not know.
    pub fn figures(&self, now: Duration) -> FleetFigures {
        let gate = self.gate();
        let left_ms = |until: Duration| u64::try_from(until.saturating_sub(now).as_millis()).unwrap_or(u64::MAX);
        FleetFigures {
            identity: if self.identity == 0 { String::new() } else { format!("{:032x}", self.identity) },
            node: self.own.name.to_string(),
            state: self.state(now),
            nodes: self.node_figures(),
            view: self.view.number,
            applied: self.applied(),
            newest_purge: self.log.newest,
            purges_behind: self.log.behind(),
            behind_ms: self.log.behind_since.map_or(0, |since| left_ms_since(now, since)),
            log_purges: self.log.totals.purges,
            log_bytes: self.log.totals.bytes,
            floor: self.log.floor,
            purges_queued: self.requests.queued(),
            purges_accepted: self.counts.accepted,
            purges_refused: self.counts.refused,
            purges_applied: self.counts.applied,
            everything_purged: self.counts.everything_purged,
            cuts: self.counts.cuts,
            member_ms_left: left_ms(gate.member_until),
            serve_ms_left: left_ms(gate.serve_until),
            problems: self.problems(now),
            ..FleetFigures::default()
        }
    }

    fn node_figures(&self) -> Vec<NodeFigures> {
        let shares = FleetShares::new(self.view.clone(), &self.own.name).parts();
        let figures = self.view.nodes.iter().zip(shares).map(|(node, share)| {
            let applied = self.nodes.get(&node.name).map_or(0, |known| known.applied);
            let is_this = node.name == self.own.name;
            let applied = if is_this { applied.max(self.applied()) } else { applied };
            NodeFigures {
                name: node.name.to_string(),
                address: node.address.clone(),
                zone: node.zone.clone(),
                weight: node.weight,
                share,
                applied,
                purges_behind: self.log.behind_of(applied),
                is_living: true,
                has_common_rules: node.rules == self.view.rules,
                is_this,
            }
        });
        figures.collect()
    }

    fn problems(&self, now: Duration) -> Vec<PartProblem> {
        let mut problems = Vec::new();
        let mut add = |what: String, remedy: &str| problems.push(PartProblem { what, remedy: remedy.to_owned() });
        let why = |trouble: &Option<String>| trouble.clone().unwrap_or_else(|| "it is joining".to_owned());
        let store_trouble = self.log.store_trouble.as_deref();
        match self.state(now) {
            FleetState::Away if self.is_stuck(now) => add(
                format!(
                    "fleet: this node is not a member: its store does not apply purges ({})",
                    store_trouble.unwrap_or("it has not answered")
                ),
                "see the store's problems in `nectary status`; the node joins by itself when the store can be written",
            ),
            FleetState::Away => {
                add(format!("fleet: this node is not a member: {}", why(&self.lease.trouble)), &self.away_remedy(now))
            }
            FleetState::RulesDiffer => add(
                format!("fleet: the rules that make keys are not those of most nodes here: {}", self.rules_of_nodes()),
                "give all nodes the same sites and routes, and reload them",
            ),
            FleetState::CatchingUp if !self.log.is_read => add(
                "fleet: this node reads the log of purges, before it serves".to_owned(),
                "wait; if it does not end, see whether etcd is up and reachable from here",
            ),
            FleetState::CatchingUp => add(
                format!("fleet: this node applies {} purges that it missed, before it serves", self.log.behind()),
                "wait; if the number does not fall, see the store's problems",
            ),
            FleetState::Member | FleetState::Left => {}
        }
        if self.log.behind_since.is_some_and(|since| now > since + BEHIND_MAX) {
            add(
                format!(
                    "fleet: {} purges are known here and not applied yet{}",
                    self.log.behind(),
                    store_trouble.map(|why| format!(": {why}")).unwrap_or_default()
                ),
                "see whether the store can be written",
            );
        }
        if let Some(trouble) = &self.log.trouble {
            add(format!("fleet: {trouble}"), "see whether etcd is up and reachable from here");
        }
        if let Some((process, _)) = self.lease.claim.as_ref().filter(|(_, at)| now < *at + CLAIM_TIME) {
            add(
                format!("fleet: another process ({process}) would be the node {}, too", self.own.name),
                "give it another `node` in [fleet], or stop it",
            );
        }
        let others = self.nodes.values().filter(|known| known.node.name != self.own.name);
        for known in others.filter(|known| known.behind_since.is_some_and(|since| now > since + BEHIND_MAX)) {
            let (name, seconds) = (&known.node.name, BEHIND_MAX.as_secs());
            add(
                format!("fleet: node {name} has not confirmed a purge for more than {seconds} s"),
                "see `nectary fleet status` at that node; purges wait for it until its lease ends",
            );
        }
        if self.cannot_publish() {
            add(
                "fleet: the others cannot learn what this node has applied: writing to etcd fails".to_owned(),
                "see whether etcd has room (`etcdctl alarm list`), and whether this node may write to it",
            );
        }
        if let Some(trouble) = &self.requests.trouble {
            add(
                format!("fleet: the last purge at this node is not in the log: {trouble}"),
                "see whether etcd has room (`etcdctl alarm list`), and whether this node may write to it",
            );
        }
        for node in self.view.nodes.iter().filter(|node| node.rules != self.view.rules && node.name != self.own.name) {
            add(
                format!("fleet: the rules that make keys differ at node {}: {}", node.name, self.rules_of_nodes()),
                "give it the same sites and routes as the others, and reload it",
            );
        }
        for (index, node) in self.view.nodes.iter().enumerate().filter(|(_, node)| !node.address.is_empty()) {
            if let Some(other) = self.view.nodes[..index].iter().find(|other| other.address == node.address) {
                let (first, second, address) = (&other.name, &node.name, &node.address);
                add(
                    format!("fleet: the nodes {first} and {second} have the same `address` {address}"),
                    "give each node the `address` at which the others reach it alone",
                );
            }
        }
        if self.requests.queued() > 0 {
            let queued = self.requests.queued();
            add(format!("fleet: {queued} purges wait until etcd can be reached"), "do not stop this process before");
        }
        problems
    }

    /// How many nodes have which rules, by the first digits of their hashes.
    fn rules_of_nodes(&self) -> String {
        let mut counts = BTreeMap::<RulesHash, usize>::new();
        self.view.nodes.iter().for_each(|node| *counts.entry(node.rules).or_default() += 1);
        let all = self.view.nodes.len();
        let parts = counts.iter().take(RULES_SHOWN_MAX).map(|(rules, count)| {
            let digits = rules.to_string();
            format!("{} at {count} of {all}", digits.get(..8).unwrap_or(&digits))
        });
        parts.collect::<Vec<_>>().join(", ")
    }

    /// What to do as this node is no member, and what its clients get meanwhile.
    fn away_remedy(&self, now: Duration) -> String {
        let taken = match self.lease.is_holder_gone {
            true => "wait; if this lasts, a process in another container is this node, too: give it another `node`",
            false => "give one of the two another `node` in [fleet], or stop it; a killed one counts for a `lease`",
        };
        if self.lease.is_name_taken {
            return taken.to_owned();
        }
        let served = match self.gate().serve_until.saturating_sub(now).as_secs() {
            0 => "meanwhile origins answer, within `validate-when-cut`".to_owned(),
            seconds => format!("the store is served for {seconds} s more"),
        };
        format!("see whether etcd is up and reachable from here; {served}")
    }
}

fn left_ms_since(now: Duration, since: Duration) -> u64 {
    u64::try_from(now.saturating_sub(since).as_millis()).unwrap_or(u64::MAX)
}
