//! A file of the source directory, as a source of the cache.
//!
//! Owns: its descriptors, its size, and its last known state. Reads bypass the kernel's page cache if the file system
//! allows it, so that nothing is cached twice. Writes use the page cache, because they may begin at any offset.
//! Promises: changes by others are noticed when the file is opened, by its size and modification time.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nectary_block::{BUFFER_ALIGNMENT, Buffer, Context, Error, IoFuture, Operation, WriteFlags};
use nectary_buffer::{FileId, Source};
use nectary_fuse::Errno;

use super::sys;

/// A file in the cache.
pub struct CachedFile {
    /// Its number in the cache.
    pub id: FileId,
    /// The file.
    pub source: Arc<FileSource>,
}

/// A file of the source directory.
pub struct FileSource {
    name: String,
    reader: File,
    /// The descriptor for writing, which the first write opens.
    writer: OnceLock<File>,
    size: AtomicU64,
    /// The size and modification time (seconds and nanoseconds) after the last change through this value, or at the
    /// last open.
    seen: Mutex<(u64, i64, i64)>,
    /// Whether the kernel has forgotten the file. Flushes then do nothing, because no program requests them.
    is_retired: AtomicBool,
}

impl FileSource {
    /// Opens a file for reading.
    pub fn open(node: &OwnedFd, name: String) -> Result<FileSource, Errno> {
        let reader = match sys::open(node, libc::O_RDONLY | libc::O_DIRECT) {
            Err(error) if error.number() == libc::EINVAL => sys::open(node, libc::O_RDONLY)?,
            opened => opened?,
        };
        let source = FileSource {
            name,
            reader,
            writer: OnceLock::new(),
            size: AtomicU64::new(0),
            seen: Mutex::new((0, 0, 0)),
            is_retired: AtomicBool::new(false),
        };
        source.look()?;
        Ok(source)
    }

    /// Reads size and modification time, and returns whether they have changed since the last call.
    pub fn look(&self) -> Result<bool, Errno> {
        // The file is examined under the lock, so that the later of two concurrent calls determines the stored size.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stat = sys::stat(&self.reader)?;
        let now = (stat.st_size as u64, stat.st_mtime, stat.st_mtime_nsec);
        self.size.store(now.0, Ordering::Release);
        Ok(std::mem::replace(&mut *seen, now) != now)
    }

    /// The descriptor for writing; the first call opens `node`.
    pub fn writer(&self, node: &OwnedFd) -> Result<&File, Errno> {
        if self.writer.get().is_none() {
            // If two calls race, the second descriptor is closed again.
            let _ = self.writer.set(sys::open(node, libc::O_RDWR)?);
        }
        self.writer.get().ok_or(Errno::new(libc::EIO))
    }

    /// Marks that the cache is about to remove the file.
    pub fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
    }

    /// Makes the written bytes durable.
    fn sync(&self) -> io::Result<()> {
        if self.is_retired.load(Ordering::Acquire) {
            return Ok(());
        }
        self.writer.get().unwrap_or(&self.reader).sync_all()
    }

    /// Fills the buffers from the file; bytes beyond its end become zeroes.
    fn fill(&self, offset: u64, buffers: &mut [Buffer]) -> io::Result<()> {
        let mut offset = offset;
        for buffer in buffers {
            let wanted = buffer.len();
            // Direct I/O needs whole units; the buffer's capacity has room for them.
            buffer.set_len(wanted.next_multiple_of(BUFFER_ALIGNMENT).min(buffer.capacity()));
            let mut read = 0;
            while read < wanted {
                match self.reader.read_at(&mut buffer[read..], offset + read as u64) {
                    Ok(0) => break,
                    Ok(count) => read += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // The file ended inside a unit, so this read had an unaligned offset.
                    Err(error)
                        if error.raw_os_error() == Some(libc::EINVAL) && !read.is_multiple_of(BUFFER_ALIGNMENT) =>
                    {
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
            buffer.set_len(wanted);
            if let Some(rest) = buffer.get_mut(read..) {
                rest.fill(0);
            }
            offset += wanted as u64;
        }
        Ok(())
    }

    fn store(&self, offset: u64, buffers: &[Buffer]) -> io::Result<()> {
        let writer = self.writer.get().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        let mut offset = offset;
        for buffer in buffers {
            writer.write_all_at(buffer, offset)?;
            offset += buffer.len() as u64;
        }
        Ok(())
    }
}

/// Does blocking work for a file on one of the runtime's threads.
fn blocking<T: Send + 'static>(
    source: Arc<FileSource>,
    operation: Operation,
    work: impl FnOnce(&FileSource) -> io::Result<T> + Send + 'static,
) -> IoFuture<T> {
    let task = tokio::task::spawn_blocking(move || {
        work(&source).map_err(|error| Error::from_os(&error, &source.name, operation))
    });
    Box::pin(async move {
        match task.await {
            Ok(result) => result,
            Err(ended) => Err(Error::from_os(&io::Error::other(ended), "a file below the tree", operation)),
        }
    })
}

/// A file as the cache's source.
pub struct Shared(pub Arc<FileSource>);

impl Source for Shared {
    fn name(&self) -> String {
        self.0.name.clone()
    }

    fn size_bytes(&self) -> u64 {
        self.0.size.load(Ordering::Acquire)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, _context: Context) -> IoFuture<Vec<Buffer>> {
        blocking(self.0.clone(), Operation::Read, move |source| {
            let mut buffers = buffers;
            source.fill(offset, &mut buffers)?;
            Ok(buffers)
        })
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        _flags: WriteFlags,
        _context: Context,
    ) -> IoFuture<Vec<Buffer>> {
        blocking(self.0.clone(), Operation::Write, move |source| {
            let stored = source.store(offset, &buffers);
            // Examines the file again, because even a failed write may have changed it.
            let _ = source.look();
            stored.map(|()| buffers)
        })
    }

    fn flush(&self, _context: Context) -> IoFuture<()> {
        blocking(self.0.clone(), Operation::Flush, FileSource::sync)
    }

    fn discard(&self, _offset: u64, _length: u64, _context: Context) -> IoFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write_zeroes(&self, offset: u64, length: u64, _context: Context) -> IoFuture<()> {
        blocking(self.0.clone(), Operation::Write, move |source| {
            const PIECE_BYTES: usize = 1 << 20;
            let zeroes = Buffer::zeroed(PIECE_BYTES.min(length as usize));
            let (mut offset, mut left) = (offset, length);
            let writer = source.writer.get().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
            while left > 0 {
                let piece = left.min(zeroes.len() as u64) as usize;
                writer.write_all_at(&zeroes[..piece], offset)?;
                (offset, left) = (offset + piece as u64, left - piece as u64);
            }
            let _ = source.look();
            Ok(())
        })
    }
}

/// The kernel's error number for a failure of the cache.
pub fn errno(error: &Error) -> Errno {
    crate::error::errno(error.kind)
}
