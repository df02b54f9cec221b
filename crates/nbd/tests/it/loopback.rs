//! A device that connects this crate's client to this crate's server behaves like any other device, over one connection
//! and over several.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{DiskServer, PATIENCE, serve, serve_from_threads};
use nectary_block::conformance::{VolatileDevice, check, check_durability};
use nectary_block::{
    BlockDevice, Buffer, DelayFilter, DelayOptions, DeviceErrorKind, IoContext, MemoryDevice, SharedDevice, WriteFlags,
    read, write,
};
use nectary_nbd::{ConnectOptions, ExportUrl, NbdDevice, NetworkBlockServer};

/// The servers of a test. They run until the test ends.
#[derive(Default)]
struct RunningServers(Mutex<Vec<NetworkBlockServer>>);

impl RunningServers {
    async fn device(&self, below: SharedDevice, connections: u32) -> SharedDevice {
        self.device_on(serve(below, false), connections).await
    }

    async fn device_on(&self, served: DiskServer, connections: u32) -> SharedDevice {
        let device = served.device(connections).await;
        assert_eq!(device.connections(), connections as usize);
        self.0.lock().unwrap().push(served.server);
        device
    }
}

/// An export of memory conforms over one connection and over four.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nbd_conforms_with_several_connections() {
    let servers = RunningServers::default();
    for connections in [1, 4] {
        let make = |bytes| servers.device(Arc::new(MemoryDevice::new(bytes)), connections);
        let clauses = check(make).await.unwrap_or_else(|failure| panic!("{connections} connections: {failure}"));
        println!("{clauses} clauses over {connections} connections");
    }
}

#[tokio::test]
async fn nbd_flush_survives_power_loss() {
    let servers = RunningServers::default();
    let current: Mutex<Option<Arc<VolatileDevice>>> = Mutex::new(None);
    let make = async |bytes| {
        let below = VolatileDevice::new(bytes);
        *current.lock().unwrap() = Some(below.clone());
        servers.device(Arc::new(owned(below)), 3).await
    };
    let crash = async |_: SharedDevice| {
        let below = current.lock().unwrap().take().unwrap().crash();
        servers.device(Arc::new(owned(below)), 3).await
    };
    check_durability(make, crash).await.unwrap();
}

#[tokio::test]
async fn forced_zeroes_survive_power_loss() {
    const FUA: u16 = 1;
    const WRITE: u16 = 1;
    const ZEROES: u16 = 6;
    let below = VolatileDevice::new(1 << 20);
    let served = serve(Arc::new(owned(below.clone())), false);
    let mut client = served.transmitting().await;
    assert_eq!(client.ask(WRITE, FUA, 0, 8192, &[3; 8192]).await.error, 0);
    assert_eq!(client.ask(ZEROES, FUA, 0, 4096, &[]).await.error, 0);
    let found = read(&*below.crash(), 0, 8192).await.unwrap();
    assert!(found[..4096] == [0; 4096] && found[4096..] == [3; 4096]);
}

/// Wraps a shared volatile device into a device that a server can own.
fn owned(below: Arc<VolatileDevice>) -> impl nectary_block::BlockDevice {
    nectary_block::StatsFilter::new(below)
}

/// A flush on one connection covers the writes of connections on other threads.
#[tokio::test]
async fn threaded_server_conforms() {
    let servers = RunningServers::default();
    let make = |bytes| servers.device_on(serve_from_threads(Arc::new(MemoryDevice::new(bytes)), 2), 4);
    check(make).await.unwrap_or_else(|failure| panic!("{failure}"));
    let current: Mutex<Option<Arc<VolatileDevice>>> = Mutex::new(None);
    let make = async |bytes| {
        let below = VolatileDevice::new(bytes);
        *current.lock().unwrap() = Some(below.clone());
        servers.device_on(serve_from_threads(Arc::new(owned(below)), 2), 3).await
    };
    let crash = async |_: SharedDevice| {
        let below = current.lock().unwrap().take().unwrap().crash();
        servers.device_on(serve_from_threads(Arc::new(owned(below)), 2), 3).await
    };
    check_durability(make, crash).await.unwrap();
}

