//! The operations of a client: one after another, each recorded when it begins and when it ends.
//!
//! Promises: the history has each answer before the client that got it continues. A client that is dropped in the
//! middle leaves its operation open, as a killed process does.

use std::time::Duration;

use futures_util::future::join_all;
use nectary_store::{FillHead, FillRole, StoreErrorKind, StoredObject};

use super::history::{
    KeyVersion, ObservedVersion, PurgedObjects, RecordedGet, RecordedPurge, RecordedSync, Time, VersionFate, name_of,
};
use super::situations::ClientSituation;
use super::world::{KEYS, RARE_KEYS, StoreWorld, TAGS, body_of, key_name, key_ref, key_variant, metadata, numbers};
use crate::store::{primary, tag};

/// The maximum number of concurrent purges in a storm.
const STORM: u64 = 14;
/// The number of concurrent gets of one key in a stampede.
const STAMPEDE: u64 = 6;
/// The number of clients that put and sync at the same time.
const SYNCS: u64 = 3;
/// The longest time for which an operation that was begun is not polled, in milliseconds.
const UNPOLLED_MS: u64 = 60;
/// The longest time for which such an operation is polled before, in milliseconds.
const POLLED_MS: u64 = 12;
/// The share of operations that use a rare key, in a run in which not everything is admitted, in percent.
const RARE_PERCENT: u64 = 4;
/// For clients that advance the ring: the length of the shortest body, and the range of lengths above it, in bytes.
/// Each body is several records, so that its put waits for the disk instead of being refused.
const PUSHED_BYTES: (u64, u64) = (12 << 10, 8 << 10);

/// Counts an operation on a key as in flight.
struct BusyKeyGuard<'a>(&'a StoreWorld, u32);

impl<'a> BusyKeyGuard<'a> {
    fn new(world: &'a StoreWorld, key: u32) -> BusyKeyGuard<'a> {
        let mut busy = world.busy.borrow_mut();
        world.operations.set(world.operations.get() + 1);
        world.overlapping.set(world.overlapping.get() + u64::from(busy[key as usize] > 0));
        busy[key as usize] += 1;
        BusyKeyGuard(world, key)
    }
}

impl Drop for BusyKeyGuard<'_> {
    fn drop(&mut self) {
        let mut busy = self.0.busy.borrow_mut();
        busy[self.1 as usize] = busy[self.1 as usize].saturating_sub(1);
    }
}

/// Does one operation after another.
pub async fn run(world: &StoreWorld) {
    loop {
        world.pause(6).await;
        operate(world).await;
        if world.chance(30) {
            world.look();
        }
    }
}

/// Puts one object after another, so that the ring advances quickly; uses only half of the keys.
pub async fn push(world: &StoreWorld) {
    loop {
        world.pause(8).await;
        let key = KEYS / 2 + world.below(u64::from(KEYS / 2)) as u32;
        put(world, key, pushed(world)).await;
    }
}

/// Draws the length of a body that is several records.
fn pushed(world: &StoreWorld) -> usize {
    (PUSHED_BYTES.0 + world.below(PUSHED_BYTES.1)) as usize
}

/// Purges a key and then gets it twice; the purge has removed the key's object from memory.
async fn purge_and_get(world: &StoreWorld, key: u32) {
    purge(world, PurgedObjects::Name(name_of(key))).await;
    for _ in 0..2 {
        get(world, key).await;
    }
}

async fn operate(world: &StoreWorld) {
    if world.is_lapping && world.chance(20) {
        return purge_and_get(world, world.below(u64::from(KEYS / 2)) as u32).await;
    }
    if world.is_choosy() && world.chance(RARE_PERCENT) {
        return fill_and_purge(world).await;
    }
    // A few keys are requested often, so that operations overlap.
    let key = if world.chance(50) { world.below(4) } else { world.below(KEYS.into()) } as u32;
    match world.below(100) {
        0..=35 => get(world, key).await,
        36..=39 => get_resident(world, key),
        40..=43 => _ = join_all((0..STAMPEDE).map(|_| get(world, key))).await,
        44..=66 => put(world, key, length(world)).await,
        67..=77 => fill(world, key).await,
        78..=80 => refresh(world, key).await,
        81..=86 => purge(world, PurgedObjects::Name(name_of(key))).await,
        87..=89 => purge(world, PurgedObjects::Tag(world.below(TAGS.into()) as u32)).await,
        90 => purge(world, PurgedObjects::Prefix(1 + world.below(9) as u32)).await,
        91 if world.chance(30) => purge(world, PurgedObjects::All).await,
        92 => storm(world).await,
        93..=95 => sync(world).await,
        96 => _ = join_all((0..SYNCS).map(|_| put_and_sync(world))).await,
        97 => _ = world.store().checkpoint().await,
        _ => match world.below(10) {
            0..=4 => {
                leave_unpolled(world, get(world, key), (ClientSituation::GetResumed, ClientSituation::GetDropped)).await
            }
            5 => leave_unpolled(world, sync(world), (ClientSituation::SyncResumed, ClientSituation::SyncDropped)).await,
            6 => {
                leave_unpolled(world, fill(world, key), (ClientSituation::FillResumed, ClientSituation::FillDropped))
                    .await
            }
            7 | 8 => {
                let put = put(world, key, pushed(world));
                leave_unpolled(world, put, (ClientSituation::PutResumed, ClientSituation::PutDropped)).await;
            }
            _ => {
                let purge = purge(world, PurgedObjects::Name(name_of(key)));
                leave_unpolled(world, purge, (ClientSituation::PurgeResumed, ClientSituation::PurgeDropped)).await;
            }
        },
    }
}

