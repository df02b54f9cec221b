//! The reserve: free segments that stay for metadata when files fill the disk.
//!
//! Owns: the number of segments in the reserve. Promises: file data never uses the reserve, and operations that let
//! metadata grow leave about half of it. Removing and truncating files, ending sessions and background work need no
//! segment of the reserve. So a full disk has room for its journal, for a checkpoint and for the next start, unless
//! segments of lost servers fill the disk.
//!
//! A checkpoint frees the segments of the previous checkpoint only when it is complete, and until then the journal
//! grows. For tables that fill `n` segments, the reserve is the sum of these lines:
//!
//! | segments | for |
//! |---|---|
//! | n | the next checkpoint |
//! | n | growth of the tables until then |
//! | n, at least 2 | the journal until then |
//! | 2 | segments that the journal has ready |
//! | 2 | what a start sets aside |
//!
//! A small disk keeps an eighth of its segments, but never fewer than one checkpoint and three.
//!
//! Beside all of that there is room for what sessions may make themselves, with inode numbers that they have in hand
//! ([`MetadataImage::keep_room_for`]): half of it for the tables, half for the journal. This is never refused, so nothing else
//! takes that room.
//!
//! *Circle*: the reserve is computed from the state of `image`, whose changes are bounded by it.

use super::change::{Result, damaged};
use super::image::{ImageParts, MetadataImage};
use super::space::FreeExtents;
use crate::format::{BLOCK_BYTES, SPACE_START, TableKey, VolumeLabel, VolumeRecord};
use crate::journal::segments_at_most;
use crate::protocol::{RefusalCode, ServerRefusal};
use crate::tables::MetadataTables;

/// The least number of segments for each purpose: the journal between two checkpoints, the spare segments of the
/// journal, and the segments that a start sets aside. *Units*: segments.
const JOURNAL: u64 = 2;
const READY: u64 = 2;
const STARTS: u64 = 2;
/// On a small disk the reserve is the disk's segments divided by this.
const DISK_PART: u64 = 8;
/// The least reserve, in addition to the segments of a checkpoint: below `AT_LEAST` file data is refused, below
/// `TO_GROW` growth of metadata. *Units*: segments.
const AT_LEAST: u64 = 3;
const TO_GROW: u64 = 2;
/// What one inode that a session makes itself needs in the tables, or in the journal, at most. *Units*: bytes.
const LOCAL_BYTES: u64 = 2 << 10;
/// The longest target of a link that a session makes itself. *Units*: bytes.
pub const LOCAL_TARGET_BYTES_MAX: usize = 255;

/// The numbers of free segments that stay for metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MetadataReserve {
    /// File data leaves this many segments free. *Units*: segments.
    pub data: u64,
    /// With fewer free segments, operations that let metadata grow are refused. *Units*: segments.
    pub growth: u64,
}

impl MetadataReserve {
    /// Computes the reserve of a disk of `segments` segments, with tables whose checkpoint needs `checkpoint` segments.
    pub fn new(segments: u64, checkpoint: u64) -> MetadataReserve {
        let wanted = 2 * checkpoint + checkpoint.max(JOURNAL) + READY + STARTS;
        let data = wanted.min(segments.div_ceil(DISK_PART).max(checkpoint + AT_LEAST));
        MetadataReserve { data, growth: (data / 2).max(checkpoint + TO_GROW) }
    }

    /// The same with so many segments more.
    fn beside(self, segments: u64) -> MetadataReserve {
        MetadataReserve { data: self.data + segments, growth: self.growth + segments }
    }

    /// The reserve of a disk of so many blocks with these tables.
    fn of(tables: &MetadataTables, blocks: u64, segment_blocks: u64) -> MetadataReserve {
        let segments = blocks.saturating_sub(SPACE_START) / segment_blocks;
        MetadataReserve::new(segments, segments_at_most(tables.bytes(), segment_blocks))
    }
}

/// Free space of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSpace {
    /// What data can have. *Units*: blocks.
    pub blocks: u64,
    /// What is kept for metadata beside it. *Units*: blocks.
    pub reserved: u64,
}

/// The free space that the records of a volume define: what `statfs` shows, without what sessions have in hand.
///
/// *Errors*: records that make no sense.
pub fn free_space(tables: &MetadataTables, label: &VolumeLabel) -> Result<FreeSpace> {
    let volume = tables.get(&TableKey::Volume).ok_or_else(|| damaged("there is no record of the volume"))?;
    let blocks = VolumeRecord::decode(volume).map_err(damaged)?.blocks;
    let segment_blocks = label.segment_blocks.max(1);
    let free = FreeExtents::load(tables, blocks, segment_blocks)?;
    let blocks = free.blocks_beside(MetadataReserve::of(tables, blocks, segment_blocks).data);
    Ok(FreeSpace { blocks, reserved: free.blocks() - blocks })
}

