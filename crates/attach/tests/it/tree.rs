//! Tests of a directory behind the cache with real programs, which must see the same files as in the source.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nectary_attach::{Error, MountedTree, TreeOptions};
use nectary_buffer::{CacheOptions, WriteMode};

use crate::support::is_missing;

/// A mounted directory, which is unmounted whether the test passes or fails.
pub struct TreeMount {
    pub tree: MountedTree,
    scratch: PathBuf,
}

impl TreeMount {
    fn new(test: &str, mode: WriteMode) -> Option<TreeMount> {
        TreeMount::with(test, mode, false)
    }

    fn with(test: &str, mode: WriteMode, is_exclusive: bool) -> Option<TreeMount> {
        TreeMount::passing(test, mode, is_exclusive, 0)
    }

    /// Shows a directory; the kernel itself reads files of at most `passthrough_bytes`.
    pub fn passing(test: &str, mode: WriteMode, is_exclusive: bool, passthrough_bytes: u64) -> Option<TreeMount> {
        if is_missing(test) {
            return None;
        }
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        // The directory must not be in a file system in memory, which may support neither direct I/O nor extended
        // attributes.
        let scratch = Path::new("/var/tmp").join(format!("nectary-tree-{}-{serial}", std::process::id()));
        let (source, directory) = (scratch.join("source"), scratch.join("shown"));
        fs::create_dir_all(&source).unwrap();
        fs::create_dir_all(&directory).unwrap();
        let cache = CacheOptions { memory_bytes: 16 << 20, policy: "lru".to_owned(), mode, ..CacheOptions::default() };
        let options = TreeOptions { source, directory, cache, is_exclusive, uses_handles: true, passthrough_bytes };
        let tree = MountedTree::start(options).expect("it is shown");
        Some(TreeMount { tree, scratch })
    }

    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.scratch.join("shown").join(name)
    }

    pub fn below(&self, name: impl AsRef<Path>) -> PathBuf {
        self.scratch.join("source").join(name)
    }
}

impl Drop for TreeMount {
    fn drop(&mut self) {
        let has_ended = *self.tree.ended().borrow();
        let ended = if has_ended { Ok(()) } else { self.tree.unmount(false).or_else(|_| self.tree.unmount(true)) };
        if !std::thread::panicking() {
            ended.expect("it is unmounted");
            self.tree.finish().expect("it ends well");
        }
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

fn run(command: &mut Command) -> Option<Vec<u8>> {
    let output = match command.stdin(Stdio::null()).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            println!("NOT RUN: {command:?}: it is not installed");
            return None;
        }
        output => output.expect("it runs"),
    };
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{text}\n{errors}", output.status);
    Some(output.stdout)
}

pub fn bytes(length: usize, seed: u32) -> Vec<u8> {
    (0..length as u32).map(|byte| (byte.wrapping_mul(31).wrapping_add(seed) % 253) as u8).collect()
}

