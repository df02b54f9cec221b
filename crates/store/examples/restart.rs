//! Fills a store with small objects, drops it as a crash would, opens it again, and tells how long each took.
//!
//! `cargo run --release -p nectary-store --example restart -- SPEC OBJECTS BODY_BYTES`

use std::time::Instant;

use bytes::Bytes;
use nectary_block::OpenOptions as DeviceOptions;
use nectary_store::{CreateOptions, KeyRef, OpenOptions, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [spec, objects, body_bytes] = arguments.as_slice() else {
        return Err("usage: restart SPEC OBJECTS BODY_BYTES".into());
    };
    let (objects, body_bytes): (u64, usize) = (objects.parse()?, body_bytes.parse()?);
    let size = (objects * (body_bytes as u64 + 400) * 2).max(64 << 20);
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let device_options = DeviceOptions { create_bytes: Some(size), ..DeviceOptions::default() };
        let device = nectary_block::open(spec, &device_options).await?;
        Store::create(device.clone(), &CreateOptions { force: true, ..CreateOptions::default() }).await?;
        let options = OpenOptions { memory_bytes: 512 << 20, ..OpenOptions::default() };
        let store = Store::open(device.clone(), options.clone()).await?;
        let body = Bytes::from(vec![7u8; body_bytes]);
        let begun = Instant::now();
        for number in 0..objects {
            let name = format!("http://example.invalid/object/{number}");
            while store.put(KeyRef::new(name.as_bytes(), b""), "metadata".into(), body.clone()).await.is_err() {
                store.sync().await?;
            }
        }
        store.sync().await?;
        let seconds = begun.elapsed().as_secs_f64();
        let stat = store.stat();
        println!(
            "put {objects} objects of {body_bytes} bytes in {seconds:.2} s: {:.0}/s, {:.0} MB/s; index {:.1} bytes an object; {} checkpoints",
            objects as f64 / seconds,
            (objects * body_bytes as u64) as f64 / seconds / 1e6,
            stat.index_bytes as f64 / stat.entries as f64,
            stat.counts.checkpoints
        );
        drop(store);
        let begun = Instant::now();
        let store = Store::open(device.clone(), options).await?;
        let opened = begun.elapsed();
        let name = format!("http://example.invalid/object/{}", objects / 2);
        let hit = store.get(KeyRef::new(name.as_bytes(), b"")).await.is_some();
        println!("opened in {opened:?}, first hit ({hit}) after {:?}; {:?}", begun.elapsed(), store.stat().recovery);
        let begun = Instant::now();
        let mut hits = 0;
        for at in 0..2000u64 {
            let name = format!("http://example.invalid/object/{}", at * 7919 % objects);
            hits += u64::from(store.get(KeyRef::new(name.as_bytes(), b"")).await.is_some());
        }
        println!("{hits} of 2000 cold gets, {:?} each", begun.elapsed() / 2000);
        store.close().await?;
        Ok(())
    })
}
