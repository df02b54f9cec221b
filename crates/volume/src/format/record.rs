//! Records about the volume itself: projects, epochs, runs, and the volume's variable properties.

use super::cursor::{BoundedReader, BoundedWriter};
use super::error::FormatError;
use super::{BLOCKS_MAX, SPACE_START};

/// The longest index of a run. *Units*: blocks.
const INDEX_BLOCKS_MAX: u64 = 1024;

/// Use and limits of a project; a limit of 0 means none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProjectRecord {
    /// Blocks in use. *Units*: blocks.
    pub blocks: u64,
    /// The number of inodes in use.
    pub inodes: u64,
    /// The limit of blocks. *Units*: blocks.
    pub blocks_max: u64,
    /// The limit of inodes.
    pub inodes_max: u64,
}

impl ProjectRecord {
    /// Encodes the value of the table.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = BoundedWriter::default();
        writer.u64(self.blocks).u64(self.inodes).u64(self.blocks_max).u64(self.inodes_max);
        writer.bytes
    }

    /// Decodes a value of the table.
    pub fn decode(bytes: &[u8]) -> Result<ProjectRecord, FormatError> {
        let mut reader = BoundedReader::new("project", bytes);
        let (blocks, inodes) = (reader.u64()?, reader.u64()?);
        let (blocks_max, inodes_max) = (reader.u64()?, reader.u64()?);
        reader.end()?;
        Ok(ProjectRecord { blocks, inodes, blocks_max, inodes_max })
    }
}

/// The state of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpochState {
    /// The leader of the epoch leads.
    Leads,
    /// A later epoch sealed it; late writes of its leader may still reach the disk.
    Sealed,
    /// The leader of the epoch cannot write any more.
    ConfirmedGone,
}

/// The record of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochRecord {
    /// The incarnation of its leader.
    pub incarnation: [u8; 16],
    /// The state of the epoch.
    pub state: EpochState,
    /// The number of segments that are quarantined under this epoch.
    pub segments: u64,
}

impl EpochRecord {
    /// Encodes the value of the table.
    pub fn encode(&self) -> Vec<u8> {
        let state = match self.state {
            EpochState::Leads => 1,
            EpochState::Sealed => 2,
            EpochState::ConfirmedGone => 3,
        };
        let mut writer = BoundedWriter::default();
        writer.put(&self.incarnation).u8(state).zeroes(7).u64(self.segments);
        writer.bytes
    }

    /// Decodes a value of the table.
    pub fn decode(bytes: &[u8]) -> Result<EpochRecord, FormatError> {
        let mut reader = BoundedReader::new("epoch", bytes);
        let incarnation = reader.array()?;
        let state = match reader.u8()? {
            1 => EpochState::Leads,
            2 => EpochState::Sealed,
            3 => EpochState::ConfirmedGone,
            other => return Err(reader.unknown("state", other.into())),
        };
        reader.skip(7)?;
        let segments = reader.u64()?;
        reader.end()?;
        Ok(EpochRecord { incarnation, state, segments })
    }
}

/// A run in a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunRecord {
    /// The first block of the run's index.
    pub index: u64,
    /// The length of the index. *Units*: blocks.
    pub index_blocks: u32,
    /// The age of the run; 0 is the newest.
    pub level: u32,
    /// The effect of all appends before this one is in this run or older runs.
    pub replay_sequence: u64,
    /// The number of records in the run.
    pub records: u64,
    /// The length of all chunks. *Units*: blocks.
    pub blocks: u64,
}

impl RunRecord {
    /// Encodes the value of the table.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = BoundedWriter::default();
        writer.u64(self.index).u32(self.index_blocks).u32(self.level);
        writer.u64(self.replay_sequence).u64(self.records).u64(self.blocks);
        writer.bytes
    }

    /// Decodes a value of the table.
    pub fn decode(bytes: &[u8]) -> Result<RunRecord, FormatError> {
        let mut reader = BoundedReader::new("run", bytes);
        let (index, index_blocks, level) = (reader.u64()?, reader.u32()?, reader.u32()?);
        let (replay_sequence, records, blocks) = (reader.u64()?, reader.u64()?, reader.u64()?);
        reader.end()?;
        reader.within("index", index, SPACE_START, BLOCKS_MAX)?;
        reader.within("index_blocks", index_blocks.into(), 1, INDEX_BLOCKS_MAX)?;
        reader.within("blocks", blocks, 1, BLOCKS_MAX)?;
        Ok(RunRecord { index, index_blocks, level, replay_sequence, records, blocks })
    }
}