/// A tree with every kind of file is the same below and through the cache.
#[test]
fn cached_tree_matches_source() {
    let Some(shown) = TreeMount::new("cached tree", WriteMode::WriteThrough) else { return };
    let root = shown.at("tree");
    fs::create_dir(&root).unwrap();
    for (index, length) in [0, 1, 4095, 8192, 8193, 100_000, 2_000_001].into_iter().enumerate() {
        fs::write(root.join(format!("file {index}")), bytes(length, index as u32)).unwrap();
    }
    fs::hard_link(root.join("file 3"), root.join("hard")).unwrap();
    symlink("file 4", root.join("soft")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    let odd: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
    for part in odd.chunks(200) {
        fs::write(root.join(OsStr::from_bytes(part)), b"odd").unwrap();
    }
    run(Command::new("mkfifo").arg(root.join("pipe"))).unwrap();
    run(Command::new("mknod").arg(root.join("device")).args(["c", "1", "3"])).unwrap();
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::set_permissions(root.join("file 1"), fs::Permissions::from_mode(0o4751)).unwrap();
    run(Command::new("chown").arg("12345:54321").arg(root.join("file 2"))).unwrap();
    run(Command::new("touch").args(["-d", "2001-02-03 04:05:06.789"]).arg(root.join("file 5"))).unwrap();
    let mut sparse = File::create(root.join("sparse")).unwrap();
    sparse.seek(SeekFrom::Start(1 << 20)).unwrap();
    sparse.write_all(b"end").unwrap();
    for index in 0..300 {
        fs::write(root.join(format!("a/b/many {index}")), b"x").unwrap();
    }
    // These times are left out, because the comparison itself changes them.
    let pax = "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime";
    let tar = |directory: &Path| {
        let mut command = Command::new("tar");
        command.args(["--format=posix", pax]);
        command.args(["-C"]).arg(directory).args(["--sort=name", "--xattrs", "--numeric-owner", "-c", "."]);
        run(&mut command).unwrap()
    };
    assert_eq!(fs::metadata(root.join("hard")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(root.join("file 1")).unwrap().mode() & 0o7777, 0o4751);
    let below = tar(&shown.below("tree"));
    assert!(tar(&root) == below, "the cold tree differs");
    assert!(tar(&root) == below, "the tree in memory differs");
    assert!(shown.tree.figures().cache.hits > 0);
    // Files unpacked through the cache are the same as those packed.
    let archive = shown.scratch.join("archive.tar");
    fs::write(&archive, &below).unwrap();
    fs::create_dir(shown.at("copy")).unwrap();
    run(Command::new("tar").arg("-C").arg(shown.at("copy")).args(["--xattrs", "-p", "-xf"]).arg(&archive)).unwrap();
    assert!(tar(&shown.below("copy")) == below, "the unpacked tree differs");
    fs::remove_dir_all(&root).unwrap();
    assert!(!shown.below("tree").exists());
}

/// Reads hit the cache at every offset, and follow writes, truncations and holes.
#[test]
fn reads_hit_at_every_offset() {
    let Some(shown) = TreeMount::new("cached bytes", WriteMode::WriteThrough) else { return };
    let path = shown.at("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let mut model = bytes(3_000_000, 7);
    file.write_all_at(&model, 0).unwrap();
    let same = |model: &[u8], what: &str| {
        for (offset, length) in [(0, 1), (8191, 2), (100, 600_000), (5, 1_200_000), (0, model.len())] {
            let (start, end) = (model.len().min(offset), model.len().min(offset + length));
            let mut piece = vec![0xee; length];
            let count = file.read_at(&mut piece, offset as u64).unwrap();
            assert_eq!(count, end - start, "{what} at {offset}");
            assert!(piece[..count] == model[start..end], "{what} at {offset}");
        }
        assert!(fs::read(shown.below("file")).unwrap() == model, "{what}: below");
    };
    same(&model, "written");
    let hits = shown.tree.figures().cache.hits;
    same(&model, "again");
    assert!(shown.tree.figures().cache.hits > hits, "nothing hits");
    // Overwrites bytes around the borders of blocks.
    for (index, offset) in [0usize, 8191, 8192, 16_000, 2_999_990].into_iter().enumerate() {
        let piece = bytes(10, index as u32 + 50);
        file.write_all_at(&piece, offset as u64).unwrap();
        model[offset..offset + 10].copy_from_slice(&piece);
    }
    same(&model, "overwritten");
    // Truncated bytes must not reappear when the file grows.
    file.set_len(10_000).unwrap();
    model.truncate(10_000);
    same(&model, "truncated");
    file.set_len(2_000_000).unwrap();
    model.resize(2_000_000, 0);
    same(&model, "extended");
    file.write_all_at(b"tail", 2_500_000).unwrap();
    model.resize(2_500_000, 0);
    model.extend(b"tail");
    same(&model, "grown");
    let mut append = OpenOptions::new().append(true).open(&path).unwrap();
    append.write_all(b"appended").unwrap();
    model.extend(b"appended");
    same(&model, "appended");
    // SAFETY: the calls take numbers only.
    let punched = unsafe {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        libc::fallocate64(file.as_raw_fd(), mode, 4096, 40_960)
    };
    if punched == 0 {
        model[4096..4096 + 40_960].fill(0);
        same(&model, "a hole");
        // SAFETY: as above.
        assert!(unsafe { libc::lseek64(file.as_raw_fd(), 0, libc::SEEK_HOLE) } <= 4096);
    }
    let copy = File::create(shown.at("copy")).unwrap();
    io::copy(&mut File::open(&path).unwrap(), &mut &copy).unwrap();
    assert!(fs::read(shown.below("copy")).unwrap() == model, "copied");
    fs::write(&path, b"").unwrap();
    same(&[], "emptied");
    // A deleted file must still exist for the process that has it open.
    fs::remove_file(&path).unwrap();
    file.write_all_at(b"still here", 0).unwrap();
    let mut text = [0; 10];
    file.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"still here");
    assert!(!shown.below("file").exists());
}

/// A file that changed underneath is read again when it is opened.
#[test]
fn changed_source_rereads_on_open() {
    let Some(shown) = TreeMount::new("changed underneath", WriteMode::WriteThrough) else { return };
    fs::write(shown.below("file"), bytes(20_000, 1)).unwrap();
    assert!(fs::read(shown.at("file")).unwrap() == bytes(20_000, 1));
    // The new contents have the same length, so only the modification time differs.
    fs::write(shown.below("file"), bytes(20_000, 2)).unwrap();
    assert!(fs::read(shown.at("file")).unwrap() == bytes(20_000, 2));
    fs::write(shown.below("file"), bytes(30_000, 3)).unwrap();
    assert!(fs::read(shown.at("file")).unwrap() == bytes(30_000, 3));
    // The name now belongs to another file.
    fs::write(shown.below("new"), bytes(30_000, 4)).unwrap();
    fs::rename(shown.below("new"), shown.below("file")).unwrap();
    let began = Instant::now();
    while fs::read(shown.at("file")).unwrap() != bytes(30_000, 4) {
        assert!(began.elapsed() < Duration::from_secs(10), "names are believed for a second");
        std::thread::yield_now();
    }
}

/// An exclusive source is not checked again; changes through the mount are seen.
#[test]
fn exclusive_source_skips_stat_checks() {
    let Some(shown) = TreeMount::with("exclusive source", WriteMode::WriteThrough, true) else { return };
    fs::write(shown.below("file"), bytes(20_000, 1)).unwrap();
    assert!(fs::read(shown.at("file")).unwrap() == bytes(20_000, 1));
    assert_eq!(fs::metadata(shown.at("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    // These changes of the source break the rule of `is_exclusive`, so they are not noticed.
    fs::write(shown.below("file"), bytes(20_000, 2)).unwrap();
    fs::write(shown.below("absent"), b"there").unwrap();
    assert!(fs::read(shown.at("file")).unwrap() == bytes(20_000, 1));
    assert_eq!(fs::metadata(shown.at("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    // Changes through the mount must be seen at once, under every name.
    fs::write(shown.at("file"), bytes(30_000, 3)).unwrap();
    fs::hard_link(shown.at("file"), shown.at("other")).unwrap();
    assert!(fs::read(shown.at("other")).unwrap() == bytes(30_000, 3));
    assert_eq!(fs::metadata(shown.at("file")).unwrap().nlink(), 2);
    fs::remove_file(shown.at("file")).unwrap();
    assert_eq!(fs::metadata(shown.at("other")).unwrap().nlink(), 1);
    fs::rename(shown.at("other"), shown.at("file")).unwrap();
    OpenOptions::new().append(true).open(shown.at("file")).unwrap().write_all(b"end").unwrap();
    assert_eq!(fs::metadata(shown.at("file")).unwrap().len(), 30_003);
    assert_eq!(fs::metadata(shown.at("other")).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn mapped_file_agrees_with_io() {
    let Some(shown) = TreeMount::new("mapped", WriteMode::WriteThrough) else { return };
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(shown.at("file")).unwrap();
    file.write_all(&[5; 16_384]).unwrap();
    // SAFETY: this makes a new mapping of 16384 bytes of an open file.
    let start = unsafe {
        let flags = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), 16_384, flags, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if start == libc::MAP_FAILED {
        return println!("NOT RUN: mapped: {}", io::Error::last_os_error());
    }
    // SAFETY: the range was just mapped, and stays until it is unmapped below.
    let mapping = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), 16_384) };
    assert_eq!(mapping[9000], 5);
    mapping[9000] = 9;
    // SAFETY: both calls have the range that was mapped.
    unsafe {
        assert_eq!(libc::msync(start, 16_384, libc::MS_SYNC), 0);
        assert_eq!(libc::munmap(start, 16_384), 0);
    }
    let mut byte = [0];
    file.read_exact_at(&mut byte, 9000).unwrap();
    assert_eq!((byte, fs::read(shown.below("file")).unwrap()[9000]), ([9], 9));
    // Running a program maps its file too.
    fs::copy("/bin/true", shown.at("true")).unwrap();
    run(&mut Command::new(shown.at("true"))).unwrap();
}

#[test]
fn git_clone_in_cache_works() {
    let Some(shown) = TreeMount::new("git", WriteMode::WriteThrough) else { return };
    let git = |directory: &Path, arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(directory).args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*"]);
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", &shown.scratch).args(arguments);
        run(&mut command)
    };
    let origin = shown.scratch.join("origin");
    fs::create_dir_all(origin.join("deep/er")).unwrap();
    for index in 0..200 {
        fs::write(origin.join(format!("deep/er/{index}")), bytes(index * 37, index as u32)).unwrap();
    }
    if git(&origin, &["init", "-q"]).is_none() {
        return;
    }
    git(&origin, &["add", "."]).unwrap();
    git(&origin, &["commit", "-qm", "all"]).unwrap();
    git(&shown.at(""), &["clone", "-q", "--no-local", origin.to_str().unwrap(), "clone"]).unwrap();
    git(&shown.at("clone"), &["fsck", "--full", "--strict"]).unwrap();
    fs::write(shown.at("clone/new"), b"new").unwrap();
    git(&shown.at("clone"), &["add", "."]).unwrap();
    git(&shown.at("clone"), &["commit", "-qm", "more"]).unwrap();
    git(&shown.at("clone"), &["gc", "-q"]).unwrap();
    // The clone must also be valid in the source, without the cache.
    git(&shown.below("clone"), &["fsck", "--full", "--strict"]).unwrap();
    assert_eq!(git(&shown.below("clone"), &["status", "--porcelain"]).unwrap(), b"");
}

#[test]
fn sqlite_with_writers_stays_whole() {
    let Some(shown) = TreeMount::new("sqlite", WriteMode::WriteThrough) else { return };
    let sql = |database: &Path, text: &str| {
        run(Command::new("sqlite3").arg("-cmd").arg(".timeout 20000").arg(database).arg(text))
    };
    let database = shown.at("db");
    if sql(&database, "create table t(a integer primary key, b text); create index i on t(b);").is_none() {
        return;
    }
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let (sql, database) = (&sql, &database);
            scope.spawn(move || {
                for _ in 0..5 {
                    let insert = format!(
                        "with recursive n(x) as (select 1 union all select x+1 from n where x<100)
                         insert into t(b) select 'writer {writer} ' || x || hex(randomblob(20)) from n;"
                    );
                    sql(database, &insert).unwrap();
                }
            });
        }
    });
    for path in [&database, &shown.below("db")] {
        let checked = sql(path, "pragma integrity_check; select count(*) from t;").unwrap();
        assert_eq!(String::from_utf8_lossy(&checked), "ok\n1500\n");
    }
}

#[test]
fn a_read_only_tree_changes_nothing() {
    let Some(shown) = TreeMount::new("read-only tree", WriteMode::ReadOnly) else { return };
    fs::write(shown.below("file"), b"below").unwrap();
    assert_eq!(fs::read(shown.at("file")).unwrap(), b"below");
    for result in [
        fs::write(shown.at("file"), b"x"),
        fs::write(shown.at("new"), b"x"),
        fs::remove_file(shown.at("file")),
        fs::create_dir(shown.at("directory")),
        fs::set_permissions(shown.at("file"), fs::Permissions::from_mode(0o600)),
    ] {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EROFS));
    }
    assert_eq!(fs::read(shown.below("file")).unwrap(), b"below");
}

/// Each process and file is a separate stream.
#[test]
fn process_and_file_make_stream() {
    let Some(shown) = TreeMount::new("streams", WriteMode::WriteThrough) else { return };
    for name in ["a", "b"] {
        fs::write(shown.below(name), bytes(1_000_000, 1)).unwrap();
        for _ in 0..2 {
            run(Command::new("dd").arg(format!("if={}", shown.at(name).display())).args(["of=/dev/null", "bs=8k"]))
                .unwrap();
        }
    }
    let streams = shown.tree.figures().streams;
    let busy = streams.iter().filter(|stream| stream.hits + stream.misses >= 100).count();
    assert_eq!(busy, 4, "{streams:?}");
}

#[test]
fn unmount_refuses_tree_in_use() {
    let Some(shown) = TreeMount::new("tree in use", WriteMode::WriteThrough) else { return };
    fs::write(shown.at("file"), b"x").unwrap();
    let user = OpenOptions::new().read(true).custom_flags(libc::O_CLOEXEC).open(shown.at("file")).unwrap();
    assert!(matches!(shown.tree.unmount(false), Err(Error::InUse { .. })));
    assert!(!*shown.tree.ended().borrow());
    drop(user);
    let began = Instant::now();
    // The kernel closes a file slightly later than its last user does.
    while let Err(error) = shown.tree.unmount(false) {
        assert!(began.elapsed() < Duration::from_secs(10), "{error}");
        std::thread::yield_now();
    }
    assert!(!shown.at("file").exists());
    shown.tree.finish().unwrap();
    assert!(*shown.tree.ended().borrow());
}

/// An entry of an access control list: its tag, permissions, and user or group.
type ListEntry = (u16, u16, u32);
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NOBODY: u32 = u32::MAX;

/// Sets an access control list in the kernel's format.
fn set_list(path: &Path, name: &std::ffi::CStr, entries: &[ListEntry]) -> io::Result<()> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes().iter().chain(&permissions.to_le_bytes()).chain(&id.to_le_bytes()));
    }
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: both are strings that end with a zero byte; the value has the length given to the call.
    let set = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn list(path: &Path, name: &std::ffi::CStr) -> Option<Vec<u8>> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut value = vec![0u8; 4096];
    // SAFETY: both are strings that end with a zero byte; the buffer has the length given to the call.
    let count = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(usize::try_from(count).ok()?);
    Some(value)
}

