//! Operations on names: create, link, unlink, rename.
//!
//! Owns: directories, and inodes that have no name yet, or no longer. Promises: the cookie of a name never changes while
//! the name exists; a directory is never below itself; an inode that is being freed gets no name.

use std::hash::Hasher;

use super::access;
use super::change::{Result, TableChange, damaged};
pub(super) use super::effects::is_directory;
use super::effects::{self, MadeInode};
use super::image::{AppendStamp, ImageParts};
use super::records::{FIRST_INODE, ROOT, inode, posix};
use crate::format::{
    INLINE_BYTES_MAX, Inode, NAME_BYTES_MAX, NameRecord, OrphanRecord, OrphanState, TARGET_BYTES_MAX, TableKey,
    TableKind,
};
use crate::planted::{Bug, planted};
use crate::protocol::{FileId, InodeAttributes, MappedExtent, MetadataOperation, ServerAnswer, ServerRefusal};
use crate::tables::MetadataTables;

const HASH_BITS: u32 = 48;
const SERIAL_BITS: u32 = 15;
const LINKS_MAX: u32 = 65_000;
/// An inode that was made before the server was replaced has a number at most this far ahead of the next one.
const NUMBERS_AHEAD_MAX: u64 = 1 << 24;
/// The maximum number of directories on the way to the root: a longer way must be a cycle.
const DEPTH_MAX: u32 = 1 << 20;
const NO_REPLACE: u32 = 1;
const EXCHANGE: u32 = 2;
const WHITEOUT: u32 = 4;

/// Returns the first cookie that a name can have.
#[allow(deprecated)]
pub(super) fn first_cookie(hash_key: &[u8; 16], name: &[u8]) -> u64 {
    let (low, high) = hash_key.split_at(8);
    let part = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    // The standard library's hasher is SipHash-2-4, which the format prescribes.
    let mut hasher = std::hash::SipHasher::new_with_keys(part(low), part(high));
    hasher.write(name);
    (hasher.finish() >> (64 - HASH_BITS)) << SERIAL_BITS
}

/// Finds a name in a directory; returns its cookie and its record.
pub(super) fn find(
    tables: &MetadataTables,
    hash_key: &[u8; 16],
    directory: u64,
    name: &[u8],
) -> Result<Option<(u64, NameRecord)>> {
    let first = first_cookie(hash_key, name);
    for (key, value) in tables.from(&TableKey::Entry(directory, first)) {
        match TableKey::decode(TableKind::Entries, key).map_err(damaged)? {
            TableKey::Entry(of, cookie) if of == directory && cookie >> SERIAL_BITS == first >> SERIAL_BITS => {
                let found = NameRecord::decode(value).map_err(damaged)?;
                if found.name == name {
                    return Ok(Some((cookie, found)));
                }
            }
            _ => break,
        }
    }
    Ok(None)
}

fn free_cookie(tables: &MetadataTables, hash_key: &[u8; 16], directory: u64, name: &[u8]) -> Result<u64> {
    let first = first_cookie(hash_key, name);
    let free =
        (first..first + (1 << SERIAL_BITS)).find(|cookie| tables.get(&TableKey::Entry(directory, *cookie)).is_none());
    free.ok_or(posix(libc::ENOSPC))
}

fn put_inode(change: &mut TableChange<'_>, number: u64, inode: &mut Inode) -> Result<()> {
    effects::stored(inode);
    store_access(change, number, inode)
}

/// Stores an inode of which only the time of access changed: its version stays, so caches of its contents stay valid.
pub(super) fn store_access(change: &mut TableChange<'_>, number: u64, inode: &Inode) -> Result<()> {
    let bytes = inode.encode().map_err(|_| posix(libc::EFBIG))?;
    change.put(&TableKey::Inode(number), bytes);
    Ok(())
}

fn put_orphan(change: &mut TableChange<'_>, stamp: AppendStamp, number: u64, state: OrphanState) {
    change.put(&TableKey::Orphan(number), OrphanRecord { since: stamp.sequence, state }.encode());
}

fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(posix(libc::EINVAL)),
        _ if name.len() > NAME_BYTES_MAX => Err(posix(libc::ENAMETOOLONG)),
        _ if name.iter().any(|byte| matches!(byte, 0 | b'/')) => Err(posix(libc::EINVAL)),
        _ => Ok(()),
    }
}

/// Checks the target of a symbolic link: it must be in the inode, or in one block if it is too long for the inode.
fn check_target(is_link: bool, target: &[u8], block: Option<&MappedExtent>) -> Result<()> {
    let is_long = target.len() > INLINE_BYTES_MAX;
    match block {
        None if is_long => Err(posix(libc::ENAMETOOLONG)),
        None => Ok(()),
        Some(_) if target.len() > TARGET_BYTES_MAX => Err(posix(libc::ENAMETOOLONG)),
        Some(MappedExtent { file_block: 0, blocks: 1, is_unwritten: false, .. }) if is_link && is_long => Ok(()),
        Some(_) => Err(posix(libc::EINVAL)),
    }
}

