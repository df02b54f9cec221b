//! Opening a span: recovering the index, the purge table and the write position from the device.
//!
//! Owns: the order of the steps of recovery, see `docs/formats/store.md`. Recovery reads the records written since the
//! newest intact checkpoint, or every segment if there is no checkpoint. Damage after the superblock never makes
//! recovery fail: only the damaged objects are lost.

mod full_scan;
pub mod loading;
mod opening;
mod repairs;
pub mod replay;
mod replay_log;
mod report;
mod roll_forward;
mod state_slot;
mod superblock;

use std::time::Instant;

use nectary_block::SharedDevice;

use crate::checkpoint::CheckpointHeader;
use crate::disk::segment::SegmentScan;
use crate::error::Error;
use crate::format::layout::SpanLayout;
use crate::format::{LogEnd, LogPosition, OPEN_COUNT_SHIFT, PurgeRecord, open_count_of};
use crate::index::ObjectIndex;
use crate::planted::{Bug, planted};
use crate::purge::log as purge_log;
use crate::purge::log::{PurgeLog, PurgeOrder};
use crate::purge::purge_table::PurgeTable;
use crate::purge::records::{EFFECT_SOFT, RULE_ALL, RULE_PREFIX, RULE_TAG, all_record};
use loading::IndexRemainder;
pub use opening::{IndexLoading, IndexReadLimits};
pub use repairs::PendingRepair;
use replay::IndexReplay;
pub use report::RecoveryReport;
use roll_forward::RollForward;
pub use state_slot::{FoundState, SpanMembership, StateSlot, read_state, write_state};
pub use superblock::read_superblock;
use superblock::repair_superblock;

/// The result of recovery.
pub struct RecoveredSpan {
    pub index: ObjectIndex,
    /// The part of the index that is still to be loaded.
    pub rest: IndexRemainder,
    pub purges: PurgeTable,
    pub purge_log: PurgeLog,
    pub position: LogPosition,
    pub checkpoint_number: u64,
    pub clock: u64,
    pub open_count: u64,
    pub membership: SpanMembership,
    /// Every put up to this sequence is found, except if it was purged, replaced, reclaimed or damaged.
    pub recovered_sequence: u64,
    /// The last sequence in the log, found or lost.
    pub logged_sequence: u64,
    /// Whether a crash cut the log, that is, records were found after a gap.
    pub is_cut: bool,
    /// The checkpoint that was used; `None` if all segments were scanned.
    pub checkpoint: Option<CheckpointHeader>,
    pub recovery: RecoveryReport,
    /// What was not as a clean close leaves it.
    pub repairs: Vec<PendingRepair>,
}

/// The purges that are known before a span of a store of several spans is opened.
#[derive(Default)]
pub struct SpanPurges {
    /// The contents of the span's purge log, if the log was already read.
    pub found: Option<purge_log::RecoveredPurgeLog>,
    /// The position in the order of the store's purges that the span reaches when it is opened.
    pub order: PurgeOrder,
    /// The purges that the span missed; their records come from other spans. They apply to every object that is now on
    /// the span.
    pub missed: Vec<PurgeRecord>,
}

