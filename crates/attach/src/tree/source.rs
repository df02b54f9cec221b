//! A file of the source directory, as a source of the cache.
//!
//! Owns: its reader, its writer, and what is known of its bytes (`sight`). Reader and writer are opened when they are
//! needed, and are closed with the last open file of the node, or when the table of descriptors is full. Reads bypass
//! the kernel's page cache if the file system allows it, so that nothing is cached twice. Writes use the page cache,
//! because they may begin at any offset.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use nectary_block::{BUFFER_ALIGNMENT, Buffer, DeviceOperation, Error, IoContext, IoFuture, WriteFlags};
use nectary_buffer::{ByteSource, FileId};
use nectary_fuse::Errno;

use super::descriptors::DescriptorTicket;
use super::nodes::{TreeNode, TreeNodes};
use super::sight::{FileChange, SourceState};
use super::sys::{self, Stat};

/// A file in the cache.
pub struct CachedFile {
    /// Its number in the cache.
    pub id: FileId,
    /// The file.
    pub source: Arc<FileSource>,
}

/// A file of the source directory.
pub struct FileSource {
    /// The number of the node.
    number: u64,
    nodes: Weak<TreeNodes>,
    node: Weak<TreeNode>,
    reader: DescriptorTicket,
    writer: DescriptorTicket,
    /// Its number in the cache, once it has one.
    id: OnceLock<FileId>,
    /// What is known of the file's size and times.
    pub sight: SourceState,
    /// Whether the file was changed through this mount since it was last made durable.
    is_unsynced: AtomicBool,
    /// Whether the kernel has forgotten the file. Flushes then do nothing, because no program requests them.
    is_retired: AtomicBool,
}

fn stale() -> Errno {
    Errno::new(libc::ESTALE)
}

fn of_errno(error: Errno) -> io::Error {
    io::Error::from_raw_os_error(error.number())
}

impl FileSource {
    /// Makes the source of a node's file; opens the file for reading, so that an error is an error of `open`.
    pub fn open(nodes: &Arc<TreeNodes>, node: &Arc<TreeNode>) -> Result<FileSource, Errno> {
        let source = FileSource {
            number: node.number,
            nodes: Arc::downgrade(nodes),
            node: Arc::downgrade(node),
            reader: DescriptorTicket::default(),
            writer: DescriptorTicket::default(),
            id: OnceLock::new(),
            sight: SourceState::new(nodes.is_exclusive),
            is_unsynced: AtomicBool::new(false),
            is_retired: AtomicBool::new(false),
        };
        source.sight.begin(&source.stat()?);
        source.reader()?;
        Ok(source)
    }

    /// Stores the file's number in the cache.
    pub fn cached_as(&self, id: FileId) {
        let _ = self.id.set(id);
    }

    /// The current attributes of the file.
    fn stat(&self) -> Result<Stat, Errno> {
        let (nodes, node) = self.owners()?;
        sys::stat(&*nodes.descriptor(&node)?)
    }

    fn name(&self) -> String {
        format!("file {} of the tree", self.number)
    }

    fn owners(&self) -> Result<(Arc<TreeNodes>, Arc<TreeNode>), Errno> {
        Ok((self.nodes.upgrade().ok_or(stale())?, self.node.upgrade().ok_or(stale())?))
    }

    fn opened(
        &self,
        ticket: &DescriptorTicket,
        open: impl Fn(&File) -> Result<File, Errno>,
    ) -> Result<Arc<File>, Errno> {
        let (nodes, node) = self.owners()?;
        if let Some(file) = nodes.descriptors.get(ticket) {
            return Ok(file);
        }
        let descriptor = nodes.descriptor(&node)?;
        let file = Arc::new(nodes.opening(|| open(&descriptor))?);
        nodes.descriptors.put(ticket, file.clone());
        Ok(file)
    }

    /// The file, open for reading without the page cache if the file system allows it.
    fn reader(&self) -> Result<Arc<File>, Errno> {
        self.opened(&self.reader, |node| match sys::open(node, libc::O_RDONLY | libc::O_DIRECT) {
            Err(error) if error.number() == libc::EINVAL => sys::open(node, libc::O_RDONLY),
            opened => opened,
        })
    }

    /// The file, open for writing.
    pub fn writer(&self) -> Result<Arc<File>, Errno> {
        self.opened(&self.writer, |node| sys::open(node, libc::O_RDWR))
    }

    /// Closes the reader and the writer; they are opened again when they are needed.
    pub fn close(&self, nodes: &TreeNodes) {
        nodes.descriptors.close(&self.reader);
        nodes.descriptors.close(&self.writer);
    }

