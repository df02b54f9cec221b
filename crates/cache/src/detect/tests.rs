//! The detector finds what was put into generated references.

use super::*;

/// Reports of one stream over the blocks of `references`.
fn reports(references: impl Iterator<Item = u64>) -> Vec<PeriodReport> {
    let mut detector = Detector::new(Parameters::default());
    let mut known = Known::new(1 << 20);
    references.filter_map(|id| detector.observe(known.refer(id)).copied()).collect()
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
