//! The effect of each request, by calls of the volume's client.
//!
//! Owns: the translation between the kernel's arguments and the client's. Promises: an answer that contains a node
//! counts as one look-up of it. What a call that may be given up has found counts only when it is answered:
//! [`FoundInode`], [`FoundNames`].
//!
//! *Circle*: `serve` dispatches to these calls, and they work on its file system.

use std::sync::Arc;

use nectary_fuse::protocol::valid;
use nectary_fuse::{
    CopyCall, DirectoryListing, Errno, LookupEntry, PooledData, ReadCall, RequestCaller, SetAttributes, StatFs,
    WriteCall, without_rights,
};
use nectary_volume::client::{Error, NewInode, OpenAccess, OpenFile, WritePosition};
use nectary_volume::protocol::{AttributeChanges, FileId, InodeAttributes, ListedName, TimeChange};

use super::contents::ReadBytes;
use super::serve::{VolumeFileSystem, errno};

pub(super) type Result<T> = std::result::Result<T, Errno>;
pub(super) type This = Arc<VolumeFileSystem>;

/// The longest name. *Units*: bytes.
const NAME_BYTES_MAX: usize = nectary_volume::format::NAME_BYTES_MAX;
/// The maximum number of names that one question requests.
const ENTRIES_MAX: u32 = 1024;
/// The least length of an entry in a listing: without and with attributes. *Units*: bytes.
const ENTRY_BYTES: (u32, u32) = (32, 160);
/// The offset of a listing at which names begin; smaller ones are the start, after `.`, and after `..`.
const NAMES_START: u64 = 2;
/// A flag in addition to those of `setxattr`: the caller may not keep the set-group-ID bit.
pub(super) const KILL_GROUP_ID: u32 = 4;

/// The attribute with the capabilities that a program gets.
const CAPABILITY: &[u8] = b"security.capability";

pub(super) fn refused(error: Error) -> Errno {
    errno(&error)
}

/// Makes the kernel ignore answers with attributes of these that it has requested before, but not applied yet: it does not
/// know that a change of names, or of extended attributes, makes them old. To be done before the change is answered.
pub(super) async fn changed<const COUNT: usize>(this: &This, files: [Option<FileId>; COUNT]) {
    for forgotten in files.map(|file| file.and_then(|file| this.shown.forget_named(file))).into_iter().flatten() {
        let _ = forgotten.await;
    }
}

/// What a call that uses the names of a directory, or adds one, returns if another host has removed the directory: ENOENT,
/// as on a local disk. The directory was empty, so this is also right for a path that leads to another directory now: the
/// kernel followed it when it led to this one.
pub(super) fn of_removed(error: Errno) -> Errno {
    if error.number() == libc::ESTALE { Errno::new(libc::ENOENT) } else { error }
}

/// Makes a call that changes nothing, in a living session; repeats it in the next session if that one ended.
macro_rules! ask {
    ($this:ident, $client:ident, $call:expr) => {
        loop {
            let $client = $this.sessions.living().await.map_err(refused)?;
            match $call.await {
                Err(error) if error.is_end() => {}
                result => break result.map_err(refused),
            }
        }
    };
}
pub(super) use ask;

/// Makes a call that changes something; repeats it in the next session only if it was certainly not done.
macro_rules! operate {
    ($this:ident, $client:ident, $call:expr) => {
        loop {
            let $client = $this.sessions.living().await.map_err(refused)?;
            match $call.await {
                Err(error) if error.is_end_before() => {}
                result => break result.map_err(refused),
            }
        }
    };
}
pub(super) use operate;

/// Whether the flags of an open file, or of a write, say that written data is durable when the call returns. For a write
/// the kernel adds the flags of `pwritev2` and the mount option `sync`.
fn is_synced(flags: i32) -> bool {
    flags & (libc::O_SYNC | libc::O_DSYNC) != 0
}

pub(super) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX { Err(Errno::new(libc::ENAMETOOLONG)) } else { Ok(()) }
}

/// An inode that was looked up or changed, before the kernel knows it.
pub struct FoundInode {
    found: InodeAttributes,
    /// The node of the directory, and the name; `None`: it was looked up by a file handle.
    place: Option<(u64, Vec<u8>)>,
}

