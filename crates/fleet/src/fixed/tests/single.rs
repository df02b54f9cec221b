//! One machine, event by event.

use std::sync::Arc;

use super::*;
use crate::fixed::known_logs::{FixedPurge, LogExtent};
use crate::fixed::messages::members_hash;

/// The identity of the node's file, and so its log.
const OWN: u128 = 7;
/// The log of another node.
const OTHER: u64 = 9;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn node_of(node: usize, rules: u128) -> FleetNode {
    FleetNode {
        name: name_of(node),
        address: name_of(node).to_string(),
        zone: String::new(),
        weight: 1,
        rules: RulesHash(rules),
        run: 1,
        since: 0,
    }
}

fn purge_of(log: u64, number: u64) -> Arc<FixedPurge> {
    let scope = PurgeScope::Keys(vec![format!("http://a/{number}").into_bytes()]);
    let purge = FleetPurge { scope, soft_since_s: None, rules: RulesHash(1) };
    Arc::new(FixedPurge { log, number, accepted_s: 1, purge })
}

/// Node 0, which begins at 1,000 ms with so many purges in its file, of which its store has made some.
fn machine_of(purges: u64, made: u64, serve_limit: Option<Duration>) -> FixedMachine {
    let head = PurgeLogHead { identity: OWN, node: name_of(0), base: 1, extents: LogExtents::new() };
    let steps = (1..=purges).map(|number| FixedStep::Purge(purge_of(OWN as u64, number))).collect();
    let rules_record = RulesRecord::NONE.begin(RulesHash(1));
    let mark = match made {
        0 => AppliedMark::NONE,
        _ => AppliedMark { fleet: OWN, revision: 1 + made, rules: rules_record },
    };
    let members: Vec<NodeName> = (0..NODES).map(name_of).collect();
    let loaded = LoadedLog { head, steps, is_new: purges == 0 };
    FixedMachine::new(rules(), serve_limit, ("f".to_owned(), node_of(0, 1)), &members, loaded, mark, at(1000))
}

/// What another node says.
fn message_of(node: usize, rules: u128, extents: LogExtents, purges: Vec<Arc<FixedPurge>>) -> Box<SyncMessage> {
    let members: Vec<NodeName> = (0..NODES).map(name_of).collect();
    Box::new(SyncMessage {
        fleet: "f".to_owned(),
        members: members_hash(&members),
        node: node_of(node, rules),
        serves: true,
        extents,
        purges,
    })
}

/// Gives an event; batches are taken, and the file is rewritten, at once. Returns the other actions.
fn give(machine: &mut FixedMachine, ms: u64, event: FixedEvent) -> Vec<FixedAction> {
    let (mut events, mut rest) = (vec![event], Vec::new());
    while let Some(event) = events.pop() {
        for action in machine.on_event(at(ms), event) {
            match action {
                FixedAction::Take { batch, .. } => events.push(FixedEvent::Taken { batch }),
                FixedAction::Rewrite { .. } => events.push(FixedEvent::Rewritten),
                other => rest.push(other),
            }
        }
    }
    rest
}

/// A member answers a request that was sent then: it has nothing.
fn answered(machine: &mut FixedMachine, ms: u64, member: usize, asked_ms: u64) {
    let answer = message_of(member + 1, 1, LogExtents::new(), Vec::new());
    give(machine, ms, FixedEvent::Answered { member, asked: at(asked_ms), answer });
}

/// A member refuses a connection.
fn refused(machine: &mut FixedMachine, ms: u64, member: usize) {
    give(machine, ms, FixedEvent::Silent { member, asked: at(ms), is_refused: true, why: "refused".to_owned() });
}

fn tick(machine: &mut FixedMachine, ms: u64) {
    give(machine, ms, FixedEvent::Tick { now_s: 1 });
}

fn serves(machine: &FixedMachine, ms: u64) -> bool {
    machine.gate(at(ms)).serve_until > at(ms)
}

/// What the file has and the store lacks is taken before the file is rewritten, or the rewritten file would lack it.
#[test]
fn loaded_steps_precede_a_trim() {
    let mut machine = machine_of(40, 39, None);
    let actions = machine.on_event(at(1000), FixedEvent::Tick { now_s: 1 });
    let batches = |actions: &[FixedAction]| {
        let batch_of = |action: &FixedAction| match action {
            FixedAction::Take { batch, first: 41, .. } => Some(*batch),
            _ => None,
        };
        actions.iter().filter_map(batch_of).collect::<Vec<u64>>()
    };
    let is_rewrite = |action: &FixedAction| matches!(action, FixedAction::Rewrite { .. });
    assert!(!actions.iter().any(is_rewrite), "{actions:?}");
    let begun = batches(&actions);
    assert_eq!(begun.len(), 1, "{actions:?}");
    machine.on_event(at(1010), FixedEvent::Taken { batch: begun[0] });
    let actions = machine.on_event(at(1050), FixedEvent::Tick { now_s: 1 });
    assert!(actions.iter().any(is_rewrite), "it is large: {actions:?}");
}

/// A message with more purges than there may be logs names one log.
#[test]
fn many_purges_of_one_log_fit() {
    let mut machine = machine_of(0, 0, None);
    let (purges, extent) = ((1..=1500).map(|number| purge_of(OTHER, number)), LogExtent { through: 1500, floor: 0 });
    let message = message_of(1, 1, LogExtents::from([(OTHER, extent)]), purges.collect());
    give(&mut machine, 1000, FixedEvent::Asked { ticket: 1, message });
    // The log is made smaller between two batches.
    tick(&mut machine, 1050);
    assert_eq!((machine.known.through(OTHER), machine.behind(), machine.taking.pending_bytes), (1500, 0, 0));
}

