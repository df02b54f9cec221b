//! The metadata of a volume: files, names, space and sessions, as a server has them in memory.
//!
//! Owns: the effects of operations. It follows `nectary_volume::metadata`, but each extent is one block, and sizes are
//! in blocks.

use std::collections::{BTreeMap, BTreeSet};

use crate::volume::bugs::{VolumeModelBug, planted};

/// A file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InodeModel {
    /// The size. *Units*: blocks.
    pub size: u64,
    /// The number of truncates so far.
    pub generation: u64,
    /// The number of commits and truncates of this file so far.
    pub version: u64,
    /// For each block of the file, its block on the disk.
    pub map: BTreeMap<u64, u32>,
}

/// A change that a session requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelOperation {
    /// Maps written blocks into a file, and extends the file.
    Commit { file: usize, generation: u64, size: u64, extents: Vec<(u64, u32)> },
    /// Truncates or extends a file.
    Truncate { file: usize, size: u64 },
    /// Creates a name.
    Create { name: u64, inode: u64 },
    /// Removes a name.
    Unlink { name: u64 },
    /// Moves an inode from a name to another name.
    Rename { name: u64, to: u64 },
}

/// The answer to an operation or a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelAnswer {
    /// A file as it is now, without its map.
    Attributes(InodeModel),
    /// A file with its map, and the last append that the map includes.
    Map(InodeModel, u64),
    /// The inode of a name, and after a rename the former inode of the other name.
    Named(u64, u64),
    /// Blocks that are granted.
    Space(Vec<u32>),
    /// It is done.
    Done,
}

/// The reason for which a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelRefusal {
    /// The session is over.
    Ended,
    /// The file was truncated after the commit's generation.
    Stale,
    /// There is no free block.
    Full,
    /// Operations with lower numbers are missing.
    OutOfOrder,
    /// The client has acknowledged the reply to this operation, and the server has forgotten it.
    Forgotten,
    /// The commit contains a block that is not granted to the session.
    NotGranted,
    /// Too many requests wait for the token.
    Conflict,
    /// Another owner holds the file lock.
    Locked,
}

pub type Reply = Result<ModelAnswer, ModelRefusal>;

/// A session.
#[derive(Debug, Clone, Default)]
pub struct SessionModel {
    pub is_ended: bool,
    pub last: u64,
    pub replies: BTreeMap<u64, Reply>,
}

/// The metadata of a volume.
#[derive(Debug, Clone, Default)]
pub struct MetadataModel {
    pub files: Vec<InodeModel>,
    pub names: BTreeMap<u64, u64>,
    pub free: BTreeSet<u32>,
    pub granted: BTreeMap<u32, u64>,
    /// Blocks that were removed from a map, each with the append that removed it.
    pub draining: BTreeMap<u32, u64>,
    pub sessions: BTreeMap<u64, SessionModel>,
    pub next_session: u64,
}

impl MetadataModel {
    /// Makes a new volume.
    pub fn new(files: usize, blocks: u32) -> MetadataModel {
        MetadataModel {
            files: vec![InodeModel::default(); files],
            free: (0..blocks).collect(),
            next_session: 1,
            ..MetadataModel::default()
        }
    }

    pub fn is_active(&self, session: u64) -> bool {
        self.sessions.get(&session).is_some_and(|session| !session.is_ended)
    }

    /// Does an operation, or repeats its reply if it was done before. Append `sequence` counts as the one that frees
    /// its blocks.
    pub fn operate(&mut self, sequence: u64, session: u64, number: u64, operation: &ModelOperation) -> Reply {
        let Some(found) = self.sessions.get(&session) else { return Err(ModelRefusal::Ended) };
        if found.is_ended && !planted(VolumeModelBug::DeadCommit) {
            return Err(ModelRefusal::Ended);
        }
        if number <= found.last {
            return found.replies.get(&number).cloned().unwrap_or(Err(ModelRefusal::Forgotten));
        }
        if number > found.last + 1 {
            return Err(ModelRefusal::OutOfOrder);
        }
        let reply = self.apply(sequence, session, operation);
        if let Some(found) = self.sessions.get_mut(&session) {
            found.last = number;
            found.replies.insert(number, reply.clone());
        }
        reply
    }

    fn apply(&mut self, sequence: u64, session: u64, operation: &ModelOperation) -> Reply {
        match operation {
            ModelOperation::Commit { file, generation, size, extents } => {
                let inode = &self.files[*file];
                if *generation < inode.generation && !planted(VolumeModelBug::SizeWithoutGeneration) {
                    return Err(ModelRefusal::Stale);
                }
                if extents.iter().any(|(_, block)| self.granted.get(block) != Some(&session)) {
                    return Err(ModelRefusal::NotGranted);
                }
                for (at, block) in extents {
                    self.granted.remove(block);
                    let old = self.files[*file].map.insert(*at, *block);
                    self.drain(sequence, old);
                }
                let inode = &mut self.files[*file];
                inode.size = inode.size.max(*size);
                inode.version += 1;
                Ok(ModelAnswer::Attributes(without_map(inode)))
            }
            ModelOperation::Truncate { file, size } => {
                let cut = self.files[*file].map.split_off(size);
                cut.into_values().for_each(|block| self.drain(sequence, Some(block)));
                let inode = &mut self.files[*file];
                (inode.size, inode.generation, inode.version) = (*size, inode.generation + 1, inode.version + 1);
                Ok(ModelAnswer::Attributes(without_map(inode)))
            }
            ModelOperation::Create { name, inode } => {
                let found = *self.names.entry(*name).or_insert(*inode);
                Ok(ModelAnswer::Named(found, 0))
            }
            ModelOperation::Unlink { name } => Ok(ModelAnswer::Named(self.names.remove(name).unwrap_or(0), 0)),
            ModelOperation::Rename { name, to } => {
                let Some(inode) = self.names.remove(name) else { return Ok(ModelAnswer::Named(0, 0)) };
                Ok(ModelAnswer::Named(inode, self.names.insert(*to, inode).unwrap_or(0)))
            }
        }
    }

    fn drain(&mut self, sequence: u64, block: Option<u32>) {
        let Some(block) = block else { return };
        if planted(VolumeModelBug::ExtentUsedAgain) {
            self.free.insert(block);
        } else {
            self.draining.insert(block, sequence);
        }
    }

    /// Frees the blocks that were removed from a map by append `drained` or an earlier one: no session uses a map with
    /// these blocks any more. Returns the number of freed blocks.
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
            return Err(ModelRefusal::Full);
        }
        for block in &granted {
            self.free.remove(block);
            self.granted.insert(*block, session);
        }
        Ok(ModelAnswer::Space(granted))
    }

    /// Frees the blocks that were granted to a session whose host writes nothing any more; returns their number.
    pub fn release(&mut self, session: u64) -> usize {
        let blocks: Vec<u32> = self.granted.iter().filter(|(_, of)| **of == session).map(|(block, _)| *block).collect();
        for block in &blocks {
            self.granted.remove(block);
            self.free.insert(*block);
        }
        blocks.len()
    }

    /// Begins a session; returns its number.
    pub fn begin(&mut self) -> u64 {
        let number = self.next_session;
        self.next_session += 1;
        self.sessions.insert(number, SessionModel::default());
        number
    }
}

/// Returns the attributes of a file without its map.
pub fn without_map(inode: &InodeModel) -> InodeModel {
    InodeModel { size: inode.size, generation: inode.generation, version: inode.version, map: BTreeMap::new() }
}
