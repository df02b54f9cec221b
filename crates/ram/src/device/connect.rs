//! Connecting: from a donor's address to a session with it.
//!
//! Owns: distinguishing a Nectary donor from another NBD server, the names of sessions, and reading and writing labels.
//! Promises: every step has a time limit. The caller gets a session only if the donor has the incarnation that the
//! caller knows, and still has the label that the caller wrote.

use std::future::Future;
use std::time::Duration;

use nectary_block::{BlockDevice, Buffer, IoContext, SurvivalLevel, WriteFlags};
use nectary_nbd::{ConnectOptions, ExportUrl, NbdDevice, NbdErrorKind, info};

use super::address::DonorAddress;
use super::label::{self, DonorLabel, LABEL_AREA_BYTES, LABEL_BYTES, LabelContent};
use crate::donor::name::{ExportName, PAGE_NAME, SessionName};
use crate::donor::page::DonorPage;

/// The time limit of connecting to a donor, and of each reading and writing of its label.
pub(super) const STEP_TIME_MAX: Duration = Duration::from_secs(5);
/// A connection without an answer is kept for this much longer than the limit of a request.
const REQUEST_TIME_SLACK: Duration = Duration::from_secs(5);

/// A device on a donor, as the sessions of one client name it.
#[derive(Debug, Clone)]
pub(super) struct LinkTarget {
    pub address: DonorAddress,
    pub id: String,
    pub client: u64,
    /// The incarnation of a Nectary donor; `None` for another NBD server, or if nothing answers.
    pub incarnation: Option<u128>,
}

/// The kind of server at an address.
pub(super) enum ServerKind {
    /// A Nectary donor.
    Donor(DonorPage),
    /// Another NBD server, or none: only connecting shows which.
    Other,
}

/// A session, and the label that was read on it.
pub(super) struct LabelledSession {
    pub device: NbdDevice,
    pub found: LabelContent,
}

/// A donor that cannot be reached.
#[derive(Debug, Clone)]
pub(super) struct UnreachableDonor {
    pub reason: String,
    /// Whether trying again is useless.
    pub is_lost: bool,
}

/// The reason why there is no session.
#[derive(Debug)]
pub(super) enum DonorSessionError {
    /// The donor does not have the device.
    Absent,
    /// The donor refuses access, for example because another client has the device.
    Refused(String),
    /// Any other failure, in words.
    Failed(String),
}

/// Returns what a donor itself says of a refusal, without the words of the protocol around it.
fn said(reason: String) -> String {
    reason.split_once(" by policy: ").map_or(reason.clone(), |(_, said)| said.to_owned())
}

/// Whether a donor refuses access because a client has the device.
pub(super) fn is_in_use(said: &str) -> bool {
    said.contains("in use by another client")
}

/// Runs a step with a time limit.
async fn step<T>(doing: &str, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    match tokio::time::timeout(STEP_TIME_MAX, work).await {
        Ok(done) => done,
        Err(_) => Err(format!("it does not answer within {STEP_TIME_MAX:?} ({doing})")),
    }
}

/// Finds out what kind of server answers at an address.
pub(super) async fn ask(address: &DonorAddress) -> Result<ServerKind, String> {
    let asked = async {
        match info(&address.export(PAGE_NAME), &ConnectOptions::default()).await {
            Ok(info) => {
                Ok(info.description.as_deref().and_then(DonorPage::parse).map_or(ServerKind::Other, ServerKind::Donor))
            }
            Err(error) if matches!(error.kind, NbdErrorKind::TimedOut | NbdErrorKind::Tls) => Err(error.message),
            Err(_) => Ok(ServerKind::Other),
        }
    };
    step("asking who it is", asked).await
}

impl LinkTarget {
    /// Whether a later session can continue after the first one has ended.
    pub fn can_return(&self) -> bool {
        self.incarnation.is_some()
    }

    fn url(&self, epoch: u64, size_bytes: Option<u64>) -> ExportUrl {
        let Some(incarnation) = self.incarnation else { return self.address.url.clone() };
        let session =
            Some(SessionName { incarnation, client: self.client, epoch, has_metadata: false, only_reads: false });
        let name = ExportName { id: self.id.clone(), size_bytes, session };
        self.address.export(&name.to_string())
    }

