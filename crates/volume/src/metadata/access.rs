//! Access control lists (POSIX.1e draft 17): their encoding, and how lists and modes stay consistent.
//!
//! Owns: the mode that follows from a list, the changes of a list that follow from a mode, and the lists that a new
//! inode inherits. Promises: the mode of an inode and its list agree after every operation; a list that grants exactly
//! what a mode can express is not stored. Leaves to the kernel of each host: checking access by lists, and who may
//! change them.
//!
//! The encoding is the kernel's: version 2 (4 bytes), then for each entry tag (2), permissions (2), user or group (4).

use super::change::{Result, TableChange};
use super::records::{decode_xattr, posix, put_xattr};
use crate::format::{Inode, TableKey};

/// The attribute with the access list of an inode.
pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with a directory's default list, which new inodes in it inherit.
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";
/// The prefix of the attribute names of all lists.
const PREFIX: &[u8] = b"system.posix_acl_";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
const ALL: u16 = 7;
/// The permission bits of a mode.
const PERMISSIONS: u32 = 0o777;

/// The kind of user or group that an entry is for, in the order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AccessListTag {
    Owner = 1,
    User = 2,
    OwningGroup = 4,
    Group = 8,
    Mask = 16,
    Other = 32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AccessListEntry {
    tag: AccessListTag,
    permissions: u16,
    /// The number of the user or group.
    id: u32,
}

/// A well-formed list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AccessList(Vec<AccessListEntry>);

fn tag_of(number: u16) -> Option<AccessListTag> {
    let all = [
        AccessListTag::Owner,
        AccessListTag::User,
        AccessListTag::OwningGroup,
        AccessListTag::Group,
        AccessListTag::Mask,
        AccessListTag::Other,
    ];
    all.into_iter().find(|tag| *tag as u16 == number)
}

/// Whether an attribute name has the prefix of access control lists.
pub(super) fn is_list(name: &[u8]) -> bool {
    name.starts_with(PREFIX)
}

impl AccessList {
    /// Reads a list. `None`: the bytes are no well-formed list.
    pub fn decode(value: &[u8]) -> Option<AccessList> {
        let (header, entries) = value.split_at_checked(HEADER_BYTES)?;
        let (entries, []) = entries.as_chunks::<ENTRY_BYTES>() else { return None };
        if header != VERSION.to_le_bytes() {
            return None;
        }
        let mut list = Vec::new();
        for &[tag_0, tag_1, permissions_0, permissions_1, id @ ..] in entries {
            let tag = tag_of(u16::from_le_bytes([tag_0, tag_1]))?;
            let permissions = u16::from_le_bytes([permissions_0, permissions_1]);
            list.push(AccessListEntry { tag, permissions, id: u32::from_le_bytes(id) });
        }
        let list = AccessList(list);
        list.is_sound().then_some(list)
    }

