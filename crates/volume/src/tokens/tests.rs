//! The server's and the client's state machine together. The simulation `volume-simulation` also runs them, with
//! faults.

use super::*;
use crate::protocol::{FileId, Token, TokenAspect, TokenGrant};

const TOKEN: Token = Token { object: FileId { inode: 7, generation: 1 }, what: TokenAspect::Data };

fn held(level: u8, sequence: u64) -> TokenGrant {
    TokenGrant { token: TOKEN, level, sequence }
}

fn granted(actions: &[TokenAction]) -> Option<(u64, TokenGrant)> {
    actions.iter().find_map(|action| match action {
        TokenAction::Grant { session, held, .. } => Some((*session, *held)),
        _ => None,
    })
}

/// The waiter is granted the token once it is returned.
#[test]
fn conflict_recalls_token_after_minimum() {
    let mut arbiter = TokenArbiter::new(1, []);
    arbiter.acquire(0, 1, TOKEN, level::WRITE, 1, true);
    let (_, first) = granted(&arbiter.take_actions()).expect("nobody holds it");
    arbiter.acquire(1, 2, TOKEN, level::READ, 2, true);
    assert_eq!(arbiter.take_actions(), []);
    assert_eq!(arbiter.wake_at(), Some(MINIMUM_MS));
    arbiter.wake(MINIMUM_MS);
    let wanted = held(level::READ, first.sequence);
    assert_eq!(arbiter.take_actions(), [TokenAction::Recall { session: 1, held: wanted, why: RecallReason::Conflict }]);
    arbiter.returned(MINIMUM_MS, 1, wanted);
    assert_eq!(granted(&arbiter.take_actions()), Some((2, held(level::READ, first.sequence + 1))));
}

/// Grants are numbered above those of every earlier server, even if nothing is reclaimed.
#[test]
fn new_server_numbers_grants_higher() {
    let mut before = TokenArbiter::new(1, []);
    for ticket in 0..100 {
        before.acquire(0, 1, TOKEN, level::READ, ticket, true);
    }
    let last =
        before.take_actions().iter().filter_map(|action| granted(&[*action])).map(|(_, held)| held.sequence).max();
    let mut after = TokenArbiter::new(2, [1]);
    assert_eq!(after.reclaim(0, 1, &[], true), None);
    after.acquire(0, 1, TOKEN, level::READ, 1, true);
    let (_, first) = granted(&after.take_actions()).expect("nobody holds it");
    assert!(Some(first.sequence) > last, "the client ignores a grant with a lower number than one before");
}

/// A number that no earlier server gave is refused: the next number would be too large.
#[test]
fn impossible_number_is_not_reclaimed() {
    let mut arbiter = TokenArbiter::new(2, [1, 2]);
    assert_eq!(arbiter.reclaim(0, 1, &[held(level::READ, u64::MAX)], true), Some(1));
    arbiter.forget(0, 1);
    assert_eq!(arbiter.reclaim(0, 2, &[held(level::READ, 1)], true), None);
    arbiter.acquire(0, 2, TOKEN, level::WRITE, 1, true);
    let (_, next) = granted(&arbiter.take_actions()).expect("nobody else holds it");
    assert!(next.sequence > 1 && next.sequence < u64::MAX);
}

/// The client answers with the level that it holds, although the recalled grant never arrived.
#[test]
fn lost_grant_recall_concerns_held_level() {
    // The request was sent twice, and the grant that answered one of them was lost with its connection.
    let mut holding = TokenHolding::default();
    assert!(holding.wants(level::WRITE));
    assert_eq!(holding.granted(level::WRITE, 5), []);
    assert_eq!(holding.recalled((6, level::NONE, RecallReason::Conflict)), RecallOutcome::Begin);
    assert_eq!((holding.level(), holding.sequence()), (level::WRITE, 6));
    assert_eq!(holding.recalled((5, level::NONE, RecallReason::Conflict)), RecallOutcome::Ignore);
    holding.begin_giving();
    holding.given(level::NONE);
    assert_eq!(holding.recalled((6, level::NONE, RecallReason::Conflict)), RecallOutcome::Answer(level::NONE));
    assert_eq!(holding.recalled((7, level::NONE, RecallReason::Conflict)), RecallOutcome::Answer(level::NONE));
}