    /// Begins a session and reads the label. With a size, a Nectary donor makes the device if it does not have it.
    pub async fn connect(
        &self,
        epoch: u64,
        size_bytes: Option<u64>,
        patience: Duration,
    ) -> Result<LabelledSession, DonorSessionError> {
        let mut url = self.url(epoch, size_bytes);
        url.request_time.get_or_insert(patience + REQUEST_TIME_SLACK);
        let mut options = ConnectOptions::default();
        options.is_single_session = true;
        let mut kind = None;
        let connected = async {
            NbdDevice::connect(&url, options).await.map_err(|error| {
                kind = Some(error.kind).filter(|_| self.incarnation.is_some());
                error.message
            })
        };
        let device = match step("connecting", connected).await {
            Ok(device) => device,
            Err(reason) => {
                return Err(match kind {
                    Some(NbdErrorKind::Absent) => DonorSessionError::Absent,
                    Some(NbdErrorKind::Refused) => DonorSessionError::Refused(said(reason)),
                    _ => DonorSessionError::Failed(reason),
                });
            }
        };
        if device.geometry().size_bytes < LABEL_AREA_BYTES {
            return Err(DonorSessionError::Failed("its export is too small for a label".to_owned()));
        }
        let found = read_label(&device).await.map_err(DonorSessionError::Failed)?;
        Ok(LabelledSession { device, found })
    }

    /// Begins a later session with a donor, which must still have `label`.
    pub async fn connect_again(
        &self,
        epoch: u64,
        label: &DonorLabel,
        patience: Duration,
    ) -> Result<LabelledSession, UnreachableDonor> {
        let later = |reason: String| UnreachableDonor { reason, is_lost: false };
        let lost = |reason: &str| UnreachableDonor { reason: reason.to_owned(), is_lost: true };
        match ask(&self.address).await.map_err(later)? {
            ServerKind::Donor(page) if Some(page.incarnation) == self.incarnation => {}
            ServerKind::Donor(_) => return Err(lost("it was started again, and what it held is gone")),
            // Usually this means that no server answers.
            ServerKind::Other => {
                let reached = self.connect(epoch, None, patience).await;
                return match reached {
                    Err(DonorSessionError::Failed(reason) | DonorSessionError::Refused(reason)) => Err(later(reason)),
                    Err(DonorSessionError::Absent) => Err(later("nothing answers there, or another server".to_owned())),
                    Ok(_) => Err(lost("another server answers in its place")),
                };
            }
        }
        let reached = match self.connect(epoch, None, patience).await {
            Ok(reached) => reached,
            Err(DonorSessionError::Failed(reason) | DonorSessionError::Refused(reason)) => return Err(later(reason)),
            Err(DonorSessionError::Absent) => return Err(lost("it no longer has the device")),
        };
        match &reached.found {
            LabelContent::Label(found) if **found == *label => Ok(reached),
            LabelContent::Label(found) if found.is_same_device(label) => {
                Err(lost("the device was opened elsewhere since"))
            }
            _ => Err(lost("it holds another label than before")),
        }
    }
}

async fn read_label(device: &NbdDevice) -> Result<LabelContent, String> {
    let read = device.read_at(0, vec![Buffer::zeroed(2 * LABEL_BYTES)], IoContext::default());
    let read = async { read.await.map_err(|error| error.detail) };
    let area = step("reading its label", read).await?;
    Ok(area.first().map_or(LabelContent::SomethingElse, |area| label::read(area)))
}

/// Writes a label durably.
pub(super) async fn write_label(device: &NbdDevice, label: &DonorLabel) -> Result<(), String> {
    let buffer = Buffer::copy_of(&label.encode());
    let write = device.write_at(label.offset(), vec![buffer], WriteFlags { fua: true }, IoContext::default());
    let write = async { write.await.map(drop).map_err(|error| error.detail) };
    step("writing its label", write).await
}

/// Returns what completed writes on a donor survive, and what flushed writes survive. A Nectary donor is assumed to be
/// on another machine, so its memory survives a crash of this one; for other servers nothing is assumed.
pub(super) fn survives(target: &LinkTarget, device: &NbdDevice) -> (SurvivalLevel, SurvivalLevel) {
    let geometry = device.geometry();
    match target.can_return() {
        true => (SurvivalLevel::Host, SurvivalLevel::Host),
        false => (geometry.write_survives, geometry.flush_survives),
    }
}
