//! Tests of small files that the kernel reads itself: they have the right bytes, and the cache sees none of them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use nectary_buffer::WriteMode;

use crate::tree::{TreeMount, as_user, bytes};

/// The largest file that the kernel reads itself.
const SMALL: usize = 64 << 10;

/// A mounted directory with these files; `None` if this machine, its kernel or the source cannot pass files through.
fn shown(test: &str, is_exclusive: bool, files: &[(&str, usize)]) -> Option<TreeMount> {
    let shown = TreeMount::passing(test, WriteMode::WriteThrough, is_exclusive, SMALL as u64)?;
    for (name, length) in files {
        fs::write(shown.below(name), bytes(*length, 1)).unwrap();
    }
    fs::write(shown.below("first"), b"small").unwrap();
    assert_eq!(fs::read(shown.at("first")).unwrap(), b"small");
    if shown.tree.figures().passed_opens == 0 {
        println!("NOT RUN: {test}: the kernel cannot read files of this source itself");
        return None;
    }
    Some(shown)
}

fn references(shown: &TreeMount) -> u64 {
    let cache = shown.tree.figures().cache;
    cache.hits + cache.misses
}

fn whole(file: &mut File) -> Vec<u8> {
    let mut found = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut found).unwrap();
    found
}

/// Opens a file for reading and writing.
fn writable(shown: &TreeMount, name: &str) -> File {
    OpenOptions::new().read(true).write(true).open(shown.at(name)).unwrap()
}

/// Opens a file for reading when the kernel passes it through. The kernel says late that a last handle was closed.
fn passed(shown: &TreeMount, name: &str) -> File {
    let before = shown.tree.figures().passed_opens;
    nectary_kit::find(format_args!("{name} is passed through"), || {
        let file = File::open(shown.at(name)).unwrap();
        (shown.tree.figures().passed_opens > before).then_some(file)
    })
}

/// Asserts that a file has these bytes when the kernel no longer passes it through.
fn cached(shown: &TreeMount, name: &str, expected: &[u8]) {
    let before = references(shown);
    nectary_kit::until(format_args!("{name} is passed through no more"), || {
        let is_cached = references(shown) != before;
        if !is_cached {
            assert!(whole(&mut writable(shown, name)) == expected, "{name}");
        }
        is_cached
    });
}

/// Small files pass through and large files do not.
#[test]
fn passthrough_takes_small_files_only() {
    let files = [("empty", 0), ("small", 5000), ("limit", SMALL), ("large", SMALL + 1)];
    let Some(shown) = shown("small files pass", false, &files) else { return };
    for (name, length) in files {
        let (before, opens) = (references(&shown), shown.tree.figures().passed_opens);
        assert_eq!(fs::read(shown.at(name)).unwrap(), bytes(length, 1), "{name}");
        let is_small = length <= SMALL;
        assert_eq!(references(&shown) == before, is_small, "{name}");
        assert_eq!(shown.tree.figures().passed_opens > opens, is_small, "{name}");
    }
    // What is opened for writing goes through the cache, whatever its size.
    cached(&shown, "small", &bytes(5000, 1));
}

#[test]
fn passed_writes_are_read_through_cache() {
    for is_exclusive in [false, true] {
        let Some(shown) = shown("passed writes", is_exclusive, &[("file", 20_000)]) else { return };
        // The cache has the old bytes.
        assert_eq!(whole(&mut writable(&shown, "file")), bytes(20_000, 1));
        let mut reader = passed(&shown, "file");
        let mut writer = writable(&shown, "file");
        for seed in 2..5 {
            // Two handles of one kind see each other's bytes, at once and with an equal size.
            writer.seek(SeekFrom::Start(0)).unwrap();
            writer.write_all(&bytes(20_000, seed)).unwrap();
            assert_eq!(whole(&mut reader), bytes(20_000, seed), "exclusive: {is_exclusive}");
        }
        writer.set_len(100).unwrap();
        assert_eq!(whole(&mut reader), bytes(100, 4));
        writer.write_all_at(&bytes(20_000, 5), 0).unwrap();
        assert_eq!(fs::metadata(shown.at("file")).unwrap().len(), 20_000);
        writer.sync_all().unwrap();
        assert_eq!(fs::read(shown.below("file")).unwrap(), bytes(20_000, 5));
        drop((reader, writer));
        cached(&shown, "file", &bytes(20_000, 5));
    }
}

#[test]
fn files_through_cache_stay_there() {
    let Some(shown) = shown("files of two kinds", false, &[("file", 20_000)]) else { return };
    // The first handle goes through the cache, and so do those that join it, also such as map the file.
    let mut writer = writable(&shown, "file");
    let opens = shown.tree.figures().passed_opens;
    let mut reader = File::open(shown.at("file")).unwrap();
    writer.write_all(&bytes(20_000, 2)).unwrap();
    assert_eq!(whole(&mut reader), bytes(20_000, 2));
    assert_eq!(mapped(&reader, 20_000), bytes(20_000, 2));
    assert_eq!(shown.tree.figures().passed_opens, opens);
}

#[test]
fn passed_writes_take_rights_away() {
    let Some(shown) = shown("passed writes without rights", false, &[("file", 100)]) else { return };
    for folder in [shown.at("."), shown.below("."), shown.below("..")] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(shown.below("file"), fs::Permissions::from_mode(0o6777)).unwrap();
    let opens = shown.tree.figures().passed_opens;
    let _reader = File::open(shown.at("file")).unwrap();
    as_user(1234, || writable(&shown, "file").write_all(b"other").unwrap());
    assert_eq!(shown.tree.figures().passed_opens, opens + 2);
    assert_eq!(fs::metadata(shown.below("file")).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn passed_files_can_be_mapped() {
    let Some(shown) = shown("passed files are mapped", false, &[("file", 20_000)]) else { return };
    let file = File::open(shown.at("file")).unwrap();
    assert_eq!(mapped(&file, 20_000), bytes(20_000, 1));
    // A deleted file stays readable.
    fs::remove_file(shown.at("file")).unwrap();
    assert_eq!(mapped(&file, 20_000), bytes(20_000, 1));
    assert!(!shown.below("file").exists());
}

/// The bytes of a file through a mapping.
fn mapped(file: &File, length: usize) -> Vec<u8> {
    // SAFETY: the mapping is private and read only; it is copied, and unmapped, before the function returns.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        let found = std::slice::from_raw_parts(at.cast::<u8>(), length).to_vec();
        libc::munmap(at, length);
        found
    }
}
