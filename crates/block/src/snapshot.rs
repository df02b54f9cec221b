//! The contents of a device at one moment. Copies and small changes of a snapshot are cheap.
//!
//! Owns: pages that several copies share until one of them writes. A snapshot is for tests that derive many images from
//! one: copying a snapshot copies only the table of pages, and a change copies only the changed pages.

use std::collections::HashMap;
use std::sync::Arc;

/// The size of the pages that snapshots share. *Units*: bytes.
pub(crate) const PAGE_BYTES: usize = 64 * 1024;

/// An image of a device; unwritten ranges are zeroes and take no memory.
#[derive(Clone, Default)]
pub struct DeviceSnapshot {
    size_bytes: u64,
    pages: HashMap<u64, Arc<Vec<u8>>>,
}

impl DeviceSnapshot {
    /// An image of zeroes.
    pub fn zeroed(size_bytes: u64) -> DeviceSnapshot {
        DeviceSnapshot { size_bytes, pages: HashMap::new() }
    }

    /// An image with the contents `image`. *Cost*: copies the bytes that are not zero.
    pub fn from_image(image: &[u8]) -> DeviceSnapshot {
        let mut snapshot = DeviceSnapshot::zeroed(image.len() as u64);
        for (page, piece) in image.chunks(PAGE_BYTES).enumerate() {
            if piece.iter().any(|&byte| byte != 0) {
                snapshot.write(page as u64 * PAGE_BYTES as u64, piece);
            }
        }
        snapshot
    }

    /// Returns the whole contents. *Cost*: allocates the full size.
    pub fn image(&self) -> Vec<u8> {
        let mut image = vec![0; self.size_bytes as usize];
        for (page, bytes) in self.pages() {
            let start = page as usize * PAGE_BYTES;
            let end = (start + PAGE_BYTES).min(image.len());
            image[start..end].copy_from_slice(&bytes[..end - start]);
        }
        image
    }

    /// The size of the image. *Units*: bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Makes the image larger; the new part is zeroes.
    pub fn grow(&mut self, size_bytes: u64) {
        self.size_bytes = self.size_bytes.max(size_bytes);
    }

    /// Copies the bytes at `offset` into `into`.
    ///
    /// # Panics
    /// Panics if the range is outside the image, which is a bug of the caller.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        assert!(offset + into.len() as u64 <= self.size_bytes, "a read leaves the image");
        for (page, start, range) in pages(offset, into.len() as u64) {
            let into = &mut into[range];
            match self.pages.get(&page) {
                Some(bytes) => into.copy_from_slice(&bytes[start..start + into.len()]),
                None => into.fill(0),
            }
        }
    }

    /// Sets the bytes at `offset`. Other copies of the image do not change.
    ///
    /// # Panics
    /// Panics if the range extends beyond the image, which is a bug of the caller.
    pub fn write(&mut self, offset: u64, from: &[u8]) {
        assert!(offset + from.len() as u64 <= self.size_bytes, "a write leaves the image");
        for (page, start, range) in pages(offset, from.len() as u64) {
            let from = &from[range];
            let bytes = self.pages.entry(page).or_insert_with(|| Arc::new(vec![0; PAGE_BYTES]));
            Arc::make_mut(bytes)[start..start + from.len()].copy_from_slice(from);
        }
    }

    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, &Arc<Vec<u8>>)> {
        self.pages.iter().map(|(&page, bytes)| (page, bytes))
    }

    pub(crate) fn insert(&mut self, page: u64, bytes: Arc<Vec<u8>>) {
        self.pages.insert(page, bytes);
    }
}

impl std::fmt::Debug for DeviceSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({} bytes)", self.size_bytes)
    }
}

/// Splits a range at page borders. *Returns* for each piece the page, the start inside the page, and the range inside
/// the request.
pub(crate) fn pages(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let page_bytes = PAGE_BYTES as u64;
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let (page, start) = ((offset + done) / page_bytes, (offset + done) % page_bytes);
        let piece = (page_bytes - start).min(length - done);
        let range = done as usize..(done + piece) as usize;
        done += piece;
        Some((page, start as usize, range))
    })
}