/// Runs `work` as an unprivileged user, in a new thread; other threads keep their user.
pub fn as_user<T: Send>(user: u32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the calls take numbers, and an empty list without a pointer; they change only this thread.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setgroups, 0, 0), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, user, user, user), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, user, user, user), 0);
            }
            work()
        });
        thread.join().expect("it does not panic")
    })
}

/// Returns what programs see of access control lists in a directory.
fn seen_of_lists(root: &Path) -> Vec<String> {
    const ACCESS: &std::ffi::CStr = c"system.posix_acl_access";
    const DEFAULT: &std::ffi::CStr = c"system.posix_acl_default";
    let mut seen = Vec::new();
    let mode = |path: &Path| format!("{:o}", fs::metadata(path).unwrap().mode());
    let file = root.join("file");
    fs::write(&file, b"for one").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let one_reads = [(OWNER, 6, NOBODY), (USER, 4, 4242), (GROUP, 0, NOBODY), (MASK, 4, NOBODY), (OTHER, 0, NOBODY)];
    set_list(&file, ACCESS, &one_reads).unwrap();
    let reads = |user| as_user(user, || fs::read(&file).map_err(|error| error.kind()));
    let writes = |user| as_user(user, || OpenOptions::new().write(true).open(&file).map(drop).is_ok());
    seen.push(format!("{:?} {:?} {}", reads(4242), reads(4243), writes(4242)));
    seen.push(format!("{} {:?}", mode(&file), list(&file, ACCESS)));
    // The group bits of the mode are the mask.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    seen.push(format!("{:?} {:?}", reads(4242), list(&file, ACCESS)));
    let refused = as_user(4243, || set_list(&file, ACCESS, &one_reads).map_err(|error| error.kind()));
    seen.push(format!("{refused:?} {:?}", list(&file, DEFAULT)));
    for (name, has_default) in [("plain", false), ("default", true)] {
        let directory = root.join(name);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        if has_default {
            let of_new =
                [(OWNER, 7, NOBODY), (USER, 6, 4242), (GROUP, 5, NOBODY), (MASK, 7, NOBODY), (OTHER, 0, NOBODY)];
            set_list(&directory, DEFAULT, &of_new).unwrap();
        }
        let script = "umask 027; echo x > new; mkdir below; mkfifo pipe; umask 0; echo x > open; chmod u+s open";
        run(Command::new("sh").args(["-ec", script]).current_dir(&directory)).unwrap();
        for made in ["new", "below", "pipe", "open"] {
            let made = directory.join(made);
            let lists = (list(&made, ACCESS), list(&made, DEFAULT));
            seen.push(format!("{} {} {lists:?}", made.file_name().unwrap().display(), mode(&made)));
        }
        seen.push(format!("{:?}", as_user(4242, || fs::read(directory.join("new")).map_err(|error| error.kind()))));
    }
    // When a user who is not in the file's group sets a list, the set-group-id bit is cleared.
    let shared = root.join("shared");
    fs::write(&shared, b"").unwrap();
    std::os::unix::fs::chown(&shared, Some(4242), Some(4300)).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o2755)).unwrap();
    as_user(4242, || set_list(&shared, ACCESS, &one_reads)).unwrap();
    seen.push(mode(&shared));
    seen
}

