//! One connection to one donor: connecting, and sending the machine's requests.
//!
//! Owns: names of sessions, time limits of connecting, and the translation of requests and answers to NBD
//! (`docs/formats/ram.md`). Promises: each step of connecting ends within [`CONNECT_TIME_MAX`]; a request is sent when
//! [`begin`] returns, and its future ends with the connection at the latest. Leaves to others: the decision when to
//! connect (`owner`), and the meaning of answers (`group`).
//!
//! *Cost*: a write is copied once into the connection's own buffer, because the buffer may outlive the request; a read
//! is not copied.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nectary_block::{BlockDevice, Buffer, DeviceErrorKind, Error, IoContext, IoFuture, WriteFlags};
use nectary_nbd::{ConnectOptions, ExportUrl, NbdDevice, info, list};

use super::planted::{Bug, planted, stops_here};
use crate::device::address::DonorAddress;
use crate::device::foreign::DonorExport;
use crate::donor::{UNIT_BYTES, random};
use crate::donor::name::{ExportName, PAGE_NAME, SessionName};
use crate::donor::page::DonorPage;
use crate::format::{RecordSwap, WINDOW_BYTES, WindowState};
use crate::group::{DonorReply, DonorRequest};

/// The longest time of each step of connecting.
pub const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);
/// The longest time for which a connection without answers is kept after the machine has given it up. The buffers of
/// its requests are freed after this time; nothing else depends on it.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(20);

/// A device on a donor, as the sessions of one client name it.
#[derive(Debug, Clone)]
pub struct SessionTarget {
    pub address: DonorAddress,
    /// The id of the device.
    pub id: String,
    pub client: u64,
    /// Whether the sessions only read, and never become the owner.
    pub only_reads: bool,
    /// Whether the donor may be an NBD server of another make; set when this client has used it.
    pub others: Option<Arc<AtomicBool>>,
}

/// A connection to a donor.
pub struct DonorConnection {
    pub page: DonorPage,
    pub device: Arc<DonorExport>,
}

/// The reason why there is no connection.
#[derive(Debug, Clone)]
pub enum DonorConnectError {
    /// The donor answers, but does not have the device.
    Absent(DonorPage),
    /// The donor answers, but refuses access to the device.
    Refused(String),
    /// Another NBD server answers.
    OtherMake,
    /// No server answers, or not in time.
    Unreachable(String),
    /// The donor has described itself, and then the session did not begin, or was ended.
    Cut(String),
}

impl DonorConnectError {
    /// Returns the reason in words.
    pub fn reason(&self) -> String {
        match self {
            DonorConnectError::Absent(_) => {
                "it has nothing of the device; if it was started again, its part is gone".to_owned()
            }
            DonorConnectError::OtherMake => "another NBD server answers there, not `nectary ram donate`".to_owned(),
            DonorConnectError::Refused(reason)
            | DonorConnectError::Unreachable(reason)
            | DonorConnectError::Cut(reason) => reason.clone(),
        }
    }
}

/// Returns the number by which the machine identifies an incarnation of a donor.
pub fn incarnation(page: &DonorPage) -> u64 {
    page.incarnation as u64
}

async fn step<T>(work: impl Future<Output = Result<T, nectary_nbd::Error>>) -> Result<T, nectary_nbd::Error> {
    let late = |_| {
        let message = format!("it does not answer within {CONNECT_TIME_MAX:?}");
        Err(nectary_nbd::Error::new(nectary_nbd::NbdErrorKind::TimedOut, "", message))
    };
    tokio::time::timeout(CONNECT_TIME_MAX, work).await.unwrap_or_else(late)
}

