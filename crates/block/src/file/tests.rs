//! Tests of files as devices, with both engines: opening, ownership, failures, and the drop of futures and runtimes.

use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use super::*;
use crate::device::SharedDevice;
use crate::mounted::TestMount;
use crate::stripe::StripeDevice;
use crate::{open, read, write};

/// A directory that is removed at the end of a test.
pub(super) struct FileTestDirectory(pub PathBuf);

impl FileTestDirectory {
    pub fn new() -> FileTestDirectory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("nectary-block-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        FileTestDirectory(path)
    }

    pub fn file(&self) -> PathBuf {
        self.0.join("a.img")
    }
}

impl Drop for FileTestDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) const ENGINES: [FileEngine; 2] = [FileEngine::Uring, FileEngine::Posix];

pub(super) async fn device(directory: &FileTestDirectory, engine: FileEngine) -> FileDevice {
    let options = OpenOptions { create_bytes: Some(1 << 20), engine, ..OpenOptions::default() };
    FileDevice::open_file(directory.file(), &options).await.unwrap()
}

#[tokio::test]
async fn contents_survive_a_second_open() {
    for engine in ENGINES {
        let directory = FileTestDirectory::new();
        let data: Vec<u8> = (0..65536u32).map(|index| (index % 251) as u8).collect();
        let first = device(&directory, engine).await;
        write(&first, 8192, Buffer::copy_of(&data)).await.unwrap();
        first.flush(IoContext::default()).await.unwrap();
        drop(first);
        let second = device(&directory, engine).await;
        assert_eq!(second.geometry().size_bytes, 1 << 20);
        assert_eq!(&*read(&second, 8192, 65536).await.unwrap(), &data[..]);
    }
}

/// The forced write of several buffers puts them one after the other.
#[tokio::test]
async fn vectored_write_keeps_buffer_order() {
    for engine in ENGINES {
        let directory = FileTestDirectory::new();
        let device = device(&directory, engine).await;
        let buffers = (1..=3u8).map(|value| Buffer::copy_of(&[value; 4096])).collect();
        let flags = WriteFlags { fua: true };
        device.write_at(4096, buffers, flags, IoContext::default()).await.unwrap();
        let buffers = vec![Buffer::zeroed(8192), Buffer::zeroed(4096)];
        let buffers = device.read_at(4096, buffers, IoContext::default()).await.unwrap();
        assert_eq!((buffers[0][0], buffers[0][4096], buffers[1][4095]), (1, 2, 3));
    }
}

#[tokio::test]
async fn absent_file_needs_create_size() {
    let directory = FileTestDirectory::new();
    let error = FileDevice::open_file(directory.file(), &OpenOptions::default()).await.err().unwrap();
    assert_eq!(error.kind, DeviceErrorKind::Absent, "{error}");
    drop(device(&directory, FileEngine::Auto).await);
    let status = std::fs::metadata(directory.file()).unwrap();
    assert_eq!((status.len(), std::os::unix::fs::MetadataExt::blocks(&status) * 512), (1 << 20, 1 << 20));
    let spec = format!("{}", directory.file().display());
    assert_eq!(open(&spec, &OpenOptions::default()).await.unwrap().spec(), format!("file:{spec}"));
}

#[tokio::test]
async fn failed_allocation_leaves_no_file() {
    let directory = FileTestDirectory::new();
    let options = OpenOptions { create_bytes: Some(1 << 60), ..OpenOptions::default() };
    let error = FileDevice::open_file(directory.file(), &options).await.err().unwrap();
    assert_eq!(error.kind, DeviceErrorKind::Full, "{error}");
    assert!(!directory.file().exists());
}

#[tokio::test]
async fn impossible_file_size_is_refused() {
    for bytes in [u64::MAX, u64::MAX - 4095, 1 << 63] {
        let directory = FileTestDirectory::new();
        let options = OpenOptions { create_bytes: Some(bytes), ..OpenOptions::default() };
        let error = FileDevice::open_file(directory.file(), &options).await.err().unwrap();
        assert!(error.kind == DeviceErrorKind::Invalid && error.detail.contains("smaller size"), "{error}");
        assert!(!directory.file().exists());
        // A file that is there, and is empty, gets the size as a new one does.
        std::fs::write(directory.file(), "").unwrap();
        let error = FileDevice::open_file(directory.file(), &options).await.err().unwrap();
        assert_eq!(error.kind, DeviceErrorKind::Invalid, "{error}");
    }
}

