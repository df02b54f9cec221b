//! A donor: exports memory of this machine to NBD clients.
//!
//! Owns: the list of devices, the bound on their size, and the client of each. Promises: a device keeps its memory
//! until it holds no data and has no client; memory of one device reads as zeroes in the next; a device has one client
//! at a time; a session that names an earlier incarnation of the donor is refused. Leaves to others: the protocol and
//! TLS (`nectary-nbd`), listening and signals (the command).
//!
//! A device is made when a client first names it with a size (`ID/SIZE`), and grows when a session names it with a larger
//! one. It is deleted, and its memory freed, when it has no connection and no written block.
//!
//! | file | what is in it |
//! |---|---|
//! | `name` | names of exports |
//! | `page` | the donor's description of itself |
//! | `pool` | the memory |
//! | `shelves` | elements that stay where they are while others are added |
//! | `tenant` | the memory of one device, and who may use it |
//! | `device` | one session's view of a device |
//! | `metadata` | the same, with the window to the metadata of a device with redundancy |
//! | `inspection` | the view of a session that only reads a device with redundancy |
//! | `planted` | damage to the memory, for tests |
//! | `figures` | the figures of a donor and its devices |
//! | `error` | reasons why a donor does not start |

mod device;
mod error;
mod figures;
mod inspection;
mod metadata;
pub mod name;
pub mod page;
#[cfg(feature = "planted")]
mod planted;
mod pool;
mod shelves;
mod tenant;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nectary_block::{MemoryDevice, SharedDevice, format_size};
use nectary_nbd::{Export, ExportRefusal, ExportSource};

use self::device::TenantDevice;
use self::inspection::TenantInspection;
use self::metadata::MetadataDevice;
use self::name::{ExportName, PAGE_NAME};
use self::page::{DonorPage, LABELS_BYTES_MAX, check_label};
use self::pool::{SLAB_BYTES, SlabPool};
use self::tenant::{SessionHolder, SessionLife, Tenant};
use crate::format::DonorRecord;

pub use self::error::DonorError;
pub use self::figures::{DeviceFigures, DonorFigures};

/// The unit of offsets and lengths on a donor, in bytes.
pub const BLOCK_BYTES: u32 = 4096;
/// The unit of offsets and lengths of a device with metadata, in bytes. It is smaller than [`BLOCK_BYTES`], because
/// slots of a device that logs parity have headers.
pub const UNIT_BYTES: u32 = 8;
/// The maximum number of devices on one donor.
pub const DEVICES_MAX: usize = 1024;
/// The maximum number of sessions of one device that have a connection.
const SESSIONS_MAX: usize = 64;

/// The options of a donor.
#[derive(Debug, Clone, Default)]
pub struct DonorOptions {
    /// All memory to lend, in bytes; only whole slabs of 2 MiB are used.
    pub memory_bytes: u64,
    /// The largest device, in bytes; `None`: all memory.
    pub quota_bytes: Option<u64>,
    /// Whether memory is allocated when it is first written, and not locked.
    pub on_demand: bool,
    /// The labels, each `KEY=VALUE`.
    pub labels: Vec<String>,
}

/// A donor; clones share it.
#[derive(Clone)]
pub struct Donor {
    inner: Arc<SharedDonor>,
}

struct SharedDonor {
    incarnation: u128,
    pool: Arc<SlabPool>,
    quota_bytes: Option<u64>,
    labels: String,
    state: Mutex<DonorState>,
}

#[derive(Default)]
struct DonorState {
    devices: BTreeMap<String, DeviceEntry>,
    page: Weak<Export>,
    is_leaving: bool,
}

/// A device, and the exports of it that connections use.
struct DeviceEntry {
    tenant: Arc<Tenant>,
    requests: Arc<AtomicU64>,
    sessions: Vec<(SessionHolder, Weak<Export>)>,
    /// For a device with metadata: the lives of its sessions.
    lives: Lives,
}

/// The lives of all sessions of a device; the life of an ended session is removed when the next session begins.
type Lives = Arc<Mutex<Vec<Weak<SessionLife>>>>;

