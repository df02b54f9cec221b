//! Files without a name, the bounds of extended attributes, and the map of a path.

use super::tests::{ROOT, commit, create_in, image, label, operate, space, stamp};
use super::*;
use crate::format::{LOST_TO_OTHERS, SessionRecord, TableKind, XATTR_VALUE_BYTES_MAX};
use crate::protocol::{
    AttributeChanges, FileId, InodeAttributes, JudgedOwner, MetadataOperation, MetadataQuestion, ServerAnswer,
};

fn nameless(open: bool, mode: u32) -> MetadataOperation {
    MetadataOperation::Create {
        directory: ROOT,
        name: Vec::new(),
        mode,
        owner: 0,
        group: 0,
        umask: 0o22,
        device: 0,
        target: Vec::new(),
        target_block: None,
        open,
        inode: 0,
    }
}

fn make_nameless(image: &mut MetadataImage, session: u64) -> FileId {
    match operate(image, session, &nameless(true, libc::S_IFREG | 0o644)) {
        Ok(ServerAnswer::Attributes(made)) if made.inode.links == 0 => made.id(),
        other => panic!("{other:?}"),
    }
}

fn link(file: FileId, name: &str) -> MetadataOperation {
    MetadataOperation::Link { file, directory: ROOT, name: name.as_bytes().to_vec() }
}

fn unlink(name: &str) -> MetadataOperation {
    MetadataOperation::Unlink { directory: ROOT, name: name.as_bytes().to_vec(), is_directory: false, expected: 0 }
}

fn close(image: &mut MetadataImage, session: u64, file: FileId) {
    image.ask(stamp(), session, &MetadataQuestion::Close { file }).unwrap();
}

fn begin(image: &mut MetadataImage, incarnation: u8) -> u64 {
    let (_, first) = image.sessions().remove(0);
    image.begin_session(&SessionRecord { incarnation: [incarnation; 16], ..first }).unwrap().0
}

fn inodes(image: &MetadataImage) -> usize {
    image.tables().table(TableKind::Inodes).len()
}

#[test]
fn nameless_file_is_linked_once() {
    let (mut image, session) = image();
    for (open, mode) in [(false, libc::S_IFREG), (true, libc::S_IFDIR), (true, libc::S_IFLNK), (true, libc::S_IFIFO)] {
        assert_eq!(operate(&mut image, session, &nameless(open, mode)), Err(libc::EINVAL));
    }
    let file = make_nameless(&mut image, session);
    let linked = operate(&mut image, session, &link(file, "a"));
    assert!(
        matches!(&linked, Ok(ServerAnswer::Attributes(InodeAttributes { inode, .. })) if inode.links == 1),
        "{linked:?}"
    );
    operate(&mut image, session, &unlink("a")).unwrap();
    // It has lost its last name, so it gets no other one, although it is open.
    assert_eq!(operate(&mut image, session, &link(file, "b")), Err(libc::ENOENT));
    close(&mut image, session, file);
    image.background(stamp()).unwrap();
    assert_eq!((inodes(&image), check(image.tables(), &label())), (1, Vec::new()));
}

/// A link that arrives late does not name an inode that is being freed.
#[test]
fn closed_nameless_file_is_freed() {
    let (mut image, session) = image();
    let file = make_nameless(&mut image, session);
    close(&mut image, session, file);
    // A link that arrives late must not name an inode that is being freed.
    assert_eq!(operate(&mut image, session, &link(file, "a")), Err(libc::ENOENT));
    image.background(stamp()).unwrap();
    assert_eq!(operate(&mut image, session, &link(file, "a")), Err(libc::ESTALE));
    let (lost, kept) = (make_nameless(&mut image, session), make_nameless(&mut image, session));
    operate(&mut image, session, &link(kept, "kept")).unwrap();
    image.end_session(session).unwrap();
    image.background(stamp()).unwrap();
    assert_eq!((inodes(&image), check(image.tables(), &label())), (2, Vec::new()), "{lost:?} is left");
}

/// Opens a file; returns why it is refused.
fn open(image: &mut MetadataImage, session: u64, file: FileId) -> Option<i32> {
    let question = MetadataQuestion::Open { file, level: 0, is_direct: false };
    image.ask(stamp(), session, &question).err().map(|refusal| refusal.errno)
}

