//! Compares the simulator, on objects with sizes, lives and deletes, with lists that are searched from their beginning.

use std::path::Path;

use nectary_trace::formats::input::DecompressedInput;
use nectary_trace::formats::{ReadOptions, ReferenceReader, from_input};
use nectary_trace::simulate::counting::TraceExtent;
use nectary_trace::simulate::sizes::CapacityUnit;
use nectary_trace::simulate::{
    CountingWindows, LoadOptions, RunCounts, SimulationRow, SimulationRun, TraceWorkload, policies, run_all,
};
use proptest::prelude::*;

/// A line of a trace: time, key, size, operation, time to live.
pub type Line = (u64, u64, u64, &'static str, u64);

pub fn reader(lines: &[Line]) -> Box<dyn ReferenceReader> {
    let text: String =
        lines.iter().map(|(time, key, size, op, ttl)| format!("{time},k{key},{size},{op},{ttl}\n")).collect();
    let text = format!("time,key,size,op,ttl\n{text}");
    let input = DecompressedInput::from_reader(Path::new("a.csv"), Box::new(std::io::Cursor::new(text.into_bytes())));
    from_input(input.expect("text"), &ReadOptions::default()).expect("a header")
}

pub fn load(lines: &[Line], options: &LoadOptions) -> TraceWorkload {
    TraceWorkload::from_reader(Path::new("a.csv"), &mut *reader(lines), options).expect("a trace")
}

pub fn run(
    workload: &TraceWorkload,
    policy: &'static str,
    unit: CapacityUnit,
    size: u64,
    counting: &CountingWindows,
) -> SimulationRow {
    let run = SimulationRun { unit, counting, ..SimulationRun::new(workload, policy, size) };
    run_all(&[run], Some(1), &|_| {}).expect("a policy that there is").remove(0)
}

/// The counts of LRU or FIFO as a list: the next victim is its first object. Each object has its size and the end of its
/// life.
fn naive(policy: &str, lines: &[Line], unit: CapacityUnit, capacity: u64, from: usize) -> RunCounts {
    let mut resident: Vec<(u64, u64, u64)> = Vec::new();
    let mut counts = RunCounts::default();
    let mut number = 0;
    for &(time, key, size, op, ttl) in lines {
        let time = time - lines[0].0;
        let place = resident.iter().position(|object| object.0 == key);
        if op == "delete" {
            place.map(|place| resident.remove(place));
            continue;
        }
        let weight = if unit == CapacityUnit::Bytes { size.max(1) } else { 1 };
        let end = if ttl == 0 { u64::MAX } else { time + ttl };
        let place = place.filter(|&place| {
            let is_alive = resident[place].2 > time;
            if !is_alive {
                resident.remove(place);
            }
            is_alive
        });
        let is_counted = number >= from;
        number += 1;
        if is_counted {
            counts.references += 1;
            counts.bytes += size.max(1);
        }
        if let Some(place) = place {
            if op == "set" {
                resident[place].2 = end;
            }
            if policy == "lru" {
                let object = resident.remove(place);
                resident.push(object);
            }
            continue;
        }
        if is_counted {
            counts.misses += 1;
            counts.missed_bytes += size.max(1);
        }
        if weight > capacity {
            continue;
        }
        while resident.iter().map(|object| object.1).sum::<u64>() + weight > capacity {
            resident.remove(0);
        }
        resident.push((key, weight, end));
    }
    counts
}

pub fn lines() -> impl Strategy<Value = Vec<Line>> {
    let operation = prop_oneof![6 => Just("get"), 2 => Just("set"), 1 => Just("delete")];
    let ttl = prop_oneof![2 => Just(0_u64), 1 => 1..60_u64];
    let line = (0..3_u64, 0..30_u64, operation, ttl);
    prop::collection::vec(line, 1..400).prop_map(|lines| {
        let mut now = 1_000_000;
        let timed = lines.into_iter().map(|(pause, key, op, ttl)| {
            now += pause;
            (now, key, key * key % 50, op, ttl)
        });
        // The first line is a reference.
        std::iter::once((1_000_000, 0, 0, "get", 0)).chain(timed).collect()
    })
}

proptest! {
    #[test]
    fn object_simulator_matches_naive_list(lines in lines(), capacity in 1..300_u64, share in 0..90_u32) {
        let workload = load(&lines, &LoadOptions::default());
        prop_assert!(workload.has_sizes() || lines.iter().all(|line| line.2 == 0 || line.3 == "delete"));
        let warm_up = TraceExtent::Percent(f64::from(share));
        let counting = CountingWindows::new(&workload, Some(warm_up), None).expect("less than all");
        for policy in ["lru", "fifo"] {
            for unit in [CapacityUnit::Bytes, CapacityUnit::Blocks] {
                let mut expected = naive(policy, &lines, unit, capacity, counting.warm_up);
                if !workload.has_sizes() {
                    (expected.bytes, expected.missed_bytes) = (0, 0);
                }
                let row = run(&workload, policy, unit, capacity, &counting);
                prop_assert_eq!(row.counts, expected, "{} {:?} at {}", policy, unit, capacity);
            }
        }
    }

    #[test]
    fn windows_add_up_to_all(lines in lines(), capacity in 1..300_u64, length in 1..50_u64) {
        let workload = load(&lines, &LoadOptions::default());
        for window in [TraceExtent::References(length), TraceExtent::Seconds(length)] {
            let Ok(counting) = CountingWindows::new(&workload, None, Some(window)) else { continue };
            for policy in policies::names() {
                let row = run(&workload, policy, CapacityUnit::Bytes, capacity, &counting);
                let whole = run(&workload, policy, CapacityUnit::Bytes, capacity, &CountingWindows::default());
                prop_assert_eq!(row.counts, whole.counts, "{}", policy);
                prop_assert_eq!(row.windows.len(), counting.borders.len() + 1);
                prop_assert!(row.windows.iter().all(|window| window.references > 0));
            }
        }
    }
}

/// On request, writes are left out and lifetimes replaced.
#[test]
fn options_drop_writes_and_lifetimes() {
    let lines = [(0, 1, 10, "get", 0), (5, 1, 10, "set", 0), (10, 1, 10, "get", 0), (19, 1, 10, "get", 0)];
    let misses = |options: &LoadOptions| {
        let workload = load(&lines, options);
        let counts = run(&workload, "lru", CapacityUnit::Bytes, 100, &CountingWindows::default()).counts;
        (counts.references, counts.misses, counts.missed_bytes)
    };
    assert_eq!(misses(&LoadOptions::default()), (4, 1, 10));
    // Without the write, the first life ends at 10 and the second one at 20.
    let options = LoadOptions { is_reads_only: true, ttl_s: Some(10), ..LoadOptions::default() };
    assert_eq!(misses(&options), (3, 2, 20));
    // The write at 5 gives a new life until 15.
    let options = LoadOptions { ttl_s: Some(10), ..LoadOptions::default() };
    assert_eq!(misses(&options), (4, 2, 20));
}

/// With capacities in bytes, an object of half the size is worth twice as much.
#[test]
fn gdsf_and_lhd_prefer_small() {
    let object = |round: u64| {
        let key = round * 2_654_435_761 % 100;
        (key, if key < 50 { 10 } else { 1000 })
    };
    let workload = TraceWorkload::of_objects("a", (0..20_000).map(object));
    for policy in ["gdsf", "lhd"] {
        let counts = run(&workload, policy, CapacityUnit::Bytes, 5000, &CountingWindows::default()).counts;
        let lru = run(&workload, "lru", CapacityUnit::Bytes, 5000, &CountingWindows::default()).counts;
        assert!(counts.misses * 10 < lru.misses * 9, "{policy}: {counts:?}, lru: {lru:?}");
        assert!(counts.byte_miss_ratio() > Some(counts.miss_ratio()), "{policy}: {counts:?}");
    }
}
