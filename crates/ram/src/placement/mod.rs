//! The placement of blocks in a network RAM disk: the donor, slot and parity group of each block, and which groups are
//! free.
//!
//! Owns: the table of blocks, parity groups, the caches of blocks that are not sent yet, cleaning. Promises: the
//! invariants below. Leaves to others: data, sending, acknowledgements, failures of donors, and storing the records of
//! [`PlacementStep::Forget`]. It has no I/O, no clock and no randomness: operations go in, [`PlacementStep`]s come out. So the simulator
//! and a live driver run the same code.
//!
//! A **donor** here is a column of the layout. Donors with the same label (host, rack) must share a column. A **group**
//! is one row: group `g` uses slot `g` of every donor. `S` donors have its members, and the remaining donor has its
//! parity; the donor of the parity rotates from group to group. The parity of an open group goes to two spare slots
//! alternately, and to the row's slot only when the group is sealed. So a parity that is still needed is never
//! overwritten.
//!
//! ```text
//!                 donor 0    donor 1    donor 2    donor 3    donor 4      S = 4
//! slot 0          parity 0   member     member     member     member      group 0
//! slot 1          member     parity 1   member     member     member      group 1
//! ...
//! slot rows+2k    spare A of cache k, on each donor: parity of its open group
//! slot rows+2k+1  spare B
//! ```
//!
//! # The life of a slot
//! | state | meaning | next |
//! |---|---|---|
//! | free | its group is free | live, when a block is sent to it |
//! | live | the newest copy that was sent | superseded by a newer write, dead by a trim |
//! | superseded | a newer copy exists, but only the client's memory protects it | dead, when stored parity covers the newer copy |
//! | dead | not needed; still part of its group's parity | free, when the whole group is dead and sealed |
//!
//! # Invariants
//! 1. Members of a group and its parity are on different donors.
//! 2. The parity of a sealed group covers all its slots, including dead ones; no slot is reused before its group is
//!    free.
//! 3. The client's memory holds every block that is not sent yet, and the client can compute the parity of every open
//!    group.
//! 4. Each mapped block has one live slot, or is in the client's memory. An old copy becomes dead only when stored
//!    parity covers its successor, so after a flush no data depends on the client's memory.
//! 5. A block that is written again while it waits in a cache stays in that cache. Only blocks that are not sent yet
//!    move between caches.
//!
//! # What a driver does
//! It keeps the data of written blocks until [`Placement::locate`] says that they are in a slot, and runs the steps:
//! - Steps that name the same group run in order. Steps of different groups may run at the same time.
//! - A step that reuses a group waits until every step before the group's [`PlacementStep::Free`] is acknowledged. The group
//!   that has been free for the longest time is reused first, so this wait is rare.
//! - Parity for a spare slot waits until the group that used the spare before is sealed and the parity of that group is
//!   acknowledged.
//! - A [`PlacementStep::Send`] after a [`PlacementStep::Fetch`] of the same block sends the fetched data, or data that was written since.
//! - A flush returns when every step up to its end is acknowledged.
//!
//! ```
//! use nectary_ram::placement::{PlacementSettings, NewestLocation, RedundancyPolicy, PlacementStep};
//!
//! let mut disk = PlacementSettings::new(RedundancyPolicy::Adaptive, 4096, 4).open()?;
//! let mut steps = Vec::new();
//! disk.write(0..2, &mut steps)?;
//! assert!(steps.is_empty() && disk.locate(1) == NewestLocation::Memory);
//! disk.flush(&mut steps);
//! let is_send = |step: &&PlacementStep| matches!(step, PlacementStep::Send { .. });
//! assert_eq!(steps.iter().filter(is_send).count(), 2);
//! assert!(matches!(steps[2], PlacementStep::StoreParity { .. }));
//! # Ok::<(), nectary_ram::placement::Error>(())
//! ```
//!
//! | file | what it owns |
//! |---|---|
//! | `in_place.rs` | `none`, `mirror` and `parity`: the slot of a block never changes |
//! | `log.rs` | `parity-log`, `parity-cache`, `adaptive`: writes, trims, flushes, sending, covering |
//! | `cleaning.rs` | emptying groups with dead slots |
//! | `rows.rs` | the table of groups: free, open, sealed, and the emptiest sealed one |
//! | `cache.rs` | blocks that are not sent yet, and the open group that they go to |
//! | `streams.rs` | the cache for each write, and which stream is stale |
//! | `planted.rs` | planted bugs for tests |