/// The variable properties of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VolumeRecord {
    /// The size of the volume. *Units*: blocks.
    pub blocks: u64,
    /// The next inode number; 1 is the root, 2 to 15 are reserved.
    pub next_inode: u64,
    /// The number of the next session.
    pub next_session: u64,
    /// The number of the next run.
    pub next_run: u64,
    /// Features in use in addition to those of the label: incompat, ro_compat, compat.
    pub features: [u64; 3],
    /// Blocks in use. *Units*: blocks.
    pub used_blocks: u64,
    /// The number of blocks that grants in place may have to copy. *Units*: blocks.
    pub reserved_blocks: u64,
    /// The number of the set of servers; 0 if only the lease sectors decide who leads.
    pub membership: u32,
}

/// Why an inode has no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrphanState {
    /// It lost its last name while a session had it open, or may have had.
    Open = 1,
    /// It lost its last name and no session had it open: it is being freed.
    BeingFreed,
    /// It was made without a name, and is open; it can still get one.
    Nameless,
}

/// The record of an inode without a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrphanRecord {
    /// This append of the journal, or an earlier one, stores that the inode has no name.
    pub since: u64,
    /// Why it has none.
    pub state: OrphanState,
}

impl OrphanRecord {
    /// Encodes the value of the table.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = BoundedWriter::default();
        writer.u64(self.since).u32(self.state as u32).u32(0);
        writer.bytes
    }

    /// Decodes a value of the table.
    pub fn decode(bytes: &[u8]) -> Result<OrphanRecord, FormatError> {
        let mut reader = BoundedReader::new("orphan", bytes);
        let (since, state) = (reader.u64()?, reader.u32()?);
        reader.skip(4)?;
        reader.end()?;
        let state = match state {
            1 => OrphanState::Open,
            2 => OrphanState::BeingFreed,
            3 => OrphanState::Nameless,
            other => return Err(reader.unknown("flags", other.into())),
        };
        Ok(OrphanRecord { since, state })
    }
}

impl VolumeRecord {
    /// What this version says to features in use that it does not know; `None` if it knows all that it must.
    pub fn refusal(&self) -> Option<String> {
        let [incompat, ro_compat, _] = self.features;
        let bits = incompat | ro_compat;
        (bits != 0).then(|| format!("the volume uses features {bits:#x} that this version does not know"))
    }

    /// Encodes the value of the table.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = BoundedWriter::default();
        writer.u64(self.blocks).u64(self.next_inode).u64(self.next_session).u64(self.next_run);
        for features in self.features {
            writer.u64(features);
        }
        writer.u64(self.used_blocks).u64(self.reserved_blocks).u32(self.membership).u32(0);
        writer.bytes
    }

    /// Decodes a value of the table.
    pub fn decode(bytes: &[u8]) -> Result<VolumeRecord, FormatError> {
        let mut reader = BoundedReader::new("volume", bytes);
        let (blocks, next_inode) = (reader.u64()?, reader.u64()?);
        let (next_session, next_run) = (reader.u64()?, reader.u64()?);
        let features = [reader.u64()?, reader.u64()?, reader.u64()?];
        let (used_blocks, reserved_blocks, membership) = (reader.u64()?, reader.u64()?, reader.u32()?);
        reader.skip(4)?;
        reader.end()?;
        reader.within("blocks", blocks, SPACE_START, BLOCKS_MAX)?;
        reader.within("next_inode", next_inode, 16, u64::MAX)?;
        reader.within("next_session", next_session, 1, u64::MAX)?;
        reader.within("used_blocks", used_blocks, 0, blocks)?;
        reader.within("reserved_blocks", reserved_blocks, 0, blocks)?;
        Ok(VolumeRecord {
            blocks,
            next_inode,
            next_session,
            next_run,
            features,
            used_blocks,
            reserved_blocks,
            membership,
        })
    }
}
