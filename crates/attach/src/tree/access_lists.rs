//! Access control lists (POSIX.1e), which the kernel checks and the source stores.
//!
//! Owns: the duties of a file system that leaves the checks to the kernel: it applies the umask to new files, unless
//! their directory has a default list; and if the source supports no lists, it answers that the file has none.

use std::ffi::CStr;
use std::fs::File;

use nectary_fuse::Errno;

use super::sys;

/// The list that new files in a directory inherit.
const DEFAULT: &CStr = c"system.posix_acl_default";
/// The list of a node itself.
const ACCESS: &CStr = c"system.posix_acl_access";

/// The mode of a new file or directory in `parent`, from the request's mode and umask. If `parent` has a default list,
/// the source applies that list instead of the umask.
pub fn mode_of_new(parent: &File, (mode, umask): (u32, u32)) -> u32 {
    let has_default = sys::xattr(parent, DEFAULT, 0).is_ok_and(|value| !value.is_empty());
    if has_default { mode } else { mode & !(umask & 0o777) }
}

/// The value of an extended attribute, as [`sys::xattr`]. For a list, "not supported" becomes "no data", because the
/// kernel would treat the former as a refusal.
pub fn xattr(node: &File, name: &CStr, bytes_max: usize) -> Result<Vec<u8>, Errno> {
    let is_list = name == DEFAULT || name == ACCESS;
    sys::xattr(node, name, bytes_max).map_err(|error| match error.number() {
        libc::EOPNOTSUPP if is_list => Errno::new(libc::ENODATA),
        _ => error,
    })
}

/// Clears the set-group-id bit. This is needed when the caller who changed the list is not in the file's group.
pub fn clear_group_bit(node: &File) -> Result<(), Errno> {
    let mode = sys::stat(node)?.st_mode;
    if mode & libc::S_ISGID == 0 { Ok(()) } else { sys::set_mode(node, mode & !libc::S_ISGID) }
}
