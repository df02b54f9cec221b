//! How long a node is waited for before the next one is asked, too.
//!
//! Owns: an estimate, for each node, of the time in which 99 of 100 answers come, and which nodes are left out for a moment as
//! they have not answered several times in a row. A node that waits for a slow origin and shows a sign of life meanwhile is not
//! silent. It is a worker's own. No I/O and no clock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nectary_host::fleet::NodeName;

/// The bounds of the time to wait, and that for a node of which nothing is known.
const WAIT_MIN: Duration = Duration::from_millis(25);
pub(super) const WAIT_MAX: Duration = Duration::from_secs(2);
const WAIT_FIRST: Duration = Duration::from_millis(500);
/// The part of the estimate by which an answer moves it.
const STEP: f64 = 0.05;
/// The answers of 100 that come in the estimated time.
const IN_TIME: f64 = 0.99;
/// So many failures in a row leave a node out, and for so long.
const FAILURES_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// What is known of a node's answers.
#[derive(Debug, Clone, Copy)]
struct PeerPace {
    wait_s: f64,
    /// Its answers so far.
    answers: u64,
    failures: u32,
    away_until: Option<Instant>,
}

/// What is known of all nodes. Nodes that are gone stay: they are few.
#[derive(Debug, Default)]
pub(crate) struct PeerPaces(HashMap<NodeName, PeerPace>);

impl PeerPaces {
    fn of(&mut self, node: &NodeName) -> &mut PeerPace {
        if !self.0.contains_key(node) {
            let pace = PeerPace { wait_s: WAIT_FIRST.as_secs_f64(), answers: 0, failures: 0, away_until: None };
            self.0.insert(node.clone(), pace);
        }
        self.0.get_mut(node).expect("it is there")
    }

    /// How long a node is waited for before the next one is asked.
    pub fn wait(&mut self, node: &NodeName) -> Duration {
        Duration::from_secs_f64(self.of(node).wait_s).clamp(WAIT_MIN, WAIT_MAX)
    }

    /// Whether a node is to be asked at a time. One that was left out is asked once, and left out again if it fails.
    pub fn may_ask(&mut self, node: &NodeName, now: Instant) -> bool {
        self.of(node).away_until.is_none_or(|until| now >= until)
    }

    /// The answers of a node so far, for [`late`](PeerPaces::late).
    pub fn answers(&mut self, node: &NodeName) -> u64 {
        self.of(node).answers
    }

    /// Notes that a node has answered in this time, also if the answer was not waited for.
    pub fn answered(&mut self, node: &NodeName, time: Duration) {
        self.lives(node);
        let pace = self.of(node);
        // Each answer moves the estimate a little: up by 99 parts if it came later, else down by one.
        let step = pace.wait_s * STEP;
        pace.wait_s += if time.as_secs_f64() > pace.wait_s { step * IN_TIME } else { step * (IN_TIME - 1.0) };
        pace.wait_s = pace.wait_s.clamp(WAIT_MIN.as_secs_f64(), WAIT_MAX.as_secs_f64());
    }

    /// Notes that a node lives, whatever it takes for its answers.
    pub fn lives(&mut self, node: &NodeName) {
        let pace = self.of(node);
        pace.answers += 1;
        (pace.failures, pace.away_until) = (0, None);
    }

    /// Notes that a node was not waited for any longer, which had given so many [`answers`](PeerPaces::answers) when it was
    /// asked. If it has given others since, it is only slow.
    pub fn late(&mut self, node: &NodeName, answers: u64, now: Instant) {
        if self.of(node).answers == answers {
            self.failed(node, now);
        }
    }

    /// Notes that a node cannot be asked.
    pub fn failed(&mut self, node: &NodeName, now: Instant) {
        let pace = self.of(node);
        pace.failures += 1;
        if pace.failures >= FAILURES_MAX {
            pace.away_until = Some(now + PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_follow_slow_answers() {
        let (mut paces, node) = (PeerPaces::default(), NodeName::new("b").expect("a name"));
        assert_eq!(paces.wait(&node), WAIT_FIRST);
        for _ in 0..20_000 {
            paces.answered(&node, Duration::from_millis(1));
        }
        assert_eq!(paces.wait(&node), WAIT_MIN);
        for number in 0..20_000 {
            paces.answered(&node, Duration::from_millis(if number % 50 == 0 { 400 } else { 10 }));
        }
        let wait = paces.wait(&node);
        assert!((Duration::from_millis(200)..Duration::from_millis(800)).contains(&wait), "{wait:?}");
    }

    #[test]
    fn silent_nodes_are_left_out_briefly() {
        let (mut paces, node, now) = (PeerPaces::default(), NodeName::new("b").expect("a name"), Instant::now());
        for _ in 1..FAILURES_MAX {
            paces.failed(&node, now);
            assert!(paces.may_ask(&node, now));
        }
        paces.failed(&node, now);
        assert!(!paces.may_ask(&node, now) && paces.may_ask(&node, now + PAUSE));
        paces.failed(&node, now + PAUSE);
        assert!(!paces.may_ask(&node, now + PAUSE), "it was asked once");
        paces.answered(&node, Duration::ZERO);
        assert!(paces.may_ask(&node, now));
    }

    #[test]
    fn slow_nodes_stay_while_they_answer() {
        let (mut paces, node, now) = (PeerPaces::default(), NodeName::new("b").expect("a name"), Instant::now());
        let late = |paces: &mut PeerPaces, answers| {
            (0..FAILURES_MAX).for_each(|_| paces.late(&node, answers, now));
            paces.may_ask(&node, now)
        };
        let answers = paces.answers(&node);
        paces.answered(&node, Duration::from_millis(1));
        assert!(late(&mut paces, answers), "it has answered another request meanwhile");
        let answers = paces.answers(&node);
        assert!(!late(&mut paces, answers), "it is silent");
    }
}
