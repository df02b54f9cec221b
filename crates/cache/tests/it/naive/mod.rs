//! A naive detector, written from the paper's text: it keeps every reference of the stream, and at the end of a period
//! computes everything from that list. Bugs can be planted in it, to show that a comparison catches them.

use std::collections::{BTreeMap, HashMap};

use nectary_cache::detect::{DetectorParameters, PatternVerdict, PeriodReport};

/// A bug that can be planted in the naive detector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "not every test plants every bug")]
pub enum DetectorBug {
    /// No bug.
    Nothing,
    /// Measures the forward distance from the block's last reference instead of the period's start.
    ForwardFromReference,
    /// Uses the attributes at the period's end instead of those at its start.
    AttributesAtEnd,
    /// Requires that a trend exceeds the threshold instead of only reaching it.
    StrictThreshold,
    /// Does not average the forward distances of blocks with equal attribute values.
    TiesNotAveraged,
    /// Includes in the sublists the blocks that are referenced for the first time, with the largest backward distance.
    FirstTimeBlocks,
    /// Tests clustered before looping and probabilistic.
    ClusteredFirst,
}

/// One reference: the block, and whether the block belonged to another stream before.
type Reference = (u64, bool);

/// One stream's naive detector.
#[derive(Debug)]
pub struct NaiveDetector {
    pub parameters: DetectorParameters,
    pub planted: DetectorBug,
    pub references: Vec<Reference>,
    /// For each block that was forgotten, or that came from another stream: the positions in `references` at which its
    /// count restarts, and its frequency there.
    pub restarts: HashMap<u64, Vec<(usize, u64)>>,
    pub start: usize,
    pub number: u64,
}

/// The report of the naive detector; its fields have the meanings of the fields of [`PeriodReport`].
#[derive(Debug, Clone, PartialEq)]
pub struct NaiveReport {
    pub number: u64,
    pub verdict: PatternVerdict,
    pub known: usize,
    pub unknown: usize,
    pub foreign: usize,
    pub by_backward: Vec<f64>,
    pub by_frequency: Vec<f64>,
    pub loop_length: Option<u64>,
}

impl NaiveReport {
    /// Whether a report of the real detector agrees with this one; averages may differ by a millionth.
    pub fn agrees(&self, fast: &PeriodReport) -> bool {
        let near = |naive: &[f64], fast: &[f64]| {
            naive.len() == fast.len() && naive.iter().zip(fast).all(|(naive, fast)| (naive - fast).abs() < 1e-6)
        };
        self.number == fast.number
            && self.verdict == fast.verdict
            && (self.known, self.unknown, self.foreign)
                == (fast.known as usize, fast.unknown as usize, fast.foreign as usize)
            && near(&self.by_backward, &fast.by_backward)
            && near(&self.by_frequency, &fast.by_frequency)
            && self.loop_length == fast.loop_length
    }
}

impl NaiveDetector {
    pub fn new(parameters: DetectorParameters, planted: DetectorBug) -> NaiveDetector {
        NaiveDetector { parameters, planted, references: Vec::new(), restarts: HashMap::new(), start: 0, number: 0 }
    }

    /// Counts one reference; returns a report if the reference ends a period.
    pub fn refer(&mut self, block: u64, foreign: bool) -> Option<NaiveReport> {
        self.references.push((block, foreign));
        if self.references.len() - self.start < self.parameters.period as usize {
            return None;
        }
        let report = self.judge();
        self.start = self.references.len();
        Some(report)
    }

    /// Drops the current period.
    #[allow(dead_code, reason = "only streams that are handed over")]
    pub fn begin_anew(&mut self) {
        self.start = self.references.len();
        self.number = 0;
    }

    /// Restarts the count of a block: from now on it counts as referenced `frequency` times, but never by this stream.
    #[allow(dead_code, reason = "only policies forget")]
    pub fn restart(&mut self, block: u64, frequency: u64) {
        self.restarts.entry(block).or_default().push((self.references.len(), frequency));
    }

    /// The number of references to a block before `time`, and the time of the last of them.
    pub fn before(&self, block: u64, time: usize) -> (u64, Option<usize>) {
        let restarts = self.restarts.get(&block).into_iter().flatten();
        let (from, inherited) = restarts.copied().rfind(|restart| restart.0 <= time).unwrap_or((0, 0));
        let positions: Vec<usize> = (from..time).filter(|&position| self.references[position].0 == block).collect();
        (inherited + positions.len() as u64, positions.last().copied())
    }

