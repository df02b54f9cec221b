//! Operations on a small volume in memory: each is done once, completely or not at all, and `check` finds no problem.

use super::*;
use crate::format::{SessionRecord, SessionState, VolumeIdentity, VolumeLabel};
use crate::journal::{SetAside, VolumeLayout};
use crate::protocol::{
    FileId, InodeAttributes, MappedExtent, MetadataOperation, MetadataQuestion, RefusalCode, ServerAnswer,
};
use crate::tables::MetadataTables;

pub(super) const ROOT: FileId = FileId { inode: 1, generation: 1 };

pub(super) fn label() -> VolumeLabel {
    VolumeLabel {
        volume: VolumeIdentity([1; 16]),
        blocks: 65536,
        segment_blocks: 2048,
        first_segment: 2048,
        hash_key: [3; 16],
        created_s: 0,
        lease_ms: 1000,
        drift_per_mille: 10,
        incompat: 0,
        ro_compat: 0,
        compat: 0,
        version_min: 1,
        version_made: 1,
        name: String::new(),
    }
}

pub(super) fn image() -> (MetadataImage, u64) {
    let segments = vec![SetAside { block: 2048, blocks: 2048, epoch: 1 }];
    let mut tables = MetadataTables::default();
    for mutation in first(&VolumeLayout { blocks: 65536, segments }, 7) {
        tables.apply(&mutation);
    }
    let mut image = MetadataImage::load(tables, &label(), 1).unwrap();
    let session = SessionRecord {
        incarnation: [9; 16],
        state: SessionState::Active,
        kind: 1,
        flags: 0,
        lease_ms: 1000,
        acknowledged: 0,
        machine: 0,
        boot: 0,
        created_ns: 0,
        ended_ns: 0,
        reason: 0,
        host: "h".to_owned(),
    };
    let (session, _) = image.begin_session(&session).unwrap();
    (image, session)
}

pub(super) fn stamp() -> AppendStamp {
    AppendStamp { now_ns: 8, sequence: 5 }
}

pub(super) fn operate(
    image: &mut MetadataImage,
    session: u64,
    operation: &MetadataOperation,
) -> Result<ServerAnswer, i32> {
    let number = image.next_number(session);
    let answer = image.operate(stamp(), session, number, operation).0;
    assert_eq!(check(image.tables(), &label()), Vec::<String>::new(), "after {operation:?}");
    // The stored reply equals the reply that was given.
    let stored = image.stored_reply(session, number).expect("it is stored");
    assert_eq!(stored.as_ref().map_err(|failure| failure.errno), answer.as_ref().map_err(|failure| failure.errno));
    answer.map_err(|failure| failure.errno)
}

fn create(image: &mut MetadataImage, session: u64, name: &str, mode: u32) -> Result<InodeAttributes, i32> {
    create_in(image, session, ROOT, name, mode)
}

pub(super) fn create_in(
    image: &mut MetadataImage,
    session: u64,
    directory: FileId,
    name: &str,
    mode: u32,
) -> Result<InodeAttributes, i32> {
    let is_link = mode & libc::S_IFMT == libc::S_IFLNK;
    let operation = MetadataOperation::Create {
        directory,
        name: name.as_bytes().to_vec(),
        mode,
        owner: 0,
        group: 0,
        umask: 0o22,
        device: 0,
        target: if is_link { b"target".to_vec() } else { Vec::new() },
        target_block: None,
        open: false,
        inode: 0,
    };
    match operate(image, session, &operation)? {
        ServerAnswer::Attributes(made) => Ok(made),
        other => panic!("{other:?}"),
    }
}

pub(super) fn space(image: &mut MetadataImage, session: u64, blocks: u64) -> u64 {
    match image.ask(stamp(), session, &MetadataQuestion::Space { blocks }).unwrap().answer {
        ServerAnswer::Space(granted) => granted[0].block,
        other => panic!("{other:?}"),
    }
}

