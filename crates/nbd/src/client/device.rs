//! An export of any NBD server as a device.
//!
//! Owns: the connections of the device, its geometry, and the commands of each operation. If the server allows several
//! connections (`multi-conn`), operations use them in turn. A read or write that fits one command begins at the call;
//! all other operations begin when they are awaited.
//!
//! # When a connection is lost
//! The device reconnects in the background. Requests wait for it, at most for `patience` since the last connection has
//! ended, and reads in flight are sent again. If there were writes in flight, or answered writes that were not flushed
//! yet, the server may have lost them (`journal`). The device then refuses all writes and flushes
//! ([`ErrorKind::Latched`]) until it is opened again. Reads continue.
//!
//! # When a server lacks a feature
//! Without FLUSH, a flush does nothing, and `flush_survives` equals `write_survives`. Without FUA, a forced write is
//! followed by a flush. Without TRIM, a discard does nothing. Without WRITE_ZEROES, zeroes are written as data. Without
//! FAST_ZERO, `zero_quickly` always fails. Without `base:allocation`, all blocks count as mapped.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nectary_block::{
    BlockDevice, Buffer, DeviceCounters, DeviceErrorKind, DeviceExtent, DeviceGeometry, DeviceOperation, DeviceRequest,
    Error, IoContext, IoFuture, SurvivalLevel, WriteFlags,
};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::connect::ConnectOptions;
use super::connection::ClientCommand;
use super::handshake::ClientAgreement;
use super::journal::WriteJournal;
use super::operations::{allocation, flush, long_read, long_write, quick_bytes, ranges, zeroes};
use super::pool::{ConnectionSlot, NbdDeviceState, ServerPresence, connect, is_same_export, keep};
use crate::limits::{CLIENT_CONNECTIONS, PATIENCE, PAYLOAD_BYTES_MAX, REQUEST_TIME};
use crate::url::ExportUrl;
use crate::wire::command_flag::{FAST_ZERO, FUA};
use crate::wire::{flag, request};

/// The preferred length of a request. Longer requests are not faster per byte. *Units*: bytes.
const PREFERRED_BYTES: u32 = 1 << 20;
/// The time that each connection after the first one may take: this, or more if the first one was slow.
const FURTHER_TIME: Duration = Duration::from_secs(1);
/// The smallest block, the preferred block and the largest payload that are assumed if the server states none. The next
/// two constants are the limits of a device's block size. *Units*: bytes.
const DEFAULT_SIZES: (u32, u32, u32) = (1, 4096, PAYLOAD_BYTES_MAX);
const BLOCK_BYTES_MIN: u32 = 512;
const BLOCK_BYTES_MAX: u32 = 4096;

/// A device whose data are on an NBD server.
pub struct NbdDevice {
    inner: Arc<NbdDeviceState>,
    /// The task that replaces connections; `None` for a single session.
    keeper: Option<AbortHandle>,
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        if let Some(keeper) = &self.keeper {
            keeper.abort();
        }
    }
}

impl NbdDevice {
    /// Connects to an export. The connections belong to the tokio runtime of the caller.
    ///
    /// *Errors*: the errors of connecting, and [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the
    /// server's blocks are larger than 4096 bytes.
    pub async fn connect(url: &ExportUrl, options: ConnectOptions) -> Result<NbdDevice, crate::Error> {
        let request_time = url.request_time.unwrap_or(REQUEST_TIME);
        let (journal, ended) = (WriteJournal::default(), Arc::new(Notify::new()));
        let began = Instant::now();
        let (first, agreed) = connect(url, &options, &journal, request_time, &ended).await?;
        let further_time = FURTHER_TIME.max(4 * began.elapsed());
        let (geometry, exact_bytes, payload_bytes_max) = geometry(url, &agreed, &options)?;
        let sector_bytes = agreed.block_sizes.unwrap_or(DEFAULT_SIZES).0.max(BLOCK_BYTES_MIN);
        let mut connections = vec![first];
        let wanted =
            if agreed.flags & flag::CAN_MULTI_CONN == 0 { 1 } else { url.connections.unwrap_or(CLIENT_CONNECTIONS) };
        while connections.len() < wanted as usize {
            // A server may allow fewer connections than the device could use, and leave the others without an answer.
            let next = connect(url, &options, &journal, request_time, &ended);
            let Ok(Ok((next, found))) = tokio::time::timeout(further_time, next).await else { break };
            // The server may have been replaced since the first connection.
            if !is_same_export(&agreed, exact_bytes, &found) {
                break;
            }
            connections.push(next);
        }
        let inner = NbdDeviceState {
            url: url.clone(),
            spec: url.spec(),
            options,
            agreed,
            geometry,
            exact_bytes,
            sector_bytes,
            payload_bytes_max,
            request_time,
            patience: url.patience.unwrap_or(PATIENCE),
            slots: connections.into_iter().map(ConnectionSlot::new).collect(),
            next: AtomicUsize::new(0),
            journal,
            presence: watch::Sender::new(ServerPresence::Here),
            ended,
            requests: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
        };
        let inner = Arc::new(inner);
        let is_kept = !inner.options.is_single_session;
        let keeper = is_kept.then(|| tokio::spawn(keep(Arc::downgrade(&inner), inner.ended.clone())).abort_handle());
        Ok(NbdDevice { inner, keeper })
    }