/// The error for a second owner names the process that has the file.
#[tokio::test]
async fn second_owner_is_refused() {
    let directory = FileTestDirectory::new();
    let first = device(&directory, FileEngine::Auto).await;
    let error = FileDevice::open_file(directory.file(), &OpenOptions::default()).await.err().unwrap();
    assert_eq!(error.kind, DeviceErrorKind::Busy);
    assert!(error.detail.contains(&std::process::id().to_string()), "{error}");
    drop(first);
    FileDevice::open_file(directory.file(), &OpenOptions::default()).await.unwrap();
}

/// After a release another owner can open the file; the former owner still reads, and cannot write.
#[tokio::test]
async fn released_file_is_readable() {
    for engine in ENGINES {
        let directory = FileTestDirectory::new();
        let first = device(&directory, engine).await;
        let filled = |byte| {
            let mut buffer = Buffer::zeroed(4096);
            buffer.fill(byte);
            buffer
        };
        write(&first, 0, filled(1)).await.unwrap();
        assert!(first.release().await.unwrap());
        let second = FileDevice::open_file(directory.file(), &OpenOptions::default()).await.unwrap();
        assert_eq!(read(&first, 0, 4096).await.unwrap()[0], 1);
        write(&second, 0, filled(2)).await.unwrap();
        assert_eq!(read(&first, 0, 4096).await.unwrap()[0], 2);
        assert!(write(&first, 0, filled(3)).await.is_err());
        let third = FileDevice::open_file(directory.file(), &OpenOptions::default()).await.err().unwrap();
        assert_eq!(third.kind, DeviceErrorKind::Busy);
        drop(first);
        let third = FileDevice::open_file(directory.file(), &OpenOptions::default()).await.err().unwrap();
        assert_eq!(third.kind, DeviceErrorKind::Busy, "the end of the first owner takes nothing from the second");
    }
}

/// A read beyond the end of a truncated file fails and names the expected and found number of bytes.
#[tokio::test]
async fn read_of_truncated_file_fails() {
    for engine in ENGINES {
        let directory = FileTestDirectory::new();
        let device = device(&directory, engine).await;
        let other = std::fs::OpenOptions::new().write(true).open(directory.file()).unwrap();
        for (length, found) in [(8192, "found 4096"), (6000, "found 1904"), (0, "found 0")] {
            other.set_len(length).unwrap();
            let error = read(&device, 4096, 16384).await.unwrap_err();
            assert_eq!(error.kind, DeviceErrorKind::Io, "{error}");
            assert!(error.detail.contains("expected 16384") && error.detail.contains(found), "{error}");
        }
    }
}

/// A device whose descriptor cannot be written, so that every write and flush fails.
async fn broken(directory: &FileTestDirectory, engine: FileEngine) -> FileDevice {
    let mut device = device(directory, engine).await;
    let shared = Arc::get_mut(&mut device.shared).unwrap();
    shared.file = std::fs::File::open(directory.file()).unwrap();
    device
}

/// A failed write is reported, and the device goes on.
#[tokio::test]
async fn failed_write_is_reported_without_latch() {
    for engine in ENGINES {
        let directory = FileTestDirectory::new();
        let device = broken(&directory, engine).await;
        for _ in 0..2 {
            let error = write(&device, 0, Buffer::zeroed(4096)).await.unwrap_err();
            assert_eq!((error.kind, error.length), (DeviceErrorKind::Io, 4096), "{error}");
        }
        device.flush(IoContext::default()).await.unwrap();
        read(&device, 0, 4096).await.unwrap();
    }
}

/// After a failed flush, writes are refused until the caller says that it rewrites what may be lost.
#[tokio::test]
async fn failed_flush_latches_until_cleared() {
    for engine in ENGINES {
        let directory = FileTestDirectory::new();
        let mut device = device(&directory, engine).await;
        let file = std::mem::replace(
            &mut Arc::get_mut(&mut device.shared).unwrap().file,
            // Such a file cannot be flushed.
            std::fs::File::options().read(true).write(true).open("/dev/null").unwrap(),
        );
        device.flush(IoContext::default()).await.unwrap_err();
        // The engine may hold the operation's state for a moment longer.
        let begun = std::time::Instant::now();
        while Arc::get_mut(&mut device.shared).is_none() && begun.elapsed() < std::time::Duration::from_secs(20) {
            tokio::task::yield_now().await;
        }
        Arc::get_mut(&mut device.shared).unwrap().file = file;
        let error = device.flush(IoContext::default()).await.unwrap_err();
        assert_eq!(error.kind, DeviceErrorKind::Latched);
        assert!(error.detail.contains("flush"), "{error}");
        assert_eq!(write(&device, 0, Buffer::zeroed(4096)).await.unwrap_err().kind, DeviceErrorKind::Latched);
        assert_eq!(device.grow(2 << 20).await.unwrap_err().kind, DeviceErrorKind::Latched);
        read(&device, 0, 4096).await.unwrap();
        device.set_option(CLEAR_LATCH.0, CLEAR_LATCH.1).await.unwrap();
        write(&device, 0, Buffer::zeroed(4096)).await.unwrap();
        device.flush(IoContext::default()).await.unwrap();
    }
}