pub(super) fn commit(file: FileId, file_block: u64, block: u64, blocks: u32) -> MetadataOperation {
    let extents = vec![MappedExtent { file_block, blocks, block, is_unwritten: false }];
    let size = (file_block + u64::from(blocks)) * 4096;
    MetadataOperation::Commit { file, truncate_generation: 0, size, modified_ns: 9, changed_ns: 9, extents }
}

#[test]
fn name_operations_are_atomic() {
    let (mut image, session) = image();
    let file = create(&mut image, session, "a", libc::S_IFREG | 0o666).unwrap();
    assert_eq!((file.inode.mode & 0o777, create(&mut image, session, "a", libc::S_IFREG)), (0o644, Err(libc::EEXIST)));
    let directory = create(&mut image, session, "d", libc::S_IFDIR | 0o755).unwrap();
    let rename = |from: &str, new_directory, to: &str, flags| MetadataOperation::Rename {
        directory: ROOT,
        name: from.as_bytes().to_vec(),
        new_directory,
        new_name: to.as_bytes().to_vec(),
        flags,
    };
    assert_eq!(operate(&mut image, session, &rename("d", directory.id(), "e", 0)), Err(libc::EINVAL));
    let renamed = Ok(ServerAnswer::Renamed(vec![file.id()]));
    assert_eq!(operate(&mut image, session, &rename("a", directory.id(), "b", 0)), renamed);
    assert_eq!(operate(&mut image, session, &rename("a", ROOT, "b", 0)), Err(libc::ENOENT));
    let moved = create(&mut image, session, "w", libc::S_IFREG | 0o644).unwrap();
    assert_eq!(operate(&mut image, session, &rename("w", directory.id(), "w", 6)), Err(libc::EINVAL));
    assert_eq!(
        operate(&mut image, session, &rename("w", directory.id(), "w", 4)),
        Ok(ServerAnswer::Renamed(vec![moved.id()]))
    );
    let look_up = |name: &str| MetadataQuestion::Lookup { directory: ROOT, name: name.as_bytes().to_vec() };
    let whiteout = image.ask(stamp(), session, &look_up("w")).unwrap().answer;
    let ServerAnswer::Attributes(whiteout) = whiteout else { panic!("{whiteout:?}") };
    assert_eq!((whiteout.inode.mode, whiteout.inode.device, whiteout.inode.links), (libc::S_IFCHR, 0, 1));
    assert_ne!(whiteout.inode.mode, moved.inode.mode);
    let [first, second] = ["x", "y"].map(|name| create(&mut image, session, name, libc::S_IFREG | 0o644).unwrap().id());
    for (flags, both) in [(2, vec![first, second]), (0, vec![second, first])] {
        assert_eq!(
            operate(&mut image, session, &rename("x", ROOT, "y", flags)),
            Ok(ServerAnswer::Renamed(both)),
            "{flags}"
        );
    }
    let unlink =
        |is_directory| MetadataOperation::Unlink { directory: ROOT, name: b"d".to_vec(), is_directory, expected: 0 };
    assert_eq!(operate(&mut image, session, &unlink(true)), Err(libc::ENOTEMPTY));
    assert_eq!(operate(&mut image, session, &unlink(false)), Err(libc::EISDIR));
}

