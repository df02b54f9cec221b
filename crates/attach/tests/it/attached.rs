//! Tests of attached devices from the outside: how they behave as block devices, and that nothing remains after they
//! are detached.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::time::Duration;

use nectary_attach::{AttachOptions, Attachment, Error};
use nectary_block::{DeviceErrorKind, DeviceRegistry};

use crate::support::{AttachmentFixture, is_missing};

/// Reads 4096 bytes into page-aligned memory, which direct I/O needs; returns their common value.
fn read_direct(file: &File, offset: u64) -> io::Result<u8> {
    #[repr(align(4096))]
    struct AlignedPage([u8; 4096]);
    let mut block = AlignedPage([0xee; 4096]);
    file.read_exact_at(&mut block.0, offset)?;
    assert!(block.0.iter().all(|byte| *byte == block.0[0]), "mixed bytes at {offset}");
    Ok(block.0[0])
}

/// Written data is read back, and discarded ranges read as zeroes.
#[test]
fn device_reads_writes_and_zeroes() {
    if is_missing("attached contents") {
        return;
    }
    let attached = AttachmentFixture::new("stripe(stats(memory:32M),memory:32M)", false);
    let file = attached.open();
    for megabyte in 0..64u64 {
        file.write_all_at(&vec![megabyte as u8 + 1; 1 << 20], megabyte << 20).expect("it writes");
    }
    file.sync_all().expect("it flushes");
    let direct = attached.open_direct();
    for megabyte in 0..64u64 {
        assert_eq!(read_direct(&direct, (megabyte << 20) + 8192).expect("it reads"), megabyte as u8 + 1);
    }
    let discarded = Command::new("blkdiscard").args(["-o", "1M", "-l", "2M"]).arg(attached.0.path()).status();
    assert!(discarded.expect("blkdiscard runs").success());
    let byte = |megabyte: u64| read_direct(&direct, megabyte << 20).expect("it reads");
    assert_eq!((byte(0), byte(1), byte(2), byte(3)), (1, 0, 0, 4));
    let figures = attached.0.figures();
    assert!(figures.bytes_written == 64 << 20 && figures.flushes > 0 && figures.zeroes > 0, "{figures:?}");
    assert_eq!(attached.0.device_figures().len(), 1);
    drop((file, direct));
    attached.detach().expect("it detaches");
    assert!(!attached.0.is_attached());
}

#[test]
fn detach_refuses_device_in_use() {
    if is_missing("attached in use") {
        return;
    }
    let attached = AttachmentFixture::new("memory:16M", false);
    let holder = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(attached.0.path()).expect("it opens");
    assert!(matches!(attached.0.release(), Err(Error::InUse { .. })));
    assert!(attached.0.is_attached());
    drop(holder);
    attached.detach().expect("it detaches");
    assert!(!attached.0.is_attached());
}

/// A device that was asked to go goes when its last user leaves.
#[test]
fn release_waits_for_last_user() {
    if is_missing("attached until unused") {
        return;
    }
    let attached = AttachmentFixture::new("memory:16M", false);
    let user = attached.open();
    user.write_all_at(&[7; 4096], 0).expect("it writes");
    attached.0.release_when_unused().expect("it takes the request");
    assert!(!*attached.0.ended().borrow());
    drop(user);
    attached.0.finish().expect("it ends well");
    assert!(!attached.0.is_attached());
}

#[test]
fn read_only_device_refuses_writes() {
    if is_missing("attached read-only") {
        return;
    }
    let attached = AttachmentFixture::new("memory:16M", true);
    assert!(
        OpenOptions::new().write(true).open(attached.0.path()).is_ok_and(|file| file.write_at(&[1; 4096], 0).is_err())
            || OpenOptions::new().write(true).open(attached.0.path()).is_err()
    );
    assert_eq!(read_direct(&attached.open_direct(), 0).expect("it reads"), 0);
    attached.detach().expect("it detaches");
}

#[test]
fn a_failed_flush_reaches_whoever_syncs() {
    if is_missing("attached flush") {
        return;
    }
    let when = std::env::temp_dir().join(format!("nectary-attach-{}", std::process::id()));
    std::fs::write(&when, "").expect("it is written");
    let attached = AttachmentFixture::new(&format!("error(memory:16M,on=flush,when={})", when.display()), false);
    let file = attached.open();
    file.write_all_at(&[1; 4096], 0).expect("the page cache takes it");
    let synced = file.sync_all();
    std::fs::remove_file(&when).expect("it is removed");
    assert!(synced.is_err());
    file.sync_all().expect("it flushes again");
    assert!(attached.0.figures().failed > 0);
    drop(file);
    attached.detach().expect("it detaches");
}

/// A device that cannot be opened is reported, and nothing is left.
#[test]
fn failed_open_leaves_nothing() {
    if is_missing("attached errors") {
        return;
    }
    for (spec, kind) in [("/nowhere/at/all.img", DeviceErrorKind::Absent), ("memori:1G", DeviceErrorKind::Invalid)] {
        match Attachment::start(DeviceRegistry::with_builtins(), spec, AttachOptions::default()) {
            Err(Error::Device(error)) => assert_eq!(error.kind, kind, "{error}"),
            Err(error) => panic!("{spec}: {error}"),
            Ok(attachment) => panic!("{spec} is {}", attachment.path().display()),
        }
    }
}

#[test]
fn slow_device_serves_in_parallel() {
    if is_missing("attached concurrency") {
        return;
    }
    let attached = AttachmentFixture::new("delay(memory:16M,read=500ms)", false);
    let began = std::time::Instant::now();
    std::thread::scope(|scope| {
        for index in 0..16u64 {
            let attached = &attached;
            scope.spawn(move || assert_eq!(read_direct(&attached.open_direct(), index << 20).expect("it reads"), 0));
        }
    });
    assert!(began.elapsed() < Duration::from_millis(16 * 500), "{:?}", began.elapsed());
    attached.detach().expect("it detaches");
}