    /// Marks that the cache is about to remove the file, and closes the file.
    pub fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
        if let Some(nodes) = self.nodes.upgrade() {
            self.close(&nodes);
        }
    }

    /// Makes old bytes of the file leave the cache.
    fn invalidate(&self, offset: u64, length: u64) {
        if let (Some(nodes), Some(id)) = (self.nodes.upgrade(), self.id.get()) {
            nodes.cache.invalidate(*id, offset, length);
        }
    }

    /// Examines the file; if others have changed it, its bytes in memory are dropped. `found` are attributes that were
    /// read before; the current ones are returned.
    pub fn look(&self, found: Option<&Stat>) -> Result<Stat, Errno> {
        self.sight.look(found, || self.stat(), |offset, length| self.invalidate(offset, length))
    }

    /// Begins a change through this mount; [`end_change`](Self::end_change) must follow.
    fn begin_change(&self) {
        self.is_unsynced.store(true, Ordering::Release);
        self.sight.begin_change(|| self.stat(), |offset, length| self.invalidate(offset, length));
    }

    fn end_change(&self, change: FileChange) {
        // A flush that began before the end does not count.
        self.is_unsynced.store(true, Ordering::Release);
        self.sight.end_change(change, || self.stat(), |offset, length| self.invalidate(offset, length));
    }

    /// Whether a flush has something to do: a program may have the file open and request it, or this mount has changed
    /// the file.
    fn needs_sync(&self) -> bool {
        let is_open = || self.node.upgrade().is_some_and(|node| node.is_open());
        !self.is_retired.load(Ordering::Acquire) && (self.is_unsynced.load(Ordering::Acquire) || is_open())
    }

    /// Makes the changes durable.
    fn sync(&self) -> io::Result<()> {
        self.is_unsynced.store(false, Ordering::Release);
        let writer = self.nodes.upgrade().and_then(|nodes| nodes.descriptors.get(&self.writer));
        let file = writer.map_or_else(|| self.reader().map_err(of_errno), Ok);
        let synced = file.and_then(|file| file.sync_all());
        if synced.is_err() {
            self.is_unsynced.store(true, Ordering::Release);
        }
        synced
    }

    /// Fills the buffers from the file; bytes beyond its end become zeroes.
    fn fill(&self, offset: u64, buffers: &mut [Buffer]) -> io::Result<()> {
        let reader = self.reader().map_err(of_errno)?;
        let mut offset = offset;
        for buffer in buffers {
            let wanted = buffer.len();
            // Direct I/O needs whole units; the buffer's capacity has room for them.
            buffer.set_len(wanted.next_multiple_of(BUFFER_ALIGNMENT).min(buffer.capacity()));
            let mut read = 0;
            while read < wanted {
                match reader.read_at(&mut buffer[read..], offset + read as u64) {
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

    fn store(&self, offset: u64, buffers: &[Buffer]) -> io::Result<u64> {
        let writer = self.writer().map_err(of_errno)?;
        let mut offset = offset;
        for buffer in buffers {
            writer.write_all_at(buffer, offset)?;
            offset += buffer.len() as u64;
        }
        Ok(offset)
    }

    fn zero(&self, offset: u64, length: u64) -> io::Result<u64> {
        const PIECE_BYTES: usize = 1 << 20;
        let zeroes = Buffer::zeroed(PIECE_BYTES.min(length as usize));
        let (mut offset, mut left) = (offset, length);
        let writer = self.writer().map_err(of_errno)?;
        while left > 0 {
            let piece = left.min(zeroes.len() as u64) as usize;
            writer.write_all_at(&zeroes[..piece], offset)?;
            (offset, left) = (offset + piece as u64, left - piece as u64);
        }
        Ok(offset)
    }

    /// Does a change of bytes that goes through the cache; `act` returns the offset of its end.
    fn written(&self, act: impl FnOnce(&FileSource) -> io::Result<u64>) -> io::Result<()> {
        self.begin_change();
        let end = act(self);
        self.end_change(end.as_ref().map_or(FileChange::Failed, |end| FileChange::Written(*end)));
        end.map(drop)
    }
}

/// A change of a file through this mount that does not go through the cache. It ends when the value is dropped.
pub struct OwnChange {
    file: Arc<CachedFile>,
    change: FileChange,
}

impl OwnChange {
    /// Begins a change of a node; `None` if its file is not in the cache. Only attributes are about to change, unless
    /// [`bytes`](Self::bytes) says more.
    pub fn of(node: &TreeNode) -> Option<OwnChange> {
        let file = node.file()?;
        file.source.begin_change();
        Some(OwnChange { file, change: FileChange::Attributes })
    }

    /// Says that bytes of a range change, or the size.
    pub fn bytes(&mut self, offset: u64, length: u64) {
        self.change = FileChange::Bytes(offset, length);
    }
}

impl Drop for OwnChange {
    fn drop(&mut self) {
        self.file.source.end_change(self.change);
    }
}

/// Does blocking work for a file on one of the runtime's threads.
fn blocking<T: Send + 'static>(
    source: Arc<FileSource>,
    operation: DeviceOperation,
    work: impl FnOnce(&FileSource) -> io::Result<T> + Send + 'static,
) -> IoFuture<T> {
    let task = tokio::task::spawn_blocking(move || {
        work(&source).map_err(|error| Error::from_os(&error, &source.name(), operation))
    });
    Box::pin(async move {
        match task.await {
            Ok(result) => result,
            Err(ended) => Err(Error::from_os(&io::Error::other(ended), "a file below the tree", operation)),
        }
    })
}

/// A file as the cache's source.
pub struct FileSourceHandle(pub Arc<FileSource>);

impl ByteSource for FileSourceHandle {
    fn name(&self) -> String {
        self.0.name()
    }

    fn size_bytes(&self) -> u64 {
        self.0.sight.size()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, _context: IoContext) -> IoFuture<Vec<Buffer>> {
        blocking(self.0.clone(), DeviceOperation::Read, move |source| {
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
        _context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        blocking(self.0.clone(), DeviceOperation::Write, move |source| {
            source.written(|source| source.store(offset, &buffers))?;
            Ok(buffers)
        })
    }

    fn flush(&self, _context: IoContext) -> IoFuture<()> {
        if !self.0.needs_sync() {
            return Box::pin(std::future::ready(Ok(())));
        }
        blocking(self.0.clone(), DeviceOperation::Flush, FileSource::sync)
    }

    fn discard(&self, _offset: u64, _length: u64, _context: IoContext) -> IoFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write_zeroes(&self, offset: u64, length: u64, _context: IoContext) -> IoFuture<()> {
        blocking(self.0.clone(), DeviceOperation::Write, move |source| {
            source.written(|source| source.zero(offset, length))
        })
    }
}

/// The kernel's error number for a failure of the cache.
pub fn errno(error: &Error) -> Errno {
    crate::error::errno(error.kind)
}
