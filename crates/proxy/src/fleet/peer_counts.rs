//! What this node and the others ask each other, counted by node.
//!
//! Owns: [`PeerCounts`], which all workers share: a question goes over the network, so a counter that several threads write
//! costs nothing beside it; and which nodes could not be asked the last time. What nodes are asked is not among the requests
//! of clients (`stats`): each of those counts at the node to which it came, and only there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nectary_host::PartProblem;
use nectary_host::fleet::{FleetNode, NodeName, PeerFigures, QuestionFigures};

use crate::access_log::CacheOutcome;
use crate::stats::SharedCounter;

/// The nodes that are counted; further ones are not.
const COUNTED_MAX: usize = 1024;

/// A node that could not be asked, and was not asked again for this long, is no longer shown.
const FAILURE_TIME: Duration = Duration::from_secs(60);

/// Questions in one direction.
#[derive(Debug, Default)]
pub(crate) struct QuestionCounters {
    pub questions: SharedCounter,
    pub hits: SharedCounter,
    pub misses: SharedCounter,
    pub refused: SharedCounter,
    pub failed: SharedCounter,
    pub body_bytes: Arc<SharedCounter>,
}

/// What this node and another one have asked each other.
#[derive(Debug, Default)]
pub(crate) struct PeerCounters {
    pub asked: QuestionCounters,
    pub answered: QuestionCounters,
    pub unreachable: SharedCounter,
    pub late: SharedCounter,
    pub hedges_won: SharedCounter,
    pub hedges_lost: SharedCounter,
    /// Why the node could not be asked the last time; `None` if it could.
    failure: Mutex<Option<AskFailure>>,
}

/// Why a process of a node could not be asked.
#[derive(Debug)]
struct AskFailure {
    run: u64,
    why: String,
    at: Instant,
}

/// The counters of all nodes.
#[derive(Debug, Default)]
pub(crate) struct PeerCounts(Mutex<BTreeMap<NodeName, Arc<PeerCounters>>>);

impl QuestionCounters {
    fn figures(&self) -> QuestionFigures {
        QuestionFigures {
            questions: self.questions.get(),
            hits: self.hits.get(),
            misses: self.misses.get(),
            refused: self.refused.get(),
            failed: self.failed.get(),
            body_bytes: self.body_bytes.get(),
        }
    }
}

impl PeerCounters {
    /// Counts an answer of this node to the other one, whose body has so many bytes.
    pub fn note_answer(&self, outcome: CacheOutcome, body_bytes: u64) {
        let answered = &self.answered;
        let counter = match outcome {
            CacheOutcome::Hit => &answered.hits,
            CacheOutcome::Own => &answered.refused,
            CacheOutcome::Failed => &answered.failed,
            _ => &answered.misses,
        };
        counter.add(1);
        answered.body_bytes.add(body_bytes);
    }

    fn failure(&self) -> MutexGuard<'_, Option<AskFailure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the node has answered.
    pub fn note_asked(&self) {
        *self.failure() = None;
    }

    /// Notes why the process with this random number could not be asked.
    pub fn note_failure(&self, run: u64, why: String, at: Instant) {
        *self.failure() = Some(AskFailure { run, why, at });
    }

    /// What is wrong if the node could not be asked the last time, and what to do.
    fn problem(&self, node: &FleetNode, now: Instant) -> Option<PartProblem> {
        let failure = self.failure();
        let is_shown = |it: &&AskFailure| it.run == node.run && now.saturating_duration_since(it.at) < FAILURE_TIME;
        let AskFailure { why, .. } = failure.as_ref().filter(is_shown)?;
        let what = format!("fleet: node {} ({}) cannot be asked for objects: {why}", node.name, node.address);
        let remedy = "see whether its `address` can be reached from here, and whether `ca` has signed the certificates of \
                      both; meanwhile origins get more requests";
        Some(PartProblem { what, remedy: remedy.to_owned() })
    }
}

impl PeerCounts {
    /// The counters of a node.
    pub fn of(&self, node: &NodeName) -> Arc<PeerCounters> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get(node) {
            Some(counters) => counters.clone(),
            None => {
                let counters = Arc::<PeerCounters>::default();
                if counts.len() < COUNTED_MAX {
                    counts.insert(node.clone(), counters.clone());
                }
                counters
            }
        }
    }

    /// What is wrong with the living nodes that could not be asked the last time.
    pub fn problems(&self, nodes: &[FleetNode], now: Instant) -> Vec<PartProblem> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.iter().filter_map(|node| counts.get(&node.name)?.problem(node, now)).collect()
    }

    /// The counters as figures, by name.
    pub fn figures(&self) -> Vec<PeerFigures> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let figures = counts.iter().map(|(name, counters)| PeerFigures {
            name: name.to_string(),
            asked: counters.asked.figures(),
            answered: counters.answered.figures(),
            unreachable: counters.unreachable.get(),
            late: counters.late.get(),
            hedges_won: counters.hedges_won.get(),
            hedges_lost: counters.hedges_lost.get(),
        });
        figures.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nectary_host::fleet::RulesHash;

    #[test]
    fn nodes_that_fail_are_shown() {
        let (counts, at, name) = (PeerCounts::default(), Instant::now(), NodeName::new("b").expect("a name"));
        let (address, zone, rules) = ("b:1".to_owned(), String::new(), RulesHash(1));
        let node = |run| FleetNode {
            name: name.clone(),
            address: address.clone(),
            zone: zone.clone(),
            weight: 1,
            rules,
            run,
            since: 1,
        };
        let shown = |run, seconds| counts.problems(&[node(run)], at + Duration::from_secs(seconds));
        assert_eq!(shown(7, 0), []);
        counts.of(&name).note_failure(7, "no answer".to_owned(), at);
        let problems = shown(7, 59);
        assert!(problems.len() == 1 && problems[0].what.contains("node b (b:1) cannot be asked"), "{problems:?}");
        assert!(problems[0].what.ends_with("no answer"), "{problems:?}");
        assert_eq!((shown(8, 0), shown(7, 60)), (Vec::new(), Vec::new()), "another process, and long ago");
        counts.of(&name).note_asked();
        assert_eq!(shown(7, 0), []);
    }

    #[test]
    fn counted_nodes_are_bounded() {
        let counts = PeerCounts::default();
        for number in 0..=COUNTED_MAX {
            let name = NodeName::new(&format!("n{number}")).expect("a name");
            counts.of(&name).note_answer(CacheOutcome::Hit, 3);
            counts.of(&name).note_answer(CacheOutcome::Revalidated, 4);
        }
        let figures = counts.figures();
        assert_eq!(figures.len(), COUNTED_MAX);
        let expected = QuestionFigures { hits: 1, misses: 1, body_bytes: 7, ..QuestionFigures::default() };
        assert!(figures.iter().all(|peer| peer.answered == expected));
    }
}
