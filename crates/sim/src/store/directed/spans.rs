//! Scenarios of a store of two spans: losses, returns, stand-ins, and purges that one span misses.

use std::sync::Arc;
use std::time::Duration;

use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{FillRole, OpenOptions, SpanDevice, SpanSet};

use super::slow::{DELAY, SlowWriteFilter};
use super::{Verdict, body, expect, key, options};
use crate::store::crash_check::whole;
use crate::switch::{SwitchFilter, SwitchHandle};

const SPAN_BYTES: u64 = 4 << 20;
/// A store notices the loss of a span after some failed writes, with growing times between them.
const LOSS_TURNS_MAX: u32 = 100;

/// The disks of two spans.
pub struct DirectedDisks {
    memories: [Arc<MemoryDevice>; 2],
    seed: u64,
    /// The number of opens so far.
    opens: u64,
}

/// An open store, and the switches of its devices.
struct OpenedSpans {
    store: SpanSet,
    offs: [SwitchHandle; 2],
    slow: [SlowWriteFilter; 2],
}

impl DirectedDisks {
    pub fn new(seed: u64) -> DirectedDisks {
        DirectedDisks { memories: [(); 2].map(|()| Arc::new(MemoryDevice::new(SPAN_BYTES))), seed, opens: 0 }
    }

    async fn open(&mut self) -> OpenedSpans {
        let offs = [SwitchHandle::default(), SwitchHandle::default()];
        let slow = self.memories.each_ref().map(|memory| SlowWriteFilter::over(memory.clone(), 0..SPAN_BYTES));
        let device = |at: usize| Arc::new(SwitchFilter::new(Arc::new(slow[at].clone()), &offs[at])) as SharedDevice;
        let store = self.open_on([device(0), device(1)], false).await;
        OpenedSpans { store, offs, slow }
    }

    /// Opens the store on devices that fail nothing.
    pub async fn write(&mut self) -> SpanSet {
        self.open().await.store
    }

    /// Opens the store only for reading.
    pub async fn read(&mut self) -> SpanSet {
        let devices = self.memories.each_ref().map(|memory| memory.clone() as SharedDevice);
        self.open_on(devices, true).await
    }

    async fn open_on(&mut self, devices: [SharedDevice; 2], is_read_only: bool) -> SpanSet {
        let named = devices.into_iter().enumerate().map(|(number, device)| SpanDevice {
            spec: format!("disk{number}"),
            device: Ok(device),
            size_bytes: 0,
        });
        self.opens += 1;
        let seed = self.seed << 8 ^ self.opens;
        let options = OpenOptions { memory_bytes: 32 << 20, is_read_only, ..options(seed) };
        SpanSet::open(named.collect(), options).await.expect("both spans are there")
    }

    pub fn images(&self) -> [Vec<u8>; 2] {
        self.memories.each_ref().map(|memory| memory.image())
    }

    /// Puts a span's disk back as it was.
    pub fn put_back(&mut self, span: usize, image: Vec<u8>) {
        self.memories[span] = Arc::new(MemoryDevice::from_image(image));
    }
}

