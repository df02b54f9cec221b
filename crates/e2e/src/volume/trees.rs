//! Makes random calls on a volume, each on one of two mounts, and on a directory of this machine's file system; the
//! results must be the same.
//!
//! Owns: the calls, each made on both sides, and the comparison of their errno and returned values, and of the whole
//! tree after some calls: modes, owners, link counts, sizes, extended attributes and bytes. Promises: no process is
//! started while files of the volume are open. Leaves to others: the loss of servers.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::rng::SeededRng;

/// The names that entries of a directory can have.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "long-name-0123456789-0123456789-0123456789-0123456789"];
/// The largest number of names in a path.
const DEPTH: u64 = 4;
/// The bound of the sizes and offsets of calls. *Units*: bytes.
const SIZE_MAX: u64 = 200_000;
/// The longest write. *Units*: bytes.
const WRITE_MAX: u64 = 30_000;
/// The largest number of files that are open on each side.
const OPEN_MAX: usize = 6;
/// The number of calls between two comparisons of the trees.
const COMPARE_EVERY: u64 = 500;

/// The counts of a run.
#[derive(Debug, Clone, Default)]
pub struct TreeCallCounts {
    /// Calls.
    pub calls: u64,
    /// Calls that failed, with the same errno on both sides.
    pub failed: u64,
    /// For each kind of call, the number of calls that succeeded.
    pub succeeded: BTreeMap<&'static str, u64>,
    /// Comparisons of the whole tree.
    pub compared: u64,
    /// Entries that were compared.
    pub entries: u64,
}

/// The result of a call: its returned values in words, or an errno.
type Given = std::result::Result<String, i32>;

/// A call.
#[derive(Debug, Clone)]
enum TreeCall {
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
    SetXattr(Vec<u8>, i32),
    GetXattr,
    RemoveXattr,
    ReadWhole,
    Write(usize, u64, Vec<u8>),
    Read(usize, u64, usize),
    Cut(usize, i64),
    Allocate(usize, i32, i64, i64),
    Sync(usize),
    StatOpen(usize),
    Close(usize),
}

impl TreeCall {
    fn name(&self) -> &'static str {
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
struct ComparedSide {
    open: Vec<File>,
}

const XATTR: &CStr = c"user.attribute";

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn status(result: i32) -> io::Result<String> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(String::new()) }
}

/// Returns the attributes of a path, without following a link.
fn shown(path: &CStr) -> io::Result<libc::stat> {
    // SAFETY: all zeroes are a valid value of the buffer.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the path and the buffer live across the call.
    status(unsafe { libc::lstat(path.as_ptr(), &mut stat) })?;
    Ok(stat)
}

fn words(stat: &libc::stat) -> String {
    let is_directory = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let size = if is_directory { 0 } else { stat.st_size };
    format!("mode {:o}, {} links, {}:{}, {size} bytes", stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid)
}

