//! Decides whether calls on names, attributes and contents can be explained: whether there is an order of them in which
//! each has its outcome, and in which no call comes before one that had ended when it began.
//!
//! Owns: the search of Wing and Gong with remembered states (Lowe, *Testing for linearizability*, 2017), for a whole tree
//! instead of one value. A call that only shows something, or is refused, is taken as soon as it can be: later it would
//! explain no more. Optional calls may be left out; a call that needs others is left out with any of them. *Cost*:
//! exponential in the number of concurrent changes, linear in the number of all calls.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use super::tree::{ModelTree, NamesCall, TreeEffect, TreeOutcome};
use crate::volume::OrderVerdict;

/// The largest number of states that a search visits.
const STATES_MAX: usize = 300_000;
/// The end of a call that has not ended.
pub const NEVER: u64 = u64::MAX;

/// A call, as the search sees it.
#[derive(Debug, Clone)]
pub struct OrderStep {
    pub invoked: u64,
    /// After this time it has no effect.
    pub returned: u64,
    pub call: NamesCall,
    /// `None`: it is not known.
    pub outcome: Option<TreeOutcome>,
    /// Whether it may be left out.
    pub is_optional: bool,
    /// The indices of calls without which it did not happen.
    pub needs: Vec<usize>,
}

/// The result of a search.
#[derive(Debug)]
pub struct OrderExplanation {
    pub verdict: OrderVerdict,
    /// The number of calls in the longest order, and the first required call that has no place in it.
    pub longest: usize,
    pub stuck: Option<usize>,
}

/// Searches for an order of calls, from a tree on. The calls are in the order of their begin.
pub fn explain(steps: &[OrderStep], tree: ModelTree) -> OrderExplanation {
    let required = steps.iter().filter(|step| !step.is_optional).count();
    let mut search = TreeOrderSearch {
        steps,
        done: vec![false; steps.len()],
        seen: HashSet::new(),
        first: 0,
        latest: 0,
        required,
        placed: 0,
        longest: 0,
        stuck: None,
    };
    let verdict = match search.from(Rc::new(tree)) {
        Some(true) => OrderVerdict::Explained,
        Some(false) => OrderVerdict::Broken,
        None => OrderVerdict::Unknown,
    };
    OrderExplanation { verdict, longest: search.longest, stuck: search.stuck }
}

struct TreeOrderSearch<'a> {
    steps: &'a [OrderStep],
    done: Vec<bool>,
    seen: HashSet<u64>,
    /// The first call that has no place in the order yet.
    first: usize,
    /// The latest begin among the calls in the order.
    latest: u64,
    /// The number of calls that still need a place.
    required: usize,
    placed: usize,
    longest: usize,
    stuck: Option<usize>,
}

/// A call that was chosen, and the state of the search before it.
struct TreeOrderChoice {
    at: usize,
    first: usize,
    latest: u64,
    tree: Rc<ModelTree>,
    left: Vec<(usize, Rc<ModelTree>)>,
}

