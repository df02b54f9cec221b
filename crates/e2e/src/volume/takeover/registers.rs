//! Whether reads and writes of registers are linearizable, and how stale a read was.
//!
//! A register is a place that is read and written as a whole: 8 bytes of a file, a block that is written with
//! `O_DIRECT`, a counter behind a lock, a name that is replaced by `rename`. No two writes have the same value, so a read
//! names its write, and the check is polynomial: the *zone* of a value goes from the first end to the last begin among
//! the calls of that value. A history is linearizable if and only if no read precedes its write, no two zones that go
//! forwards overlap, and none that goes backwards lies within one that goes forwards [1].
//!
//! A call that failed or did not return may have been done. Writes that were lost with their session (`losses`) count
//! until that session's last sign of life; so the history is checked once up to each of these times, and once as a whole
//! without the lost values.
//!
//! One thing that is not linearizable is allowed, as docs/volume.md says: while a host's own rename is under way, the kernel
//! may show other processes of that host for at most a second what was there before, although another host has already
//! seen the new name. Such a read counts as if it had begun when the other host saw it.
//!
//! [1] P. Gibbons, E. Korach: Testing shared memories. SIAM Journal on Computing 26 (1997).

use std::collections::{BTreeMap, BTreeSet};

use super::history::{CallAction, HistoryVerdict, NAMES, NEVER, RecordedCall, SLOTS, milliseconds};
use super::losses::SessionLosses;

/// The longest time for which a kernel shows a name that its own host is changing. *Units*: nanoseconds.
const OWN_RENAME_NS_MAX: u64 = 1_000_000_000;

/// The calls of one value.
#[derive(Debug, Clone, Copy)]
struct ValueZone {
    value: u64,
    write_start: u64,
    /// The first end of a call of this value: from then on, the value is there or was overwritten.
    first_end: u64,
    /// The last begin of a call of this value.
    last_start: u64,
    has_reads: bool,
}

/// Checks the registers of a history; each begins with the value 0.
pub fn check(calls: &[RecordedCall], losses: &SessionLosses) -> HistoryVerdict {
    let lost = losses.lost_values(calls);
    let mut by_register: BTreeMap<u32, Vec<RecordedCall>> = BTreeMap::new();
    for call in calls {
        if let CallAction::Read(register) | CallAction::Write(register, _) = call.act {
            by_register.entry(register).or_default().push(*call);
        }
    }
    let mut verdict = HistoryVerdict::default();
    for (register, calls) in &by_register {
        let lost_here: BTreeMap<u64, u64> = lost
            .iter()
            .filter(|((of, _), _)| of == register)
            .map(|((_, value), handle)| (*value, losses.alive_until(*handle).unwrap_or_default()))
            .collect();
        let is_kept = |call: &RecordedCall, until: u64| {
            let value = match call.act {
                CallAction::Write(_, value) => Some(value),
                _ => call.done(),
            };
            // A value that is lost later counts.
            value.and_then(|value| lost_here.get(&value)).is_none_or(|alive_until| *alive_until >= until)
        };
        let moments: BTreeSet<u64> = lost_here.values().copied().chain([NEVER]).collect();
        for until in moments {
            let kept = calls.iter().filter(|call| is_kept(call, until)).filter_map(|call| cut(call, until));
            let mut found = judge(*register, &kept.collect::<Vec<_>>());
            found.checked = if until == NEVER { found.checked } else { 0 };
            verdict.add(found);
        }
    }
    verdict
}

/// What is known of a call at some time.
fn cut(call: &RecordedCall, until: u64) -> Option<RecordedCall> {
    match call.act {
        _ if call.start > until => None,
        _ if call.end <= until => Some(*call),
        CallAction::Write(..) => {
            Some(RecordedCall { end: NEVER, outcome: super::history::CallOutcome::Pending, ..*call })
        }
        _ => None,
    }
}

