//! A random call on a tree of files: what it is, how it is drawn, and how it is made on one side of the comparison.
//!
//! Owns: the calls, and the files that a side has open. Leaves to others: on which mount a call is made, and what its
//! result must be.

use std::ffi::{CStr, CString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::rng::SeededRng;

/// The names that entries of a directory can have.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "long-name-0123456789-0123456789-0123456789-0123456789"];
/// The largest number of names in a path.
const DEPTH: u64 = 4;
/// The bound of the sizes and offsets of calls. *Units*: bytes.
const SIZE_MAX: u64 = 200_000;
/// The longest write. *Units*: bytes.
const WRITE_MAX: u64 = 30_000;
/// The bound of the times that calls set: all clocks are later. *Units*: nanoseconds since 1970.
const SET_NS_MAX: u64 = 1 << 60;
/// The largest number of files that are open on each side.
pub const OPEN_MAX: usize = 6;
/// The result of a call: its returned values in words, or an errno.
pub type Given = std::result::Result<String, i32>;

/// A call.
#[derive(Debug, Clone)]
pub enum TreeCall {
    Mkdir(u32),
    Rmdir,
    /// Opens a file with flags and a mode; the file stays open.
    Open(i32, u32),
    Mknod(u32),
    Unlink,
    Rename(u32),
    Link,
    Symlink,
    Readlink,
    Chmod(u32),
    Chown(u32, u32),
    Truncate(i64),
    Utimens(i64, i64),
    Stat,
    List,
    /// Sets a value of so many equal bytes, with flags.
    SetXattr(u8, usize, i32),
    GetXattr,
    RemoveXattr,
    ReadWhole,
    /// Writes so many equal bytes at an offset.
    Write(usize, u64, u8, usize),
    Read(usize, u64, usize),
    Cut(usize, i64),
    Allocate(usize, i32, i64, i64),
    Sync(usize),
    StatOpen(usize),
    Close(usize),
}

impl TreeCall {
    /// The name of the kind.
    pub fn name(&self) -> &'static str {
        match self {
            TreeCall::Mkdir(_) => "mkdir",
            TreeCall::Rmdir => "rmdir",
            TreeCall::Open(..) => "open",
            TreeCall::Mknod(_) => "mknod",
            TreeCall::Unlink => "unlink",
            TreeCall::Rename(_) => "rename",
            TreeCall::Link => "link",
            TreeCall::Symlink => "symlink",
            TreeCall::Readlink => "readlink",
            TreeCall::Chmod(_) => "chmod",
            TreeCall::Chown(..) => "chown",
            TreeCall::Truncate(_) => "truncate",
            TreeCall::Utimens(..) => "utimensat",
            TreeCall::Stat => "lstat",
            TreeCall::List => "readdir",
            TreeCall::SetXattr(..) => "setxattr",
            TreeCall::GetXattr => "getxattr",
            TreeCall::RemoveXattr => "removexattr",
            TreeCall::ReadWhole => "read of all",
            TreeCall::Write(..) => "pwrite",
            TreeCall::Read(..) => "pread",
            TreeCall::Cut(..) => "ftruncate",
            TreeCall::Allocate(..) => "fallocate",
            TreeCall::Sync(_) => "fsync",
            TreeCall::StatOpen(_) => "fstat",
            TreeCall::Close(_) => "close",
        }
    }
}

/// A side of the comparison, with its open files.
#[derive(Debug, Default)]
pub struct ComparedSide {
    /// The open files, in the same order on each side.
    pub open: Vec<File>,
}

/// The extended attribute that calls set and read.
pub const XATTR: &CStr = c"user.attribute";

/// The path for a system call.
pub fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Returns the extended attribute of a path, without following a link.
pub fn attribute(path: &Path) -> io::Result<Vec<u8>> {
    let (path, mut value) = (c_path(path)?, vec![0_u8; 4096]);
    // SAFETY: the names and the buffer live across the call, and the length is that of the buffer.
    let length = unsafe { libc::lgetxattr(path.as_ptr(), XATTR.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    status(length as i32)?;
    value.truncate(length as usize);
    Ok(value)
}

/// The outcome of a system call that returns a negative number on failure.
pub fn status(result: i32) -> io::Result<String> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(String::new()) }
}

