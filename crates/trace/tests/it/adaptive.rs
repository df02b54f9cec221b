//! Compares `adaptive` with the best of other policies and its ledger with a separate simulation, and checks its
//! verdicts, on the traces of the papers.
//!
//! The traces are not part of the project; if `../shared/traces` is absent, each test prints `NOT RUN` and the reason.
//! The whole table is printed by `cargo run --release -p nectary-bench -- cache-figures --traces
//! ../shared/traces`.

use std::path::Path;
use std::sync::mpsc::channel;

use nectary_cache::detect::PatternVerdict;
use nectary_cache::{AccessResult, Adaptive, Policy, PolicyEvent, StreamId, WatchedPolicy, by_name, lru_capacity};
use nectary_trace::simulate::{TraceWorkload, misses};

use crate::common::{load, traces};

const OTHERS: [&str; 5] = ["lru", "arc", "s3fifo", "lirs", "wtinylfu"];
const PERCENT: [u64; 5] = [5, 10, 20, 40, 60];
/// Mixes are long, so they are tested at fewer sizes.
const PERCENT_OF_MIXES: [u64; 2] = [5, 20];

fn mix(folder: &Path, names: &[&str]) -> TraceWorkload {
    let parts: Vec<TraceWorkload> = names.iter().map(|name| load(folder, name)).collect();
    TraceWorkload::mix(&parts.iter().collect::<Vec<_>>()).expect("traces")
}

/// Two sums over all sizes: the misses of `adaptive`, and the fewest misses of the other policies.
fn sums(workload: &TraceWorkload, name: &str, percents: &[u64]) -> (u64, u64) {
    let mut sums = (0, 0);
    for percent in percents {
        let blocks = (workload.distinct() * percent).div_ceil(100);
        let own = misses(&mut Adaptive::new(blocks), workload);
        let best = OTHERS.map(|other| misses(&mut *by_name(other, blocks).expect("registered"), workload));
        let best = best.into_iter().min().expect("five");
        println!("{name} at {blocks}: adaptive {own}, the best of the others {best}");
        sums = (sums.0 + own, sums.1 + best);
    }
    sums
}

/// Adaptive misses at most 1 percent more than the best policy on single traces.
#[test]
fn adaptive_is_near_best() {
    let Some(folder) = traces("adaptive_is_near_best") else { return };
    let mut all = (0, 0);
    for name in ["gli", "cpp", "ps", "cs", "multi1", "sprite"] {
        let (own, best) = sums(&load(&folder, name), name, &PERCENT);
        all = (all.0 + own, all.1 + best);
    }
    assert!(all.0 * 100 <= all.1 * 101, "{} misses, the best of the others {}", all.0, all.1);
}

/// Adaptive misses less than the best where streams are separate and different.
#[test]
fn adaptive_wins_on_separate_streams() {
    let test = "adaptive_wins_on_separate_streams";
    let Some(folder) = traces(test) else { return };
    let mut all = (0, 0);
    for names in [["gli", "sprite"], ["ps", "sprite"], ["cs", "sprite"]] {
        let (own, best) = sums(&mix(&folder, &names), &names.join("+"), &PERCENT_OF_MIXES);
        all = (all.0 + own, all.1 + best);
    }
    assert!(all.0 < all.1, "{} misses, the best of the others {}", all.0, all.1);
}

/// Three programs at once miss at most what the best fixed split would.
#[test]
fn three_programs_match_best_split() {
    let Some(folder) = traces("three_programs_match_best_split") else { return };
    let own = misses(&mut Adaptive::new(1536), &mix(&folder, &["cs", "cpp", "ps"]));
    println!("cs+cpp+ps at 1536: {own}, at most 9285 allowed");
    assert!(own <= 9285, "{own}");
}

#[test]
fn stream_ledger_equals_separate_simulation() {
    let Some(folder) = traces("stream_ledger_equals_separate_simulation") else { return };
    let workload = mix(&folder, &["cs", "cpp", "ps"]);
    let blocks = 1000;
    let mut adaptive = WatchedPolicy::new(Box::new(Adaptive::new(blocks as u64)), 8192, Box::new(|_| ()));
    // A naive LRU of the same memory: the blocks, oldest first.
    let blocks_lru = lru_capacity("adaptive", blocks as u64, 8192);
    let mut lru: Vec<u64> = Vec::new();
    let mut expected = vec![(0_i64, 0_i64); 3];
    for (&block, &stream) in workload.blocks().iter().zip(workload.streams()) {
        let is_hit = adaptive.reference(block, 1, stream, &mut |_| true) == AccessResult::Hit;
        let place = lru.iter().position(|other| *other == block);
        if let Some(place) = place {
            lru.remove(place);
        } else if lru.len() as u64 == blocks_lru {
            lru.remove(0);
        }
        lru.push(block);
        let (saved, lost) = &mut expected[stream.0 as usize];
        *saved += i64::from(is_hit && place.is_none());
        *lost += i64::from(!is_hit && place.is_some());
    }
    for (stream, (saved, lost)) in expected.into_iter().enumerate() {
        let ledger = adaptive.ledger(StreamId(stream as u32)).expect("referred");
        println!("stream {stream}: {ledger}; simulated {saved} saved and {lost} lost");
        for (own, simulated) in [(ledger.saved as i64, saved), (ledger.lost as i64, lost)] {
            assert!((own - simulated).abs() * 50 <= simulated, "{own}, simulated {simulated}");
        }
    }
}

/// The trace cscope is explained as sequential, then looping.
#[test]
fn cscope_verdicts_change_to_looping() {
    let Some(folder) = traces("cscope_verdicts_change_to_looping") else { return };
    let (sender, receiver) = channel();
    let sink = Box::new(move |event: PolicyEvent<'_>| {
        println!("{event}");
        if let PolicyEvent::Period(period) = event {
            sender.send(period.period.report.verdict).expect("the receiver outlives the policy");
        }
    });
    misses(&mut WatchedPolicy::new(Box::new(Adaptive::new(768)), 8192, sink), &load(&folder, "cs"));
    let verdicts: Vec<PatternVerdict> = receiver.try_iter().collect();
    let sequential = verdicts.iter().take_while(|verdict| **verdict == PatternVerdict::Sequential).count();
    let looping = verdicts.iter().filter(|verdict| **verdict == PatternVerdict::Looping).count();
    assert!(sequential >= 1 && looping >= 9, "{verdicts:?}");
}