/// The kernel may have told the forced write that an earlier one is lost, and tells no later flush.
#[tokio::test]
async fn failed_forced_write_latches() {
    for engine in ENGINES {
        let directory = FileTestDirectory::new();
        let device = broken(&directory, engine).await;
        let flags = WriteFlags { fua: true };
        let forced = device.write_at(0, vec![Buffer::zeroed(4096)], flags, IoContext::default()).await;
        assert_eq!(forced.map(drop).unwrap_err().kind, DeviceErrorKind::Io);
        let error = device.flush(IoContext::default()).await.unwrap_err();
        assert!(error.kind == DeviceErrorKind::Latched && error.detail.contains("write"), "{error}");
    }
}

#[tokio::test]
async fn flush_beside_a_failed_one_fails() {
    let directory = FileTestDirectory::new();
    let device = device(&directory, FileEngine::Posix).await;
    let flush = |shared: &Arc<SharedFileState>| DeviceTransfer {
        shared: shared.clone(),
        operation: DeviceOperation::Flush,
        offset: 0,
        length: 0,
        buffers: Vec::new(),
        fua: false,
        done: 0,
        failures: shared.failures(),
    };
    let (first, second) = (flush(&device.shared), flush(&device.shared));
    let failed = first.error(DeviceErrorKind::Io, "lost".to_owned());
    assert_eq!(first.end(Err(failed)).unwrap_err().kind, DeviceErrorKind::Io);
    // Who clears the latch rewrites what no flush has covered, so this one must not count.
    device.set_option(CLEAR_LATCH.0, CLEAR_LATCH.1).await.unwrap();
    assert_eq!(second.end(Ok(())).unwrap_err().kind, DeviceErrorKind::Latched);
    device.flush(IoContext::default()).await.unwrap();
}

#[tokio::test]
async fn growth_keeps_contents_and_never_shrinks() {
    for engine in ENGINES {
        let directory = FileTestDirectory::new();
        let device = device(&directory, engine).await;
        write(&device, 0, Buffer::copy_of(&[9; 4096])).await.unwrap();
        device.grow(2 << 20).await.unwrap();
        assert_eq!(device.geometry().size_bytes, 2 << 20);
        assert_eq!((read(&device, 0, 4096).await.unwrap()[0], read(&device, 1 << 20, 4096).await.unwrap()[0]), (9, 0));
        assert_eq!(device.grow(1 << 20).await.unwrap_err().kind, DeviceErrorKind::Invalid);
        assert_eq!(device.grow((2 << 20) + 1).await.unwrap_err().kind, DeviceErrorKind::Invalid);
    }
}

#[tokio::test]
async fn expired_deadline_is_a_time_out() {
    for engine in ENGINES {
        let directory = FileTestDirectory::new();
        let device = device(&directory, engine).await;
        let context = IoContext { deadline: Some(Instant::now()), ..IoContext::default() };
        let error = device.read_at(0, vec![Buffer::zeroed(4096)], context).await.unwrap_err();
        assert_eq!(error.kind, DeviceErrorKind::TimedOut);
        assert_eq!(device.flush(context).await.unwrap_err().kind, DeviceErrorKind::TimedOut);
    }
}

#[tokio::test]
async fn dropped_futures_leave_a_sound_device() {
    for engine in ENGINES {
        let directory = FileTestDirectory::new();
        let device = device(&directory, engine).await;
        for round in 0..200u64 {
            let offset = round % 100 * 8192;
            drop(device.read_at(offset, vec![Buffer::zeroed(8192)], IoContext::default()));
            let flags = WriteFlags::default();
            drop(device.write_at(offset, vec![Buffer::copy_of(&[5; 8192])], flags, IoContext::default()));
            if round % 10 == 0 {
                tokio::task::yield_now().await;
            }
        }
        write(&device, 0, Buffer::copy_of(&[6; 4096])).await.unwrap();
        device.flush(IoContext::default()).await.unwrap();
        let found = read(&device, 4096, 4096).await.unwrap()[0];
        assert!(found == 0 || found == 5, "{found}");
    }
}

