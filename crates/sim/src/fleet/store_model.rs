//! A model of a node's store: objects, purges and the mark, each valid in memory before it is durable.
//!
//! Owns: which objects a purge hides, and what a crash leaves. A purge hides the objects whose fill began before it;
//! a crash may lose what is not durable, so that an earlier object of the key is there again. Leaves to others: the
//! times at which things are durable (`storing`).

use std::collections::BTreeSet;

use nectary_host::fleet::{AppliedMark, FleetPurge, PurgeScope, RulesHash};

use super::bugs::{FleetBug, is_planted};
use super::facts::{URLS, key_of, tag_of};
use crate::random::SimulationRandom;

/// A stored object.
#[derive(Debug, Clone)]
pub struct ModelObject {
    pub url: usize,
    pub rules: RulesHash,
    /// The version of the origin that it shows.
    pub version: u64,
    number: u64,
    is_durable: bool,
    is_copy: bool,
    /// The purges that hide it.
    hidden_by: BTreeSet<u64>,
}

/// A purge that the store has made.
#[derive(Debug, Clone)]
pub struct AppliedPurge {
    number: u64,
    purge: FleetPurge,
    /// Which purge of the run it is; `None` for everything.
    pub fact: Option<usize>,
    /// The URLs that it is about.
    pub urls: u32,
    /// When it became valid. *Units*: microseconds.
    pub at_us: u64,
    /// What each URL shows at least afterwards.
    pub versions: [u64; URLS],
    is_durable: bool,
    /// Whether it is of the log, and not one that waits for etcd.
    pub is_logged: bool,
    /// When its batch has ended.
    pub ended_us: Option<u64>,
}

/// The store of a node.
#[derive(Debug, Clone, Default)]
pub struct StoreModel {
    events: u64,
    objects: Vec<ModelObject>,
    pub made: Vec<AppliedPurge>,
    /// What is valid in memory, and what is durable.
    pub mark: AppliedMark,
    pub durable_mark: AppliedMark,
    /// What each URL shows at least, as older versions were purged.
    pub least: [u64; URLS],
    known: BTreeSet<usize>,
    begun_us: u64,
    /// When everything was purged, or the store was made.
    everything_us: u64,
    /// How many of the applied purges are known to have been made here.
    pub checked: usize,
}

impl StoreModel {
    /// A store without objects, made then.
    pub fn new(begun_us: u64) -> StoreModel {
        StoreModel { begun_us, everything_us: begun_us, ..StoreModel::default() }
    }

    /// Sets the mark in memory. What was purged before the first one is no matter of an empty store.
    pub fn set_mark(&mut self, mark: AppliedMark, now_us: u64) {
        if self.mark.fleet == 0 && self.objects.is_empty() {
            (self.begun_us, self.everything_us) = (now_us, now_us);
        }
        self.mark = mark;
    }

