//! `record(A,file=F)`: records every write with its data, and every flush, discard and growth, in the order in which
//! they begin and end.
//!
//! Owns: the filter, and the [`Recorder`], a handle with which tests set marks and take the recording. Promises: the
//! start of an operation is recorded before the device below sees the operation, and its end is recorded before its
//! user sees the result. So a flush covers exactly the writes whose end is recorded before the start of the flush. An
//! operation whose future is dropped has no recorded end, because the operation may or may not have happened. Reads are
//! not recorded. When the recording is full, or cannot be written, operations fail, because a recording with gaps would
//! be wrong. The file's format is `docs/formats/record.md`.

mod format;
mod recording;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

pub use self::recording::{RecordedEvent, Recording};
use super::Filter;
use crate::buffer::Buffer;
use crate::device::{DeviceGeometry, IoContext, IoFuture, SharedDevice, WriteFlags};
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::request::{DeviceRequest, ready};
use crate::spec::quoted;

/// The default limit on the data of a recording in memory. *Units*: bytes.
pub const RECORDING_BYTES_MAX: u64 = 4 << 30;

/// The default limit on the data of a recording in a file. *Units*: bytes.
pub(crate) const FILE_BYTES_MAX: u64 = 64 << 30;

/// The number of bytes that each event adds to the size of a recording, in addition to its data.
const EVENT_BYTES: u64 = format::EVENT_BYTES as u64;

/// A recording in progress; clones share the recording.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use nectary_block::{Buffer, IoContext, RecordedEvent, MemoryDevice, Recorder, write};
/// let recorder = Recorder::new();
/// let device = recorder.wrap(std::sync::Arc::new(MemoryDevice::new(1 << 20)));
/// write(&*device, 0, Buffer::zeroed(4096)).await?;
/// device.flush(IoContext::default()).await?;
/// recorder.mark(1);
/// let recording = recorder.recording();
/// assert_eq!(recording.events.len(), 5);
/// assert_eq!(recording.events[4], RecordedEvent::Mark(1));
/// # Ok::<(), nectary_block::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Recorder(Arc<Mutex<RecorderState>>);

struct RecorderState {
    recording: Recording,
    sink: Option<RecordingSink>,
    next_id: u64,
    next_index: u64,
    bytes: u64,
    bytes_max: u64,
}

/// A file in which the events are stored instead of in memory.
struct RecordingSink {
    file: File,
    path: PathBuf,
    identity: u64,
    /// The reason why the recorder no longer writes to the file; `None` while it still writes.
    failed: Option<String>,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder::new()
    }
}

impl Recorder {
    /// Starts a recording in memory of at most [`RECORDING_BYTES_MAX`].
    pub fn new() -> Recorder {
        Recorder::with_bytes_max(RECORDING_BYTES_MAX)
    }

    /// Starts a recording in memory of at most `bytes_max` bytes.
    pub fn with_bytes_max(bytes_max: u64) -> Recorder {
        Recorder::start(Recording::default(), None, bytes_max)
    }