    /// The reason why a connection of the device has ended; `None` if all connections work. With
    /// [`ConnectOptions::is_single_session`], no request succeeds after a connection has ended.
    pub fn failure(&self) -> Option<String> {
        self.inner.failure().map(|failure| failure.reason.to_string())
    }

    /// The server's description of the export, for people.
    pub fn description(&self) -> Option<&str> {
        self.inner.agreed.description.as_deref()
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.inner.slots.len()
    }
}

/// The geometry that follows from the server's answers, the number of bytes without the padding of the last block, and
/// the largest payload of one request.
fn geometry(
    url: &ExportUrl,
    agreed: &ClientAgreement,
    options: &ConnectOptions,
) -> Result<(DeviceGeometry, u64, u64), crate::Error> {
    let unsupported = |message: String| crate::Error::new(crate::NbdErrorKind::Unsupported, url.to_string(), message);
    let (minimum, preferred, payload) = agreed.block_sizes.unwrap_or(DEFAULT_SIZES);
    if minimum > BLOCK_BYTES_MAX {
        return Err(unsupported(format!(
            "the server's blocks have {minimum} bytes, at most {BLOCK_BYTES_MAX} are taken"
        )));
    }
    if let Some(unit) = options.unit_bytes.filter(|unit| *unit < minimum || !unit.is_power_of_two()) {
        return Err(unsupported(format!("the server's blocks have {minimum} bytes, {unit} are needed")));
    }
    // The preferred size is no unit: partition tables count in the smallest one, or in sectors of 512 bytes.
    let block = options.unit_bytes.unwrap_or(minimum.max(BLOCK_BYTES_MIN));
    let whole = |bytes: u64, unit: u32| bytes / u64::from(unit) * u64::from(unit);
    // What does not fill one of the server's smallest blocks cannot be accessed.
    let (exact_bytes, size_bytes) = match options.pads_tail {
        true => {
            let exact_bytes = whole(agreed.size_bytes, minimum);
            (exact_bytes, exact_bytes.next_multiple_of(u64::from(block)))
        }
        false => (whole(agreed.size_bytes, block), whole(agreed.size_bytes, block)),
    };
    let payload = payload.min(PAYLOAD_BYTES_MAX) / block * block;
    if payload == 0 {
        return Err(unsupported("the server takes less than a block at once".to_owned()));
    }
    let has_flush = agreed.flags & flag::SEND_FLUSH != 0;
    let preferred = payload.min(PREFERRED_BYTES.max(preferred));
    let geometry = DeviceGeometry {
        size_bytes,
        block_bytes: block,
        atomic_bytes: block.min(BLOCK_BYTES_MIN),
        read_bytes_preferred: preferred,
        write_bytes_preferred: preferred,
        write_survives: SurvivalLevel::Process,
        flush_survives: if has_flush { SurvivalLevel::Power } else { SurvivalLevel::Process },
    };
    Ok((geometry, exact_bytes, u64::from(payload)))
}

/// Waits for `work` until the request's deadline. Commands that were sent before the deadline continue after it.
fn within<T: Send + 'static>(
    inner: &Arc<NbdDeviceState>,
    request: DeviceRequest,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> IoFuture<T> {
    let Some(deadline) = request.deadline else { return Box::pin(work) };
    let inner = inner.clone();
    Box::pin(async move {
        match tokio::time::timeout_at(deadline.into(), work).await {
            Ok(result) => result,
            Err(_) => {
                Err(inner.error(&request, DeviceErrorKind::TimedOut, "the deadline passed before the server answered"))
            }
        }
    })
}