/// Returns the inode of a name.
fn named_by(name: &NameRecord) -> FileId {
    FileId { inode: name.inode, generation: name.generation }
}

fn directory_of(change: &TableChange<'_>, directory: FileId) -> Result<Inode> {
    let found = inode(change.tables, directory)?;
    match (is_directory(&found), found.links) {
        (false, _) => Err(posix(libc::ENOTDIR)),
        (_, 0) => Err(posix(libc::ENOENT)),
        _ => Ok(found),
    }
}

impl ImageParts<'_> {
    /// Does an operation on names, or passes it to the operations on files.
    pub fn operate(
        &mut self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        session: u64,
        operation: &MetadataOperation,
    ) -> Result<ServerAnswer> {
        let done = match operation {
            MetadataOperation::Create { .. } => self.create(change, stamp, session, operation)?,
            MetadataOperation::Link { file, directory, name } => self.link(change, stamp, *file, (*directory, name))?,
            MetadataOperation::Unlink { directory, name, is_directory, expected } => {
                self.unlink(change, stamp, (*directory, name), *is_directory, *expected)?
            }
            MetadataOperation::Rename { directory, name, new_directory, new_name, flags } => {
                let (from, to) = ((*directory, &**name), (*new_directory, &**new_name));
                return self.rename(change, stamp, from, to, *flags).map(ServerAnswer::Renamed);
            }
            other => return self.operate_file(change, stamp, session, other),
        };
        Ok(ServerAnswer::Attributes(done))
    }

    /// Adds a name to a directory, and updates the directory's inode.
    fn add_name(
        &self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        directory: u64,
        name: &[u8],
        (number, found): (u64, &Inode),
    ) -> Result<()> {
        let cookie = free_cookie(change.tables, self.hash_key, directory, name)?;
        let kind = (found.mode >> 12) as u8;
        let entry = NameRecord { inode: number, generation: found.generation, kind, name: name.to_vec() };
        change.put(&TableKey::Entry(directory, cookie), entry.encode().map_err(|_| posix(libc::EINVAL))?);
        self.touch(change, stamp, directory, 1, if is_directory(found) { 1 } else { 0 })
    }

    fn remove_name(
        &self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        directory: u64,
        (cookie, entry): &(u64, NameRecord),
    ) -> Result<()> {
        change.delete(&TableKey::Entry(directory, *cookie));
        let is_directory = u32::from(entry.kind) == libc::S_IFDIR >> 12;
        self.touch(change, stamp, directory, -1, if is_directory { -1 } else { 0 })
    }

    fn touch(
        &self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        directory: u64,
        names: i64,
        links: i32,
    ) -> Result<()> {
        let mut found = inode(change.tables, FileId { inode: directory, generation: 0 })?;
        effects::touch(&mut found, (names, links), stamp.now_ns);
        put_inode(change, directory, &mut found)
    }

    fn create(
        &mut self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        session: u64,
        operation: &MetadataOperation,
    ) -> Result<InodeAttributes> {
        let MetadataOperation::Create {
            directory,
            name,
            mode,
            owner,
            group,
            umask,
            device,
            target,
            target_block,
            open,
            inode: before,
        } = operation
        else {
            return Err(posix(libc::EINVAL));
        };
        let kind = mode & libc::S_IFMT;
        // Only a session that has it open could use a file without a name.
        let is_nameless = name.is_empty() && *open && kind == libc::S_IFREG;
        if !is_nameless {
            check_name(name)?;
        }
        let parent = directory_of(change, *directory)?;
        if !is_nameless && find(change.tables, self.hash_key, directory.inode, name)?.is_some() {
            return Err(posix(libc::EEXIST));
        }
        let is_link = kind == libc::S_IFLNK;
        check_target(is_link, target, target_block.as_ref())?;
        let number = self.number_of(change, *before)?;
        let mode = access::inherit(change, directory.inode, number, *mode, *umask);
        if kind == libc::S_IFDIR && parent.links >= LINKS_MAX {
            return Err(posix(libc::EMLINK));
        }
        self.may_grow()?;
        let (owner, group, device) = (*owner, *group, *device);
        let is_inline = target_block.is_none();
        let new = MadeInode { mode, owner, group, device, target, is_inline, is_nameless };
        let mut made = effects::made(new, (directory.inode, &parent), stamp.now_ns);
        if let Some(block) = target_block {
            self.show(change, stamp, session, FileId { inode: number, generation: 1 }, &mut made, block)?;
        }
        put_inode(change, number, &mut made)?;
        match is_nameless {
            true => put_orphan(change, stamp, number, OrphanState::Nameless),
            false => self.add_name(change, stamp, directory.inode, name, (number, &made))?,
        }
        Ok(InodeAttributes { number, inode: made })
    }

    fn link(
        &mut self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        file: FileId,
        (directory, name): (FileId, &[u8]),
    ) -> Result<InodeAttributes> {
        check_name(name)?;
        let mut found = inode(change.tables, file)?;
        directory_of(change, directory)?;
        if is_directory(&found) {
            return Err(posix(libc::EPERM));
        }
        if found.links == 0 {
            self.may_get_name(change, file.inode)?;
        }
        if found.links >= LINKS_MAX {
            return Err(posix(libc::EMLINK));
        }
        if find(change.tables, self.hash_key, directory.inode, name)?.is_some() {
            return Err(posix(libc::EEXIST));
        }
        self.may_grow()?;
        if found.links == 0 {
            change.delete(&TableKey::Orphan(file.inode));
        }
        found.links += 1;
        found.parent = directory.inode;
        found.times_ns[2] = stamp.now_ns;
        put_inode(change, file.inode, &mut found)?;
        self.add_name(change, stamp, directory.inode, name, (file.inode, &found))?;
        Ok(InodeAttributes { number: file.inode, inode: found })
    }

    /// Refuses an inode without a name that may not get one: one that has lost its last name, or is being freed.
    fn may_get_name(&self, change: &TableChange<'_>, number: u64) -> Result<()> {
        let orphan =
            change.tables.get(&TableKey::Orphan(number)).map(OrphanRecord::decode).transpose().map_err(damaged)?;
        let is_nameless = orphan.is_some_and(|orphan| orphan.state == OrphanState::Nameless);
        // Whatever no session has open may be freed at any time, except after a restart, when sessions still have to
        // list what they have open.
        match is_nameless && (self.is_grace || self.opened.contains_key(&number)) {
            true => Ok(()),
            false => Err(posix(libc::ENOENT)),
        }
    }

    /// Decrements the link count of an inode; an inode without a name is freed once no session has it open.
    fn lose_name(&mut self, change: &mut TableChange<'_>, stamp: AppendStamp, number: u64) -> Result<Inode> {
        let mut found = inode(change.tables, FileId { inode: number, generation: 0 })?;
        effects::lose_name(&mut found, stamp.now_ns);
        put_inode(change, number, &mut found)?;
        if found.links == 0 {
            let is_open = (self.is_grace || self.opened.contains_key(&number)) && !planted(Bug::FreedWhileOpen);
            let state = if is_open { OrphanState::Open } else { OrphanState::BeingFreed };
            put_orphan(change, stamp, number, state);
            if !is_open {
                self.dying.push(number);
            }
        }
        Ok(found)
    }

    fn unlink(
        &mut self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        (directory, name): (FileId, &[u8]),
        wants_directory: bool,
        expected: u64,
    ) -> Result<InodeAttributes> {
        directory_of(change, directory)?;
        let found = find(change.tables, self.hash_key, directory.inode, name)?.ok_or(posix(libc::ENOENT))?;
        let number = found.1.inode;
        if expected != 0 && expected != number {
            return Err(posix(libc::ESTALE));
        }
        let named = inode(change.tables, FileId { inode: number, generation: 0 })?;
        match (wants_directory, is_directory(&named)) {
            (true, false) => return Err(posix(libc::ENOTDIR)),
            (false, true) => return Err(posix(libc::EISDIR)),
            (true, true) if named.device > 0 => return Err(posix(libc::ENOTEMPTY)),
            _ => {}
        }
        self.remove_name(change, stamp, directory.inode, &found)?;
        let inode = self.lose_name(change, stamp, number)?;
        Ok(InodeAttributes { number, inode })
    }

    /// Whether `below` is `above`, or a directory below it.
    fn is_below(&self, change: &TableChange<'_>, below: u64, above: u64) -> Result<bool> {
        let mut at = below;
        for _ in 0..DEPTH_MAX {
            if at == above {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            let parent = inode(change.tables, FileId { inode: at, generation: 0 })?.parent;
            if parent == at {
                return Ok(false);
            }
            at = parent;
        }
        Err(damaged(format!("directory {below} does not lead to the root")))
    }

    /// Renames; returns the inodes that it moves, and the one that it replaces.
    fn rename(
        &mut self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        (directory, name): (FileId, &[u8]),
        (new_directory, new_name): (FileId, &[u8]),
        flags: u32,
    ) -> Result<Vec<FileId>> {
        check_name(name)?;
        check_name(new_name)?;
        directory_of(change, directory)?;
        directory_of(change, new_directory)?;
        let is_known = flags & !(NO_REPLACE | EXCHANGE | WHITEOUT) == 0;
        if !is_known || flags & EXCHANGE != 0 && flags != EXCHANGE {
            return Err(posix(libc::EINVAL));
        }
        let old = find(change.tables, self.hash_key, directory.inode, name)?.ok_or(posix(libc::ENOENT))?;
        let new = find(change.tables, self.hash_key, new_directory.inode, new_name)?;
        let of = |change: &TableChange<'_>, number| inode(change.tables, FileId { inode: number, generation: 0 });
        let moved = of(change, old.1.inode)?;
        if is_directory(&moved)
            && !planted(Bug::CircleUnchecked)
            && self.is_below(change, new_directory.inode, old.1.inode)?
        {
            return Err(posix(libc::EINVAL));
        }
        let Some(new) = new else {
            if flags & EXCHANGE != 0 {
                return Err(posix(libc::ENOENT));
            }
            if new_name.len() > name.len() {
                self.may_grow()?;
            }
            self.remove_name(change, stamp, directory.inode, &old)?;
            self.arrive(change, stamp, new_directory.inode, new_name, old.1.inode)?;
            self.leave_whiteout(change, stamp, directory.inode, name, flags)?;
            return Ok(vec![named_by(&old.1)]);
        };
        if flags & NO_REPLACE != 0 {
            return Err(posix(libc::EEXIST));
        }
        if new.1.inode == old.1.inode {
            return Ok(Vec::new());
        }
        let both = vec![named_by(&old.1), named_by(&new.1)];
        let replaced = of(change, new.1.inode)?;
        if flags & EXCHANGE != 0 {
            if is_directory(&replaced) && self.is_below(change, directory.inode, new.1.inode)? {
                return Err(posix(libc::EINVAL));
            }
            self.remove_name(change, stamp, directory.inode, &old)?;
            self.remove_name(change, stamp, new_directory.inode, &new)?;
            self.arrive(change, stamp, new_directory.inode, new_name, old.1.inode)?;
            self.arrive(change, stamp, directory.inode, name, new.1.inode)?;
            return Ok(both);
        }
        match (is_directory(&moved), is_directory(&replaced)) {
            (true, false) => return Err(posix(libc::ENOTDIR)),
            (false, true) => return Err(posix(libc::EISDIR)),
            (true, true) if replaced.device > 0 => return Err(posix(libc::ENOTEMPTY)),
            _ => {}
        }
        self.remove_name(change, stamp, directory.inode, &old)?;
        self.remove_name(change, stamp, new_directory.inode, &new)?;
        self.lose_name(change, stamp, new.1.inode)?;
        self.arrive(change, stamp, new_directory.inode, new_name, old.1.inode)?;
        self.leave_whiteout(change, stamp, directory.inode, name, flags)?;
        Ok(both)
    }

    /// Returns the number of a new inode: the one that it had before the server was replaced, if there is one.
    fn number_of(&mut self, change: &TableChange<'_>, before: u64) -> Result<u64> {
        let next = self.volume.next_inode;
        let number = if before == 0 { next.max(self.first_new) } else { before };
        if number < FIRST_INODE || number.saturating_sub(next) > NUMBERS_AHEAD_MAX {
            return Err(posix(libc::EINVAL));
        }
        if change.tables.get(&TableKey::Inode(number)).is_some() {
            return Err(posix(libc::EEXIST));
        }
        self.volume.next_inode = next.max(number + 1);
        Ok(number)
    }

    /// Makes a whiteout with the old name of what was renamed, if the flags say so: a character device 0:0, by which
    /// overlay file systems hide a name of a lower layer.
    fn leave_whiteout(
        &mut self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        directory: u64,
        name: &[u8],
        flags: u32,
    ) -> Result<()> {
        if flags & WHITEOUT == 0 {
            return Ok(());
        }
        self.may_grow()?;
        let number = self.number_of(change, 0)?;
        let times_ns = [stamp.now_ns; 4];
        let mode = libc::S_IFCHR;
        let mut made = Inode { mode, links: 1, generation: 1, times_ns, parent: directory, ..Inode::default() };
        put_inode(change, number, &mut made)?;
        self.add_name(change, stamp, directory, name, (number, &made))
    }

    /// Stores the new name of an inode that was renamed.
    fn arrive(
        &mut self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        directory: u64,
        name: &[u8],
        number: u64,
    ) -> Result<()> {
        let mut moved = inode(change.tables, FileId { inode: number, generation: 0 })?;
        moved.parent = directory;
        moved.times_ns[2] = stamp.now_ns;
        put_inode(change, number, &mut moved)?;
        self.add_name(change, stamp, directory, name, (number, &moved))
    }
}

pub(super) fn store_inode(
    change: &mut TableChange<'_>,
    number: u64,
    inode: &mut Inode,
) -> std::result::Result<(), ServerRefusal> {
    put_inode(change, number, inode)
}