/// The blocks that a commit replaces are draining afterwards.
#[test]
fn commit_accepts_only_granted_blocks() {
    let (mut image, session) = image();
    let file = create(&mut image, session, "a", libc::S_IFREG | 0o644).unwrap().id();
    let free = image.room().0;
    let block = space(&mut image, session, 64);
    assert_eq!(operate(&mut image, session, &commit(file, 0, block + 60, 8)), Err(libc::EIO));
    let directory = create(&mut image, session, "d", libc::S_IFDIR | 0o755).unwrap().id();
    assert_eq!(operate(&mut image, session, &commit(directory, 0, block, 1)), Err(libc::EINVAL));
    operate(&mut image, session, &commit(file, 0, block, 16)).unwrap();
    assert_eq!(operate(&mut image, session, &commit(file, 0, block, 1)), Err(libc::EIO), "it is shown already");
    operate(&mut image, session, &commit(file, 4, block + 16, 4)).unwrap();
    let map = image.ask(stamp(), session, &MetadataQuestion::ReadMap { file, start: 0, end: 100 }).unwrap().answer;
    let ServerAnswer::Map { extents, .. } = map else { panic!("{map:?}") };
    let places: Vec<_> = extents.iter().map(|extent| (extent.file_block, extent.blocks, extent.block)).collect();
    assert_eq!(places, [(0, 4, block), (4, 4, block + 16), (8, 8, block + 8)]);
    // Replaced blocks become free only when the session says that none of its cached maps has them.
    image.background(stamp()).unwrap();
    assert_eq!(image.room().0, free - 64);
    image.acknowledge(session, 1, 5);
    image.background(stamp()).unwrap();
    assert_eq!((image.room().0, check(image.tables(), &label())), (free - 60, Vec::new()));
    operate(&mut image, session, &MetadataOperation::Truncate { file, size: 5000 }).unwrap();
    let unlink = MetadataOperation::Unlink { directory: ROOT, name: b"a".to_vec(), is_directory: false, expected: 0 };
    operate(&mut image, session, &unlink).unwrap();
    image.background(stamp()).unwrap();
    image.background(stamp()).unwrap();
    image.end_session(session).unwrap();
    image.background(stamp()).unwrap();
    assert_eq!((image.room().0, check(image.tables(), &label())), (free, Vec::new()), "everything is free again");
}

#[test]
fn oversized_transaction_changes_nothing() {
    let (mut image, session) = image();
    let file = create(&mut image, session, "a", libc::S_IFREG | 0o644).unwrap().id();
    for part in 0..8 {
        let block = space(&mut image, session, 1024);
        let mapped = |index: u64| MappedExtent {
            file_block: 2 * (part * 1024 + index),
            blocks: 1,
            block: block + index,
            is_unwritten: false,
        };
        let extents = (0..1024).map(mapped).collect();
        let size = (part + 1) * 2048 * 4096;
        let operation =
            MetadataOperation::Commit { file, truncate_generation: 0, size, modified_ns: 9, changed_ns: 9, extents };
        operate(&mut image, session, &operation).unwrap();
    }
    let before = image.tables().table(crate::format::TableKind::Extents).clone();
    assert_eq!(operate(&mut image, session, &MetadataOperation::Truncate { file, size: 0 }), Err(libc::EFBIG));
    assert_eq!(*image.tables().table(crate::format::TableKind::Extents), before);
    for part in (0..8).rev() {
        let size = part * 2048 * 4096;
        operate(&mut image, session, &MetadataOperation::Truncate { file, size }).unwrap();
    }
    assert!(image.tables().table(crate::format::TableKind::Extents).is_empty());
}

fn map(image: &mut MetadataImage, session: u64, file: FileId) -> Vec<(u64, u32, u64, bool)> {
    let answer = image.ask(stamp(), session, &MetadataQuestion::ReadMap { file, start: 0, end: 1000 }).unwrap().answer;
    let ServerAnswer::Map { extents, .. } = answer else { panic!("{answer:?}") };
    extents.iter().map(|extent| (extent.file_block, extent.blocks, extent.block, extent.is_unwritten)).collect()
}