impl FoundInode {
    /// An inode that was looked up at a place, or by a file handle.
    pub(super) fn new(found: InodeAttributes, place: Option<(u64, Vec<u8>)>) -> FoundInode {
        FoundInode { found, place }
    }

    /// Returns the answer to a thread; counts one look-up.
    pub fn entry(&self, this: &VolumeFileSystem, thread: u32) -> LookupEntry {
        match &self.place {
            Some((parent, name)) => this.entry(&self.found, *parent, name, thread),
            None => this.nodes.entry_of_handle(&self.found),
        }
    }

    /// Returns the answer to a change that made or named the inode; counts one look-up.
    pub fn changed(&self, this: &VolumeFileSystem) -> LookupEntry {
        match &self.place {
            Some((parent, name)) => this.nodes.entry(&self.found, *parent, name, None),
            None => this.nodes.entry_of_handle(&self.found),
        }
    }
}

pub async fn stat(this: This, node: u64) -> Result<InodeAttributes> {
    let id = this.nodes.id(node)?;
    match ask!(this, client, client.attributes(id)) {
        // It was removed, and a program still uses it. The kernel does not say whether it asks for an open file, a working
        // directory or a path: for a path that it followed before the removal this is right, too.
        Err(error) if error.number() == libc::ESTALE => this.nodes.removed(node).ok_or(error),
        found => found,
    }
}

pub async fn set(this: This, node: u64, change: SetAttributes, caller: RequestCaller) -> Result<InodeAttributes> {
    let changes = attribute_changes(&this, node, &change, caller);
    let id = this.nodes.id(node)?;
    if let Some(handle) = change.handle.filter(|_| changes.size.is_some())
        && this.file(handle)?.is_over()
    {
        return Err(Errno::new(libc::EIO));
    }
    operate!(this, client, client.set_attributes(id, changes))
}

/// Returns the changes that the kernel requests. It decides by what it knows of a file, which another host may have
/// changed: so the server is told by which owner it has decided, and clears the bits that give rights itself.
fn attribute_changes(
    this: &VolumeFileSystem,
    node: u64,
    change: &SetAttributes,
    caller: RequestCaller,
) -> AttributeChanges {
    let has = |bits| change.valid & bits != 0;
    let time = |is_set, is_now, (seconds, ns): (i64, u32)| match (has(is_now), has(is_set)) {
        (true, _) => Some(TimeChange::Now),
        (false, true) => Some(TimeChange::At(seconds.saturating_mul(1_000_000_000).saturating_add(ns.into()))),
        (false, false) => None,
    };
    let mut changes = AttributeChanges {
        mode: has(valid::MODE).then_some(change.mode & 0o7777),
        owner: has(valid::USER).then_some(change.user),
        group: has(valid::GROUP).then_some(change.group),
        size: has(valid::SIZE).then_some(change.size),
        accessed: time(valid::ACCESSED, valid::ACCESSED_NOW, change.accessed),
        modified: time(valid::MODIFIED, valid::MODIFIED_NOW, change.modified),
        ..AttributeChanges::default()
    };
    // The kernel has just requested the mode that it clears bits of.
    let known = this.nodes.mode_with_rights(node).filter(|known| known & libc::S_IFMT != libc::S_IFDIR);
    let cleared = known.map(|known| without_rights(known) & 0o7777);
    let is_clearing = cleared.is_some() && changes.mode == cleared;
    let is_given = changes.owner.is_some() || changes.group.is_some();
    if is_clearing && (is_given || changes.size.is_some()) {
        (changes.mode, changes.drops_rights) = (None, true);
    }
    // Who may write to a file may also set its times to now, cut it, and make the kernel clear bits of its mode. The
    // superuser needs no owner.
    let is_set = |time: Option<TimeChange>| matches!(time, Some(TimeChange::At(_)));
    let is_mode = changes.mode.is_some() && !is_clearing;
    if caller.user != 0 && (is_given || is_mode || is_set(changes.accessed) || is_set(changes.modified)) {
        changes.judged = this.nodes.owner(node, caller.user);
    }
    changes
}

