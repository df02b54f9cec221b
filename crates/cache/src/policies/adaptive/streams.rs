//! Streams: who refers, and how each of them refers to its blocks.
//!
//! Owns: the slots of the streams that are told apart, a detector for each, and the evidence for a verdict. Promises: at
//! most [`SLOTS_MAX`] streams are told apart, the last slot is shared by all others; a verdict on references without a
//! pattern comes in at most 1 % of periods. Leaves to others: what follows from a verdict.
//!
//! # Evidence
//! Kendall's tau over five averages reaches 0.6 by chance in 12 % of cases a side, so a verdict here needs a second leg: over
//! all samples of the period the correlation r between the rank of the attribute and the forward distance must be one that
//! a random order of the same samples has in at most 0.5 % of cases. Under a random order r has the mean 0 and the variance
//! 1/(n-1) exactly (the permutation distribution), and is near enough normal for the n of a period: |r| √(n-1) > 2.81.
//! Equal attribute values have the mean of their ranks.
//!
//! That no block of a period was known is what a scan looks like, and also what random references to far more blocks look
//! like than histories are kept of. A scan goes through its blocks in order, so for the verdict sequential the new blocks
//! of the period must rise from one to the next more often (or, backwards, fall) than they do in a random order in all but
//! 0.5 % of cases a side: of n blocks (n-1)/2 rise on average, with the variance (n+1)/12 (the Eulerian numbers).

use super::ghosts::CANDIDATES;
use super::guard::Favourite;
use crate::Stream;
use crate::detect::{Detector, Known, Parameters, PeriodReport, Verdict};

/// How many streams are told apart.
pub(super) const SLOTS_MAX: usize = 16;
/// Blocks of which a history is kept, for each unit of capacity; and at least so many.
const KNOWN_FACTOR: usize = 4;
const KNOWN_MIN: usize = 1 << 13;
const KNOWN_MAX: usize = 1 << 16;
/// |r| √(n-1) must be above this: the 0.5 % point of the normal distribution, both sides.
const EVIDENCE_MIN: f64 = 2.81;
/// So many looping periods lately confirm a loop; no more than so many are counted.
const LOOPS_CONFIRMED: u32 = 2;
const LOOPS_MAX: u32 = 3;
/// A verdict of fewer samples is none.
const SAMPLES_MIN: usize = 20;

/// One stream.
pub(super) struct Slot {
    /// Who it is; of the last slot who referred last.
    pub(super) stream: Stream,
    detector: Detector,
    known: Known,
    /// Scratch for the evidence.
    samples: Vec<(u64, u64)>,
    order: Order,
    /// The last period, its verdict being one with evidence.
    pub(super) report: PeriodReport,
    /// Looping periods lately: one more for each, one less for each other.
    loops: u32,
    /// What the last verdict expects; on no verdict the one before holds.
    pub(super) favourite: Option<Favourite>,
}

/// The streams that are told apart.
pub(super) struct Streams {
    slots: Vec<Slot>,
    known_max: usize,
    /// The slot of the last reference, which is often the next one's.
    last: usize,
    /// Whether several streams share the last slot.
    is_shared: bool,
}

impl Streams {
    /// No streams yet.
    pub(super) fn new(capacity: u64) -> Streams {
        let known = usize::try_from(capacity).unwrap_or(KNOWN_MAX).saturating_mul(KNOWN_FACTOR);
        Streams { slots: Vec::new(), known_max: known.clamp(KNOWN_MIN, KNOWN_MAX), last: 0, is_shared: false }
    }

    /// The slot of a stream, which is given one where there still are.
    pub(super) fn slot(&mut self, stream: Stream) -> usize {
        if self.slots.get(self.last).is_some_and(|slot| slot.stream == stream) {
            return self.last;
        }
        let found = self.slots.iter().position(|slot| slot.stream == stream);
        self.last = found.unwrap_or_else(|| self.admit(stream));
        self.last
    }