#[tokio::test]
async fn threaded_server_stop_awaits_requests() {
    let below = Arc::new(MemoryDevice::new(1 << 20));
    let slow = DelayOptions { write: Duration::from_millis(100), ..DelayOptions::default() };
    let served = serve_from_threads(Arc::new(DelayFilter::new(below.clone(), slow)), 3);
    let devices = [served.device(1).await, served.device(1).await, served.device(1).await, served.device(1).await];
    let begun = served.server.reader();
    let writing: Vec<_> = (0..)
        .zip(&devices)
        .map(|(index, device)| {
            let device = device.clone();
            tokio::spawn(async move { write(&*device, index * 4096, Buffer::copy_of(&[7; 4096])).await })
        })
        .collect();
    let all_begun = async {
        while begun().1[0].figures().writes < 4 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, all_begun).await.expect("all are begun in time");
    assert_eq!(begun().0.connections, 4);
    tokio::time::timeout(PATIENCE, served.server.stop()).await.expect("it stops in time").unwrap();
    assert_eq!(begun().0.connections, 0);
    assert_eq!(read(&*below, 0, 4 * 4096).await.unwrap()[..], [7; 4 * 4096]);
    for written in writing {
        // Either the write was answered, or the connection ended first.
        let _ = written.await.unwrap();
    }
}

#[tokio::test]
async fn long_operations_are_split() {
    const BYTES: usize = (32 << 20) * 2 + 4096 * 3;
    let served = serve(Arc::new(MemoryDevice::new(BYTES as u64)), false);
    let device = served.device(4).await;
    let data: Vec<u8> = (0..BYTES as u32).map(|index| (index / 7 % 251) as u8).collect();
    let pieces = [4096 * 5, 33 << 20].into_iter().chain([BYTES - 4096 * 5 - (33 << 20)]);
    let mut at = 0;
    let buffers = pieces.map(|length| {
        at += length;
        Buffer::copy_of(&data[at - length..at])
    });
    let context = IoContext::default();
    let back = device.write_at(0, buffers.collect(), WriteFlags { fua: true }, context).await.unwrap();
    assert_eq!(back.iter().map(|buffer| buffer.len()).sum::<usize>(), BYTES);
    let rooms = vec![Buffer::zeroed(BYTES - 4096), Buffer::zeroed(4096)];
    let found = device.read_at(0, rooms, context).await.unwrap();
    assert!(found[0][..] == data[..BYTES - 4096] && found[1][..] == data[BYTES - 4096..]);
    served.server.stop().await.unwrap();
}

/// A read-only export refuses writes and serves reads; a discard, only a hint, does not fail.
#[tokio::test]
async fn read_only_export_refuses_writes() {
    let below = Arc::new(MemoryDevice::new(1 << 20));
    write(&*below, 0, Buffer::copy_of(&[5; 4096])).await.unwrap();
    let served = serve(below, true);
    let device = served.device(2).await;
    assert_eq!(read(&*device, 0, 4096).await.unwrap()[0], 5);
    let context = IoContext::default();
    let refused = [
        write(&*device, 0, Buffer::zeroed(4096)).await.err().map(|error| error.kind),
        device.write_zeroes(0, 4096, context).await.err().map(|error| error.kind),
    ];
    assert_eq!(refused, [Some(DeviceErrorKind::Unsupported); 2]);
    // A discard is only a hint, so it does not fail.
    device.discard(0, 4096, context).await.unwrap();
    assert_eq!(read(&*device, 0, 4096).await.unwrap()[0], 5);
    device.flush(context).await.unwrap();
}

#[tokio::test]
async fn flushed_device_reconnects() {
    let below: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    let served = serve(below.clone(), false);
    let device = served.device(2).await;
    write(&*device, 0, Buffer::copy_of(&[1; 4096])).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
    let served = restart(served, below.clone()).await;
    let deadline = std::time::Instant::now() + crate::support::PATIENCE;
    while device.figures()[0].get("reconnects") < Some(2) {
        assert!(std::time::Instant::now() < deadline, "the end of the connections is not noticed");
        tokio::task::yield_now().await;
    }
    write(&*device, 4096, Buffer::copy_of(&[2; 4096])).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
    assert_eq!(read(&*device, 0, 4096).await.unwrap()[0], 1);
    assert!(device.figures()[0].get("reconnects") >= Some(1));
    served.server.stop().await.unwrap();
}

