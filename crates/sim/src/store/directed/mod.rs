//! Directed scenarios: short runs of a store that lead to one situation each, which random runs meet too rarely.
//!
//! Owns: the list of the scenarios, and which planted bug each must catch. Promises: a scenario runs on one thread in
//! virtual time, so that its seed repeats it. Leaves to others: the scenarios (`recovery`, `spans`, `read_only`), the
//! bytes of an image (`image`), and devices whose writes take long (`slow`).

mod image;
mod read_only;
mod recovery;
mod slow;
mod spans;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use nectary_block::MemoryDevice;
use nectary_store::planted::{Bug, plant};
use nectary_store::{BackgroundRuntime, CreateOptions, KeyRef, OpenOptions, Store};

use crate::late::in_virtual_time;
use crate::planted::{BugCase, CaughtBug};

/// What a scenario finds: nothing, or what is wrong.
type Verdict = Result<(), String>;
type Run = fn(u64) -> Pin<Box<dyn Future<Output = Verdict>>>;

/// A scenario, and the bug that it must catch.
#[derive(Clone, Copy)]
pub struct DirectedScenario {
    /// The name.
    pub name: &'static str,
    /// The planted bug that shows in this scenario.
    pub bug: Bug,
    run: Run,
}

macro_rules! scenarios {
    ($($bug:ident => $room:ident::$name:ident,)*) => {
        /// All scenarios.
        pub const SCENARIOS: &[DirectedScenario] = &[$(DirectedScenario {
            name: stringify!($name),
            bug: Bug::$bug,
            run: |seed| Box::pin($room::$name(seed)),
        }),*];
    };
}

scenarios! {
    OpenCountOfLogIgnored => recovery::put_after_lost_states_is_found,
    EarlierOpenKeptAlone => recovery::given_up_version_stays_away_without_appends,
    TornTailKept => recovery::replaced_version_stays_away_in_torn_tail,
    PurgeCycleReused => recovery::interrupted_compaction_purges_nothing_later,
    OpenUnflushed => recovery::open_count_is_flushed_first,
    CheckpointAheadOfAppends => recovery::checkpoint_waits_for_appends_in_flight,
    CutStatedAsFlushed => recovery::version_before_cut_survives_second_crash,
    ReturnNotRecorded => spans::stand_in_stays_away_after_kill,
    StandInFoundByTry => spans::stand_in_stays_away_from_try_get,
    StandInJoined => spans::stand_in_is_no_resident_of_fill,
    HeldByOneSpan => spans::span_behind_in_purges_keeps_objects,
    KnownPurgeRepeated => spans::missed_purge_repeats_no_other,
    EmptySpanUnnumbered => spans::empty_span_keeps_what_it_gets,
    ReaderIgnoresOrder => read_only::reader_of_older_copy_finds_nothing_purged,
    ReaderMakesStore => read_only::reader_of_blank_device_changes_nothing,
    ReaderTakesLosses => read_only::reader_of_spans_finds_all,
    ShortPurgeLogBelieved => read_only::reader_of_damaged_log_finds_nothing_purged,
}

/// Runs all scenarios with these seeds; returns what is wrong.
pub fn run(seeds: std::ops::Range<u64>) -> Vec<String> {
    let cases = seeds.flat_map(|seed| SCENARIOS.iter().map(move |scenario| (scenario, seed)));
    let wrong = cases.filter_map(|(scenario, seed)| {
        let broken = in_virtual_time((scenario.run)(seed)).err()?;
        Some(format!("{}, seed {seed}: {broken}", scenario.name))
    });
    wrong.collect()
}

/// Runs the scenarios of a bug with the bug planted.
pub fn replay_planted(bug: Bug, seed: u64) -> Option<CaughtBug> {
    SCENARIOS.iter().filter(|scenario| scenario.bug == bug).find_map(|scenario| {
        plant(Some(bug));
        let verdict = in_virtual_time((scenario.run)(seed));
        plant(None);
        let broken = format!("{}: {}", scenario.name, verdict.err()?);
        Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: String::new() })
    })
}

/// Options under which nothing is rewritten, and memory is empty after an open.
fn options(seed: u64) -> OpenOptions {
    OpenOptions {
        memory_bytes: 16 << 20,
        write_delay: Duration::from_millis(5),
        warm_up: false,
        reinsert_percent: 0,
        rewrite_percent: 0,
        background: BackgroundRuntime::Caller,
        device_deadline: None,
        seed: Some(seed),
        ..OpenOptions::default()
    }
}

/// Makes a store on a device in memory.
async fn made(bytes: u64, segment_bytes: Option<u64>, seed: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(bytes));
    let create = CreateOptions { segment_bytes, seed: Some(seed), ..CreateOptions::default() };
    Store::create(device.clone(), &create).await.expect("a store is made");
    device
}

async fn open(device: Arc<MemoryDevice>) -> Store {
    Store::open(device, options(0)).await.expect("it opens")
}

fn key(name: &str) -> KeyRef<'_> {
    KeyRef::new(name.as_bytes(), b"")
}

/// A body of which any part tells the number.
fn body(number: u64, bytes: usize) -> Vec<u8> {
    crate::store::body(number, 1, 1, bytes)
}

async fn put(store: &Store, name: &str, body: Vec<u8>) {
    store.put(key(name), "m".into(), body.into()).await.expect("there is room");
}

async fn put_synced(store: &Store, name: &str, body: Vec<u8>) {
    put(store, name, body).await;
    store.sync().await.expect("it syncs");
}

/// The whole body of an object.
async fn found(store: &Store, name: &str) -> Option<Vec<u8>> {
    crate::store::crash_check::read(store, key(name)).await.map(|(_, body)| body)
}

/// Compares what is found with the only body that is right; `what` says what it is.
fn expect(found: Option<&[u8]>, right: Option<&[u8]>, what: &str) -> Verdict {
    let words = |bytes: Option<&[u8]>| bytes.map_or("nothing".to_owned(), |bytes| format!("{} bytes", bytes.len()));
    match found == right {
        true => Ok(()),
        false => Err(format!("{what}: found {}, not {}", words(found), words(right))),
    }
}