/// Returns the attributes of a path, without following a link.
pub fn shown(path: &CStr) -> io::Result<libc::stat> {
    // SAFETY: all zeroes are a valid value of the buffer.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the path and the buffer live across the call.
    status(unsafe { libc::lstat(path.as_ptr(), &mut stat) })?;
    Ok(stat)
}

/// Whether times are compared.
static ARE_TIMES_COMPARED: AtomicBool = AtomicBool::new(cfg!(test));

/// The time of the last change of an inode's contents, as far as the two sides have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModifiedTime {
    /// A call has set it, and nothing has changed the contents since. *Units*: nanoseconds since 1970.
    Set(i64),
    /// The contents have changed since, at a time by the side's clock.
    Clock,
    /// A pipe's, as the kernel of one host alone knows of writes to it; or times are not compared.
    Unknown,
}

impl ModifiedTime {
    /// Compares times from now on.
    pub fn compare() {
        ARE_TIMES_COMPARED.store(true, Ordering::Relaxed);
    }

    /// Returns the time that attributes show.
    pub fn of(stat: &libc::stat) -> ModifiedTime {
        let ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec);
        match stat.st_mode & libc::S_IFMT {
            _ if !ARE_TIMES_COMPARED.load(Ordering::Relaxed) => ModifiedTime::Unknown,
            libc::S_IFIFO => ModifiedTime::Unknown,
            _ if u64::try_from(ns).is_ok_and(|ns| ns >= SET_NS_MAX) => ModifiedTime::Clock,
            _ => ModifiedTime::Set(ns),
        }
    }

    /// Sets it, without following a link.
    pub fn set(self, path: &Path) -> io::Result<()> {
        let ModifiedTime::Set(ns) = self else { return Ok(()) };
        let (path, omitted) = (c_path(path)?, libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT });
        let times = [omitted, timespec(ns)];
        // SAFETY: the path and the times live across the call.
        let set = unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
        status(set).map(drop)
    }
}

impl fmt::Display for ModifiedTime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModifiedTime::Set(ns) => write!(out, "modified at {ns} ns"),
            ModifiedTime::Clock => write!(out, "modified lately"),
            ModifiedTime::Unknown => write!(out, "modified at any time"),
        }
    }
}

fn timespec(ns: i64) -> libc::timespec {
    libc::timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 }
}

fn words(stat: &libc::stat) -> String {
    let is_directory = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let (size, modified) = (if is_directory { 0 } else { stat.st_size }, ModifiedTime::of(stat));
    let libc::stat { st_mode: mode, st_nlink: links, st_uid: user, st_gid: group, .. } = *stat;
    format!("mode {mode:o}, {links} links, {user}:{group}, {size} bytes, {modified}")
}

impl ComparedSide {
    /// Makes a call; its paths are below the root of the side.
    pub fn call(&mut self, drawn: &DrawnCall, root: &Path) -> Given {
        let given = self.make(&drawn.call, &root.join(&drawn.path), &root.join(&drawn.second));
        given.map_err(|error| error.raw_os_error().unwrap_or(-1))
    }

