//! Verdicts on how a stream accesses its blocks, for listeners; no decision depends on them.
//!
//! Owns: the detector of a stream, and the evidence for its verdict. Promises: if the accesses have no pattern, at most
//! 1 % of periods get a verdict. Leaves to others: detection ([`crate::detect`]).
//!
//! By chance, Kendall's tau over five averages reaches 0.6 in 12 % of cases, and -0.6 in another 12 %. So a verdict
//! needs more evidence. The correlation r between the rank of the attribute and the forward distance, over all samples
//! of the period, must be so far from 0 that a random order of the samples reaches it in at most 0.5 % of cases. In a
//! random order of n samples, r has mean 0 and variance 1/(n-1), and is approximately normal. A period without known
//! blocks can be a scan, or consist of random accesses to very many blocks. So the verdict is sequential only if the
//! numbers of new blocks rise (or fall) from one block to the next more often than in a random order. In a random order
//! n/2 of n steps rise on average, with variance (n+2)/12 (the Eulerian distribution).

use crate::detect::{BlockHistory, Detector, DetectorParameters, PatternVerdict, PeriodReport};

/// The least evidence for a verdict: a normal distribution is farther from its mean in 0.5 % of cases. *Units*:
/// standard deviations.
const EVIDENCE_MIN: f64 = 2.81;

/// The detection of one stream.
pub(super) struct StreamDetection {
    detector: Detector,
    last: u64,
    rises: f64,
    falls: f64,
}

impl StreamDetection {
    /// The memory of one detection. *Units*: bytes.
    pub(super) fn bytes_of() -> u64 {
        size_of::<StreamDetection>() as u64
            + 3 * size_of::<u64>() as u64 * u64::from(DetectorParameters::default().period)
    }

    /// Starts the detection of a new stream.
    pub(super) fn new() -> StreamDetection {
        StreamDetection { detector: Detector::new(DetectorParameters::default()), last: 0, rises: 0.0, falls: 0.0 }
    }

    /// Counts an access to a block with this history. Returns the report if a period ended; it has a verdict only if there is evidence.
    pub(super) fn count(&mut self, id: u64, history: &mut BlockHistory) -> Option<PeriodReport> {
        if history.frequency() == 0 {
            self.rises += f64::from(id > self.last);
            self.falls += f64::from(id < self.last);
            self.last = id;
        }
        let mut report = *self.detector.observe(history)?;
        report.verdict = self.judge(&report);
        (self.rises, self.falls) = (0.0, 0.0);
        Some(report)
    }

    fn judge(&self, report: &PeriodReport) -> PatternVerdict {
        let tau_min = self.detector.parameters().tau_min;
        let steps = self.rises + self.falls;
        if report.verdict == PatternVerdict::Sequential {
            let is_ordered = (self.rises - steps / 2.0).abs() > EVIDENCE_MIN * ((steps + 2.0) / 12.0).sqrt();
            return if is_ordered { PatternVerdict::Sequential } else { PatternVerdict::None };
        }
        let backward = evidence(self.detector.samples_by_backward().collect());
        if report.tau_backward <= -tau_min && backward < -EVIDENCE_MIN {
            return PatternVerdict::Looping;
        }
        let is_by_frequency = report.tau_frequency <= -tau_min;
        if is_by_frequency && evidence(self.detector.samples_by_frequency().collect()) < -EVIDENCE_MIN {
            return PatternVerdict::Probabilistic;
        }
        if report.tau_backward >= tau_min && backward > EVIDENCE_MIN {
            PatternVerdict::Clustered
        } else {
            PatternVerdict::None
        }
    }
}

/// The evidence for a trend: r √(n-1), where r is the correlation between the rank of the attribute and the forward
/// distance. Samples with equal attributes share the mean of their ranks.
fn evidence(mut samples: Vec<(u64, u64)>) -> f64 {
    samples.sort_unstable();
    let count = samples.len() as f64;
    let mean = samples.iter().map(|sample| sample.1 as f64).sum::<f64>() / count;
    let (mut both, mut ranks, mut forwards, mut start) = (0.0, 0.0, 0.0, 0.0);
    for group in samples.chunk_by(|left, right| left.0 == right.0) {
        let rank = start + (group.len() as f64 - count) / 2.0;
        start += group.len() as f64;
        for (_, forward) in group {
            let deviation = *forward as f64 - mean;
            both += rank * deviation;
            ranks += rank * rank;
            forwards += deviation * deviation;
        }
    }
    if ranks <= 0.0 || forwards <= 0.0 { 0.0 } else { both / (ranks * forwards).sqrt() * (count - 1.0).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StreamId;
    use crate::watch::histories::HistoryCache;

    /// A detection with histories of its own.
    struct DetectionFixture(StreamDetection, HistoryCache);

    impl DetectionFixture {
        fn new() -> DetectionFixture {
            DetectionFixture(StreamDetection::new(), HistoryCache::new(u64::MAX))
        }

        fn count(&mut self, id: u64) -> Option<PeriodReport> {
            self.0.count(id, self.1.refer(id, StreamId(0)))
        }
    }

    /// Evidence is the correlation of ranks, where equal values have their average rank.
    #[test]
    fn evidence_is_rank_correlation() {
        let rising = (0..100).map(|value| (value * value, value)).collect();
        assert!((evidence(rising) - 99.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(evidence((0..100).map(|value| (7, value)).collect()), 0.0);
    }

    /// Uniform random references have a verdict in at most a twentieth of the periods.
    #[test]
    fn uniform_random_rarely_has_verdict() {
        for universe in [3000, 2_000_000, 20_000_000] {
            let mut random = 0x2545_f491_4f6c_dd1d_u64;
            let (mut periods, mut verdicts) = (0, 0);
            let mut detection = DetectionFixture::new();
            for _ in 0..500_000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                if let Some(report) = detection.count(random % universe) {
                    periods += 1;
                    verdicts += u32::from(report.verdict != PatternVerdict::None);
                }
            }
            assert!(periods == 1000 && verdicts <= 50, "{universe}: {verdicts} of {periods}");
        }
    }

    #[test]
    fn scan_is_sequential_either_direction() {
        for direction in [1, u64::MAX] {
            let mut detection = DetectionFixture::new();
            let verdicts: Vec<PatternVerdict> = (0..5000_u64)
                .filter_map(|step| detection.count(9000_u64.wrapping_add(step.wrapping_mul(direction))))
                .map(|report| report.verdict)
                .collect();
            assert_eq!(verdicts, [PatternVerdict::Sequential; 10]);
        }
    }

    #[test]
    fn loop_found_in_second_round() {
        let mut detection = DetectionFixture::new();
        for step in 0..3000_u64 {
            if let Some(report) = detection.count(step % 1200).filter(|_| step >= 1999) {
                assert_eq!(report.verdict, PatternVerdict::Looping, "at {step}");
            }
        }
    }
}
