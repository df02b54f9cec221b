//! Tests that the detector finds the patterns of generated references.

use super::*;

/// A random generator (xorshift); the same seed gives the same references.
struct Random(u64);

impl Random {
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
    let mut detector = Detector::new(Parameters::default());
    let mut known = Known::new(1 << 20);
    references.filter_map(|id| detector.observe(known.refer(id)).copied()).collect()
}

/// The share of reports whose verdict is `verdict`.
fn share(reports: &[PeriodReport], verdict: Verdict) -> f64 {
    reports.iter().filter(|report| report.verdict == verdict).count() as f64 / reports.len() as f64
}

#[test]
fn a_scan_is_sequential_and_a_loop_looping_with_its_length() {
    let reports = reports((0..20).flat_map(|_| 0..1300));
    assert_eq!(reports[0].verdict, Verdict::Sequential);
    assert_eq!(reports[1].verdict, Verdict::Sequential);
    for report in &reports[3..] {
        assert_eq!(report.verdict, Verdict::Looping, "{report}");
        assert_eq!(report.loop_length, Some(1300));
        assert_eq!(report.tau_backward, -1.0);
    }
}

#[test]
fn a_scan_that_reads_each_block_thrice_is_sequential() {
    let reports = reports((0..30_000).map(|reference| reference / 3));
    // A period may begin between the three references to a block. That block is then known, but one block has no trend.
    assert!(reports.iter().all(|report| report.known <= 1 && report.by_backward.is_empty()));
    assert!(share(&reports, Verdict::Sequential) + share(&reports, Verdict::None) == 1.0);
    assert!(share(&reports, Verdict::Sequential) > 0.3);
}

#[test]
fn a_loop_smaller_than_a_period_is_looping() {
    let reports = reports((0..100).flat_map(|_| 0..130));
    assert!(reports[1..].iter().all(|report| report.verdict == Verdict::Looping && report.loop_length == Some(130)));
}

#[test]
fn a_loop_with_a_tenth_of_noise_is_looping_and_its_length_is_about_right() {
    let mut random = Random(11);
    let noisy = (0..60_000_u64).map(|at| if random.below(10) == 0 { 5000 + random.below(2000) } else { at % 1300 });
    let reports = reports(noisy);
    assert!(share(&reports[6..], Verdict::Looping) > 0.9);
    let lengths = reports[6..].iter().filter_map(|report| report.loop_length);
    assert!(lengths.filter(|length| (1250..1350).contains(length)).count() > 90);
}

/// Draws a number below `bound`, approximately by Zipf's law with exponent 1.
fn zipf(random: &mut Random, bound: u32) -> usize {
    (f64::from(bound).powf(random.fraction()) - 1.0) as usize
}

/// The share of probabilistic periods falls as the number of blocks rises, because then fewer blocks of a period have
/// been referenced often.
#[test]
fn references_by_zipfs_law_are_probabilistic() {
    for (bound, share_min) in [(100, 0.85), (500, 0.75), (2000, 0.6)] {
        let mut random = Random(12);
        let reports = reports((0..100_000).map(|_| zipf(&mut random, bound) as u64));
        let probabilistic = share(&reports, Verdict::Probabilistic);
        assert!(probabilistic > share_min, "{probabilistic} of periods over {bound} blocks");
    }
}

/// The blocks form a stack. Each reference takes a block from the stack, mostly from a small depth, and moves it to the
/// top.
#[test]
fn references_skewed_to_the_recent_are_clustered() {
    for bound in [100, 500, 2000] {
        let mut random = Random(13);
        let mut stack: Vec<u64> = (0..u64::from(bound)).collect();
        let reports = reports((0..100_000).map(|_| {
            let block = stack.remove(zipf(&mut random, bound));
            stack.insert(0, block);
            block
        }));
        let clustered = share(&reports, Verdict::Clustered);
        // A block that stays near the top for a while is also referenced often, so some periods are judged
        // probabilistic, which is tested before clustered.
        let probabilistic = share(&reports, Verdict::Probabilistic);
        assert!(
            clustered > 0.55 && clustered > 2.5 * probabilistic,
            "{clustered}, {probabilistic} over {bound} blocks"
        );
    }
}

#[test]
fn uniform_random_references_have_no_more_verdicts_than_chance_gives() {
    let mut random = Random(14);
    let reports = reports((0..1_000_000).map(|_| random.below(2000)));
    let none = share(&reports, Verdict::None);
    println!("verdicts on uniform random references: {:.1} % of periods", 100.0 * (1.0 - none));
    // Each of the three trends occurs by chance in 12 % of periods, nearly independently of the others, so about 31 %
    // of periods have a verdict.
    assert!((0.60..0.80).contains(&none), "{none}");
}

#[test]
fn blocks_of_another_stream_are_known_but_have_no_distances() {
    let mut detector = Detector::new(Parameters { period: 10, ..Parameters::default() });
    let mut histories = [History::default(); 10];
    let mut report = None;
    for (index, history) in histories.iter_mut().enumerate() {
        report = if index < 6 { detector.observe_foreign(history) } else { detector.observe(history) }.copied();
    }
    let report = report.expect("ten references");
    assert_eq!((report.known, report.foreign, report.unknown), (0, 6, 4));
    assert_eq!(report.verdict, Verdict::None);
}

#[test]
fn parameters_out_of_range_are_brought_into_it() {
    for (period, sublists) in [(0, 0), (u32::MAX, usize::MAX)] {
        let mut detector = Detector::new(Parameters { period, sublists, tau_min: f64::NAN });
        let mut known = Known::new(100);
        for id in 0..200_000 {
            detector.observe(known.refer(id % 100));
        }
        assert!(detector.last_report().is_some_and(|report| report.verdict != Verdict::Looping), "NaN is no trend");
    }
}
