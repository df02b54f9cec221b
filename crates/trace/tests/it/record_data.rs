//! Tests of the recorded traces in `data`: their contents, and the misses of LRU and MIN.
//!
//! The expected misses were counted by a program in another language that was written only for this purpose;
//! `data/README.md` says how the traces were made.

use std::path::PathBuf;

use nectary_trace::formats::ReadOptions;
use nectary_trace::simulate::{LoadOptions, TraceWorkload, misses, policies};

/// A trace: its references, distinct blocks and streams, and the misses of LRU and MIN at each size.
struct ExpectedTrace {
    name: &'static str,
    references: u64,
    distinct: u64,
    streams: usize,
    misses: [(u64, u64, u64); 3],
}

/// The traces; the sizes are 5, 20 and 40 % of the distinct blocks.
const RECORDED: [ExpectedTrace; 6] = [
    ExpectedTrace {
        name: "cscope",
        references: 2474,
        distinct: 746,
        streams: 207,
        misses: [(37, 2452, 2266), (149, 2452, 1706), (298, 2452, 961)],
    },
    ExpectedTrace {
        name: "sort",
        references: 7123,
        distinct: 2383,
        streams: 21,
        misses: [(119, 3575, 3337), (476, 3553, 2623), (953, 3179, 2383)],
    },
    ExpectedTrace {
        name: "ld",
        references: 6210,
        distinct: 849,
        streams: 129,
        misses: [(42, 1726, 1617), (169, 1712, 1360), (339, 1569, 1020)],
    },
    ExpectedTrace {
        name: "cpp",
        references: 21385,
        distinct: 557,
        streams: 3327,
        misses: [(27, 18383, 14946), (111, 16182, 7258), (222, 4259, 1500)],
    },
    ExpectedTrace {
        name: "sqlite",
        references: 6901,
        distinct: 690,
        streams: 10,
        misses: [(34, 4747, 3185), (138, 2398, 1571), (276, 1750, 1269)],
    },
    ExpectedTrace {
        name: "postgres",
        references: 8453,
        distinct: 1652,
        streams: 140,
        misses: [(82, 5962, 4157), (330, 3551, 2797), (660, 3168, 2137)],
    },
];

/// The largest size of a trace file in `data`. *Units*: bytes.
const FILE_BYTES_MAX: u64 = 60 << 10;

fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data")).join(format!("{name}.nectrace.gz"))
}

fn load(name: &str) -> TraceWorkload {
    TraceWorkload::load(&path(name), &ReadOptions::default(), &LoadOptions::default()).unwrap()
}

#[test]
fn recorded_traces_match_their_table() {
    for recorded in &RECORDED {
        let workload = load(recorded.name);
        let mut streams = workload.streams().to_vec();
        streams.sort_unstable_by_key(|stream| stream.0);
        streams.dedup();
        let found = (workload.references(), workload.distinct(), streams.len());
        assert_eq!(found, (recorded.references, recorded.distinct, recorded.streams), "{}", recorded.name);
        // Each trace is complete, because a truncated trace would have a warning.
        assert_eq!(workload.warning(), None, "{}", recorded.name);
        assert!(std::fs::metadata(path(recorded.name)).unwrap().len() <= FILE_BYTES_MAX);
    }
    let files = std::fs::read_dir(path("x").parent().unwrap()).unwrap();
    let traces = files.filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().ends_with(".gz")).count();
    assert_eq!(traces, RECORDED.len());
}

/// LRU and MIN miss as often as another program says.
#[test]
fn misses_match_other_program() {
    let mut points = 0;
    for recorded in &RECORDED {
        let workload = load(recorded.name);
        for (size, lru, min) in recorded.misses {
            for (name, expected) in [("lru", lru), ("min", min)] {
                let mut policy = policies::make(name, size, &workload).unwrap();
                assert_eq!(misses(&mut *policy, &workload), expected, "{} {name} {size}", recorded.name);
                points += 1;
            }
        }
    }
    println!("{points} counts equal");
}