#[test]
fn call_outside_a_runtime_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for engine in ENGINES {
        let directory = FileTestDirectory::new();
        let device = runtime.block_on(device(&directory, engine));
        let operation = device.read_at(0, vec![Buffer::zeroed(4096)], IoContext::default());
        assert_eq!(runtime.block_on(operation).unwrap_err().kind, DeviceErrorKind::Invalid);
    }
}

/// A directory opened as a file, and a file opened as a disk, are refused.
#[tokio::test]
async fn file_and_disk_mismatch_is_refused() {
    let directory = FileTestDirectory::new();
    let error = FileDevice::open_file(&directory.0, &OpenOptions::default()).await.err().unwrap();
    assert_eq!(error.kind, DeviceErrorKind::Invalid);
    drop(device(&directory, FileEngine::Auto).await);
    let error = FileDevice::open_disk(directory.file(), &OpenOptions::default()).await.err().unwrap();
    assert!(error.kind == DeviceErrorKind::Invalid && error.detail.contains("file:"), "{error}");
}

/// The device still works after a write that failed for lack of space.
#[tokio::test]
async fn write_without_space_fails_as_full() {
    let directory = FileTestDirectory::new();
    let place = directory.0.join("small");
    let mount = match TestMount::new("tmpfs", place.clone(), "size=256k") {
        Ok(mount) => mount,
        Err(why) => return println!("NOT RUN: no small tmpfs: {why}"),
    };
    let mut found = Vec::new();
    for engine in ENGINES {
        let path = place.join(format!("{engine:?}.img"));
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let device = FileDevice::open_file(&path, &OpenOptions { engine, ..OpenOptions::default() }).await.unwrap();
        let first = write(&device, 0, Buffer::zeroed(4096)).await.map(drop);
        let full = write(&device, 0, Buffer::zeroed(1 << 20)).await.map(drop);
        let again = write(&device, 0, Buffer::copy_of(&[1; 4096])).await.map(drop);
        found.push((first, full.map_err(|error| error.kind), again, device.flush(IoContext::default()).await));
        drop(device);
        std::fs::remove_file(&path).unwrap();
    }
    mount.unmount().unwrap();
    for (first, full, again, flushed) in found {
        assert_eq!(full, Err(DeviceErrorKind::Full));
        assert!(first.is_ok() && again.is_ok() && flushed.is_ok(), "{first:?} {again:?} {flushed:?}");
    }
}

/// Without io_uring, `auto` chooses the POSIX engine and `uring` fails.
#[test]
fn auto_engine_falls_back_to_posix() {
    let choose = |wanted, answer| choose_engine("file:/a", wanted, answer).map_err(|error| error.kind);
    assert_eq!(choose(FileEngine::Auto, Ok(())), Ok(FileEngine::Uring));
    assert_eq!(choose(FileEngine::Auto, Err("no")), Ok(FileEngine::Posix));
    assert_eq!(choose(FileEngine::Posix, Ok(())), Ok(FileEngine::Posix));
    assert_eq!(choose(FileEngine::Uring, Err("no")), Err(DeviceErrorKind::Unsupported));
}

/// An exclusive owner also keeps out those that want to share the file.
#[tokio::test]
async fn shared_file_refuses_exclusive_owner() {
    let directory = FileTestDirectory::new();
    let path = directory.file();
    let options = OpenOptions { create_bytes: Some(1 << 20), is_shared: true, ..OpenOptions::default() };
    let (first, second) =
        (FileDevice::open_file(&path, &options).await.unwrap(), FileDevice::open_file(&path, &options).await.unwrap());
    assert!(first.is_shared() && second.is_shared());
    write(&first, 4096, Buffer::copy_of(&[7; 4096])).await.unwrap();
    assert_eq!(read(&second, 4096, 4096).await.unwrap()[0], 7);
    let refused = FileDevice::open_file(&path, &OpenOptions::default()).await.map(drop).unwrap_err();
    assert_eq!(refused.kind, DeviceErrorKind::Busy);
    drop((first, second));
    let owner = FileDevice::open_file(&path, &OpenOptions::default()).await.unwrap();
    assert!(!owner.is_shared());
    let refused = FileDevice::open_file(&path, &options).await.map(drop).unwrap_err();
    assert_eq!(refused.kind, DeviceErrorKind::Busy);
}

