//! The detector: finds, from the references of one stream, the pattern in which the stream references its blocks.
//!
//! Owns: virtual time, the attributes of blocks, the detection period, the trend and the verdict. Promises: a verdict
//! is a pure function of the stream's references and the parameters; nothing is allocated once the tables of one period
//! have grown. Leaves to others: storing each block's [`BlockHistory`] (in the policy's own entry of the block, so that
//! detection costs no look-up; or in [`BlockHistories`], for callers without such entries), and acting on a verdict.
//!
//! # How to use it
//! Make one [`Detector`] for each stream. For each reference, call [`Detector::observe`] with the block's history (a
//! default history for a block never seen before); it returns a [`PeriodReport`] if the reference ended a period. A
//! policy that contains detectors takes a [`PeriodSink`] and gives it a [`PeriodEvent`] for every period of every
//! stream; for any other policy, [`crate::WatchedPolicy`] contains the detectors and reports the periods. The report and the
//! event implement `Display`, as one line each.
//!
//! # Idea
//! Time is virtual: it is the number of references of the stream. A block has a *backward distance* (now minus the time
//! of its last reference), a *frequency* (the number of its references so far) and a *forward distance* (the time to
//! its next reference). How the first two predict the third differs between streams, and it determines which
//! replacement suits a stream. So at the end m(i) of each period, the detector does these steps:
//!
//! 1. take the blocks referenced since m(i-1), with backward distance and frequency *as they were at m(i-1)* and the
//!    forward distance *from m(i-1)* to the block's first reference in the period;
//! 2. leave out the blocks that were never referenced before m(i-1): they have no attributes;
//! 3. sort the blocks by backward distance, cut the list into five sublists of equal length, and average the forward
//!    distances of each sublist; do the same by frequency;
//! 4. judge whether the five averages rise or fall.
//!
//! | verdict | condition, tested in this order | replacement that suits |
//! |---|---|---|
//! | sequential | no block of the period was known at its start | MRU, and first victim of all streams |
//! | looping | forward distance falls as backward distance grows | MRU |
//! | probabilistic | forward distance falls as frequency grows | LFU |
//! | clustered | forward distance grows with backward distance | LRU |
//! | none | none of these | unchanged |
//!
//! # Trend
//! Strictly monotonic averages are rare in real references. So the trend is Kendall's tau over the averages (concordant
//! minus discordant pairs, divided by all pairs). It must reach `tau_min`, 0.6, which means that at most two of ten
//! pairs are out of order. With five values, tau reaches 0.6 by chance in 12 % of cases, and -0.6 in another 12 %. A
//! caller that must not act on a chance result waits for more than one report, or tests the period's samples, which
//! stay readable until the next reference.
//!
//! Blocks with equal attribute values have no order. Each of them gets the average forward distance of all blocks with
//! the same value, so that the result depends neither on the order in which they are sorted nor on a cut between them.
//!
//! # Loop length
//! In a loop of n blocks each block is referenced every n references: backward plus forward distance is n for all. The
//! loop length of a looping period is the median of these sums.
//!
//! # Invariants
//! 1. A block gives at most one sample per period, at its first reference in the period.
//! 2. A sample is taken only of a block whose last reference is before the period's start *in this stream's time*.
//! 3. Averages that are equal before rounding count as equal. So sublists whose blocks all have the same attribute
//!    value have no trend.
//!
//! # Cost
//! A reference costs O(1), without a look-up. The end of a period of p references costs O(p): two passes over its
//! samples for each attribute. Memory: 24 bytes per reference of a period, and 8 bytes per block, which the caller
//! stores.
//!
//! # Source
//! J. Choi, S. H. Noh, S. L. Min, Y. Cho, "An implementation study of a detection-based adaptive block replacement
//! scheme", USENIX ATC 1999, sections 2 and 3. Tau, the averaging of equal values, the order of the tests and the loop
//! length are not in the paper.

mod known;
mod report;
mod trend;

pub use known::BlockHistories;
pub use report::{PatternVerdict, PeriodEvent, PeriodReport, PeriodSink, SublistAverages};

use trend::AttributeTrend;

/// The largest number of sublists.
pub const SUBLISTS_MAX: usize = 10;
/// The longest period. *Units*: references.
pub const PERIOD_MAX: u32 = 1 << 16;
/// The number of bits of a sample's word that hold the forward distance.
const FORWARD_BITS: u32 = 16;

