//! What each request does, with the client of the volume.
//!
//! Owns: the translation between the kernel's arguments and the client's. Promises: an answer that names a node counts
//! one look-up of it.
//!
//! *Circle*: `serve` dispatches to these calls, and its file system is what they work on.

use std::sync::Arc;

use nectary_fuse::protocol::valid;
use nectary_fuse::{Copy, Data, Entry, Errno, Listing, Lock, Read, SetAttributes, StatFs, Write};
use nectary_volume::client::{At, Contents, Error, FileLock, New};
use nectary_volume::protocol::{Attributes, Changes, TimeChange};

use super::serve::{VolumeFileSystem, errno};
use tokio::sync::Notify;

type Result<T> = std::result::Result<T, Errno>;
type This = Arc<VolumeFileSystem>;

/// The longest name. *Units*: bytes.
const NAME_BYTES_MAX: usize = nectary_volume::format::NAME_BYTES_MAX;
/// Names of one question.
const ENTRIES_MAX: u32 = 1024;
/// What an entry of a listing takes at least, and with attributes. *Units*: bytes.
const ENTRY_BYTES: (u32, u32) = (32, 160);
/// Offsets of a listing before the first name: the start, behind `.`, behind `..`.
const NAMES_START: u64 = 2;
const SET_GROUP_ID: u32 = 0o2000;

fn refused(error: Error) -> Errno {
    errno(&error)
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX { Err(Errno::new(libc::ENAMETOOLONG)) } else { Ok(()) }
}

pub async fn look_up(this: This, parent: u64, name: Vec<u8>) -> Result<Entry> {
    check_name(&name)?;
    let found = this.client.look_up(this.nodes.id(parent)?, &name).await.map_err(refused)?;
    Ok(this.nodes.entry(&found))
}

pub async fn stat(this: This, node: u64) -> Result<Attributes> {
    this.client.attributes(this.nodes.id(node)?).await.map_err(refused)
}

pub async fn set(this: This, node: u64, change: SetAttributes) -> Result<Attributes> {
    let has = |bits| change.valid & bits != 0;
    let time = |is_set, is_now, (seconds, ns): (i64, u32)| match (has(is_now), has(is_set)) {
        (true, _) => Some(TimeChange::Now),
        (false, true) => Some(TimeChange::At(seconds.saturating_mul(1_000_000_000).saturating_add(ns.into()))),
        (false, false) => None,
    };
    let changes = Changes {
        mode: has(valid::MODE).then_some(change.mode & 0o7777),
        owner: has(valid::USER).then_some(change.user),
        group: has(valid::GROUP).then_some(change.group),
        size: has(valid::SIZE).then_some(change.size),
        accessed: time(valid::ACCESSED, valid::ACCESSED_NOW, change.accessed),
        modified: time(valid::MODIFIED, valid::MODIFIED_NOW, change.modified),
    };
    this.client.set_attributes(this.nodes.id(node)?, changes).await.map_err(refused)
}

pub async fn read_link(this: This, node: u64) -> Result<Vec<u8>> {
    let found = stat(this.clone(), node).await?;
    if found.inode.mode & libc::S_IFMT != libc::S_IFLNK {
        return Err(Errno::new(libc::EINVAL));
    }
    if !found.inode.inline.is_empty() {
        return Ok(found.inode.inline);
    }
    // A long target is in an extent.
    let file = this.client.open(found.id(), false).await.map_err(refused)?;
    let target = file.read(0, found.inode.size as usize).await.map_err(refused);
    file.close().await;
    Ok(target?.to_vec())
}

pub async fn make(this: This, parent: u64, name: Vec<u8>, new: New) -> Result<Entry> {
    check_name(&name)?;
    let made = this.client.create(this.nodes.id(parent)?, &name, new).await.map_err(refused)?;
    Ok(this.nodes.entry(&made))
}

pub async fn unlink(this: This, parent: u64, name: Vec<u8>, is_directory: bool) -> Result<()> {
    check_name(&name)?;
    this.client.unlink(this.nodes.id(parent)?, &name, is_directory).await.map(drop).map_err(refused)
}