/// Begins an operation, then does not poll it for a while, and then finishes it or drops it; counts which.
async fn leave_unpolled(
    world: &StoreWorld,
    operation: impl Future<Output = ()>,
    counted: (ClientSituation, ClientSituation),
) {
    let mut operation = Box::pin(operation);
    // Most operations wait for the device several times; stop at any of these times.
    let polled = Duration::from_millis(world.below(POLLED_MS + 1));
    if tokio::time::timeout(polled, &mut operation).await.is_ok() {
        return;
    }
    world.pause(UNPOLLED_MS).await;
    let (resumed, dropped) = counted;
    if world.chance(50) {
        operation.await;
        world.note(resumed);
    } else {
        drop(operation);
        world.note(dropped);
    }
}

/// Fills a key whose name the store does not know, and purges it. If it was not admitted, it is in memory alone.
async fn fill_and_purge(world: &StoreWorld) {
    let key = KEYS + world.below(RARE_KEYS.into()) as u32;
    fill(world, key).await;
    world.pause(10).await;
    let is_in_memory_alone = {
        let history = world.history.borrow();
        let last = history.versions.iter().rev().find(|version| version.key == key);
        last.is_some_and(|last| matches!(last.outcome, VersionFate::Accepted { is_admitted: false, .. }))
    };
    purge(world, PurgedObjects::Name(name_of(key))).await;
    if is_in_memory_alone {
        world.note(ClientSituation::PurgedInMemoryAlone);
    }
    get(world, key).await;
}

/// Writes and flushes everything put so far; the store must have flushed it when this returns.
async fn sync(world: &StoreWorld) {
    let store = world.store();
    let sequences = store.sequences();
    let wanted = sequences.last.0;
    if world.is_flushing() && sequences.last > sequences.written {
        world.note(ClientSituation::SyncDuringFlush);
    }
    if let Ok(sequences) = store.sync().await {
        let mut history = world.history.borrow_mut();
        let at = history.tick();
        history.syncs.push(RecordedSync { at, wanted, flushed: sequences.flushed.0 });
        world.mark(&history);
    }
}

/// Puts an object and syncs, so that a sync begins while the flush of another one is under way.
async fn put_and_sync(world: &StoreWorld) {
    world.pause(10).await;
    put(world, world.below(KEYS.into()) as u32, 500).await;
    sync(world).await;
}

/// Draws the length of a body. Up to 4 KiB, a body is one record here; longer bodies are stored as fragments.
fn length(world: &StoreWorld) -> usize {
    (match world.below(10) {
        0 => 0,
        1..=8 => world.below(4096),
        _ => 4096 + world.below(20_000),
    }) as usize
}

fn begin_version(
    world: &StoreWorld,
    key: u32,
    length: usize,
    tags: u32,
    content: Option<&KeyVersion>,
    is_fill: bool,
) -> u32 {
    let (number, head) = (world.draw_version(), world.head());
    let mut history = world.history.borrow_mut();
    let began = history.tick();
    let life = history.lives.len() - 1;
    history.versions.push(KeyVersion {
        key,
        number,
        content: content.map_or(number, |content| content.content),
        length,
        tags,
        began,
        ended: None,
        outcome: VersionFate::Unknown,
        is_fill,
        life,
        head: content.is_none().then_some(head),
    });
    world.mark(&history);
    number
}

fn tags(world: &StoreWorld) -> u32 {
    let one = || 1 << world.below(TAGS.into());
    match world.below(10) {
        0..=4 => 0,
        5..=8 => one(),
        _ => one() | one(),
    }
}

fn names(tags: u32) -> Vec<Vec<u8>> {
    (0..TAGS).filter(|number| tags & 1 << number != 0).map(tag).collect()
}

/// Whether an error means that nothing was stored.
fn is_refusal(error: &nectary_store::Error) -> bool {
    matches!(error.kind, StoreErrorKind::Busy | StoreErrorKind::Invalid)
}