/// The refusal of a request that finds no space: EAGAIN while some is being freed.
pub(super) fn full(is_freeing: bool) -> ServerRefusal {
    let errno = if is_freeing { libc::EAGAIN } else { libc::ENOSPC };
    ServerRefusal { code: RefusalCode::Full, errno, words: String::new() }
}

impl MetadataImage {
    /// Returns the most segments that a checkpoint of the present tables can need.
    pub fn checkpoint_segments(&self) -> u64 {
        segments_at_most(self.tables.bytes(), self.segment_blocks)
    }

    /// Returns the number of whole segments that are free.
    pub fn free_segments(&self) -> u64 {
        self.free.segments()
    }

    pub(super) fn reserve(&self) -> MetadataReserve {
        MetadataReserve::of(&self.tables, self.volume.blocks, self.segment_blocks).beside(self.kept_for_numbers())
    }

    /// Keeps room for what sessions may make with so many inode numbers. `is_passing`: some of it is for a moment, so a
    /// request that finds no space is repeated.
    pub fn keep_room_for(&mut self, numbers: u64, is_passing: bool) {
        (self.in_hand, self.is_room_passing) = (numbers, is_passing && numbers > 0);
    }

    /// Returns for how many inode numbers room is kept, and whether some of it is for a moment.
    #[cfg(test)]
    pub fn room_kept(&self) -> (u64, bool) {
        (self.in_hand, self.is_room_passing)
    }

    /// Returns the number of free segments that are kept for inode numbers in hand.
    pub(super) fn kept_for_numbers(&self) -> u64 {
        self.room_for_numbers(self.in_hand)
    }

    /// Returns the number of segments that so many inodes need, which sessions make themselves.
    pub(super) fn room_for_numbers(&self, numbers: u64) -> u64 {
        2 * (numbers * LOCAL_BYTES).div_ceil(self.segment_blocks * BLOCK_BYTES as u64)
    }

    /// Returns the number of free blocks that are kept for metadata: file data does not get them.
    pub fn reserved(&self) -> u64 {
        self.free.blocks() - self.free.blocks_beside(self.reserve().data)
    }
}