/// Among those that share a file, a range lock is refused to others until its holder is dropped.
#[tokio::test]
async fn range_lock_has_one_holder() {
    for engine in ENGINES {
        let directory = FileTestDirectory::new();
        drop(device(&directory, engine).await);
        let options = OpenOptions { is_shared: true, engine, ..OpenOptions::default() };
        let one = FileDevice::open_file(directory.file(), &options).await.unwrap();
        let two = FileDevice::open_file(directory.file(), &options).await.unwrap();
        assert!(one.lock(4096, 4096).await.unwrap());
        assert!(one.lock(4096, 4096).await.unwrap(), "it has it already");
        let refused = two.lock(4096, 4096).await.unwrap_err();
        assert_eq!(refused.kind, DeviceErrorKind::Busy);
        assert!(refused.to_string().contains("another process has the lock"), "{refused}");
        assert!(two.lock(8192, 4096).await.unwrap(), "another range is free");
        read(&two, 4096, 4096).await.unwrap();
        drop(one);
        assert!(two.lock(4096, 4096).await.unwrap(), "it is free again");
    }
    assert!(!crate::MemoryDevice::new(1 << 20).lock(0, 4096).await.unwrap(), "memory has no lock");
}

#[tokio::test]
async fn lock_is_seen_through_every_descriptor() {
    const FAR: u64 = (1 << 62) + 12345;
    let directory = FileTestDirectory::new();
    let shared = OpenOptions { is_shared: true, create_bytes: Some(1 << 20), ..OpenOptions::default() };
    let reader = OpenOptions { is_read_only: true, ..OpenOptions::default() };
    let one = FileDevice::open_file(directory.file(), &shared).await.unwrap();
    let two = FileDevice::open_file(directory.file(), &shared).await.unwrap();
    let three = FileDevice::open_file(directory.file(), &reader).await.unwrap();
    let domain = one.lock_domain().expect("the kernel keeps the locks of this file system");
    assert_eq!([two.lock_domain(), three.lock_domain()], [Some(domain.clone()), Some(domain.clone())]);
    assert!(one.lock(FAR, 1).await.unwrap() && three.lock(FAR + 1, 1).await.unwrap());
    for device in [&one, &two, &three] {
        assert!(device.is_locked(FAR, 1).await.unwrap() && device.is_locked(FAR + 1, 1).await.unwrap());
        assert!(!device.is_locked(FAR - 1, 1).await.unwrap() && !device.is_locked(FAR + 2, 1).await.unwrap());
    }
    one.unlock(FAR, 1).await.unwrap();
    drop(three);
    for device in [&one, &two] {
        assert!(!device.is_locked(FAR, 2).await.unwrap(), "unlocked, and closed");
    }
    let other = FileDevice::open_file(directory.0.join("other"), &shared).await.unwrap();
    assert_ne!(other.lock_domain(), Some(domain.clone()), "another inode");
    let stripe = StripeDevice::new(vec![Arc::new(one), Arc::new(other)], 4096).unwrap();
    assert!(stripe.lock(FAR, 1).await.unwrap() && two.is_locked(FAR, 1).await.unwrap());
    assert!(stripe.lock_domain().is_some_and(|all| all.starts_with(&domain) && all.len() > domain.len()));
    stripe.unlock(FAR, 1).await.unwrap();
    assert!(!stripe.is_locked(FAR, 1).await.unwrap());
    let memory: SharedDevice = Arc::new(crate::MemoryDevice::new(1 << 20));
    assert!(memory.is_locked(0, 1).await.is_err() && memory.lock_domain().is_none(), "memory cannot tell");
    let mixed = StripeDevice::new(vec![Arc::new(two), memory], 4096).unwrap();
    assert!(!mixed.lock(FAR, 1).await.unwrap() && mixed.lock_domain().is_none(), "a part of it cannot lock");
}

