//! Single cases of names and attributes that sessions keep, and of the server's side.

use std::sync::Arc;

use super::tests::{DIRECTORY, text};
use super::{CachedLookup, ListingPart, LookupCache};
use crate::format::Inode;
use crate::protocol::{
    AttributeChanges, FileId, InodeAttributes, MayKeep, MetadataOperation, Token, TokenAspect, TokenGrant,
};
use crate::tokens::{self, LookupChange, level};

fn make(directory: FileId, name: &[u8]) -> MetadataOperation {
    super::super::NewInode::default().operation(directory, name, false)
}

fn version(file: FileId, version: u64) -> InodeAttributes {
    InodeAttributes { number: file.inode, inode: Inode { generation: file.generation, version, ..Inode::default() } }
}

#[test]
fn new_directory_cached_as_empty() {
    let looks = Arc::new(LookupCache::new());
    let (made, file) = (FileId { inode: 9, generation: 1 }, FileId { inode: 10, generation: 1 });
    let may_keep = |directories: &[FileId], kept: FileId| MayKeep {
        directories: directories.to_vec(),
        attributes: vec![version(kept, 1)],
    };
    looks.changing(&make(DIRECTORY, b"made")).end_with(may_keep(&[DIRECTORY, made], made), Some(made));
    assert_eq!((looks.name(made, b"a"), looks.name(DIRECTORY, b"a")), (Some(CachedLookup::Absent), None));
    assert_eq!(looks.name(DIRECTORY, b"made"), Some(CachedLookup::Present(Box::new(version(made, 1)))));
    let changing = looks.changing(&make(made, b"a"));
    assert_eq!((looks.name(made, b"a"), looks.name(made, b"b")), (None, Some(CachedLookup::Absent)));
    drop(changing);
    assert_eq!(looks.name(made, b"a"), None, "it may have been made");
    looks.changing(&make(made, b"a")).end_with(may_keep(&[made], file), Some(file));
    assert_eq!(looks.name(made, b"a"), Some(CachedLookup::Present(Box::new(version(file, 1)))));
    let unlink = MetadataOperation::Unlink { directory: made, name: b"a".to_vec(), is_directory: false, expected: 0 };
    looks.changing(&unlink).end_with(may_keep(&[made], made), Some(file));
    assert_eq!(looks.name(made, b"a"), Some(CachedLookup::Absent));
    looks.name_changes(made, b"b");
    assert_eq!((looks.name(made, b"b"), looks.name(made, b"c")), (None, Some(CachedLookup::Absent)));
    looks.recalled(Token { object: made, what: TokenAspect::Directory });
    assert_eq!(looks.name(made, b"c"), None);
}

#[test]
fn chmod_of_directory_keeps_its_names() {
    let looks = Arc::new(LookupCache::new());
    looks.keep_listing(looks.now(), DIRECTORY, ListingPart { from: 0, to: 0, is_end: true });
    let file = version(FileId { inode: 9, generation: 1 }, 1);
    looks.keep_attributes(looks.now(), &file);
    looks.keep_name(looks.now(), DIRECTORY, b"a", Some(file.id()));
    let is_kept = || looks.name(DIRECTORY, b"a").is_some() && looks.name(DIRECTORY, b"b") == Some(CachedLookup::Absent);
    assert!(is_kept());
    let chmod = MetadataOperation::SetAttributes { file: DIRECTORY, changes: AttributeChanges::default() };
    let changing = looks.changing(&chmod);
    assert!(is_kept() && looks.attributes(DIRECTORY).is_none());
    // An answer to an earlier question may be older than the change, so it is not kept.
    looks.keep_attributes(looks.now(), &version(DIRECTORY, 1));
    assert_eq!(looks.attributes(DIRECTORY), None);
    drop(changing);
    assert!(is_kept());
    // A directory that is removed has no names.
    looks.keep_name(looks.now(), DIRECTORY, b"a", Some(DIRECTORY));
    drop(looks.changing(&MetadataOperation::Unlink {
        directory: DIRECTORY,
        name: b"a".to_vec(),
        is_directory: true,
        expected: 0,
    }));
    assert_eq!(looks.name(DIRECTORY, b"b"), None);
}