pub async fn rename(this: This, from: (u64, Vec<u8>), to: (u64, Vec<u8>), flags: u32) -> Result<()> {
    check_name(&from.1)?;
    check_name(&to.1)?;
    let (directory, new_directory) = (this.nodes.id(from.0)?, this.nodes.id(to.0)?);
    this.client.rename((directory, &from.1), (new_directory, &to.1), flags).await.map_err(refused)
}

pub async fn link(this: This, node: u64, parent: u64, name: Vec<u8>) -> Result<Entry> {
    check_name(&name)?;
    let linked = this.client.link(this.nodes.id(node)?, this.nodes.id(parent)?, &name).await.map_err(refused)?;
    Ok(this.nodes.entry(&linked))
}

pub async fn open(this: This, node: u64, flags: i32) -> Result<u64> {
    let is_writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
    let file = this.client.open(this.nodes.id(node)?, is_writable).await.map_err(refused)?;
    Ok(this.add(file))
}

pub async fn create(this: This, parent: u64, name: Vec<u8>, new: New, flags: i32) -> Result<(Entry, u64)> {
    check_name(&name)?;
    let directory = this.nodes.id(parent)?;
    let (made, file) = match this.client.create_open(directory, &name, new).await {
        // Another host made it after the kernel had looked.
        Err(error) if error.errno() == libc::EEXIST && flags & libc::O_EXCL == 0 => {
            let found = this.client.look_up(directory, &name).await.map_err(refused)?;
            if found.inode.mode & libc::S_IFMT != libc::S_IFREG {
                return Err(Errno::new(libc::ESTALE));
            }
            let file = this.client.open(found.id(), true).await.map_err(refused)?;
            (found, file)
        }
        made => made.map_err(refused)?,
    };
    Ok((this.nodes.entry(&made), this.add(file)))
}

pub async fn read(this: This, read: Read) -> Result<Contents> {
    let file = this.file(read.handle)?;
    let (offset, length) = (read.offset, read.size as usize);
    // The kernel names the owner of the locks where a program reads, and not where it fills its page cache.
    match read.owner {
        Some(_) => file.read(offset, length).await,
        None => file.read_pages(offset, length).await,
    }
    .map_err(refused)
}

pub async fn write(this: This, write: Write, mut data: Data) -> Result<u32> {
    let file = this.file(write.handle)?;
    let written = if write.from_page_cache {
        file.write_pages(write.offset, data.take()).await
    } else {
        // The kernel computes where an append goes from the size that it has cached.
        let at = if write.flags & libc::O_APPEND != 0 { At::End } else { At::Offset(write.offset) };
        file.write(at, data.take()).await
    };
    let (_, buffers) = written.map_err(refused)?;
    data.put(buffers);
    Ok(write.size)
}

pub async fn sizes(this: This) -> Result<StatFs> {
    let found = this.client.statistics().await.map_err(refused)?;
    Ok(StatFs {
        blocks: found.blocks,
        free: found.free,
        available: found.free,
        files: found.inodes.saturating_add(found.free),
        files_free: found.free,
        block_bytes: nectary_volume::format::BLOCK_BYTES as u32,
        fragment_bytes: nectary_volume::format::BLOCK_BYTES as u32,
        name_bytes_max: NAME_BYTES_MAX as u32,
    })
}

pub async fn set_xattr(
    this: This,
    node: u64,
    name: Vec<u8>,
    value: Vec<u8>,
    flags: u32,
    kill_group_id: bool,
) -> Result<()> {
    check_name(&name)?;
    let id = this.nodes.id(node)?;
    this.client.set_xattr(id, &name, &value, flags).await.map_err(refused)?;
    if kill_group_id {
        let mode = stat(this.clone(), node).await?.inode.mode;
        if mode & SET_GROUP_ID != 0 {
            let changes = Changes { mode: Some(mode & 0o7777 & !SET_GROUP_ID), ..Changes::default() };
            this.client.set_attributes(id, changes).await.map_err(refused)?;
        }
    }
    Ok(())
}

