//! The bookkeeping of one ring: the operation in each slot, the waiting operations, and the ended operations.
//!
//! Owns: the ring, and each operation with its buffers from its acceptance to its completion entry. The engine is safe
//! because memory that the kernel may touch belongs to a slot, and a slot is emptied only by its completion entry. If a
//! ring is closed before an operation has ended, the operation's buffers are leaked instead of freed, because the
//! kernel may still use them.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};
use tokio::sync::oneshot;

use crate::buffer::Buffer;
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::file::sys;
use crate::file::transfer::{DeviceTransfer, TransferProgress};

/// The maximum number of times that an operation is repeated because the kernel reports that it must be repeated.
const RETRIES_MAX: u32 = 100;

/// The result of an operation.
pub(super) type Reply = Result<Vec<Buffer>, Error>;

/// Ended operations whose results are reported after the ring's lock is released.
pub(super) type Ended = Vec<(oneshot::Sender<Reply>, Reply)>;

/// An operation, and the channel to the task that waits for it.
pub(super) struct RingJob {
    transfer: DeviceTransfer,
    vectors: Vec<libc::iovec>,
    reply: oneshot::Sender<Reply>,
    retries: u32,
}

// SAFETY: the vectors point into the heap memory of the job's own buffers, which moves with the job.
unsafe impl Send for RingJob {}

impl RingJob {
    pub fn new(transfer: DeviceTransfer, reply: oneshot::Sender<Reply>) -> RingJob {
        RingJob { transfer, vectors: Vec::new(), reply, retries: 0 }
    }

    pub fn into_transfer(self) -> DeviceTransfer {
        self.transfer
    }

    /// Describes the remaining part of the operation for the kernel.
    fn entry(&mut self) -> squeue::Entry {
        use std::os::fd::AsRawFd;
        let transfer = &self.transfer;
        let fd = types::Fd(transfer.shared.file.as_raw_fd());
        if transfer.operation == DeviceOperation::Flush {
            return opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build();
        }
        let offset = transfer.position();
        let flags = if transfer.fua { libc::RWF_DSYNC } else { 0 };
        self.vectors = sys::vectors(&transfer.buffers, transfer.done as usize);
        let (start, count) = (self.vectors.as_ptr(), self.vectors.len() as u32);
        match (transfer.operation, &self.vectors[..]) {
            (DeviceOperation::Read, [only]) => {
                opcode::Read::new(fd, only.iov_base.cast(), only.iov_len as u32).offset(offset).build()
            }
            (DeviceOperation::Read, _) => opcode::Readv::new(fd, start, count).offset(offset).build(),
            (_, [only]) => opcode::Write::new(fd, only.iov_base.cast_const().cast(), only.iov_len as u32)
                .offset(offset)
                .rw_flags(flags)
                .build(),
            _ => opcode::Writev::new(fd, start, count).offset(offset).rw_flags(flags).build(),
        }
    }
}

/// The answer of a ring to an operation.
pub(super) enum EnqueueResult {
    /// The ring has accepted the operation; the driver must be woken.
    Yes,
    /// Too many operations wait already.
    Full(RingJob),
    /// The ring has been closed.
    Closed(RingJob),
}

/// A ring, its slots and its queue.
pub(super) struct RingCore {
    uring: IoUring,
    slots: Vec<Option<RingJob>>,
    free: Vec<u32>,
    waiting: VecDeque<RingJob>,
    waiting_max: usize,
    completed: Vec<(u64, i32)>,
    closed: bool,
}

impl RingCore {
    /// Makes a ring with `depth` slots; up to `waiting_max` further operations may wait.
    pub fn new(depth: u32, waiting_max: usize) -> io::Result<RingCore> {
        let uring = build(depth)?;
        let mut slots = Vec::new();
        slots.resize_with(depth as usize, || None);
        Ok(RingCore {
            uring,
            slots,
            free: (0..depth).rev().collect(),
            waiting: VecDeque::new(),
            waiting_max,
            completed: Vec::with_capacity(depth as usize),
            closed: false,
        })
    }

    pub fn uring(&self) -> &IoUring {
        &self.uring
    }

    pub fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len() && self.waiting.is_empty()
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Puts an operation into a slot, or into the queue if all slots are in use.
    pub fn accept(&mut self, job: RingJob) -> EnqueueResult {
        if self.closed {
            return EnqueueResult::Closed(job);
        }
        match self.free.pop() {
            Some(slot) => self.place(slot, job),
            None if self.waiting.len() >= self.waiting_max => return EnqueueResult::Full(job),
            None => self.waiting.push_back(job),
        }
        EnqueueResult::Yes
    }

    /// The maximum number of operations that may wait.
    pub fn waiting_max(&self) -> usize {
        self.waiting_max
    }

    /// Submits new operations and collects ended operations, until no operation is left to submit or collect.
    ///
    /// *Returns* whether the kernel was too busy to accept all operations; the caller must then call this again.
    pub fn turn(&mut self, ended: &mut Ended) -> bool {
        loop {
            self.reap(ended);
            match self.submit() {
                Ok(true) => {}
                Ok(false) => return true,
                Err(error) => {
                    self.abandon(&format!("io_uring refused to submit: {error}"), ended);
                    return false;
                }
            }
            if self.uring.completion().is_empty() {
                return false;
            }
        }
    }

