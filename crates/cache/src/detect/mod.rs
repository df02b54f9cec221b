//! The detector: says from one stream's references how the stream refers to its blocks.
//!
//! Owns: virtual time, the attributes of blocks, the detection period, the trend and the verdict. Promises: a verdict
//! is a pure function of the stream's references and the parameters; nothing is allocated once the tables of one period
//! have grown. Leaves to others: the place of a block's [`History`] (in the policy's own entry of the block, so that
//! detection costs no look-up; or in [`Known`], for users without entries) and the action on a verdict.
//!
//! # How to use it
//! One [`Detector`] a stream. At each reference call [`Detector::observe`] with the block's history (a default one for
//! a block never seen before); it answers a [`PeriodReport`] if the reference ended a period. A policy that
//! detects takes a [`PeriodSink`] and gives it a [`PeriodEvent`] for every period of every stream; of any other policy
//! [`crate::Watched`] does. The report and the event print themselves, one line each.
//!
//! # Idea
//! Time is virtual: the number of references of the stream. A block has a *backward distance* (now minus its last
//! reference), a *frequency* (its references so far) and a *forward distance* (the time to its next reference). Which
//! replacement suits a stream depends on how the first two foretell the third. So at the end m(i) of each period
//!
//! 1. take the blocks referenced since m(i-1), with backward distance and frequency *as they were at m(i-1)* and the
//!    forward distance *from m(i-1)* to the block's first reference in the period;
//! 2. leave out the blocks that were never referenced before m(i-1): they have no attributes;
//! 3. sort by backward distance, cut into five sublists of equal length, average the forward distances of each; the
//!    same by frequency;
//! 4. judge whether the five averages rise or fall.
//!
//! | verdict | sign, in this order of tests | replacement that suits |
//! |---|---|---|
//! | sequential | no block of the period was known at its start | MRU, and first victim of all streams |
//! | looping | forward distance falls as backward distance grows | MRU |
//! | probabilistic | forward distance falls as frequency grows | LFU |
//! | clustered | forward distance grows with backward distance | LRU |
//! | none | nothing of these | whatever it was |
//!
//! # Trend
//! A strictly monotonous row of averages is rare in real references, so the trend is Kendall's tau over the averages
//! (concordant minus discordant pairs, over all pairs) and must reach `tau_min`, 0.6: at most two of ten pairs are out
//! of order. On five values this comes by chance in 12 % of cases a side; who must not act on chance asks for more than
//! one report, or tests the period's samples, which stay readable until the next reference.
//!
//! Blocks of equal attribute value have no order among themselves. Each gets the average forward distance of all with
//! its value, so that neither the order of a sort nor the place of a cut among them matters.
//!
//! # Loop length
//! In a loop of n blocks each block is referenced every n references: backward plus forward distance is n for all. The
//! loop length of a looping period is the median of the sums.
//!
//! # Invariants
//! 1. A block gives at most one sample a period: at its first reference in it.
//! 2. A sample is taken only of a block whose last reference is before the period's start *in this stream's time*.
//! 3. Averages that are equal as fractions have no order, so sublists within one attribute value have no trend.
//!
//! # Cost
//! A reference: O(1), no look-up. A period of p references: O(p), two passes over its samples for each attribute.
//! Memory: 24 bytes a reference of a period and 8 bytes a block, which the caller keeps.
//!
//! # Source
//! J. Choi, S. H. Noh, S. L. Min, Y. Cho, "An implementation study of a detection-based adaptive block replacement
//! scheme", USENIX ATC 1999, sections 2 and 3. Tau, the averaging of equal values, the order of the tests and the loop
//! length are not in the paper.

mod known;
mod report;
mod trend;

pub use known::Known;
pub use report::{Averages, PeriodEvent, PeriodReport, PeriodSink, Verdict};

use trend::Trend;

/// The largest number of sublists.
pub const SUBLISTS_MAX: usize = 10;
/// The longest period. *Units*: references.
pub const PERIOD_MAX: u32 = 1 << 16;
/// Bits of a sample's word that hold the forward distance.
const FORWARD_BITS: u32 = 16;

/// The settings of the detector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// The length of the detection period. *Units*: references; taken between 1 and [`PERIOD_MAX`].
    pub period: u32,
    /// Into how many sublists the sorted blocks are cut; taken between 2 and [`SUBLISTS_MAX`].
    pub sublists: usize,
    /// How large Kendall's tau must be for a trend, from 0 to 1.
    pub tau_min: f64,
}

impl Default for Parameters {
    /// The paper's period of 500 and 5 sublists, and a tau of 0.6.
    fn default() -> Parameters {
        Parameters { period: 500, sublists: 5, tau_min: 0.6 }
    }
}