    // SAFETY, of all calls here: names and buffers live across the call, lengths are those of the buffers, and a new
    // descriptor has the file as its only owner.
    #[expect(clippy::undocumented_unsafe_blocks, reason = "one comment for all calls")]
    fn make(&mut self, call: &TreeCall, path: &Path, second: &Path) -> io::Result<String> {
        let (name, other) = (c_path(path)?, c_path(second)?);
        let (name, other) = (name.as_ptr(), other.as_ptr());
        match call {
            TreeCall::Mkdir(mode) => status(unsafe { libc::mkdir(name, *mode) }),
            TreeCall::Rmdir => status(unsafe { libc::rmdir(name) }),
            TreeCall::Open(flags, mode) => {
                let descriptor = unsafe { libc::open(name, *flags | libc::O_CLOEXEC, *mode) };
                status(descriptor)?;
                self.open.push(unsafe { File::from_raw_fd(descriptor) });
                Ok(String::new())
            }
            TreeCall::Mknod(mode) => status(unsafe { libc::mknod(name, *mode, 0) }),
            TreeCall::Unlink => status(unsafe { libc::unlink(name) }),
            TreeCall::Rename(flags) => {
                status(unsafe { libc::renameat2(libc::AT_FDCWD, name, libc::AT_FDCWD, other, *flags) })
            }
            TreeCall::Link => status(unsafe { libc::link(name, other) }),
            // The link has the same target on both sides.
            TreeCall::Symlink => status(unsafe { libc::symlink(c"../a/b".as_ptr(), name) }),
            TreeCall::Readlink => Ok(std::fs::read_link(path)?.display().to_string()),
            TreeCall::Chmod(mode) => status(unsafe { libc::chmod(name, *mode) }),
            TreeCall::Chown(user, group) => status(unsafe { libc::lchown(name, *user, *group) }),
            TreeCall::Truncate(size) => status(unsafe { libc::truncate(name, *size) }),
            TreeCall::Utimens(accessed, modified) => {
                let times = [timespec(*accessed), timespec(*modified)];
                status(unsafe { libc::utimensat(libc::AT_FDCWD, name, times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) })?;
                let stat = shown(&c_path(path)?)?;
                Ok(format!("{} {}", stat.st_mtime, stat.st_mtime_nsec))
            }
            TreeCall::Stat => Ok(words(&shown(&c_path(path)?)?)),
            TreeCall::List => {
                let mut names = std::fs::read_dir(path)?
                    .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
                    .collect::<io::Result<Vec<String>>>()?;
                names.sort();
                Ok(names.join(" "))
            }
            TreeCall::SetXattr(fill, length, flags) => {
                let value = vec![*fill; *length];
                status(unsafe { libc::lsetxattr(name, XATTR.as_ptr(), value.as_ptr().cast(), value.len(), *flags) })
            }
            TreeCall::GetXattr => {
                let value = attribute(path)?;
                Ok(format!("{} bytes, {:x}", value.len(), xxhash_rust::xxh3::xxh3_64(&value)))
            }
            TreeCall::RemoveXattr => status(unsafe { libc::lremovexattr(name, XATTR.as_ptr()) }),
            TreeCall::ReadWhole => {
                // With `O_NONBLOCK` the open does not wait for the other end of a pipe.
                let descriptor = unsafe { libc::open(name, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC) };
                status(descriptor)?;
                let mut file = unsafe { File::from_raw_fd(descriptor) };
                let mut bytes = Vec::new();
                if file.metadata()?.is_file() {
                    io::Read::read_to_end(&mut file, &mut bytes)?;
                }
                Ok(format!("{} bytes, {:x}", bytes.len(), xxhash_rust::xxh3::xxh3_64(&bytes)))
            }
            TreeCall::Write(file, offset, fill, length) => {
                Ok(self.open[*file].write_at(&vec![*fill; *length], *offset)?.to_string())
            }
            TreeCall::Read(file, offset, length) => {
                let mut bytes = vec![0; *length];
                let count = self.open[*file].read_at(&mut bytes, *offset)?;
                Ok(format!("{count} bytes, {:x}", xxhash_rust::xxh3::xxh3_64(&bytes[..count])))
            }
            TreeCall::Cut(file, size) => status(unsafe { libc::ftruncate(self.open[*file].as_raw_fd(), *size) }),
            TreeCall::Allocate(file, mode, offset, length) => {
                status(unsafe { libc::fallocate(self.open[*file].as_raw_fd(), *mode, *offset, *length) })
            }
            TreeCall::Sync(file) => self.open[*file].sync_all().map(|()| String::new()),
            TreeCall::StatOpen(file) => {
                let mut stat: libc::stat = unsafe { std::mem::zeroed() };
                status(unsafe { libc::fstat(self.open[*file].as_raw_fd(), &mut stat) })?;
                Ok(words(&stat))
            }
            TreeCall::Close(file) => {
                drop(self.open.remove(*file));
                Ok(String::new())
            }
        }
    }
}

/// A drawn call, with its paths below the roots.
#[derive(Debug, Clone)]
pub struct DrawnCall {
    /// What is done.
    pub call: TreeCall,
    /// The path, of calls that have one.
    pub path: PathBuf,
    /// The second path, of calls that have two.
    pub second: PathBuf,
}

/// From what calls are drawn.
#[derive(Debug, Clone, Copy)]
pub struct DrawChoice<'a> {
    /// The numbers of the open files that a call may use.
    pub files: &'a [usize],
    /// Whether one more file may be opened.
    pub may_open: bool,
    /// Half of the paths are of these or one name below, if there are any.
    pub known: &'a [PathBuf],
}

