//! A purge that returns after a get has read an object from the disk, and before the object enters memory.
//!
//! Owns: one history of a store with threads, in which each step waits for the one before. On one thread there is
//! nothing between the two moments, so runs in virtual time cannot have this history:
//!
//! 1. A get reads the object, finds that no purge covers it, and then waits for the lock of the memory.
//! 2. A purge covers the object, and returns.
//! 3. A second get begins. The object is not in memory, so it waits for the read of the first get.
//! 4. The object enters memory, and both gets end. The second one must miss.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::poll;
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{CreateOptions, OpenOptions, Store, StoredObject};
use tokio::runtime::Runtime;

use super::ConcurrentStoreReport;
use super::history::{
    KeyVersion, LifeEnd, ObservedVersion, PurgedObjects, RecordedGet, RecordedPurge, StoreHistory, StoreLife,
    VersionFate,
};
use super::situations::ClientSituation;
use super::world::{STORE_BYTES, body_of, key_name, key_ref, metadata, numbers};
use crate::store::{primary, tag};

/// The key, which is the first variant of name 0, its tag, and its only version.
const KEY: u32 = 0;
const TAG: u32 = 0;
const VERSION: u32 = 1;
const BODY_BYTES: usize = 1000;
/// The longest time for a step.
const STEP_MAX: Duration = Duration::from_secs(20);

/// Runs the history, with a purge that the number chooses, and checks it.
pub fn run(number: u64, seed: u64, report: &mut ConcurrentStoreReport) {
    let scopes = [PurgedObjects::Tag(TAG), PurgedObjects::All, PurgedObjects::Prefix(0), PurgedObjects::Name(0)];
    let Some(history) = history(scopes[(number % scopes.len() as u64) as usize]) else { return };
    report.situations.note(ClientSituation::PurgedBeforeEntry);
    for broken in history.check().broken {
        report.describe(seed, &format!("purge before the entry into memory: {broken}"));
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime without I/O can be made")
}

/// The history; `None` if a step was not reached.
fn history(scope: PurgedObjects) -> Option<StoreHistory> {
    let runtime = runtime();
    let name = key_name(KEY);
    let (store, mut history) = runtime.block_on(written());
    let held = store.hold_memory();
    std::thread::scope(|threads| {
        let first = threads.spawn(|| self::runtime().block_on(store.get(key_ref(&name, KEY))).is_some());
        let began = Instant::now();
        while store.hits_disk() == 0 && began.elapsed() < STEP_MAX {
            std::thread::yield_now();
        }
        let is_read = store.hits_disk() == 1;
        let began = history.tick();
        let is_good = runtime.block_on(async { tokio::time::timeout(STEP_MAX, purge(&store, scope)).await });
        let ended = Some(history.tick());
        history.purges.push(RecordedPurge { scope, began, ended, is_good: is_good == Ok(true) });
        let began = history.tick();
        let mut second = Box::pin(store.get(key_ref(&name, KEY)));
        let is_waiting = runtime.block_on(async { poll!(&mut second) }).is_pending();
        drop(held);
        let is_first_good = first.join().is_ok_and(|is_found| is_found);
        let is_reached = is_read && is_good == Ok(true) && is_waiting && is_first_good;
        if !is_reached {
            return None;
        }
        let seen = runtime.block_on(second).map(|object| seen(&object));
        let ended = history.tick();
        history.gets.push(RecordedGet {
            key: KEY,
            began,
            ended,
            life: 0,
            seen,
            follows: false,
            may_miss: false,
            head: 1,
        });
        Some(history)
    })
}

async fn purge(store: &Store, scope: PurgedObjects) -> bool {
    let purged = match scope {
        PurgedObjects::Name(name) => store.purge_key(&primary(name)).await,
        PurgedObjects::Prefix(prefix) => store.purge_prefix(&primary(prefix)).await,
        PurgedObjects::Tag(number) => store.purge_tag(&tag(number)).await,
        PurgedObjects::All => store.purge_all().await,
    };
    purged.is_ok()
}

/// A store with the object on the disk and nothing in memory, and the history so far.
async fn written() -> (Store, StoreHistory) {
    let device: SharedDevice = Arc::new(MemoryDevice::new(STORE_BYTES));
    let options = OpenOptions { memory_bytes: 8 << 20, warm_up: false, ..OpenOptions::default() };
    let create = CreateOptions { size_bytes: STORE_BYTES, ..CreateOptions::default() };
    Store::create(Arc::clone(&device), &create).await.expect("a store is made");
    let store = Store::open(Arc::clone(&device), options.clone()).await.expect("the store opens");
    let stat = store.stat();
    let mut history = StoreHistory::default();
    history.lives.push(StoreLife {
        began: 0,
        after: LifeEnd::Process,
        recovered: 0,
        purges_lost: false,
        segment_count: stat.segment_count,
        whole_bytes_max: stat.whole_bytes_max,
    });
    let (name, tag, body) = (key_name(KEY), tag(TAG), body_of(KEY, VERSION, BODY_BYTES));
    let began = history.tick();
    let (key, tags): (_, &[&[u8]]) = (key_ref(&name, KEY), &[&tag]);
    let put = store.put_tagged(key, tags, metadata(VERSION, VERSION), body.into()).await;
    let sequence = put.expect("there is room").0;
    let ended = Some(history.tick());
    history.versions.push(KeyVersion {
        key: KEY,
        number: VERSION,
        content: VERSION,
        length: BODY_BYTES,
        tags: 1 << TAG,
        began,
        ended,
        outcome: VersionFate::Accepted { sequence, is_admitted: true },
        is_fill: false,
        life: 0,
        head: None,
    });
    store.close().await.expect("memory takes writes");
    (Store::open(device, options).await.expect("the store opens"), history)
}

fn seen(object: &StoredObject) -> ObservedVersion {
    let (version, _) = numbers(object.metadata()).expect("metadata is whole");
    ObservedVersion { version, sequence: object.sequence().0 }
}
