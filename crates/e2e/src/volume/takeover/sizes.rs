//! Whether appends of several mounts follow each other, and whether sizes are those of the moment.
//!
//! Owns: the form of a record, and the check of a file of records. The file's last contents give the order of the
//! appends. Then each size names the append that it ends with, so it must not be older than an append that had returned,
//! nor newer than one that had not begun. Appends that were lost with their session (`losses`) are not in the file;
//! until the session's last sign of life they count in other mounts' sizes.

use std::collections::BTreeMap;

use super::history::{CallAction, HistoryVerdict, NEVER, RecordedCall, TORN, milliseconds};
use super::losses::SessionLosses;

/// The length of a record.
pub const RECORD_BYTES: u64 = 16;

/// A record with a value, which is not 0.
pub fn record(value: u64) -> [u8; RECORD_BYTES as usize] {
    let mut record = [0; RECORD_BYTES as usize];
    record[..8].copy_from_slice(&value.to_le_bytes());
    record[8..].copy_from_slice(&crate::rng::mix(value).to_le_bytes());
    record
}

/// The value of a record, or [`TORN`].
pub fn value_of(record: &[u8]) -> u64 {
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes);
    match (record.len() as u64 == RECORD_BYTES).then(|| (number(&record[..8]), number(&record[8..]))) {
        Some((Ok(value), Ok(mixed))) if value != 0 && crate::rng::mix(value) == mixed => value,
        _ => TORN,
    }
}

/// An append that is in the file.
struct PlacedAppend {
    start: u64,
    /// [`NEVER`] if the call failed.
    end: u64,
}

/// Checks the sizes and the tails of a history against the file's contents at its end.
pub fn check(calls: &[RecordedCall], losses: &SessionLosses, contents: &[u8]) -> HistoryVerdict {
    let mut verdict = HistoryVerdict::default();
    let appends: BTreeMap<u64, &RecordedCall> = calls
        .iter()
        .filter_map(|call| match call.act {
            CallAction::Append(value) => Some((value, call)),
            _ => None,
        })
        .collect();
    let mut placed = Vec::new();
    let mut position_of = BTreeMap::new();
    for (position, record) in contents.chunks(RECORD_BYTES as usize).enumerate() {
        let value = value_of(record);
        let Some(append) = appends.get(&value) else {
            verdict.problems.push(format!("record {position} is torn, or nobody appended it: {record:?}"));
            return verdict;
        };
        if let Some(before) = position_of.insert(value, position) {
            verdict.problems.push(format!("append {value} is in the file twice, as records {before} and {position}"));
        }
        placed.push(PlacedAppend { start: append.start, end: if append.is_done() { append.end } else { NEVER } });
    }
    let missing = |append: &&&RecordedCall| append.is_done() && !position_of.contains_key(&value_in(append));
    let missing: Vec<&RecordedCall> = appends.values().filter(missing).copied().collect();
    for append in missing.iter().filter(|append| !losses.may_be_lost(append)) {
        verdict.problems.push(format!(
            "append {} of mount {} at {} ms is not in the file",
            value_in(append),
            append.mount,
            milliseconds(append.start)
        ));
    }
    order(&placed, &mut verdict);
    sizes(calls, losses, &placed, &missing, &mut verdict);
    tails(calls, losses, &mut verdict);
    verdict
}

fn value_in(append: &RecordedCall) -> u64 {
    match append.act {
        CallAction::Append(value) => value,
        _ => 0,
    }
}

/// An append that began after another one had returned comes behind it.
fn order(placed: &[PlacedAppend], verdict: &mut HistoryVerdict) {
    let mut latest_start = 0;
    for (position, append) in placed.iter().enumerate() {
        if append.end < latest_start {
            verdict.problems.push(format!("record {position} lies behind one that was appended later"));
        }
        latest_start = latest_start.max(append.start);
    }
}

fn sizes(
    calls: &[RecordedCall],
    losses: &SessionLosses,
    placed: &[PlacedAppend],
    missing: &[&RecordedCall],
    verdict: &mut HistoryVerdict,
) {
    // The latest begin of the appends before a position, and the earliest end of those from it on.
    let mut begun = vec![0; placed.len() + 1];
    let mut ended = vec![NEVER; placed.len() + 1];
    for at in 0..placed.len() {
        begun[at + 1] = begun[at].max(placed[at].start);
        let at = placed.len() - 1 - at;
        ended[at] = ended[at + 1].min(placed[at].end);
    }
    let mut sizes: Vec<(&RecordedCall, usize)> = Vec::new();
    for call in calls.iter().filter(|call| call.act == CallAction::Size) {
        let Some(bytes) = call.done() else { continue };
        let count = (bytes / RECORD_BYTES) as usize;
        let own = |append: &&&RecordedCall| append.mount == call.mount && append.start < call.end;
        if missing.iter().any(|append| own(&append)) {
            // It may have counted its own appends, which are lost by now.
            continue;
        }
        verdict.checked += 1;
        let at = milliseconds(call.start);
        if bytes % RECORD_BYTES != 0 || count > placed.len() || begun[count] > call.end {
            verdict.problems.push(format!("mount {}: a size of {bytes} bytes too early at {at} ms", call.mount));
            continue;
        }
        if ended[count] < call.start {
            verdict.stale(call, ended[count], &format!("a size of {count} records"));
            continue;
        }
        // Count the appends that are lost only later.
        let is_there = |append: &&RecordedCall| {
            append.end < call.start && losses.alive_until(append.handle).is_some_and(|alive| alive >= call.end)
        };
        let least = placed.iter().filter(|append| append.end < call.start).count();
        let since = missing.iter().copied().filter(is_there).map(|append| append.end);
        let (lost, since) = since.fold((0, 0), |(count, last), end| (count + 1, last.max(end)));
        if lost > 0 && count < least + lost {
            verdict.stale(call, since, &format!("a size of {count} records instead of {}", least + lost));
        }
        sizes.push((call, count));
    }
    sizes.sort_by_key(|(call, _)| call.start);
    let mut by_end = sizes.clone();
    by_end.sort_by_key(|(call, _)| call.end);
    let (mut next, mut most, mut since) = (0, 0, 0);
    for (call, count) in sizes {
        while let Some((_, before)) = by_end.get(next).filter(|(before, _)| before.end < call.start) {
            if *before > most {
                (most, since) = (*before, by_end[next].0.end);
            }
            next += 1;
        }
        if count < most {
            verdict.stale(call, since, &format!("a size of {count} records after one of {most}"));
        }
    }
}