/// After a connection is lost with unflushed writes, writes and flushes fail as latched; reads go on.
#[tokio::test]
async fn flush_fails_after_losing_unflushed_writes() {
    let below: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    let served = serve(below.clone(), false);
    let device = served.device(1).await;
    write(&*device, 0, Buffer::copy_of(&[1; 4096])).await.unwrap();
    let served = restart(served, below).await;
    // Reads continue. The first read may still fail because the connection is lost.
    if read(&*device, 0, 4096).await.is_err() {
        read(&*device, 0, 4096).await.unwrap();
    }
    let flushed = device.flush(IoContext::default()).await.unwrap_err();
    assert_eq!(flushed.kind, DeviceErrorKind::Latched, "{flushed}");
    assert!(flushed.detail.contains("open the device again"), "{flushed}");
    let written = write(&*device, 0, Buffer::zeroed(4096)).await.unwrap_err();
    assert_eq!(written.kind, DeviceErrorKind::Latched);
    served.server.stop().await.unwrap();
}

/// Stops a server and starts another server on the same socket.
async fn restart(served: DiskServer, below: SharedDevice) -> DiskServer {
    let socket = served.socket.clone();
    served.server.stop().await.unwrap();
    DiskServer { server: start(&socket, below), socket }
}

/// Starts a server on a socket.
fn start(socket: &std::path::Path, below: SharedDevice) -> NetworkBlockServer {
    let export = nectary_nbd::Export::new("disk", "", below, false).unwrap();
    let exports = nectary_nbd::ExportTable::new(vec![export]).unwrap();
    let listen = [nectary_nbd::ListenEndpoint::Unix(socket.to_owned())];
    NetworkBlockServer::start(&listen, exports, nectary_nbd::ServerOptions::default()).unwrap()
}

/// A request without an answer fails after the request time, and later ones use a new connection.
#[tokio::test]
async fn silent_server_costs_request_time() {
    let never = Duration::from_secs(3600);
    let slow = DelayOptions { read: never, ..DelayOptions::default() };
    let served = serve(Arc::new(DelayFilter::new(Arc::new(MemoryDevice::new(1 << 20)), slow)), false);
    let url = ExportUrl { request_time: Some(Duration::from_millis(100)), ..served.url(1) };
    let device = NbdDevice::connect(&url, ConnectOptions::default()).await.unwrap();
    let began = std::time::Instant::now();
    let late = read(&device, 0, 4096).await.unwrap_err();
    assert_eq!(late.kind, DeviceErrorKind::TimedOut, "{late}");
    assert!(began.elapsed() >= Duration::from_millis(100) && began.elapsed() < crate::support::PATIENCE);
    // Later requests use a new connection.
    write(&device, 0, Buffer::zeroed(4096)).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
}

#[tokio::test]
async fn odd_export_is_usable_to_end() {
    const BYTES: usize = 8192 + 700;
    let path = std::env::temp_dir().join(format!("nectary-nbd-odd-{}", std::process::id()));
    std::fs::write(&path, vec![3; BYTES]).unwrap();
    let options = nectary_block::OpenOptions { pads_tail: true, ..Default::default() };
    let served = serve(nectary_block::open(path.to_str().unwrap(), &options).await.unwrap(), false);
    let mut raw = served.transmitting().await;
    // The export has every byte of the file, and not one more.
    assert_eq!(raw.ask(0, 0, BYTES as u64 - 3, 3, &[]).await.data, [3; 3]);
    assert_eq!(raw.ask(0, 0, BYTES as u64 - 3, 4, &[]).await.error, 22);
    assert_eq!(raw.ask(1, 0, BYTES as u64 - 1, 2, &[4; 2]).await.error, 28);
    assert_eq!(raw.ask(1, 1, BYTES as u64 - 1, 1, &[4]).await.error, 0);
    assert_eq!(raw.ask(6, 0, BYTES as u64 - 5, 2, &[]).await.error, 0);
    let mut options = ConnectOptions::default();
    options.pads_tail = true;
    let device = NbdDevice::connect(&served.url(2), options).await.unwrap();
    let size = device.geometry().size_bytes;
    assert_eq!((size, device.exact_bytes()), (8192 + 1024, BYTES as u64));
    let found = read(&device, 8192, 1024).await.unwrap();
    assert_eq!(found[695..701], [0, 0, 3, 3, 4, 0]);
    let whole = read(&device, 0, size as usize).await.unwrap();
    assert!(whole[..BYTES - 5].iter().all(|&byte| byte == 3) && whole[BYTES..].iter().all(|&byte| byte == 0));
    let refused = write(&device, 8192, Buffer::copy_of(&[9; 1024])).await.map(drop).unwrap_err();
    assert_eq!(refused.kind, DeviceErrorKind::Full, "{refused}");
    let mut buffer = Buffer::zeroed(1024);
    buffer[..700].fill(6);
    device.write_at(8192, vec![buffer], WriteFlags { fua: true }, IoContext::default()).await.unwrap();
    let extents = device.allocation(0, size, IoContext::default()).await.unwrap();
    assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), size);
    device.write_zeroes(0, size, IoContext::default()).await.unwrap();
    device.discard(0, size, IoContext::default()).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
    served.server.stop().await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), vec![0; BYTES]);
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn requests_await_server_restart() {
    let below: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    let served = serve(below.clone(), false);
    let device = served.device(2).await;
    write(&*device, 0, Buffer::copy_of(&[1; 4096])).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
    let socket = served.socket.clone();
    served.server.stop().await.unwrap();
    let returns = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        start(&socket, below)
    };
    let work = async {
        assert_eq!(read(&*device, 0, 4096).await.unwrap()[0], 1);
        write(&*device, 4096, Buffer::copy_of(&[2; 4096])).await.unwrap();
        device.flush(IoContext::default()).await.unwrap();
        device.discard(8192, 4096, IoContext::default()).await.unwrap();
        device.allocation(0, 8192, IoContext::default()).await.unwrap()
    };
    let (server, extents) = tokio::time::timeout(PATIENCE, async { tokio::join!(returns, work) }).await.unwrap();
    assert!(extents[0].mapped);
    server.stop().await.unwrap();
}