    /// Counts a reference; returns whether it ended a period.
    pub(super) fn count(&mut self, slot: usize, id: u64) -> bool {
        let Slot { detector, known, samples, order, report, loops, favourite, .. } = &mut self.slots[slot];
        let history = known.refer(id);
        if history.frequency() == 0 {
            order.count(id);
        }
        let Some(period) = detector.observe(history) else { return false };
        *report = *period;
        report.verdict = judge(detector, report, samples, order);
        order.begin();
        let is_loop = report.verdict == Verdict::Looping;
        *loops = if is_loop { (*loops + 1).min(LOOPS_MAX) } else { loops.saturating_sub(1) };
        let ghost = candidate(report.verdict).or(favourite.map(|favourite| favourite.ghost));
        *favourite = ghost.map(|ghost| Favourite { ghost, is_confirmed: *loops >= LOOPS_CONFIRMED });
        true
    }

    /// Shares the last slot where another does.
    pub(super) fn share_like(&mut self, other: &Streams) {
        self.is_shared = other.is_shared;
    }

    /// The slot whose books are a stream's: its own, or the shared one once there is one; `None` where it has none.
    pub(super) fn books(&self, stream: Stream) -> Option<usize> {
        let own = self.slots.iter().position(|slot| slot.stream == stream);
        own.or(self.is_shared.then_some(SLOTS_MAX - 1))
    }

    /// What all streams have in common: the favourite of them all, a confirmed one if it is that of each.
    pub(super) fn favourite(&self) -> Option<Favourite> {
        let first = self.slots.first()?.favourite?;
        let is_common = self.slots.iter().all(|slot| slot.favourite.is_some_and(|other| other.ghost == first.ghost));
        let is_confirmed = self.slots.iter().all(|slot| slot.loops >= LOOPS_CONFIRMED);
        is_common.then_some(Favourite { ghost: first.ghost, is_confirmed })
    }

    /// The streams by slot.
    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    fn admit(&mut self, stream: Stream) -> usize {
        if self.slots.len() == SLOTS_MAX {
            self.slots[SLOTS_MAX - 1].stream = stream;
            self.is_shared = true;
            return SLOTS_MAX - 1;
        }
        self.slots.push(Slot {
            stream,
            detector: Detector::new(Parameters::default()),
            known: Known::new(self.known_max),
            samples: Vec::new(),
            order: Order::default(),
            report: PeriodReport::default(),
            loops: 0,
            favourite: None,
        });
        self.slots.len() - 1
    }
}

/// The order in which new blocks of a period come.
#[derive(Debug, Clone, Copy, Default)]
struct Order {
    last: Option<u64>,
    rises: u32,
    falls: u32,
}

impl Order {
    fn count(&mut self, id: u64) {
        if let Some(last) = self.last.replace(id) {
            self.rises += u32::from(id > last);
            self.falls += u32::from(id < last);
        }
    }

    fn begin(&mut self) {
        (self.rises, self.falls) = (0, 0);
    }

    /// By how many standard deviations there are more rises than in a random order; few blocks are no evidence.
    fn evidence(&self) -> f64 {
        let steps = f64::from(self.rises + self.falls);
        if steps < SAMPLES_MIN as f64 {
            0.0
        } else {
            (f64::from(self.rises) - steps / 2.0) / ((steps + 2.0) / 12.0).sqrt()
        }
    }
}

/// The candidate that a verdict calls for.
fn candidate(verdict: Verdict) -> Option<usize> {
    let name = match verdict {
        Verdict::Looping | Verdict::Sequential | Verdict::Probabilistic => "lirs",
        Verdict::Clustered => "lru",
        Verdict::None => return None,
    };
    CANDIDATES.iter().position(|candidate| *candidate == name)
}

/// The verdict of a period, with evidence.
fn judge(detector: &Detector, report: &PeriodReport, samples: &mut Vec<(u64, u64)>, order: &Order) -> Verdict {
    if report.verdict == Verdict::Sequential {
        return if order.evidence().abs() > EVIDENCE_MIN { Verdict::Sequential } else { Verdict::None };
    }
    let tau_min = detector.parameters().tau_min;
    let backward = evidence(detector.samples_by_backward(), samples);
    if report.tau_backward <= -tau_min && backward < -EVIDENCE_MIN {
        return Verdict::Looping;
    }
    if report.tau_frequency <= -tau_min && evidence(detector.samples_by_frequency(), samples) < -EVIDENCE_MIN {
        return Verdict::Probabilistic;
    }
    if report.tau_backward >= tau_min && backward > EVIDENCE_MIN { Verdict::Clustered } else { Verdict::None }
}