    /// Closes the ring: waits up to `patience` for the operations that the kernel has, and leaks the buffers of
    /// operations that have not ended by then.
    pub fn close(&mut self, patience: Duration, ended: &mut Ended) {
        self.closed = true;
        for job in self.waiting.drain(..) {
            let error =
                job.transfer.error(DeviceErrorKind::Io, "the runtime ended before the operation began".to_owned());
            ended.push((job.reply, Err(error)));
        }
        let deadline = Instant::now() + patience;
        self.reap(ended);
        while self.free.len() < self.slots.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let time = types::Timespec::new().sec(left.as_secs()).nsec(left.subsec_nanos());
            let arguments = types::SubmitArgs::new().timespec(&time);
            match self.uring.submitter().submit_with_args(1, &arguments) {
                Err(error) if !is_passing(&error) && error.raw_os_error() != Some(libc::ETIME) => break,
                _ => self.reap(ended),
            }
        }
        self.abandon("the runtime ended before the device answered", ended);
    }

    fn place(&mut self, slot: u32, mut job: RingJob) {
        let entry = job.entry().user_data(u64::from(slot));
        self.slots[slot as usize] = Some(job);
        // SAFETY: all memory that the entry points to belongs to the job, which stays in its slot until the completion
        // entry of this submission has been seen, or is leaked.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        assert!(pushed.is_ok(), "there are as many submission entries as slots");
    }

    /// Submits new operations to the kernel. *Returns* `false` if the kernel is too busy to accept all of them now.
    fn submit(&mut self) -> io::Result<bool> {
        while !self.uring.submission().is_empty() {
            match self.uring.submit() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_passing(&error) => return Ok(false),
                Err(error) => return Err(error),
                Ok(0) => return Ok(false),
                Ok(_) => {}
            }
        }
        Ok(true)
    }

    fn reap(&mut self, ended: &mut Ended) {
        let mut completed = std::mem::take(&mut self.completed);
        completed.extend(self.uring.completion().map(|entry| (entry.user_data(), entry.result())));
        for (slot, result) in completed.drain(..) {
            self.complete(slot as u32, result, ended);
        }
        self.completed = completed;
        while let Some(slot) = self.free.pop() {
            let Some(job) = self.waiting.pop_front() else {
                self.free.push(slot);
                break;
            };
            match job.reply.is_closed() {
                // The caller no longer waits for the operation, and the operation has not begun, so it is dropped.
                true => self.free.push(slot),
                false => self.place(slot, job),
            }
        }
    }

    /// Handles a completion entry: the operation has ended, or continues in the same slot.
    fn complete(&mut self, slot: u32, result: i32, ended: &mut Ended) {
        let Some(mut job) = self.slots.get_mut(slot as usize).and_then(Option::take) else { return };
        let result = match u64::try_from(result) {
            Ok(_) if job.transfer.operation == DeviceOperation::Flush => Ok(()),
            Ok(moved) => match job.transfer.advance(moved) {
                Ok(TransferProgress::Ended) => Ok(()),
                Ok(TransferProgress::More) => return self.place(slot, job),
                Err(error) => Err(error),
            },
            Err(_) => match -result {
                libc::EAGAIN | libc::EINTR | libc::ECANCELED if job.retries < RETRIES_MAX => {
                    job.retries += 1;
                    return self.place(slot, job);
                }
                number => Err(job.transfer.os_error(&io::Error::from_raw_os_error(number))),
            },
        };
        self.free.push(slot);
        ended.push((job.reply, job.transfer.end(result)));
    }

    /// Fails all operations and closes the ring. Memory that the kernel may still use is leaked.
    fn abandon(&mut self, why: &str, ended: &mut Ended) {
        self.closed = true;
        for slot in &mut self.slots {
            let Some(mut job) = slot.take() else { continue };
            std::mem::forget(std::mem::take(&mut job.transfer.buffers));
            std::mem::forget(std::mem::take(&mut job.vectors));
            let error = job.transfer.error(DeviceErrorKind::Io, why.to_owned());
            ended.push((job.reply, job.transfer.end(Err(error))));
        }
        for job in self.waiting.drain(..) {
            ended.push((job.reply, Err(job.transfer.error(DeviceErrorKind::Io, why.to_owned()))));
        }
    }
}

/// Builds a ring, with the options that avoid interrupts if the kernel supports them.
fn build(depth: u32) -> io::Result<IoUring> {
    let uring = match IoUring::builder().setup_coop_taskrun().setup_submit_all().build(depth) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::builder().build(depth)?,
        built => built?,
    };
    if !uring.params().is_feature_ext_arg() || !uring.params().is_feature_nodrop() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring is too old"));
    }
    Ok(uring)
}

/// Whether an error of the call that submits operations is temporary.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EAGAIN | libc::EINTR))
}