#[test]
fn newest_change_alone_is_kept() {
    let looks = Arc::new(LookupCache::new());
    let may_keep = |number| MayKeep { directories: vec![DIRECTORY], attributes: vec![version(DIRECTORY, number)] };
    let kept = || looks.attributes(DIRECTORY).map(|found| found.inode.version);
    for is_older_first in [false, true] {
        let (older, newer) = (looks.changing(&make(DIRECTORY, b"a")), looks.changing(&make(DIRECTORY, b"b")));
        assert_eq!(kept(), None);
        if is_older_first {
            older.end_with(may_keep(1), None);
            assert_eq!(kept(), None, "the newer one has changed it meanwhile");
            newer.end_with(may_keep(2), None);
        } else {
            newer.end_with(may_keep(2), None);
            older.end_with(may_keep(1), None);
        }
        assert_eq!(kept(), Some(2));
    }
}

#[test]
fn changed_listing_is_incomplete() {
    let looks = Arc::new(LookupCache::new());
    let part = |from, to, is_end| ListingPart { from, to, is_end };
    let is_absent = || looks.name(DIRECTORY, b"a") == Some(CachedLookup::Absent);
    looks.keep_listing(looks.now(), DIRECTORY, part(0, 5, false));
    looks.keep_listing(looks.now(), DIRECTORY, part(7, 9, true));
    assert!(!is_absent(), "a part is missing");
    looks.keep_listing(looks.now(), DIRECTORY, part(0, 5, false));
    looks.name_changes(DIRECTORY, b"b");
    looks.keep_listing(looks.now(), DIRECTORY, part(5, 9, true));
    assert!(!is_absent(), "a name was changed since it began");
    let before = looks.now();
    looks.name_changes(DIRECTORY, b"b");
    looks.keep_listing(looks.now(), DIRECTORY, part(0, 5, false));
    looks.keep_listing(before, DIRECTORY, part(4, 9, true));
    assert!(!is_absent(), "a part is older than the change");
    looks.keep_listing(looks.now(), DIRECTORY, part(0, 5, false));
    looks.keep_listing(looks.now(), DIRECTORY, part(4, 9, true));
    assert!(is_absent());
}

#[test]
fn limit_recalls_oldest_grant() {
    let mut server = tokens::LookupGrants::new(1);
    let token = |inode| Token { object: FileId { inode, generation: 1 }, what: TokenAspect::Attributes };
    for inode in 0..=tokens::LOOKS_MAX as u64 {
        assert!(server.offer(0, 1, token(inode)).is_some());
    }
    let recalls = server.take_recalls();
    assert_eq!(recalls.iter().map(|(session, held)| (*session, held.token)).collect::<Vec<_>>(), [(1, token(0))]);
    server.returned(1, recalls[0].1);
    assert_eq!(server.count(), tokens::LOOKS_MAX);
    server.forget(1);
    assert_eq!(server.count(), 0);
}

/// What was requested again is not the oldest, so it is not recalled at the limit.
#[test]
fn repeated_lookup_renews_its_grant() {
    let mut server = tokens::LookupGrants::new(1);
    let token = |inode| Token { object: FileId { inode, generation: 1 }, what: TokenAspect::Attributes };
    let names = Token { object: DIRECTORY, what: TokenAspect::Directory };
    let mut sequence = server.offer(0, 1, names).expect("it is granted");
    for inode in 0..tokens::LOOKS_MAX as u64 {
        assert!(server.offer(0, 1, token(inode)).is_some());
        let again = server.offer(0, 1, names).expect("it is granted");
        assert!(again >= sequence);
        sequence = again;
    }
    let recalls = server.take_recalls();
    assert_eq!(recalls.iter().map(|(_, held)| held.token).collect::<Vec<_>>(), [token(0)]);
    server.returned(1, TokenGrant { token: names, level: level::NONE, sequence });
    assert_eq!(server.count(), tokens::LOOKS_MAX);
}

#[test]
fn missed_recall_is_repeated() {
    let mut server = tokens::LookupGrants::new(1);
    let token = Token { object: DIRECTORY, what: TokenAspect::Attributes };
    let change = LookupChange { tokens: vec![token], names: Vec::new() };
    assert!(server.offer(0, 1, token).is_some());
    assert!(!server.begin_change(1, 2, &change, 7));
    let first = server.take_recalls();
    assert!(server.offer(2, 3, token).is_none(), "it is being changed");
    server.repeat(1);
    assert_eq!(server.take_recalls(), first);
    assert_eq!(server.asked().collect::<Vec<_>>(), [(1, DIRECTORY.inode, 1)]);
    server.returned(1, first[0].1);
    assert_eq!(server.take_ready(), [7]);
    server.end_change(&[token]);
    assert!(server.offer(3, 3, token).is_none(), "hosts that take turns need no recall each time");
    assert!(server.offer(1000, 3, token).is_some());
}

