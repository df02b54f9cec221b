//! Processes that begin, end and stand still, links that break, and files that are lost.

use super::*;

impl MembersWorld {
    pub(super) fn start(&mut self, node: usize) {
        if self.nodes[node].machine.is_some() {
            return;
        }
        let (fault, new_identity) = (self.fault, u128::from(self.numbers.below(u64::MAX - 1) + 1));
        let (there, is_other_open) = (Some(self.serving_logs()), self.is_other_open(node));
        let own = &mut self.nodes[node];
        own.there = there;
        own.process += 1;
        (own.came_ms, own.was_open, own.stops_until) = (self.now_ms, false, 0);
        let head = own.head.clone();
        let steps = own.lines.iter().map(|line| read_step(line.trim_ascii_end()).expect("a line")).collect();
        let is_new = own.lines.is_empty() && own.mark == AppliedMark::NONE;
        (own.is_new, own.has_seen_serving) = (is_new, is_other_open);
        let mut loaded = LoadedLog { head, steps, is_new };
        if !loaded.fits(own.mark) && fault != PlantedFault::NumbersAgain {
            loaded = loaded.renewed(new_identity);
            (own.head, own.lines) = (loaded.head.clone(), Vec::new());
        }
        let fleet_node = FleetNode {
            name: name_of(node),
            address: name_of(node).to_string(),
            zone: String::new(),
            weight: 1,
            rules: RulesHash(1),
            run: own.process,
            since: 0,
        };
        let members: Vec<NodeName> = (0..NODES).map(name_of).collect();
        let mark = own.mark;
        let now = Duration::from_millis(self.now_ms);
        let fleet = ("f".to_owned(), fleet_node);
        own.machine = Some(FixedMachine::new(rules(), None, fleet, &members, loaded, mark, now));
    }

    pub(super) fn end(&mut self, node: usize) {
        let own = &mut self.nodes[node];
        own.machine = None;
        own.tickets.clear();
        own.ended_ms = self.now_ms;
    }

    pub(super) fn trouble(&mut self) {
        let node = self.numbers.below(NODES as u64) as usize;
        let other = (node + 1 + self.numbers.below(2) as usize) % NODES;
        let pair = (node.min(other), node.max(other));
        match self.numbers.below(7) {
            0 | 1 => {
                self.end(node);
                let delay = self.numbers.below(6000);
                self.later(delay, WorldEvent::Start { node });
            }
            2 => {
                // The file is lost, and with it what no other node has in its own.
                let others = (0..NODES).filter(|other| *other != node);
                let lines = others.flat_map(|other| &self.nodes[other].lines);
                let known: BTreeSet<u64> = lines
                    .filter_map(|line| match read_step(line.trim_ascii_end())? {
                        FixedStep::Purge(logged) => key_of(&logged.purge),
                        FixedStep::Everything(_) => None,
                    })
                    .collect();
                let made = |purge: &u64| self.nodes.iter().all(|node| node.made.contains(purge));
                self.answered.retain(|purge| known.contains(purge) || made(purge));
                self.end(node);
                let identity = match self.fault {
                    PlantedFault::NumbersAgain => self.nodes[node].head.identity,
                    _ => u128::from(self.numbers.below(u64::MAX - 1) + 1),
                };
                let own = &mut self.nodes[node];
                own.head = PurgeLogHead { identity, node: name_of(node), base: 1, extents: LogExtents::new() };
                own.lines.clear();
                if self.fault == PlantedFault::NumbersAgain {
                    own.mark = AppliedMark { fleet: identity, revision: 1, rules: RulesRecord::NONE };
                }
                let delay = self.numbers.below(3000);
                self.later(delay, WorldEvent::Start { node });
            }
            3 if !self.stands_still(node) => {
                let time = self.numbers.below(3 * LEASE_MS);
                self.nodes[node].stops_until = self.now_ms + time;
                if time > LEASE_MS {
                    (self.nodes[node].came_ms, self.nodes[node].was_open) = (self.now_ms + time, false);
                    (self.nodes[node].there, self.nodes[node].has_seen_serving) = (None, false);
                }
            }
            3..=5 => {
                self.cut.insert(pair);
            }
            _ => {
                if self.cut.remove(&pair) {
                    self.linked_ms.insert(pair, self.now_ms);
                }
            }
        }
    }
}