/// A recall repeats a lost grant, so that the client can return what it never received.
#[test]
fn recall_repeats_lost_grant() {
    let mut arbiter = TokenArbiter::new(1, []);
    arbiter.acquire(0, 1, TOKEN, level::WRITE, 1, true);
    let (_, lost) = granted(&arbiter.take_actions()).expect("nobody holds it");
    arbiter.acquire(MINIMUM_MS, 2, TOKEN, level::WRITE, 2, true);
    arbiter.take_actions();
    let mut holding = TokenHolding::default();
    assert!(holding.wants(level::WRITE));
    let recalled = (lost.sequence, level::NONE, RecallReason::Conflict);
    assert_eq!(holding.recalled(recalled), RecallOutcome::Later);
    // The request is sent again on the next connection.
    arbiter.acquire(MINIMUM_MS + 1, 1, TOKEN, level::WRITE, 3, true);
    let said = arbiter.take_actions();
    assert_eq!(said, [TokenAction::Grant { session: 1, ticket: 3, held: lost }]);
    assert_eq!(holding.granted(lost.level, lost.sequence), [recalled]);
    assert_eq!(holding.recalled(recalled), RecallOutcome::Begin);
    arbiter.returned(MINIMUM_MS + 2, 1, held(level::NONE, lost.sequence));
    assert_eq!(granted(&arbiter.take_actions()).map(|(session, _)| session), Some(2));
}

/// A client that forgets a file after it returned the token may request it again before the server has the return.
#[test]
fn forgotten_file_ignores_returned_grant() {
    let mut arbiter = TokenArbiter::new(1, []);
    arbiter.acquire(0, 1, TOKEN, level::WRITE, 1, true);
    let (_, first) = granted(&arbiter.take_actions()).expect("nobody holds it");
    arbiter.acquire(MINIMUM_MS, 2, TOKEN, level::WRITE, 2, true);
    arbiter.take_actions();
    // The return is on its way, and the state of the file is made again.
    let mut holding = TokenHolding::after(first.sequence);
    assert!(holding.wants(level::WRITE));
    arbiter.acquire(MINIMUM_MS + 1, 1, TOKEN, level::WRITE, 3, true);
    let (_, again) = granted(&arbiter.take_actions()).expect("it seems to hold it");
    assert_eq!(holding.granted(again.level, again.sequence), []);
    arbiter.returned(MINIMUM_MS + 2, 1, held(level::NONE, first.sequence));
    assert_eq!(granted(&arbiter.take_actions()).map(|(session, _)| session), Some(2));
    assert_eq!(holding.level(), level::NONE, "the other session holds it");
    // A return that was lost is requested again, and the next grant counts.
    let recalled = (first.sequence, level::NONE, RecallReason::Conflict);
    assert_eq!(holding.recalled(recalled), RecallOutcome::Answer(level::NONE));
    assert!(holding.wants(level::WRITE));
    holding.granted(level::WRITE, first.sequence + 2);
    assert!(holding.admits(level::WRITE));
}

/// A session whose grant was lost does not wait behind those who wait for that grant.
#[test]
fn lost_grant_skips_the_queue() {
    let mut arbiter = TokenArbiter::new(1, []);
    arbiter.acquire(0, 1, TOKEN, level::READ, 1, true);
    let (_, lost) = granted(&arbiter.take_actions()).expect("nobody holds it");
    arbiter.acquire(1, 2, TOKEN, level::WRITE, 2, true);
    // The request is sent again before the grant is recalled, and after another session's request.
    arbiter.acquire(2, 1, TOKEN, level::READ, 3, true);
    let again = held(level::READ, lost.sequence + 1);
    assert_eq!(granted(&arbiter.take_actions()), Some((1, again)));
    arbiter.wake(MINIMUM_MS);
    let wanted = held(level::NONE, again.sequence);
    assert_eq!(arbiter.take_actions(), [TokenAction::Recall { session: 1, held: wanted, why: RecallReason::Conflict }]);
    arbiter.returned(MINIMUM_MS, 1, wanted);
    assert_eq!(granted(&arbiter.take_actions()).map(|(session, _)| session), Some(2));
}

/// An open brings a grant while another call of the client requests the token. This request waits behind another session,
/// which waits for that grant.
#[test]
fn unwanted_grant_frees_the_queue() {
    let (mut arbiter, mut holding) = (TokenArbiter::new(1, []), TokenHolding::default());
    assert!(holding.wants(level::WRITE) && !holding.wants(level::READ));
    let offered = arbiter.offer(0, 1, TOKEN, level::READ).expect("nobody holds it");
    arbiter.acquire(MINIMUM_MS, 2, TOKEN, level::WRITE, 2, true);
    let recalled = (offered.sequence, level::NONE, RecallReason::Conflict);
    assert_eq!(holding.recalled(recalled), RecallOutcome::Later);
    arbiter.acquire(MINIMUM_MS + 1, 1, TOKEN, level::WRITE, 3, true);
    assert_eq!(granted(&arbiter.take_actions()), None, "both wait");
    assert!(holding.unwanted(offered.sequence));
    arbiter.returned(MINIMUM_MS + 2, 1, held(level::NONE, offered.sequence));
    let (session, second) = granted(&arbiter.take_actions()).expect("nobody holds it");
    arbiter.returned(MINIMUM_MS + 3, session, held(level::NONE, second.sequence));
    let (again, own) = granted(&arbiter.take_actions()).expect("nobody holds it");
    assert_eq!((session, again), (2, 1));
    assert!(holding.granted(own.level, own.sequence).is_empty() && holding.admits(level::WRITE));
}
