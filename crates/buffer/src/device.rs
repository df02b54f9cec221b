//! `cache(A,memory=256M,policy=adaptive,block=8K,mode=writethrough)`: a device with a buffer cache in front of it.
//!
//! Owns: parsing the arguments of `cache(…)`, and the device contract on top of the cache's calls. A request belongs to
//! the stream that its caller gives; a request without a stream belongs to the stream of its region of 64 MiB.
//! Promises: those of the device below, except that in write-back mode a completed write survives no failure until a
//! flush, unless the write was forced (FUA). Leaves to others: all work on blocks.

use std::sync::Arc;
use std::time::Duration;

use nectary_block::{
    AccessStream, BlockDevice, Buffer, DeviceCounters, DeviceErrorKind, DeviceExtent, DeviceGeometry, DeviceOperation,
    DeviceRequest, Error, IoContext, IoFuture, SharedDevice, SpecArguments, SurvivalLevel, WriteFlags, exact_size,
    parse_duration, parse_share, parse_size,
};

use crate::cache::BufferCache;
use crate::frame::PinnedBytes;
use crate::names::FileId;
use crate::options::{CacheOptions, READ_BLOCKS_MAX, WriteMode};
use crate::source::{ByteSource, DeviceSource};
use crate::streams::region_stream;
use crate::wait::ready;

/// A device with a cache in front of it; see the comment at the head of this file. Clones share the device and the
/// cache.
#[derive(Clone)]
pub struct CacheDevice {
    cache: BufferCache,
    file: FileId,
    inner: SharedDevice,
    is_shared: bool,
}

/// A source over a device that others may write to, although the device does not report it.
struct SharedSource(DeviceSource);

impl CacheDevice {
    /// Puts a cache in front of a device. `is_shared` says that others may write to the device, even if the device does
    /// not report it.
    ///
    /// *Errors*: invalid options; write-back over a shared device.
    pub fn new(inner: SharedDevice, options: CacheOptions, is_shared: bool) -> Result<CacheDevice, Error> {
        let cache = BufferCache::new(options)?;
        let source = DeviceSource::new(inner.clone());
        let file = match is_shared {
            true => cache.add(Arc::new(SharedSource(source)))?,
            false => cache.add(Arc::new(source))?,
        };
        Ok(CacheDevice { cache, file, inner, is_shared })
    }

    /// The cache, through which the caller reads the counters and changes memory and mode while the cache runs.
    pub fn cache(&self) -> &BufferCache {
        &self.cache
    }

    /// The device's file in the cache.
    pub fn file(&self) -> FileId {
        self.file
    }

    fn check(&self, operation: DeviceOperation, offset: u64, length: u64, context: IoContext) -> Result<(), Error> {
        DeviceRequest::new(operation, offset, length, context).check(|| self.spec(), &self.geometry())
    }

    /// The context of a request, with the stream to which the request belongs.
    fn of_stream(context: IoContext, offset: u64) -> IoContext {
        match context.stream {
            AccessStream(0) => IoContext { stream: region_stream(offset), ..context },
            _ => context,
        }
    }
}

/// Buffers that are filled in order.
struct BufferFiller {
    buffers: Vec<Buffer>,
    index: usize,
    position: usize,
}

impl BufferFiller {
    fn fill(&mut self, pieces: &[PinnedBytes]) {
        for piece in pieces {
            let mut from: &[u8] = piece;
            while let Some(buffer) = self.buffers.get_mut(self.index).filter(|_| !from.is_empty()) {
                let count = (buffer.len() - self.position).min(from.len());
                buffer[self.position..self.position + count].copy_from_slice(&from[..count]);
                from = &from[count..];
                self.position += count;
                if self.position == buffer.len() {
                    (self.index, self.position) = (self.index + 1, 0);
                }
            }
        }
    }
}

impl BlockDevice for CacheDevice {
    fn spec(&self) -> String {
        let (options, default) = (self.cache.options(), CacheOptions::default());
        let mut text = format!(
            "cache({},memory={},policy={},block={},mode={}",
            self.inner.spec(),
            exact_size(options.memory_bytes),
            options.policy,
            exact_size(options.block_bytes.into()),
            options.mode
        );
        if options.dirty_share != default.dirty_share {
            text += &format!(",dirty={}%", options.dirty_share * 100.0);
        }
        if options.dirty_age != default.dirty_age {
            text += &format!(",age={}ms", options.dirty_age.as_millis());
        }
        if options.readahead_bytes != default.readahead_bytes {
            text += &format!(",readahead={}", exact_size(options.readahead_bytes));
        }
        if self.is_shared {
            text += ",shared=yes";
        }
        text + ")"
    }

    fn geometry(&self) -> DeviceGeometry {
        let inner = self.inner.geometry();
        match self.cache.mode() {
            WriteMode::WriteBack => DeviceGeometry { write_survives: SurvivalLevel::Nothing, ..inner },
            WriteMode::WriteThrough | WriteMode::ReadOnly => inner,
        }
    }

    fn exact_bytes(&self) -> u64 {
        self.inner.exact_bytes()
    }

    fn sector_bytes(&self) -> u32 {
        self.inner.sector_bytes()
    }