#[test]
fn preallocated_blocks_commit_in_place() {
    let (mut image, session) = image();
    let file = create(&mut image, session, "a", libc::S_IFREG | 0o644).unwrap().id();
    let other = create(&mut image, session, "b", libc::S_IFREG | 0o644).unwrap().id();
    let allocate = MetadataOperation::Allocate { file, start: 0, end: 16 * 4096, mode: 0 };
    operate(&mut image, session, &allocate).unwrap();
    let block = map(&mut image, session, file)[0].2;
    let free = image.room().0;
    operate(&mut image, session, &commit(file, 4, block + 4, 4)).unwrap();
    let whole = [(0, 4, block, true), (4, 4, block + 4, false), (8, 8, block + 8, true)];
    assert_eq!(map(&mut image, session, file), whole);
    // A commit is refused if it maps the blocks at another place of the file, in another file or a second time, or if
    // it is longer than the unwritten extent.
    for (file, commit) in [
        (file, commit(file, 9, block + 8, 4)),
        (other, commit(other, 8, block + 8, 4)),
        (file, commit(file, 4, block + 4, 4)),
        (file, commit(file, 8, block + 8, 9)),
    ] {
        assert_eq!(operate(&mut image, session, &commit), Err(libc::EIO), "{file:?}");
    }
    assert_eq!(map(&mut image, session, file), whole);
    operate(&mut image, session, &commit(file, 0, block, 4)).unwrap();
    operate(&mut image, session, &commit(file, 8, block + 8, 8)).unwrap();
    assert_eq!(map(&mut image, session, file), [(0, 16, block, false)]);
    assert_eq!((image.room().0, image.attributes(file).unwrap().inode.blocks), (free, 16));
}

/// The operation beyond 1024 replies is refused and uses no number.
#[test]
fn unacknowledged_replies_are_limited() {
    let (mut image, session) = image();
    let file = create(&mut image, session, "a", libc::S_IFREG | 0o644).unwrap().id();
    let truncate = |size| MetadataOperation::Truncate { file, size };
    let stored = |image: &MetadataImage| image.tables().table(crate::format::TableKind::Replies).len();
    for number in 2..=1024 {
        let answer = image.operate(stamp(), session, number, &truncate(number)).0;
        assert!(answer.is_ok(), "{number}: {answer:?}");
    }
    assert_eq!((stored(&image), image.next_number(session)), (1024, 1025));
    let (answer, transaction) = image.operate(stamp(), session, 1025, &truncate(7));
    let refused = answer.map_err(|failure| (failure.code, failure.errno));
    assert_eq!(refused, Err((crate::protocol::RefusalCode::Limit, libc::EAGAIN)));
    assert!(transaction.is_none() && stored(&image) == 1024 && image.next_number(session) == 1025);
    assert_eq!(image.attributes(file).unwrap().inode.size, 1024);
    // One reply is acknowledged, so one more operation is accepted, even before the server has stored the
    // acknowledgement.
    image.acknowledge(session, 1, 0);
    assert!(image.operate(stamp(), session, 1025, &truncate(7)).0.is_ok());
    assert!(image.operate(stamp(), session, 1026, &truncate(7)).0.is_err());
    image.background(stamp()).unwrap();
    assert_eq!(stored(&image), 1024);
    // After a restart, replies are counted from the last operation, because the acknowledgement may not have been
    // stored.
    let mut again = MetadataImage::load(image.tables().clone(), &label(), 2).unwrap();
    for number in 1026..=1025 + 1024 {
        let answer = again.operate(stamp(), session, number, &truncate(number)).0;
        assert!(answer.is_ok(), "{number}: {answer:?}");
    }
    assert!(again.operate(stamp(), session, 2050, &truncate(7)).0.is_err());
}

#[test]
fn used_block_count_is_recorded() {
    let (mut image, session) = image();
    let said = |image: &MetadataImage| {
        let record = image.tables().get(&crate::format::TableKey::Volume).unwrap();
        crate::format::VolumeRecord::decode(record).unwrap().used_blocks
    };
    assert_eq!(said(&image), 2048, "the segment of the first epoch");
    let file = create(&mut image, session, "a", libc::S_IFREG | 0o644).unwrap().id();
    operate(&mut image, session, &MetadataOperation::Allocate { file, start: 0, end: 100 * 4096, mode: 0 }).unwrap();
    assert_eq!((said(&image), image.room().0), (2148, 65536 - 2048 - 2148));
    space(&mut image, session, 64);
    assert_eq!(said(&image), 2212);
    // The record of an older volume has no count of used blocks; loading the volume computes it.
    let mut tables = image.tables().clone();
    let key = crate::format::TableKey::Volume;
    let mut record = crate::format::VolumeRecord::decode(tables.get(&key).unwrap()).unwrap();
    record.used_blocks = 0;
    let action = crate::format::MutationAction::Put(record.encode());
    tables.apply(&crate::format::Mutation { table: key.table(), key: key.encode(), action });
    assert_eq!(check(&tables, &label()), Vec::<String>::new());
    let mut again = MetadataImage::load(tables, &label(), 1).unwrap();
    again.background(stamp()).unwrap();
    assert_eq!(said(&again), 2212);
}