/// The settings of the detector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DetectorParameters {
    /// The length of the detection period. *Units*: references; clamped to 1 to [`PERIOD_MAX`].
    pub period: u32,
    /// The number of sublists into which the sorted blocks are cut; clamped to 2 to [`SUBLISTS_MAX`].
    pub sublists: usize,
    /// The smallest Kendall's tau, from 0 to 1, that counts as a trend.
    pub tau_min: f64,
}

impl Default for DetectorParameters {
    /// The paper's period of 500 references and 5 sublists, and a threshold of 0.6 for tau.
    fn default() -> DetectorParameters {
        DetectorParameters { period: 500, sublists: 5, tau_min: 0.6 }
    }
}

/// The state that the detector needs of one block: the time of its last reference in its stream, and its frequency.
///
/// A history has only 8 bytes, because there are many blocks. If a block is referenced again after more than 2^32
/// references of its stream, its backward distance is too small by a multiple of 2^32; one such sample among hundreds
/// does no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockHistory {
    /// The low 32 bits of the time of the last reference; meaningless while the frequency is 0.
    last: u32,
    /// The number of references to the block.
    frequency: u32,
}

impl BlockHistory {
    /// The history of a block that was never referenced.
    pub(crate) const NONE: BlockHistory = BlockHistory { last: 0, frequency: 0 };

    /// The number of references to the block so far.
    pub fn frequency(&self) -> u32 {
        self.frequency
    }

    /// The virtual time of the last reference, its low 32 bits; 0 if there was none.
    pub fn last(&self) -> u32 {
        self.last
    }
}

/// Detects the pattern of one stream.
#[derive(Debug)]
pub struct Detector {
    parameters: DetectorParameters,
    /// The number of references so far, which is the time of the next reference.
    now: u64,
    /// The time at which the running period began.
    start: u64,
    /// The number of references until the running period ends.
    left: u32,
    /// The number of blocks of the running period that were not known at its start.
    unknown: u32,
    /// The number of blocks of the running period whose history was kept in another stream's time.
    foreign: u32,
    /// The number of samples of the running period.
    samples: usize,
    /// The samples of the period by backward distance and by frequency, one word per sample: the attribute is in the
    /// high bits, the forward distance in the low bits. Each vector has room for a sample of every reference of a
    /// period.
    by_backward: Vec<u64>,
    by_frequency: Vec<u64>,
    /// Working memory for the end of a period, with a word for each reference of a period.
    scratch: Vec<u64>,
    report: PeriodReport,
}

impl Detector {
    /// A detector at time 0; parameters are clamped to their ranges.
    pub fn new(parameters: DetectorParameters) -> Detector {
        let parameters = DetectorParameters {
            period: parameters.period.clamp(1, PERIOD_MAX),
            sublists: parameters.sublists.clamp(2, SUBLISTS_MAX),
            tau_min: parameters.tau_min,
        };
        Detector {
            parameters,
            now: 0,
            start: 0,
            left: parameters.period,
            unknown: 0,
            foreign: 0,
            samples: 0,
            by_backward: vec![0; parameters.period as usize],
            by_frequency: vec![0; parameters.period as usize],
            scratch: vec![0; parameters.period as usize],
            report: PeriodReport::default(),
        }
    }

    /// The current parameters.
    pub fn parameters(&self) -> &DetectorParameters {
        &self.parameters
    }

    /// The virtual time, which is the number of references so far.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The number of references until the running period ends.
    #[inline]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// The report of the last period that ended; `None` before the first.
    pub fn last_report(&self) -> Option<&PeriodReport> {
        (self.report.number > 0).then_some(&self.report)
    }

    /// Counts a reference to a block and updates its `history`, which is a default history if the block was never
    /// referenced. *Returns* the report if the reference ended a period. *Cost*: O(1), and O(period) when a period
    /// ends.
    #[inline]
    pub fn observe(&mut self, history: &mut BlockHistory) -> Option<&PeriodReport> {
        if self.left == self.parameters.period {
            self.begin();
        }
        // The processor cannot predict well whether this reference gives a sample, and knows it only once the block's
        // entry has arrived from memory, so a branch would stall the processor. Instead, the sample is always written,
        // and it is counted only if it is valid.
        let known = history.frequency > 0;
        let forward = self.now - self.start;
        let age = u64::from((self.now as u32).wrapping_sub(history.last));
        let backward = age.saturating_sub(forward);
        self.by_backward[self.samples] = backward << FORWARD_BITS | forward;
        self.by_frequency[self.samples] = u64::from(history.frequency) << FORWARD_BITS | forward;
        self.samples += usize::from(known & (age > forward));
        self.unknown += u32::from(!known);
        self.count(history)
    }