mod cache;
mod cleaning;
mod in_place;
mod log;
pub mod planted;
mod rows;
mod streams;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

pub use in_place::InPlace;
pub use log::LogPlacement;
pub use streams::StaleRule;

/// The maximum number of members of a group.
pub const MEMBERS_MAX: u8 = 16;
/// The maximum number of stream caches; each write searches all of them.
pub const STREAMS_MAX: usize = 64;
/// The maximum number of blocks of a column of a cache.
pub const COLUMN_BLOCKS_MAX: u32 = 64;
/// The maximum number of blocks of a device, so that a slot's number fits 32 bits.
pub const BLOCKS_MAX: u32 = 1 << 30;

/// The reason why a placement cannot be made, or refuses an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The value of a setting is out of its range.
    #[error("{setting} is {found}: give {least} to {most}")]
    Setting {
        /// The name of the setting.
        setting: &'static str,
        /// The given value.
        found: u64,
        /// The least allowed value.
        least: u64,
        /// The most allowed value.
        most: u64,
    },
    /// There are too few groups in addition to those that the blocks need, so cleaning could get stuck.
    #[error(
        "{rows} groups of {members} hold {blocks} blocks, but {least} are needed: give more overflow or fewer streams"
    )]
    Overflow {
        /// The number of groups that the settings give.
        rows: u32,
        /// The members of a group.
        members: u8,
        /// The blocks of the device.
        blocks: u32,
        /// The number of groups that are needed.
        least: u32,
    },
    /// The operation names blocks that the device does not have.
    #[error("blocks {first} to {end} of a device of {blocks}: it ends before")]
    Range {
        /// The first block.
        first: u32,
        /// The block after the last.
        end: u32,
        /// The blocks of the device.
        blocks: u32,
    },
}

/// The kind of redundancy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RedundancyPolicy {
    /// No redundancy.
    None,
    /// Every block is on two donors.
    Mirror,
    /// Parity is changed in place. Donors cannot compute XOR, so the client reads the old data and parity, and writes
    /// both.
    Parity,
    /// Blocks are appended to the open group in the order of writes; its parity is sent when it is full.
    ParityLog,
    /// The same, with a cache of several groups before it.
    ParityCache,
    /// Each stream has a cache, so that neighbouring blocks share a group and become dead together.
    Adaptive,
}

impl RedundancyPolicy {
    /// All policies, in the order in which tables have them.
    pub const ALL: [RedundancyPolicy; 6] = [
        RedundancyPolicy::None,
        RedundancyPolicy::Mirror,
        RedundancyPolicy::Parity,
        RedundancyPolicy::ParityLog,
        RedundancyPolicy::ParityCache,
        RedundancyPolicy::Adaptive,
    ];

    /// Returns the name of the policy on command lines.
    pub fn name(self) -> &'static str {
        match self {
            RedundancyPolicy::None => "none",
            RedundancyPolicy::Mirror => "mirror",
            RedundancyPolicy::Parity => "parity",
            RedundancyPolicy::ParityLog => "parity-log",
            RedundancyPolicy::ParityCache => "parity-cache",
            RedundancyPolicy::Adaptive => "adaptive",
        }
    }

    /// Whether the slot of a block never changes.
    pub fn is_in_place(self) -> bool {
        matches!(self, RedundancyPolicy::None | RedundancyPolicy::Mirror | RedundancyPolicy::Parity)
    }

    /// Returns the theoretical number of block transfers for each written block, without cleaning and flushes.
    pub fn transfers(self, members: u8) -> f64 {
        match self {
            RedundancyPolicy::None => 1.0,
            RedundancyPolicy::Mirror => 2.0,
            RedundancyPolicy::Parity => 4.0,
            _ => 1.0 + 1.0 / f64::from(members),
        }
    }
}

