//! What this node and the others ask each other, counted by node.
//!
//! Owns: [`PeerCounts`], which all workers share: a question goes over the network, so a counter that several threads write
//! costs nothing beside it. What nodes are asked is not among the requests of clients (`stats`): each of those counts at the
//! node to which it came, and only there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use nectary_host::fleet::{NodeName, PeerFigures, QuestionFigures};

use crate::access_log::CacheOutcome;
use crate::stats::SharedCounter;

/// The nodes that are counted; further ones are not.
const COUNTED_MAX: usize = 1024;

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