/// r √(n-1) of the rank of the attribute and the forward distance.
fn evidence(from: impl Iterator<Item = (u64, u64)>, samples: &mut Vec<(u64, u64)>) -> f64 {
    samples.clear();
    samples.extend(from);
    if samples.len() < SAMPLES_MIN {
        return 0.0;
    }
    samples.sort_unstable();
    let count = samples.len() as f64;
    let mean_rank = (count - 1.0) / 2.0;
    let mean_forward = samples.iter().map(|sample| sample.1 as f64).sum::<f64>() / count;
    let (mut both, mut ranks, mut forwards) = (0.0, 0.0, 0.0);
    let mut start = 0;
    for group in samples.chunk_by(|left, right| left.0 == right.0) {
        let rank = start as f64 + (group.len() - 1) as f64 / 2.0 - mean_rank;
        start += group.len();
        ranks += rank * rank * group.len() as f64;
        for (_, forward) in group {
            let deviation = *forward as f64 - mean_forward;
            both += rank * deviation;
            forwards += deviation * deviation;
        }
    }
    if ranks <= 0.0 || forwards <= 0.0 { 0.0 } else { both / (ranks * forwards).sqrt() * (count - 1.0).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_the_correlation_of_ranks_with_equal_ones_averaged() {
        let rising = (0..100).map(|value| (value * value, value));
        assert!((evidence(rising, &mut Vec::new()) - 99.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(evidence((0..100).map(|value| (7, value)), &mut Vec::new()), 0.0);
        assert_eq!(evidence((0..19).map(|value| (value, value)), &mut Vec::new()), 0.0);
    }

    #[test]
    fn uniform_random_references_have_a_verdict_in_at_most_a_twentieth_of_periods() {
        for universe in [3000, 2_000_000, 20_000_000] {
            let mut random = 0x2545_f491_4f6c_dd1d_u64;
            let (mut periods, mut verdicts) = (0, 0);
            let mut streams = Streams::new(1000);
            let slot = streams.slot(Stream(1));
            for _ in 0..500_000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                if streams.count(slot, random % universe) {
                    periods += 1;
                    verdicts += u32::from(streams.slots()[slot].report.verdict != Verdict::None);
                }
            }
            assert!(periods == 1000 && verdicts <= 50, "{universe}: {verdicts} of {periods}");
        }
    }

    #[test]
    fn a_scan_is_sequential_in_either_direction() {
        for direction in [1, u64::MAX] {
            let mut streams = Streams::new(1000);
            let slot = streams.slot(Stream(1));
            let ends =
                (0..5000_u64).filter(|step| streams.count(slot, 9000_u64.wrapping_add(step.wrapping_mul(direction))));
            assert_eq!(ends.count(), 10);
            assert_eq!(streams.slots()[slot].report.verdict, Verdict::Sequential);
        }
    }

    #[test]
    fn a_loop_is_found_in_its_second_round() {
        let mut streams = Streams::new(1000);
        let slot = streams.slot(Stream(1));
        for step in 0..3000_u64 {
            if streams.count(slot, step % 1200) && step >= 1999 {
                assert_eq!(streams.slots()[slot].report.verdict, Verdict::Looping, "at {step}");
            }
        }
    }

    #[test]
    fn streams_beyond_the_limit_share_the_last_slot() {
        let mut streams = Streams::new(1000);
        for number in 0..SLOTS_MAX as u32 {
            assert_eq!(streams.slot(Stream(number)), number as usize);
        }
        assert_eq!(streams.slot(Stream(99)), SLOTS_MAX - 1);
        assert_eq!(streams.slot(Stream(3)), 3);
        assert_eq!(streams.slots().len(), SLOTS_MAX);
    }
}