    fn is_shared(&self) -> bool {
        self.is_shared || self.inner.is_shared()
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let request = match DeviceRequest::vectored(
            DeviceOperation::Read,
            offset,
            &buffers,
            context,
            || self.spec(),
            &self.geometry(),
        ) {
            Ok(request) => request,
            Err(error) => return ready(Err(error)),
        };
        let context = CacheDevice::of_stream(context, offset);
        let mut filling = BufferFiller { buffers, index: 0, position: 0 };
        let window = READ_BLOCKS_MAX as u64 * self.cache.block_bytes() as u64;
        let end = offset + request.length;
        // A window is a whole number of blocks.
        let next = move |at: u64| ((at / window + 1) * window).min(end);
        if next(offset) == end
            && let Some(pieces) = self.cache.try_read(self.file, offset, request.length, context)
        {
            filling.fill(&pieces);
            return ready(Ok(filling.buffers));
        }
        let (cache, file) = (self.cache.clone(), self.file);
        let first = cache.read(file, offset, next(offset) - offset, context);
        Box::pin(async move {
            filling.fill(&first.await?);
            let mut at = next(offset);
            while at < end {
                let pieces = cache.read(file, at, next(at) - at, context).await?;
                filling.fill(&pieces);
                at = next(at);
            }
            Ok(filling.buffers)
        })
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        match DeviceRequest::vectored(
            DeviceOperation::Write,
            offset,
            &buffers,
            context,
            || self.spec(),
            &self.geometry(),
        ) {
            Ok(_) => self.cache.write(self.file, offset, buffers, flags, CacheDevice::of_stream(context, offset)),
            Err(error) => ready(Err(error)),
        }
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        match self.check(DeviceOperation::Flush, 0, 0, context) {
            Ok(()) => self.cache.flush(self.file, context),
            Err(error) => ready(Err(error)),
        }
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        match self.check(DeviceOperation::Discard, offset, length, context) {
            Ok(()) => self.cache.discard(self.file, offset, length, context),
            Err(error) => ready(Err(error)),
        }
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        match self.check(DeviceOperation::WriteZeroes, offset, length, context) {
            Ok(()) => self.cache.write_zeroes(self.file, offset, length, context),
            Err(error) => ready(Err(error)),
        }
    }

    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        if let Err(error) = self.check(DeviceOperation::Allocation, offset, length, context) {
            return ready(Err(error));
        }
        // The device below has no mapping for blocks that are only in memory, so they are written back first.
        let written = self.cache.write_back(self.file, offset, length, context);
        let inner = self.inner.clone();
        Box::pin(async move {
            written.await.map_err(|error| Error { operation: DeviceOperation::Allocation, ..error })?;
            inner.allocation(offset, length, context).await
        })
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        if self.cache.mode() == WriteMode::ReadOnly {
            let detail = "the cache over it is read-only";
            return ready(Err(Error::new(DeviceErrorKind::Unsupported, &self.spec(), DeviceOperation::Grow, detail)));
        }
        self.inner.grow(size_bytes)
    }

    fn close(&self) -> IoFuture<()> {
        self.inner.close()
    }

    fn set_option(&self, name: &str, value: &str) -> IoFuture<()> {
        let cache = self.cache.clone();
        let invalid =
            |detail| ready(Err(Error::new(DeviceErrorKind::Invalid, &self.spec(), DeviceOperation::Open, detail)));
        match name {
            "memory" => match parse_size(value) {
                Ok(memory_bytes) => Box::pin(async move { cache.set_memory(memory_bytes).await }),
                Err(detail) => invalid(detail),
            },
            "mode" => match value.parse() {
                Ok(mode) => Box::pin(async move { cache.set_mode(mode).await }),
                Err(detail) => invalid(detail),
            },
            "policy" => {
                let policy = value.to_owned();
                Box::pin(async move { cache.set_policy(&policy).await })
            }
            _ => self.inner.set_option(name, value),
        }
    }

    fn figures(&self) -> Vec<DeviceCounters> {
        let own = DeviceCounters { device: "cache", values: self.cache.stats().values() };
        std::iter::once(own).chain(self.inner.figures()).collect()
    }
}

impl ByteSource for SharedSource {
    fn name(&self) -> String {
        self.0.name()
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        self.0.read_at(offset, buffers, context)
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        self.0.write_at(offset, buffers, flags, context)
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        self.0.flush(context)
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.0.discard(offset, length, context)
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.0.write_zeroes(offset, length, context)
    }
}

/// Opens the device that a SPEC describes.
pub(crate) async fn open(mut arguments: SpecArguments) -> Result<CacheDevice, Error> {
    let default = CacheOptions::default();
    let options = CacheOptions {
        memory_bytes: arguments.option("memory", parse_size)?.unwrap_or(default.memory_bytes),
        policy: arguments.option("policy", |text| Ok(text.to_owned()))?.unwrap_or(default.policy),
        block_bytes: arguments.option("block", parse_block)?.unwrap_or(default.block_bytes),
        mode: arguments.option("mode", str::parse)?.unwrap_or(default.mode),
        dirty_share: arguments.option("dirty", parse_share)?.unwrap_or(default.dirty_share),
        dirty_age: arguments.option("age", parse_age)?.unwrap_or(default.dirty_age),
        readahead_bytes: arguments.option("readahead", parse_size)?.unwrap_or(default.readahead_bytes),
        #[cfg(feature = "planted")]
        frames: None,
    };
    let is_shared = arguments.option("shared", parse_yes)?.unwrap_or(false);
    options.check().and_then(|()| options.check_machine()).map_err(|error| arguments.invalid(error.detail))?;
    let inner = arguments.device().await?;
    arguments.finish()?;
    CacheDevice::new(inner, options, is_shared)
}

fn parse_block(text: &str) -> Result<u32, String> {
    u32::try_from(parse_size(text)?).map_err(|_| format!("\"{text}\" is no block size; write 4K to 64K"))
}

fn parse_age(text: &str) -> Result<Duration, String> {
    let age = parse_duration(text)?;
    let is_good = (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&age);
    if is_good { Ok(age) } else { Err(format!("\"{text}\" is no age; write one from 1ms to 1h")) }
}

fn parse_yes(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("\"{text}\" is neither yes nor no")),
    }
}