impl ImageParts<'_> {
    /// Checks that metadata may grow.
    ///
    /// *Errors*: ENOSPC when the reserve would be used, EAGAIN if space is being freed.
    pub fn may_grow(&self) -> Result<()> {
        match self.free.segments() < self.reserve.growth {
            true => Err(full(self.is_freeing)),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{commit, create_in, image, label, operate, stamp};
    use super::*;
    use crate::format::{ExtentState, SpaceRecord};
    use crate::protocol::{FileId, MetadataOperation, MetadataQuestion, ServerAnswer};

    const ROOT: FileId = FileId { inode: 1, generation: 1 };

    /// Requests space; returns the granted extents as first block and length, or `None` for ENOSPC.
    fn space(image: &mut MetadataImage, session: u64) -> Option<Vec<(u64, u64)>> {
        match image.ask(stamp(), session, &MetadataQuestion::Space { blocks: 1 << 18 }) {
            Ok(asked) => match asked.answer {
                ServerAnswer::Space(granted) => {
                    Some(granted.iter().map(|granted| (granted.block, granted.blocks)).collect())
                }
                other => panic!("{other:?}"),
            },
            Err(failure) => {
                assert_eq!((failure.code, failure.errno), (RefusalCode::Full, libc::ENOSPC));
                None
            }
        }
    }

    fn free_of_statfs(image: &mut MetadataImage, session: u64) -> u64 {
        match image.ask(stamp(), session, &MetadataQuestion::Statistics).unwrap().answer {
            ServerAnswer::Statistics(statistics) => statistics.free,
            other => panic!("{other:?}"),
        }
    }

    /// Fills a file with all blocks that are granted; returns their number.
    fn fill(image: &mut MetadataImage, session: u64, file: FileId) -> u64 {
        let mut at = 0;
        while let Some(granted) = space(image, session) {
            for (block, blocks) in granted {
                operate(image, session, &commit(file, at, block, blocks as u32)).unwrap();
                at += blocks;
            }
        }
        at
    }

    /// Every block outside of the reserve can be granted.
    #[test]
    fn file_data_never_uses_reserve() {
        let (mut image, session) = image();
        let file = create_in(&mut image, session, ROOT, "file", libc::S_IFREG | 0o644).unwrap().id();
        let (free, kept) = (image.room().0, image.reserve().data);
        assert_eq!((kept, free_of_statfs(&mut image, session)), (4, free - 4 * 2048));
        let shown = free_space(image.tables(), &label()).unwrap();
        assert_eq!(shown, FreeSpace { blocks: free - 4 * 2048, reserved: 4 * 2048 });
        assert_eq!(fill(&mut image, session, file), free - 4 * 2048);
        assert_eq!((image.free_segments(), free_of_statfs(&mut image, session), image.reserved()), (4, 0, 4 * 2048));
        let allocate = MetadataOperation::Allocate { file, start: 1 << 40, end: (1 << 40) + 4096, mode: 0 };
        assert_eq!(operate(&mut image, session, &allocate), Err(libc::ENOSPC));
        // Free blocks inside used segments are granted, although whole free segments around them are reserved.
        operate(&mut image, session, &MetadataOperation::Truncate { file, size: 5000 * 4096 }).unwrap();
        image.acknowledge(session, 0, u64::MAX);
        image.background(stamp()).unwrap();
        let left = free_of_statfs(&mut image, session);
        assert!(left > 10_000, "{left}");
        let other = create_in(&mut image, session, ROOT, "other", libc::S_IFREG | 0o644).unwrap().id();
        assert_eq!(fill(&mut image, session, other), left);
    }

    /// Files can always be removed.
    #[test]
    fn metadata_growth_keeps_half_reserve() {
        let (mut image, session) = image();
        let mode = libc::S_IFREG | 0o644;
        let file = create_in(&mut image, session, ROOT, "file", mode).unwrap().id();
        for name in ["removed", "long name", "x"] {
            create_in(&mut image, session, ROOT, name, mode).unwrap();
        }
        let xattr = |name: &str, bytes| {
            let (name, value) = (name.as_bytes().to_vec(), vec![1; bytes]);
            MetadataOperation::SetXattr { file, name, value, flags: 0 }
        };
        operate(&mut image, session, &xattr("user.a", 100)).unwrap();
        fill(&mut image, session, file);
        let growth = image.reserve().growth;
        let mut taken = Vec::new();
        while image.free_segments() >= growth {
            create_in(&mut image, session, ROOT, &format!("n{}", taken.len()), mode).unwrap();
            taken.push(image.take_segment(1).unwrap().0);
        }
        let rename = |name: &str, new_name: &str| MetadataOperation::Rename {
            directory: ROOT,
            name: name.as_bytes().to_vec(),
            new_directory: ROOT,
            new_name: new_name.as_bytes().to_vec(),
            flags: 0,
        };
        let refused = [
            MetadataOperation::Link { file, directory: ROOT, name: b"link".to_vec() },
            xattr("user.b", 1),
            xattr("user.a", 101),
            rename("x", "longer"),
        ];
        for operation in refused {
            assert_eq!(operate(&mut image, session, &operation), Err(libc::ENOSPC), "{operation:?}");
        }
        for kind in [libc::S_IFREG, libc::S_IFDIR, libc::S_IFLNK, libc::S_IFIFO] {
            assert_eq!(create_in(&mut image, session, ROOT, "new", kind | 0o644).err(), Some(libc::ENOSPC), "{kind:o}");
        }
        // Creating a name that exists fails with EEXIST, also when the disk is full.
        assert_eq!(create_in(&mut image, session, ROOT, "file", mode).err(), Some(libc::EEXIST));
        let unlink =
            MetadataOperation::Unlink { directory: ROOT, name: b"removed".to_vec(), is_directory: false, expected: 0 };
        let done = [
            unlink,
            rename("long name", "short"),
            rename("short", "x"),
            xattr("user.a", 100),
            MetadataOperation::RemoveXattr { file, name: b"user.a".to_vec() },
            MetadataOperation::Truncate { file, size: 4096 },
        ];
        for operation in done {
            operate(&mut image, session, &operation).unwrap_or_else(|errno| panic!("{operation:?}: {errno}"));
        }
        // The same holds when no free segment is left.
        while let Ok((block, _)) = image.take_segment(1) {
            taken.push(block);
        }
        let unlink =
            MetadataOperation::Unlink { directory: ROOT, name: b"x".to_vec(), is_directory: false, expected: 0 };
        operate(&mut image, session, &unlink).unwrap();
        image.acknowledge(session, 0, u64::MAX);
        image.background(stamp()).unwrap();
        assert!(image.free_segments() >= growth, "what was cut is free");
        create_in(&mut image, session, ROOT, "new", mode).unwrap();
        image.end_session(session).unwrap();
    }

    /// As many segments are set aside for later epochs as the free space allows.
    #[test]
    fn segments_set_aside_if_free() {
        let (mut image, session) = image();
        let file = create_in(&mut image, session, ROOT, "file", libc::S_IFREG | 0o644).unwrap().id();
        fill(&mut image, session, file);
        let owners = |image: &MetadataImage| {
            let values = image.tables().table(crate::format::TableKind::Space).values();
            let spaces = values.filter_map(|value| SpaceRecord::decode(value).ok());
            let spaces = spaces.filter(|space| space.state == ExtentState::Metadata && space.owner > 1);
            spaces.map(|space| space.owner).collect::<Vec<_>>()
        };
        // Four segments are free. Those of a checkpoint and two more must stay free, so only one can be set aside.
        assert_eq!((image.set_aside().unwrap().len(), image.starts()), (1, Some(1)));
        assert_eq!((owners(&image), image.free_segments()), (vec![2], 3));
        assert_eq!(image.set_aside().unwrap().len(), 0);
        operate(&mut image, session, &MetadataOperation::Truncate { file, size: 0 }).unwrap();
        image.acknowledge(session, 0, u64::MAX);
        image.background(stamp()).unwrap();
        image.set_aside().unwrap();
        let mut all = owners(&image);
        all.sort_unstable();
        assert_eq!((all, image.starts()), ((2..=17).collect(), Some(16)));
    }

    #[test]
    fn next_starts_leave_room_for_numbers() {
        let (mut image, _) = image();
        while image.free_segments() > 9 {
            image.take_segment(1).unwrap();
        }
        image.keep_room_for(1, false);
        image.set_aside().unwrap();
        // A checkpoint, two more, and those of the number: one of tables, one of the journal.
        assert_eq!(image.free_segments(), image.checkpoint_segments() + 2 + 2);
        image.keep_room_for(0, false);
        image.set_aside().unwrap();
        assert_eq!(image.free_segments(), image.checkpoint_segments() + 2);
    }

    /// The reserve is an eighth of the segments, and at least a checkpoint and three more.
    #[test]
    fn small_disk_reserve_has_minimum() {
        for (segments, checkpoint, data, growth) in
            [(31, 1, 4, 3), (127, 1, 8, 4), (31, 10, 13, 12), (1 << 20, 40, 124, 62), (400, 40, 50, 42)]
        {
            assert_eq!(
                MetadataReserve::new(segments, checkpoint),
                MetadataReserve { data, growth },
                "{segments} {checkpoint}"
            );
        }
    }

    #[test]
    fn largest_local_create_fits_its_room() {
        let (mut image, session) = image();
        let numbers = image.ask(stamp(), session, &MetadataQuestion::Numbers { count: 9 }).unwrap().answer;
        let ServerAnswer::Numbers { first, .. } = numbers else { panic!("{numbers:?}") };
        let create = MetadataOperation::Create {
            directory: ROOT,
            name: vec![b'n'; crate::format::NAME_BYTES_MAX],
            mode: libc::S_IFLNK | 0o777,
            owner: 0,
            group: 0,
            umask: 0,
            device: 0,
            target: vec![b't'; LOCAL_TARGET_BYTES_MAX],
            target_block: None,
            open: false,
            inode: first,
        };
        let before = image.tables().bytes();
        let number = image.next_number(session);
        let (done, transaction) = image.operate_local(stamp(), session, number, &create);
        done.unwrap();
        let in_tables = image.tables().bytes() - before;
        let transactions = vec![transaction.unwrap()];
        let (flushed_sequence, next_segment, time_ns) = (1, 0, 1);
        let append = crate::format::JournalAppend {
            epoch: 1,
            sequence: 2,
            flushed_sequence,
            next_segment,
            time_ns,
            transactions,
        };
        let (bytes, _) = append.encode(crate::format::VolumeIdentity([7; 16]), 0, 0).unwrap();
        assert!(in_tables <= LOCAL_BYTES && bytes.len() as u64 <= 2 * LOCAL_BYTES, "{in_tables} {}", bytes.len());
    }

    #[test]
    fn inode_number_room_is_kept() {
        let (mut image, session) = image();
        let before = image.reserve();
        image.keep_room_for(1, false);
        assert_eq!(image.reserve(), before.beside(2));
        image.keep_room_for(4096, false);
        assert_eq!(image.reserve(), before.beside(2), "a segment of tables, a segment of the journal");
        image.keep_room_for(8192, false);
        assert_eq!(image.reserve(), before.beside(4));
        let file = create_in(&mut image, session, ROOT, "file", libc::S_IFREG | 0o644).unwrap().id();
        fill(&mut image, session, file);
        assert_eq!(image.free_segments(), image.reserve().data);
        let refused = image.ask(stamp(), session, &MetadataQuestion::Numbers { count: 512 }).map(drop);
        assert_eq!(refused.map_err(|failure| failure.code), Err(RefusalCode::Full), "more would need more room");
        // While sessions may repeat what they had done before a restart, a request is repeated.
        image.keep_room_for(8192, true);
        let refused = image.ask(stamp(), session, &MetadataQuestion::Space { blocks: 1 }).map(drop);
        assert_eq!(refused.map_err(|failure| (failure.code, failure.errno)), Err((RefusalCode::Full, libc::EAGAIN)));
        image.keep_room_for(0, false);
        assert!(space(&mut image, session).is_some(), "what was kept is free");
    }
}
