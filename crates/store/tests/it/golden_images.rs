//! This version reads stores made by earlier versions: their images are kept in `tests/data`.
//!
//! An image is stored sparsely: it has only the blocks of 512 bytes that are not all zero. Each block follows its
//! number (4 bytes, little-endian). `NECTARY_WRITE_GOLDEN_IMAGES=1` writes new images; set it only when the format has
//! a new version, and keep the old images.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::{body, fresh, open, read_all};
use bytes::Bytes;
use nectary_block::MemoryDevice;
use nectary_store::KeyRef;

const IMAGE_BYTES: u64 = 2 << 20;
const BLOCK_BYTES: usize = 512;
const COUNT: u64 = 12;
/// The length of a body that needs fragments, in bytes. The body is all zero, so that the sparse image stays small.
const LONG_BYTES: usize = 300 << 10;
const PURGED: u64 = 5;

fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "data", name].iter().collect()
}

fn key(number: u64) -> String {
    format!("http://example.org/{number}")
}

fn to_sparse(image: &[u8]) -> Vec<u8> {
    let blocks = image.chunks(BLOCK_BYTES).enumerate().filter(|(_, block)| block.iter().any(|&byte| byte != 0));
    blocks.flat_map(|(number, block)| [&(number as u32).to_le_bytes()[..], block].concat()).collect()
}

fn from_sparse(bytes: &[u8]) -> Vec<u8> {
    let mut image = vec![0; IMAGE_BYTES as usize];
    for frame in bytes.chunks(4 + BLOCK_BYTES) {
        let at = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize * BLOCK_BYTES;
        image[at..at + frame.len() - 4].copy_from_slice(&frame[4..]);
    }
    image
}

/// Makes the image of a store with objects of all kinds: short ones, variants, a long one in fragments, a replaced one,
/// and a purged one.
async fn make(is_closed: bool) -> Vec<u8> {
    let (device, store) = fresh(IMAGE_BYTES).await;
    let put = async |key: String, variant: &[u8], body: Bytes| {
        store.put(KeyRef::new(key.as_bytes(), variant), "metadata".into(), body).await.expect("room");
    };
    for number in 0..COUNT {
        put(key(number), b"", body(number, 100 * number as usize)).await;
    }
    put(key(1), b"gzip", body(101, 500)).await;
    put(key(2), b"", body(102, 700)).await;
    put("long".to_owned(), b"", vec![0; LONG_BYTES].into()).await;
    store.sync().await.expect("written");
    store.purge_key(key(PURGED).as_bytes()).await.expect("durable");
    if is_closed {
        store.close().await.expect("closed");
    }
    drop(store);
    device.image()
}

/// Stores of version 1 are read whole after a clean end and after a crash.
#[tokio::test]
async fn version_1_stores_are_read() {
    for (name, is_closed) in [("store-1-closed.image", true), ("store-1-crashed.image", false)] {
        if std::env::var_os("NECTARY_WRITE_GOLDEN_IMAGES").is_some() {
            std::fs::write(path(name), to_sparse(&make(is_closed).await)).expect("written");
        }
        let image = from_sparse(&std::fs::read(path(name)).expect("it is kept with the tests"));
        let store = open(Arc::new(MemoryDevice::from_image(image))).await;
        for number in (0..COUNT).filter(|number| ![2, PURGED].contains(number)) {
            let found = store.get(KeyRef::new(key(number).as_bytes(), b"")).await.expect("a hit");
            assert_eq!(&found.metadata()[..], b"metadata", "{name}: {number}");
            let bytes = read_all(&store, KeyRef::new(key(number).as_bytes(), b"")).await.expect("a hit");
            assert_eq!(bytes, body(number, 100 * number as usize), "{name}: {number}");
        }
        let read = async |key: &str, variant: &[u8]| read_all(&store, KeyRef::new(key.as_bytes(), variant)).await;
        assert_eq!(read(&key(1), b"gzip").await.expect("the variant"), body(101, 500), "{name}");
        assert_eq!(read(&key(2), b"").await.expect("the newer"), body(102, 700), "{name}");
        assert_eq!(read("long", b"").await.expect("the fragments"), vec![0; LONG_BYTES], "{name}");
        assert_eq!(read(&key(PURGED), b"").await, None, "{name}: purged");
        assert_eq!(store.check(|_, _| {}).await.damaged, 0, "{name}");
    }
}
