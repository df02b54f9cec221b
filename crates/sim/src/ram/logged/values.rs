//! The possible contents of each block, with the client's memory and without it.
//!
//! Owns: the history of each block: its written, acknowledged and flushed versions, and those that were lost with a
//! client. Promises: acknowledged data must be found until their client is lost, and flushed data for ever. After a
//! loss a block has one of its versions from the flushed one on. Once a client has attached, each block has exactly the
//! version that this client found.

use std::collections::BTreeMap;
use std::ops::Range;

/// A version of a block.
#[derive(Debug, Clone)]
struct BlockVersion {
    number: u64,
    /// The client that wrote it.
    client: usize,
    /// The time at which it was acknowledged.
    acked: Option<u64>,
    /// The time at which it was first acknowledged or read since the last loss of a client: later reads may not return
    /// older versions.
    settled: Option<u64>,
    /// The time at which it turned out to be lost.
    dropped: Option<u64>,
}

#[derive(Debug)]
struct VersionedBlock {
    /// All versions, in the order in which they were submitted; the first is zeroes.
    versions: Vec<BlockVersion>,
    /// The index of the flushed version; this version, or a newer one, survives everything.
    floor: usize,
}

/// The versions of every block.
#[derive(Debug)]
pub struct VersionedBlocks {
    blocks: Vec<VersionedBlock>,
    under_way: BTreeMap<u64, (Range<u32>, Vec<usize>)>,
    tick: u64,
    /// The client that attached last, if it was not the one that made the device.
    owner: Option<usize>,
}

impl VersionedBlocks {
    /// A device of zeroes.
    pub fn new(count: u32) -> VersionedBlocks {
        let zero = BlockVersion { number: 0, client: 0, acked: Some(0), settled: Some(0), dropped: None };
        let blocks = (0..count).map(|_| VersionedBlock { versions: vec![zero.clone()], floor: 0 }).collect();
        VersionedBlocks { blocks, under_way: BTreeMap::new(), tick: 1, owner: None }
    }

    /// Advances the time by one; returns the new time.
    pub fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// Notes that a change begins; returns its position.
    pub fn begin(&mut self, client: usize, blocks: Range<u32>, number: u64) -> u64 {
        let place = self.tick();
        // A client that was replaced may acknowledge changes, but nobody may find them.
        let dropped = self.owner.is_some_and(|owner| owner != client).then_some(place);
        let mut versions = Vec::new();
        for block in blocks.clone() {
            let block = &mut self.blocks[block as usize];
            versions.push(block.versions.len());
            block.versions.push(BlockVersion { number, client, acked: None, settled: None, dropped });
        }
        self.under_way.insert(place, (blocks, versions));
        place
    }

    /// Notes that a change is acknowledged, and flushed if it was forced.
    pub fn acknowledge(&mut self, place: u64, is_forced: bool) -> Result<(), String> {
        let now = self.tick();
        let Some((blocks, versions)) = self.under_way.remove(&place) else { return Ok(()) };
        for (block, at) in blocks.zip(versions) {
            let entry = &mut self.blocks[block as usize];
            let version = &mut entry.versions[at];
            version.acked = Some(now);
            if version.dropped.is_none() {
                version.settled.get_or_insert(now);
            }
            if is_forced {
                flushed(block, entry, at)?;
            }
        }
        Ok(())
    }

    /// Notes that a client's flush which began at `began` is acknowledged: its changes that were acknowledged before
    /// `began` survive everything. What it found when it attached does so already.
    pub fn flush(&mut self, client: usize, began: u64) -> Result<(), String> {
        for block in 0..self.blocks.len() {
            let entry = &mut self.blocks[block];
            let is_before =
                |version: &BlockVersion| version.client == client && version.acked.is_some_and(|acked| acked < began);
            if let Some(at) = entry.versions.iter().rposition(is_before) {
                flushed(block as u32, entry, at)?;
            }
        }
        Ok(())
    }

    /// Notes that a client's memory is lost.
    pub fn crash(&mut self) {
        for block in &mut self.blocks {
            let floor = block.floor;
            for version in block.versions.iter_mut().skip(floor + 1).filter(|version| version.dropped.is_none()) {
                version.settled = None;
            }
        }
    }

    /// Notes the numbers that an attaching client found in the blocks; from now on the blocks have these numbers. If
    /// `may_lack`, some may be unreadable.
    pub fn attached(&mut self, client: usize, found: &[Option<u64>], may_lack: bool) -> Result<(), String> {
        let now = self.tick();
        self.owner = Some(client);
        for (block, found) in found.iter().enumerate().filter(|(_, found)| found.is_some() || !may_lack) {
            let entry = &mut self.blocks[block];
            let is_it = |version: &BlockVersion| version.dropped.is_none() && Some(version.number) == *found;
            let Some(at) = entry.versions.iter().rposition(is_it).filter(|at| *at >= entry.floor) else {
                return Err(format!("block {block}: {found:?} was found after a loss where {} belongs", words(entry)));
            };
            for (other, version) in entry.versions.iter_mut().enumerate() {
                if other > at {
                    version.dropped.get_or_insert(now);
                }
            }
            entry.versions[at].settled.get_or_insert(now);
            entry.floor = at;
        }
        Ok(())
    }