#[test]
fn freeing_blocks_count_as_free() {
    let (mut image, session) = image();
    let free =
        |image: &mut MetadataImage| match image.ask(stamp(), session, &MetadataQuestion::Statistics).unwrap().answer {
            ServerAnswer::Statistics(statistics) => statistics.free,
            other => panic!("{other:?}"),
        };
    let before = free(&mut image);
    let file = create(&mut image, session, "a", libc::S_IFREG | 0o644).unwrap().id();
    operate(&mut image, session, &MetadataOperation::Allocate { file, start: 0, end: 100 * 4096, mode: 0 }).unwrap();
    assert_eq!(free(&mut image), before - 100);
    let unlink = MetadataOperation::Unlink { directory: ROOT, name: b"a".to_vec(), is_directory: false, expected: 0 };
    operate(&mut image, session, &unlink).unwrap();
    image.close(session, file.inode);
    let was = image.room().0;
    assert_eq!(free(&mut image), before, "the inode is being freed");
    image.background(stamp()).unwrap();
    assert_eq!((free(&mut image), image.room().0), (before, was), "the extent is draining");
    image.acknowledge(session, 1, u64::MAX);
    image.background(stamp()).unwrap();
    assert_eq!((free(&mut image), image.room().0), (before, was + 100));
}

/// A feature that may be ignored does not prevent reading.
#[test]
fn newer_volume_version_is_refused() {
    let (image, _) = image();
    let key = crate::format::TableKey::Volume;
    // A feature that may be ignored, one that must be known to write, one that must be known to read.
    for (at, is_refused) in [(2, false), (1, true), (0, true)] {
        let mut tables = image.tables().clone();
        let mut record = crate::format::VolumeRecord::decode(tables.get(&key).unwrap()).unwrap();
        record.features[at] = 4;
        let action = crate::format::MutationAction::Put(record.encode());
        tables.apply(&crate::format::Mutation { table: key.table(), key: key.encode(), action });
        let words = "the volume uses features 0x4 that this version does not know";
        let expected = if is_refused { vec![words.to_owned()] } else { Vec::new() };
        assert_eq!(check(&tables, &label()), expected);
        let refusal = MetadataImage::load(tables, &label(), 1).err();
        assert_eq!(
            refusal.map(|failure| (failure.code, failure.words)),
            is_refused.then(|| (RefusalCode::Feature, words.into()))
        );
    }
}