/// What was written to a file may be dropped when its last name goes and no other session has it open.
#[test]
fn removed_files_open_no_more() {
    let (mut image, session) = image();
    let other = begin(&mut image, 2);
    let file = make_nameless(&mut image, session);
    assert_eq!(open(&mut image, session, file), None, "it is open");
    assert_eq!(open(&mut image, other, file), Some(libc::ESTALE), "no other session gets it");
    close(&mut image, session, file);
    assert_eq!(open(&mut image, session, file), Some(libc::ESTALE), "it is only not freed yet");
}

/// An inode that was being freed is freed by a restarted server, so no session may say that it has it open.
#[test]
fn restart_opens_only_listed_files() {
    let (mut before, session) = image();
    let other = begin(&mut before, 2);
    let mut made = |name| create_in(&mut before, session, ROOT, name, libc::S_IFREG | 0o644).unwrap().id();
    let (freed, held) = (made("freed"), made("held"));
    assert_eq!(open(&mut before, session, held), None);
    ["freed", "held"].iter().for_each(|name| drop(operate(&mut before, session, &unlink(name)).unwrap()));
    let mut image = MetadataImage::load(before.tables().clone(), &label(), 2).unwrap();
    assert_eq!(open(&mut image, session, freed), Some(libc::ESTALE));
    assert_eq!(open(&mut image, session, held), None);
    image.reclaimed(session).unwrap();
    image.reclaimed(other).unwrap();
    assert_eq!(open(&mut image, other, held), Some(libc::ESTALE), "it had listed all");
}

/// An inode that is being freed is not changed any more: a restarted server frees it before sessions repeat such a change.
#[test]
fn freed_inodes_change_no_more() {
    let (mut before, session) = image();
    let mut made = |name| create_in(&mut before, session, ROOT, name, libc::S_IFREG | 0o644).unwrap().id();
    let (freed, held) = (made("freed"), made("held"));
    assert_eq!(open(&mut before, session, held), None);
    ["freed", "held"].iter().for_each(|name| drop(operate(&mut before, session, &unlink(name)).unwrap()));
    let chmod = |file| {
        let changes = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
        MetadataOperation::SetAttributes { file, changes }
    };
    let stored = before.tables().clone();
    for change in [chmod(freed), set(freed, b"user.a".to_vec(), vec![7])] {
        assert_eq!(operate(&mut before, session, &change), Err(libc::ESTALE));
    }
    // What is open changes, and a restarted server can repeat that, although the file was closed meanwhile.
    operate(&mut before, session, &chmod(held)).unwrap();
    close(&mut before, session, held);
    operate(&mut before, session, &chmod(held)).unwrap();
    let mut image = MetadataImage::load(stored, &label(), 2).unwrap();
    image.background(stamp()).unwrap();
    for _ in 0..2 {
        let number = image.next_number(session);
        image.operate_again(stamp(), session, number, &chmod(held)).0.unwrap();
    }
    assert_eq!(operate(&mut image, session, &chmod(freed)), Err(libc::ESTALE), "it is gone");
}

/// Data that is not committed may be dropped with the last name only if no other session has the file open.
#[test]
fn removed_file_is_others_while_open() {
    let (mut image, session) = image();
    let other = begin(&mut image, 2);
    let lost = |image: &mut MetadataImage, name: &str| {
        let Ok(ServerAnswer::Attributes(mut removed)) = operate(image, session, &unlink(name)) else {
            panic!("{name}")
        };
        image.flag_lost(session, &mut removed);
        removed.inode.flags & LOST_TO_OTHERS != 0
    };
    let mut files = Vec::new();
    for name in ["alone", "others", "linked", "restarted"] {
        files.push(create_in(&mut image, session, ROOT, name, libc::S_IFREG | 0o644).unwrap().id());
    }
    assert_eq!(open(&mut image, session, files[0]), None);
    assert_eq!(open(&mut image, other, files[1]), None);
    operate(&mut image, session, &link(files[2], "second")).unwrap();
    assert!(lost(&mut image, "alone"), "the session's own handles count not");
    assert!(!lost(&mut image, "others"));
    assert!(!lost(&mut image, "linked"), "it has another name");
    let mut image = MetadataImage::load(image.tables().clone(), &label(), 2).unwrap();
    assert!(!lost(&mut image, "restarted"), "not all sessions have listed what they have open");
}

