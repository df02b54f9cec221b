//! Whether an exclusive lock is held by at most one program at a time, and whether it protects what it should.
//!
//! Owns: the sections between *Lock* and *Unlock*, their overlaps, and the counter that each section increments. A
//! section goes from the return of the call that granted the lock to the call that releases it. If the session was ended
//! meanwhile, the section goes to the last call through the lock's handle that succeeded: until then, the program had the
//! lock for all that it could know.
//!
//! A counter's value is its count (the high 32 bits) and a number that no other value has, so that it is a register, too.

use std::collections::BTreeMap;

use super::history::{CallAction, RecordedCall, milliseconds};

/// A section of a program under a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LockSection {
    mount: usize,
    worker: usize,
    from: u64,
    to: u64,
    /// The count that it wrote, if every call of it succeeded.
    count: Option<u64>,
}

/// What the check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockVerdict {
    /// The number of locks that were granted.
    pub granted: u64,
    /// The longest time in which two programs held a lock. *Units*: nanoseconds.
    pub overlap_ns_max: u64,
    /// What is wrong.
    pub problems: Vec<String>,
}

/// Checks the locks of a history.
pub fn check(calls: &[RecordedCall]) -> LockVerdict {
    let mut by_worker: BTreeMap<usize, Vec<&RecordedCall>> = BTreeMap::new();
    for call in calls {
        by_worker.entry(call.worker).or_default().push(call);
    }
    let mut sections: BTreeMap<u32, Vec<LockSection>> = BTreeMap::new();
    for calls in by_worker.values_mut() {
        calls.sort_by_key(|call| call.start);
        for (at, call) in calls.iter().enumerate() {
            if let (CallAction::Lock(lock), true) = (call.act, call.is_done()) {
                sections.entry(lock).or_default().push(section(lock, call, &calls[at + 1..]));
            }
        }
    }
    let mut held = LockVerdict::default();
    for (lock, sections) in &mut sections {
        held.granted += sections.len() as u64;
        sections.sort_by_key(|section| section.from);
        overlaps(*lock, sections, &mut held);
        counts(*lock, sections, &mut held);
    }
    held
}

/// Returns the section that a granted lock begins; `rest` has the later calls of the same thread.
fn section(lock: u32, granted: &RecordedCall, rest: &[&RecordedCall]) -> LockSection {
    let (mount, worker, from) = (granted.mount, granted.worker, granted.end);
    let mut section = LockSection { mount, worker, from, to: from, count: None };
    let mut count = None;
    for call in rest {
        match call.act {
            CallAction::Unlock(of) if of == lock && call.is_done() => {
                return LockSection { to: call.start, count, ..section };
            }
            _ if !call.is_done() => return section,
            CallAction::Write(_, value) => count = Some(value >> 32),
            _ => {}
        }
        if call.handle == granted.handle {
            section.to = call.start;
        }
    }
    section
}

fn overlaps(lock: u32, sections: &[LockSection], held: &mut LockVerdict) {
    let mut latest: Option<&LockSection> = None;
    for section in sections {
        if let Some(before) = latest.filter(|before| before.to > section.from) {
            let ns = before.to.min(section.to).saturating_sub(section.from).max(1);
            held.overlap_ns_max = held.overlap_ns_max.max(ns);
            held.problems.push(format!(
                "lock {lock} is held for {} ms by mount {} (thread {}, {} to {} ms) and mount {} (thread {}, {} to {} ms)",
                milliseconds(ns),
                before.mount,
                before.worker,
                milliseconds(before.from),
                milliseconds(before.to),
                section.mount,
                section.worker,
                milliseconds(section.from),
                milliseconds(section.to)
            ));
        }
        if latest.is_none_or(|latest| section.to > latest.to) {
            latest = Some(section);
        }
    }
}

fn counts(lock: u32, sections: &[LockSection], held: &mut LockVerdict) {
    let mut writer: BTreeMap<u64, &LockSection> = BTreeMap::new();
    for section in sections {
        let Some(count) = section.count else { continue };
        if let Some(before) = writer.insert(count, section) {
            held.problems.push(format!(
                "an update under lock {lock} is lost: mount {} and mount {} both count to {count}, at {} and {} ms",
                before.mount,
                section.mount,
                milliseconds(before.from),
                milliseconds(section.from)
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::planted::{done, failed};
    use super::*;

    /// A section that counts to this number.
    fn counting(mount: usize, from_ms: u64, to_ms: u64, count: u64) -> Vec<RecordedCall> {
        let value = count << 32 | (mount as u64 + 1);
        vec![
            done(mount, CallAction::Lock(1), from_ms - 1, from_ms, 0),
            done(mount, CallAction::Read(1), from_ms, from_ms + 1, (count - 1) << 32),
            done(mount, CallAction::Probe, from_ms + 1, from_ms + 2, 0),
            done(mount, CallAction::Write(1, value), from_ms + 2, from_ms + 3, 0),
            done(mount, CallAction::Unlock(1), to_ms, to_ms + 1, 0),
        ]
    }

    #[test]
    fn sections_one_after_another_are_good() {
        let held = check(&[counting(0, 10, 20, 1), counting(1, 20, 30, 2), counting(0, 40, 50, 3)].concat());
        assert_eq!(held, LockVerdict { granted: 3, ..LockVerdict::default() });
    }

    /// The planted errors are an overlap of two sections and a lost update.
    #[test]
    fn planted_lock_errors_are_caught() {
        let held = check(&[counting(0, 10, 21, 1), counting(1, 20, 30, 2)].concat());
        assert_eq!((held.granted, held.overlap_ns_max, held.problems.len()), (2, 1_000_000, 1), "{held:?}");
        let held = check(&[counting(0, 10, 20, 1), counting(1, 20, 30, 1)].concat());
        assert_eq!((held.overlap_ns_max, held.problems.len()), (0, 1), "{held:?}");
        // A long section overlaps with each of two short ones.
        let held = check(&[counting(0, 10, 90, 1), counting(1, 20, 30, 2), counting(1, 40, 60, 3)].concat());
        assert_eq!((held.overlap_ns_max, held.problems.len()), (20_000_000, 2), "{held:?}");
    }

    /// The section of an ended session ends with its last successful call.
    #[test]
    fn ended_session_section_ends_early() {
        let mut calls = counting(0, 10, 50, 1);
        calls.truncate(4);
        calls.push(failed(0, CallAction::Unlock(1), 50, 51));
        // The last success through the lock's handle began at 12 ms.
        for from_ms in [20, 12] {
            assert_eq!(check(&[calls.clone(), counting(1, from_ms, 30, 1)].concat()).problems.len(), 0);
        }
        // A success at 40 ms shows that the program still had it.
        let mut late = counting(0, 10, 50, 1);
        late.insert(4, done(0, CallAction::Probe, 40, 41, 0));
        late[5] = failed(0, CallAction::Unlock(1), 50, 51);
        let held = check(&[late, counting(1, 20, 30, 1)].concat());
        assert_eq!((held.overlap_ns_max, held.problems.len()), (10_000_000, 1), "{held:?}");
    }
}