/// The block is freed together with the link.
#[test]
fn long_link_target_uses_block() {
    let (mut image, session) = image();
    let free = image.room().0;
    let block = space(&mut image, session, 64);
    let link = |name: &str, bytes: usize, blocks: u32, block: u64| MetadataOperation::Create {
        directory: ROOT,
        name: name.as_bytes().to_vec(),
        mode: libc::S_IFLNK | 0o777,
        owner: 0,
        group: 0,
        umask: 0,
        device: 0,
        target: vec![b'a'; bytes],
        target_block: (block > 0).then_some(MappedExtent { file_block: 0, blocks, block, is_unwritten: false }),
        open: false,
        inode: 0,
    };
    let Ok(ServerAnswer::Attributes(made)) = operate(&mut image, session, &link("l", 4095, 1, block)) else {
        panic!("it is made")
    };
    assert_eq!((made.inode.size, made.inode.blocks, made.inode.inline.len()), (4095, 1, 0));
    assert_eq!(map(&mut image, session, made.id()), [(0, 1, block, false)]);
    // A target is in the inode if it has room there, otherwise in one block that was granted to the session and is in
    // no file.
    for (link, errno) in [
        (link("m", 2048, 1, block + 1), libc::EINVAL),
        (link("m", 2049, 2, block + 1), libc::EINVAL),
        (link("m", 2049, 1, 0), libc::ENAMETOOLONG),
        (link("m", 4096, 1, block + 1), libc::ENAMETOOLONG),
        (link("m", 2049, 1, block), libc::EIO),
        (link("m", 2049, 1, block + 64), libc::EIO),
    ] {
        assert_eq!(operate(&mut image, session, &link), Err(errno), "{link:?}");
    }
    let Ok(ServerAnswer::Attributes(short)) = operate(&mut image, session, &link("m", 2048, 1, 0)) else {
        panic!("it is made")
    };
    assert_eq!((short.inode.blocks, short.inode.inline.len()), (0, 2048));
    let unlink = MetadataOperation::Unlink { directory: ROOT, name: b"l".to_vec(), is_directory: false, expected: 0 };
    operate(&mut image, session, &unlink).unwrap();
    image.background(stamp()).unwrap();
    image.acknowledge(session, 9, 5);
    image.background(stamp()).unwrap();
    assert_eq!((image.room().0, check(image.tables(), &label())), (free - 63, Vec::new()));
}

/// Only regular files can be allocated, too.
#[test]
fn only_regular_files_truncate() {
    let (mut image, session) = image();
    for (kind, errno) in [(libc::S_IFDIR, libc::EISDIR), (libc::S_IFLNK, libc::EINVAL), (libc::S_IFIFO, libc::EINVAL)] {
        let file = create(&mut image, session, &format!("{kind:o}"), kind | 0o644).unwrap().id();
        assert_eq!(operate(&mut image, session, &MetadataOperation::Truncate { file, size: 9 }), Err(errno));
        let allocate = MetadataOperation::Allocate { file, start: 0, end: 4096, mode: 0 };
        assert_eq!(operate(&mut image, session, &allocate), Err(libc::EINVAL));
        let take = MetadataOperation::TakeReserved { file, start: 0, end: 1 };
        assert_eq!(operate(&mut image, session, &take), Err(libc::EINVAL));
    }
}

/// Takes reserved blocks; returns the taken extents and the end of the answer.
fn take(image: &mut MetadataImage, session: u64, file: FileId, start: u64, end: u64) -> (Vec<MappedExtent>, u64) {
    match operate(image, session, &MetadataOperation::TakeReserved { file, start, end }) {
        Ok(ServerAnswer::Map { extents, answered_to }) => (extents, answered_to),
        other => panic!("{other:?}"),
    }
}