impl SessionTarget {
    /// Requests the donor's description of itself.
    ///
    /// *Errors*: [`DonorConnectError::OtherMake`], [`DonorConnectError::Unreachable`].
    pub async fn page(&self) -> Result<DonorPage, DonorConnectError> {
        let (url, options) = (self.address.export(PAGE_NAME), ConnectOptions::default());
        match step(info(&url, &options)).await {
            Ok(found) => found.description.as_deref().and_then(DonorPage::parse).ok_or(DonorConnectError::OtherMake),
            Err(error) if error.kind == nectary_nbd::NbdErrorKind::Absent => match step(list(&url, &options)).await {
                // Another server listens at the address.
                Ok(_) => Err(DonorConnectError::OtherMake),
                Err(_) => Err(DonorConnectError::Unreachable(error.message)),
            },
            Err(error) => Err(DonorConnectError::Unreachable(error.message)),
        }
    }

    fn url(&self, page: &DonorPage, epoch: u64, size_bytes: Option<u64>) -> ExportUrl {
        let (client, only_reads) = (self.client, self.only_reads);
        let session = SessionName { incarnation: page.incarnation, client, epoch, has_metadata: true, only_reads };
        let name = ExportName { id: self.id.clone(), size_bytes, session: Some(session) };
        let url = self.address.export(&name.to_string());
        // There is only one connection, so that the session's requests stay in order.
        ExportUrl { connections: Some(1), request_time: Some(url.request_time.unwrap_or(REQUEST_TIME_MAX)), ..url }
    }

    /// Begins a session; this client must not have used `epoch` with this donor before. With a size, the device is made
    /// if it does not exist.
    pub async fn connect(&self, epoch: u64, size_bytes: Option<u64>) -> Result<DonorConnection, DonorConnectError> {
        let page = match (self.page().await, &self.others) {
            (Err(DonorConnectError::OtherMake | DonorConnectError::Unreachable(_)), Some(is_used)) => {
                return self.connect_other(is_used).await;
            }
            (page, _) => page?,
        };
        let url = self.url(&page, epoch, size_bytes);
        let mut options = ConnectOptions::default();
        (options.is_single_session, options.unit_bytes) = (true, Some(UNIT_BYTES));
        match step(NbdDevice::connect(&url, options)).await {
            Ok(device) if device.geometry().size_bytes > WINDOW_BYTES as u64 => {
                Ok(DonorConnection { page, device: Arc::new(DonorExport::own(device)) })
            }
            Ok(_) => Err(DonorConnectError::Refused("its export is too small for a device with redundancy".to_owned())),
            Err(error) => Err(match error.kind {
                nectary_nbd::NbdErrorKind::Absent => DonorConnectError::Absent(page),
                nectary_nbd::NbdErrorKind::Refused => DonorConnectError::Refused(error.message),
                _ => DonorConnectError::Cut(error.message),
            }),
        }
    }
}

impl SessionTarget {
    /// Begins a session with a server of another make, which must not have had one that was used.
    async fn connect_other(&self, is_used: &Arc<AtomicBool>) -> Result<DonorConnection, DonorConnectError> {
        let unreachable = |error: nectary_nbd::Error| DonorConnectError::Unreachable(error.message);
        if is_used.load(Ordering::Relaxed) {
            let why = "it is lost: another NBD server keeps no late write out, so it is used again when the device is opened";
            return Err(DonorConnectError::Unreachable(why.to_owned()));
        }
        let url = ExportUrl { connections: Some(1), ..self.address.url.clone() };
        let mut options = ConnectOptions::default();
        options.is_single_session = true;
        let device = step(NbdDevice::connect(&url, options)).await.map_err(unreachable)?;
        let drawn = random::<8>().map_err(|error| DonorConnectError::Unreachable(error.to_string()))?;
        let other = DonorExport::other(device, &self.id, u64::from_le_bytes(drawn).into(), is_used.clone()).await;
        let (device, page) = other.map_err(DonorConnectError::Refused)?;
        Ok(DonorConnection { page, device: Arc::new(device) })
    }
}

/// The outcome of a request.
pub enum DonorRequestOutcome {
    /// The donor's answer.
    Answered(DonorReply),
    /// The connection is lost, for this reason.
    Lost(String),
}

/// A request in flight.
pub type Pending = Pin<Box<dyn Future<Output = DonorRequestOutcome> + Send>>;

