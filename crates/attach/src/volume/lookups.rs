//! Look-ups: of names, of file handles, and of what the session keeps.
//!
//! Owns: telling the kernel to begin a rename once more if the inode that it looks up has lost another name, by which this
//! call may know it. The kernel begins a call once more only once: a call that cannot be a rename is not told so, nor a
//! rename for a second name of its path. Leaves to others: which names these are (`GivenNames::earlier_name`).
//!
//! *Circle*: `serve` dispatches to these calls, and they work on its file system.

use nectary_fuse::{Errno, LookupEntry};
use nectary_volume::client::EarlierName;
use nectary_volume::protocol::{FileId, InodeAttributes};

use super::caller_calls::CallerCall;
use super::calls::{FoundInode, Result, This, ask, check_name, of_removed, refused};
use super::serve::VolumeFileSystem;
use super::shown::KernelCache;

pub async fn look_up(this: This, parent: u64, name: Vec<u8>, thread: u32) -> Result<FoundInode> {
    if name == b"." || name == b".." {
        return of_handle(this, parent, name == b"..").await;
    }
    check_name(&name)?;
    let directory = this.nodes.id(parent)?;
    let found = match ask!(this, client, client.look_up(directory, &name)).map_err(of_removed) {
        Err(error) if error.number() == libc::ENOENT => {
            this.shown.note_looked(thread, directory, &name, None);
            return Err(error);
        }
        found => found?,
    };
    if is_moved(&this, thread, &found, (directory, &name)).await? {
        this.shown.note_stale(thread, directory, &name, found.id());
        return Err(Errno::new(libc::ESTALE));
    }
    this.shown.note_looked(thread, directory, &name, Some(found.id()));
    Ok(FoundInode::new(found, Some((parent, name))))
}

/// Whether a name was found for an inode that the thread's rename may know by a name which it has no more.
async fn is_moved(
    this: &VolumeFileSystem,
    thread: u32,
    found: &InodeAttributes,
    (directory, name): (FileId, &[u8]),
) -> Result<bool> {
    let Some(earlier) = this.shown.earlier_name(thread, found, directory, name) else { return Ok(false) };
    let is_gone = async {
        match earlier {
            EarlierName::Gone => Ok(true),
            EarlierName::Perhaps(names) => is_any_gone(this, found.id(), names).await,
        }
    };
    begins_again(&this.shown, (thread, CallerCall::of(thread)), found.id(), is_gone).await
}

/// Decides whether a call begins once more that finds an inode of which an earlier name may be gone; notes it.
async fn begins_again(
    shown: &KernelCache,
    (thread, call): (u32, CallerCall),
    found: FileId,
    is_gone: impl Future<Output = Result<bool>>,
) -> Result<bool> {
    if call == CallerCall::Other || shown.has_begun_again(thread, &call, found) {
        return Ok(false);
    }
    let is_gone = is_gone.await?;
    if is_gone {
        shown.note_begun_again(thread, call);
    }
    Ok(is_gone)
}

/// Whether any of these is no name of an inode.
async fn is_any_gone(this: &VolumeFileSystem, inode: FileId, names: Vec<(FileId, Vec<u8>)>) -> Result<bool> {
    for (of, name) in names {
        match ask!(this, client, client.look_up(of, &name)) {
            Ok(other) if other.id() == inode => {}
            Err(error) if !matches!(error.number(), libc::ENOENT | libc::ESTALE | libc::ENOTDIR) => return Err(error),
            _ => return Ok(true),
        }
    }
    Ok(false)
}

/// Looks up a name that the session keeps; waits for nothing.
pub fn kept_entry(this: &VolumeFileSystem, parent: u64, name: &[u8], thread: u32) -> Option<Result<LookupEntry>> {
    let directory = this.nodes.id(parent).ok()?;
    let kept = this.sessions.last().kept_name(directory, name)?;
    match &kept {
        Some(kept) if this.shown.earlier_name(thread, &kept.attributes, directory, name).is_some() => return None,
        _ => this.shown.note_looked(thread, directory, name, kept.as_ref().map(|kept| kept.attributes.id())),
    }
    Some(match kept {
        Some(kept) => Ok(this.entry(&kept.attributes, parent, name, thread)),
        None => Err(Errno::new(libc::ENOENT)),
    })
}

/// Returns the attributes of a node that the session keeps; waits for nothing.
pub fn kept_attributes(this: &VolumeFileSystem, node: u64) -> Option<InodeAttributes> {
    let id = this.nodes.id(node).ok()?;
    Some(this.sessions.last().kept_attributes(id)?.attributes)
}

/// Looks up the inode of a file handle, or the parent of a directory that was reached by one. The kernel may have
/// forgotten the node; it compares the generation.
async fn of_handle(this: This, node: u64, is_parent: bool) -> Result<FoundInode> {
    let id = this.nodes.id_of_handle(node)?;
    let found = match is_parent {
        true => ask!(this, client, client.look_up(id, b".."))?,
        false => ask!(this, client, client.attributes(id))?,
    };
    if found.inode.links == 0 {
        return Err(Errno::new(libc::ESTALE));
    }
    Ok(FoundInode::new(found, None))
}

#[cfg(test)]
#[path = "lookups_tests.rs"]
mod tests;
