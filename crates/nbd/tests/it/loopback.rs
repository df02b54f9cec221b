//! A device that connects this crate's client to this crate's server behaves like any other device, over one connection
//! and over several.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{PATIENCE, Served, serve, serve_from_threads};
use nectary_block::conformance::{VolatileDevice, check, check_durability};
use nectary_block::{
    BlockDevice, Buffer, Context, DelayFilter, DelayOptions, ErrorKind, MemoryDevice, SharedDevice, WriteFlags, read,
    write,
};
use nectary_nbd::{ConnectOptions, NbdDevice, Server, Url};

/// The servers of a test. They run until the test ends.
#[derive(Default)]
struct Servers(Mutex<Vec<Server>>);

impl Servers {
    async fn device(&self, below: SharedDevice, connections: u32) -> SharedDevice {
        self.device_on(serve(below, false), connections).await
    }

    async fn device_on(&self, served: Served, connections: u32) -> SharedDevice {
        let device = served.device(connections).await;
        assert_eq!(device.connections(), connections as usize);
        self.0.lock().unwrap().push(served.server);
        device
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_of_memory_conforms_over_one_connection_and_over_four() {
    let servers = Servers::default();
    for connections in [1, 4] {
        let make = |bytes| servers.device(Arc::new(MemoryDevice::new(bytes)), connections);
        let clauses = check(make).await.unwrap_or_else(|failure| panic!("{connections} connections: {failure}"));
        println!("{clauses} clauses over {connections} connections");
    }
}

#[tokio::test]
async fn a_flush_over_nbd_survives_a_loss_of_power() {
    let servers = Servers::default();
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
async fn forced_zeroes_survive_a_loss_of_power() {
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

#[tokio::test]
async fn connections_that_threads_share_conform_and_a_flush_on_one_covers_all() {
    let servers = Servers::default();
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
async fn a_server_with_threads_stops_when_the_last_request_has_ended() {
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
async fn operations_longer_than_a_request_are_cut_into_several() {
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
    let context = Context::default();
    let back = device.write_at(0, buffers.collect(), WriteFlags { fua: true }, context).await.unwrap();
    assert_eq!(back.iter().map(|buffer| buffer.len()).sum::<usize>(), BYTES);
    let rooms = vec![Buffer::zeroed(BYTES - 4096), Buffer::zeroed(4096)];
    let found = device.read_at(0, rooms, context).await.unwrap();
    assert!(found[0][..] == data[..BYTES - 4096] && found[1][..] == data[BYTES - 4096..]);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_read_only_export_takes_no_writes_and_is_read() {
    let below = Arc::new(MemoryDevice::new(1 << 20));
    write(&*below, 0, Buffer::copy_of(&[5; 4096])).await.unwrap();
    let served = serve(below, true);
    let device = served.device(2).await;
    assert_eq!(read(&*device, 0, 4096).await.unwrap()[0], 5);
    let context = Context::default();
    let refused = [
        write(&*device, 0, Buffer::zeroed(4096)).await.err().map(|error| error.kind),
        device.write_zeroes(0, 4096, context).await.err().map(|error| error.kind),
    ];
    assert_eq!(refused, [Some(ErrorKind::Unsupported); 2]);
    // A discard is only a hint, so it does not fail.
    device.discard(0, 4096, context).await.unwrap();
    assert_eq!(read(&*device, 0, 4096).await.unwrap()[0], 5);
    device.flush(context).await.unwrap();
}

#[tokio::test]
async fn a_lost_connection_is_made_again_where_nothing_can_be_lost() {
    let below: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    let served = serve(below.clone(), false);
    let device = served.device(2).await;
    write(&*device, 0, Buffer::copy_of(&[1; 4096])).await.unwrap();
    device.flush(Context::default()).await.unwrap();
    let served = restart(served, below.clone()).await;
    let deadline = std::time::Instant::now() + crate::support::PATIENCE;
    while device.figures()[0].get("reconnects") < Some(2) {
        assert!(std::time::Instant::now() < deadline, "the end of the connections is not noticed");
        tokio::task::yield_now().await;
    }
    write(&*device, 4096, Buffer::copy_of(&[2; 4096])).await.unwrap();
    device.flush(Context::default()).await.unwrap();
    assert_eq!(read(&*device, 0, 4096).await.unwrap()[0], 1);
    assert!(device.figures()[0].get("reconnects") >= Some(1));
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn after_a_lost_connection_with_unflushed_writes_no_flush_pretends() {
    let below: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    let served = serve(below.clone(), false);
    let device = served.device(1).await;
    write(&*device, 0, Buffer::copy_of(&[1; 4096])).await.unwrap();
    let served = restart(served, below).await;
    // Reads continue. The first read may still fail because the connection is lost.
    if read(&*device, 0, 4096).await.is_err() {
        read(&*device, 0, 4096).await.unwrap();
    }
    let flushed = device.flush(Context::default()).await.unwrap_err();
    assert_eq!(flushed.kind, ErrorKind::Latched, "{flushed}");
    assert!(flushed.detail.contains("open the device again"), "{flushed}");
    let written = write(&*device, 0, Buffer::zeroed(4096)).await.unwrap_err();
    assert_eq!(written.kind, ErrorKind::Latched);
    served.server.stop().await.unwrap();
}

/// Stops a server and starts another server on the same socket.
async fn restart(served: Served, below: SharedDevice) -> Served {
    let socket = served.socket.clone();
    served.server.stop().await.unwrap();
    Served { server: start(&socket, below), socket }
}

/// Starts a server on a socket.
fn start(socket: &std::path::Path, below: SharedDevice) -> Server {
    let export = nectary_nbd::Export::new("disk", "", below, false).unwrap();
    let exports = nectary_nbd::Exports::new(vec![export]).unwrap();
    let listen = [nectary_nbd::Listen::Unix(socket.to_owned())];
    Server::start(&listen, exports, nectary_nbd::ServerOptions::default()).unwrap()
}

#[tokio::test]
async fn a_server_that_does_not_answer_costs_the_request_time_and_no_more() {
    let never = Duration::from_secs(3600);
    let slow = DelayOptions { read: never, ..DelayOptions::default() };
    let served = serve(Arc::new(DelayFilter::new(Arc::new(MemoryDevice::new(1 << 20)), slow)), false);
    let url = Url { request_time: Some(Duration::from_millis(100)), ..served.url(1) };
    let device = NbdDevice::connect(&url, ConnectOptions::default()).await.unwrap();
    let began = std::time::Instant::now();
    let late = read(&device, 0, 4096).await.unwrap_err();
    assert_eq!(late.kind, ErrorKind::TimedOut, "{late}");
    assert!(began.elapsed() >= Duration::from_millis(100) && began.elapsed() < crate::support::PATIENCE);
    // Later requests use a new connection.
    write(&device, 0, Buffer::zeroed(4096)).await.unwrap();
    device.flush(Context::default()).await.unwrap();
}

#[tokio::test]
async fn odd_export_is_used_to_its_last_byte() {
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
    assert_eq!(refused.kind, ErrorKind::Full, "{refused}");
    let mut buffer = Buffer::zeroed(1024);
    buffer[..700].fill(6);
    device.write_at(8192, vec![buffer], WriteFlags { fua: true }, Context::default()).await.unwrap();
    let extents = device.allocation(0, size, Context::default()).await.unwrap();
    assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), size);
    device.write_zeroes(0, size, Context::default()).await.unwrap();
    device.discard(0, size, Context::default()).await.unwrap();
    device.flush(Context::default()).await.unwrap();
    served.server.stop().await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), vec![0; BYTES]);
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn requests_wait_for_a_server_that_restarts() {
    let below: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    let served = serve(below.clone(), false);
    let device = served.device(2).await;
    write(&*device, 0, Buffer::copy_of(&[1; 4096])).await.unwrap();
    device.flush(Context::default()).await.unwrap();
    let socket = served.socket.clone();
    served.server.stop().await.unwrap();
    let returns = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        start(&socket, below)
    };
    let work = async {
        assert_eq!(read(&*device, 0, 4096).await.unwrap()[0], 1);
        write(&*device, 4096, Buffer::copy_of(&[2; 4096])).await.unwrap();
        device.flush(Context::default()).await.unwrap();
        device.discard(8192, 4096, Context::default()).await.unwrap();
        device.allocation(0, 8192, Context::default()).await.unwrap()
    };
    let (server, extents) = tokio::time::timeout(PATIENCE, async { tokio::join!(returns, work) }).await.unwrap();
    assert!(extents[0].mapped);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn server_that_is_away_costs_patience_once() {
    let below: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    let served = serve(below.clone(), false);
    let patience = Duration::from_millis(400);
    let url = Url { patience: Some(patience), ..served.url(2) };
    let device = NbdDevice::connect(&url, ConnectOptions::default()).await.unwrap();
    let socket = served.socket.clone();
    served.server.stop().await.unwrap();
    let began = std::time::Instant::now();
    let first = read(&device, 0, 4096).await.unwrap_err();
    let waited = began.elapsed();
    assert!(first.kind == ErrorKind::Io && first.detail.contains("has been away for"), "{first}");
    assert!(waited >= patience / 2 && waited < PATIENCE, "{waited:?}");
    // The time counts from the loss, so later requests fail at once.
    let began = std::time::Instant::now();
    read(&device, 0, 4096).await.unwrap_err();
    device.flush(Context::default()).await.unwrap_err();
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
    device.flush(Context::default()).await.unwrap();
    server.stop().await.unwrap();
}

#[tokio::test]
async fn long_ranges_need_one_command() {
    const BYTES: u64 = 16 << 30;
    let served = serve(Arc::new(MemoryDevice::new(BYTES)), false);
    let device = served.device(1).await;
    let context = Context::default();
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