    /// The time of this store at which a fill begins.
    pub fn begin_fill(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// Stores an object whose fill has begun then; whether no purge hides it.
    pub fn put(&mut self, url: usize, rules: RulesHash, version: u64, began: u64) -> bool {
        self.events += 1;
        let began = if is_planted(FleetBug::FillOverPurge) { self.events } else { began };
        let hidden = self.made.iter().filter(|made| made.number > began && hides(&made.purge, url, rules));
        let hidden_by: BTreeSet<u64> = hidden.map(|made| made.number).collect();
        let is_visible = hidden_by.is_empty();
        self.objects.push(ModelObject {
            url,
            rules,
            version,
            number: self.events,
            is_durable: false,
            is_copy: false,
            hidden_by,
        });
        is_visible
    }

    /// Keeps a copy in memory.
    pub fn put_copy(&mut self, url: usize, rules: RulesHash, version: u64, began: u64) {
        self.put(url, rules, version, began);
        self.objects.last_mut().into_iter().for_each(|object| object.is_copy = true);
    }

    /// The newest object of a URL by these rules, if no purge hides it.
    pub fn get(&self, url: usize, rules: RulesHash) -> Option<&ModelObject> {
        let of_key = self.objects.iter().filter(|object| object.url == url && object.rules == rules);
        of_key.max_by_key(|object| object.number).filter(|object| object.hidden_by.is_empty())
    }

    /// Makes a purge valid in memory; returns its number.
    pub fn begin_purge(
        &mut self,
        purge: FleetPurge,
        (fact, urls, is_logged): (Option<usize>, u32, bool),
        (at_us, versions): (u64, [u64; URLS]),
    ) -> u64 {
        self.events += 1;
        let number = self.events;
        for object in self.objects.iter_mut().filter(|object| hides(&purge, object.url, object.rules)) {
            object.hidden_by.insert(number);
        }
        let made =
            AppliedPurge { number, purge, fact, urls, at_us, versions, is_durable: false, is_logged, ended_us: None };
        self.made.push(made);
        self.sum_up(self.made.len() - 1);
        number
    }

    /// Adds what was made from there on to the sums.
    fn sum_up(&mut self, from: usize) {
        for made in &self.made[from..] {
            let urls = (0..URLS).filter(|url| made.urls & 1 << url != 0);
            urls.for_each(|url| self.least[url] = self.least[url].max(made.versions[url]));
            match made.fact {
                Some(fact) => drop(self.known.insert(fact)),
                None => self.everything_us = self.everything_us.max(made.at_us),
            }
        }
    }

    /// Makes a purge durable, and with it those before it.
    pub fn flush_purge(&mut self, number: u64) {
        self.made.iter_mut().filter(|made| made.number <= number).for_each(|made| made.is_durable = true);
    }

    /// Notes that a batch has ended, and with it all purges so far.
    pub fn end_batch(&mut self, now_us: u64) {
        let durable = self.made.iter_mut().filter(|made| made.is_durable && made.is_logged);
        durable.for_each(|made| made.ended_us = made.ended_us.or(Some(now_us)));
    }

    /// Makes all objects durable, and forgets those that are replaced.
    pub fn flush_objects(&mut self) {
        self.objects.iter_mut().for_each(|object| object.is_durable = true);
        let newest: BTreeSet<u64> = self
            .objects
            .iter()
            .filter_map(|object| {
                let same = self.objects.iter().filter(|other| (other.url, other.rules) == (object.url, object.rules));
                same.map(|other| other.number).max()
            })
            .collect();
        self.objects.retain(|object| newest.contains(&object.number));
    }

    /// Whether a purge of the run was made, or everything was purged after it was in the log.
    pub fn has_made(&self, fact: usize, logged_us: u64) -> bool {
        self.known.contains(&fact) || self.everything_us >= logged_us
    }

    /// What a URL shows at least, by the purges whose batches have ended.
    pub fn least_of(&self, url: usize) -> u64 {
        let ended = self.made.iter().filter(|made| made.ended_us.is_some() && made.urls & 1 << url != 0);
        ended.map(|made| made.versions[url]).max().unwrap_or(0)
    }

    /// What a crash leaves.
    pub fn crash(&mut self, random: &mut SimulationRandom) {
        let pending = self.made.iter().filter(|made| !made.is_durable).count() as u64;
        let mut kept = random.below(pending + 1);
        let mut lost = BTreeSet::new();
        self.made.retain_mut(|made| {
            let is_kept = made.is_durable || kept > 0;
            kept -= u64::from(!made.is_durable && kept > 0);
            made.is_durable = true;
            made.ended_us = made.ended_us.or(made.is_logged.then_some(0));
            if !is_kept {
                lost.insert(made.number);
            }
            is_kept
        });
        self.objects.retain(|object| !object.is_copy && (object.is_durable || random.chance(50)));
        for object in &mut self.objects {
            object.hidden_by.retain(|number| !lost.contains(number));
            object.is_durable = true;
        }
        self.mark = self.durable_mark;
        (self.least, self.known, self.everything_us, self.checked) = ([0; URLS], BTreeSet::new(), self.begun_us, 0);
        self.sum_up(0);
    }
}

/// Whether a purge is about the object of a URL by these rules.
fn hides(purge: &FleetPurge, url: usize, rules: RulesHash) -> bool {
    let key = || key_of(rules, url);
    match &purge.scope {
        PurgeScope::All => true,
        PurgeScope::Keys(keys) => keys.contains(&key()),
        PurgeScope::Prefixes(prefixes) => prefixes.iter().any(|prefix| key().starts_with(prefix)),
        PurgeScope::Tags(tags) => tags.contains(&tag_of(url)),
    }
}