/// Nameless files stay until each session has listed the files that it has open.
#[test]
fn restart_keeps_unlisted_nameless_files() {
    let (mut before, session) = image();
    let (linked, open, closed) =
        (make_nameless(&mut before, session), make_nameless(&mut before, session), make_nameless(&mut before, session));
    let mut image = MetadataImage::load(before.tables().clone(), &label(), 2).unwrap();
    image.background(stamp()).unwrap();
    assert_eq!(inodes(&image), 4);
    // A link may be repeated before the session has listed its open files.
    operate(&mut image, session, &link(linked, "a")).unwrap();
    image.ask(stamp(), session, &MetadataQuestion::Open { file: open, level: 0, is_direct: false }).unwrap();
    image.reclaimed(session).unwrap();
    image.background(stamp()).unwrap();
    assert_eq!((inodes(&image), check(image.tables(), &label())), (3, Vec::new()));
    assert_eq!(operate(&mut image, session, &link(closed, "b")), Err(libc::ESTALE));
    operate(&mut image, session, &link(open, "b")).unwrap();
}

fn set(file: FileId, name: Vec<u8>, value: Vec<u8>) -> MetadataOperation {
    MetadataOperation::SetXattr { file, name, value, flags: 0 }
}

/// An attribute of the largest size is stored, and one more byte is refused.
#[test]
fn attribute_size_limit_is_exact() {
    let (mut image, session) = image();
    let file = create_in(&mut image, session, ROOT, "a", libc::S_IFREG | 0o644).unwrap().id();
    let value = vec![7; XATTR_VALUE_BYTES_MAX];
    assert_eq!(XATTR_VALUE_BYTES_MAX, 65536);
    operate(&mut image, session, &set(file, b"user.a".to_vec(), value.clone())).unwrap();
    let read = MetadataQuestion::ReadXattr { file, name: b"user.a".to_vec() };
    assert_eq!(image.ask(stamp(), session, &read).unwrap().answer, ServerAnswer::Bytes(value.clone()));
    let more = set(file, b"user.b".to_vec(), [value.clone(), vec![7]].concat());
    assert_eq!(operate(&mut image, session, &more), Err(libc::E2BIG));
    // All attributes of an inode together have at most 1 MiB.
    let mut stored = 1;
    let full = loop {
        match operate(&mut image, session, &set(file, format!("user.b{stored}").into_bytes(), value.clone())) {
            Ok(_) => stored += 1,
            Err(errno) => break errno,
        }
    };
    assert_eq!((stored, full), (15, libc::ENOSPC));
    operate(&mut image, session, &set(file, b"user.a".to_vec(), vec![7; 9])).unwrap();
}

/// Many attributes of a removed file are freed in several transactions.
#[test]
fn attribute_names_are_bounded() {
    let (mut image, session) = image();
    let file = create_in(&mut image, session, ROOT, "a", libc::S_IFREG | 0o644).unwrap().id();
    let number = |image: &MetadataImage| image.next_number(session);
    let mut count = 0u64;
    let full = loop {
        let name = format!("user.{count:04x}").into_bytes();
        let next = number(&image);
        match image.operate(stamp(), session, next, &set(file, name, Vec::new())).0 {
            Ok(_) => count += 1,
            Err(failure) => break failure.errno,
        }
        if count.is_multiple_of(512) {
            image.acknowledge(session, next, 5);
            image.background(stamp()).unwrap();
        }
    };
    // Each name has nine bytes and a zero byte in a listing, which has at most 64 KiB.
    assert_eq!((count, full), (6553, libc::ENOSPC));
    let listed = image.ask(stamp(), session, &MetadataQuestion::ListXattrs { file }).unwrap().answer;
    assert!(matches!(&listed, ServerAnswer::Names(names) if names.len() == 6553));
    operate(&mut image, session, &unlink("a")).unwrap();
    while inodes(&image) > 1 {
        image.background(stamp()).expect("each part fits into a transaction");
    }
    assert_eq!(check(image.tables(), &label()), Vec::<String>::new());
}