impl OpenedSpans {
    /// Loses a span while the store serves; a key of the span is put until the store notices.
    async fn lose(&self, span: usize) {
        self.offs[span].set(true);
        for turn in 0..LOSS_TURNS_MAX {
            if self.store.stat().spans[span].lost.is_some() {
                return;
            }
            let name = format!("turn {turn}");
            let _ = self.store.put(key(&name), "m".into(), body(1, 100).into()).await;
            let _ = self.store.sync().await;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        panic!("the store does not notice that a span is lost");
    }
}

/// A name whose key belongs to this span while all are there.
pub fn name_on(store: &SpanSet, span: u32, from: u64) -> String {
    let names = (from..).map(|number| format!("http://model.invalid/{number}"));
    names.into_iter().find(|name| store.span_of(name.as_bytes()) == Some(span)).expect("each span has keys")
}

pub async fn put(store: &SpanSet, name: &str, body: Vec<u8>) {
    store.put(key(name), "m".into(), body.into()).await.expect("there is room");
    store.sync().await.expect("it syncs");
}

pub async fn found(store: &SpanSet, name: &str) -> Option<Vec<u8>> {
    whole(&store.get(key(name)).await?).await
}

/// Makes a store whose first span has an old version of a key of the second span, which it stood in for. The second
/// span has the newest version.
async fn with_old_stand_in(seed: u64) -> (DirectedDisks, OpenedSpans, String) {
    let mut disks = DirectedDisks::new(seed);
    let opened = disks.open().await;
    let name = name_on(&opened.store, 1, seed);
    opened.lose(1).await;
    put(&opened.store, &name, body(1, 200)).await;
    assert_eq!(opened.store.span_of(name.as_bytes()), Some(0), "the first span stands in");
    drop(opened);
    let opened = disks.open().await;
    put(&opened.store, &name, body(2, 300)).await;
    (disks, opened, name)
}

/// The time of the last return is on the disk: after a kill, an old stand-in is still known as such.
pub async fn stand_in_stays_away_after_kill(seed: u64) -> Verdict {
    let (mut disks, opened, name) = with_old_stand_in(seed).await;
    drop(opened);
    let opened = disks.open().await;
    expect(found(&opened.store, &name).await.as_deref(), Some(&body(2, 300)), "the newest version")?;
    opened.lose(1).await;
    expect(found(&opened.store, &name).await.as_deref(), None, "a version of an earlier absence")
}

/// A get that tells a failed device from a miss finds no old stand-in either.
pub async fn stand_in_stays_away_from_try_get(seed: u64) -> Verdict {
    let (_disks, opened, name) = with_old_stand_in(seed).await;
    opened.lose(1).await;
    let object = opened.store.try_get(key(&name)).await.map_err(|error| error.to_string())?;
    let bytes = match &object {
        Some(object) => whole(object).await,
        None => None,
    };
    expect(bytes.as_deref(), None, "a version of an earlier absence")
}

/// A fill does not return an old stand-in that is in memory.
pub async fn stand_in_is_no_resident_of_fill(seed: u64) -> Verdict {
    let (_disks, opened, name) = with_old_stand_in(seed).await;
    opened.lose(1).await;
    // A get reads the stand-in into memory, and does not return it.
    expect(found(&opened.store, &name).await.as_deref(), None, "a version of an earlier absence")?;
    match opened.store.begin_fill(key(&name), None).map_err(|error| error.to_string())? {
        FillRole::Resident(_) => Err("a fill returned a version of an earlier absence".into()),
        _ => Ok(()),
    }
}

/// Begins purges one after the other, without waiting for their ends, and kills the store.
async fn killed_in_purges(opened: OpenedSpans, names: &[&str]) {
    opened.slow[1].set(true);
    let mut running = Vec::new();
    for name in names {
        let (store, name) = (opened.store.clone(), (*name).to_owned());
        running.push(tokio::spawn(async move { store.purge_key(name.as_bytes()).await }));
        tokio::time::sleep(DELAY / 10).await;
    }
    for purge in running {
        purge.abort();
        let _ = purge.await;
    }
    drop(opened);
    tokio::time::sleep(DELAY * 4).await;
}

/// A crash during two purges leaves a span without both. It gets them, and keeps its other objects.
pub async fn span_behind_in_purges_keeps_objects(seed: u64) -> Verdict {
    let mut disks = DirectedDisks::new(seed);
    let opened = disks.open().await;
    let names: Vec<String> = (0..20).map(|number| format!("kept {seed} {number}")).collect();
    for name in &names {
        put(&opened.store, name, body(1, 200)).await;
    }
    killed_in_purges(opened, &["first", "second"]).await;
    let opened = disks.open().await;
    for name in &names {
        expect(found(&opened.store, name).await.as_deref(), Some(&body(1, 200)), "an object that nobody purged")?;
    }
    Ok(())
}

/// A crash during a purge leaves a span without it. It gets this purge, and no purge before it again.
pub async fn missed_purge_repeats_no_other(seed: u64) -> Verdict {
    let mut disks = DirectedDisks::new(seed);
    let opened = disks.open().await;
    let name = name_on(&opened.store, 1, seed);
    put(&opened.store, &name, body(1, 200)).await;
    opened.store.purge_key(name.as_bytes()).await.expect("it is purged");
    put(&opened.store, &name, body(2, 300)).await;
    killed_in_purges(opened, &["another"]).await;
    let opened = disks.open().await;
    expect(found(&opened.store, &name).await.as_deref(), Some(&body(2, 300)), "put after its purge")
}

/// A span that begins empty knows of the purges before: the next open believes it, and it keeps what it got.
pub async fn empty_span_keeps_what_it_gets(seed: u64) -> Verdict {
    let mut disks = DirectedDisks::new(seed);
    let opened = disks.open().await;
    let name = name_on(&opened.store, 1, seed);
    for purged in ["first", "second"] {
        opened.store.purge_key(purged.as_bytes()).await.expect("it is purged");
    }
    opened.lose(1).await;
    drop(opened);
    let opened = disks.open().await;
    put(&opened.store, &name, body(1, 200)).await;
    drop(opened);
    let opened = disks.open().await;
    expect(found(&opened.store, &name).await.as_deref(), Some(&body(1, 200)), "put on a span that began empty")
}