/// Recovers a span.
pub async fn recover(
    device: &SharedDevice,
    layout: &SpanLayout,
    index_bytes_max: u64,
    opening: IndexReadLimits,
    span_purges: SpanPurges,
) -> Result<RecoveredSpan, Error> {
    let begun = Instant::now();
    let previous = read_state(device, layout).await;
    let purge = match span_purges.found {
        Some(found) => found,
        None => PurgeLog::recover(device, layout).await?,
    };
    let purges = PurgeTable::new(layout.hash_seed);
    if !planted(Bug::PurgeRecordIgnored) {
        let ignored = |record: &&PurgeRecord| {
            (planted(Bug::PurgeAllIgnored) && record.rule == RULE_ALL)
                || (planted(Bug::PurgePrefixIgnored) && record.rule == RULE_PREFIX)
                || (planted(Bug::PurgeTagIgnored) && record.rule == RULE_TAG)
                || (planted(Bug::SoftPurgeIgnored) && record.effect == EFFECT_SOFT)
        };
        purge.records.iter().filter(|record| !ignored(record)).for_each(|record| purges.add(record));
    }
    let (forward, used, checkpoint_number) =
        RollForward::newest(device, layout, &purges, index_bytes_max, u64::MAX, opening).await;
    let recovered_sequence = forward.recovered_sequence();
    let RollForward { index, replay, loading, position, scanned, records, .. } = forward;

    // If a state slot is damaged, the sequences and generations found give a lower bound of the open count.
    let generation_max = purge.records.iter().map(|record| record.generation.get()).max().unwrap_or(0);
    let logged = if planted(Bug::OpenCountOfLogIgnored) { 0 } else { scanned.last_sequence };
    let seen_count = open_count_of(logged.max(generation_max));
    let mut repairs: Vec<PendingRepair> = repair_superblock(device, layout).await;
    let membership = previous.newest.membership;
    let open_count = begin_open(device, layout, previous.next_open_count(seen_count), membership).await?;
    let clock = open_count << OPEN_COUNT_SHIFT;

    let known_end = scanned.purge_end.max(used.map_or(LogEnd::default(), |header: CheckpointHeader| header.purge_end));
    let mut purge_log = purge.log;
    let is_short = known_end > purge_log.end() && !planted(Bug::ShortPurgeLogBelieved);
    let purges_lost = purge.lost || is_short;
    if purges_lost {
        purge_log.forget_mark();
    }
    if purges_lost && !planted(Bug::PurgeRecordIgnored) {
        purges.add(&all_record(clock, position.epoch + 1));
    }
    repairs.extend(found_in_purge_log(purges_lost, purge.one_copy));
    let is_behind = span_purges.order.number > purge_log.order().number;
    for record in &span_purges.missed {
        let position = position.epoch + 1;
        purges.add(&PurgeRecord { generation: clock.into(), position: position.into(), ..*record });
    }
    purge_log.advance(span_purges.order);
    if purges_lost || purge.one_copy || is_behind {
        purge_log.compact(&purges, None).await?;
    }
    repairs.extend(found_in_state(&previous, seen_count, &scanned));
    let is_clean = previous.is_clean();
    let recovery = RecoveryReport {
        open_count,
        clean: is_clean,
        checkpoint: used.is_some(),
        appends: scanned.appends,
        append_bytes: scanned.append_bytes,
        records,
        salvaged: scanned.salvaged,
        purges_lost,
        duration_us: begun.elapsed().as_micros() as u64,
    };
    Ok(RecoveredSpan {
        index,
        rest: IndexRemainder { loading, replay, recovered_sequence },
        purges,
        purge_log,
        position,
        checkpoint_number,
        clock,
        open_count,
        membership,
        recovered_sequence,
        logged_sequence: scanned.last_sequence,
        is_cut: recovered_sequence < scanned.last_sequence,
        checkpoint: used,
        recovery,
        repairs,
    })
}

/// Records durably that the store is open; returns the open count. If the slot of a count cannot be written, the next
/// count is used, whose slot is the other one.
async fn begin_open(
    device: &SharedDevice,
    layout: &SpanLayout,
    mut open_count: u64,
    membership: SpanMembership,
) -> Result<u64, Error> {
    let slot = |open_count| StateSlot { open_count, is_clean: false, membership };
    if write_state(device, layout, &slot(open_count)).await.is_err() {
        open_count += 1;
        write_state(device, layout, &slot(open_count)).await?;
    }
    if !planted(Bug::OpenUnflushed) {
        device.flush(Default::default()).await?;
    }
    Ok(open_count)
}

/// What the state slots say about the end of the last open. `seen_count` is the highest open count of anything else.
fn found_in_state(state: &FoundState, seen_count: u64, scanned: &SegmentScan) -> Option<PendingRepair> {
    if state.newest.open_count == 0 && (seen_count > 0 || state.broken > 1) {
        return Some(PendingRepair::of_damage(
            "both state slots are damaged or cannot be read; they are written again",
        ));
    }
    if state.broken > 0 {
        // A write that a crash interrupts leaves a damaged slot, too.
        return Some(PendingRepair::after_crash("it was not closed, and a state slot is damaged or cannot be read"));
    }
    (!state.newest.is_clean && state.newest.open_count > 0).then(|| {
        PendingRepair::after_crash(format!(
            "it was not closed; the {} appends ({} bytes) since the last checkpoint are replayed",
            scanned.appends, scanned.append_bytes
        ))
    })
}

/// What is wrong with the purge log.
fn found_in_purge_log(is_lost: bool, has_one_copy: bool) -> Option<PendingRepair> {
    match (is_lost, has_one_copy) {
        (true, _) => {
            Some(PendingRepair::of_damage("purges are missing in both copies of the purge log; everything is purged"))
        }
        (false, true) => Some(PendingRepair::after_crash(
            "a block of the purge log is whole in one copy only; the log is written again",
        )),
        (false, false) => None,
    }
}

/// Rebuilds the index because checkpoint `number` turned out to be damaged: from an older checkpoint, or from all
/// segments.
pub async fn rebuild(
    device: &SharedDevice,
    layout: &SpanLayout,
    purges: &PurgeTable,
    index_bytes_max: u64,
    number: u64,
    opening: IndexReadLimits,
) -> (ObjectIndex, IndexReplay) {
    let (forward, ..) = RollForward::newest(device, layout, purges, index_bytes_max, number, opening.whole()).await;
    (forward.index, forward.replay)
}
