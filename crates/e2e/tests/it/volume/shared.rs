//! Tests a shared volume as users run it: mounts see each other's changes, and processes are killed.

use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;
use nectary_e2e::rng::SeededRng;
use nectary_e2e::volume::{LIMIT, VolumeRig};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(super) fn volume(size: &str) -> Option<VolumeRig> {
    match missing(false) {
        Some(reason) => {
            not_run(format!("volume: {reason}"));
            None
        }
        None => Some(VolumeRig::new(size).unwrap_or_else(|error| panic!("{error:#}"))),
    }
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = SeededRng::new(seed);
    (0..length).map(|_| rng.below(256) as u8).collect()
}

#[test]
fn what_one_mount_writes_another_reads() {
    let Some(mut volume) = volume("512M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    fs::create_dir(first.join("d")).expect("it is made");
    for (index, length) in [0, 1, 4095, 4096, 4097, 100_000, 3_000_000].into_iter().enumerate() {
        let (here, there) = (first.join(format!("d/{index}")), second.join(format!("d/{index}")));
        let bytes = pattern(index as u64, length);
        let mut file = File::create(&here).expect("it is made");
        file.write_all(&bytes).expect("it is written");
        drop(file);
        // After a file is closed, every mount that opens it sees its contents.
        assert_eq!(fs::metadata(&there).expect("it is there").len(), length as u64);
        assert!(fs::read(&there).expect("it is read") == bytes, "{length} bytes");
        // Now write to the same file on the second mount, and read it on the first.
        let other = File::options().write(true).open(&there).expect("it opens");
        other.write_all_at(b"changed", 10).expect("it is written");
        drop(other);
        let mut found = [0; 7];
        File::open(&here).and_then(|file| file.read_exact_at(&mut found, 10)).expect("it is read");
        assert_eq!(&found, b"changed");
    }
    // In the inode, and in a block.
    for length in [1, 2048, 2049, 4095] {
        let target = "a/".repeat(length / 2) + if length % 2 == 1 { "b" } else { "" };
        symlink(&target, first.join("d/link")).expect("it is made");
        for root in [&first, &second] {
            let found = fs::read_link(root.join("d/link")).expect("it is read");
            assert_eq!(found.as_os_str().len(), length);
            assert!(found.as_os_str() == target.as_str(), "{length} bytes");
        }
        fs::remove_file(second.join("d/link")).expect("it is removed");
    }
    symlink("c/".repeat(2000), first.join("d/kept")).expect("it is made");
    fs::rename(first.join("d"), first.join("e")).expect("it is renamed");
    assert!(!second.join("d").exists() && second.join("e/3").exists());
    volume.kill_server();
    volume.serve().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(fs::read_link(second.join("e/kept")).expect("it is read").as_os_str().len(), 4000);
    fs::remove_dir_all(second.join("e")).expect("it is removed");
    assert!(!first.join("e").exists());
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// Exchanges two names.
fn exchange(first: &Path, second: &Path) -> std::io::Result<()> {
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let (first, second) = (path(first)?, path(second)?);
    let (here, flags) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
    // SAFETY: the paths live across the call.
    match unsafe { libc::renameat2(here, first.as_ptr(), here, second.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Directories that another mount moved are renamed while files below them are open.
#[test]
fn moved_directories_keep_open_files() {
    let Some(mut volume) = volume("512M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    for directory in ["a/d/e", "b", "c/g", "a/h"] {
        fs::create_dir_all(first.join(directory)).expect("it is made");
    }
    fs::write(first.join("a/d/e/file"), b"open").expect("it is written");
    // A working directory goes along when its new place is looked at.
    let mut inside = Command::new("sleep").arg("60").current_dir(second.join("a/h")).spawn().expect("it starts");
    fs::rename(first.join("a/h"), first.join("b/h")).expect("it is renamed");
    assert!(second.join("b/h").is_dir());
    let shown = fs::read_link(format!("/proc/{}/cwd", inside.id())).expect("it has one");
    inside.kill().and_then(|()| inside.wait()).expect("it ends");
    assert_eq!(shown, second.join("b/h"));
    // As long as this is open, the second kernel knows the directories above it where they were.
    let open = File::open(second.join("a/d/e/file")).expect("it opens");
    fs::rename(first.join("a/d"), first.join("b/d")).expect("it is renamed");
    exchange(&second.join("b/d"), &second.join("c/g")).expect("they are exchanged");
    fs::rename(first.join("c/g/e"), first.join("a/e")).expect("it is renamed");
    fs::rename(second.join("a/e"), second.join("b/e")).expect("it is renamed");
    fs::rename(second.join("b/e"), second.join("c/g/f")).expect("it is renamed");
    let mut bytes = Vec::new();
    (&open).read_to_end(&mut bytes).expect("it is read");
    assert_eq!(bytes, b"open");
    for root in [&first, &second] {
        assert_eq!(fs::read(root.join("c/g/f/file")).expect("it is there"), b"open");
        assert!(root.join("b/d").is_dir() && !root.join("a/d").exists() && !root.join("b/e").exists());
    }
    drop(open);
    for directory in ["a", "b", "c"] {
        fs::remove_dir_all(second.join(directory)).expect("it is removed");
        assert!(!first.join(directory).exists());
    }
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// Of two hosts that make the same rename at once, one finds the file or directory.
#[test]
fn same_rename_succeeds_on_one_host() {
    const NAMES: usize = 400;
    let Some(mut volume) = volume("512M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    for directory in ["new", "cur"] {
        fs::create_dir(first.join(directory)).expect("it is made");
    }
    for number in 0..NAMES {
        let path = first.join(format!("new/{number}"));
        match number % 4 {
            0 => fs::create_dir(path).expect("it is made"),
            1 => fs::write(&path, b"job")
                .and_then(|()| fs::hard_link(&path, first.join(format!("{number}"))))
                .expect("it is made"),
            _ => fs::write(path, b"job").expect("it is written"),
        }
    }
    let meeting = std::sync::Barrier::new(2);
    let claim = |root: &Path, delay: Duration| -> Vec<bool> {
        let mut random = SeededRng::new(root.as_os_str().len() as u64 + delay.as_nanos() as u64);
        let claimed = (0..NAMES).map(|number| {
            // Within one directory as well as between two.
            let to = if number % 8 < 4 { format!("cur/{number}") } else { format!("new/{number}.claimed") };
            meeting.wait();
            std::thread::sleep(Duration::from_micros(random.below(600)) + delay);
            match fs::rename(root.join(format!("new/{number}")), root.join(&to)) {
                Ok(()) => true,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
                Err(error) => panic!("{number}: {error}"),
            }
        });
        claimed.collect()
    };
    let (here, there) = std::thread::scope(|scope| {
        let other = scope.spawn(|| claim(&second, Duration::from_micros(100)));
        (claim(&first, Duration::ZERO), other.join().expect("it ends"))
    });
    let wrong: Vec<usize> = (0..NAMES).filter(|number| here[*number] == there[*number]).collect();
    assert_eq!(wrong, Vec::<usize>::new(), "claimed by both, or by none");
    let won = here.iter().filter(|claimed| **claimed).count();
    println!("{won} of {NAMES} claimed by the first host");
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// Replaces a file by renaming a synced file over it, so that it always has the complete contents of some round.
fn replace(directory: &Path, name: &str, round: u64) -> std::io::Result<()> {
    let temporary = directory.join(format!("{name}.new"));
    let mut file = File::create(&temporary)?;
    file.write_all(&pattern(round, 20_000))?;
    file.sync_all()?;
    fs::rename(temporary, directory.join(name))
}

/// Clients continue after the server starts again.
#[test]
fn killed_server_keeps_synced_data() {
    let Some(mut volume) = volume("512M") else { return };
    let mounted = volume.mount().expect("it mounts");
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let (is_over, rounds) = (&is_over, &rounds);
    let written = std::thread::scope(|scope| {
        let mounted = &mounted;
        let writer = scope.spawn(move || {
            let mut written = BTreeMap::new();
            while !is_over.load(Ordering::Acquire) {
                let round = rounds.load(Ordering::Acquire) + 1;
                let name = format!("{}", round % 7);
                // The server is absent during some of these calls: the calls wait, and succeed.
                replace(mounted, &name, round).unwrap_or_else(|error| panic!("round {round}: {error}"));
                written.insert(name, round);
                rounds.store(round, Ordering::Release);
            }
            written
        });
        for _ in 0..5 {
            let (began, before) = (Instant::now(), rounds.load(Ordering::Acquire));
            while rounds.load(Ordering::Acquire) < before + 10 && began.elapsed() < LIMIT {
                std::thread::yield_now();
            }
            volume.kill_server();
            volume.serve().unwrap_or_else(|error| panic!("{error:#}"));
        }
        is_over.store(true, Ordering::Release);
        writer.join().expect("the writer succeeds")
    });
    assert!(rounds.load(Ordering::Acquire) >= 50, "{rounds:?}");
    for (name, round) in &written {
        assert!(fs::read(mounted.join(name)).expect("it is there") == pattern(*round, 20_000), "{name}");
    }
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
    // A new server and a new mount have the same contents.
    volume.serve().unwrap_or_else(|error| panic!("{error:#}"));
    let mounted = volume.mount().expect("it mounts");
    for (name, round) in &written {
        assert!(fs::read(mounted.join(name)).expect("it is there") == pattern(*round, 20_000), "{name}");
    }
}

#[test]
fn killed_mount_leaves_synced_data() {
    let Some(mut volume) = volume("512M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let mut file = File::create(first.join("a")).expect("it is made");
    file.write_all(&pattern(1, 50_000)).and_then(|()| file.sync_all()).expect("it is synced");
    file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&[0xff; 50_000])).expect("it is written");
    volume.kill_mount(0);
    let mut found = Vec::new();
    File::open(second.join("a")).and_then(|mut file| file.read_to_end(&mut found)).expect("it is read");
    assert!(found == pattern(1, 50_000) || found == [0xff; 50_000], "neither what was synced nor what was written");
    fs::write(second.join("b"), b"and others go on").expect("it is written");
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

fn available_blocks(mounted: &Path) -> u64 {
    let output = Command::new("stat").args(["-f", "-c", "%a"]).arg(mounted).output().expect("stat runs");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number of blocks")
}

/// Writes are refused while the server starts again; removed files free their space.
#[test]
fn full_disk_survives_server_restart() {
    let Some(mut volume) = volume("256M") else { return };
    let mounted = volume.mount().expect("it mounts");
    let path = mounted.join("large");
    let (mut file, piece) = (File::create(&path).expect("it is made"), pattern(1, 1 << 20));
    let mut pieces = 0;
    let refused = loop {
        match file.write_all(&piece).and_then(|()| file.sync_data()) {
            Ok(()) => pieces += 1,
            Err(error) => break error,
        }
        assert!(pieces < 256, "the disk has 256 MiB");
    };
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "{refused}");
    assert!(pieces > 40, "{pieces}");
    for _ in 0..2 {
        volume.kill_server();
        volume.serve().unwrap_or_else(|error| panic!("{error:#}"));
    }
    let mut found = vec![0; piece.len()];
    let last = (pieces - 1) << 20;
    File::open(&path).and_then(|file| file.read_exact_at(&mut found, last)).expect("it is read");
    assert!(found == piece, "the last piece that was synced");
    drop(file);
    let before = available_blocks(&mounted);
    fs::remove_file(&path).expect("it is removed");
    // The kernel closes the file later than this process; from then on, all of it counts as free.
    let deadline = Instant::now() + Duration::from_secs(10);
    while available_blocks(&mounted) < before + pieces * 256 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    // A write waits for the blocks that the removal and the truncations free.
    let most = pieces * 3 / 4;
    for round in 0..3 {
        let mut file = File::create(mounted.join("new")).expect("it is made, or truncated");
        for at in 0..most {
            file.write_all(&piece).unwrap_or_else(|error| panic!("round {round}, piece {at} of {most}: {error}"));
        }
        file.sync_all().expect("it is synced");
    }
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// A page of a file that is mapped for reading and writing.
struct MappedPage(*mut u8);

impl MappedPage {
    const BYTES: usize = 4096;

    fn of(file: &File) -> MappedPage {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), Self::BYTES, protection, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        MappedPage(at.cast())
    }

    fn store(&self, at: usize, value: u64) {
        assert!(at + 8 <= Self::BYTES);
        // SAFETY: the store is inside the page; other writers change the page only through the kernel.
        unsafe { self.0.add(at).cast::<u64>().write_volatile(value) };
    }

    fn load(&self, at: usize) -> u64 {
        assert!(at + 8 <= Self::BYTES);
        // SAFETY: as above.
        unsafe { self.0.add(at).cast::<u64>().read_volatile() }
    }
}

impl Drop for MappedPage {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `of`, and nothing refers to it.
        unsafe { libc::munmap(self.0.cast(), Self::BYTES) };
    }
}

/// A read sees every write that returned before it, on any mount.
#[test]
fn read_sees_returned_writes_everywhere() {
    let Some(mut volume) = volume("512M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let open = |root: &Path| File::options().read(true).write(true).create(true).truncate(false).open(root.join("f"));
    let (here, there) = (open(&first).expect("it opens"), open(&second).expect("it opens"));
    let read = |file: &File, at| {
        let mut found = [0; 8];
        file.read_exact_at(&mut found, at).expect("it is read");
        u64::from_le_bytes(found)
    };
    // No file is closed or synced here.
    for round in 0..40_u64 {
        here.write_all_at(&round.to_le_bytes(), 0).expect("it is written");
        assert_eq!(read(&there, 0), round);
        let end = 4096 + round * 5000;
        there.write_all_at(&round.to_le_bytes(), end).expect("it is written");
        assert_eq!(read(&here, end), round);
        for root in [&first, &second] {
            assert_eq!(fs::metadata(root.join("f")).expect("it is there").len(), end + 8);
        }
    }
    // Use a map on one mount and calls on the other, then maps on both.
    let mapped = MappedPage::of(&there);
    for round in 100..130_u64 {
        here.write_all_at(&round.to_le_bytes(), 0).expect("it is written");
        assert_eq!(mapped.load(0), round);
        mapped.store(8, round);
        assert_eq!(read(&here, 8), round);
    }
    let other = MappedPage::of(&here);
    for round in 200..230_u64 {
        mapped.store(16, round);
        assert_eq!(other.load(16), round);
        other.store(24, round);
        assert_eq!(mapped.load(24), round);
    }
    here.set_len(5).expect("it is cut");
    assert_eq!(there.metadata().expect("it is there").len(), 5);
    drop((mapped, other, here, there));
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// Two mounts append lines, and a third one sees each line whole and in order.
#[test]
fn appended_lines_whole_and_ordered() {
    const LINES: u64 = 300;
    let Some(mut volume) = volume("512M") else { return };
    let roots: Vec<_> = (0..3).map(|_| volume.mount().expect("it mounts")).collect();
    File::create(roots[0].join("log")).expect("it is made");
    std::thread::scope(|scope| {
        for (host, root) in roots[..2].iter().enumerate() {
            scope.spawn(move || {
                let mut log = File::options().append(true).open(root.join("log")).expect("it opens");
                for line in 0..LINES {
                    log.write_all(format!("{host} {line:0>40}\n").as_bytes()).expect("it is written");
                }
            });
        }
        // Read the file again and again, as `tail -f` does.
        let mut log = File::open(roots[2].join("log")).expect("it opens");
        let (mut text, mut began) = (String::new(), Instant::now());
        while text.lines().count() < 2 * LINES as usize {
            let before = text.len();
            log.read_to_string(&mut text).expect("it is text");
            if text.len() > before {
                began = Instant::now();
            }
            assert!(began.elapsed() < LIMIT, "nothing more comes after {before} bytes");
        }
        let mut next = [0; 2];
        for line in text.lines() {
            let (host, number) = line.split_once(' ').expect("a whole line");
            let host: usize = host.parse().expect("a host");
            assert_eq!(number.parse(), Ok(next[host]), "{line:?}");
            assert_eq!(number.len(), 40);
            next[host] += 1;
        }
        assert_eq!(next, [LINES; 2]);
    });
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

fn range_lock(file: &File, kind: i32, start: i64, length: i64) -> std::io::Result<()> {
    // SAFETY: zeroes are a valid lock.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (kind as i16, libc::SEEK_SET as i16);
    (lock.l_start, lock.l_len) = (start, length);
    // SAFETY: the descriptor and the lock live across the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLKW, &lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Locks hold across mounts, restarts of the server and the loss of a mount.
#[test]
fn locks_survive_restart_and_mount_loss() {
    const ROUNDS: u64 = 100;
    let Some(mut volume) = volume("512M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let open = |root: &Path| {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).open(root.join("f")).expect("it opens")
    };
    let (here, there) = (open(&first), open(&second));
    here.lock().expect("it is locked");
    assert!(there.try_lock().is_err());
    // A wait ends when the lock is released, or by a signal. The signal is not SIGINT, because the children of a script
    // may ignore it.
    let mut waiting = Command::new("flock").arg(second.join("f")).arg("true").spawn().expect("flock is there");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| open(&second).lock().expect("it is locked in the end"));
        let interrupted = Instant::now();
        // SAFETY: the child is not reaped yet, so its id is not reused.
        unsafe { libc::kill(waiting.id() as i32, libc::SIGTERM) };
        assert!(!waiting.wait().expect("it ends").success() && interrupted.elapsed() < LIMIT);
        assert!(!waiter.is_finished());
        here.unlock().expect("it is unlocked");
        waiter.join().expect("it had the lock");
    });
    // This is the test `ping_pong` of ctdb: each side locks the next byte, and then releases the byte that it held
    // before.
    let ended = std::thread::scope(|scope| {
        let rounds = [&here, &there].map(|file| {
            scope.spawn(move || {
                range_lock(file, libc::F_WRLCK, 0, 1)?;
                for round in 0..ROUNDS {
                    let (held, next) = ((round % 3) as i64, ((round + 1) % 3) as i64);
                    range_lock(file, libc::F_WRLCK, next, 1)?;
                    range_lock(file, libc::F_UNLCK, held, 1)?;
                }
                range_lock(file, libc::F_UNLCK, 0, 0)
            })
        });
        rounds.map(|rounds| rounds.join().expect("it ends"))
    });
    ended.into_iter().for_each(|result| result.expect("no deadlock, no error"));
    // A restarted server has forgotten the locks, but the mounts have not.
    here.lock().expect("it is locked");
    volume.kill_server();
    volume.serve().unwrap_or_else(|error| panic!("{error:#}"));
    assert!(there.try_lock().is_err());
    // The lock of a killed mount is released once the mount's lease has ended.
    volume.kill_mount(0);
    there.lock().expect("it is locked");
    drop((here, there));
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// A second server on the same host is refused, also in another network namespace.
#[test]
fn second_local_server_is_refused() {
    let Some(mut volume) = volume("512M") else { return };
    let (disk, second) = (volume.disk(), format!("unix:{}", volume.scratch.join("second").display()));
    let serve = volume.command(&["volume", "serve", &disk, "--listen", &second]).expect("it is there");
    let mut elsewhere = Command::new("unshare");
    elsewhere.arg("--net").arg(serve.get_program()).args(serve.get_args());
    elsewhere.env("NECTARY_RUNTIME_DIR", volume.scratch.join("run"));
    for (name, command) in [("here", serve), ("elsewhere", elsewhere)] {
        let log = volume.scratch.join(&format!("{name}.log"));
        let (status, text) = nectary_e2e::guard::run(name, command, &log, LIMIT).expect("it runs");
        assert!(!status.success(), "{name}: {text}");
        assert!(text.contains("a server with number 0 serves this volume on this host already"), "{name}: {text}");
    }
    // The first server still serves; after it is killed, the next one starts at once.
    let mounted = volume.mount().expect("it mounts");
    fs::write(mounted.join("file"), b"served").expect("it is written");
    volume.kill_server();
    volume.serve().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(fs::read(mounted.join("file")).expect("it is read"), b"served");
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// Returns the time of the last access, and of the last change. *Units*: nanoseconds since 1970.
fn accessed_and_changed(path: &Path) -> (i64, i64) {
    let found = fs::metadata(path).expect("it is there");
    (found.atime() * 1_000_000_000 + found.atime_nsec(), found.ctime() * 1_000_000_000 + found.ctime_nsec())
}

/// Reads set access times by the rule of relatime, and renames leave whiteouts.
#[test]
fn relatime_and_whiteouts_follow_rules() {
    let Some(mut volume) = volume("256M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let (here, there) = (first.join("file"), second.join("file"));
    fs::write(&here, pattern(1, 100_000)).expect("it is written");
    let (before, changed) = accessed_and_changed(&there);
    assert!(before <= changed);
    let quiet = File::options().read(true).custom_flags(libc::O_NOATIME).open(&there).expect("it opens");
    quiet.read_exact_at(&mut [0; 100], 0).expect("it is read");
    drop(quiet);
    assert_eq!(accessed_and_changed(&there).0, before, "a read with O_NOATIME");
    for _ in 0..2 {
        assert!(fs::read(&there).expect("it is read") == pattern(1, 100_000));
    }
    let (accessed, after) = accessed_and_changed(&there);
    assert!(accessed > changed && after == changed, "{accessed} {changed} {after}");
    fs::read(&there).expect("it is read");
    assert_eq!(accessed_and_changed(&there), (accessed, changed), "one access after a change is enough");
    // The other mount is told within about a second.
    let began = Instant::now();
    while accessed_and_changed(&here).0 != accessed {
        assert!(began.elapsed() < LIMIT, "the other mount is never told");
        std::thread::yield_now();
    }
    let [old, new] = ["file", "moved"].map(|name| CString::new(second.join(name).into_os_string().into_vec()));
    let (old, new) = (old.expect("no zero byte"), new.expect("no zero byte"));
    // SAFETY: the paths are strings that end with a zero byte.
    let renamed =
        unsafe { libc::renameat2(libc::AT_FDCWD, old.as_ptr(), libc::AT_FDCWD, new.as_ptr(), libc::RENAME_WHITEOUT) };
    assert_eq!(renamed, 0, "{}", std::io::Error::last_os_error());
    let whiteout = fs::symlink_metadata(&here).expect("it is there");
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
    assert!(fs::read(first.join("moved")).expect("it is read") == pattern(1, 100_000));
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}