pub async fn put(world: &StoreWorld, key: u32, length: usize) {
    let (store, _busy) = (world.store(), BusyKeyGuard::new(world, key));
    let tags = tags(world);
    if world.chance(40) {
        store.collocate(&key_name(key), &primary(world.below(3) as u32));
    }
    let number = begin_version(world, key, length, tags, None, false);
    let (name, names) = (key_name(key), names(tags));
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let bytes = body_of(key, number, length).into();
    let put = store.put_tagged(key_ref(&name, key), &names, metadata(number, number), bytes).await;
    world.end_version(number, put.map(|sequence| sequence.0).map_err(|error| is_refusal(&error)));
}

/// A get in flight.
struct PendingGet {
    began: Time,
    life: usize,
    /// The segment epoch that was being written when the get began.
    head: u64,
}

fn begin_get(world: &StoreWorld) -> PendingGet {
    let head = world.head();
    let mut history = world.history.borrow_mut();
    PendingGet { began: history.tick(), life: history.lives.len() - 1, head }
}

fn end_get(
    world: &StoreWorld,
    key: u32,
    begun: PendingGet,
    seen: Option<ObservedVersion>,
    follows: bool,
    may_miss: bool,
) {
    let PendingGet { began, life, head } = begun;
    world.note_lap(head);
    let head = world.head();
    let mut history = world.history.borrow_mut();
    let ended = history.tick();
    history.gets.push(RecordedGet { key, began, ended, life, seen, follows, may_miss, head });
    world.mark(&history);
}

/// Compares a part of a body with the same part of its version's body.
fn compare(world: &StoreWorld, key: u32, number: u32, content: u32, start: u64, bytes: &[u8], is_all: bool) {
    let history = world.history.borrow();
    let version = history.versions.iter().rev().find(|version| version.number == number && version.key == key);
    let Some(version) = version else { panic!("key {key}: version {number} was never put") };
    assert_eq!(version.content, content, "key {key}: the metadata of version {number} names another body");
    let whole = body_of(key, content, version.length);
    let end = start as usize + bytes.len();
    assert!(
        whole.get(start as usize..end) == Some(bytes),
        "key {key}: wrong bytes of version {number} from {start} on"
    );
    assert!(!is_all || end == whole.len(), "key {key}: version {number} ends after {end} of {} bytes", whole.len());
}

/// Reads an object, or a part of it; a read that breaks off is a miss.
async fn read(world: &StoreWorld, key: u32, object: &StoredObject) -> Option<ObservedVersion> {
    let (number, content) = numbers(object.metadata()).expect("metadata is whole");
    let length = object.body_bytes();
    let range = match world.chance(25) {
        true => world.below(length + 1)..world.below(length + 2),
        false => 0..u64::MAX,
    };
    let start = range.start.min(length);
    let end = range.end.clamp(start, length);
    let mut bytes = Vec::new();
    let mut reader = object.reader(start..end);
    while let Some(piece) = reader.next().await {
        bytes.extend_from_slice(&piece.ok()?);
    }
    assert_eq!(bytes.len() as u64, end - start, "key {key}: version {number} was cut");
    compare(world, key, number, content, start, &bytes, end == length);
    Some(ObservedVersion { version: number, sequence: object.sequence().0 })
}

pub async fn get(world: &StoreWorld, key: u32) {
    let (store, _busy) = (world.store(), BusyKeyGuard::new(world, key));
    if world.chance(30) {
        store.collocate(&key_name(key), &primary(world.below(3) as u32));
    }
    let began = begin_get(world);
    let name = key_name(key);
    let seen = match store.get(key_ref(&name, key)).await {
        Some(object) => read(world, key, &object).await,
        None => None,
    };
    end_get(world, key, began, seen, false, false);
}

fn get_resident(world: &StoreWorld, key: u32) {
    let (store, _busy) = (world.store(), BusyKeyGuard::new(world, key));
    let began = begin_get(world);
    if let Some(object) = store.get_resident(key_ref(&key_name(key), key)) {
        let (version, _) = numbers(object.metadata()).expect("metadata is whole");
        end_get(world, key, began, Some(ObservedVersion { version, sequence: object.sequence().0 }), false, true);
    }
}