/// Checks one register.
fn judge(register: u32, calls: &[RecordedCall]) -> HistoryVerdict {
    let mut verdict = HistoryVerdict::default();
    let begin = ValueZone { value: 0, write_start: 0, first_end: 0, last_start: 0, has_reads: false };
    let mut zones = BTreeMap::from([(0, begin)]);
    for call in calls {
        let CallAction::Write(_, value) = call.act else { continue };
        let first_end = if call.is_done() { call.end } else { NEVER };
        let zone = ValueZone { value, write_start: call.start, first_end, last_start: call.start, has_reads: false };
        zones.insert(value, zone);
    }
    let mut reads: Vec<(RecordedCall, u64)> = calls
        .iter()
        .filter(|call| matches!(call.act, CallAction::Read(_)))
        .filter_map(|call| Some((*call, call.done()?)))
        .collect();
    for (call, value) in &reads {
        if let Some(zone) = zones.get_mut(value) {
            zone.first_end = zone.first_end.min(call.end);
        }
    }
    if register / SLOTS == NAMES {
        begin_with_own_renames(calls, &zones, &mut reads);
    }
    for (call, value) in &reads {
        verdict.checked += 1;
        let at = milliseconds(call.start);
        match zones.get_mut(value) {
            Some(zone) if zone.write_start > call.end => {
                verdict.problems.push(format!(
                    "register {register}: mount {} reads {value} at {at} ms, before it is written",
                    call.mount
                ));
            }
            Some(zone) => {
                zone.last_start = zone.last_start.max(call.start);
                zone.has_reads = true;
            }
            None => verdict.problems.push(format!(
                "register {register}: mount {} reads {value} at {at} ms, which nobody wrote, or which was lost before",
                call.mount
            )),
        }
    }
    // A write that failed and that nobody read may not have been done.
    let zones: Vec<ValueZone> = zones.into_values().filter(|zone| zone.first_end != NEVER).collect();
    stale(register, &reads, &zones, &mut verdict);
    if verdict.problems.is_empty() {
        order(register, &zones, &mut verdict);
    }
    verdict
}

/// Lets reads during a rename by their own mount, whose new name another mount has already seen, begin when that saw it.
fn begin_with_own_renames(calls: &[RecordedCall], zones: &BTreeMap<u64, ValueZone>, reads: &mut [(RecordedCall, u64)]) {
    for call in calls {
        let CallAction::Write(_, renamed) = call.act else { continue };
        let Some(seen) = zones.get(&renamed).map(|zone| zone.first_end) else { continue };
        let is_shown_late = |read: &RecordedCall| {
            let is_under_way = (call.start..call.end).contains(&read.start);
            read.mount == call.mount && is_under_way && seen < read.start && read.start - seen <= OWN_RENAME_NS_MAX
        };
        for (read, _) in reads.iter_mut().filter(|(read, value)| *value != renamed && is_shown_late(read)) {
            read.start = seen;
        }
    }
}

/// Finds reads of values that had been overwritten: a value is overwritten when another value, whose write began after
/// the first one was there, is there.
fn stale(register: u32, reads: &[(RecordedCall, u64)], zones: &[ValueZone], verdict: &mut HistoryVerdict) {
    let mut by_start = zones.to_vec();
    by_start.sort_by_key(|zone| zone.write_start);
    // The earliest time at which one of the zones from this one on is there.
    let mut there: Vec<u64> = by_start.iter().map(|zone| zone.first_end).collect();
    for at in (1..there.len()).rev() {
        there[at - 1] = there[at - 1].min(there[at]);
    }
    let first_end: BTreeMap<u64, u64> = zones.iter().map(|zone| (zone.value, zone.first_end)).collect();
    for (call, value) in reads {
        let Some(first_end) = first_end.get(value) else { continue };
        let next = by_start.partition_point(|zone| zone.write_start <= *first_end);
        if let Some(since) = there.get(next).filter(|since| **since < call.start) {
            verdict.stale(call, *since, &format!("register {register}: value {value}"));
        }
    }
}