/// Makes all changes of names durable. If some may have been lost, each directory that was opened before another one has
/// said so says so.
pub async fn sync_names(this: This, known: u64) -> Result<()> {
    let synced = ask!(this, client, client.stored());
    match this.sessions.report(known) {
        true => Err(Errno::new(libc::EIO)),
        false => synced,
    }
}

pub async fn read_link(this: This, node: u64) -> Result<Vec<u8>> {
    let found = match stat(this.clone(), node).await {
        // Another host has removed it since it was looked up.
        Err(error) if error.number() == libc::ESTALE => return this.nodes.target(node).ok_or(error),
        found => found?,
    };
    if found.inode.mode & libc::S_IFMT != libc::S_IFLNK {
        return Err(Errno::new(libc::EINVAL));
    }
    this.note_access(&found);
    if !found.inode.inline.is_empty() {
        return Ok(found.inode.inline);
    }
    // A long target is in a block, which must be read.
    let target = ask!(this, client, async {
        let file = client.open(found.id(), OpenAccess::Read, false).await?;
        let target = file.read(0, found.inode.size as usize).await;
        file.close().await;
        target
    });
    Ok(target?.to_vec())
}

pub async fn make(this: This, parent: u64, name: Vec<u8>, new: NewInode) -> Result<FoundInode> {
    check_name(&name)?;
    let directory = this.nodes.id(parent)?;
    this.shown.note_change(directory);
    let made = operate!(this, client, client.create(directory, &name, new.clone())).map_err(of_removed)?;
    changed(&this, [Some(directory)]).await;
    Ok(FoundInode { found: made, place: Some((parent, name)) })
}

/// What remains to be waited for before an answer: the kernel forgets attributes.
pub type Forgetting = Vec<tokio::sync::oneshot::Receiver<()>>;

/// Makes the kernel ignore answers with old attributes, as [`changed`]; returns what remains to be waited for.
fn changed_now<const COUNT: usize>(this: &VolumeFileSystem, files: [FileId; COUNT]) -> Forgetting {
    files.into_iter().filter_map(|file| this.shown.forget_named(file)).collect()
}

/// Removes a name if this can be done without the server; waits for nothing.
pub fn unlink_now(this: &VolumeFileSystem, parent: u64, name: &[u8]) -> Option<Result<Forgetting>> {
    let directory = this.nodes.id(parent).ok().filter(|_| !this.given_up.is_any())?;
    let removed = match this.sessions.last().unlink_now(directory, name)? {
        Ok(removed) => removed,
        Err(error) => return Some(Err(refused(error))),
    };
    this.shown.note_change(directory);
    Some(Ok(changed_now(this, [directory, removed.id()])))
}

/// Makes a file and opens it if this can be done without the server; waits for nothing.
pub fn create_now(
    this: &VolumeFileSystem,
    (parent, name): (u64, &[u8]),
    new: &NewInode,
    flags: i32,
) -> Option<Result<(LookupEntry, u64, Forgetting)>> {
    if flags & libc::O_DIRECT != 0 || this.given_up.is_any() {
        return None;
    }
    let directory = this.nodes.id(parent).ok()?;
    let (made, file) = match this.sessions.last().create_open_now(directory, name, new)? {
        Ok(made) => made,
        Err(error) => return Some(Err(refused(error))),
    };
    this.shown.note_change(directory);
    let forgetting = changed_now(this, [directory]);
    let entry = this.nodes.entry(&made, parent, name, None);
    Some(Ok((entry, this.add(file.synced(is_synced(flags))), forgetting)))
}

pub async fn unlink(this: This, parent: u64, name: Vec<u8>, is_directory: bool) -> Result<()> {
    check_name(&name)?;
    let directory = this.nodes.id(parent)?;
    this.shown.note_change(directory);
    let removed = operate!(this, client, client.unlink(directory, &name, is_directory))?;
    changed(&this, [Some(directory), Some(removed.id())]).await;
    Ok(())
}