impl Donor {
    /// Reserves memory; nothing is exported until a server uses this donor as its source.
    ///
    /// *Errors*: this machine has too little memory, or the memory cannot be locked. *Cost*: touches all memory, unless
    /// `on_demand` is set.
    pub fn new(options: DonorOptions) -> Result<Donor, DonorError> {
        options.labels.iter().try_for_each(|label| check_label(label)).map_err(DonorError::Other)?;
        let labels = options.labels.join(";");
        if labels.len() > LABELS_BYTES_MAX {
            return Err(DonorError::Other(format!("the labels have more than {LABELS_BYTES_MAX} bytes together")));
        }
        let incarnation = random().map_err(|error| DonorError::Other(format!("no random numbers: {error}")))?;
        let inner = SharedDonor {
            incarnation: u128::from_le_bytes(incarnation),
            pool: Arc::new(SlabPool::new(options.memory_bytes, options.on_demand)?),
            quota_bytes: options.quota_bytes,
            labels,
            state: Mutex::default(),
        };
        Ok(Donor { inner: Arc::new(inner) })
    }

    /// Returns the donor as a source of exports for a server.
    pub fn source(&self) -> Arc<dyn ExportSource> {
        self.inner.clone()
    }

    /// Accepts no more devices from now on, and new clients only of devices with redundancy; the present ones continue.
    pub fn leave(&self) {
        self.inner.lock().is_leaving = true;
    }

    /// Returns the figures of the donor and of its devices.
    pub fn figures(&self) -> DonorFigures {
        let inner = &self.inner;
        let mut state = inner.lock();
        state.sweep();
        let (memory_bytes, promised_bytes, slabs_bytes) = inner.pool.bytes();
        DonorFigures {
            incarnation: format!("{:032x}", inner.incarnation),
            memory_bytes,
            promised_bytes,
            free_bytes: memory_bytes - promised_bytes,
            slabs_bytes,
            is_locked: inner.pool.is_locked(),
            quota_bytes: inner.quota_bytes,
            labels: inner.labels.clone(),
            devices: state.devices.iter().map(|(id, entry)| entry.figures(id)).collect(),
        }
    }
}

impl SharedDonor {
    fn lock(&self) -> MutexGuard<'_, DonorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the donor's description of itself at this moment.
    fn page(&self, is_leaving: bool) -> DonorPage {
        let (memory_bytes, promised_bytes, _) = self.pool.bytes();
        let free_bytes = (memory_bytes - promised_bytes).min(self.quota_bytes.unwrap_or(u64::MAX));
        let SharedDonor { incarnation, quota_bytes, .. } = *self;
        DonorPage { incarnation, memory_bytes, free_bytes, quota_bytes, labels: self.labels.clone(), is_leaving }
    }