/// The memory of one block: its last reference and its frequency, in its stream's time.
///
/// 8 bytes, as there are many. A block that comes back after 2^32 references of its stream counts as one that comes
/// back after that much less; one such sample among hundreds does no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct History {
    /// The low 32 bits of the time of the last reference; of no meaning while the frequency is 0.
    last: u32,
    /// How often it was referenced.
    frequency: u32,
}

impl History {
    /// Of a block that was never seen.
    pub(crate) const NONE: History = History { last: 0, frequency: 0 };

    /// The references so far.
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
    parameters: Parameters,
    /// References so far: the time of the next one.
    now: u64,
    /// The time at which the running period began.
    start: u64,
    /// References of the running period that are still to come.
    left: u32,
    /// Blocks of the running period that were not known at its start.
    unknown: u32,
    /// Blocks of the running period that are known only in another stream's time.
    foreign: u32,
    /// Samples of the running period.
    samples: usize,
    /// One word a sample of the period: attribute above, forward distance below. As long as the period.
    by_backward: Vec<u64>,
    by_frequency: Vec<u64>,
    /// As long as the period, for the results computed at its end.
    scratch: Vec<u64>,
    report: PeriodReport,
}

impl Detector {
    /// A detector at time 0; parameters out of range are brought to the nearest that is in range.
    pub fn new(parameters: Parameters) -> Detector {
        let parameters = Parameters {
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
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The virtual time: references so far.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// References until the running period ends.
    #[inline]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// The report of the last period that ended; `None` before the first.
    pub fn last_report(&self) -> Option<&PeriodReport> {
        (self.report.number > 0).then_some(&self.report)
    }

    /// Counts a reference to the block of `history`, which is a default one for a block never seen, and updates it.
    /// *Returns* the report if the reference ended a period. *Cost*: O(1), and O(period) where a period ends.
    #[inline]
    pub fn observe(&mut self, history: &mut History) -> Option<&PeriodReport> {
        if self.left == self.parameters.period {
            self.begin();
        }
        // Whether this is a sample is as good as random and known only when the block's entry has come from memory: a
        // branch on it would keep the processor from working ahead. So the sample is written in any case, and counted
        // where it is one.
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

    /// As [`Detector::observe`] of a block that is known. *Returns* whether the reference ended a period.
    #[inline]
    pub(crate) fn observe_known(&mut self, history: &mut History) -> bool {
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
    /// stream's time. Such a block is known, so the period is not sequential, but its distances say nothing here.
    pub fn observe_foreign(&mut self, history: &mut History) -> Option<&PeriodReport> {
        if self.left == self.parameters.period {
            self.begin();
        }
        self.foreign += 1;
        self.count(history)
    }

    /// Gives up the running period and the reports so far, for a stream that takes over the blocks of another; time
    /// goes on, so that the blocks' histories stay valid.
    pub fn begin_anew(&mut self) {
        self.left = self.parameters.period;
        self.report = PeriodReport::default();
    }

    /// The samples of the period that ended last: (backward distance, forward distance), in no order. Readable from the
    /// reference that ended the period to the next one.
    pub fn samples_by_backward(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.by_backward[..self.samples].iter().map(|&word| unpack(word))
    }

    /// The samples of the period that ended last, by frequency: (frequency, forward distance). Readable as
    /// [`Detector::samples_by_backward`].
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
    fn count(&mut self, history: &mut History) -> Option<&PeriodReport> {
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

    /// Ends the period: averages, judges, and writes the report.
    fn judge(&mut self) {
        let (by_backward, by_frequency) = (&self.by_backward[..self.samples], &self.by_frequency[..self.samples]);
        let backward = Trend::of(by_backward, self.parameters.sublists, &mut self.scratch);
        let frequency = Trend::of(by_frequency, self.parameters.sublists, &mut self.scratch);
        let known = self.samples as u32;
        let tau_min = self.parameters.tau_min;
        let rises = |tau: f64| tau > 0.0 && tau >= tau_min;
        let verdict = if known == 0 && self.foreign == 0 {
            Verdict::Sequential
        } else if rises(-backward.tau) {
            Verdict::Looping
        } else if rises(-frequency.tau) {
            Verdict::Probabilistic
        } else if rises(backward.tau) {
            Verdict::Clustered
        } else {
            Verdict::None
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
        if verdict == Verdict::Looping {
            self.report.loop_length = trend::loop_length(by_backward, &mut self.scratch);
        }
    }
}

fn unpack(word: u64) -> (u64, u64) {
    (word >> FORWARD_BITS, word & ((1 << FORWARD_BITS) - 1))
}

#[cfg(test)]
mod tests;