pub async fn rename(this: This, from: (u64, Vec<u8>), to: (u64, Vec<u8>), flags: u32) -> Result<()> {
    check_name(&from.1)?;
    check_name(&to.1)?;
    let (directory, new_directory) = (this.nodes.id(from.0)?, this.nodes.id(to.0)?);
    this.shown.note_change(directory);
    this.shown.note_change(new_directory);
    let (old, new) = ((directory, &*from.1), (new_directory, &*to.1));
    let is_exchange = flags & libc::RENAME_EXCHANGE != 0;
    this.shown.begin_rename(&this.sessions.last(), old, new).await;
    if is_exchange {
        this.shown.begin_rename(&this.sessions.last(), new, old).await;
    }
    let renamed = operate!(this, client, client.rename_inodes((directory, &from.1), (new_directory, &to.1), flags));
    let renamed = renamed.map_err(of_removed);
    this.shown.end_rename(&this.sessions.last(), old, new).await;
    if is_exchange {
        this.shown.end_rename(&this.sessions.last(), new, old).await;
    }
    // Another host may have given the names to other inodes than the kernel knows.
    let files = renamed.as_ref().map(|files| &files[..]).unwrap_or_default();
    changed(&this, [Some(directory), Some(new_directory), files.first().copied(), files.get(1).copied()]).await;
    renamed.map(drop)
}

pub async fn link(this: This, node: u64, parent: u64, name: Vec<u8>) -> Result<FoundInode> {
    check_name(&name)?;
    let (file, directory) = (this.nodes.id(node)?, this.nodes.id(parent)?);
    this.shown.note_change(directory);
    let linked = operate!(this, client, client.link(file, directory, &name)).map_err(of_removed)?;
    changed(&this, [Some(directory), Some(file)]).await;
    Ok(FoundInode { found: linked, place: Some((parent, name)) })
}

pub async fn open(this: This, node: u64, flags: i32) -> Result<OpenFile> {
    let id = this.nodes.id(node)?;
    let opening = match flags & libc::O_ACCMODE {
        libc::O_RDONLY if this.has_old_writer(node) => OpenAccess::Both,
        libc::O_RDONLY => OpenAccess::Read,
        libc::O_WRONLY => OpenAccess::Write,
        _ => OpenAccess::Both,
    };
    if !matches!(opening, OpenAccess::Read) {
        // Another host may have set capabilities since the last look-up.
        this.nodes.has_attribute(node);
    }
    let is_direct = flags & libc::O_DIRECT != 0;
    let file = ask!(this, client, client.open(id, opening, is_direct))?;
    Ok(file.synced(is_synced(flags)))
}

pub async fn create(
    this: This,
    parent: u64,
    name: Vec<u8>,
    new: NewInode,
    flags: i32,
) -> Result<(FoundInode, OpenFile)> {
    check_name(&name)?;
    let directory = this.nodes.id(parent)?;
    this.shown.note_change(directory);
    let is_direct = flags & libc::O_DIRECT != 0;
    let (user, created) = (new.owner, operate!(this, client, client.create_open(directory, &name, new.clone())));
    let (made, file) = match created.map_err(of_removed) {
        // Another host made the file after the kernel's look-up.
        Err(error) if error.number() == libc::EEXIST && flags & libc::O_EXCL == 0 => {
            let found = ask!(this, client, client.look_up(directory, &name))?;
            if !is_as_new(&found, user, flags) {
                // The kernel begins the call once more, and finds the file.
                return Err(Errno::new(libc::ESTALE));
            }
            let file = ask!(this, client, client.open(found.id(), OpenAccess::Both, is_direct))?;
            (found, file)
        }
        made => made?,
    };
    if is_direct {
        // The file is opened a second time, because `create` has no parameter for direct reads.
        let direct = ask!(this, client, client.open(made.id(), OpenAccess::Both, true))?;
        direct.close().await;
    }
    changed(&this, [Some(directory)]).await;
    Ok((FoundInode { found: made, place: Some((parent, name)) }, file.synced(is_synced(flags))))
}

/// Whether a file that another host made may be returned as one that this call has made: then the kernel checks no
/// permissions, and does not truncate it.
fn is_as_new(found: &InodeAttributes, user: u32, flags: i32) -> bool {
    let needed = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => 0o400,
        libc::O_WRONLY => 0o200,
        _ => 0o600,
    };
    let (mode, owner) = (found.inode.mode, found.inode.owner);
    let may_open = user == 0 || owner == user && mode & needed == needed;
    mode & libc::S_IFMT == libc::S_IFREG && flags & libc::O_TRUNC == 0 && may_open
}