    /// As [`Detector::observe`], but for a block that is known. *Returns* whether the reference ended a period.
    #[inline]
    pub(crate) fn observe_known(&mut self, history: &mut BlockHistory) -> bool {
        if self.left == self.parameters.period {
            self.begin();
        }
        let forward = self.now - self.start;
        let age = u64::from((self.now as u32).wrapping_sub(history.last));
        self.by_backward[self.samples] = age.saturating_sub(forward) << FORWARD_BITS | forward;
        self.by_frequency[self.samples] = u64::from(history.frequency) << FORWARD_BITS | forward;
        self.samples += usize::from(age > forward);
        self.count(history).is_some()
    }

    /// Counts a reference to a block whose history was kept in another stream's time, and converts the history to this
    /// stream's time. Such a block is known, so the period is not sequential. But its distances have no meaning in this
    /// stream's time, so it gives no sample.
    pub fn observe_foreign(&mut self, history: &mut BlockHistory) -> Option<&PeriodReport> {
        if self.left == self.parameters.period {
            self.begin();
        }
        self.foreign += 1;
        self.count(history)
    }

    /// Drops the running period and the report, because another stream takes over this stream's blocks. The
    /// virtual time is not reset, so the blocks' histories stay valid.
    pub fn begin_anew(&mut self) {
        self.left = self.parameters.period;
        self.report = PeriodReport::default();
    }

    /// The samples of the period that ended last, in no order, as pairs of backward distance and forward distance. They
    /// are readable from the reference that ended the period until the next reference.
    pub fn samples_by_backward(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.by_backward[..self.samples].iter().map(|&word| unpack(word))
    }

    /// The samples of the period that ended last, in no order, as pairs of frequency and forward distance. They are
    /// readable as long as [`Detector::samples_by_backward`].
    pub fn samples_by_frequency(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.by_frequency[..self.samples].iter().map(|&word| unpack(word))
    }

    #[inline]
    fn begin(&mut self) {
        self.samples = 0;
        self.unknown = 0;
        self.foreign = 0;
        self.start = self.now;
    }

    #[inline]
    fn count(&mut self, history: &mut BlockHistory) -> Option<&PeriodReport> {
        history.last = self.now as u32;
        history.frequency = history.frequency.saturating_add(1);
        self.now += 1;
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        self.left = self.parameters.period;
        self.judge();
        Some(&self.report)
    }

    /// Ends the period: averages the samples, chooses the verdict, and writes the report.
    fn judge(&mut self) {
        let (by_backward, by_frequency) = (&self.by_backward[..self.samples], &self.by_frequency[..self.samples]);
        let backward = AttributeTrend::of(by_backward, self.parameters.sublists, &mut self.scratch);
        let frequency = AttributeTrend::of(by_frequency, self.parameters.sublists, &mut self.scratch);
        let known = self.samples as u32;
        let tau_min = self.parameters.tau_min;
        let rises = |tau: f64| tau > 0.0 && tau >= tau_min;
        let verdict = if known == 0 && self.foreign == 0 {
            PatternVerdict::Sequential
        } else if rises(-backward.tau) {
            PatternVerdict::Looping
        } else if rises(-frequency.tau) {
            PatternVerdict::Probabilistic
        } else if rises(backward.tau) {
            PatternVerdict::Clustered
        } else {
            PatternVerdict::None
        };
        self.report = PeriodReport {
            number: self.report.number + 1,
            end: self.now,
            verdict,
            unknown: self.unknown,
            known,
            foreign: self.foreign,
            by_backward: backward.averages,
            by_frequency: frequency.averages,
            tau_backward: backward.tau,
            tau_frequency: frequency.tau,
            loop_length: None,
        };
        if verdict == PatternVerdict::Looping {
            self.report.loop_length = trend::loop_length(by_backward, &mut self.scratch);
        }
    }
}

fn unpack(word: u64) -> (u64, u64) {
    (word >> FORWARD_BITS, word & ((1 << FORWARD_BITS) - 1))
}

#[cfg(test)]
mod tests;