    /// Whether the entries are in this order: owner, users, owning group, groups, mask, others. Users and groups may be
    /// missing or repeated; a mask must be there if there are any of them.
    fn is_sound(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let named = count(AccessListTag::User) + count(AccessListTag::Group);
        self.0.is_sorted_by_key(|entry| entry.tag)
            && self.0.iter().all(|entry| entry.permissions <= ALL)
            && [AccessListTag::Owner, AccessListTag::OwningGroup, AccessListTag::Other]
                .into_iter()
                .all(|tag| count(tag) == 1)
            && (count(AccessListTag::Mask) == 1 || count(AccessListTag::Mask) == 0 && named == 0)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for AccessListEntry { tag, permissions, id } in &self.0 {
            bytes.extend((*tag as u16).to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    /// Whether a mode can express the whole list.
    pub fn is_mode(&self) -> bool {
        self.0
            .iter()
            .all(|entry| matches!(entry.tag, AccessListTag::Owner | AccessListTag::OwningGroup | AccessListTag::Other))
    }

    /// The entries that correspond to the mode's bits: owner, then the mask (the owning group if there is no mask),
    /// then others.
    fn shown(&self) -> [AccessListTag; 3] {
        let has_mask = self.0.iter().any(|entry| entry.tag == AccessListTag::Mask);
        [
            AccessListTag::Owner,
            if has_mask { AccessListTag::Mask } else { AccessListTag::OwningGroup },
            AccessListTag::Other,
        ]
    }

    /// Returns the permission bits that agree with the list.
    pub fn mode(&self) -> u32 {
        self.shown().into_iter().fold(0, |mode, tag| {
            let entry = self.0.iter().find(|entry| entry.tag == tag);
            mode << 3 | entry.map_or(0, |entry| u32::from(entry.permissions))
        })
    }

    /// Changes the list so that it agrees with a mode.
    fn set_mode(&mut self, mode: u32) {
        for (tag, shift) in self.shown().into_iter().zip([6, 3, 0]) {
            self.0.iter_mut().filter(|entry| entry.tag == tag).for_each(|entry| {
                entry.permissions = (mode >> shift) as u16 & ALL;
            });
        }
    }
}

fn stored(change: &TableChange<'_>, inode: u64, name: &[u8]) -> Option<AccessList> {
    let value = change.tables.get(&TableKey::Xattr(inode, name.to_vec()))?;
    AccessList::decode(&decode_xattr(value))
}

/// Sets a list of an inode, and the mode that agrees with it.
///
/// *Errors*: EINVAL for bytes that are no list, EACCES for a default list of an inode that is no directory, EOPNOTSUPP
/// for a symbolic link.
pub(super) fn set_list(
    change: &mut TableChange<'_>,
    number: u64,
    found: &mut Inode,
    (name, value): (&[u8], &[u8]),
) -> Result<()> {
    let kind = found.mode & libc::S_IFMT;
    let list = AccessList::decode(value).ok_or(posix(libc::EINVAL));
    match name {
        ACCESS | DEFAULT if kind == libc::S_IFLNK => Err(posix(libc::EOPNOTSUPP)),
        ACCESS => {
            let list = list?;
            found.mode = found.mode & !PERMISSIONS | list.mode();
            match list.is_mode() {
                true => change.delete(&TableKey::Xattr(number, name.to_vec())),
                false => put_xattr(change, number, name, value),
            }
            Ok(())
        }
        DEFAULT if kind != libc::S_IFDIR => Err(posix(libc::EACCES)),
        DEFAULT => list.map(|_| put_xattr(change, number, name, value)),
        _ => Err(posix(libc::EOPNOTSUPP)),
    }
}

/// Changes the list of an inode after its mode was set, so that both agree.
pub(super) fn follow_mode(change: &mut TableChange<'_>, number: u64, mode: u32) {
    if let Some(mut list) = stored(change, number, ACCESS) {
        list.set_mode(mode);
        put_xattr(change, number, ACCESS, &list.encode());
    }
}

/// Returns a mode without the bits that give rights to those who run the file: set-user-ID, and set-group-ID where the
/// group may run it.
pub(super) fn without_rights(mode: u32) -> u32 {
    let group = if mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
    mode & !(libc::S_ISUID | group)
}

/// Stores the lists that a new inode inherits from its directory, and returns the mode of the inode. The umask applies
/// only if the directory has no default list.
pub(super) fn inherit(change: &mut TableChange<'_>, directory: u64, number: u64, mode: u32, umask: u32) -> u32 {
    let kind = mode & libc::S_IFMT;
    if kind == libc::S_IFLNK {
        return mode;
    }
    let Some(list) = stored(change, directory, DEFAULT) else { return mode & !(umask & PERMISSIONS) };
    let allowed = mode & !PERMISSIONS | mode & list.mode();
    if !list.is_mode() {
        let mut own = list.clone();
        own.set_mode(allowed);
        put_xattr(change, number, ACCESS, &own.encode());
    }
    if kind == libc::S_IFDIR {
        put_xattr(change, number, DEFAULT, &list.encode());
    }
    allowed
}

/// Returns how a list contradicts its inode, if it does.
pub(super) fn problem(name: &[u8], value: &[u8], inode: &Inode) -> Option<String> {
    let kind = inode.mode & libc::S_IFMT;
    let Some(list) = AccessList::decode(value) else { return Some("is no access control list".to_owned()) };
    match name {
        ACCESS if kind == libc::S_IFLNK => Some("is of a symbolic link".to_owned()),
        ACCESS if list.is_mode() => Some("says no more than the mode".to_owned()),
        ACCESS if list.mode() != inode.mode & PERMISSIONS => {
            Some(format!("agrees with mode {:o}, and the mode is {:o}", list.mode(), inode.mode & PERMISSIONS))
        }
        DEFAULT if kind != libc::S_IFDIR => Some("is of what is no directory".to_owned()),
        ACCESS | DEFAULT => None,
        _ => Some("is a list of no known kind".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes().iter().chain(&permissions.to_le_bytes()).chain(&id.to_le_bytes()));
        }
        bytes
    }

    #[test]
    fn access_list_and_mode_agree() {
        let value = bytes(&[(1, 7, u32::MAX), (2, 6, 4242), (4, 5, u32::MAX), (16, 4, u32::MAX), (32, 1, u32::MAX)]);
        let mut list = AccessList::decode(&value).unwrap();
        // If a list has a mask, the group bits of the mode are the mask.
        assert_eq!((list.mode(), list.is_mode(), list.encode()), (0o741, false, value));
        list.set_mode(0o100620);
        let other = bytes(&[(1, 6, u32::MAX), (2, 6, 4242), (4, 5, u32::MAX), (16, 2, u32::MAX), (32, 0, u32::MAX)]);
        assert_eq!((list.mode(), list.encode()), (0o620, other));
        let plain = AccessList::decode(&bytes(&[(1, 6, 0), (4, 4, 0), (32, 0, 0)])).unwrap();
        assert_eq!((plain.mode(), plain.is_mode()), (0o640, true));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let sound = [(1, 7, 0), (2, 6, 5), (4, 5, 0), (8, 3, 6), (16, 4, 0), (32, 1, 0)];
        assert!(AccessList::decode(&bytes(&sound)).is_some());
        for missing in [0, 2, 4, 5] {
            let mut less = sound.to_vec();
            less.remove(missing);
            assert!(AccessList::decode(&bytes(&less)).is_none(), "without entry {missing}");
        }
        for twice in [0, 2, 4, 5] {
            let mut more = sound.to_vec();
            more.insert(twice, sound[twice]);
            assert!(AccessList::decode(&bytes(&more)).is_none(), "entry {twice} twice");
        }
        for (index, entry) in [(0, (1, 8, 0)), (1, (3, 6, 5)), (3, (64, 3, 6)), (2, (8, 5, 0))] {
            let mut wrong = sound.to_vec();
            wrong[index] = entry;
            assert!(AccessList::decode(&bytes(&wrong)).is_none(), "{entry:?}");
        }
        let whole = bytes(&sound);
        for cut in 0..whole.len() {
            assert!(AccessList::decode(&whole[..cut]).is_none(), "{cut} bytes");
        }
        assert!(AccessList::decode(&[&[3], &whole[1..]].concat()).is_none(), "another version");
        assert!(AccessList::decode(&VERSION.to_le_bytes()).is_none(), "an empty list");
    }
}
