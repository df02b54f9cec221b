//! Purges as callers ask for them: of a key, by prefix, by tag, of everything.
//!
//! Owns: the four calls, and that a rule holds in memory before it is on the disk. Leaves to others: the rules (`purges`), making
//! them durable (`writer`), and what hits make of them (`shared`).

use crate::error::{Error, ErrorKind};
use crate::key::{KeyRef, PRIMARY_BYTES_MAX, hash_prefix};
use crate::purges::{self, PREFIX_LENGTHS_MAX};
use crate::stat::Counters;
use crate::store::Store;
use crate::tags::hash_tag;
use crate::writer::Command;

impl Store {
    /// Purges a key with all its variants.
    ///
    /// *Durability*: when it returns, no get that begins later finds what was put, or began to be filled, before; also
    /// after a crash or a power cut. *Cost*: one block written twice and one flush, shared by purges at the same time.
    /// *Errors*: where it could not be made durable; in memory it holds all the same.
    pub async fn purge_key(&self, primary: &[u8]) -> Result<(), Error> {
        let shared = self.shared();
        let (primary_hash, hash) = shared.hash(KeyRef::new(primary, b""));
        let generation = shared.draw();
        let record = purges::key_record(primary_hash, generation, shared.purge_position());
        shared.admission.doubt.purge_begins();
        shared.purges.add(&record);
        let resident = shared.memory.get(hash, KeyRef::new(primary, b""));
        if let Some(entry) = resident.filter(|entry| entry.generation <= generation)
            && let Some(location) = entry.location()
        {
            shared.index.remove(hash, location);
            shared.memory.remove_same(&entry);
        }
        self.ask(|reply| Command::Purge(record, reply)).await?;
        Counters::add(&shared.counters.purges, 1);
        Ok(())
    }

    /// Purges everything.
    ///
    /// *Durability*: when it returns, no get that begins later finds what was put, or began to be filled, before; also
    /// after a crash or a power cut. *Cost*: as [`purge_key`](Store::purge_key); what was purged leaves memory and the index
    /// as it is asked for or reclaimed.
    /// *Errors*: where it could not be made durable; in memory it holds all the same.
    pub async fn purge_all(&self) -> Result<(), Error> {
        let shared = self.shared();
        let record = purges::all_record(shared.draw(), shared.purge_position());
        shared.admission.doubt.purge_begins();
        shared.purges.add(&record);
        self.ask(|reply| Command::Purge(record, reply)).await?;
        Counters::add(&shared.counters.purges, 1);
        Ok(())
    }

    /// Purges every key whose primary part begins with `prefix`, with all its variants.
    ///
    /// *Durability* and *cost* are those of [`purge_all`](Store::purge_all), and so are the errors, with `Busy` where
    /// prefixes of too many different lengths are remembered (nothing is purged). While it is remembered, a hit of what is
    /// older than it pays for a hash of its key's beginning.
    pub async fn purge_prefix(&self, prefix: &[u8]) -> Result<(), Error> {
        let shared = self.shared();
        let length = match prefix.len() {
            0 => return self.purge_all().await,
            length if length <= PRIMARY_BYTES_MAX => length as u16,
            length => return Err(Error::invalid(format!("a key has no {length} bytes to begin with"))),
        };
        if !shared.purges.has_room_for_prefix(length) {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{PREFIX_LENGTHS_MAX} purges by prefixes of different lengths are remembered until what they purged is \
                     overwritten; use a prefix of a length that was used, or purge everything"
                ),
            ));
        }
        let hash = hash_prefix(shared.layout.hash_seed, prefix);
        let record = purges::prefix_record(hash, length, shared.draw(), shared.purge_position());
        shared.admission.doubt.purge_begins();
        shared.purges.add(&record);
        self.ask(|reply| Command::Purge(record, reply)).await?;
        Counters::add(&shared.counters.purges, 1);
        Ok(())
    }

    /// Purges every object that was put under this tag, whatever its key.
    ///
    /// *Durability* and *cost* are those of [`purge_all`](Store::purge_all), and so are the errors, with `Invalid` for a tag that
    /// no object can have. What a purged object had replaced stays hidden. While the purge is remembered, a hit of what is
    /// older than it pays for a look for each tag it has.
    pub async fn purge_tag(&self, tag: &[u8]) -> Result<(), Error> {
        let shared = self.shared();
        let hash = hash_tag(shared.layout.hash_seed, tag)?;
        let record = purges::tag_record(hash, shared.draw(), shared.purge_position());
        shared.admission.doubt.purge_begins();
        shared.purges.add(&record);
        self.ask(|reply| Command::Purge(record, reply)).await?;
        Counters::add(&shared.counters.purges, 1);
        Ok(())
    }
}