/// Makes a file without a name; a link may give it one while it is open.
pub async fn create_nameless(this: This, parent: u64, new: NewInode, flags: i32) -> Result<(FoundInode, OpenFile)> {
    let directory = this.nodes.id(parent)?;
    let made = operate!(this, client, client.create_open(directory, b"", new.clone()));
    let (made, file) = made.map_err(of_removed)?;
    if flags & libc::O_DIRECT != 0 {
        let direct = ask!(this, client, client.open(made.id(), OpenAccess::Both, true))?;
        direct.close().await;
    }
    Ok((FoundInode { found: made, place: Some((parent, Vec::new())) }, file.synced(is_synced(flags))))
}

pub async fn read(this: This, read: ReadCall, caller: RequestCaller) -> Result<ReadBytes> {
    let file = this.file(read.handle)?;
    let (offset, length) = (read.offset, read.size as usize);
    // The kernel names a lock owner if a program reads directly, and none if it fills its page cache.
    let is_direct = read.flags & libc::O_DIRECT != 0;
    let bytes = match (read.owner, &this.contents) {
        (Some(_), Some(cached)) if !is_direct => cached.read(&file, offset, length, this.stream(caller, &file)).await,
        (Some(_), _) => file.read(offset, length).await.map(ReadBytes::Read),
        (None, _) => file.read_pages(offset, length).await.map(ReadBytes::Read),
    };
    this.note_read(&file, read.flags);
    bytes.map_err(refused)
}

pub async fn write(this: This, node: u64, write: WriteCall, mut data: PooledData) -> Result<u32> {
    let written = if write.from_page_cache {
        this.file_of_pages(node, write.handle)?.write_pages(write.offset, data.take()).await
    } else {
        let file = this.file(write.handle)?;
        if write.kill_privileges {
            drop_rights(&this, node).await?;
        }
        if this.nodes.take_capability(node) {
            drop_capability(&this, node).await?;
        }
        if write.flags & libc::O_DIRECT == 0 {
            this.contents.iter().for_each(|contents| contents.begin_write(&file));
        }
        // For an append, the kernel computes the offset from the size that it has cached, which may be old.
        let at =
            if write.flags & libc::O_APPEND != 0 { WritePosition::End } else { WritePosition::Offset(write.offset) };
        let written = match is_synced(write.flags) {
            true => file.write_synced(at, data.take()).await,
            false => file.write(at, data.take()).await,
        };
        if let Ok((offset, _)) = &written
            && *offset != write.offset
        {
            file.note_end(offset + u64::from(write.size)).await;
        }
        written
    };
    let (_, buffers) = written.map_err(refused)?;
    data.put(buffers);
    Ok(write.size)
}

/// Clears the bits that give rights to whoever runs a file, if it had them when the kernel last saw it: a program
/// without the right to keep them writes to it.
async fn drop_rights(this: &This, node: u64) -> Result<()> {
    if this.nodes.mode_with_rights(node).is_none() {
        return Ok(());
    }
    let id = this.nodes.id(node)?;
    let changes = AttributeChanges { drops_rights: true, ..AttributeChanges::default() };
    let found = operate!(this, client, client.set_attributes(id, changes))?;
    this.nodes.attributes(node, &found);
    // The kernel does not know that the mode has changed.
    changed(this, [Some(id)]).await;
    Ok(())
}

/// Removes the capabilities of a program that is written to, whoever writes.
async fn drop_capability(this: &This, node: u64) -> Result<()> {
    let id = this.nodes.id(node)?;
    match ask!(this, client, client.xattr(id, CAPABILITY)) {
        Ok(_) => operate!(this, client, client.remove_xattr(id, CAPABILITY)),
        Err(error) if error.number() == libc::ENODATA => Ok(()),
        Err(error) => Err(error),
    }
}