/// Reserved blocks are taken, written, and mapped back into the file.
#[test]
fn reserved_blocks_map_back() {
    let (mut image, session) = image();
    let file = create(&mut image, session, "a", libc::S_IFREG | 0o644).unwrap().id();
    operate(&mut image, session, &MetadataOperation::Allocate { file, start: 0, end: 16 * 4096, mode: 0 }).unwrap();
    let (block, free) = (map(&mut image, session, file)[0].2, image.room().0);
    let blocks = |image: &MetadataImage| image.attributes(file).unwrap().inode.blocks;
    let (taken, to) = take(&mut image, session, file, 4, 12);
    let piece = |file_block, blocks, block, is_unwritten| MappedExtent { file_block, blocks, block, is_unwritten };
    assert_eq!((taken, to), (vec![piece(4, 8, block + 4, true)], 12));
    assert_eq!(map(&mut image, session, file), [(0, 4, block, true), (12, 4, block + 12, true)]);
    assert_eq!((image.room().0, blocks(&image)), (free, 8));
    // Another session has not been granted them.
    let record = image.session(session).unwrap();
    let (other, _) = image.begin_session(&SessionRecord { incarnation: [8; 16], ..record }).unwrap();
    assert_eq!(operate(&mut image, other, &commit(file, 4, block + 4, 8)), Err(libc::EIO));
    assert_eq!(take(&mut image, other, file, 4, 12), (Vec::new(), 12));
    // Three of them are written, and five are not.
    let extents = vec![piece(4, 3, block + 4, false), piece(7, 5, block + 7, true)];
    let (modified_ns, changed_ns, size) = (0, 0, 0);
    let committed = MetadataOperation::Commit {
        file,
        truncate_generation: 0,
        size,
        modified_ns,
        changed_ns,
        extents: extents.clone(),
    };
    operate(&mut image, session, &committed).unwrap();
    let whole = [(0, 4, block, true), (4, 3, block + 4, false), (7, 9, block + 7, true)];
    assert_eq!((map(&mut image, session, file), blocks(&image)), (whole.to_vec(), 16));
    // What is mapped as unwritten already stays as it is; what was never granted is refused.
    let extents = vec![extents[1]];
    let again = MetadataOperation::Commit { file, truncate_generation: 0, size, modified_ns, changed_ns, extents };
    operate(&mut image, session, &again).unwrap();
    let extents = vec![piece(20, 1, block + 40, true)];
    let wrong = MetadataOperation::Commit { file, truncate_generation: 0, size, modified_ns, changed_ns, extents };
    assert_eq!(operate(&mut image, session, &wrong), Err(libc::EIO));
    assert_eq!((map(&mut image, session, file), blocks(&image)), (whole.to_vec(), 16));
    // The end of a session that had taken some leaves a hole.
    take(&mut image, other, file, 0, 2);
    image.end_session(other).unwrap();
    assert_eq!((image.room().0, blocks(&image)), (free + 2, 14));
    assert_eq!(check(image.tables(), &label()), Vec::<String>::new());
}

#[test]
fn taken_blocks_and_pieces_are_bounded() {
    let (mut image, session) = image();
    let file = create(&mut image, session, "a", libc::S_IFREG | 0o644).unwrap().id();
    let allocate =
        |start: u64, end: u64| MetadataOperation::Allocate { file, start: start * 4096, end: end * 4096, mode: 0 };
    operate(&mut image, session, &allocate(0, 20_000)).unwrap();
    let (taken, to) = take(&mut image, session, file, 5, 1 << 51);
    assert_eq!((taken[0].blocks, taken.len(), to), (1 << 14, 1, 5 + (1 << 14)));
    assert_eq!(take(&mut image, session, file, 5, to), (Vec::new(), to));
    // Every second block is reserved: the answer is the longest that can be stored.
    for block in 0..200 {
        operate(&mut image, session, &allocate(100_000 + 2 * block, 100_001 + 2 * block)).unwrap();
    }
    let (taken, to) = take(&mut image, session, file, 100_000, 200_000);
    assert_eq!((taken.len(), to), (128, 100_000 + 2 * 128));
    assert_eq!(take(&mut image, session, file, to, 200_000).0.len(), 72);
}

/// Blocks that were allocated behind the end of a file stay when it grows.
#[test]
fn growing_file_keeps_preallocation() {
    let (mut image, session) = image();
    let file = create(&mut image, session, "a", libc::S_IFREG | 0o644).unwrap().id();
    let keep_size = libc::FALLOC_FL_KEEP_SIZE as u32;
    operate(&mut image, session, &MetadataOperation::Allocate { file, start: 0, end: 16 * 4096, mode: keep_size })
        .unwrap();
    let blocks = |image: &MetadataImage| image.attributes(file).unwrap().inode.blocks;
    operate(&mut image, session, &MetadataOperation::Truncate { file, size: 4096 }).unwrap();
    assert_eq!(blocks(&image), 16);
    let shape = image.shape(file).unwrap();
    assert_eq!((shape.extents.len(), shape.answered_to), (1, 1 << 51));
    operate(&mut image, session, &MetadataOperation::Truncate { file, size: 4096 }).unwrap();
    assert_eq!(blocks(&image), 1);
}
