//! Whether each name is created once, and is found by everybody from then on.
//!
//! Owns: the check of *Claim* and *Find*. A session that is lost with its server may lose the names that it made last
//! (`losses`), unless another mount has seen them.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{CallAction, HistoryVerdict, NEVER, RecordedCall, milliseconds};
use super::losses::SessionLosses;

/// What is known of one name.
#[derive(Debug, Clone, Copy)]
struct ClaimedName {
    /// The calls that created it.
    created: u32,
    /// The first begin of a call that may have created it.
    begun: u64,
    /// The first end of a call that shows that it exists.
    there: u64,
}

/// Checks the names of a history.
pub fn check(calls: &[RecordedCall], losses: &SessionLosses) -> HistoryVerdict {
    let mut verdict = HistoryVerdict::default();
    let is_lost = |call: &&RecordedCall| call.done() == Some(1) && losses.may_be_lost_name(call);
    let lost: BTreeSet<(usize, u64)> = calls
        .iter()
        .filter(is_lost)
        .filter_map(|call| if let CallAction::Claim(number) = call.act { Some((call.mount, number)) } else { None })
        .collect();
    let mut names: BTreeMap<u64, ClaimedName> = BTreeMap::new();
    for call in calls {
        let (CallAction::Claim(number) | CallAction::Find(number)) = call.act else { continue };
        let name = names.entry(number).or_insert(ClaimedName { created: 0, begun: NEVER, there: NEVER });
        let is_claim = matches!(call.act, CallAction::Claim(_));
        // Its own mount sees it until the session is lost.
        let may_be_lost = lost.contains(&(call.mount, number)) && losses.may_be_lost_name(call);
        let is_there = match call.done().filter(|_| !may_be_lost) {
            Some(found) => is_claim || found == 1,
            None => false,
        };
        if is_there {
            name.there = name.there.min(call.end);
        }
        // A claim that found the name did not create it.
        if is_claim && call.done() != Some(0) {
            name.begun = name.begun.min(call.start);
            name.created += u32::from(call.done() == Some(1) && !may_be_lost);
        }
    }
    for (number, name) in &names {
        if name.created > 1 {
            verdict.problems.push(format!("name {number} is created {} times", name.created));
        }
    }
    for call in calls {
        let (CallAction::Claim(number) | CallAction::Find(number)) = call.act else { continue };
        let (Some(found), Some(name)) = (call.done(), names.get(&number)) else { continue };
        verdict.checked += 1;
        // A claim that succeeds finds no name, a claim that fails finds one.
        let finds = match call.act {
            CallAction::Claim(_) => found == 0,
            _ => found == 1,
        };
        if finds && name.begun > call.end {
            let at = milliseconds(call.start);
            verdict
                .problems
                .push(format!("mount {}: name {number} is there at {at} ms, before it is made", call.mount));
        }
        if !finds && name.there < call.start {
            verdict.stale(call, name.there, &format!("name {number} is absent"));
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::super::history::planted::{done, failed};
    use super::*;

    fn checked(calls: &[RecordedCall]) -> HistoryVerdict {
        check(calls, &SessionLosses::of(calls))
    }

    fn claim(mount: usize, from_ms: u64, to_ms: u64, created: u64) -> RecordedCall {
        done(mount, CallAction::Claim(1), from_ms, to_ms, created)
    }

    fn find(mount: usize, from_ms: u64, to_ms: u64, found: u64) -> RecordedCall {
        done(mount, CallAction::Find(1), from_ms, to_ms, found)
    }

    #[test]
    fn names_created_once_are_good() {
        let good = checked(&[claim(0, 2, 5, 1), claim(1, 3, 4, 0), find(2, 0, 3, 0), find(2, 6, 7, 1)]);
        assert_eq!((good.checked, &good.problems[..]), (4, &[][..]));
        // A claim that failed may have created it.
        assert!(
            checked(&[failed(0, CallAction::Claim(1), 0, 1), claim(1, 2, 3, 0), find(2, 4, 5, 1)]).problems.is_empty()
        );
        assert!(
            checked(&[failed(0, CallAction::Claim(1), 0, 1), claim(1, 2, 3, 1), find(2, 4, 5, 1)]).problems.is_empty()
        );
    }

    /// The planted errors are a stale absence and a second creation.
    #[test]
    fn planted_claim_errors_are_caught() {
        let stale = checked(&[claim(0, 0, 1, 1), find(1, 2, 3, 0)]);
        assert_eq!((stale.stale_ns_max, stale.problems.len()), (1_000_000, 1));
        assert!(!checked(&[claim(0, 0, 5, 1), claim(1, 1, 4, 1)]).problems.is_empty());
        assert!(
            !checked(&[claim(0, 0, 1, 0), claim(1, 2, 3, 1)]).problems.is_empty(),
            "it exists before it is created"
        );
        assert!(!checked(&[find(0, 0, 1, 1), claim(1, 2, 3, 1)]).problems.is_empty());
        assert!(!checked(&[claim(0, 0, 1, 0)]).problems.is_empty(), "nobody created it");
        assert!(!checked(&[claim(0, 0, 9, 1), find(1, 1, 2, 1), find(2, 3, 4, 0)]).problems.is_empty());
    }

    #[test]
    fn lost_session_loses_last_names_only() {
        let dead = RecordedCall { handle: 3, ..failed(0, CallAction::Read(1), 6000, 7000) };
        let again = |made: u64, more: &[RecordedCall]| {
            let first = RecordedCall { act: CallAction::Claim(1), ..claim(0, made - 1, made, 1) };
            let last = RecordedCall { act: CallAction::Claim(2), ..claim(0, 4999, 5000, 1) };
            let calls = [&[first, last, dead, claim(1, 8000, 8001, 1)], more].concat();
            checked(&calls).problems.len()
        };
        assert_eq!(again(4500, &[]), 0);
        assert_eq!(again(4500, &[find(0, 4600, 4601, 1)]), 0, "its own mount has seen it");
        assert!(again(4500, &[find(2, 4600, 4601, 1), find(2, 4700, 4701, 0)]) > 0, "another mount has seen it");
        assert!(again(3000, &[]) > 0, "it was made too early");
    }
}