fn path(rng: &mut SeededRng, known: &[PathBuf]) -> PathBuf {
    if !known.is_empty() && rng.chance(0.5) {
        let path = known[rng.index(known.len())].clone();
        let is_below = rng.chance(0.5) && path.components().count() < DEPTH as usize;
        return if is_below { path.join(NAMES[rng.index(NAMES.len())]) } else { path };
    }
    (0..=rng.below(DEPTH)).map(|_| NAMES[rng.index(NAMES.len())]).collect()
}

fn mode(rng: &mut SeededRng) -> u32 {
    [0o600, 0o644, 0o755, 0o700, 0o2755, 0o1777, 0o4711, 0o000][rng.index(8)]
}

/// Draws a call.
pub fn draw(rng: &mut SeededRng, choice: DrawChoice<'_>) -> DrawnCall {
    let DrawChoice { files, may_open, known } = choice;
    let (path, second) = (path(rng, known), path(rng, known));
    let file = |rng: &mut SeededRng| files[rng.index(files.len())];
    let owner = |rng: &mut SeededRng| [0, 1, 1000, u32::MAX][rng.index(4)];
    let kind = if !files.is_empty() { rng.below(150) } else { rng.below(100) };
    let call = match kind {
        0..=12 => TreeCall::Mkdir(mode(rng)),
        13..=15 => TreeCall::Rmdir,
        16..=32 if may_open => {
            let access = [libc::O_RDWR, libc::O_RDWR, libc::O_RDONLY, libc::O_WRONLY][rng.index(4)];
            let more = [libc::O_CREAT, libc::O_CREAT, libc::O_CREAT | libc::O_EXCL, libc::O_TRUNC, libc::O_APPEND, 0];
            let more = more[rng.index(6)] | if rng.chance(0.05) { libc::O_DIRECTORY } else { 0 };
            let durable = if rng.chance(0.1) { [libc::O_SYNC, libc::O_DSYNC][rng.index(2)] } else { 0 };
            TreeCall::Open(access | more | durable | libc::O_NONBLOCK, mode(rng))
        }
        33 => TreeCall::Mknod([libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFREG][rng.index(3)] | 0o644),
        34..=39 => TreeCall::Unlink,
        40..=51 => TreeCall::Rename([0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE][rng.index(5)]),
        52..=56 => TreeCall::Link,
        57..=59 => TreeCall::Symlink,
        60..=62 => TreeCall::Readlink,
        63..=66 => TreeCall::Chmod(mode(rng)),
        67..=69 => TreeCall::Chown(owner(rng), owner(rng)),
        70..=74 => TreeCall::Truncate(rng.below(SIZE_MAX) as i64 - 10),
        75..=77 => TreeCall::Utimens(rng.below(SET_NS_MAX) as i64, rng.below(SET_NS_MAX) as i64),
        78..=83 => TreeCall::Stat,
        84..=87 => TreeCall::List,
        88..=90 => {
            let (fill, length) = (rng.below(256) as u8, rng.index(300));
            TreeCall::SetXattr(fill, length, [0, 0, libc::XATTR_CREATE, libc::XATTR_REPLACE][rng.index(4)])
        }
        91..=92 => TreeCall::GetXattr,
        93 => TreeCall::RemoveXattr,
        94..=115 if kind < 100 => TreeCall::ReadWhole,
        100..=119 => {
            let (fill, length) = (1 + rng.below(255) as u8, rng.below(WRITE_MAX) as usize);
            TreeCall::Write(file(rng), rng.below(SIZE_MAX), fill, length)
        }
        120..=130 => TreeCall::Read(file(rng), rng.below(SIZE_MAX), rng.below(WRITE_MAX) as usize),
        131..=135 => TreeCall::Cut(file(rng), rng.below(SIZE_MAX) as i64),
        136..=140 => {
            let (punch, keep, zero) =
                (libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_ZERO_RANGE);
            let mode = [0, keep, punch | keep, zero, zero | keep][rng.index(5)];
            TreeCall::Allocate(file(rng), mode, rng.below(SIZE_MAX) as i64, rng.below(WRITE_MAX) as i64)
        }
        141..=142 => TreeCall::Sync(file(rng)),
        143..=145 => TreeCall::StatOpen(file(rng)),
        146..=149 => TreeCall::Close(file(rng)),
        _ => TreeCall::Stat,
    };
    DrawnCall { call, path, second }
}