    /// Checks the result of a read that began at `began`.
    pub fn read(&mut self, block: u32, number: u64, began: u64) -> Result<(), String> {
        let now = self.tick();
        let entry = &mut self.blocks[block as usize];
        let is_later = |version: &BlockVersion| {
            version.dropped.is_none() && version.settled.is_some_and(|settled| settled < began)
        };
        let least = entry.versions.iter().rposition(is_later).unwrap_or(0);
        let may_be =
            |version: &BlockVersion| version.number == number && version.dropped.is_none_or(|dropped| dropped > began);
        // If several versions have this number, the oldest one is assumed.
        let Some(at) = entry.versions[least..].iter().position(may_be).map(|at| at + least) else {
            return Err(format!("block {block} was read as {number} where {} belongs", words(entry)));
        };
        if entry.versions[at].dropped.is_none() {
            entry.versions[at].settled.get_or_insert(now);
        }
        Ok(())
    }

    /// Whether a recovery may find this number.
    pub fn may_be_found(&self, block: u32, number: Option<u64>) -> bool {
        let entry = &self.blocks[block as usize];
        let mut versions = entry.versions[entry.floor..].iter().filter(|version| version.dropped.is_none());
        versions.any(|version| Some(version.number) == number)
    }

    /// Whether the client that has the device may hold this number.
    pub fn may_be_held(&self, block: u32, number: Option<u64>) -> bool {
        let entry = &self.blocks[block as usize];
        let is_settled = |version: &BlockVersion| version.dropped.is_none() && version.settled.is_some();
        let least = entry.versions.iter().rposition(is_settled).unwrap_or(0);
        let mut versions = entry.versions[least..].iter().filter(|version| version.dropped.is_none());
        versions.any(|version| Some(version.number) == number)
    }

    /// Describes the versions that a block may have, for an error.
    pub fn expected(&self, block: u32) -> String {
        words(&self.blocks[block as usize])
    }

    /// Whether the flushed version of some block is a zeroing or a trim.
    pub fn has_flushed_zeroes(&self) -> bool {
        self.blocks.iter().any(|block| block.floor > 0 && block.versions[block.floor].number == 0)
    }

    /// Whether some change was acknowledged and not flushed.
    pub fn has_unflushed(&self) -> bool {
        self.blocks.iter().any(|block| {
            block.versions[block.floor + 1..].iter().any(|version| version.acked.is_some() && version.dropped.is_none())
        })
    }
}

fn flushed(block: u32, entry: &mut VersionedBlock, at: usize) -> Result<(), String> {
    if entry.versions[at].dropped.is_some() {
        return Err(format!("block {block}: version {} was flushed and is lost", entry.versions[at].number));
    }
    entry.floor = entry.floor.max(at);
    Ok(())
}

fn words(entry: &VersionedBlock) -> String {
    let versions = entry.versions.iter().enumerate().filter(|(_, version)| version.dropped.is_none());
    let rest: Vec<String> = versions
        .skip_while(|(at, _)| *at < entry.floor)
        .map(|(at, version)| match (at == entry.floor, version.acked) {
            (true, _) => format!("{} flushed", version.number),
            (_, Some(_)) => format!("{} acknowledged", version.number),
            _ => version.number.to_string(),
        })
        .collect();
    rest.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An acknowledged version counts until the client is lost, a flushed version for ever.
    #[test]
    fn loss_keeps_only_flushed_versions() {
        let mut values = VersionedBlocks::new(1);
        let first = values.begin(0, 0..1, 11);
        assert!(values.may_be_held(0, Some(0)) && values.may_be_held(0, Some(11)));
        values.acknowledge(first, false).unwrap();
        assert!(!values.may_be_held(0, Some(0)) && values.may_be_found(0, Some(0)));
        let began = values.tick();
        assert!(values.read(0, 0, began).is_err());
        values.read(0, 11, began).unwrap();
        values.flush(0, began).unwrap();
        assert!(!values.may_be_found(0, Some(0)) && values.may_be_found(0, Some(11)));
        let second = values.begin(0, 0..1, 12);
        values.acknowledge(second, false).unwrap();
        let third = values.begin(0, 0..1, 13);
        values.crash();
        assert!([11, 12, 13].iter().all(|number| values.may_be_found(0, Some(*number))));
        let began = values.tick();
        values.attached(1, &[Some(12)], false).unwrap();
        assert!(values.read(0, 13, began).is_ok(), "the old client's read began before");
        let began = values.tick();
        assert!(values.read(0, 13, began).is_err() && values.read(0, 11, began).is_err());
        values.read(0, 12, began).unwrap();
        values.acknowledge(third, false).unwrap();
        assert!(!values.may_be_found(0, Some(13)) && values.flush(0, began).is_ok());
        let later = values.tick();
        assert!(values.flush(0, later).is_err(), "a flush that covers what was lost");
        let late = values.begin(0, 0..1, 14);
        values.acknowledge(late, false).unwrap();
        assert!(!values.may_be_found(0, Some(14)) && values.may_be_held(0, Some(12)));
        assert!(values.attached(1, &[None], true).is_ok());
        assert!(values.attached(1, &[Some(11)], false).is_err());
    }
}