#[test]
fn acl_matches_source_through_cache() {
    let Some(shown) = TreeMount::new("access control lists", WriteMode::WriteThrough) else { return };
    for directory in [shown.below("direct"), shown.at("through")] {
        fs::create_dir(&directory).unwrap();
    }
    let (direct, through) = (seen_of_lists(&shown.below("direct")), seen_of_lists(&shown.at("through")));
    assert!(direct[0].starts_with("Ok([102") && direct[0].contains("Err(PermissionDenied)"), "{direct:?}");
    assert_eq!(through, direct);
}

/// The pages of a file that the kernel has not written to the disk yet. `None`: this kernel does not tell.
fn dirty_pages(path: &Path) -> Option<u64> {
    /// The number of the system call `cachestat` on every architecture; the crate `libc` does not have it.
    const CACHESTAT: libc::c_long = 451;
    let file = File::open(path).unwrap();
    let (range, mut counts) = ([0_u64; 2], [0_u64; 5]);
    // SAFETY: the call reads the range and writes five counts.
    match unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0) } {
        0 => Some(counts[1] + counts[2]),
        _ => None,
    }
}

fn allocate(file: &File, mode: i32, offset: i64, length: i64) {
    // SAFETY: the call takes numbers only.
    let done = unsafe { libc::fallocate64(file.as_raw_fd(), mode, offset, length) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

/// `O_SYNC` and `O_DSYNC`: not only what `write` changed is durable when the call returns.
#[test]
fn synced_handles_leave_nothing_dirty() {
    let Some(shown) = TreeMount::new("synced handles", WriteMode::WriteThrough) else { return };
    type Change = fn(&File, &File);
    let changes: [(&str, Change); 4] = [
        ("write", |file, _| file.write_all_at(&bytes(5000, 1), 100).unwrap()),
        ("copy", |file, from| {
            let null = std::ptr::null_mut();
            let (from, to) = (from.as_raw_fd(), file.as_raw_fd());
            // SAFETY: the call takes numbers and null pointers; without offsets it uses those of the handles.
            let count = unsafe { libc::copy_file_range(from, null, to, null, 50_000, 0) };
            assert_eq!(count, 50_000, "{}", io::Error::last_os_error());
        }),
        ("zero", |file, _| allocate(file, libc::FALLOC_FL_ZERO_RANGE, 100, 5000)),
        ("truncate", |file, _| file.set_len(50_001).unwrap()),
    ];
    fs::write(shown.at("from"), bytes(50_000, 2)).unwrap();
    let mut unsynced = 0;
    for (name, change) in changes {
        for (index, flags) in [0, libc::O_DSYNC, libc::O_SYNC].into_iter().enumerate() {
            let (path, below) = (shown.at(format!("{name} {index}")), shown.below(format!("{name} {index}")));
            fs::write(&path, bytes(100_000, 3)).unwrap();
            File::open(&below).unwrap().sync_all().unwrap();
            let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).unwrap();
            change(&file, &File::open(shown.at("from")).unwrap());
            let Some(dirty) = dirty_pages(&below) else {
                return println!("NOT RUN: synced handles: this kernel does not say which pages are dirty");
            };
            // The kernel may also write pages back by itself, so the handles without the flags are counted together.
            if flags == 0 {
                unsynced += dirty;
            } else {
                assert_eq!(dirty, 0, "{name}, flags {flags:o}");
            }
        }
    }
    assert!(unsynced > 0, "the kernel shows no page that is not on the disk");
}