impl ComparedSide {
    // SAFETY, of all calls here: names and buffers live across the call, lengths are those of the buffers, and a new
    // descriptor has the file as its only owner.
    #[expect(clippy::undocumented_unsafe_blocks, reason = "one comment for all calls")]
    fn call(&mut self, call: &TreeCall, path: &Path, second: &Path) -> io::Result<String> {
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
                let time = |ns: i64| libc::timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 };
                let times = [time(*accessed), time(*modified)];
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
            TreeCall::SetXattr(value, flags) => {
                status(unsafe { libc::lsetxattr(name, XATTR.as_ptr(), value.as_ptr().cast(), value.len(), *flags) })
            }
            TreeCall::GetXattr => {
                let mut value = vec![0_u8; 4096];
                let length = unsafe { libc::lgetxattr(name, XATTR.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
                status(length as i32)?;
                Ok(format!("{:?}", &value[..length as usize]))
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
            TreeCall::Write(file, offset, bytes) => Ok(self.open[*file].write_at(bytes, *offset)?.to_string()),
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
struct DrawnCall {
    call: TreeCall,
    path: PathBuf,
    second: PathBuf,
}

fn path(rng: &mut SeededRng) -> PathBuf {
    (0..=rng.below(DEPTH)).map(|_| NAMES[rng.index(NAMES.len())]).collect()
}

fn mode(rng: &mut SeededRng) -> u32 {
    [0o600, 0o644, 0o755, 0o700, 0o2755, 0o1777, 0o4711, 0o000][rng.index(8)]
}

fn draw(rng: &mut SeededRng, open: usize) -> DrawnCall {
    let (first, second) = (path(rng), path(rng));
    let owner = |rng: &mut SeededRng| [0, 1, 1000, u32::MAX][rng.index(4)];
    let kind = if open > 0 { rng.below(150) } else { rng.below(100) };
    let call = match kind {
        0..=12 => TreeCall::Mkdir(mode(rng)),
        13..=15 => TreeCall::Rmdir,
        16..=32 if open < OPEN_MAX => {
            let access = [libc::O_RDWR, libc::O_RDWR, libc::O_RDONLY, libc::O_WRONLY][rng.index(4)];
            let more = [libc::O_CREAT, libc::O_CREAT, libc::O_CREAT | libc::O_EXCL, libc::O_TRUNC, libc::O_APPEND, 0];
            let more = more[rng.index(6)] | if rng.chance(0.05) { libc::O_DIRECTORY } else { 0 };
            TreeCall::Open(access | more | libc::O_NONBLOCK, mode(rng))
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
        75..=77 => TreeCall::Utimens(rng.below(1 << 60) as i64, rng.below(1 << 60) as i64),
        78..=83 => TreeCall::Stat,
        84..=87 => TreeCall::List,
        88..=90 => {
            let value = vec![rng.below(256) as u8; rng.index(300)];
            TreeCall::SetXattr(value, [0, 0, libc::XATTR_CREATE, libc::XATTR_REPLACE][rng.index(4)])
        }
        91..=92 => TreeCall::GetXattr,
        93 => TreeCall::RemoveXattr,
        94..=115 if kind < 100 => TreeCall::ReadWhole,
        100..=119 => {
            let bytes = vec![1 + rng.below(255) as u8; rng.below(WRITE_MAX) as usize];
            TreeCall::Write(rng.index(open), rng.below(SIZE_MAX), bytes)
        }
        120..=130 => TreeCall::Read(rng.index(open), rng.below(SIZE_MAX), rng.below(WRITE_MAX) as usize),
        131..=135 => TreeCall::Cut(rng.index(open), rng.below(SIZE_MAX) as i64),
        136..=140 => {
            let (punch, keep, zero) =
                (libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_ZERO_RANGE);
            let mode = [0, keep, punch | keep, zero, zero | keep][rng.index(5)];
            TreeCall::Allocate(rng.index(open), mode, rng.below(SIZE_MAX) as i64, rng.below(WRITE_MAX) as i64)
        }
        141..=142 => TreeCall::Sync(rng.index(open)),
        143..=145 => TreeCall::StatOpen(rng.index(open)),
        146..=149 => TreeCall::Close(rng.index(open)),
        _ => TreeCall::Stat,
    };
    DrawnCall { call, path: first, second }
}

/// Makes `calls` random calls on a folder of the volume, each on a random one of the mounts, and on a folder beside the
/// volume. With `planted`, later writes to the mounts have a wrong first byte, which must be noticed.
pub fn compare(mounts: [&Path; 2], beside: &Path, calls: u64, seed: u64, planted: bool) -> Result<TreeCallCounts> {
    let name = format!("trees-{seed}");
    for root in [mounts[0], beside] {
        std::fs::create_dir(root.join(&name)).with_context(|| format!("{}", root.display()))?;
    }
    let roots = mounts.map(|mount| mount.join(&name));
    let model = beside.join(&name);
    let mut sides = [ComparedSide { open: Vec::new() }, ComparedSide { open: Vec::new() }];
    let (mut rng, mut done) = (SeededRng::new(seed), TreeCallCounts::default());
    for number in 0..calls {
        let DrawnCall { call, path, second } = draw(&mut rng, sides[0].open.len());
        let root = &roots[rng.index(2)];
        let mut made = call.clone();
        if let (true, TreeCall::Write(_, _, bytes)) = (planted && number > calls / 3, &mut made)
            && bytes.len() > 1
        {
            bytes[0] ^= 1;
        }
        let given = |side: &mut ComparedSide, root: &Path, call: &TreeCall| -> Given {
            let given = side.call(call, &root.join(&path), &root.join(&second));
            given.map_err(|error| error.raw_os_error().unwrap_or(-1))
        };
        let found = given(&mut sides[0], root, &made);
        let expected = given(&mut sides[1], &model, &call);
        done.calls += 1;
        if is_lost_pipe(&call, &found, &expected) {
            continue;
        }
        match (&found, &expected) {
            _ if found != expected => bail!(
                "seed {seed}, call {number}: {call:?} of {} and {}: {} on the volume, {} beside it",
                path.display(),
                second.display(),
                said(&found),
                said(&expected)
            ),
            (Ok(_), _) => *done.succeeded.entry(call.name()).or_default() += 1,
            (Err(_), _) => done.failed += 1,
        }
        if (number + 1).is_multiple_of(COMPARE_EVERY) || number + 1 == calls {
            for root in &roots {
                let (found, expected) = (tree(root)?, tree(&model)?);
                done.compared += 1;
                done.entries += expected.len() as u64;
                for (path, entry) in &expected {
                    let other = found.get(path).map(String::as_str);
                    let shown = path.display();
                    ensure!(
                        other == Some(entry),
                        "seed {seed}, after call {number}: {shown}: {other:?} on the volume, {entry} beside it"
                    );
                }
                ensure!(found.len() == expected.len(), "seed {seed}, after call {number}: {found:?}, {expected:?}");
            }
        }
    }
    drop(sides);
    std::fs::remove_dir_all(&roots[1])?;
    std::fs::remove_dir_all(&model)?;
    ensure!(!roots[0].exists(), "{} is not removed", roots[0].display());
    Ok(done)
}

/// A pipe that is open on one mount, and that the other mount removed. The kernel does not tell a file system who opens
/// a pipe, so the volume has freed its inode.
fn is_lost_pipe(call: &TreeCall, found: &Given, expected: &Given) -> bool {
    let mode_of = |words: &str| {
        let mode = words.strip_prefix("mode ")?.split(',').next()?;
        u32::from_str_radix(mode, 8).ok()
    };
    let is_pipe = |words: &String| mode_of(words).is_some_and(|mode| mode & libc::S_IFMT == libc::S_IFIFO);
    matches!(call, TreeCall::StatOpen(_)) && *found == Err(libc::ESTALE) && expected.as_ref().is_ok_and(is_pipe)
}

fn said(given: &Given) -> String {
    match given {
        Ok(words) => format!("done {words}"),
        Err(errno) => io::Error::from_raw_os_error(*errno).to_string(),
    }
}

/// Describes every entry below a root.
fn tree(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    let mut side = ComparedSide { open: Vec::new() };
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            let stat = shown(&c_path(&path)?)?;
            let mut entry = words(&stat);
            let kind = stat.st_mode & libc::S_IFMT;
            let more = match kind {
                libc::S_IFREG => side.call(&TreeCall::ReadWhole, &path, &path)?,
                libc::S_IFLNK => side.call(&TreeCall::Readlink, &path, &path)?,
                _ => String::new(),
            };
            let attribute = side.call(&TreeCall::GetXattr, &path, &path);
            let attribute = attribute.map_err(|error| error.raw_os_error());
            entry += &format!(", {more}, {attribute:?}");
            if kind == libc::S_IFDIR {
                folders.push(path.clone());
            }
            found.insert(path.strip_prefix(root)?.to_owned(), entry);
        }
    }
    Ok(found)
}