pub async fn xattr(this: This, node: u64, name: Vec<u8>) -> Result<Vec<u8>> {
    this.client.xattr(this.nodes.id(node)?, &name).await.map_err(refused)
}

pub async fn xattrs(this: This, node: u64) -> Result<Vec<u8>> {
    let names = this.client.xattrs(this.nodes.id(node)?).await.map_err(refused)?;
    Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
}

pub async fn remove_xattr(this: This, node: u64, name: Vec<u8>) -> Result<()> {
    this.client.remove_xattr(this.nodes.id(node)?, &name).await.map_err(refused)
}

pub async fn list(this: This, node: u64, offset: u64, size: u32, plus: bool) -> Result<Listing> {
    let directory = this.nodes.id(node)?;
    let mut listing = Listing::new(size, plus);
    if offset < NAMES_START {
        let parent = stat(this.clone(), node).await?.inode.parent;
        let none = Entry::default();
        if offset == 0 {
            listing.add(b".", node, libc::DT_DIR, 1, &none);
        }
        listing.add(b"..", if parent == 0 { node } else { parent }, libc::DT_DIR, NAMES_START, &none);
    }
    let cookie = offset.saturating_sub(NAMES_START);
    let entries = (size / if plus { ENTRY_BYTES.1 } else { ENTRY_BYTES.0 }).clamp(1, ENTRIES_MAX);
    let (names, _) = this.client.list(directory, cookie, entries).await.map_err(refused)?;
    for listed in names {
        let inode = &listed.attributes;
        let entry = if plus { this.nodes.entry(inode) } else { Entry::default() };
        let kind = (inode.inode.mode >> 12) as u8;
        if !listing.add(&listed.name, inode.number, kind, listed.cookie + NAMES_START, &entry) {
            if plus {
                this.nodes.forget(entry.node, 1);
            }
            break;
        }
    }
    Ok(listing)
}

pub async fn seek(this: This, handle: u64, offset: u64, whence: i32) -> Result<u64> {
    let is_data = match whence {
        libc::SEEK_DATA => true,
        libc::SEEK_HOLE => false,
        _ => return Err(Errno::new(libc::EINVAL)),
    };
    this.file(handle)?.seek(offset, is_data).await.map_err(refused)
}

pub async fn allocate(this: This, handle: u64, offset: u64, length: u64, mode: i32) -> Result<()> {
    let mode = u32::try_from(mode).map_err(|_| Errno::new(libc::EOPNOTSUPP))?;
    this.file(handle)?.allocate(offset, length, mode).await.map_err(refused)
}

fn of_volume(lock: Lock) -> FileLock {
    let Lock { owner, process, is_flock, start, end, kind, .. } = lock;
    FileLock { owner, process, is_flock, is_exclusive: kind == libc::F_WRLCK, start, last: end }
}

pub async fn test_lock(this: This, lock: Lock) -> Result<Lock> {
    let found = this.file(lock.handle)?.test_lock(of_volume(lock)).await.map_err(refused)?;
    Ok(match found {
        Some(FileLock { process, is_exclusive, start, last, .. }) => {
            let kind = if is_exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
            Lock { kind, process, start, end: last.min(i64::MAX as u64), ..lock }
        }
        None => Lock { kind: libc::F_UNLCK, ..lock },
    })
}

pub async fn set_lock(this: This, lock: Lock, given_up: Option<Arc<Notify>>) -> Result<()> {
    let file = this.file(lock.handle)?;
    if lock.kind == libc::F_UNLCK {
        return file.unlock(of_volume(lock)).await.map_err(refused);
    }
    let given_up = given_up.map(|given_up| async move { given_up.notified().await });
    file.lock(of_volume(lock), given_up).await.map_err(refused)
}

pub async fn copy(this: This, copy: Copy) -> Result<u64> {
    let (from, to) = (this.file(copy.handle)?, this.file(copy.to_handle)?);
    from.copy(copy.offset, &to, copy.to_offset, copy.length).await.map_err(refused)
}