    /// Starts a recording in a new file.
    ///
    /// *Errors*: [`DeviceErrorKind::Invalid`] if the file exists, because a recording is not overwritten; otherwise the
    /// errors of creating a file.
    pub fn to_file(path: PathBuf, bytes_max: u64, geometry: &DeviceGeometry) -> Result<Recorder, Error> {
        let name = quoted(&path.to_string_lossy());
        let create = || {
            let mut file = File::options().write(true).create_new(true).open(&path)?;
            let identity = format::random_identity()?;
            file.write_all(&format::header(identity, geometry))?;
            Ok((file, identity))
        };
        let (file, identity) = create().map_err(|error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                let detail = "the file exists; remove it or name another one".to_owned();
                Error::new(DeviceErrorKind::Invalid, &name, DeviceOperation::Open, detail)
            }
            _ => Error::from_os(&error, &name, DeviceOperation::Open),
        })?;
        let sink = RecordingSink { file, path, identity: format::short(identity), failed: None };
        Ok(Recorder::start(Recording::default(), Some(sink), bytes_max))
    }

    fn start(recording: Recording, sink: Option<RecordingSink>, bytes_max: u64) -> Recorder {
        Recorder(Arc::new(Mutex::new(RecorderState {
            recording,
            sink,
            next_id: 0,
            next_index: 0,
            bytes: 0,
            bytes_max,
        })))
    }

    /// Puts a filter over `device` that records the device's operations. *Returns* the device with the filter.
    pub fn wrap(&self, device: SharedDevice) -> SharedDevice {
        Arc::new(RecordFilter::new(device, self.clone()))
    }

    /// Sets a mark with a number. The caller uses it to record the point from which a promise holds.
    pub fn mark(&self, mark: u64) {
        // If the mark cannot be recorded, the next operation fails with the reason.
        let _ = self.lock().push(RecordedEvent::Mark(mark));
    }

    /// The recording in memory so far. *Cost*: copies the list of events, not the data.
    pub fn recording(&self) -> Recording {
        self.lock().recording.clone()
    }

    /// Takes the recording in memory out of the recorder, which continues with an empty list.
    ///
    /// Operations in flight keep their numbers, so the ends of some operations may be in the next recording.
    pub fn take(&self) -> Recording {
        let mut state = self.lock();
        state.bytes = 0;
        let next = Recording { events: Vec::new(), ..state.recording };
        std::mem::replace(&mut state.recording, next)
    }

    fn lock(&self) -> MutexGuard<'_, RecorderState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self) -> Option<PathBuf> {
        self.lock().sink.as_ref().map(|sink| sink.path.clone())
    }

    fn begin(&self, event: impl FnOnce(u64) -> RecordedEvent) -> Result<u64, (DeviceErrorKind, String)> {
        let mut state = self.lock();
        let id = state.next_id;
        state.push(event(id))?;
        state.next_id += 1;
        Ok(id)
    }
}

impl RecorderState {
    fn push(&mut self, event: RecordedEvent) -> Result<(), (DeviceErrorKind, String)> {
        let bytes = EVENT_BYTES + event.data().map_or(0, |data| data.len() as u64);
        if self.bytes + bytes > self.bytes_max {
            return Err((DeviceErrorKind::Full, format!("the recording is full: it holds {} bytes", self.bytes_max)));
        }
        match &mut self.sink {
            None => self.recording.events.push(event),
            Some(sink) => sink.write(self.next_index, &event).map_err(|detail| (DeviceErrorKind::Io, detail))?,
        }
        self.bytes += bytes;
        self.next_index += 1;
        Ok(())
    }
}

impl RecordingSink {
    fn write(&mut self, index: u64, event: &RecordedEvent) -> Result<(), String> {
        if let Some(reason) = &self.failed {
            return Err(reason.clone());
        }
        let header = format::event(self.identity, index, event);
        let data = event.data().map_or(&[][..], |data| data);
        let written = self.file.write_all(&header).and_then(|()| self.file.write_all(data));
        written.map_err(|error| {
            let reason = format!("cannot write the recording {}: {error}", self.path.display());
            self.failed = Some(reason.clone());
            reason
        })
    }
}

impl Recording {
    /// Reads a recording from a file. An incomplete event at the end of the file ends the recording.
    ///
    /// *Errors*: [`DeviceErrorKind::Invalid`] if the file is damaged, with the file, the offset, and the expected and found
    /// contents; otherwise the errors of the file system.
    pub fn load(path: &Path) -> Result<Recording, Error> {
        format::load(path)
    }
}

/// Reads a recording from memory, for fuzz targets. *Returns* `None` if the bytes are damaged.
pub fn parse_recording(bytes: &[u8]) -> Option<Recording> {
    format::parse(bytes, "fuzz").ok()
}

/// Writes a recording in the file format, for fuzz targets.
pub fn write_recording(recording: &Recording, identity: [u8; 16]) -> Vec<u8> {
    let geometry = DeviceGeometry {
        block_bytes: recording.block_bytes,
        size_bytes: recording.size_bytes,
        ..crate::BlockDevice::geometry(&crate::MemoryDevice::new(1 << 20))
    };
    let mut bytes = format::header(identity, &geometry);
    for (index, event) in recording.events.iter().enumerate() {
        bytes.extend(format::event(format::short(identity), index as u64, event));
        bytes.extend_from_slice(event.data().map_or(&[][..], |data| data));
    }
    bytes
}

