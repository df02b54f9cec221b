//! Tests what a volume keeps when the process of a mount is killed right after a call, and what it promises of space.

use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;
use nectary_e2e::rng::SeededRng;
use nectary_e2e::volume::VolumeRig;
use nectary_e2e::volume::databases::{PostgresCluster, programs_of_postgres};
use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;

fn volume(size: &str) -> Option<VolumeRig> {
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

fn synced(path: &Path, flags: i32) -> File {
    OpenOptions::new().read(true).write(true).create(true).custom_flags(flags).open(path).expect("it opens")
}

/// `fallocate` with a mode.
fn allocate(file: &File, mode: i32, offset: i64, length: i64) -> std::io::Result<()> {
    // SAFETY: the call takes numbers only.
    match unsafe { libc::fallocate64(file.as_raw_fd(), mode, offset, length) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// `pwritev2` with flags.
fn write_with(file: &File, bytes: &[u8], offset: i64, flags: i32) {
    let part = IoSlice::new(bytes);
    // SAFETY: `IoSlice` has the layout of `iovec`, and its bytes live across the call.
    let count = unsafe { libc::pwritev2(file.as_raw_fd(), (&raw const part).cast(), 1, offset, flags) };
    assert_eq!(count, bytes.len() as isize, "{}", std::io::Error::last_os_error());
}

fn copy(from: &File, to: &File, to_offset: i64, length: usize) {
    let (mut offset, mut to_offset, mut left) = (0, to_offset, length);
    while left > 0 {
        let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
        // SAFETY: both offsets live across the call, which reads and writes them.
        let count = unsafe { libc::copy_file_range(from, &raw mut offset, to, &raw mut to_offset, left, 0) };
        assert!(count > 0, "{}", std::io::Error::last_os_error());
        left -= count as usize;
    }
}

/// Makes calls on a mount. Returns the file, which is still open because a close may make data durable, and the bytes that
/// it must have.
type Change = fn(&Path) -> (File, Vec<u8>);

/// Each call of a program after which the written bytes must be durable.
const SYNCED: [(&str, Change); 10] = [
    ("o_sync", |path| {
        let (file, bytes) = (synced(path, libc::O_SYNC), pattern(1, 10_000));
        (&file).write_all(&bytes).expect("it is written");
        (file, bytes)
    }),
    ("o_dsync", |path| {
        let (file, bytes) = (synced(path, libc::O_DSYNC), pattern(2, 3_000_000));
        (&file).write_all(&bytes).expect("it is written");
        (file, bytes)
    }),
    ("o_direct", |path| {
        let (file, bytes) = (synced(path, libc::O_DIRECT | libc::O_DSYNC), pattern(3, 8 << 20));
        file.write_all_at(&bytes, 0).expect("it is written");
        (file, bytes)
    }),
    ("append", |path| {
        fs::write(path, pattern(4, 5000)).expect("it is written");
        let file = synced(path, libc::O_SYNC | libc::O_APPEND);
        (&file).write_all(&pattern(5, 5000)).expect("it is written");
        (file, [pattern(4, 5000), pattern(5, 5000)].concat())
    }),
    ("copy", |path| {
        let (file, bytes, from) = (synced(path, libc::O_SYNC), pattern(6, 3 << 20), path.with_extension("from"));
        fs::write(&from, &bytes).expect("it is written");
        copy(&File::open(&from).expect("it opens"), &file, 4096, bytes.len());
        (file, [vec![0; 4096], bytes].concat())
    }),
    ("allocate", |path| {
        let file = synced(path, libc::O_SYNC);
        allocate(&file, 0, 0, 1 << 20).expect("it is allocated");
        (file, vec![0; 1 << 20])
    }),
    ("punch", |path| {
        let (file, mut bytes) = (synced(path, libc::O_SYNC), pattern(7, 100_000));
        file.write_all_at(&bytes, 0).expect("it is written");
        allocate(&file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 100, 50_000).expect("it is punched");
        bytes[100..50_100].fill(0);
        (file, bytes)
    }),
    ("truncate", |path| {
        let file = synced(path, libc::O_SYNC);
        file.write_all_at(&pattern(8, 100_000), 0).expect("it is written");
        file.set_len(60_000).expect("it is truncated");
        (file, pattern(8, 100_000)[..60_000].to_vec())
    }),
    ("pwritev2", |path| {
        let file = OpenOptions::new().write(true).create_new(true).open(path).expect("it opens");
        write_with(&file, &pattern(9, 5000), 0, libc::RWF_SYNC);
        write_with(&file, &pattern(10, 5000), 5000, libc::RWF_DSYNC);
        (file, [pattern(9, 5000), pattern(10, 5000)].concat())
    }),
    ("remounted", |path| {
        let mount = path.parent().expect("it is in the mount");
        let remounted = Command::new("mount").args(["-i", "-o", "remount,sync"]).arg(mount).status();
        assert!(remounted.expect("it runs").success());
        let (file, bytes) = (synced(path, 0), pattern(11, 10_000));
        (&file).write_all(&bytes).expect("it is written");
        (file, bytes)
    }),
];

/// `O_SYNC` and `O_DSYNC`: what a call changed is durable when it returns, whatever the call is.
#[test]
fn synced_calls_survive_sigkill() {
    let Some(mut volume) = volume("512M") else { return };
    let mut expected = Vec::new();
    for (index, (name, change)) in SYNCED.iter().enumerate() {
        let mount = volume.mount().expect("it mounts");
        let (_open, bytes) = change(&mount.join(name));
        volume.kill_mount(index);
        expected.push(bytes);
    }
    let mount = volume.mount().expect("it mounts");
    let mut lost = Vec::new();
    for ((name, _), bytes) in SYNCED.iter().zip(expected) {
        let found = fs::read(mount.join(name)).expect("it is there");
        if found != bytes {
            lost.push(format!("{name}: {} of {} bytes", found.len(), bytes.len()));
        }
    }
    assert!(lost.is_empty(), "{lost:?}");
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// Writes to a file until the disk is full.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("it is made");
    for length in [4 << 20, 4096] {
        let bytes = vec![1; length];
        loop {
            match file.write_all(&bytes) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// `fallocate` reserves: its range can be written when the disk is full, and is complete after a kill.
#[test]
fn reserved_range_written_on_full_disk() {
    const LENGTH: usize = 40 << 20;
    let Some(mut volume) = volume("512M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let (bytes, path) = (pattern(20, LENGTH), first.join("reserved"));
    let file = synced(&path, 0);
    allocate(&file, 0, 0, LENGTH as i64).expect("it is allocated");
    let blocks = || fs::metadata(&path).expect("it is there").blocks() * 512;
    assert_eq!(blocks(), LENGTH as u64);
    fill(&second.join("full"));
    let refused = allocate(&file, 0, LENGTH as i64, LENGTH as i64).map_err(|error| error.raw_os_error());
    assert_eq!(refused, Err(Some(libc::ENOSPC)));
    assert_eq!((file.metadata().expect("it is there").len(), blocks()), (LENGTH as u64, LENGTH as u64));
    // Large pieces, pieces that are not whole blocks, and single blocks in no order.
    let (large, small, single) = (LENGTH / 2, LENGTH * 9 / 10 / 4096 * 4096, LENGTH);
    for start in (0..large).step_by(3 << 20) {
        let part = &bytes[start..(start + (3 << 20)).min(large)];
        file.write_all_at(part, start as u64).unwrap_or_else(|error| panic!("3 MiB at {start}: {error}"));
    }
    file.sync_all().expect("it is synced");
    for start in (large..small).step_by(10_000) {
        let part = &bytes[start..(start + 10_000).min(small)];
        file.write_all_at(part, start as u64).unwrap_or_else(|error| panic!("10,000 bytes at {start}: {error}"));
    }
    let blocks_left = (single - small) / 4096;
    for index in 0..blocks_left {
        let start = small + index * 211 % blocks_left * 4096;
        let part = &bytes[start..start + 4096];
        file.write_all_at(part, start as u64).unwrap_or_else(|error| panic!("a block at {start}: {error}"));
    }
    file.sync_all().expect("it is synced");
    assert_eq!(blocks(), LENGTH as u64);
    assert!(fs::read(second.join("reserved")).expect("it is read") == bytes);
    // What is taken and not committed when the mount is killed is no problem of the volume.
    allocate(&file, libc::FALLOC_FL_ZERO_RANGE, 0, 4 << 20).expect("it is zeroed");
    file.write_all_at(&bytes[..1 << 20], 0).expect("it is written");
    volume.kill_mount(0);
    drop(file);
    let again = volume.mount().expect("it mounts");
    let found = fs::read(again.join("reserved")).expect("it is read");
    assert!(found.len() == LENGTH && found[4 << 20..] == bytes[4 << 20..]);
    assert!(found[1 << 20..4 << 20].iter().all(|byte| *byte == 0));
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// A database that syncs its log with `O_DSYNC` loses no commit that a client was told of when its mount is killed.
#[test]
fn postgres_keeps_commits_over_sigkill() {
    let (reason, programs) = (missing(false), programs_of_postgres());
    let Some(programs) = programs.filter(|_| reason.is_none()) else {
        return not_run(format!("volume: {}", reason.unwrap_or("PostgreSQL is not installed".to_owned())));
    };
    let mut cluster = PostgresCluster::new(programs).unwrap_or_else(|error| panic!("{error:#}"));
    let done = cluster.round("open_datasync", 7, false).unwrap_or_else(|error| panic!("{error:#}"));
    println!("{} commits acknowledged before the kill", done.commits);
    assert!(done.lost.is_empty(), "{:?}", done.lost);
    cluster.finish().unwrap_or_else(|error| panic!("{error:#}"));
}