/// A change of one name leaves the other cached names of its directory.
#[test]
fn name_change_keeps_other_names() {
    let mut server = tokens::LookupGrants::new(1);
    let token = Token { object: DIRECTORY, what: TokenAspect::Directory };
    let change = |name: u64| LookupChange { tokens: vec![token], names: vec![(DIRECTORY, text(name))] };
    let granted = server.offer(0, 1, token);
    assert!(granted.is_some());
    for (now, name) in (0..16).zip(0..) {
        assert!(!server.begin_change(now, 2, &change(name), 100 + name));
        let told = server.take_name_changes();
        let [(1, number, _)] = told[..] else { panic!("{told:?}") };
        assert!(server.offer(now, 1, token).is_none(), "a name is being changed");
        server.repeat(1);
        assert_eq!(server.take_name_changes(), told);
        assert_eq!(server.asked().collect::<Vec<_>>(), [(1, DIRECTORY.inode, now)]);
        server.name_dropped(1, number);
        server.name_dropped(1, number);
        assert_eq!(server.take_ready(), [100 + name]);
        server.end_change(&[token]);
        assert_eq!(server.offer(now, 1, token), granted, "it keeps the other names");
        assert!(server.take_recalls().is_empty());
    }
    // Too many: all names are wanted back, and no change waits for that.
    assert!(!server.begin_change(20, 2, &change(1), 200));
    assert_eq!(server.take_recalls().len(), 1);
    let told = server.take_name_changes();
    server.name_dropped(1, told[0].1);
    assert_eq!(server.take_ready(), [200]);
    server.end_change(&[token]);
    assert!(server.offer(30, 1, token).is_none() && server.offer(30, 3, token).is_none());
    // A session that is over keeps nobody waiting.
    assert!(!server.begin_change(40, 2, &change(2), 300));
    server.forget(1);
    assert_eq!((server.take_ready(), server.count()), (vec![300], 0));
}

/// A complete listing answers neither for `.`, `..` nor for names that are too long.
#[test]
fn complete_directory_excludes_dot_names() {
    let looks = Arc::new(LookupCache::new());
    looks.keep_listing(looks.now(), DIRECTORY, ListingPart { from: 0, to: 0, is_end: true });
    assert_eq!(looks.name(DIRECTORY, &[b'a'; 255]), Some(CachedLookup::Absent));
    assert_eq!(looks.name(DIRECTORY, &[b'a'; 256]), None, "the server says that it is too long");
    assert_eq!((looks.name(DIRECTORY, b".."), looks.name(DIRECTORY, b".")), (None, None));
}

#[test]
fn changes_of_unsure_names_end_first() {
    let looks = Arc::new(LookupCache::new());
    let (file, other) =
        (version(FileId { inode: 9, generation: 1 }, 1), version(FileId { inode: 10, generation: 1 }, 1));
    let unlink =
        MetadataOperation::Unlink { directory: DIRECTORY, name: b"a".to_vec(), is_directory: false, expected: 0 };
    let others: [fn(&LookupCache); 3] = [
        |looks| looks.name_changes(DIRECTORY, b"a"),
        |looks| looks.recalled(Token { object: DIRECTORY, what: TokenAspect::Directory }),
        LookupCache::clear,
    ];
    for change in others {
        looks.keep_name(looks.now(), DIRECTORY, b"a", Some(file.id()));
        let changing = looks.changing(&unlink);
        looks.keep_attributes(looks.now(), &other);
        assert_eq!(looks.attributes(other.id()), Some(other.clone()), "it is another inode");
        change(&looks);
        looks.keep_attributes(looks.now(), &other);
        assert_eq!(looks.attributes(other.id()), None, "it may have the name when the server removes it");
        drop(changing);
        looks.keep_attributes(looks.now(), &other);
        assert_eq!(looks.attributes(other.id()), Some(other.clone()));
    }
    // A new inode has no other name.
    let changing = looks.changing(&make(DIRECTORY, b"b"));
    looks.name_changes(DIRECTORY, b"b");
    drop(changing);
    assert_eq!(looks.attributes(other.id()), Some(other));
}