impl TreeOrderSearch<'_> {
    fn from(&mut self, mut tree: Rc<ModelTree>) -> Option<bool> {
        let mut choices: Vec<TreeOrderChoice> = Vec::new();
        let mut left = self.candidates(&tree);
        loop {
            if self.required == 0 {
                return Some(true);
            }
            match left.pop() {
                Some((at, after)) => {
                    let choice = TreeOrderChoice { at, first: self.first, latest: self.latest, tree, left };
                    self.take(at);
                    choices.push(choice);
                    tree = after;
                    left = if self.is_new(&tree) { self.candidates(&tree) } else { Vec::new() };
                    if self.seen.len() > STATES_MAX {
                        return None;
                    }
                }
                None => {
                    let Some(choice) = choices.pop() else { return Some(false) };
                    self.done[choice.at] = false;
                    self.placed -= 1;
                    self.required += usize::from(!self.steps[choice.at].is_optional);
                    (self.first, self.latest, tree, left) = (choice.first, choice.latest, choice.tree, choice.left);
                }
            }
        }
    }

    fn take(&mut self, at: usize) {
        let step = &self.steps[at];
        self.done[at] = true;
        self.placed += 1;
        self.latest = self.latest.max(step.invoked);
        self.required -= usize::from(!step.is_optional);
        while self.first < self.done.len() && self.done[self.first] {
            self.first += 1;
        }
        if self.placed > self.longest {
            self.longest = self.placed;
            let is_left = |at: &usize| !self.done[*at] && !self.steps[*at].is_optional;
            self.stuck = (self.first..self.steps.len()).filter(is_left).min_by_key(|at| self.steps[*at].returned);
        }
    }

    fn is_new(&mut self, tree: &ModelTree) -> bool {
        let mut hasher = DefaultHasher::new();
        self.first.hash(&mut hasher);
        (self.first..self.steps.len()).filter(|at| self.done[*at]).for_each(|at| at.hash(&mut hasher));
        tree.hash(&mut hasher);
        self.seen.insert(hasher.finish())
    }

    /// Returns the calls that may be next, each with the tree after it; the most likely call is the last: what was answered
    /// first was nearly always done first, and what was lost was done last.
    fn candidates(&self, tree: &Rc<ModelTree>) -> Vec<(usize, Rc<ModelTree>)> {
        // A call that had ended before another began must come first, unless it may be left out.
        let (mut until, mut may_be_next) = (NEVER, Vec::new());
        // A call that may be left out must be taken before one that begins after its end, or never.
        let mut optional_until = NEVER;
        for at in self.first..self.steps.len() {
            let step = &self.steps[at];
            if step.invoked > until {
                break;
            }
            if self.done[at] {
                continue;
            }
            match step.is_optional {
                true => optional_until = optional_until.min(step.returned),
                false => until = until.min(step.returned),
            }
            may_be_next.push(at);
        }
        let is_next = |step: &OrderStep| step.invoked <= until && step.returned >= self.latest;
        let mut found = Vec::new();
        for at in may_be_next {
            let step = &self.steps[at];
            if !is_next(step) || !step.needs.iter().all(|needed| self.done[*needed]) {
                continue;
            }
            // A change that changes nothing now may change something later.
            let is_look = !step.call.is_change() || matches!(step.outcome, Some(TreeOutcome::Refused(_)));
            let is_prompt = is_look && !step.is_optional && step.invoked <= optional_until;
            match tree.effect(&step.call, step.outcome.as_ref()) {
                TreeEffect::Impossible => {}
                TreeEffect::Seen if is_prompt => return vec![(at, tree.clone())],
                TreeEffect::Seen => found.push((at, tree.clone())),
                TreeEffect::Changed(after) => found.push((at, Rc::from(after))),
            }
        }
        found.sort_by_key(|(at, _)| {
            let step = &self.steps[*at];
            (step.outcome.is_some(), std::cmp::Reverse(step.returned))
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::ROOT;
    use super::*;

    fn step(invoked: u64, returned: u64, call: NamesCall, outcome: TreeOutcome) -> OrderStep {
        OrderStep { invoked, returned, call, outcome: Some(outcome), is_optional: false, needs: Vec::new() }
    }

    fn make(tag: u64) -> NamesCall {
        NamesCall::Make { place: (ROOT, 1), tag, mode: 0o644, is_directory: false }
    }

    fn look(invoked: u64, returned: u64, found: Option<u64>) -> OrderStep {
        step(invoked, returned, NamesCall::Look((ROOT, 1)), TreeOutcome::Found(found))
    }

    #[test]
    fn what_was_seen_stays_seen() {
        let verdict = |steps: &[OrderStep]| explain(steps, ModelTree::default()).verdict;
        let made = step(1, 9, make(7), TreeOutcome::Done);
        assert_eq!(verdict(&[made.clone(), look(2, 3, None), look(4, 5, Some(7))]), OrderVerdict::Explained);
        assert_eq!(verdict(&[made.clone(), look(2, 3, Some(7)), look(4, 5, None)]), OrderVerdict::Broken);
        assert_eq!(verdict(&[made, look(10, 11, None)]), OrderVerdict::Broken);
    }

    #[test]
    fn changes_without_effect_can_wait() {
        let first = step(1, 2, make(7), TreeOutcome::Done);
        let (write, cut) =
            (step(3, 9, NamesCall::Write(7, 5), TreeOutcome::Done), step(4, 8, NamesCall::Cut(7), TreeOutcome::Done));
        let read = step(11, 12, NamesCall::Read(7), TreeOutcome::Value(0));
        assert_eq!(explain(&[first, write, cut, read], ModelTree::default()).verdict, OrderVerdict::Explained);
    }

    #[test]
    fn calls_go_with_those_they_need() {
        let verdict = |steps: &[OrderStep]| explain(steps, ModelTree::default()).verdict;
        let optional = |step: OrderStep| OrderStep { is_optional: true, ..step };
        let first = optional(step(1, 2, make(7), TreeOutcome::Done));
        let link = optional(step(3, 4, NamesCall::Mode(ROOT, 0o700), TreeOutcome::Done));
        let mode = |mode| step(5, 6, NamesCall::Stat(ROOT), TreeOutcome::Attributes { links: 2, mode, size: 0 });
        assert_eq!(verdict(&[first.clone(), link.clone(), mode(0o700), look(7, 8, None)]), OrderVerdict::Explained);
        let link = OrderStep { needs: vec![0], ..link };
        assert_eq!(verdict(&[first.clone(), link.clone(), mode(0o755), look(7, 8, None)]), OrderVerdict::Explained);
        assert_eq!(verdict(&[first, link, mode(0o700), look(7, 8, None)]), OrderVerdict::Broken);
    }
}