#[test]
fn path_map_is_found() {
    let (mut image, session) = image();
    let directory = create_in(&mut image, session, ROOT, "d", libc::S_IFDIR | 0o755).unwrap().id();
    let file = create_in(&mut image, session, directory, "a", libc::S_IFREG | 0o644).unwrap().id();
    let other = create_in(&mut image, session, directory, "b", libc::S_IFREG | 0o644).unwrap().id();
    let block = space(&mut image, session, 64);
    operate(&mut image, session, &commit(file, 3, block, 2)).unwrap();
    operate(&mut image, session, &commit(other, 0, block + 2, 1)).unwrap();
    operate(&mut image, session, &MetadataOperation::Allocate { file, start: 40960, end: 45056, mode: 0 }).unwrap();
    let look = |path: &str| file_map(image.tables(), &label(), path.as_bytes()).map_err(|failure| failure.errno);
    let found = look("/d/./a").unwrap();
    let extents: Vec<_> =
        found.extents.iter().map(|(start, extent)| (*start, extent.blocks, extent.is_unwritten)).collect();
    assert_eq!((found.attributes.number, extents), (file.inode, vec![(3, 2, false), (10, 1, true)]));
    assert_eq!(found.extents[0].1.block, block);
    assert_eq!(look("").map(|found| found.attributes.number), Ok(1));
    assert_eq!((look("d/c"), look("d/a/b"), look("d/..")), (Err(libc::ENOENT), Err(libc::ENOTDIR), Err(libc::ENOENT)));
}

/// Changes attributes; returns the permission bits, the owner and the group.
fn changed(image: &mut MetadataImage, session: u64, file: FileId, changes: AttributeChanges) -> Result<[u32; 3], i32> {
    match operate(image, session, &MetadataOperation::SetAttributes { file, changes })? {
        ServerAnswer::Attributes(InodeAttributes { inode, .. }) => Ok([inode.mode & 0o7777, inode.owner, inode.group]),
        other => panic!("{other:?}"),
    }
}

/// Each host sends what its kernel made of the mode that it knew.
#[test]
fn rights_are_cleared_from_present_mode() {
    let (mut image, session) = image();
    let file = create_in(&mut image, session, ROOT, "file", libc::S_IFREG | 0o644).unwrap().id();
    let nothing = AttributeChanges::default();
    let (rights, dropped) = (AttributeChanges { mode: Some(0o6755), ..nothing }, [0o755, 0, 0]);
    for clearing in [
        AttributeChanges { owner: Some(0), ..nothing },
        AttributeChanges { group: Some(0), ..nothing },
        AttributeChanges { drops_rights: true, ..nothing },
    ] {
        changed(&mut image, session, file, rights).unwrap();
        assert_eq!(changed(&mut image, session, file, clearing), Ok(dropped), "{clearing:?}");
    }
    let both = AttributeChanges { owner: Some(7), ..rights };
    assert_eq!(changed(&mut image, session, file, both), Ok([0o6755, 7, 0]), "the mode is given");
    let locked = AttributeChanges { mode: Some(0o2600), ..nothing };
    changed(&mut image, session, file, locked).unwrap();
    let clearing = AttributeChanges { drops_rights: true, ..nothing };
    assert_eq!(changed(&mut image, session, file, clearing), Ok([0o2600, 7, 0]), "the group may not run it");
    let directory = create_in(&mut image, session, ROOT, "directory", libc::S_IFDIR | 0o755).unwrap().id();
    changed(&mut image, session, directory, AttributeChanges { mode: Some(0o2775), ..nothing }).unwrap();
    let given = AttributeChanges { group: Some(9), ..nothing };
    assert_eq!(changed(&mut image, session, directory, given), Ok([0o2775, 0, 9]), "it is for new inodes");
}

/// A change that an owner began before another host gave the file away comes after that.
#[test]
fn change_by_earlier_owner_is_refused() {
    let (mut image, session) = image();
    let file = create_in(&mut image, session, ROOT, "file", libc::S_IFREG | 0o644).unwrap().id();
    let nothing = AttributeChanges::default();
    let set = |mode, owner, group| {
        let judged = Some(JudgedOwner { owner, group });
        AttributeChanges { mode: Some(mode), judged, ..nothing }
    };
    changed(&mut image, session, file, AttributeChanges { owner: Some(7), group: Some(8), ..nothing }).unwrap();
    assert_eq!(changed(&mut image, session, file, set(0o2755, 7, 8)), Ok([0o2755, 7, 8]));
    changed(&mut image, session, file, AttributeChanges { owner: Some(9), ..nothing }).unwrap();
    assert_eq!(changed(&mut image, session, file, set(0o4755, 7, 8)), Err(libc::EPERM));
    assert_eq!(changed(&mut image, session, file, set(0o2755, 9, 3)), Ok([0o755, 9, 8]), "it has another group");
}
