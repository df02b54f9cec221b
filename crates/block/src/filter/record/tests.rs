//! Tests of a recording, of the file that stores it, and of damage to the file.

use super::*;
use crate::{BlockDevice, MemoryDevice, OpenOptions, open, write};

fn memory() -> SharedDevice {
    Arc::new(MemoryDevice::new(1 << 20))
}

/// A path in the temporary directory. The file is removed at the end of the test.
struct TemporaryRecordFile(PathBuf);

impl TemporaryRecordFile {
    fn new(name: &str) -> TemporaryRecordFile {
        let path = std::env::temp_dir().join(format!("nectary-record-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        TemporaryRecordFile(path)
    }
}

impl Drop for TemporaryRecordFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn use_everything(device: &dyn BlockDevice) {
    let context = IoContext::default();
    let flags = WriteFlags { fua: true };
    write(device, 4096, Buffer::copy_of(&[1; 8192])).await.unwrap();
    device.write_at(0, vec![Buffer::copy_of(&[2; 4096]), Buffer::zeroed(4096)], flags, context).await.unwrap();
    device.flush(context).await.unwrap();
    device.write_zeroes(0, 8192, context).await.unwrap();
    device.discard(4096, 4096, context).await.unwrap();
    device.grow(2 << 20).await.unwrap();
}

#[tokio::test]
async fn recording_keeps_event_order() {
    let recorder = Recorder::new();
    let device = recorder.wrap(memory());
    let (flags, context) = (WriteFlags::default(), IoContext::default());
    let first = device.write_at(0, vec![Buffer::zeroed(4096)], flags, context);
    let second = device.write_at(4096, vec![Buffer::zeroed(4096)], flags, context);
    let flush = device.flush(context);
    second.await.unwrap();
    flush.await.unwrap();
    drop(first);
    recorder.mark(9);
    let kinds: Vec<String> = recorder.recording().events.iter().map(brief).collect();
    assert_eq!(kinds, ["write 0", "write 1", "flush 2", "end 1", "end 2", "mark 9"]);
}

fn brief(event: &RecordedEvent) -> String {
    match event {
        RecordedEvent::WriteBegun { id, .. } => format!("write {id}"),
        RecordedEvent::FlushBegun { id } => format!("flush {id}"),
        RecordedEvent::Completed { id, .. } => format!("end {id}"),
        RecordedEvent::Mark(mark) => format!("mark {mark}"),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn refused_requests_leave_no_trace() {
    let recorder = Recorder::new();
    let device = recorder.wrap(memory());
    assert!(write(&*device, 1, Buffer::zeroed(4096)).await.is_err());
    assert!(write(&*device, 1 << 20, Buffer::zeroed(4096)).await.is_err());
    assert!(recorder.recording().events.is_empty());
}

#[tokio::test]
async fn full_recording_fails_operations() {
    let recorder = Recorder::with_bytes_max(2 * (4096 + 2 * EVENT_BYTES));
    let device = recorder.wrap(memory());
    for _ in 0..2 {
        write(&*device, 0, Buffer::zeroed(4096)).await.unwrap();
    }
    let error = write(&*device, 0, Buffer::zeroed(4096)).await.unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Full, "{error}");
}

#[tokio::test]
async fn file_gives_back_what_memory_holds() {
    let temporary = TemporaryRecordFile::new("same");
    let spec = format!("record(memory:1M,file={})", temporary.0.display());
    let device = open(&spec, &OpenOptions::default()).await.unwrap();
    assert_eq!(device.spec(), spec);
    use_everything(&*device).await;
    let recorder = Recorder::new();
    use_everything(&*recorder.wrap(memory())).await;
    assert_eq!(Recording::load(&temporary.0).unwrap(), recorder.recording());
    assert!(open(&spec, &OpenOptions::default()).await.is_err(), "a recording is not overwritten");
}

/// A changed byte is an error; a truncated file is an error or gives a shorter recording.
#[tokio::test]
async fn damaged_recording_never_panics() {
    let temporary = TemporaryRecordFile::new("damage");
    let device = memory();
    let recorder = Recorder::to_file(temporary.0.clone(), FILE_BYTES_MAX, &device.geometry()).unwrap();
    use_everything(&*recorder.wrap(device)).await;
    let (whole, good) = (std::fs::read(&temporary.0).unwrap(), Recording::load(&temporary.0).unwrap());
    let mut refused = 0;
    for index in (0..whole.len()).step_by(7) {
        let mut bytes = whole.clone();
        bytes[index] ^= 1 << (index % 8);
        match format::parse(&bytes[..], "test") {
            Err(_) => refused += 1,
            Ok(found) => panic!("byte {index} is not covered by a checksum: {} events", found.events.len()),
        }
    }
    assert!(refused > 1000);
    for length in 0..whole.len() {
        if let Ok(found) = format::parse(&whole[..length], "test") {
            assert_eq!(found.events[..], good.events[..found.events.len()]);
        }
    }
}
