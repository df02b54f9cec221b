//! What is durable: files, names, space and sessions, as a server has them in memory.
//!
//! Owns: what operations do. It follows `nectary_volume::metadata`, with one block an extent and sizes in blocks.

use std::collections::{BTreeMap, BTreeSet};

use super::bugs::{Bug, planted};

/// A file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inode {
    /// *Units*: blocks.
    pub size: u64,
    /// One more at each truncate.
    pub generation: u64,
    /// One more at each change.
    pub version: u64,
    /// Where the blocks are.
    pub map: BTreeMap<u64, u32>,
}

/// What a session asks to be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Maps blocks, and extends.
    Commit { file: usize, generation: u64, size: u64, extents: Vec<(u64, u32)> },
    /// Cuts or extends.
    Truncate { file: usize, size: u64 },
    /// Makes a name.
    Create { name: u64, inode: u64 },
    /// Takes it away.
    Unlink { name: u64 },
    /// Moves it to another one.
    Rename { name: u64, to: u64 },
}

/// What an operation answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A file as it is now, without its map.
    Attributes(Inode),
    /// Where its blocks are, and the last append that this shows.
    Map(Inode, u64),
    /// What a name leads to, and after a rename what the other one led to.
    Named(u64, u64),
    /// Blocks that are granted.
    Space(Vec<u32>),
}

/// Why it is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The session is over.
    Ended,
    /// The file was truncated meanwhile.
    Stale,
    /// There is no space.
    Full,
    /// Numbers are missing before this one.
    OutOfOrder,
    /// It was acknowledged, and the reply forgotten.
    Forgotten,
    /// It commits what is not granted to it.
    NotGranted,
    /// Too many wait.
    Conflict,
}

pub type Reply = Result<Answer, Refusal>;

/// A session.
#[derive(Debug, Clone, Default)]
pub struct Session {
    pub is_ended: bool,
    pub last: u64,
    pub replies: BTreeMap<u64, Reply>,
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub struct Image {
    pub files: Vec<Inode>,
    pub names: BTreeMap<u64, u64>,
    pub free: BTreeSet<u32>,
    pub granted: BTreeMap<u32, u64>,
    /// Blocks that were taken out of a map, and by which append.
    pub draining: BTreeMap<u32, u64>,
    pub sessions: BTreeMap<u64, Session>,
    pub next_session: u64,
}

impl Image {
    /// A new volume.
    pub fn new(files: usize, blocks: u32) -> Image {
        Image { files: vec![Inode::default(); files], free: (0..blocks).collect(), next_session: 1, ..Image::default() }
    }

    pub fn is_active(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(|session| !session.is_ended)
    }

    /// Does an operation, or repeats its reply. What it frees is freed by append `sequence`.
    pub fn operate(&mut self, sequence: u64, session: u64, number: u64, operation: &Operation) -> Reply {
        let Some(found) = self.sessions.get(&session) else { return Err(Refusal::Ended) };
        if found.is_ended && !planted(Bug::DeadCommit) {
            return Err(Refusal::Ended);
        }
        if number <= found.last {
            return found.replies.get(&number).cloned().unwrap_or(Err(Refusal::Forgotten));
        }
        if number > found.last + 1 {
            return Err(Refusal::OutOfOrder);
        }
        let reply = self.apply(sequence, session, operation);
        if let Some(found) = self.sessions.get_mut(&session) {
            found.last = number;
            found.replies.insert(number, reply.clone());
        }
        reply
    }

    fn apply(&mut self, sequence: u64, session: u64, operation: &Operation) -> Reply {
        match operation {
            Operation::Commit { file, generation, size, extents } => {
                let inode = &self.files[*file];
                if *generation < inode.generation && !planted(Bug::SizeWithoutGeneration) {
                    return Err(Refusal::Stale);
                }
                if extents.iter().any(|(_, block)| self.granted.get(block) != Some(&session)) {
                    return Err(Refusal::NotGranted);
                }
                for (at, block) in extents {
                    self.granted.remove(block);
                    let old = self.files[*file].map.insert(*at, *block);
                    self.drain(sequence, old);
                }
                let inode = &mut self.files[*file];
                inode.size = inode.size.max(*size);
                inode.version += 1;
                Ok(Answer::Attributes(without_map(inode)))
            }
            Operation::Truncate { file, size } => {
                let cut = self.files[*file].map.split_off(size);
                cut.into_values().for_each(|block| self.drain(sequence, Some(block)));
                let inode = &mut self.files[*file];
                (inode.size, inode.generation, inode.version) = (*size, inode.generation + 1, inode.version + 1);
                Ok(Answer::Attributes(without_map(inode)))
            }
            Operation::Create { name, inode } => {
                let found = *self.names.entry(*name).or_insert(*inode);
                Ok(Answer::Named(found, 0))
            }
            Operation::Unlink { name } => Ok(Answer::Named(self.names.remove(name).unwrap_or(0), 0)),
            Operation::Rename { name, to } => {
                let Some(inode) = self.names.remove(name) else { return Ok(Answer::Named(0, 0)) };
                Ok(Answer::Named(inode, self.names.insert(*to, inode).unwrap_or(0)))
            }
        }
    }

    fn drain(&mut self, sequence: u64, block: Option<u32>) {
        let Some(block) = block else { return };
        if planted(Bug::ExtentUsedAgain) {
            self.free.insert(block);
        } else {
            self.draining.insert(block, sequence);
        }
    }

    /// Blocks that are in no map of a session any more can be used again. Returns how many became free.
    pub fn drained(&mut self, drained: u64) -> usize {
        let ready: Vec<u32> =
            self.draining.iter().filter(|(_, since)| **since <= drained).map(|(block, _)| *block).collect();
        for block in &ready {
            self.draining.remove(block);
            self.free.insert(*block);
        }
        ready.len()
    }

    /// Grants blocks to a session.
    pub fn grant(&mut self, session: u64, count: usize) -> Reply {
        let granted: Vec<u32> = self.free.iter().take(count).copied().collect();
        if granted.is_empty() {
            return Err(Refusal::Full);
        }
        for block in &granted {
            self.free.remove(block);
            self.granted.insert(*block, session);
        }
        Ok(Answer::Space(granted))
    }

    /// A session's host writes nothing any more: what was granted to it is free.
    pub fn release(&mut self, session: u64) -> usize {
        let blocks: Vec<u32> = self.granted.iter().filter(|(_, of)| **of == session).map(|(block, _)| *block).collect();
        for block in &blocks {
            self.granted.remove(block);
            self.free.insert(*block);
        }
        blocks.len()
    }

    /// A session begins.
    pub fn begin(&mut self) -> u64 {
        let number = self.next_session;
        self.next_session += 1;
        self.sessions.insert(number, Session::default());
        number
    }
}

/// The attributes alone.
pub fn without_map(inode: &Inode) -> Inode {
    Inode { size: inode.size, generation: inode.generation, version: inode.version, map: BTreeMap::new() }
}