pub async fn sizes(this: This) -> Result<StatFs> {
    let found = ask!(this, client, client.statistics())?;
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

/// Names that a listing found, before the kernel knows them.
pub struct FoundNames {
    /// The entries before the names.
    listing: DirectoryListing,
    names: Vec<ListedName>,
    /// Whether the kernel gets the nodes of the names.
    plus: bool,
}

impl FoundNames {
    /// Returns the answer, with as many names of the directory `node` as there is room for; counts one look-up of each
    /// node in it.
    pub fn listing(self, this: &VolumeFileSystem, node: u64) -> DirectoryListing {
        let FoundNames { mut listing, names, plus } = self;
        for listed in names {
            let inode = &listed.attributes;
            let entry = if plus { this.nodes.entry(inode, node, &listed.name, None) } else { LookupEntry::default() };
            let kind = (inode.inode.mode >> 12) as u8;
            if !listing.add(&listed.name, inode.number, kind, listed.cookie + NAMES_START, &entry) {
                if plus {
                    this.nodes.forget(entry.node, 1);
                }
                break;
            }
        }
        listing
    }
}

/// Lists a directory. *Errors*: ENOENT, as on a local disk, if the directory was removed after it was opened.
pub async fn list(this: This, node: u64, offset: u64, size: u32, plus: bool) -> Result<FoundNames> {
    let directory = this.nodes.id(node)?;
    let mut listing = DirectoryListing::new(size, plus);
    if offset < NAMES_START {
        let found = ask!(this, client, client.attributes(directory)).map_err(of_removed)?;
        this.note_access(&found);
        let parent = found.inode.parent;
        let none = LookupEntry::default();
        if offset == 0 {
            listing.add(b".", directory.inode, libc::DT_DIR, 1, &none);
        }
        listing.add(b"..", if parent == 0 { directory.inode } else { parent }, libc::DT_DIR, NAMES_START, &none);
    }
    let cookie = offset.saturating_sub(NAMES_START);
    let entries = (size / if plus { ENTRY_BYTES.1 } else { ENTRY_BYTES.0 }).clamp(1, ENTRIES_MAX);
    let (names, _) = ask!(this, client, client.list(directory, cookie, entries)).map_err(of_removed)?;
    Ok(FoundNames { listing, names, plus })
}

pub async fn seek(this: This, handle: u64, offset: u64, whence: i32) -> Result<u64> {
    let is_data = match whence {
        libc::SEEK_DATA => true,
        libc::SEEK_HOLE => false,
        _ => return Err(Errno::new(libc::EINVAL)),
    };
    if offset > i64::MAX as u64 {
        return Err(Errno::new(libc::ENXIO));
    }
    this.file(handle)?.seek(offset, is_data).await.map_err(refused)
}

pub async fn allocate(this: This, handle: u64, offset: u64, length: u64, mode: i32) -> Result<()> {
    let mode = u32::try_from(mode).map_err(|_| Errno::new(libc::EOPNOTSUPP))?;
    this.file(handle)?.allocate(offset, length, mode).await.map_err(refused)
}

pub async fn copy(this: This, copy: CopyCall) -> Result<u64> {
    let (from, to) = (this.file(copy.handle)?, this.file(copy.to_handle)?);
    from.copy(copy.offset, &to, copy.to_offset, copy.length).await.map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that another host made meanwhile is opened by the kernel, with its checks and its truncation.
    #[test]
    fn file_made_elsewhere_is_checked() {
        let found = |mode, owner| {
            let mut found = InodeAttributes::default();
            (found.inode.mode, found.inode.owner) = (mode, owner);
            found
        };
        let (own, others) = (found(libc::S_IFREG | 0o600, 7), found(libc::S_IFREG | 0o666, 8));
        assert!(is_as_new(&own, 7, libc::O_RDWR) && is_as_new(&others, 0, libc::O_WRONLY));
        assert!(!is_as_new(&own, 7, libc::O_RDWR | libc::O_TRUNC) && !is_as_new(&others, 0, libc::O_TRUNC));
        assert!(!is_as_new(&others, 7, libc::O_RDONLY) && !is_as_new(&found(libc::S_IFIFO | 0o600, 7), 7, 0));
        let read_only = found(libc::S_IFREG | 0o400, 7);
        assert!(is_as_new(&read_only, 7, libc::O_RDONLY) && !is_as_new(&read_only, 7, libc::O_WRONLY));
        assert!(!is_as_new(&read_only, 7, libc::O_RDWR));
    }
}