/// Readers and owners keep each other out; writes and discards of a reader are refused.
#[tokio::test]
async fn read_only_file_has_many_readers() {
    for engine in ENGINES {
        let directory = FileTestDirectory::new();
        let owner = device(&directory, engine).await;
        let options = OpenOptions { is_read_only: true, engine, ..OpenOptions::default() };
        let refused = FileDevice::open_file(directory.file(), &options).await.map(drop).unwrap_err();
        assert_eq!(refused.kind, DeviceErrorKind::Busy, "an owner may write");
        drop(owner);
        let one = FileDevice::open_file(directory.file(), &options).await.unwrap();
        let two = FileDevice::open_file(directory.file(), &options).await.unwrap();
        read(&two, 4096, 4096).await.unwrap();
        let refused = write(&one, 4096, Buffer::zeroed(4096)).await.unwrap_err();
        assert_eq!(refused.kind, DeviceErrorKind::Unsupported);
        assert!(refused.to_string().contains("only for reading"), "{refused}");
        let refused = one.discard(0, 4096, IoContext::default()).await.unwrap_err();
        assert_eq!(refused.kind, DeviceErrorKind::Unsupported);
        one.flush(IoContext::default()).await.unwrap();
        let refused = FileDevice::open_file(directory.file(), &OpenOptions::default()).await.map(drop).unwrap_err();
        assert_eq!(refused.kind, DeviceErrorKind::Busy, "no owner while it is read");
        let absent = OpenOptions { create_bytes: Some(1 << 20), ..options };
        let refused = FileDevice::open_file(directory.file().with_extension("b"), &absent).await.map(drop).unwrap_err();
        assert_eq!(refused.kind, DeviceErrorKind::Absent, "nothing is made");
    }
}

/// Zeroes in the padding are accepted and change nothing; other bytes there are refused.
#[tokio::test]
async fn odd_file_is_padded() {
    for engine in ENGINES {
        for length in [1000u64, 4096 + 512, 4096 + 700] {
            let directory = FileTestDirectory::new();
            let data: Vec<u8> = (0..length as u32).map(|index| (index % 250 + 1) as u8).collect();
            std::fs::write(directory.file(), &data).unwrap();
            let options = OpenOptions { engine, pads_tail: true, ..OpenOptions::default() };
            let device = FileDevice::open_file(directory.file(), &options).await.unwrap();
            let size = device.geometry().size_bytes;
            assert_eq!((size, device.exact_bytes()), (length.next_multiple_of(512), length), "{length}");
            let found = read(&device, 0, size as usize).await.unwrap();
            assert!(found[..length as usize] == data && found[length as usize..].iter().all(|&byte| byte == 0));
            // Zeroes behind the end are taken and change nothing, other bytes are refused with nothing changed.
            let last = size - 512;
            let stored = (length - last) as usize;
            let mut buffer = Buffer::zeroed(512);
            buffer[..stored].fill(9);
            let forced = WriteFlags { fua: true };
            device.write_at(last, vec![buffer], forced, IoContext::default()).await.unwrap();
            if stored < 512 {
                let refused = write(&device, last, Buffer::copy_of(&[7; 512])).await.map(drop).unwrap_err();
                assert_eq!(refused.kind, DeviceErrorKind::Full, "{refused}");
            }
            let beyond = read(&device, size, 512).await.map(drop).unwrap_err();
            assert_eq!(beyond.kind, DeviceErrorKind::Invalid);
            let extents = device.allocation(0, size, IoContext::default()).await.unwrap();
            assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), size);
            device.write_zeroes(0, 512, IoContext::default()).await.unwrap();
            device.discard(last, 512, IoContext::default()).await.unwrap();
            device.grow(size).await.unwrap();
            device.flush(IoContext::default()).await.unwrap();
            let stored = std::fs::read(directory.file()).unwrap();
            assert!(stored.len() as u64 == length && stored[..512].iter().all(|&byte| byte == 0));
        }
    }
}

#[tokio::test]
async fn stripe_excludes_padding() {
    let (one, two) = (FileTestDirectory::new(), FileTestDirectory::new());
    let options = OpenOptions { pads_tail: true, ..OpenOptions::default() };
    let mut devices: Vec<SharedDevice> = Vec::new();
    for directory in [&one, &two] {
        std::fs::write(directory.file(), vec![1; 8192 - 100]).unwrap();
        devices.push(Arc::new(FileDevice::open_file(directory.file(), &options).await.unwrap()));
    }
    let stripe = StripeDevice::new(devices, 512).unwrap();
    assert_eq!(stripe.geometry().size_bytes, 2 * (8192 - 512));
    let size = stripe.geometry().size_bytes as usize;
    write(&stripe, 0, Buffer::copy_of(&vec![5; size])).await.unwrap();
}