/// The `record` filter; see the comment at the head of this file.
pub struct RecordFilter {
    inner: SharedDevice,
    recorder: Recorder,
}

impl RecordFilter {
    /// Makes a filter that records the operations on `inner` in `recorder`.
    pub fn new(inner: SharedDevice, recorder: Recorder) -> RecordFilter {
        let geometry = inner.geometry();
        let mut state = recorder.lock();
        state.recording.size_bytes = geometry.size_bytes;
        state.recording.block_bytes = geometry.block_bytes;
        drop(state);
        RecordFilter { inner, recorder }
    }

    fn recorded<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        event: impl FnOnce(u64) -> RecordedEvent,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T>,
    ) -> IoFuture<T> {
        let id = match self.recorder.begin(event) {
            Ok(id) => id,
            Err((kind, detail)) => return ready(Err(request.error(kind, || Filter::spec(self), detail))),
        };
        let (recorder, operation) = (self.recorder.clone(), operation(&self.inner));
        let spec = Filter::spec(self);
        Box::pin(async move {
            let result = operation.await;
            let ended = recorder.lock().push(RecordedEvent::Completed { id, succeeded: result.is_ok() });
            match ended {
                Ok(()) => result,
                Err((kind, detail)) => Err(request.error(kind, || spec, detail)),
            }
        })
    }

    /// Checks a request. Invalid requests are not recorded, because they have no effect.
    fn check(
        &self,
        operation: DeviceOperation,
        offset: u64,
        length: u64,
        context: IoContext,
    ) -> Result<DeviceRequest, Error> {
        let request = DeviceRequest::new(operation, offset, length, context);
        request.check(|| Filter::spec(self), &self.inner.geometry())?;
        Ok(request)
    }
}

impl Filter for RecordFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        match self.recorder.file() {
            Some(path) => format!("record({},file={})", self.inner.spec(), quoted(&path.to_string_lossy())),
            None => format!("record({})", self.inner.spec()),
        }
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let geometry = self.inner.geometry();
        let spec = || Filter::spec(self);
        match DeviceRequest::vectored(DeviceOperation::Write, offset, &buffers, context, spec, &geometry) {
            Ok(request) => {
                let data = buffers.iter().map(|buffer| &**buffer).collect::<Vec<&[u8]>>().concat();
                let event = |id| RecordedEvent::WriteBegun { id, offset, data: Bytes::from(data), fua: flags.fua };
                self.recorded(request, event, move |inner| inner.write_at(offset, buffers, flags, context))
            }
            Err(error) => ready(Err(error)),
        }
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        match self.check(DeviceOperation::Flush, 0, 0, context) {
            Ok(request) => self.recorded(request, |id| RecordedEvent::FlushBegun { id }, |inner| inner.flush(context)),
            Err(error) => ready(Err(error)),
        }
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        match self.check(DeviceOperation::Discard, offset, length, context) {
            Ok(request) => {
                let event = |id| RecordedEvent::DiscardBegun { id, offset, length };
                self.recorded(request, event, |inner| inner.discard(offset, length, context))
            }
            Err(error) => ready(Err(error)),
        }
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        match self.check(DeviceOperation::WriteZeroes, offset, length, context) {
            Ok(request) => {
                let event = |id| RecordedEvent::ZeroesBegun { id, offset, length };
                self.recorded(request, event, |inner| inner.write_zeroes(offset, length, context))
            }
            Err(error) => ready(Err(error)),
        }
    }

    fn zero_quickly(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        match self.check(DeviceOperation::WriteZeroes, offset, length, context) {
            Ok(request) => {
                let event = |id| RecordedEvent::ZeroesBegun { id, offset, length };
                self.recorded(request, event, |inner| inner.zero_quickly(offset, length, context))
            }
            Err(error) => ready(Err(error)),
        }
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        let request = DeviceRequest::new(DeviceOperation::Grow, 0, size_bytes, IoContext::default());
        self.recorded(request, |id| RecordedEvent::GrowBegun { id, size_bytes }, |inner| inner.grow(size_bytes))
    }
}

#[cfg(test)]
mod tests;
