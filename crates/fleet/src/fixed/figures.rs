//! The figures of a fixed member.
//!
//! Owns: what is wrong, and what to do about it.

use std::time::Duration;

use nectary_host::PartProblem;
use nectary_host::fleet::{FleetFigures, FleetState, NodeFigures};

use super::known_logs::LogExtents;
use super::machine::{FixedMachine, OtherMember};

impl FixedMachine {
    /// What this node is doing.
    fn state(&self, now: Duration) -> FleetState {
        if self.is_leaving {
            FleetState::Left
        } else if self.is_stuck(now) {
            FleetState::Away
        } else if self.has_other_rules() {
            FleetState::RulesDiffer
        } else if !self.returning.is_open {
            FleetState::CatchingUp
        } else {
            FleetState::Member
        }
    }

    /// The figures. Revisions are numbers of purges: the sum over all logs.
    pub fn figures(&self, now: Duration) -> FleetFigures {
        let gate = self.gate(now);
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let left_ms = |until: Duration| ms(until.saturating_sub(now));
        let (log_purges, log_bytes) = self.known.totals();
        FleetFigures {
            identity: format!("{:032x}", self.identity()),
            node: self.own.name.to_string(),
            state: self.state(now),
            nodes: self.node_figures(now),
            view: self.view.number,
            applied: count(self.known.extents()),
            newest_purge: count(self.queued()),
            purges_behind: self.behind(),
            behind_ms: if self.behind() == 0 { 0 } else { ms(now.saturating_sub(self.taking.moved)) },
            log_purges,
            log_bytes,
            floor: self.known.extents().values().map(|extent| extent.floor).sum(),
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

    fn node_figures(&self, now: Duration) -> Vec<NodeFigures> {
        let own = NodeFigures {
            name: self.own.name.to_string(),
            address: self.own.address.clone(),
            zone: self.own.zone.clone(),
            weight: self.own.weight,
            applied: count(self.known.extents()),
            is_living: true,
            has_common_rules: !self.has_other_rules(),
            is_this: true,
            ..NodeFigures::default()
        };
        let figures_of = |other: &OtherMember| NodeFigures {
            name: other.name.to_string(),
            address: other.name.to_string(),
            zone: other.node.as_ref().map(|node| node.zone.clone()).unwrap_or_default(),
            weight: other.node.as_ref().map_or(0, |node| node.weight),
            applied: count(&other.extents),
            purges_behind: lacking(self.known.extents(), &other.extents),
            is_living: self.is_living(other, now),
            has_common_rules: other.node.as_ref().is_none_or(|node| node.rules == self.view.rules),
            ..NodeFigures::default()
        };
        let mut nodes: Vec<NodeFigures> = self.others.iter().map(figures_of).chain([own]).collect();
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        nodes
    }

    fn problems(&self, now: Duration) -> Vec<PartProblem> {
        let mut problems = Vec::new();
        let mut add = |what: String, remedy: &str| problems.push(PartProblem { what, remedy: remedy.to_owned() });
        match self.state(now) {
            FleetState::RulesDiffer => add(
                "fleet: the rules that make keys differ here from those of most nodes".to_owned(),
                "give all nodes the same sites and routes, and reload them",
            ),
            FleetState::CatchingUp => add(
                "fleet: this node asks the others for purges that it missed, before it serves".to_owned(),
                "wait; if no member answers for six times `lease`, it purges everything and serves",
            ),
            FleetState::Member | FleetState::Left | FleetState::Away => {}
        }
        for other in &self.others {
            let name = &other.name;
            let is_rules = other.node.as_ref().is_some_and(|node| node.rules != self.view.rules);
            match (&other.trouble, self.is_living(other, now)) {
                (Some(trouble), _) => add(
                    format!("fleet: member {name} does not answer: {trouble}"),
                    "start it, or see what is between it and this node; purges name it as missing until it has them",
                ),
                (None, false) => add(
                    format!("fleet: member {name} has not answered yet"),
                    "wait; if it does not end, see whether it runs",
                ),
                (None, true) if is_rules => add(
                    format!("fleet: the rules that make keys differ at node {name}"),
                    "give it the same sites and routes as the others, and reload it",
                ),
                (None, true) => {}
            }
            if other.differs {
                add(
                    format!("fleet: `members` differ at {name} from those here"),
                    "write the same list in [fleet] of all nodes, and restart them",
                );
            }
        }
        let silence = self.is_stuck(now).then(|| "the store or the file does not answer".to_owned());
        if let Some(trouble) = self.taking.trouble.clone().or(silence) {
            add(
                format!("fleet: {} purges are known here and not applied: {trouble}", self.behind()),
                "see the store's problems, and whether the disk of `purge-log` can be written",
            );
        }
        problems
    }
}

/// The purges of these logs.
fn count(extents: &LogExtents) -> u64 {
    extents.values().map(|extent| extent.through).sum()
}

/// The purges that `one` has and `other` lacks.
fn lacking(one: &LogExtents, other: &LogExtents) -> u64 {
    let lacking = |(log, extent): (&u64, &super::known_logs::LogExtent)| {
        extent.through.saturating_sub(other.get(log).map_or(0, |other| other.through))
    };
    one.iter().map(lacking).sum()
}