/// Finds two values of which each must be before the other.
fn order(register: u32, zones: &[ValueZone], verdict: &mut HistoryVerdict) {
    let mut forwards: Vec<&ValueZone> = zones.iter().filter(|zone| zone.first_end < zone.last_start).collect();
    forwards.sort_by_key(|zone| zone.first_end);
    let mut wrong = |first: &ValueZone, second: &ValueZone| {
        verdict.problems.push(format!(
            "register {register}: values {} and {} cannot be put in an order ({} to {} ms, {} to {} ms)",
            first.value,
            second.value,
            milliseconds(first.first_end),
            milliseconds(first.last_start),
            milliseconds(second.first_end.min(second.last_start)),
            milliseconds(second.first_end.max(second.last_start))
        ));
    };
    for pair in forwards.windows(2) {
        if pair[0].last_start > pair[1].first_end {
            wrong(pair[0], pair[1]);
        }
    }
    for zone in zones.iter().filter(|zone| zone.first_end >= zone.last_start) {
        let around = forwards[..forwards.partition_point(|other| other.first_end < zone.last_start)].last();
        if let Some(around) = around.filter(|around| zone.first_end < around.last_start) {
            wrong(around, zone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::CallOutcome;
    use super::super::history::planted::{call, done, failed};
    use super::*;

    fn write(mount: usize, value: u64, from_ms: u64, to_ms: u64) -> RecordedCall {
        done(mount, CallAction::Write(0, value), from_ms, to_ms, 0)
    }

    fn read(mount: usize, value: u64, from_ms: u64, to_ms: u64) -> RecordedCall {
        done(mount, CallAction::Read(0), from_ms, to_ms, value)
    }

    fn checked(calls: &[RecordedCall]) -> HistoryVerdict {
        check(calls, &SessionLosses::of(calls))
    }

    #[test]
    fn concurrent_and_failed_writes_are_linearizable() {
        let calls = [
            read(0, 0, 0, 1),
            write(0, 1, 2, 10),
            read(1, 1, 3, 4),
            write(1, 2, 5, 9),
            read(2, 2, 11, 12),
            // This write was done although it failed, and this one was not.
            failed(0, CallAction::Write(0, 3), 13, 14),
            failed(0, CallAction::Write(0, 4), 15, 16),
            read(1, 3, 20, 21),
            call(0, CallAction::Write(0, 5), 22, NEVER, CallOutcome::Pending),
            read(2, 3, 23, 24),
            read(2, 5, 30, 31),
        ];
        let verdict = checked(&calls);
        assert_eq!((verdict.checked, verdict.stale_ns_max, &verdict.problems[..]), (6, 0, &[][..]));
    }

    /// The planted read is stale by one millisecond.
    #[test]
    fn planted_stale_read_is_caught() {
        let verdict = checked(&[write(0, 1, 0, 1), write(0, 2, 2, 3), read(1, 1, 4, 5)]);
        assert_eq!((verdict.stale_ns_max, verdict.problems.len()), (1_000_000, 1), "{verdict:?}");
        // The same read while the write is in progress is good.
        assert_eq!(checked(&[write(0, 1, 0, 1), write(0, 2, 2, 5), read(1, 1, 4, 5)]).problems.len(), 0);
    }

    #[test]
    fn planted_read_reordering_is_caught() {
        let (first, second) = (write(0, 1, 0, 20), write(1, 2, 0, 20));
        let good = checked(&[first, second, read(2, 1, 1, 2), read(2, 2, 3, 4)]);
        assert!(good.problems.is_empty(), "{good:?}");
        let bad = checked(&[first, second, read(2, 1, 1, 2), read(2, 2, 3, 4), read(2, 1, 5, 6)]);
        assert!(!bad.problems.is_empty() && bad.problems[0].contains("order"), "{bad:?}");
        // Two mounts see two writes in different orders.
        let reads = [read(2, 1, 1, 3), read(2, 2, 4, 5), read(3, 2, 1, 2), read(3, 1, 5, 7)];
        let bad = checked(&[&[first, second], &reads[..]].concat());
        assert!(!bad.problems.is_empty(), "{bad:?}");
        // One write is between two reads of the same value.
        let bad = checked(&[write(0, 1, 0, 30), read(2, 1, 1, 2), write(1, 2, 4, 5), read(2, 1, 7, 8)]);
        assert!(!bad.problems.is_empty(), "{bad:?}");
    }

    /// The values were never written, or are written only after the read.
    #[test]
    fn planted_unknown_values_are_caught() {
        assert_eq!(checked(&[read(0, 7, 0, 1)]).problems.len(), 1);
        assert_eq!(checked(&[read(0, 7, 0, 1), write(1, 7, 2, 3)]).problems.len(), 1);
    }

    /// The kernel of the mount that renames may show the name of before for a second, and only that one.
    #[test]
    fn own_rename_shows_old_name() {
        let name = NAMES * SLOTS;
        let rename = |mount, value, from_ms, to_ms| done(mount, CallAction::Write(name, value), from_ms, to_ms, 0);
        let shows = |mount, value, from_ms, to_ms| done(mount, CallAction::Read(name), from_ms, to_ms, value);
        let seen = [rename(0, 1, 0, 1), rename(2, 2, 10, 50), shows(1, 2, 15, 20)];
        let problems = |more: &[RecordedCall]| checked(&[&seen, more].concat()).problems;
        assert_eq!(problems(&[shows(2, 1, 40, 41), shows(2, 2, 51, 52)]), [""; 0]);
        assert_eq!(problems(&[shows(0, 1, 40, 41)]).len(), 1, "another mount has no rename under way");
        assert_eq!(problems(&[shows(2, 1, 51, 52)]).len(), 1, "the rename has returned");
        let other = [rename(1, 3, 22, 24), shows(2, 1, 40, 41)];
        assert_eq!(problems(&other), [""; 0], "another mount renames after that");
        let before = [rename(1, 3, 12, 13), shows(2, 1, 40, 41)];
        assert_eq!(problems(&before).len(), 1, "another mount had replaced the name before");
        let long = [rename(0, 1, 0, 1), rename(2, 2, 10, 3000), shows(1, 2, 15, 20), shows(2, 1, 1021, 1022)];
        assert_eq!(checked(&long).problems.len(), 1, "longer than a second");
        let [first, second] = [write(0, 1, 0, 1), write(2, 2, 10, 50)];
        assert_eq!(checked(&[first, second, read(1, 2, 15, 20), read(2, 1, 40, 41)]).problems.len(), 1, "no name");
    }

    #[test]
    fn planted_synced_write_loss_caught() {
        let sync = |to_ms| done(0, CallAction::Sync(0), 3, to_ms, 0);
        let ended = failed(0, CallAction::Read(0), 20, 21);
        let after = read(1, 0, 30, 31);
        let lost = [write(0, 1, 1, 2), read(0, 1, 5, 6), ended, after];
        assert!(checked(&lost).problems.is_empty(), "an unsynced write may be lost with its session");
        let synced = [write(0, 1, 1, 2), sync(4), read(0, 1, 5, 6), ended, after];
        assert_eq!(checked(&synced).problems.len(), 1, "a synced one may not");
        let living = [write(0, 1, 1, 2), read(0, 1, 5, 6), after];
        assert_eq!(checked(&living).problems.len(), 1, "nor one of a session that was not ended");
        // What another mount has read is not lost any more.
        let seen = [write(0, 1, 1, 2), read(2, 1, 5, 6), ended, after];
        assert_eq!(checked(&seen).problems.len(), 1);
        // The session existed at 5 ms, so others cannot have missed its write at 4 ms.
        let early = [write(0, 1, 1, 2), read(1, 0, 3, 4), read(0, 1, 5, 6), ended];
        assert_eq!(checked(&early).problems.len(), 1);
        // A change of a name is lost only in the last second of the session, and unless another mount has seen it.
        let names = super::super::history::NAMES * SLOTS;
        let rename = |value, to_ms| done(0, CallAction::Write(names, value), to_ms - 1, to_ms, 0);
        let shows = |value, to_ms| done(1, CallAction::Read(names), to_ms - 1, to_ms, value);
        assert!(checked(&[rename(1, 2), ended, shows(0, 31)]).problems.is_empty());
        assert_eq!(checked(&[rename(1, 2), shows(1, 5), ended, shows(0, 31)]).problems.len(), 1);
        let ended = failed(0, CallAction::Read(0), 2000, 2001);
        assert_eq!(checked(&[rename(1, 2), rename(2, 1500), ended, shows(0, 2100)]).problems.len(), 1);
        assert!(checked(&[rename(1, 2), rename(2, 1500), ended, shows(1, 2100)]).problems.is_empty());
    }
}
