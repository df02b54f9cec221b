//! Soft purges of the run: what the model knows of them, and how an answer is compared with it.
//!
//! Owns: the soft purges, and the comparison of an object's staleness. Leaves to others: all other operations, and
//! whether an object is found.

use nectary_store::{KeyRef, PurgeEffect, StoredObject};

use super::{ExpectedObject, RandomStoreRun, TAGS};
use crate::store::crash_check::whole;
use crate::store::{primary, tag};

/// The soft purges of the run; the store only keeps the time.
const SOFT: PurgeEffect = PurgeEffect::Soft { since_s: 1_000_000_000 };

impl RandomStoreRun {
    /// Gets a key: the metadata and the body that were found, whose staleness is compared. A read that breaks off is a
    /// miss.
    pub(super) async fn read(&mut self, key: u32, name: KeyRef<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
        let object = self.store().get(name).await?;
        let bytes = whole(&object).await?;
        self.settle(key, object.metadata());
        self.compare_staleness(key, &object);
        Some((object.metadata().to_vec(), bytes))
    }

    /// Compares whether an object that was found is stale.
    fn compare_staleness(&mut self, key: u32, found: &StoredObject) {
        let Some(expected) = self.expected[key as usize].stale else { return };
        let is_stale = found.stale_since_s().is_some();
        self.report.stale_hits += u64::from(is_stale);
        if is_stale != expected {
            let operation = self.report.operations;
            let text = format!("operation {operation}: key {key} is stale: {is_stale}; the model says {expected}");
            self.report.differences.push(text);
        }
    }

    /// Purges a key softly.
    pub(super) async fn soft_purge(&mut self, key: u32) {
        if let Err(error) = self.store().purge_key_as(&primary(key), SOFT).await {
            self.report.differences.push(format!("soft purge of key {key} failed: {error}"));
        }
        self.make_stale(key);
    }

    /// Purges everything softly.
    pub(super) async fn soft_purge_all(&mut self) {
        if let Err(error) = self.store().purge_all_as(SOFT).await {
            self.report.differences.push(format!("soft purge of everything failed: {error}"));
        }
        self.expected.iter_mut().chain(self.replaced.values_mut().flatten()).for_each(make_stale);
    }

    /// Purges softly all keys whose number begins with three random digits.
    pub(super) async fn soft_purge_prefix(&mut self) {
        let number = 100 + self.random.below(900) as u32;
        if let Err(error) = self.store().purge_prefix_as(&primary(number), SOFT).await {
            self.report.differences.push(format!("soft purge of what begins with {number} failed: {error}"));
        }
        let mut scale = 1;
        while number * scale < self.options.keys {
            let end = ((number + 1) * scale).min(self.options.keys);
            (number * scale..end).for_each(|key| self.make_stale(key));
            scale *= 10;
        }
    }

    /// Purges softly all keys whose version has a tag.
    pub(super) async fn soft_purge_tag(&mut self) {
        let number = self.random.below(TAGS) as u16;
        if let Err(error) = self.store().purge_tag_as(&tag(number.into()), SOFT).await {
            self.report.differences.push(format!("soft purge of tag {number} failed: {error}"));
        }
        let versions = self.expected.iter_mut().chain(self.replaced.values_mut().flatten());
        versions.filter(|version| version.tags.contains(&number)).for_each(make_stale);
    }

    /// Whether each version is stale is not known if a restart may have lost its last confirmation.
    pub(super) fn doubt_staleness(&mut self, recovered: u64) {
        let lost = |version: &&mut ExpectedObject| version.confirmed_sequence > recovered;
        self.expected.iter_mut().filter(lost).for_each(|version| version.stale = None);
    }

    fn make_stale(&mut self, key: u32) {
        make_stale(&mut self.expected[key as usize]);
        self.replaced.get_mut(&key).into_iter().flatten().for_each(make_stale);
    }
}

fn make_stale(version: &mut ExpectedObject) {
    version.stale = Some(true);
}
