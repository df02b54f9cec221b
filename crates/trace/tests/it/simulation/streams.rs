//! Compares runs over a trace that is read in a stream with runs over the same trace in memory.

use std::path::Path;

use nectary_trace::formats::{ReadOptions, ReferenceReader, from_input, input::DecompressedInput};
use nectary_trace::simulate::counting::TraceExtent;
use nectary_trace::simulate::sizes::CapacityUnit;
use nectary_trace::simulate::stream::{StreamOptions, StreamRun, StreamedResults, stream, survey};
use nectary_trace::simulate::{CountingWindows, LoadOptions, SimulationRow, TraceWorkload, policies};
use nectary_trace::{Error, Result, TraceReference};
use proptest::prelude::*;

use super::objects::{Line, lines, load, reader, run};

const PATH: &str = "a.csv";

fn streamed(lines: &[Line], runs: &[StreamRun], options: &StreamOptions) -> Result<StreamedResults> {
    stream(Path::new(PATH), &mut *reader(lines), runs, options, &|_| {})
}

/// An extent of a few references, percent or seconds.
fn extent() -> impl Strategy<Value = TraceExtent> {
    prop_oneof![
        (1..60_u64).prop_map(TraceExtent::References),
        (1..90_u32).prop_map(|percent| TraceExtent::Percent(f64::from(percent))),
        (1..60_u64).prop_map(TraceExtent::Seconds),
    ]
}

proptest! {
    #[test]
    fn a_stream_counts_what_memory_counts(
        lines in lines(),
        capacity in 1..300_u64,
        chunk_references in 1..50_usize,
        warm_up in prop::option::of(extent()),
        window in prop::option::of(extent()),
        is_reads_only: bool,
        limit in prop::option::of(1..300_usize),
    ) {
        let options = LoadOptions { limit, is_reads_only, ..LoadOptions::default() };
        let workload = load(&lines, &options);
        // Without a size above 0 a trace in memory has no objects; a stream cannot know that before its end.
        prop_assume!(workload.has_sizes());
        let (length, shape) = survey(Path::new(PATH), &mut *reader(&lines), &options, &|_| {}).expect("references");
        prop_assert_eq!((length, shape), (workload.references(), workload.shape()));
        let names = policies::names().into_iter().filter(|name| *name != policies::MIN);
        let units = [CapacityUnit::Bytes, CapacityUnit::Blocks];
        let of = |unit| names.clone().map(move |policy| StreamRun { policy, size: capacity, unit });
        let runs: Vec<StreamRun> = units.into_iter().flat_map(of).collect();
        let streaming = StreamOptions {
            load: options,
            warm_up,
            window,
            length: Some(length),
            threads: Some(2),
            chunk_references,
        };
        let found = streamed(&lines, &runs, &streaming);
        let counting = match CountingWindows::new(&workload, warm_up, window) {
            Ok(counting) => counting,
            Err(_) => {
                prop_assert!(found.is_err());
                return Ok(());
            }
        };
        let found = found.expect("counted");
        prop_assert_eq!(&found.outline, &workload.outline(&counting));
        for (wanted, row) in runs.iter().zip(&found.rows) {
            let expected = run(&workload, wanted.policy, wanted.unit, wanted.size, &counting);
            let plain = |row: &SimulationRow| (row.policy, row.size, row.unit, row.counts, row.windows.clone());
            prop_assert_eq!(plain(row), plain(&expected));
        }
    }
}

/// A trace without end, of objects with new keys.
struct EndlessObjects(u64);

impl ReferenceReader for EndlessObjects {
    fn read(&mut self, to: &mut Vec<TraceReference>) -> Result<bool> {
        self.0 += 1;
        to.push(TraceReference { block: self.0, bytes: 10, ..TraceReference::default() });
        Ok(true)
    }

    fn has_objects(&self) -> bool {
        true
    }
}

#[test]
fn oversized_traces_are_streamed() {
    let held = LoadOptions { references_max: Some(1000), ..LoadOptions::default() };
    let path = Path::new("endless");
    let error = TraceWorkload::from_reader(path, &mut EndlessObjects(0), &held).expect_err("too long");
    assert!(matches!(error, Error::TooLarge { .. }) && error.to_string().contains("--stream"), "{error}");
    let limited = LoadOptions { limit: Some(5000), ..held };
    let run = StreamRun { policy: "lru", size: 100, unit: CapacityUnit::Bytes };
    let options = StreamOptions { load: limited, chunk_references: 64, ..StreamOptions::default() };
    let found = stream(path, &mut EndlessObjects(0), &[run], &options, &|_| {}).expect("a limit");
    assert_eq!((found.outline.references, found.outline.distinct_bytes), (5000, 50_000));
    assert_eq!((found.rows[0].counts.misses, found.rows[0].counts.missed_bytes), (5000, 50_000));
    // Exactly as many as there is room for are held.
    let exact = LoadOptions { limit: Some(1000), ..held };
    assert_eq!(TraceWorkload::from_reader(path, &mut EndlessObjects(0), &exact).expect("held").references(), 1000);
}

#[test]
fn unsupported_stream_options_are_refused() {
    let lines = [(5, 1, 10, "get", 0), (6, 2, 10, "get", 0)];
    let run = |policy| [StreamRun { policy, size: 10, unit: CapacityUnit::Blocks }];
    let refused =
        |runs: &[StreamRun], options: StreamOptions| streamed(&lines, runs, &options).expect_err("refused").to_string();
    assert!(refused(&run("min"), StreamOptions::default()).contains("no policy that can follow a stream"));
    let percent = StreamOptions { warm_up: Some(TraceExtent::Percent(10.0)), ..StreamOptions::default() };
    assert!(refused(&run("lru"), percent).contains("give references or a time"));
    let all = StreamOptions { warm_up: Some(TraceExtent::References(2)), ..StreamOptions::default() };
    assert!(refused(&run("lru"), all).contains("leaves nothing of the 2 references"));
    let input = DecompressedInput::from_reader(Path::new("t.txt"), Box::new(&b"1\n2\n"[..])).expect("text");
    let mut text = from_input(input, &ReadOptions::default()).expect("text");
    let timed = StreamOptions { window: Some(TraceExtent::Seconds(1)), ..StreamOptions::default() };
    let error = stream(Path::new("t.txt"), &mut *text, &run("lru"), &timed, &|_| {}).expect_err("no times");
    assert!(error.to_string().contains("has no times"), "{error}");
    // An error in the middle of a trace ends the runs.
    let broken = DecompressedInput::from_reader(Path::new("b.txt"), Box::new(&b"1\n2\n3\n4\nx\n"[..])).expect("text");
    let mut broken = from_input(
        broken,
        &ReadOptions { format: Some(nectary_trace::formats::TraceFormat::Text), ..ReadOptions::default() },
    )
    .expect("text");
    let small = StreamOptions { chunk_references: 2, ..StreamOptions::default() };
    let error = stream(Path::new("b.txt"), &mut *broken, &run("lru"), &small, &|_| {}).expect_err("no number");
    assert!(error.to_string().contains("line 5:"), "{error}");
}
