//! The effect of operations on single inodes, without the tables.
//!
//! Owns: what a new inode has, and what a change of a name does to the inodes of the directory and of the name. The
//! server uses it for every operation, and a client for those that it does itself: so both get the same attributes.

use crate::format::Inode;

/// The properties of a new inode that the caller names.
#[derive(Debug, Clone, Copy)]
pub struct MadeInode<'a> {
    /// The file type and the permission bits, without those that the umask or a default list takes away.
    pub mode: u32,
    /// The owner's user number.
    pub owner: u32,
    /// The group's number, if the directory does not decide it.
    pub group: u32,
    /// The number of a device node.
    pub device: u64,
    /// The target of a symbolic link.
    pub target: &'a [u8],
    /// Whether the target is in the inode.
    pub is_inline: bool,
    /// Whether the inode has no name.
    pub is_nameless: bool,
}

/// Returns a new inode of a directory, as it is before it is stored.
pub fn made(new: MadeInode<'_>, (parent_number, parent): (u64, &Inode), now_ns: i64) -> Inode {
    let kind = new.mode & libc::S_IFMT;
    let (mut permissions, mut group) = (new.mode & 0o7777, new.group);
    if parent.mode & libc::S_ISGID != 0 {
        group = parent.group;
        if kind == libc::S_IFDIR {
            permissions |= libc::S_ISGID;
        }
    }
    let is_link = kind == libc::S_IFLNK;
    let links = if kind == libc::S_IFDIR { 2 } else { u32::from(!new.is_nameless) };
    Inode {
        mode: kind | permissions,
        links,
        owner: new.owner,
        group,
        generation: 1,
        size: if is_link { new.target.len() as u64 } else { 0 },
        times_ns: [now_ns; 4],
        parent: parent_number,
        device: if matches!(kind, libc::S_IFCHR | libc::S_IFBLK) { new.device } else { 0 },
        inline: if is_link && new.is_inline { new.target.to_vec() } else { Vec::new() },
        ..Inode::default()
    }
}

/// Changes a directory that gets or loses names, and names of directories.
pub fn touch(directory: &mut Inode, (names, links): (i64, i32), now_ns: i64) {
    directory.device = directory.device.saturating_add_signed(names);
    directory.links = directory.links.saturating_add_signed(links);
    directory.times_ns[1] = now_ns;
    directory.times_ns[2] = now_ns;
}

/// Changes an inode that loses a name.
pub fn lose_name(found: &mut Inode, now_ns: i64) {
    found.links = if is_directory(found) { 0 } else { found.links.saturating_sub(1) };
    found.times_ns[2] = now_ns;
}

/// Counts a change that is stored.
pub fn stored(inode: &mut Inode) {
    inode.version += 1;
}

pub(super) fn is_directory(inode: &Inode) -> bool {
    inode.mode & libc::S_IFMT == libc::S_IFDIR
}