    fn page_export(&self, state: &mut DonorState) -> Result<Arc<Export>, ExportRefusal> {
        if let Some(export) = state.page.upgrade() {
            return Ok(export);
        }
        let text = self.page(state.is_leaving).to_string();
        let mut image = text.clone().into_bytes();
        image.resize(image.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        let export = export(PAGE_NAME, &text, Arc::new(MemoryDevice::from_image(image)), true)?;
        state.page = Arc::downgrade(&export);
        Ok(export)
    }

    /// Makes a device; the error says why it cannot.
    fn make(
        &self,
        state: &mut DonorState,
        id: &str,
        size_bytes: u64,
        holder: SessionHolder,
        has_metadata: bool,
    ) -> Result<(), ExportRefusal> {
        let refused = |why: String| Err(ExportRefusal::Refused(why));
        if state.is_leaving {
            return refused("this donor is leaving and takes no new devices".to_owned());
        }
        if state.devices.len() >= DEVICES_MAX {
            return refused(format!("this donor has {DEVICES_MAX} devices, no more are taken"));
        }
        self.check_quota(id, size_bytes)?;
        let Some(tenant) = Tenant::new(size_bytes, self.pool.clone(), holder, has_metadata) else {
            return Err(self.too_little(id, size_bytes));
        };
        let (tenant, requests, lives) = (Arc::new(tenant), Arc::default(), Arc::default());
        let entry = DeviceEntry { tenant, requests, sessions: Vec::new(), lives };
        state.devices.insert(id.to_owned(), entry);
        Ok(())
    }

    fn check_quota(&self, id: &str, size_bytes: u64) -> Result<(), ExportRefusal> {
        let Some(quota_bytes) = self.quota_bytes.filter(|&quota| size_bytes > quota) else { return Ok(()) };
        let (size, quota) = (format_size(size_bytes), format_size(quota_bytes));
        Err(ExportRefusal::Refused(format!(
            "device \"{id}\" is to have {size}, at most {quota} are given to one (--quota)"
        )))
    }

    fn too_little(&self, id: &str, size_bytes: u64) -> ExportRefusal {
        let (memory_bytes, promised_bytes, _) = self.pool.bytes();
        let (free, memory) = (format_size(memory_bytes - promised_bytes), format_size(memory_bytes));
        ExportRefusal::Refused(format!(
            "device \"{id}\" is to have {}, {free} of {memory} are free",
            format_size(size_bytes)
        ))
    }
}

impl ExportSource for SharedDonor {
    fn find(&self, name: &str) -> Result<Arc<Export>, ExportRefusal> {
        let mut state = self.lock();
        state.sweep();
        if name == PAGE_NAME {
            return self.page_export(&mut state);
        }
        if name.is_empty() {
            let help = "a donor has no default export: name a device and its size, as ID/SIZE";
            return Err(ExportRefusal::Unknown(help.to_owned()));
        }
        let ExportName { id, size_bytes, session } = ExportName::parse(name).map_err(ExportRefusal::Unknown)?;
        if session.is_some_and(|session| session.incarnation != self.incarnation) {
            let why = "this donor was started again: what it held is gone";
            return Err(ExportRefusal::Refused(why.to_owned()));
        }
        let nobody = SessionHolder { client: 0, epoch: 0 };
        let holder = session.map_or(nobody, |session| SessionHolder { client: session.client, epoch: session.epoch });
        let has_metadata = session.is_some_and(|session| session.has_metadata);
        if session.is_some_and(|session| session.only_reads) {
            return state.inspection(&id);
        }
        if !state.devices.contains_key(&id) {
            let Some(size_bytes) = size_bytes else {
                return Err(ExportRefusal::Unknown(format!("this donor holds no device \"{id}\"")));
            };
            let first = if has_metadata { nobody } else { holder };
            self.make(&mut state, &id, size_bytes, first, has_metadata)?;
        }
        let is_leaving = state.is_leaving;
        let Some(entry) = state.devices.get_mut(&id) else {
            return Err(ExportRefusal::Unknown(format!("this donor holds no device \"{id}\"")));
        };
        entry.check(&id, size_bytes.filter(|_| session.is_none()), has_metadata)?;
        let wanted = size_bytes.filter(|_| session.is_some());
        let grow = |tenant: &Tenant| match wanted.filter(|&wanted| wanted > tenant.size_bytes()) {
            Some(_) if is_leaving => {
                Err(ExportRefusal::Refused("this donor is leaving, and no device grows".to_owned()))
            }
            Some(wanted) => {
                self.check_quota(&id, wanted)?;
                if tenant.grow(wanted) { Ok(()) } else { Err(self.too_little(&id, wanted)) }
            }
            None => Ok(()),
        };
        match has_metadata {
            true => entry.session_with_metadata(&id, holder, grow),
            false => entry.session(&id, holder, is_leaving, grow),
        }
    }

