//! Chooses the states of an epoch that are tried, and their order.
//!
//! Owns: the choice. At each crash point every uncertain write may have happened or not. There are too many
//! combinations, so the plan is a list of cases: at every point, all of these writes and none of them; at some points,
//! always including the last point of the epoch, each prefix in the order of start and of end, each single loss, each
//! single survivor, and torn writes; then random small subsets until the list is long enough. If the list is longer
//! than the limit, a seeded sample is taken, which always contains two states of the last point: with all uncertain
//! writes, and with none.

use super::CrashModel;
use super::history::{RecordedWrite, WriteHistory};
use super::image::{SECTOR_BYTES, WrittenPart};
use crate::random::SimulationRandom;

/// The number of points of an epoch at which every single fault is tried, in addition to the last point.
const FOCUS_POINTS: usize = 3;

/// The largest number of uncertain writes for which single faults are tried at one point.
const FOCUS_OPERATIONS: usize = 256;

/// A crash at a point, and which uncertain operations survive it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CrashCase {
    pub point: usize,
    pub choice: SurvivorChoice,
}

/// The uncertain operations that survive; indices count the operations in the order in which they began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SurvivorChoice {
    All,
    None,
    /// The first operations in the order in which they began; the number says how many.
    Begun(usize),
    /// The first operations in the order in which they ended; the number says how many.
    Ended(usize),
    /// All except the one with this index.
    Lost(usize),
    /// Only the one with this index.
    Only(usize),
    /// All, and the one with this index is torn.
    TornAmongAll(usize, WrittenPart),
    /// All that began before the one with this index, and that one is torn.
    TornLast(usize, WrittenPart),
    /// A random subset, drawn by this seed.
    Random(u64),
}

/// Lists the operations that are uncertain after a crash at `point`.
pub(super) fn in_doubt(history: &WriteHistory, model: CrashModel, point: usize) -> Vec<&RecordedWrite> {
    let begun = history.begun_before(point).iter();
    begun.filter(|operation| model.certain_from(operation) >= point).collect()
}

/// Makes the plans of an epoch whose crash points are `points`.
pub(super) fn plans(
    history: &WriteHistory,
    model: CrashModel,
    points: &[usize],
    max: usize,
    random: &mut SimulationRandom,
) -> Vec<CrashCase> {
    let Some(&last) = points.last() else { return Vec::new() };
    let mut plans = Vec::new();
    for &point in points {
        plans.push(CrashCase { point, choice: SurvivorChoice::All });
        plans.push(CrashCase { point, choice: SurvivorChoice::None });
    }
    let mut focus = vec![last];
    for _ in 0..FOCUS_POINTS.min(points.len() - 1) {
        focus.push(points[random.below(points.len() as u64) as usize]);
    }
    focus.sort_unstable();
    focus.dedup();
    for point in focus {
        single_faults(&in_doubt(history, model, point), random, |choice| plans.push(CrashCase { point, choice }));
    }
    // Add random plans, more than needed, because many of them repeat earlier images.
    for _ in 0..max {
        let point = points[random.below(points.len() as u64) as usize];
        plans.push(CrashCase { point, choice: SurvivorChoice::Random(random.bits()) });
    }
    shuffle(&mut plans, random);
    let certain = [SurvivorChoice::All, SurvivorChoice::None].map(|choice| CrashCase { point: last, choice });
    plans.retain(|plan| !certain.contains(plan));
    // Plans are taken from the end of the list.
    plans.extend(certain);
    plans
}

fn single_faults(doubt: &[&RecordedWrite], random: &mut SimulationRandom, mut add: impl FnMut(SurvivorChoice)) {
    let count = doubt.len();
    for length in 1..count {
        add(SurvivorChoice::Begun(length));
        add(SurvivorChoice::Ended(length));
    }
    let mut chosen: Vec<usize> = (0..count).collect();
    if count > FOCUS_OPERATIONS {
        shuffle(&mut chosen, random);
        chosen.truncate(FOCUS_OPERATIONS);
    }
    for index in chosen {
        add(SurvivorChoice::Lost(index));
        add(SurvivorChoice::Only(index));
        let sectors = doubt[index].length().div_ceil(SECTOR_BYTES);
        if sectors < 2 {
            continue;
        }
        let cut = 1 + random.below(sectors - 1);
        for part in [
            WrittenPart::Head(1),
            WrittenPart::Head(cut),
            WrittenPart::Tail(1),
            WrittenPart::Tail(cut),
            WrittenPart::Some(random.bits()),
        ] {
            add(SurvivorChoice::TornAmongAll(index, part));
            add(SurvivorChoice::TornLast(index, part));
        }
    }
}

/// Returns the operations that a choice keeps, with the surviving part of each, in the order in which they began.
pub(super) fn chosen<'h>(
    doubt: &[&'h RecordedWrite],
    choice: &SurvivorChoice,
    subset_size: usize,
) -> Vec<(&'h RecordedWrite, WrittenPart)> {
    let whole = |index: &usize| (doubt[*index], WrittenPart::Whole);
    let all = 0..doubt.len();
    match *choice {
        SurvivorChoice::All => all.map(|index| whole(&index)).collect(),
        SurvivorChoice::None => Vec::new(),
        SurvivorChoice::Begun(count) => all.take(count).map(|index| whole(&index)).collect(),
        SurvivorChoice::Ended(count) => {
            let mut order: Vec<usize> = all.collect();
            order.sort_by_key(|&index| (doubt[index].completed, index));
            order.truncate(count);
            order.sort_unstable();
            order.iter().map(whole).collect()
        }
        SurvivorChoice::Lost(lost) => all.filter(|&index| index != lost).map(|index| whole(&index)).collect(),
        SurvivorChoice::Only(only) => all.filter(|&index| index == only).map(|index| whole(&index)).collect(),
        SurvivorChoice::TornAmongAll(torn, part) => {
            all.map(|index| (doubt[index], if index == torn { part } else { WrittenPart::Whole })).collect()
        }
        SurvivorChoice::TornLast(torn, part) => all
            .take(torn + 1)
            .map(|index| (doubt[index], if index == torn { part } else { WrittenPart::Whole }))
            .collect(),
        SurvivorChoice::Random(seed) => subset(doubt, seed, subset_size),
    }
}

/// Draws a small subset, or all operations except a small subset; sometimes one of them is torn.
fn subset<'h>(doubt: &[&'h RecordedWrite], seed: u64, subset_size: usize) -> Vec<(&'h RecordedWrite, WrittenPart)> {
    let mut random = SimulationRandom::new(seed);
    let size = 1 + random.below(subset_size.max(1) as u64) as usize;
    let mut small: Vec<usize> = (0..size).map(|_| random.below(doubt.len() as u64) as usize).collect();
    small.sort_unstable();
    let keeps_small = random.chance(50);
    let mut kept: Vec<(&RecordedWrite, WrittenPart)> = doubt
        .iter()
        .enumerate()
        .filter(|(index, _)| small.binary_search(index).is_ok() == keeps_small)
        .map(|(_, &operation)| (operation, WrittenPart::Whole))
        .collect();
    if !kept.is_empty() && random.chance(50) {
        let torn = random.below(kept.len() as u64) as usize;
        kept[torn].1 = WrittenPart::Some(random.bits());
    }
    kept
}

fn shuffle<T>(list: &mut [T], random: &mut SimulationRandom) {
    for index in (1..list.len()).rev() {
        list.swap(index, random.below(index as u64 + 1) as usize);
    }
}
