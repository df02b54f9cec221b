//! Access control lists (POSIX.1e), which the kernel checks and the source keeps.
//!
//! Owns: what a file system has to do once it leaves lists to the kernel: the umask applies to new files unless their
//! directory has a default list, and a source without lists is one where no file has any.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use nectary_fuse::Errno;

use super::sys;

/// The list that a directory gives to what is made in it.
const DEFAULT: &CStr = c"system.posix_acl_default";
/// The list of a node itself.
const ACCESS: &CStr = c"system.posix_acl_access";

/// The mode with which something new is made in `parent`, from that of the request and its umask. A default list stands
/// in for the umask: the source applies it.
pub fn mode_of_new(parent: &OwnedFd, (mode, umask): (u32, u32)) -> u32 {
    let has_default = sys::xattr(parent, DEFAULT, 0).is_ok_and(|value| !value.is_empty());
    if has_default { mode } else { mode & !(umask & 0o777) }
}

/// The value of an extended attribute, as [`sys::xattr`]; the kernel takes "not supported" for a list as a refusal.
pub fn xattr(node: &OwnedFd, name: &CStr, bytes_max: usize) -> Result<Vec<u8>, Errno> {
    let is_list = name == DEFAULT || name == ACCESS;
    sys::xattr(node, name, bytes_max).map_err(|error| match error.number() {
        libc::EOPNOTSUPP if is_list => Errno::new(libc::ENODATA),
        _ => error,
    })
}

/// Takes the set-group-id bit away: the caller who changed the list is not of the file's group.
pub fn clear_group_bit(node: &OwnedFd) -> Result<(), Errno> {
    let mode = sys::stat(node)?.st_mode;
    if mode & libc::S_ISGID == 0 { Ok(()) } else { sys::set_mode(node, mode & !libc::S_ISGID) }
}