/// After the first request has failed, later ones fail at once.
#[tokio::test]
async fn absent_server_costs_patience_once() {
    let below: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    let served = serve(below.clone(), false);
    let patience = Duration::from_millis(400);
    let url = ExportUrl { patience: Some(patience), ..served.url(2) };
    let device = NbdDevice::connect(&url, ConnectOptions::default()).await.unwrap();
    let socket = served.socket.clone();
    served.server.stop().await.unwrap();
    let began = std::time::Instant::now();
    let first = read(&device, 0, 4096).await.unwrap_err();
    let waited = began.elapsed();
    assert!(first.kind == DeviceErrorKind::Io && first.detail.contains("has been away for"), "{first}");
    assert!(waited >= patience / 2 && waited < PATIENCE, "{waited:?}");
    // The time counts from the loss, so later requests fail at once.
    let began = std::time::Instant::now();
    read(&device, 0, 4096).await.unwrap_err();
    device.flush(IoContext::default()).await.unwrap_err();
    write(&device, 0, Buffer::zeroed(4096)).await.unwrap_err();
    assert!(began.elapsed() < patience / 2, "{:?}", began.elapsed());
    // Nothing was at stake, so everything works when the server is back.
    let server = start(&socket, below);
    let deadline = std::time::Instant::now() + PATIENCE;
    while device.figures()[0].get("connections_live") != Some(2) {
        assert!(std::time::Instant::now() < deadline, "it does not reconnect");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    write(&device, 0, Buffer::zeroed(4096)).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
    server.stop().await.unwrap();
}

#[tokio::test]
async fn long_ranges_need_one_command() {
    const BYTES: u64 = 16 << 30;
    let served = serve(Arc::new(MemoryDevice::new(BYTES)), false);
    let device = served.device(1).await;
    let context = IoContext::default();
    write(&*device, BYTES - 4096, Buffer::copy_of(&[1; 4096])).await.unwrap();
    let extents = device.allocation(0, BYTES, context).await.unwrap();
    assert_eq!((extents.len(), extents[0].mapped, extents[1].mapped), (2, false, true));
    device.write_zeroes(0, BYTES, context).await.unwrap();
    device.zero_quickly(0, BYTES, context).await.unwrap();
    device.discard(4096, BYTES - 4096, context).await.unwrap();
    assert_eq!(read(&*device, BYTES - 4096, 4096).await.unwrap()[0], 0);
    let figures = served.server.reader()().1[0].figures();
    assert_eq!((figures.others, figures.zeroes, figures.trims), (1, 2, 1), "{figures:?}");
    served.server.stop().await.unwrap();
}