    fn judge(&mut self) -> NaiveReport {
        self.number += 1;
        let (start, end) = (self.start, self.references.len());
        let (mut by_backward, mut by_frequency, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        let (mut unknown, mut foreign) = (0, 0);
        for position in start..end {
            let (block, is_foreign) = self.references[position];
            if is_foreign {
                foreign += 1;
                continue;
            }
            let (frequency, last) = self.before(block, position);
            let at_end = self.planted == DetectorBug::AttributesAtEnd;
            let first = self.planted == DetectorBug::FirstTimeBlocks;
            let mut forward = position - start;
            match last {
                None if frequency > 0 => {}
                None => {
                    unknown += 1;
                    if first {
                        by_backward.push((u64::MAX, forward));
                        by_frequency.push((0, forward));
                    }
                }
                Some(last) if last >= start => {}
                Some(last) => {
                    let (mut frequency, mut backward) = (frequency, (start - last) as u64);
                    sums.push(backward + forward as u64);
                    if at_end {
                        let (count, last) = self.before(block, end);
                        frequency = count;
                        backward = (end - last.unwrap_or(0)) as u64;
                    }
                    if self.planted == DetectorBug::ForwardFromReference {
                        forward = position - last;
                    }
                    by_backward.push((backward, forward));
                    by_frequency.push((frequency, forward));
                }
            }
        }
        let known = sums.len();
        let by_backward = self.averages(by_backward);
        let by_frequency = self.averages(by_frequency);
        let verdict = if known == 0 && foreign == 0 {
            PatternVerdict::Sequential
        } else {
            let clustered = self.rises(&by_backward, 1);
            let looping = self.rises(&by_backward, -1);
            let probabilistic = self.rises(&by_frequency, -1);
            match (looping, probabilistic, clustered) {
                (_, _, true) if self.planted == DetectorBug::ClusteredFirst => PatternVerdict::Clustered,
                (true, _, _) => PatternVerdict::Looping,
                (_, true, _) => PatternVerdict::Probabilistic,
                (_, _, true) => PatternVerdict::Clustered,
                _ => PatternVerdict::None,
            }
        };
        sums.sort_unstable();
        let loop_length = (verdict == PatternVerdict::Looping).then(|| sums[sums.len() / 2]);
        NaiveReport { number: self.number, verdict, known, unknown, foreign, by_backward, by_frequency, loop_length }
    }

    /// Sorts samples by attribute, averages samples with equal attributes, cuts the list into sublists, and averages
    /// each sublist.
    fn averages(&self, mut samples: Vec<(u64, usize)>) -> Vec<f64> {
        let sublists = self.parameters.sublists;
        if samples.len() < sublists {
            return Vec::new();
        }
        samples.sort_by_key(|sample| sample.0);
        let mut by_value: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for &(value, forward) in &samples {
            by_value.entry(value).or_default().push(forward);
        }
        let forwards: Vec<f64> = samples
            .iter()
            .map(|(value, forward)| {
                let equals = &by_value[value];
                match self.planted {
                    DetectorBug::TiesNotAveraged => *forward as f64,
                    _ => equals.iter().sum::<usize>() as f64 / equals.len() as f64,
                }
            })
            .collect();
        (0..sublists)
            .map(|sublist| {
                let cut = |sublist: usize| sublist * samples.len() / sublists;
                let part = &forwards[cut(sublist)..cut(sublist + 1)];
                part.iter().sum::<f64>() / part.len() as f64
            })
            .collect()
    }

    /// Whether the averages rise (direction 1) or fall (-1), by Kendall's tau.
    fn rises(&self, averages: &[f64], direction: i32) -> bool {
        let (mut balance, mut pairs) = (0, 0);
        for right in 0..averages.len() {
            for left in 0..right {
                pairs += 1;
                let difference = averages[right] - averages[left];
                if difference.abs() > 1e-8 {
                    balance += if difference > 0.0 { 1 } else { -1 };
                }
            }
        }
        let tau = f64::from(balance * direction) / f64::from(pairs.max(1));
        match self.planted {
            DetectorBug::StrictThreshold => tau > self.parameters.tau_min,
            _ => tau > 0.0 && tau >= self.parameters.tau_min,
        }
    }
}