fn refused<T: Send + 'static>(error: Error) -> IoFuture<T> {
    Box::pin(std::future::ready(Err(error)))
}

impl BlockDevice for NbdDevice {
    fn spec(&self) -> String {
        self.inner.spec.clone()
    }

    fn geometry(&self) -> DeviceGeometry {
        self.inner.geometry
    }

    fn exact_bytes(&self) -> u64 {
        self.inner.exact_bytes
    }

    fn sector_bytes(&self) -> u32 {
        self.inner.sector_bytes
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let inner = &self.inner;
        let checked =
            DeviceRequest::vectored(DeviceOperation::Read, offset, &buffers, context, || self.spec(), &inner.geometry);
        let request = match checked {
            Ok(request) if request.length == 0 => return Box::pin(std::future::ready(Ok(buffers))),
            Ok(request) => request,
            Err(error) => return refused(error),
        };
        if !inner.is_one_command(&request) {
            return within(inner, request, long_read(inner.clone(), request, buffers));
        }
        let length = request.length;
        let sending =
            inner.send(ClientCommand { flags: 0, command: request::READ, offset, length, buffers, write: None });
        let of = inner.clone();
        within(inner, request, async move { Ok(of.outcome(&request, sending.end(&of).await)?.1) })
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let inner = &self.inner;
        let checked =
            DeviceRequest::vectored(DeviceOperation::Write, offset, &buffers, context, || self.spec(), &inner.geometry);
        let request = match checked {
            Ok(request) if request.length == 0 => return Box::pin(std::future::ready(Ok(buffers))),
            Ok(request) => DeviceRequest { fua: flags.fua, ..request },
            Err(error) => return refused(error),
        };
        if !inner.is_one_command(&request) {
            return within(inner, request, long_write(inner.clone(), request, buffers));
        }
        let fua = flags.fua && inner.has(flag::SEND_FUA);
        if let Err(error) = inner.check_writable(&request) {
            return refused(error);
        }
        let (flags, length) = (if fua { FUA } else { 0 }, request.length);
        let sending =
            inner.send(ClientCommand { flags, command: request::WRITE, offset, length, buffers, write: Some(fua) });
        let of = inner.clone();
        within(inner, request, async move {
            let (_, buffers) = of.outcome(&request, sending.end(&of).await)?;
            if request.fua && !fua {
                flush(&of, &request).await?;
            }
            Ok(buffers)
        })
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        let request = DeviceRequest::new(DeviceOperation::Flush, 0, 0, context);
        if let Err(error) = request.check(|| self.spec(), &self.inner.geometry) {
            return refused(error);
        }
        let inner = self.inner.clone();
        within(&self.inner, request, async move { flush(&inner, &request).await })
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.range(DeviceOperation::Discard, offset, length, context, flag::SEND_TRIM, request::TRIM)
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.range(
            DeviceOperation::WriteZeroes,
            offset,
            length,
            context,
            flag::SEND_WRITE_ZEROES,
            request::WRITE_ZEROES,
        )
    }

    fn zero_quickly(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        let request = DeviceRequest::new(DeviceOperation::WriteZeroes, offset, length, context);
        if let Err(error) = request.check(|| self.spec(), &self.inner.geometry) {
            return refused(error);
        }
        let quick = flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        let reason = match self.inner.agreed.flags & quick == quick {
            _ if length == 0 => None,
            // A quick zeroing uses only one command. If it used several, some could succeed and others fail.
            true if length > quick_bytes(&self.inner) => Some("it is more than is zeroed at once"),
            true => None,
            false => Some("the server has no fast zeroes"),
        };
        if let Some(reason) = reason {
            return refused(self.inner.error(&request, DeviceErrorKind::Unsupported, reason));
        }
        let inner = self.inner.clone();
        within(&self.inner, request, async move { ranges(&inner, &request, request::WRITE_ZEROES, FAST_ZERO).await })
    }

    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        let request = DeviceRequest::new(DeviceOperation::Allocation, offset, length, context);
        if let Err(error) = request.check(|| self.spec(), &self.inner.geometry) {
            return refused(error);
        }
        within(&self.inner, request, allocation(self.inner.clone(), request))
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        let DeviceGeometry { size_bytes: now, block_bytes, .. } = self.inner.geometry;
        let request = DeviceRequest::new(DeviceOperation::Grow, 0, size_bytes, IoContext::default());
        if size_bytes == now {
            return Box::pin(std::future::ready(Ok(())));
        }
        let (kind, detail) = match size_bytes < now || !size_bytes.is_multiple_of(u64::from(block_bytes)) {
            true => (DeviceErrorKind::Invalid, format!("it has {now} bytes, grows only, by blocks of {block_bytes}")),
            false => (
                DeviceErrorKind::Unsupported,
                "a client cannot grow a server's export; open it again when it has grown".to_owned(),
            ),
        };
        refused(self.inner.error(&request, kind, &detail))
    }

    /// The server need not be told: it notices the end of the connections.
    fn close(&self) -> IoFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn figures(&self) -> Vec<DeviceCounters> {
        let inner = &self.inner;
        let live = inner.slots.iter().filter(|slot| slot.current().failure().is_none()).count();
        let values = vec![
            ("connections", inner.slots.len() as u64),
            ("connections_live", live as u64),
            ("reconnects", inner.reconnects.load(Ordering::Relaxed)),
            ("requests", inner.requests.load(Ordering::Relaxed)),
            ("latched", u64::from(inner.journal.latched().is_some())),
        ];
        vec![DeviceCounters { device: "nbd", values }]
    }
}

