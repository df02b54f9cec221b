//! Tests that the detector finds the patterns of generated references.

use super::*;

/// A random generator (xorshift); the same seed gives the same references.
struct PatternRandom(u64);

impl PatternRandom {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A random number of at least 0 and less than 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The reports on a stream that consists of `references`.
fn reports(references: impl Iterator<Item = u64>) -> Vec<PeriodReport> {
    let mut detector = Detector::new(DetectorParameters::default());
    let mut known = BlockHistories::new(1 << 20);
    references.filter_map(|id| detector.observe(known.refer(id)).copied()).collect()
}

/// The share of reports whose verdict is `verdict`.
fn share(reports: &[PeriodReport], verdict: PatternVerdict) -> f64 {
    reports.iter().filter(|report| report.verdict == verdict).count() as f64 / reports.len() as f64
}

/// A scan is sequential, and a loop is looping with its length.
#[test]
fn scan_sequential_and_loop_looping() {
    let reports = reports((0..20).flat_map(|_| 0..1300));
    assert_eq!(reports[0].verdict, PatternVerdict::Sequential);
    assert_eq!(reports[1].verdict, PatternVerdict::Sequential);
    for report in &reports[3..] {
        assert_eq!(report.verdict, PatternVerdict::Looping, "{report}");
        assert_eq!(report.loop_length, Some(1300));
        assert_eq!(report.tau_backward, -1.0);
    }
}

/// A scan that reads each block three times is sequential.
#[test]
fn threefold_scan_is_sequential() {
    let reports = reports((0..30_000).map(|reference| reference / 3));
    // A period may begin between the three references to a block. That block is then known, but one block has no trend.
    assert!(reports.iter().all(|report| report.known <= 1 && report.by_backward.is_empty()));
    assert!(share(&reports, PatternVerdict::Sequential) + share(&reports, PatternVerdict::None) == 1.0);
    assert!(share(&reports, PatternVerdict::Sequential) > 0.3);
}

/// A loop that is shorter than a period is looping.
#[test]
fn short_loop_is_looping() {
    let reports = reports((0..100).flat_map(|_| 0..130));
    assert!(
        reports[1..].iter().all(|report| report.verdict == PatternVerdict::Looping && report.loop_length == Some(130))
    );
}

/// A loop with a tenth of noise is looping, and its length is about right.
#[test]
fn noisy_loop_is_looping() {
    let mut random = PatternRandom(11);
    let noisy = (0..60_000_u64).map(|at| if random.below(10) == 0 { 5000 + random.below(2000) } else { at % 1300 });
    let reports = reports(noisy);
    assert!(share(&reports[6..], PatternVerdict::Looping) > 0.9);
    let lengths = reports[6..].iter().filter_map(|report| report.loop_length);
    assert!(lengths.filter(|length| (1250..1350).contains(length)).count() > 90);
}

/// Draws a number below `bound`, approximately by Zipf's law with exponent 1.
fn zipf(random: &mut PatternRandom, bound: u32) -> usize {
    (f64::from(bound).powf(random.fraction()) - 1.0) as usize
}

/// The share of probabilistic periods falls as the number of blocks rises, because then fewer blocks of a period have
/// been referenced often.
#[test]
fn references_by_zipfs_law_are_probabilistic() {
    for (bound, share_min) in [(100, 0.85), (500, 0.75), (2000, 0.6)] {
        let mut random = PatternRandom(12);
        let reports = reports((0..100_000).map(|_| zipf(&mut random, bound) as u64));
        let probabilistic = share(&reports, PatternVerdict::Probabilistic);
        assert!(probabilistic > share_min, "{probabilistic} of periods over {bound} blocks");
    }
}

/// The blocks form a stack. Each reference takes a block from the stack, mostly from a small depth, and moves it to the
/// top.
#[test]
fn recency_skewed_references_are_clustered() {
    for bound in [100, 500, 2000] {
        let mut random = PatternRandom(13);
        let mut stack: Vec<u64> = (0..u64::from(bound)).collect();
        let reports = reports((0..100_000).map(|_| {
            let block = stack.remove(zipf(&mut random, bound));
            stack.insert(0, block);
            block
        }));
        let clustered = share(&reports, PatternVerdict::Clustered);
        // A block that stays near the top for a while is also referenced often, so some periods are judged
        // probabilistic, which is tested before clustered.
        let probabilistic = share(&reports, PatternVerdict::Probabilistic);
        assert!(
            clustered > 0.55 && clustered > 2.5 * probabilistic,
            "{clustered}, {probabilistic} over {bound} blocks"
        );
    }
}

#[test]
fn uniform_random_verdicts_at_chance() {
    let mut random = PatternRandom(14);
    let reports = reports((0..1_000_000).map(|_| random.below(2000)));
    let none = share(&reports, PatternVerdict::None);
    println!("verdicts on uniform random references: {:.1} % of periods", 100.0 * (1.0 - none));
    // Each of the three trends occurs by chance in 12 % of periods, nearly independently of the others, so about 31 %
    // of periods have a verdict.
    assert!((0.60..0.80).contains(&none), "{none}");
}

/// Blocks of another stream are known but have no distances.
#[test]
fn foreign_blocks_have_no_distances() {
    let mut detector = Detector::new(DetectorParameters { period: 10, ..DetectorParameters::default() });
    let mut histories = [BlockHistory::default(); 10];
    let mut report = None;
    for (index, history) in histories.iter_mut().enumerate() {
        report = if index < 6 { detector.observe_foreign(history) } else { detector.observe(history) }.copied();
    }
    let report = report.expect("ten references");
    assert_eq!((report.known, report.foreign, report.unknown), (0, 6, 4));
    assert_eq!(report.verdict, PatternVerdict::None);
}

#[test]
fn parameters_out_of_range_clamp() {
    for (period, sublists) in [(0, 0), (u32::MAX, usize::MAX)] {
        let mut detector = Detector::new(DetectorParameters { period, sublists, tau_min: f64::NAN });
        let mut known = BlockHistories::new(100);
        for id in 0..200_000 {
            detector.observe(known.refer(id % 100));
        }
        assert!(
            detector.last_report().is_some_and(|report| report.verdict != PatternVerdict::Looping),
            "NaN is no trend"
        );
    }
}
