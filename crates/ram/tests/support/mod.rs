//! Helpers of this crate's tests: donors in this process, and devices on them.
#![allow(dead_code)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nectary_block::{DeviceRegistry, Error, OpenOptions, SharedDevice};
use nectary_nbd::{ExportTable, ListenEndpoint, NetworkBlockServer, ServerOptions};
use nectary_ram::device::{self, RamOptions};
use nectary_ram::donor::{Donor, DonorOptions};

/// The longest wait in a test.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A donor with a Unix socket on which it serves.
pub struct ServingDonor {
    pub donor: Donor,
    pub server: NetworkBlockServer,
    pub socket: PathBuf,
}

impl ServingDonor {
    /// Makes a donor with memory on demand.
    pub fn new(memory_bytes: u64) -> ServingDonor {
        ServingDonor::at(ServingDonor::free_socket(), memory_bytes)
    }

    fn free_socket() -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("nectary-ram-{}-{}.sock", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        std::env::temp_dir().join(name)
    }

    fn options(memory_bytes: u64) -> DonorOptions {
        DonorOptions { memory_bytes, on_demand: true, ..DonorOptions::default() }
    }

    /// Makes a donor on a given socket.
    pub fn at(socket: PathBuf, memory_bytes: u64) -> ServingDonor {
        let donor = Donor::new(ServingDonor::options(memory_bytes)).unwrap();
        let server = ServingDonor::serve(&donor, socket.clone());
        ServingDonor { donor, server, socket }
    }

    /// Makes a donor that gives a bounded part of its memory to one device.
    pub fn with_quota(memory_bytes: u64, quota_bytes: u64) -> ServingDonor {
        let options = DonorOptions { quota_bytes: Some(quota_bytes), ..ServingDonor::options(memory_bytes) };
        let (donor, socket) = (Donor::new(options).unwrap(), ServingDonor::free_socket());
        let server = ServingDonor::serve(&donor, socket.clone());
        ServingDonor { donor, server, socket }
    }

    /// Serves memory again that was served before.
    pub fn again(donor: Donor, socket: PathBuf) -> ServingDonor {
        let server = ServingDonor::serve(&donor, socket.clone());
        ServingDonor { donor, server, socket }
    }

    fn serve(donor: &Donor, socket: PathBuf) -> NetworkBlockServer {
        let exports = ExportTable::of(donor.source());
        NetworkBlockServer::start(&[ListenEndpoint::Unix(socket)], exports, ServerOptions::default()).unwrap()
    }

    /// Ends all connections and listens again with the same memory, as after an interruption of the network.
    pub async fn cut(self) -> ServingDonor {
        let ServingDonor { donor, server, socket } = self;
        server.stop().await.unwrap();
        let server = ServingDonor::serve(&donor, socket.clone());
        ServingDonor { donor, server, socket }
    }

    /// Ends the donor; its memory is lost.
    pub async fn end(self) -> PathBuf {
        self.server.stop().await.unwrap();
        self.socket
    }

    /// Returns the donor's name in a SPEC.
    pub fn name(&self) -> String {
        format!("\"nbd+unix:///?socket={}\"", self.socket.display())
    }
}

/// Returns the SPEC of a device on donors.
pub fn spec(donors: &[&ServingDonor], more: &str) -> String {
    let names: Vec<String> = donors.iter().map(|donor| donor.name()).collect();
    format!("ram({},id=disk{more})", names.join(","))
}

/// Returns the registry with the names that the tests' SPECs use.
pub fn registry() -> DeviceRegistry {
    let mut registry = DeviceRegistry::with_builtins();
    nectary_nbd::register(&mut registry);
    device::register(&mut registry);
    registry
}

/// Parses the options of a SPEC.
pub fn options(spec: &str) -> RamOptions {
    RamOptions::parse(registry().arguments(spec, "ram", &OpenOptions::default()).unwrap()).unwrap()
}

/// Makes a device.
pub async fn create(spec: &str) -> Result<(), Error> {
    device::create(&options(spec), false).await.map(drop)
}

/// Opens a device.
pub async fn open(spec: &str) -> Result<SharedDevice, Error> {
    registry().open(spec, &OpenOptions::default()).await
}

/// Returns the error of opening a device that must not open.
pub async fn refused(spec: &str) -> Error {
    match open(spec).await {
        Ok(device) => panic!("{} opened", device.spec()),
        Err(error) => error,
    }
}