/// One purge that is no longer kept is as bad as many.
#[test]
fn lacking_one_lost_purge_purges_everything() {
    let mut machine = machine_of(0, 0, None);
    let extents = LogExtents::from([(OTHER, LogExtent { through: 3, floor: 1 })]);
    let message = message_of(1, 1, extents, vec![purge_of(OTHER, 2), purge_of(OTHER, 3)]);
    give(&mut machine, 1000, FixedEvent::Asked { ticket: 1, message });
    assert_eq!((machine.figures(at(1000)).everything_purged, machine.known.through(OTHER)), (1, 3));
}

/// An answer says what was missed only if it was requested after the pause.
#[test]
fn answers_before_a_pause_open_nothing() {
    let mut machine = machine_of(0, 0, None);
    (0..2).for_each(|member| answered(&mut machine, 1010, member, 1000));
    assert!(serves(&machine, 1010));
    give(&mut machine, 1100, FixedEvent::Paused { time: at(10_000) });
    (0..2).for_each(|member| answered(&mut machine, 1120, member, 1050));
    assert!(!serves(&machine, 1120));
    (0..2).for_each(|member| answered(&mut machine, 1140, member, 1130));
    assert!(serves(&machine, 1140));
}

/// A node that has never been a member serves when the others are down; once it was one, it may have missed something.
#[test]
fn paused_node_is_no_new_one() {
    let mut machine = machine_of(0, 0, None);
    (0..2).for_each(|member| refused(&mut machine, 1010, member));
    assert!(serves(&machine, 1010));
    give(&mut machine, 1100, FixedEvent::Paused { time: at(10_000) });
    (0..2).for_each(|member| refused(&mut machine, 1120, member));
    assert!(!serves(&machine, 1120));
}

/// A member that answers in part is not silent.
#[test]
fn partial_answers_are_no_silence() {
    let mut machine = machine_of(1, 1, None);
    answered(&mut machine, 1010, 0, 1000);
    let extents = || LogExtents::from([(OTHER, LogExtent { through: 9, floor: 0 })]);
    for number in 1..=8 {
        let (ms, answer) = (1000 + number * 500, message_of(2, 1, extents(), vec![purge_of(OTHER, number)]));
        give(&mut machine, ms, FixedEvent::Answered { member: 1, asked: at(ms - 10), answer });
        assert!(!serves(&machine, ms), "{number} of 9 purges");
    }
    let answer = message_of(2, 1, extents(), vec![purge_of(OTHER, 9)]);
    give(&mut machine, 5500, FixedEvent::Answered { member: 1, asked: at(5490), answer });
    assert!(serves(&machine, 5500));
}

/// The member that was silent for longest decides how long a node serves.
#[test]
fn longest_silence_ends_serving() {
    let mut machine = machine_of(0, 0, Some(at(5000)));
    (0..2).for_each(|member| answered(&mut machine, 1010, member, 1000));
    for ms in (2000..=8000).step_by(1000) {
        answered(&mut machine, ms, 1, ms - 10);
        assert_eq!(serves(&machine, ms), ms < 6000, "{ms}");
    }
}

/// An answer names members that are down.
#[test]
fn missing_names_members_that_are_down() {
    let mut machine = machine_of(0, 0, None);
    (0..2).for_each(|member| refused(&mut machine, 1010, member));
    let asked =
        FixedEvent::PurgeRequested { ticket: 1, purge: FleetPurge::EVERYTHING, wish: PurgeWish::Applied, now_s: 1 };
    let actions = give(&mut machine, 1020, asked);
    let outcome = actions.into_iter().find_map(|action| match action {
        FixedAction::Answer { ticket: 1, result } => result.ok(),
        _ => None,
    });
    let outcome = outcome.expect("an answer");
    assert_eq!((outcome.is_applied, outcome.missing), (false, vec![name_of(1), name_of(2)]));
}

/// Members say their rules again and again.
#[test]
fn changed_rules_of_members_are_noted() {
    let mut machine = machine_of(0, 0, None);
    (0..2).for_each(|member| answered(&mut machine, 1010, member, 1000));
    for member in 0..2 {
        let answer = message_of(member + 1, 2, LogExtents::new(), Vec::new());
        give(&mut machine, 1100, FixedEvent::Answered { member, asked: at(1090), answer });
    }
    assert!(machine.has_other_rules() && !serves(&machine, 1100));
    give(&mut machine, 1200, FixedEvent::RulesChanged(RulesHash(2)));
    assert!(!machine.has_other_rules() && serves(&machine, 1200));
}

/// A store that hangs is told as one that fails is; one that had nothing to do for long does not count as one that hangs.
#[test]
fn hanging_store_is_told() {
    let mut machine = machine_of(0, 0, None);
    (0..2).for_each(|member| refused(&mut machine, 1010, member));
    (2000..9000).step_by(1000).for_each(|ms| tick(&mut machine, ms));
    machine.on_event(at(9000), FixedEvent::RulesChanged(RulesHash(2)));
    assert!(machine.behind() > 0 || machine.figures(at(9000)).state != FleetState::Away);
    for ms in [10_000, 11_000, 12_000] {
        machine.on_event(at(ms), FixedEvent::Tick { now_s: 1 });
    }
    let purge = FleetPurge::EVERYTHING;
    let asked = FixedEvent::PurgeRequested { ticket: 1, purge, wish: PurgeWish::Applied, now_s: 1 };
    machine.on_event(at(12_100), asked);
    let figures = machine.figures(at(12_100));
    assert_eq!(figures.state, FleetState::Away);
    assert!(figures.problems.iter().any(|problem| problem.what.contains("does not answer")), "{:?}", figures.problems);
}
