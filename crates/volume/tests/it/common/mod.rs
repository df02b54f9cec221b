//! A volume on a local file, with servers and clients in this process.

#![allow(dead_code)]

use std::path::PathBuf;
use std::sync::Arc;

use nectary_block::{FileDevice, OpenOptions, SharedDevice};
use nectary_volume::client::{ClientOptions, Error, HostKernel, ServerAddress, VolumeClient};
use nectary_volume::format::VolumeIdentity;
use nectary_volume::journal::{FormatOptions, format, read};
use nectary_volume::metadata::{check, first};
use nectary_volume::protocol::FileId;
use nectary_volume::server::{MetadataServer, ServerOptions};
use tokio::sync::oneshot;

/// The root directory.
pub const ROOT: FileId = FileId { inode: 1, generation: 1 };
/// The identity of all test volumes.
pub const VOLUME: VolumeIdentity = VolumeIdentity([7; 16]);

/// A kernel without a page cache.
pub struct NoKernel;

impl HostKernel for NoKernel {
    fn invalidate(&self, _: u64, _: std::ops::Range<u64>) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }

    fn grow(&self, _: u64, _: u64) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }
}

/// A volume in a separate directory, with one socket for each client.
pub struct TestVolume {
    pub directory: PathBuf,
    pub device: SharedDevice,
}

impl TestVolume {
    pub async fn new(name: &str) -> TestVolume {
        TestVolume::with_bytes(name, 512 << 20).await
    }

    /// The same with another size.
    pub async fn with_bytes(name: &str, bytes: u64) -> TestVolume {
        let directory = std::env::temp_dir().join(format!("nectary-volume-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("it is made");
        let path = directory.join("disk");
        std::fs::File::create(&path).and_then(|file| file.set_len(bytes)).expect("it is made");
        let options = OpenOptions { is_shared: true, ..OpenOptions::default() };
        let device: SharedDevice = Arc::new(FileDevice::open_file(&path, &options).await.expect("it opens"));
        let options = FormatOptions {
            name: String::new(),
            segment_blocks: 2048,
            lease_ms: 1000,
            drift_per_mille: 10,
            force: false,
            volume: VOLUME,
            hash_key: [3; 16],
            created_s: 1,
        };
        format(&device, &options, |layout| first(layout, 1)).await.expect("it is formatted");
        TestVolume { directory, device }
    }

    pub fn socket(&self, client: u32) -> ServerAddress {
        ServerAddress::Unix(self.directory.join(format!("{client}.sock")))
    }

    /// Starts a server that the clients with these numbers can reach.
    pub async fn serve(&self, clients: &[u32]) -> MetadataServer {
        self.serve_for(clients, 2048).await
    }

    /// The same, for so many connections.
    pub async fn serve_for(&self, clients: &[u32], connections_max: usize) -> MetadataServer {
        let options = ServerOptions {
            listen: clients.iter().map(|client| self.socket(*client)).collect(),
            tls: None,
            number: 0,
            host: "here".to_owned(),
            previous_gone: true,
            said_gone: Vec::new(),
        };
        MetadataServer::start_for(self.device.clone(), options, connections_max).await.expect("it starts")
    }

    pub async fn try_connect(&self, client: u32) -> Result<VolumeClient, Error> {
        self.try_connect_with(client, Arc::new(NoKernel)).await
    }

    /// Connects a client whose kernel is `kernel`.
    pub async fn try_connect_with(&self, client: u32, kernel: Arc<dyn HostKernel>) -> Result<VolumeClient, Error> {
        let options = ClientOptions {
            servers: vec![self.socket(client)],
            tls: None,
            volume: VOLUME,
            host: "here".to_owned(),
            kind: 2,
            are_names_synced: false,
            are_names_local: false,
        };
        VolumeClient::connect(self.device.clone(), options, kernel).await
    }

    /// Connects a client that makes and removes names itself.
    pub async fn connect_local(&self, client: u32) -> VolumeClient {
        let options = ClientOptions {
            servers: vec![self.socket(client)],
            tls: None,
            volume: VOLUME,
            host: "here".to_owned(),
            kind: 2,
            are_names_synced: false,
            are_names_local: true,
        };
        VolumeClient::connect(self.device.clone(), options, Arc::new(NoKernel)).await.expect("it connects")
    }

    pub async fn connect(&self, client: u32) -> VolumeClient {
        self.try_connect(client).await.expect("it connects")
    }

    pub async fn problems(&self) -> Vec<String> {
        let volume = read(&self.device).await.expect("it is read");
        check(&volume.tables, &volume.label)
    }
}

impl Drop for TestVolume {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