impl fmt::Display for RedundancyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RedundancyPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<RedundancyPolicy, String> {
        let known = || RedundancyPolicy::ALL.map(RedundancyPolicy::name).join(", ");
        let found = RedundancyPolicy::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| format!("no policy is called \"{text}\"; there are: {}", known()))
    }
}

/// The settings that a placement is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementSettings {
    /// The policy.
    pub policy: RedundancyPolicy,
    /// The number of blocks of the device.
    pub blocks: u32,
    /// The number of members of a group, `S`: 2 to [`MEMBERS_MAX`]. The parity is on one more donor.
    pub members: u8,
    /// The number of slots beyond the blocks of the device, for dead copies. *Units*: percent.
    pub overflow_percent: u32,
    /// The number of stream caches, `P` (`adaptive`): 1 to [`STREAMS_MAX`].
    pub streams: usize,
    /// The length of a column of a cache, 1 to [`COLUMN_BLOCKS_MAX`] (`parity-cache`, `adaptive`). A cache is sent when
    /// it has `S` columns of blocks; the cache of survivors is sent when it has `S` blocks. *Units*: blocks.
    pub column_blocks: u32,
    /// The rule that decides which stream loses its cache to a new one (`adaptive`).
    pub stale: StaleRule,
}

impl PlacementSettings {
    /// Makes a layout with 16 streams, columns of 8 blocks and 10 % overflow.
    pub fn new(policy: RedundancyPolicy, blocks: u32, members: u8) -> PlacementSettings {
        let stale = StaleRule::default();
        PlacementSettings { policy, blocks, members, overflow_percent: 10, streams: 16, column_blocks: 8, stale }
    }

    /// Returns the number of donors that hold members and parity: one more than the members if there is parity.
    pub fn donors(&self) -> u8 {
        match self.policy {
            RedundancyPolicy::None | RedundancyPolicy::Mirror => self.members,
            _ => self.members + 1,
        }
    }

    /// Returns the number of groups.
    pub fn rows(&self) -> u32 {
        let overflow = if self.policy.is_in_place() { 0 } else { u64::from(self.overflow_percent) };
        let slots = u64::from(self.blocks) * (100 + overflow);
        slots.div_ceil(100 * u64::from(self.members)) as u32
    }

    /// Makes the placement.
    ///
    /// *Errors*: a setting is out of its range, or the overflow is too small for the caches.
    pub fn open(self) -> Result<Box<dyn Placement>, Error> {
        self.check()?;
        match self.policy.is_in_place() {
            true => Ok(Box::new(InPlace::new(self))),
            false => Ok(Box::new(LogPlacement::new(self)?)),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let limits = [
            ("size in blocks", u64::from(self.blocks), 1, u64::from(BLOCKS_MAX)),
            ("donors", u64::from(self.members), 2, u64::from(MEMBERS_MAX)),
            ("overflow in percent", u64::from(self.overflow_percent), 0, 200),
            ("stream caches", self.streams as u64, 1, STREAMS_MAX as u64),
            ("blocks of a column", u64::from(self.column_blocks), 1, u64::from(COLUMN_BLOCKS_MAX)),
        ];
        match limits.into_iter().find(|&(_, found, least, most)| !(least..=most).contains(&found)) {
            Some((setting, found, least, most)) => Err(Error::Setting { setting, found, least, most }),
            None => Ok(()),
        }
    }

    fn contains(&self, blocks: &Range<u32>) -> Result<(), Error> {
        match blocks.start <= blocks.end && blocks.end <= self.blocks {
            true => Ok(()),
            false => Err(Error::Range { first: blocks.start, end: blocks.end, blocks: self.blocks }),
        }
    }
}

/// A slot of a donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DonorSlot {
    /// The donor, counted from 0.
    pub donor: u8,
    /// The slot of that donor, counted from 0.
    pub slot: u32,
}

/// The reason why a block is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendCause {
    /// The block was written.
    Write,
    /// It is the second copy of a mirror.
    Copy,
    /// The block's group is being emptied.
    Cleaning,
}

/// The reason why parity is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParityCause {
    /// The group is full and accepts no further member.
    Sealed,
    /// A flush stores the parity; the group stays open.
    Flush,
    /// Older copies must become dead, to make room; the group stays open.
    Room,
}

