//! Names and attributes: all calls that do not concern data.
//!
//! Owns: these calls; each is one question or one operation. Uncommitted writes are taken into account in the
//! attributes. Leaves to the server: the effects of the calls.

use std::time::Duration;

use super::VolumeClient;
use super::error::Error;
use super::looks::{CachedLookup, ListingPart, LookupCache};
use super::wait_kinds::WaitKind;
use crate::format::{
    BLOCK_BYTES, HAS_XATTRS, INLINE_BYTES_MAX, LOST_TO_OTHERS, TARGET_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
use crate::planted::{Bug, planted};
use crate::protocol::{
    AttributeChanges, FileId, InodeAttributes, ListedName, MappedExtent, MetadataOperation, MetadataQuestion,
    RefusalCode, ServerAnswer, VolumeStatistics,
};

/// The longest time for which a kernel may show what the session keeps without asking.
const KEPT_BY_KERNEL_MAX: Duration = Duration::from_secs(1);
/// The longest time for which it shows that, also if it begins to count late.
pub const SHOWN_MAX: Duration = Duration::from_secs(2);

/// The properties of a new inode.
#[derive(Debug, Clone, Default)]
pub struct NewInode {
    /// The file type and the permission bits.
    pub mode: u32,
    /// The permissions that the caller's umask takes away.
    pub umask: u32,
    /// The owner's user number.
    pub owner: u32,
    /// The group's number.
    pub group: u32,
    /// The number of a device node.
    pub device: u64,
    /// The target of a symbolic link.
    pub target: Vec<u8>,
}

impl NewInode {
    /// Returns the operation that makes the inode.
    pub(super) fn operation(self, directory: FileId, name: &[u8], open: bool) -> MetadataOperation {
        let NewInode { mode, umask, owner, group, device, target } = self;
        MetadataOperation::Create {
            directory,
            name: name.to_vec(),
            mode,
            owner,
            group,
            umask,
            device,
            target,
            target_block: None,
            open,
            inode: 0,
        }
    }
}

/// Attributes that the session keeps: nobody changes them before the session has given them back.
#[derive(Debug, Clone)]
pub struct KeptAttributes {
    /// The attributes.
    pub attributes: InodeAttributes,
    /// Whether they show data that is not committed yet: a commit may change them.
    pub is_changed: bool,
}

fn attributes(answer: ServerAnswer) -> Result<InodeAttributes, Error> {
    match answer {
        ServerAnswer::Attributes(attributes) => Ok(attributes),
        _ => Err(Error::posix(libc::EIO)),
    }
}

impl VolumeClient {
    /// Updates attributes of the server by what it does not know yet. Returns whether they show data that is not
    /// committed: that may be shown only under the session's lease.
    fn overlay(&self, attributes: &mut InodeAttributes) -> bool {
        let is_changed = self.file(attributes.id()).is_some_and(|file| file.overlay(attributes));
        self.shared.accesses.overlay(attributes);
        is_changed
    }

    fn shown(&self, mut attributes: InodeAttributes) -> InodeAttributes {
        self.overlay(&mut attributes);
        attributes
    }

    /// Waits until all changes of names and attributes that were made are durable.
    ///
    /// *Errors*: the session has ended.
    pub async fn stored(&self) -> Result<(), Error> {
        self.shared.session.stored().await
    }

    /// Looks up a name; `..` is also a name.
    pub async fn look_up(&self, directory: FileId, name: &[u8]) -> Result<InodeAttributes, Error> {
        if let Some(kept) = self.kept_name(directory, name) {
            return kept.map(|kept| kept.attributes).ok_or(Error::posix(libc::ENOENT));
        }
        let question = MetadataQuestion::Lookup { directory, name: name.to_vec() };
        self.look_and_keep(question, Some((directory, name))).await
    }

    /// Returns the present attributes of an inode. Generation 0 matches any generation.
    pub async fn attributes(&self, file: FileId) -> Result<InodeAttributes, Error> {
        if let Some(kept) = self.kept_attributes(file) {
            return Ok(kept.attributes);
        }
        self.look_and_keep(MetadataQuestion::GetAttributes { file }, None).await
    }

    /// Returns the attributes of the inode with a name, if the session keeps them and the name; `Some(None)`: there is no
    /// such name. Waits for nothing.
    pub fn kept_name(&self, directory: FileId, name: &[u8]) -> Option<Option<KeptAttributes>> {
        Some(match self.kept(|looks| looks.name(directory, name))? {
            CachedLookup::Present(found) => Some(self.shown_kept(*found)),
            CachedLookup::Absent => None,
        })
    }

    /// Returns the attributes of an inode, if the session keeps them. Waits for nothing.
    pub fn kept_attributes(&self, file: FileId) -> Option<KeptAttributes> {
        self.kept(|looks| looks.attributes(file)).map(|found| self.shown_kept(found))
    }

    /// Returns the attributes of an inode without what this host has written and not committed, if the session keeps them.
    pub(super) fn kept_own(&self, file: FileId) -> Option<InodeAttributes> {
        self.kept(|looks| looks.attributes(file))
    }

    fn shown_kept(&self, mut attributes: InodeAttributes) -> KeptAttributes {
        let is_changed = self.overlay(&mut attributes);
        KeptAttributes { attributes, is_changed }
    }

    /// Whether the session keeps names of a directory, or may: the server says which of them others change.
    pub fn keeps_names_of(&self, directory: FileId) -> bool {
        self.kept(|looks| Some(looks.keeps_names_of(directory))).unwrap_or(false)
    }

    /// Returns the time for which a kernel may show what the session keeps without asking, unless it is told to forget
    /// it: it ends before the lease, also if the kernel begins to count late.
    pub fn kept_for(&self) -> Duration {
        if planted(Bug::KeptPastLease) {
            return 20 * KEPT_BY_KERNEL_MAX;
        }
        KEPT_BY_KERNEL_MAX.min(self.shared.session.lease_left() / 2)
    }

    /// Looks into what the session keeps, under its lease. The lease is looked at first: what is found then was so while
    /// the lease held, also if this process pauses before it looks.
    fn kept<T>(&self, look: impl FnOnce(&LookupCache) -> Option<T>) -> Option<T> {
        let session = &self.shared.session;
        if session.is_leased() || planted(Bug::KeptPastLease) { look(session.looks()) } else { None }
    }

    /// Requests a name or attributes, and keeps them if the server allows it.
    async fn look_and_keep(
        &self,
        question: MetadataQuestion,
        name: Option<(FileId, &[u8])>,
    ) -> Result<InodeAttributes, Error> {
        let looks = self.shared.session.looks();
        loop {
            let asked = looks.now();
            let looked = self.shared.session.look_to_keep(question.clone()).await?;
            if let Some((directory, name)) = name.filter(|_| looked.is_name_kept) {
                looks.keep_name(asked, directory, name, looked.found.as_ref().map(InodeAttributes::id));
            }
            let mut found = looked.found.ok_or(Error::posix(libc::ENOENT))?;
            if looked.are_attributes_kept {
                looks.keep_attributes(asked, &found);
            }
            if !self.overlay(&mut found) || self.shared.session.is_leased() {
                return Ok(found);
            }
            self.leased().await?;
        }
    }

    /// Makes an inode with a name.
    pub async fn create(&self, directory: FileId, name: &[u8], new: NewInode) -> Result<InodeAttributes, Error> {
        if new.target.len() > INLINE_BYTES_MAX {
            return self.create_long_link(directory, name, new).await;
        }
        let local = self.shared.session.locally(|inner| inner.create_locally(directory, name, &new, false)).await;
        if let Some(made) = local {
            return made;
        }
        attributes(self.operate(new.operation(directory, name, false)).await?)
    }

    /// Makes a symbolic link whose target is too long for the inode and is stored in a block.
    async fn create_long_link(&self, directory: FileId, name: &[u8], new: NewInode) -> Result<InodeAttributes, Error> {
        let mut bytes = new.target.clone();
        if bytes.len() > TARGET_BYTES_MAX {
            return Err(Error::posix(libc::ENAMETOOLONG));
        }
        bytes.resize(BLOCK_BYTES, 0);
        let block = self.write_aside(&bytes).await?;
        let mut operation = new.operation(directory, name, false);
        if let MetadataOperation::Create { target_block, .. } = &mut operation {
            *target_block = Some(MappedExtent { file_block: 0, blocks: 1, block: block.block, is_unwritten: false });
        }
        let made = self.operate(operation).await;
        if let Err(Error::Refused(failure)) = &made
            && failure.code != RefusalCode::Ended
        {
            self.put_space(vec![block]).await;
        }
        attributes(made?)
    }

    /// Adds a name to an inode, which has one, or was made without one.
    pub async fn link(&self, file: FileId, directory: FileId, name: &[u8]) -> Result<InodeAttributes, Error> {
        let operation = MetadataOperation::Link { file, directory, name: name.to_vec() };
        Ok(self.shown(attributes(self.operate(operation).await?)?))
    }

    /// Removes a name; returns the inode that had it.
    pub async fn unlink(&self, directory: FileId, name: &[u8], is_directory: bool) -> Result<InodeAttributes, Error> {
        let local = match is_directory {
            true => None,
            false => self.shared.session.locally(|inner| inner.unlink_locally(directory, name)).await,
        };
        let named = match local {
            Some(removed) => removed?,
            None => {
                let operation = MetadataOperation::Unlink { directory, name: name.to_vec(), is_directory, expected: 0 };
                attributes(self.operate(operation).await?)?
            }
        };
        // Otherwise another host may read it, and it is committed.
        if named.inode.flags & LOST_TO_OTHERS != 0
            && let Some(file) = self.file(named.id()).filter(|file| !file.is_used())
        {
            self.abandon(&file).await;
        }
        Ok(named)
    }

    /// Removes a name of no directory, if this can be done without the server; waits for nothing.
    pub fn unlink_now(&self, directory: FileId, name: &[u8]) -> Option<Result<InodeAttributes, Error>> {
        // What was written to a file that is closed must be dropped, which may wait.
        let found = self.kept_name(directory, name)??.attributes;
        if self.file(found.id()).is_some_and(|file| !file.is_used()) {
            return None;
        }
        self.shared.session.locally_now(|inner| inner.unlink_locally(directory, name))
    }

    /// Renames as `renameat2` does.
    pub async fn rename(&self, from: (FileId, &[u8]), to: (FileId, &[u8]), flags: u32) -> Result<(), Error> {
        self.rename_inodes(from, to, flags).await.map(drop)
    }

    /// Renames; returns the inodes that were moved and replaced. These may be others than those that the names had when
    /// the call was made.
    pub async fn rename_inodes(
        &self,
        (directory, name): (FileId, &[u8]),
        (new_directory, new_name): (FileId, &[u8]),
        flags: u32,
    ) -> Result<Vec<FileId>, Error> {
        let is_replacing = flags & (libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) == 0;
        if is_replacing {
            self.commit_replacing((directory, name), (new_directory, new_name)).await?;
        }
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        match self.operate(MetadataOperation::Rename { directory, name, new_directory, new_name, flags }).await? {
            ServerAnswer::Renamed(files) => Ok(files),
            _ => Ok(Vec::new()),
        }
    }

    /// Commits what was written to a file that is to replace another one: a crash leaves the old or the new contents, not
    /// none.
    async fn commit_replacing(
        &self,
        (directory, name): (FileId, &[u8]),
        (new_directory, new_name): (FileId, &[u8]),
    ) -> Result<(), Error> {
        // If there is no such name, the rename says so.
        let Ok(found) = self.look_up(directory, name).await else { return Ok(()) };
        let Some(file) = self.use_known(found.id()) else { return Ok(()) };
        let is_needed = file.shown().is_dirty
            && !planted(Bug::ReplacedBeforeData)
            && self.look_up(new_directory, new_name).await.is_ok();
        let committed = if is_needed { self.commit_dirty(&file).await } else { Ok(()) };
        self.end_use(&file).await;
        committed
    }

    /// Changes attributes. The size is changed first.
    pub async fn set_attributes(&self, id: FileId, mut changes: AttributeChanges) -> Result<InodeAttributes, Error> {
        let is_cut = changes.size.is_some();
        if let Some(size) = changes.size.take() {
            let file = self.use_file(id, false);
            let truncated = self.truncate(&file, size).await;
            self.end_use(&file).await;
            truncated?;
        }
        let changed = self.set_others(id, changes).await;
        if is_cut { changed.map_err(Error::after_change) } else { changed }
    }

    /// Changes attributes other than the size.
    async fn set_others(&self, id: FileId, changes: AttributeChanges) -> Result<InodeAttributes, Error> {
        if (AttributeChanges { judged: None, ..changes }) == AttributeChanges::default() {
            return self.attributes(id).await;
        }
        if changes.accessed.is_some() || changes.modified.is_some() {
            // Uncommitted data is committed first: a later commit would change the times that are set here.
            if let Some(file) = self.use_known(id) {
                let committed = self.commit_dirty(&file).await;
                self.end_use(&file).await;
                committed?;
            }
            // So would a later commit of another host; this question makes other hosts commit. No other host may write
            // to a file whose attributes the session keeps.
            if self.kept_attributes(id).is_none() {
                self.look(MetadataQuestion::GetAttributes { file: id }).await?;
            }
        }
        let changed = self.operate(MetadataOperation::SetAttributes { file: id, changes }).await?;
        Ok(self.shown(attributes(changed)?))
    }

    /// Returns the names behind a cookie, and whether they are the last.
    pub async fn list(&self, directory: FileId, cookie: u64, entries: u32) -> Result<(Vec<ListedName>, bool), Error> {
        let looks = self.shared.session.looks();
        loop {
            let asked = looks.now();
            let question = MetadataQuestion::ReadDirectory { directory, cookie, entries };
            let mut listed = self.shared.session.list_to_keep(question).await?;
            let mut is_changed = false;
            for (listed_name, are_kept) in listed.names.iter_mut().zip(&listed.are_kept) {
                let found = &mut listed_name.attributes;
                if listed.are_names_kept {
                    looks.keep_name(asked, directory, &listed_name.name, Some(found.id()));
                }
                if *are_kept {
                    looks.keep_attributes(asked, found);
                }
                is_changed |= self.overlay(found);
            }
            if listed.are_names_kept {
                let to = listed.names.last().map_or(cookie, |last| last.cookie);
                looks.keep_listing(asked, directory, ListingPart { from: cookie, to, is_end: listed.is_end });
            }
            if !is_changed || self.shared.session.is_leased() {
                return Ok((listed.names, listed.is_end));
            }
            self.leased().await?;
        }
    }

    /// Whether what the session keeps says that a file has no extended attributes. Waits for nothing.
    pub fn has_no_xattrs(&self, file: FileId) -> bool {
        self.kept_attributes(file).is_some_and(|kept| kept.attributes.inode.flags & HAS_XATTRS == 0)
    }

    /// Returns the value of an extended attribute.
    pub async fn xattr(&self, file: FileId, name: &[u8]) -> Result<Vec<u8>, Error> {
        if self.has_no_xattrs(file) {
            return Err(Error::posix(libc::ENODATA));
        }
        match self.look(MetadataQuestion::ReadXattr { file, name: name.to_vec() }).await? {
            ServerAnswer::Bytes(bytes) => Ok(bytes),
            _ => Err(Error::posix(libc::EIO)),
        }
    }

    /// Returns the names of all extended attributes.
    pub async fn xattrs(&self, file: FileId) -> Result<Vec<Vec<u8>>, Error> {
        if self.has_no_xattrs(file) {
            return Ok(Vec::new());
        }
        match self.look(MetadataQuestion::ListXattrs { file }).await? {
            ServerAnswer::Names(names) => Ok(names),
            _ => Err(Error::posix(libc::EIO)),
        }
    }

    /// Sets an extended attribute. The flags are those of `setxattr`; in addition, flag 4 clears the set-group-ID bit
    /// when an access control list is set.
    ///
    /// *Errors*: `E2BIG` if the value is longer than the kernel allows; `ENOSPC` if the inode's attributes are too long
    /// together.
    pub async fn set_xattr(&self, file: FileId, name: &[u8], value: &[u8], flags: u32) -> Result<(), Error> {
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Error::posix(libc::E2BIG));
        }
        let operation = MetadataOperation::SetXattr { file, name: name.to_vec(), value: value.to_vec(), flags };
        self.operate(operation).await.map(drop)
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, file: FileId, name: &[u8]) -> Result<(), Error> {
        self.operate(MetadataOperation::RemoveXattr { file, name: name.to_vec() }).await.map(drop)
    }

    /// Returns the numbers for `statfs`. Free blocks that the session holds count as free.
    pub async fn statistics(&self) -> Result<VolumeStatistics, Error> {
        let in_hand = {
            let pool = WaitKind::Space.during(0, self.shared.space.lock()).await;
            pool.space.blocks().saturating_sub(pool.kept)
        };
        match self.ask(MetadataQuestion::Statistics).await? {
            ServerAnswer::Statistics(mut statistics) => {
                statistics.free = (statistics.free + in_hand).min(statistics.blocks);
                Ok(statistics)
            }
            _ => Err(Error::posix(libc::EIO)),
        }
    }
}
