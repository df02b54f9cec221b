//! Extended attributes, among them access control lists.
//!
//! Owns: what the kernel caches of access control lists. Leaves to others: what the session keeps (`nectary-volume`), and
//! capabilities, which changes of a file remove (`calls`).
//!
//! *Circle*: `serve` dispatches to these calls, and they work on its file system.

use nectary_fuse::Errno;

use super::calls::{KILL_GROUP_ID, Result, This, ask, changed, check_name, operate, refused};
use super::serve::VolumeFileSystem;

/// The attributes with access control lists.
const ACCESS_LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

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
    let flags = flags | if kill_group_id { KILL_GROUP_ID } else { 0 };
    let set = operate!(this, client, client.set_xattr(id, &name, &value, flags));
    this.nodes.has_attribute(node);
    changed(&this, [Some(id)]).await;
    set
}

/// Whether a call failed because what it is about was removed, although a program may still use it.
fn is_removed(this: &This, node: u64, error: Errno) -> bool {
    error.number() == libc::ESTALE && this.nodes.removed(node).is_some()
}

pub async fn xattr(this: This, node: u64, name: Vec<u8>) -> Result<Vec<u8>> {
    let id = this.nodes.id(node)?;
    let is_kept = || this.sessions.last().kept_attributes(id).is_some();
    let is_list = ACCESS_LISTS.contains(&&*name);
    let may_be_cached = is_list && is_kept() && this.shown.note_list(id);
    let value = match ask!(this, client, client.xattr(id, &name)) {
        // The kernel asks for access control lists before a program uses a directory that is open.
        Err(error) if is_removed(&this, node, error) => Err(Errno::new(libc::ENODATA)),
        value => value,
    };
    // The kernel caches access control lists for any time, and keeps none that it is told to forget before the answer. One
    // that the session keeps, with the attributes, it is told to forget when another host changes it.
    if is_list && !(may_be_cached && is_kept()) {
        changed(&this, [Some(id)]).await;
    }
    value
}

/// Whether the session knows that a node has no extended attributes, one of which is asked for; waits for nothing.
pub fn has_no_xattrs(this: &VolumeFileSystem, node: u64, name: &[u8]) -> bool {
    let Ok(id) = this.nodes.id(node) else { return false };
    (!ACCESS_LISTS.contains(&name) || this.shown.note_list(id)) && this.sessions.last().has_no_xattrs(id)
}

pub async fn xattrs(this: This, node: u64) -> Result<Vec<u8>> {
    let id = this.nodes.id(node)?;
    let names = match ask!(this, client, client.xattrs(id)) {
        Err(error) if is_removed(&this, node, error) => Vec::new(),
        names => names?,
    };
    Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
}

pub async fn remove_xattr(this: This, node: u64, name: Vec<u8>) -> Result<()> {
    let id = this.nodes.id(node)?;
    let removed = operate!(this, client, client.remove_xattr(id, &name));
    changed(&this, [Some(id)]).await;
    removed
}