/// Returns the offset of the metadata, which is the number of bytes before them.
pub fn window(device: &DonorExport) -> u64 {
    device.foreign_bytes().unwrap_or_else(|| device.geometry().size_bytes.saturating_sub(WINDOW_BYTES as u64))
}

/// Sends a request; the future waits for the answer. *Cancel safety*: dropping the future does not affect the request.
pub fn begin(device: &Arc<DonorExport>, body: DonorRequest) -> Pending {
    let context = IoContext::default();
    let is_swap = matches!(body, DonorRequest::SwapMetadata { .. });
    let done =
        |work: IoFuture<()>| -> IoFuture<DonorReply> { Box::pin(async { work.await.map(|()| DonorReply::Done) }) };
    let flags = |force: bool| WriteFlags { fua: force };
    let work: IoFuture<DonorReply> = match body {
        DonorRequest::Read { offset, bytes } => {
            let read = device.read_at(offset, vec![Buffer::recycled(bytes as usize)], context);
            Box::pin(async {
                Ok(read.await?.pop().map_or(DonorReply::Failed, |buffer| DonorReply::Data(buffer.into_bytes())))
            })
        }
        DonorRequest::Write { offset, data, force } => {
            let mut buffer = Buffer::recycled(data.len());
            buffer.copy_from_slice(&data);
            let write = device.write_at(offset, vec![buffer], flags(force), context);
            Box::pin(async { write.await.map(|_| DonorReply::Done) })
        }
        // A donor has no cache, so a completed write needs no flush.
        DonorRequest::WriteZeroes { offset, bytes, .. } => done(device.write_zeroes(offset, bytes, context)),
        DonorRequest::Trim { offset, bytes } => done(device.discard(offset, bytes, context)),
        DonorRequest::ReadMetadata if device.is_foreign() => {
            let device = device.clone();
            Box::pin(async move { device.read_record().await })
        }
        DonorRequest::SwapMetadata { expected, record } if device.is_foreign() && !stops_here() => {
            let device = device.clone();
            Box::pin(async move { device.swap_record(expected, &record).await })
        }
        DonorRequest::ReadMetadata => {
            let read = device.read_at(window(device), vec![Buffer::recycled(WINDOW_BYTES)], context);
            Box::pin(async {
                let buffers = read.await?;
                let state = buffers.first().map(|window| WindowState::decode(window));
                Ok(match state {
                    Some(Ok(WindowState { is_owned, record, .. })) => {
                        DonorReply::Metadata { area: record.into(), is_owned }
                    }
                    _ => DonorReply::Failed,
                })
            })
        }
        DonorRequest::SwapMetadata { .. } if stops_here() => return Box::pin(std::future::pending()),
        DonorRequest::SwapMetadata { expected, record } => {
            let buffer = Buffer::copy_of(&RecordSwap { expected, record: &record }.encode());
            let write = device.write_at(window(device), vec![buffer], flags(true), context);
            Box::pin(async { write.await.map(|_| DonorReply::Done) })
        }
    };
    let device = device.clone();
    Box::pin(async move {
        match work.await {
            Ok(reply) => DonorRequestOutcome::Answered(reply),
            Err(error) => match device.failure() {
                Some(_) if planted(Bug::LostWriteAnswered) && !is_swap => {
                    DonorRequestOutcome::Answered(DonorReply::Done)
                }
                Some(reason) => DonorRequestOutcome::Lost(reason),
                None => DonorRequestOutcome::Answered(refused(&error, is_swap)),
            },
        }
    })
}

/// Translates an error of the donor to an answer. The NBD client reports the donor's EPERM as `Unsupported`.
fn refused(error: &Error, is_swap: bool) -> DonorReply {
    match error.kind {
        DeviceErrorKind::Unsupported if is_swap => DonorReply::SwapRefused,
        DeviceErrorKind::Unsupported => DonorReply::NotOwner,
        _ => DonorReply::Failed,
    }
}
