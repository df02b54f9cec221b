//! The loop that makes room in a policy, shared by most policies: it evicts ids until a newcomer fits or too many
//! victims were refused.
//!
//! Owns: the decision when to stop. Leaves to others: the choice of the next id to offer ([`StepwisePolicy::step`]).

use crate::policy::Policy;

/// The outcome of one step towards a victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionStep {
    /// An id was evicted, or the order changed so that the next victim is closer.
    Done,
    /// A victim was offered and refused; the policy offers it again only after all others.
    Refused,
    /// No id is left to offer.
    Nothing,
}

impl EvictionStep {
    /// Converts the answer of `evict` to an outcome.
    pub(crate) fn answered(is_given_up: bool) -> EvictionStep {
        if is_given_up { EvictionStep::Done } else { EvictionStep::Refused }
    }
}

/// A policy that evicts step by step.
pub(crate) trait StepwisePolicy: Policy {
    /// Offers at most one id to `evict`. `room` is the weight for which room is made. `refusals` counts the refusals so
    /// far: a policy with several queues uses it to alternate between them, so that a queue of pinned ids does not
    /// block the others.
    fn step(&mut self, room: u64, refusals: usize, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep;
}

/// Evicts until `room` more units fit. *Returns* `false` if no id is left to offer or too many victims were refused.
pub(crate) fn make_room<P: StepwisePolicy>(
    policy: &mut P,
    room: u64,
    refusals_max: usize,
    evict: &mut dyn FnMut(u64) -> bool,
) -> bool {
    let mut refusals = 0;
    while policy.used().saturating_add(room) > policy.capacity() {
        match policy.step(room, refusals, evict) {
            EvictionStep::Done => {}
            EvictionStep::Refused => {
                refusals += 1;
                if refusals >= refusals_max {
                    return false;
                }
            }
            EvictionStep::Nothing => return false,
        }
    }
    true
}