async fn fill(world: &StoreWorld, key: u32) {
    let (store, _busy) = (world.store(), BusyKeyGuard::new(world, key));
    let (name, length, tags) = (key_name(key), length(world), tags(world));
    let resident = world.chance(70).then(|| store.get_resident(key_ref(&name, key))).flatten();
    let began = begin_get(world);
    let number = begin_version(world, key, length, tags, None, true);
    let mut fill = match store.begin_fill(key_ref(&name, key), resident.as_ref()) {
        FillRole::Leader(fill) => fill,
        FillRole::Resident(object) => {
            world.end_version(number, Err(true));
            let seen = read(world, key, &object).await;
            end_get(world, key, began, seen, false, true);
            return;
        }
        FillRole::Follower(mut reader) => {
            world.end_version(number, Err(true));
            let FillHead::Streaming { metadata, .. } = reader.head().await else { return };
            let (version, content) = numbers(&metadata).expect("metadata is whole");
            let mut bytes = Vec::new();
            let mut is_all = true;
            while let Some(piece) = reader.next().await {
                match piece {
                    Ok(piece) => bytes.extend_from_slice(&piece),
                    Err(_) => {
                        is_all = false;
                        break;
                    }
                }
            }
            compare(world, key, version, content, 0, &bytes, is_all);
            end_get(world, key, began, Some(ObservedVersion { version, sequence: 0 }), true, true);
            return;
        }
    };
    drop(resident);
    world.pause(20).await;
    let names = names(tags);
    let is_tagged = fill.tag(names.iter().map(Vec::as_slice)).is_ok();
    let known = world.chance(60).then_some(length as u64);
    fill.wait_for_room(key_variant(key), &metadata(number, number), known).await;
    let is_started = is_tagged && fill.start(key_variant(key), metadata(number, number), known);
    if !is_started || world.chance(10) {
        world.end_version(number, Err(true));
        return;
    }
    let bytes = bytes::Bytes::from(body_of(key, number, length));
    let step = 1 + world.below(6000) as usize;
    for start in (0..length).step_by(step) {
        if fill.write(bytes.slice(start..(start + step).min(length))).await.is_err() || world.chance(2) {
            world.end_version(number, Err(true));
            return;
        }
        world.pause(8).await;
    }
    note_overtaken(world, key, number);
    let finished = fill.finish().await;
    world.end_version(number, finished.map(|sequence| sequence.0).map_err(|error| is_refusal(&error)));
}

/// Counts a fill that ends after a version that began later.
fn note_overtaken(world: &StoreWorld, key: u32, number: u32) {
    let is_overtaken = {
        let history = world.history.borrow();
        let since = history.versions.iter().rev().take_while(|version| version.number != number);
        since
            .filter(|version| version.key == key)
            .any(|version| matches!(version.outcome, VersionFate::Accepted { .. }))
    };
    if is_overtaken {
        world.note(ClientSituation::FillOvertaken);
    }
}

/// Stores new metadata for a stored object, as after a 304.
async fn refresh(world: &StoreWorld, key: u32) {
    let (store, _busy) = (world.store(), BusyKeyGuard::new(world, key));
    let name = key_name(key);
    let began = begin_get(world);
    let Some(stale) = store.get(key_ref(&name, key)).await else {
        end_get(world, key, began, None, false, false);
        return;
    };
    let (old, _) = numbers(stale.metadata()).expect("metadata is whole");
    end_get(world, key, began, Some(ObservedVersion { version: old, sequence: stale.sequence().0 }), false, false);
    let old = world.history.borrow().versions.iter().find(|version| version.number == old).cloned();
    let old = old.expect("what is seen was put");
    let number = begin_version(world, key, old.length, old.tags, Some(&old), true);
    let FillRole::Leader(fill) = store.begin_fill(key_ref(&name, key), Some(&stale)) else {
        world.end_version(number, Err(true));
        return;
    };
    world.pause(10).await;
    note_overtaken(world, key, number);
    let refreshed = fill.refresh(&stale, metadata(number, old.content)).await;
    let outcome = refreshed.map(|object| object.sequence().0).map_err(|error| is_refusal(&error));
    world.end_version(number, outcome);
}

pub async fn purge(world: &StoreWorld, scope: PurgedObjects) {
    let store = world.store();
    world.operations.set(world.operations.get() + 1);
    let number = {
        let mut history = world.history.borrow_mut();
        let began = history.tick();
        history.purges.push(RecordedPurge { scope, began, ended: None, is_good: false });
        world.mark(&history);
        history.purges.len() - 1
    };
    let purged = match scope {
        PurgedObjects::Name(name) => store.purge_key(&primary(name)).await,
        PurgedObjects::Prefix(prefix) => store.purge_prefix(&primary(prefix)).await,
        PurgedObjects::Tag(number) => store.purge_tag(&tag(number)).await,
        PurgedObjects::All => store.purge_all().await,
    };
    let mut history = world.history.borrow_mut();
    let ended = history.tick();
    let purge = &mut history.purges[number];
    (purge.ended, purge.is_good) = (Some(ended), purged.is_ok());
    world.mark(&history);
}

/// Makes many purges at once.
async fn storm(world: &StoreWorld) {
    let count = 2 + world.below(STORM - 1);
    let names = (0..count).map(|_| PurgedObjects::Name(world.below(u64::from(KEYS / 2)) as u32));
    let names: Vec<PurgedObjects> = names.collect();
    join_all(names.into_iter().map(|scope| purge(world, scope))).await;
}