    fn list(&self) -> Vec<(String, String)> {
        let mut state = self.lock();
        state.sweep();
        let about = |entry: &DeviceEntry| {
            let (size, used) = (format_size(entry.tenant.size_bytes()), format_size(entry.tenant.written_bytes()));
            format!("{size}, {used} of it written, {} connections", entry.connections())
        };
        let page = (PAGE_NAME.to_owned(), self.page(state.is_leaving).to_string());
        let devices = state.devices.iter().map(|(id, entry)| (id.clone(), about(entry)));
        std::iter::once(page).chain(devices).collect()
    }
}

impl DonorState {
    /// Deletes devices that hold no data and have no client.
    fn sweep(&mut self) {
        self.devices.retain(|_, entry| {
            entry.sessions.retain(|(_, export)| export.strong_count() > 0);
            !entry.sessions.is_empty() || !entry.tenant.is_empty()
        });
    }

    /// Returns the export of a session that only reads a device with redundancy; this session does not count as a
    /// client.
    fn inspection(&self, id: &str) -> Result<Arc<Export>, ExportRefusal> {
        let entry = self.devices.get(id).filter(|entry| entry.tenant.has_metadata());
        let Some(entry) = entry else {
            return Err(ExportRefusal::Unknown(format!("this donor holds no device \"{id}\" with redundancy")));
        };
        let tenant = &entry.tenant;
        let device = TenantInspection { tenant: tenant.clone(), size_bytes: tenant.size_bytes() };
        export(id, &format!("device {id} in memory, to be read alone{}", entry.whose()), Arc::new(device), true)
    }
}

impl DeviceEntry {
    fn connections(&self) -> u64 {
        self.sessions.iter().map(|(_, export)| export.strong_count() as u64).sum()
    }

    /// Returns where the connections of the client that uses the device come from.
    fn peers(&self) -> Vec<String> {
        let client = self.tenant.holder().client;
        let sessions = self.sessions.iter().filter(|(holder, _)| holder.client == client);
        sessions.filter_map(|(_, export)| export.upgrade()).flat_map(|export| export.peers()).collect()
    }

    /// Returns the same for the end of a text for people; nothing if no client is connected.
    fn whose(&self) -> String {
        self.peers().first().map(|peer| format!("; its client is {peer}")).unwrap_or_default()
    }

    /// Checks that size and redundancy in an export's name are those of this device. The size in the name of a session is
    /// only the least one, and is not checked here.
    fn check(&self, id: &str, size_bytes: Option<u64>, has_metadata: bool) -> Result<(), ExportRefusal> {
        let refused = |why: String| Err(ExportRefusal::Refused(why));
        if let Some(wanted) = size_bytes.filter(|&wanted| wanted != self.tenant.size_bytes()) {
            let (has, wanted) = (format_size(self.tenant.size_bytes()), format_size(wanted));
            return refused(format!("device \"{id}\" has {has} here, not {wanted}"));
        }
        match (self.tenant.has_metadata(), has_metadata) {
            (true, false) => refused(format!("device \"{id}\" has redundancy: name it with {}", self.redundancy())),
            (false, true) => refused(format!("device \"{id}\" has no record")),
            _ => Ok(()),
        }
    }

    /// Returns the redundancy of a device with metadata as a SPEC writes it.
    fn redundancy(&self) -> &'static str {
        let log = DonorRecord::decode(&self.tenant.gate().record).ok().and_then(|record| record.geometry.log());
        match log.map(|log| log.policy) {
            Some(3) => "redundancy=parity-log",
            Some(4) => "redundancy=parity-cache",
            Some(_) => "redundancy=adaptive",
            None => "redundancy=mirror",
        }
    }

    /// Returns the export of a session that exists already; all its connections share it. For a new session, checks
    /// that the device may have one more.
    fn known_session(&self, id: &str, holder: SessionHolder) -> Result<Option<Arc<Export>>, ExportRefusal> {
        let of_holder = self.sessions.iter().filter(|(other, _)| *other == holder);
        match of_holder.filter_map(|(_, export)| export.upgrade()).next() {
            None if self.sessions.len() >= SESSIONS_MAX => {
                Err(ExportRefusal::Refused(format!("{SESSIONS_MAX} sessions of device \"{id}\" have not ended yet")))
            }
            known => Ok(known),
        }
    }

