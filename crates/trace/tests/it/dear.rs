//! Tests DEAR on the traces of its paper: the misses, the verdicts, and the failure with a short period that the paper
//! reports.
//!
//! The traces are not part of the project; if `../shared/traces` is absent, each test prints `NOT RUN` and the reason.

use std::sync::mpsc::channel;

use nectary_cache::detect::{self, PatternVerdict};
use nectary_cache::{Dear, Lru, Policy, dear};
use nectary_trace::simulate::{TraceWorkload, misses};

use crate::common::{load, traces};

/// The size of the paper's cache: 6 MB in blocks of 8 KB.
const BLOCKS: u64 = 768;

/// A trace, a size, and the most misses that are allowed at that size.
const MISSES_MAX: [(&str, u64, u64); 6] = [
    ("cs", 512, 4730),
    ("cs", 768, 3717),
    ("cs", 1024, 2738),
    ("gli", 768, 3484),
    ("cpp", 768, 1233),
    ("ps", 768, 4038),
];

fn dear_of_period(capacity: u64, period: u32) -> Dear {
    let detection = detect::DetectorParameters { period, ..detect::DetectorParameters::default() };
    Dear::with_parameters(capacity, dear::DearParameters { detection, ..dear::DearParameters::default() })
}

/// The verdicts of the only stream of a trace, period by period.
fn verdicts(workload: &TraceWorkload) -> Vec<PatternVerdict> {
    let mut policy = Dear::new(BLOCKS);
    let (sender, receiver) = channel();
    policy.explain_to(Box::new(move |event| {
        println!("{event}");
        sender.send(event.report.verdict).expect("the receiver outlives the policy");
    }));
    misses(&mut policy, workload);
    receiver.try_iter().collect()
}

#[test]
fn dear_misses_stay_within_allowance() {
    let Some(folder) = traces("dear_misses_stay_within_allowance") else { return };
    for (name, blocks, misses_max) in MISSES_MAX {
        let workload = load(&folder, name);
        let (dear, lru) = (misses(&mut Dear::new(blocks), &workload), misses(&mut Lru::new(blocks), &workload));
        println!("{name} at {blocks}: dear {dear}, at most {misses_max} allowed; lru {lru}");
        assert!(dear <= misses_max, "{name} at {blocks}: {dear} misses, at most {misses_max} allowed");
    }
}

/// DEAR misses 27 percent less than LRU on average.
#[test]
fn dear_beats_lru_on_average() {
    let Some(folder) = traces("dear_beats_lru_on_average") else { return };
    let savings = ["cs", "gli", "cpp", "ps"].map(|name| {
        let workload = load(&folder, name);
        let (dear, lru) = (misses(&mut Dear::new(BLOCKS), &workload), misses(&mut Lru::new(BLOCKS), &workload));
        1.0 - dear as f64 / lru as f64
    });
    let average = savings.iter().sum::<f64>() / savings.len() as f64;
    println!("dear saves {:.1} % of LRU's misses on average, of each {savings:.3?}", 100.0 * average);
    assert!(average >= 0.27, "{average}");
}

#[test]
fn cscope_is_sequential_then_looping() {
    let Some(folder) = traces("cscope_is_sequential_then_looping") else { return };
    let verdicts = verdicts(&load(&folder, "cs"));
    let sequential = verdicts.iter().take_while(|verdict| **verdict == PatternVerdict::Sequential).count();
    assert!((1..=3).contains(&sequential), "{verdicts:?}");
    assert!(verdicts[sequential..].iter().all(|verdict| *verdict == PatternVerdict::Looping), "{verdicts:?}");
}

#[test]
fn cpp_is_probabilistic() {
    let Some(folder) = traces("cpp_is_probabilistic") else { return };
    let verdicts = verdicts(&load(&folder, "cpp"));
    let probabilistic = verdicts.iter().filter(|verdict| **verdict == PatternVerdict::Probabilistic).count();
    assert!(probabilistic * 100 >= verdicts.len() * 80, "{verdicts:?}");
}

/// A period of 100 loses to LRU on cpp, and a period of 500 does not.
#[test]
fn short_period_loses_on_cpp() {
    let Some(folder) = traces("short_period_loses_on_cpp") else { return };
    let workload = load(&folder, "cpp");
    let lru = misses(&mut Lru::new(BLOCKS), &workload);
    let of_period = |period| misses(&mut dear_of_period(BLOCKS, period), &workload);
    let (short, long) = (of_period(100), of_period(500));
    println!("cpp at {BLOCKS}: lru {lru}, dear {short} with a period of 100, {long} with one of 500");
    assert!(short > lru, "{short} misses, {lru} under LRU");
    assert!(long < lru, "{long} misses, {lru} under LRU");
}

#[test]
fn separate_detectors_help_two_programs() {
    let Some(folder) = traces("separate_detectors_help_two_programs") else { return };
    let mix = TraceWorkload::mix(&[&load(&folder, "cs"), &load(&folder, "cpp")]).expect("two traces");
    let (dear, lru) = (misses(&mut Dear::new(BLOCKS), &mix), misses(&mut Lru::new(BLOCKS), &mix));
    println!("cs+cpp at {BLOCKS}: dear {dear}, at most 6115 allowed; lru {lru}");
    assert_eq!(lru, 8221);
    assert!(dear <= 6115, "{dear}");
    let mixed = TraceWorkload::new("one stream", mix.blocks().iter().map(|&block| (block, Default::default())));
    let together = misses(&mut Dear::new(BLOCKS) as &mut dyn Policy, &mixed);
    println!("cs+cpp at {BLOCKS} under one detector: {together}");
    assert!(dear < together);
}