/// A set of members of a group, one bit each; bit 0 is the first member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemberSet(pub u32);

impl MemberSet {
    /// Returns the set of the first `count` members.
    pub fn first(count: u8) -> MemberSet {
        MemberSet(((1u64 << count) - 1) as u32)
    }

    /// Whether a member is in the set.
    pub fn has(self, member: u8) -> bool {
        self.0 >> member & 1 == 1
    }
}

/// A step that the driver has to do; steps are listed in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementStep {
    /// Read a block's newest copy into the client's memory. The data stays valid there until the block is sent.
    Fetch {
        /// The block.
        block: u32,
        /// The group that the block leaves.
        group: u32,
        /// The slot of the newest copy.
        place: DonorSlot,
    },
    /// Read the old data of a block, or the old parity of its group, to change the parity (`parity` in place).
    ReadOld {
        /// The group.
        group: u32,
        /// The slot to read.
        place: DonorSlot,
    },
    /// Send the newest data of a block to a slot.
    Send {
        /// The block.
        block: u32,
        /// The group that the block becomes a member of.
        group: u32,
        /// The number of the member, counted from 0.
        member: u8,
        /// The slot to write.
        place: DonorSlot,
        /// The sequence of the copy, which orders all copies of all blocks: after a crash the highest one is valid.
        sequence: u64,
        /// The reason.
        cause: SendCause,
    },
    /// Store the parity of these members of a group, over data and headers, including dead members.
    StoreParity {
        /// The group.
        group: u32,
        /// The slot to write.
        place: DonorSlot,
        /// The members that the parity covers.
        members: MemberSet,
        /// The reason.
        covering: ParityCause,
    },
    /// Record durably that blocks are trimmed: no copy with a lower sequence may become valid again.
    Forget {
        /// The first block.
        first: u32,
        /// The number of blocks.
        count: u32,
        /// The sequence of the trim, in the same order as that of copies.
        sequence: u64,
    },
    /// A group is free: its slots may be reused once every step before this one is acknowledged.
    Free {
        /// The group.
        group: u32,
    },
}

/// The place of a block's newest data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewestLocation {
    /// The block has no data and reads as zeroes.
    Unmapped,
    /// The data is in the client's memory, or is being fetched into it.
    Memory,
    /// The data is in this slot.
    Slot(DonorSlot),
}

/// The memory that a placement needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct PlacementMemory {
    /// The size of the tables. *Units*: bytes.
    pub tables_bytes: u64,
    /// The maximum number of blocks that may wait in the client's memory at the same time, plus parity blocks that are
    /// being computed. *Units*: blocks.
    pub client_blocks_max: u64,
    /// The number of slots on all donors together.
    pub donor_slots: u64,
}

/// Decides which slot each block goes to. The module's documentation says what the driver must do.
///
/// *Cost*: about `1 + 1/S` steps for each block of a range, plus the steps of cleaning; the driver limits the length of
/// ranges.
pub trait Placement: fmt::Debug + Send {
    /// Returns the layout.
    fn layout(&self) -> &PlacementSettings;

    /// Accepts new data for a range of blocks. The driver must have the data before the call.
    ///
    /// *Errors*: the range is not inside the device; then nothing has changed. *Durability*: none before [`flush`].
    ///
    /// [`flush`]: Placement::flush
    fn write(&mut self, blocks: Range<u32>, steps: &mut Vec<PlacementStep>) -> Result<(), Error>;

    /// Drops the data of a range of blocks, which then reads as zeroes.
    ///
    /// *Errors*: those of [`write`](Placement::write).
    fn trim(&mut self, blocks: Range<u32>, steps: &mut Vec<PlacementStep>) -> Result<(), Error>;

    /// Makes every block independent of the client's memory.
    fn flush(&mut self, steps: &mut Vec<PlacementStep>);

    /// Returns the place of a block's newest data. *Panics* if the device has no such block.
    fn locate(&self, block: u32) -> NewestLocation;

    /// Returns the memory that the placement needs.
    fn memory(&self) -> PlacementMemory;
}
