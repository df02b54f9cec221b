//! The server's and the client's state machine together. The simulation `volume-simulation` also runs them, with
//! faults.

use super::*;
use crate::protocol::{FileId, Held, Token, What};

const TOKEN: Token = Token { object: FileId { inode: 7, generation: 1 }, what: What::Data };

fn held(level: u8, sequence: u64) -> Held {
    Held { token: TOKEN, level, sequence }
}

fn granted(actions: &[Action]) -> Option<(u64, Held)> {
    actions.iter().find_map(|action| match action {
        Action::Grant { session, held, .. } => Some((*session, *held)),
        _ => None,
    })
}

#[test]
fn a_token_is_recalled_for_a_conflict_after_its_minimum_and_then_granted() {
    let mut arbiter = Arbiter::new(1, []);
    arbiter.acquire(0, 1, TOKEN, level::WRITE, 1, true);
    let (_, first) = granted(&arbiter.take_actions()).expect("nobody holds it");
    arbiter.acquire(1, 2, TOKEN, level::READ, 2, true);
    assert_eq!(arbiter.take_actions(), []);
    assert_eq!(arbiter.wake_at(), Some(MINIMUM_MS));
    arbiter.wake(MINIMUM_MS);
    let wanted = held(level::READ, first.sequence);
    assert_eq!(arbiter.take_actions(), [Action::Recall { session: 1, held: wanted, why: Why::Conflict }]);
    arbiter.returned(MINIMUM_MS, 1, wanted);
    assert_eq!(granted(&arbiter.take_actions()), Some((2, held(level::READ, first.sequence + 1))));
}

#[test]
fn a_new_server_numbers_grants_above_those_of_every_server_before_though_nothing_is_reclaimed() {
    let mut before = Arbiter::new(1, []);
    for ticket in 0..100 {
        before.acquire(0, 1, TOKEN, level::READ, ticket, true);
    }
    let last =
        before.take_actions().iter().filter_map(|action| granted(&[*action])).map(|(_, held)| held.sequence).max();
    let mut after = Arbiter::new(2, [1]);
    assert_eq!(after.reclaim(0, 1, &[], true), None);
    after.acquire(0, 1, TOKEN, level::READ, 1, true);
    let (_, first) = granted(&after.take_actions()).expect("nobody holds it");
    assert!(Some(first.sequence) > last, "the client ignores a grant with a lower number than one before");
}

#[test]
fn a_recall_of_a_grant_that_never_came_is_about_what_is_held() {
    // The request was sent twice, and the grant that answered one of them was lost with its connection.
    let mut holding = Holding::default();
    assert!(holding.wants(level::WRITE));
    assert_eq!(holding.granted(level::WRITE, 5), []);
    assert_eq!(holding.recalled((6, level::NONE, Why::Conflict)), Heard::Begin);
    assert_eq!((holding.level(), holding.sequence()), (level::WRITE, 6));
    assert_eq!(holding.recalled((5, level::NONE, Why::Conflict)), Heard::Ignore);
    holding.begin_giving();
    holding.given(level::NONE);
    assert_eq!(holding.recalled((6, level::NONE, Why::Conflict)), Heard::Answer(level::NONE));
    assert_eq!(holding.recalled((7, level::NONE, Why::Conflict)), Heard::Answer(level::NONE));
}

#[test]
fn a_grant_that_was_lost_and_is_recalled_is_said_again_so_that_it_can_be_returned() {
    let mut arbiter = Arbiter::new(1, []);
    arbiter.acquire(0, 1, TOKEN, level::WRITE, 1, true);
    let (_, lost) = granted(&arbiter.take_actions()).expect("nobody holds it");
    arbiter.acquire(MINIMUM_MS, 2, TOKEN, level::WRITE, 2, true);
    arbiter.take_actions();
    let mut holding = Holding::default();
    assert!(holding.wants(level::WRITE));
    let recalled = (lost.sequence, level::NONE, Why::Conflict);
    assert_eq!(holding.recalled(recalled), Heard::Later);
    // The request is sent again on the next connection.
    arbiter.acquire(MINIMUM_MS + 1, 1, TOKEN, level::WRITE, 3, true);
    let said = arbiter.take_actions();
    assert_eq!(said, [Action::Grant { session: 1, ticket: 3, held: lost }]);
    assert_eq!(holding.granted(lost.level, lost.sequence), [recalled]);
    assert_eq!(holding.recalled(recalled), Heard::Begin);
    arbiter.returned(MINIMUM_MS + 2, 1, held(level::NONE, lost.sequence));
    assert_eq!(granted(&arbiter.take_actions()).map(|(session, _)| session), Some(2));
}

#[test]
fn a_grant_that_was_lost_does_not_wait_behind_who_waits_for_it() {
    let mut arbiter = Arbiter::new(1, []);
    arbiter.acquire(0, 1, TOKEN, level::READ, 1, true);
    let (_, lost) = granted(&arbiter.take_actions()).expect("nobody holds it");
    arbiter.acquire(1, 2, TOKEN, level::WRITE, 2, true);
    // The request is sent again before the grant is recalled, and after another session's request.
    arbiter.acquire(2, 1, TOKEN, level::READ, 3, true);
    let again = held(level::READ, lost.sequence + 1);
    assert_eq!(granted(&arbiter.take_actions()), Some((1, again)));
    arbiter.wake(MINIMUM_MS);
    let wanted = held(level::NONE, again.sequence);
    assert_eq!(arbiter.take_actions(), [Action::Recall { session: 1, held: wanted, why: Why::Conflict }]);
    arbiter.returned(MINIMUM_MS, 1, wanted);
    assert_eq!(granted(&arbiter.take_actions()).map(|(session, _)| session), Some(2));
}
