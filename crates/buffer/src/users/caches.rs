//! The caches that SPECs have opened in this process, for code that shows or changes them while they run.
//!
//! Owns: the list of caches. The list does not keep caches open, and a cache without users leaves the list. Leaves to
//! others: showing and changing the caches.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use nectary_block::{BlockDevice, DeviceRegistry};

use crate::cache::BufferCache;
use crate::device::{CacheDevice, open};
use crate::names::FileId;

/// A list of caches. Clones share the list.
#[derive(Clone, Default)]
pub struct CacheList(Arc<Mutex<Vec<Weak<CacheDevice>>>>);

/// A cache that a SPEC has opened; this value keeps it open.
#[derive(Clone)]
pub struct OpenCache(Arc<CacheDevice>);

/// Adds `cache(SPEC,…)` to the names that a SPEC can use; to list the opened caches too, use [`CacheList::register`].
pub fn register(registry: &mut DeviceRegistry) {
    CacheList::default().register(registry);
}

impl CacheList {
    /// Adds `cache(SPEC,…)` to the names that a SPEC can use; caches that are opened by this name are in this list.
    pub fn register(&self, registry: &mut DeviceRegistry) {
        let list = self.clone();
        registry.register("cache", move |arguments| {
            let list = list.clone();
            async move {
                let device = Arc::new(open(arguments).await?);
                list.lock().push(Arc::downgrade(&device));
                Ok(device as Arc<dyn BlockDevice>)
            }
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Weak<CacheDevice>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open caches; if one contains another, the outer one is first.
    pub fn opened(&self) -> Vec<OpenCache> {
        let mut list = self.lock();
        list.retain(|cache| cache.strong_count() > 0);
        list.iter().rev().filter_map(Weak::upgrade).map(OpenCache).collect()
    }
}

impl OpenCache {
    /// The SPEC of the device.
    pub fn spec(&self) -> String {
        self.0.spec()
    }

    /// The cache.
    pub fn cache(&self) -> &BufferCache {
        self.0.cache()
    }

    /// The device's file in the cache.
    pub fn file(&self) -> FileId {
        self.0.file()
    }

    /// The size of the device. *Units*: bytes.
    pub fn size_bytes(&self) -> u64 {
        self.0.geometry().size_bytes
    }
}