impl NbdDevice {
    /// Begins a discard or a zeroing of a range.
    fn range(
        &self,
        operation: DeviceOperation,
        offset: u64,
        length: u64,
        context: IoContext,
        flag: u16,
        command: u16,
    ) -> IoFuture<()> {
        let request = DeviceRequest::new(operation, offset, length, context);
        if let Err(error) = request.check(|| self.spec(), &self.inner.geometry) {
            return refused(error);
        }
        let inner = self.inner.clone();
        let work = async move {
            if inner.has(flag) {
                return ranges(&inner, &request, command, 0).await;
            }
            match operation {
                DeviceOperation::WriteZeroes => zeroes(&inner, &request).await,
                _ => Ok(()),
            }
        };
        within(&self.inner, request, work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The atomic unit does not grow when the user chooses larger blocks.
    #[test]
    fn atomic_unit_is_server_block() {
        let url = ExportUrl::parse("nbd://localhost/x").unwrap();
        let agreed = ClientAgreement { size_bytes: 1 << 20, ..ClientAgreement::default() };
        for (unit_bytes, block, atomic) in [(None, 512, 512), (Some(4096), 4096, 512), (Some(64), 64, 64)] {
            let options = ConnectOptions { unit_bytes, ..ConnectOptions::default() };
            let found = geometry(&url, &agreed, &options).unwrap().0;
            assert_eq!((found.block_bytes, found.atomic_bytes), (block, atomic));
        }
    }

    #[test]
    fn smallest_block_is_the_sector() {
        let url = ExportUrl::parse("nbd://localhost/x").unwrap();
        for (block_sizes, block, preferred) in [
            (None, 512, 1 << 20),
            (Some((1, 4096, 32 << 20)), 512, 1 << 20),
            (Some((512, 4096, 32 << 20)), 512, 1 << 20),
            (Some((4096, 4096, 32 << 20)), 4096, 1 << 20),
            (Some((512, 8 << 20, 32 << 20)), 512, 8 << 20),
        ] {
            let agreed = ClientAgreement { size_bytes: 1 << 30, block_sizes, ..ClientAgreement::default() };
            let found = geometry(&url, &agreed, &ConnectOptions::default()).unwrap().0;
            assert_eq!((found.block_bytes, found.read_bytes_preferred), (block, preferred), "{block_sizes:?}");
        }
    }

    #[test]
    fn odd_sizes_are_cut_or_padded() {
        let url = ExportUrl::parse("nbd://localhost/x").unwrap();
        for (minimum, size_bytes, exact, padded) in
            [(1, 1500, 1500, 1536), (512, 1500, 1024, 1024), (4, 1503, 1500, 1536), (1, 1536, 1536, 1536)]
        {
            let block_sizes = Some((minimum, 4096, 32 << 20));
            let agreed = ClientAgreement { size_bytes, block_sizes, ..ClientAgreement::default() };
            let found = |pads_tail| {
                let options = ConnectOptions { pads_tail, ..ConnectOptions::default() };
                let (geometry, exact_bytes, _) = geometry(&url, &agreed, &options).unwrap();
                (geometry.size_bytes, exact_bytes)
            };
            let cut = size_bytes / 512 * 512;
            assert_eq!((found(false), found(true)), ((cut, cut), (padded, exact)), "{size_bytes}");
        }
    }
}