    /// Returns the export of a session of a device with redundancy; it reads and writes blocks only after it has
    /// exchanged the record. A donor that is leaving begins such sessions, too: the next client of a device can move
    /// what it has there, and may need it.
    fn session_with_metadata(
        &mut self,
        id: &str,
        holder: SessionHolder,
        grow: impl FnOnce(&Tenant) -> Result<(), ExportRefusal>,
    ) -> Result<Arc<Export>, ExportRefusal> {
        if let Some(export) = self.known_session(id, holder)? {
            return Ok(export);
        }
        grow(&self.tenant)?;
        let life = Arc::new(SessionLife::default());
        let ended = life.ended.clone();
        {
            let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
            lives.retain(|life| life.strong_count() > 0);
            lives.push(Arc::downgrade(&life));
        }
        let (tenant, requests) = (self.tenant.clone(), self.requests.clone());
        let size_bytes = tenant.size_bytes();
        let blocks = TenantDevice { tenant, holder, requests, unit_bytes: UNIT_BYTES, size_bytes };
        let device = Arc::new(MetadataDevice { blocks, life, lives: self.lives.clone() });
        let about = format!("device {id} in memory, with redundancy{}", self.whose());
        let export =
            Export::new(id, &about, device, false).map_err(|error| ExportRefusal::Refused(error.to_string()))?;
        let export = Arc::new(export.ending(ended));
        self.sessions.push((holder, Arc::downgrade(&export)));
        Ok(export)
    }

    /// Returns the export of a session of a device without metadata.
    fn session(
        &mut self,
        id: &str,
        holder: SessionHolder,
        is_leaving: bool,
        grow: impl FnOnce(&Tenant) -> Result<(), ExportRefusal>,
    ) -> Result<Arc<Export>, ExportRefusal> {
        let refused = |why: String| Err(ExportRefusal::Refused(why));
        let now = self.tenant.holder();
        if now.client != holder.client {
            if self.sessions.iter().any(|(other, _)| other.client != holder.client) {
                return refused(format!(
                    "device \"{id}\" is in use by another client ({:x}{})",
                    now.client,
                    self.whose()
                ));
            }
            if is_leaving {
                return refused("this donor is leaving and takes no new clients".to_owned());
            }
        } else if now.epoch > holder.epoch {
            return refused(format!("a later session of device \"{id}\" has begun"));
        }
        if let Some(export) = self.known_session(id, holder)? {
            return Ok(export);
        }
        grow(&self.tenant)?;
        if now.client != holder.client {
            self.tenant.admit(holder);
        }
        let (tenant, requests) = (self.tenant.clone(), self.requests.clone());
        let size_bytes = tenant.size_bytes();
        let device = TenantDevice { tenant, holder, requests, unit_bytes: BLOCK_BYTES, size_bytes };
        let export = export(id, &format!("device {id} in memory"), Arc::new(device), false)?;
        self.sessions.push((holder, Arc::downgrade(&export)));
        Ok(export)
    }

    fn figures(&self, id: &str) -> DeviceFigures {
        let tenant = &self.tenant;
        DeviceFigures {
            id: id.to_owned(),
            size_bytes: tenant.size_bytes(),
            used_bytes: tenant.written_bytes(),
            connections: self.connections(),
            is_attached: tenant.is_attached(),
            client: format!("{:x}", tenant.holder().client),
            peers: self.peers(),
            requests: self.requests.load(Ordering::Relaxed),
            read_bytes: tenant.read_bytes.load(Ordering::Relaxed),
            changed_bytes: tenant.changed_bytes.load(Ordering::Relaxed),
        }
    }
}

fn export(name: &str, about: &str, device: SharedDevice, read_only: bool) -> Result<Arc<Export>, ExportRefusal> {
    Export::new(name, about, device, read_only).map(Arc::new).map_err(|error| ExportRefusal::Refused(error.to_string()))
}

/// The memory of one slab; devices are promised whole slabs. *Units*: bytes.
pub const PROMISE_BYTES: u64 = SLAB_BYTES as u64;

/// Reads random bytes from the system.
pub(crate) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
