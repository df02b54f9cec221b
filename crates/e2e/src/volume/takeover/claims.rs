//! Whether each name is created once, and is found by everybody from then on.
//!
//! Owns: the check of *Claim* and *Find*. Names are durable when the call returns, so no session's end loses one.

use std::collections::BTreeMap;

use super::history::{Act, Call, NEVER, Verdict, milliseconds};

/// What is known of one name.
#[derive(Debug, Clone, Copy)]
struct Name {
    /// The calls that created it.
    created: u32,
    /// The first begin of a call that may have created it.
    begun: u64,
    /// The first end of a call that shows that it exists.
    there: u64,
}

/// Checks the names of a history.
pub fn check(calls: &[Call]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut names: BTreeMap<u64, Name> = BTreeMap::new();
    for call in calls {
        let (Act::Claim(number) | Act::Find(number)) = call.act else { continue };
        let name = names.entry(number).or_insert(Name { created: 0, begun: NEVER, there: NEVER });
        let is_claim = matches!(call.act, Act::Claim(_));
        let is_there = match call.done() {
            Some(found) => is_claim || found == 1,
            None => false,
        };
        if is_there {
            name.there = name.there.min(call.end);
        }
        // A claim that found the name did not create it.
        if is_claim && call.done() != Some(0) {
            name.begun = name.begun.min(call.start);
            name.created += u32::from(call.done() == Some(1));
        }
    }
    for (number, name) in &names {
        if name.created > 1 {
            verdict.problems.push(format!("name {number} is created {} times", name.created));
        }
    }
    for call in calls {
        let (Act::Claim(number) | Act::Find(number)) = call.act else { continue };
        let (Some(found), Some(name)) = (call.done(), names.get(&number)) else { continue };
        verdict.checked += 1;
        // A claim that succeeds finds no name, a claim that fails finds one.
        let finds = match call.act {
            Act::Claim(_) => found == 0,
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

    fn claim(mount: usize, from_ms: u64, to_ms: u64, created: u64) -> Call {
        done(mount, Act::Claim(1), from_ms, to_ms, created)
    }

    fn find(mount: usize, from_ms: u64, to_ms: u64, found: u64) -> Call {
        done(mount, Act::Find(1), from_ms, to_ms, found)
    }

    #[test]
    fn names_created_once_are_good() {
        let good = check(&[claim(0, 2, 5, 1), claim(1, 3, 4, 0), find(2, 0, 3, 0), find(2, 6, 7, 1)]);
        assert_eq!((good.checked, &good.problems[..]), (4, &[][..]));
        // A claim that failed may have created it.
        assert!(check(&[failed(0, Act::Claim(1), 0, 1), claim(1, 2, 3, 0), find(2, 4, 5, 1)]).problems.is_empty());
        assert!(check(&[failed(0, Act::Claim(1), 0, 1), claim(1, 2, 3, 1), find(2, 4, 5, 1)]).problems.is_empty());
    }

    #[test]
    fn planted_stale_absence_and_second_creation_are_caught() {
        let stale = check(&[claim(0, 0, 1, 1), find(1, 2, 3, 0)]);
        assert_eq!((stale.stale_ns_max, stale.problems.len()), (1_000_000, 1));
        assert!(!check(&[claim(0, 0, 5, 1), claim(1, 1, 4, 1)]).problems.is_empty());
        assert!(!check(&[claim(0, 0, 1, 0), claim(1, 2, 3, 1)]).problems.is_empty(), "it exists before it is created");
        assert!(!check(&[find(0, 0, 1, 1), claim(1, 2, 3, 1)]).problems.is_empty());
        assert!(!check(&[claim(0, 0, 1, 0)]).problems.is_empty(), "nobody created it");
        assert!(!check(&[claim(0, 0, 9, 1), find(1, 1, 2, 1), find(2, 3, 4, 0)]).problems.is_empty());
    }
}