fn tails(calls: &[RecordedCall], losses: &SessionLosses, verdict: &mut HistoryVerdict) {
    for call in calls.iter().filter(|call| call.act == CallAction::Tail) {
        let Some(value) = call.done() else { continue };
        verdict.checked += 1;
        // The file may be shorter than its size was a moment ago only if a session was ended.
        let may_be_short = (0..).take(super::plan::MOUNTS).any(|mount| losses.is_hit(mount));
        if value == TORN || value == 0 && !may_be_short {
            let at = milliseconds(call.start);
            verdict.problems.push(format!("mount {}: the last record at {at} ms is {value:#x}", call.mount));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::planted::{done, failed};
    use super::*;

    fn append(mount: usize, value: u64, from_ms: u64, to_ms: u64) -> RecordedCall {
        done(mount, CallAction::Append(value), from_ms, to_ms, 0)
    }

    fn size(mount: usize, records: u64, from_ms: u64, to_ms: u64) -> RecordedCall {
        done(mount, CallAction::Size, from_ms, to_ms, records * RECORD_BYTES)
    }

    fn contents(values: &[u64]) -> Vec<u8> {
        values.iter().flat_map(|value| record(*value)).collect()
    }

    fn checked(calls: &[RecordedCall], values: &[u64]) -> HistoryVerdict {
        check(calls, &SessionLosses::of(calls), &contents(values))
    }

    #[test]
    fn sizes_during_concurrent_appends_are_good() {
        let calls = [
            append(0, 1, 0, 4),
            append(1, 2, 1, 5),
            failed(2, CallAction::Append(3), 6, 7),
            size(2, 1, 2, 3),
            size(2, 2, 8, 9),
            size(2, 3, 10, 11),
            done(2, CallAction::Tail, 12, 13, 3),
        ];
        let verdict = checked(&calls, &[2, 1, 3]);
        assert_eq!((verdict.checked, &verdict.problems[..]), (4, &[][..]));
    }

    /// The planted errors are sizes that are stale, or include an append before it begins.
    #[test]
    fn planted_size_errors_are_caught() {
        let stale = checked(&[append(0, 1, 0, 1), append(0, 2, 2, 3), size(1, 1, 4, 5)], &[1, 2]);
        assert_eq!((stale.stale_ns_max, stale.problems.len()), (1_000_000, 1), "{stale:?}");
        let early = checked(&[size(1, 1, 0, 1), append(0, 1, 2, 3)], &[1]);
        assert_eq!(early.problems.len(), 1, "{early:?}");
        let falling = [append(0, 1, 0, 20), size(1, 1, 2, 3), size(2, 0, 4, 5)];
        assert_eq!(checked(&falling, &[1]).problems.len(), 1);
        let odd = done(1, CallAction::Size, 4, 5, 17);
        assert_eq!(checked(&[append(0, 1, 0, 10), append(0, 2, 0, 10), odd], &[1, 2]).problems.len(), 1);
    }

    /// The planted errors are overlapping, torn and reordered appends.
    #[test]
    fn planted_append_errors_are_caught() {
        let calls = [append(0, 1, 0, 1), append(1, 2, 2, 3)];
        assert!(checked(&calls, &[1, 2]).problems.is_empty());
        assert_eq!(checked(&calls, &[2, 1]).problems.len(), 1, "reordered");
        assert_eq!(checked(&calls, &[2]).problems.len(), 1, "overwritten");
        assert!(!checked(&calls, &[1, 2, 2]).problems.is_empty(), "done twice");
        let mut torn = contents(&[1, 2]);
        torn[9] ^= 1;
        assert_eq!(check(&calls, &SessionLosses::of(&calls), &torn).problems.len(), 1, "torn");
        let hole = [contents(&[1]), vec![0; 16]].concat();
        assert_eq!(check(&calls, &SessionLosses::of(&calls), &hole).problems.len(), 1, "a hole");
        assert_eq!(checked(&[append(0, 1, 0, 1), done(1, CallAction::Tail, 2, 3, 0)], &[1]).problems.len(), 1);
    }

    #[test]
    fn planted_synced_append_loss_caught() {
        let ended = failed(0, CallAction::Append(9), 20, 21);
        let sync = done(0, CallAction::Sync(0), 3, 4, 0);
        let other = append(1, 2, 30, 31);
        assert!(checked(&[append(0, 1, 1, 2), size(0, 1, 5, 6), ended, other], &[2]).problems.is_empty());
        assert_eq!(checked(&[append(0, 1, 1, 2), sync, ended, other], &[2]).problems.len(), 1);
        assert_eq!(checked(&[append(0, 1, 1, 2), other], &[2]).problems.len(), 1, "no session was ended");
        // The session existed at 10 ms, so another mount counts its append at 5 ms.
        let life = done(0, CallAction::Tail, 10, 11, 1);
        let early = [append(0, 1, 1, 2), size(1, 0, 5, 6), life, ended, other];
        assert_eq!(checked(&early, &[2]).problems.len(), 1);
    }
}
