//! A server answers any bytes of a client as the protocol document requires, and keeps the connection open whenever the
//! document requires that.

use std::sync::Arc;

use crate::support::{DiskServer, named, serve, serve_few};
use nectary_block::{
    BlockDevice, DeviceErrorKind, DeviceOperation, Error, Filter, IoContext, IoFuture, MemoryDevice, SharedDevice, read,
};
use tokio::io::AsyncWriteExt;

const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EOVERFLOW: u32 = 75;
const ENOTSUP: u32 = 95;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const ZEROES: u16 = 6;
const STATUS: u16 = 7;
const SIZE: u64 = 1 << 20;
const ERR: u32 = 1 << 31;

fn memory(read_only: bool) -> DiskServer {
    let device: SharedDevice = Arc::new(MemoryDevice::new(SIZE));
    serve(device, read_only)
}

/// Wrong and unknown options get an error, and the connection goes on.
#[tokio::test]
async fn every_option_is_answered() {
    let served = memory(false);
    let mut raw = served.raw().await;
    let long = vec![0; (64 << 10) + 1];
    let (at_limit, no_query) = (vec![0; 64 << 10], named("disk", &0u32.to_be_bytes()));
    for (option, data, reply) in [
        (99, &b"whatever"[..], ERR | 1),
        (11, &b"data"[..], ERR | 3),
        (4, &at_limit[..], ERR | 1),
        (4, &long[..], ERR | 9),
        (3, &b"data"[..], ERR | 3),
        (5, &b""[..], ERR | 2),
        (5, &b"data"[..], ERR | 3),
        (8, &b"data"[..], ERR | 3),
        (7, &b"abc"[..], ERR | 3),
        (7, &named("disk", &7u16.to_be_bytes())[..], ERR | 3),
        (7, &named("d\0sk", &0u16.to_be_bytes())[..], ERR | 3),
        (7, &named("other", &0u16.to_be_bytes())[..], ERR | 6),
        (6, &named(&"x".repeat(4097), &0u16.to_be_bytes())[..], ERR | 9),
        (10, &no_query[..], ERR | 3),
    ] {
        raw.option(option, data).await;
        assert_eq!(raw.option_reply(option).await.0, reply, "option {option} with {} bytes", data.len());
    }
    raw.option(3, &[]).await;
    assert_eq!(raw.option_reply(3).await, (2, named("disk", b"a disk for tests")));
    assert_eq!(raw.option_reply(3).await.0, 1);
    assert_eq!(raw.go().await.0, SIZE);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn metadata_contexts_are_negotiated() {
    let served = memory(false);
    let mut raw = served.raw().await;
    raw.structured().await;
    let query = |text: &str| {
        let query = [&1u32.to_be_bytes()[..], &(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
        named("disk", &query)
    };
    for (option, data, is_found) in [
        (9, named("disk", &0u32.to_be_bytes()), true),
        (9, query("base:"), true),
        (9, query("base:other"), false),
        (9, query("qemu:dirty"), false),
        (10, query("base:"), false),
        (10, query("base:allocation"), true),
    ] {
        raw.option(option, &data).await;
        let (reply, data) = raw.option_reply(option).await;
        assert_eq!(reply == 4, is_found, "option {option}");
        if is_found {
            assert_eq!(&data[4..], b"base:allocation");
            assert_eq!(raw.option_reply(option).await.0, 1);
        }
    }
    // A failed choice of contexts resets the earlier choice.
    raw.option(10, &query("no colon")).await;
    assert_eq!(raw.option_reply(10).await.0, ERR | 3);
    raw.go().await;
    assert_eq!(raw.ask(STATUS, 0, 0, 4096, &[]).await.error, EINVAL);

    let mut raw = served.raw().await;
    raw.structured().await;
    raw.option(10, &query("base:allocation")).await;
    raw.option_reply(10).await;
    raw.option_reply(10).await;
    raw.go().await;
    let hole = [SIZE as u32, 3].map(u32::to_be_bytes).concat();
    assert_eq!(raw.ask(STATUS, 0, 0, SIZE as u32, &[]).await.data, hole);
    assert_eq!(raw.ask(WRITE, 0, 4096, 4096, &[1; 4096]).await.error, 0);
    let one = [512u32, 3].map(u32::to_be_bytes).concat();
    assert_eq!(raw.ask(STATUS, 8, 512, 512, &[]).await.data.len(), one.len(), "one extent was wanted");
    served.server.stop().await.unwrap();
}

/// Wrong requests get an error, and the connection goes on.
#[tokio::test]
async fn wrong_requests_get_errors() {
    for is_structured in [false, true] {
        let served = memory(false);
        let mut raw = served.raw().await;
        if is_structured {
            raw.structured().await;
        }
        let (size, flags) = raw.go().await;
        assert_eq!((size, flags & 2, flags & 0x80 != 0), (SIZE, 0, is_structured));
        let data = vec![9; 4096];
        let past = u64::MAX - 100;
        let too_long = if is_structured { EOVERFLOW } else { EINVAL };
        for (command, flags, offset, length, data, error) in [
            (READ, 0, SIZE, 1, &[][..], EINVAL),
            (READ, 0, past, 4096, &[][..], EINVAL),
            (READ, 0, 0, u32::MAX, &[][..], EINVAL),
            (READ, 0x20, 0, 1, &[][..], EINVAL),
            (READ, 2, 0, 1, &[][..], EINVAL),
            (READ, 4, 0, 1, &[][..], if is_structured { 0 } else { EINVAL }),
            (WRITE, 0, SIZE - 1, 4096, &data[..], ENOSPC),
            (WRITE, 2, 0, 4096, &data[..], EINVAL),
            (TRIM, 0, SIZE, 1, &[][..], EINVAL),
            (TRIM, 4, 0, 1, &[][..], EINVAL),
            (ZEROES, 0, SIZE - 1, 2, &[][..], ENOSPC),
            (ZEROES, 16, 0, 4096, &[][..], 0),
            (ZEROES, 16, 1, 4000, &[][..], ENOTSUP),
            (ZEROES, 16 | 2, 0, 4096, &[][..], ENOTSUP),
            (CACHE, 0, SIZE, 1, &[][..], EINVAL),
            (FLUSH, 0, 1, 0, &[][..], EINVAL),
            (FLUSH, 0, 0, 1, &[][..], EINVAL),
            (STATUS, 0, 0, 4096, &[][..], EINVAL),
            (8, 0, 0, 0, &[][..], EINVAL),
            (9999, 0, 0, 0, &[][..], EINVAL),
        ] {
            let found = raw.ask(command, flags, offset, length, data).await.error;
            assert_eq!(found, error, "command {command} with flags {flags:#x}, {length} bytes at {offset}");
        }
        // On a large device, the length is the only mistake in the request.
        let large = serve(Arc::new(MemoryDevice::new(1 << 40)), false);
        let mut other = large.raw().await;
        if is_structured {
            other.structured().await;
        }
        other.go().await;
        assert_eq!(other.ask(READ, 0, 0, (32 << 20) + 1, &[]).await.error, too_long);
        assert_eq!(other.ask(READ, 0, 0, 32 << 20, &[]).await.data.len(), 32 << 20);
        assert_eq!(other.ask(ZEROES, 0, 3, u32::MAX, &[]).await.error, 0);
        // After all these errors the connection still works.
        assert_eq!(raw.ask(WRITE, 1, 1000, 5, b"hello").await.error, 0);
        assert_eq!(raw.ask(READ, 0, 998, 9, &[]).await.data, b"\0\0hello\0\0");
        assert_eq!(raw.ask(READ, 0, 0, 0, &[]).await.error, 0);
        assert_eq!(raw.ask(ZEROES, 1 | 2, 1001, 3, &[]).await.error, 0);
        assert_eq!(raw.ask(TRIM, 1, 0, 1000, &[]).await.error, 0);
        assert_eq!(raw.ask(CACHE, 0, 0, 4097, &[]).await.error, 0);
        assert_eq!(raw.ask(FLUSH, 0, 0, 0, &[]).await.error, 0);
        assert_eq!(raw.ask(READ, 0, 998, 9, &[]).await.data, b"\0\0h\0\0\0o\0\0");
        served.server.stop().await.unwrap();
        large.server.stop().await.unwrap();
    }
}

/// Zeroes that must be fast are refused by a device that writes them slowly, with nothing changed.
#[tokio::test]
async fn slow_zeroes_are_refused_unchanged() {
    let quick: SharedDevice = Arc::new(MemoryDevice::new(SIZE));
    let slow: SharedDevice = Arc::new(SlowZeroDevice(Arc::new(MemoryDevice::new(SIZE))));
    for (device, error, left) in [(quick, 0, 0), (slow, ENOTSUP, 9)] {
        let served = serve(device, false);
        let mut raw = served.transmitting().await;
        assert_eq!(raw.ask(WRITE, 0, 0, 16384, &[9; 16384]).await.error, 0);
        assert_eq!(raw.ask(ZEROES, 16, 100, 10000, &[]).await.error, error);
        let found = raw.ask(READ, 0, 0, 16384, &[]).await.data;
        assert!(found[100..10100].iter().all(|&byte| byte == left));
        assert!(found[..100].iter().chain(&found[10100..]).all(|&byte| byte == 9));
        let (_, exports) = served.server.reader()();
        assert_eq!(exports[0].figures().failed, 0, "it is no failure");
        // This crate's client gets the same results.
        let device = served.device(1).await;
        let zeroed = device.zero_quickly(8192, 8192, IoContext::default()).await.map_err(|error| error.kind);
        assert_eq!(zeroed, if error == 0 { Ok(()) } else { Err(DeviceErrorKind::Unsupported) });
        assert_eq!(read(&*device, 12288, 4096).await.unwrap()[4000], left);
        served.server.stop().await.unwrap();
    }
}

/// A device on which writing zeroes may be as slow as writing data.
struct SlowZeroDevice(SharedDevice);

impl Filter for SlowZeroDevice {
    fn inner(&self) -> &SharedDevice {
        &self.0
    }

    fn spec(&self) -> String {
        self.0.spec()
    }

    fn zero_quickly(&self, _: u64, _: u64, _: IoContext) -> IoFuture<()> {
        let error =
            Error::new(DeviceErrorKind::Unsupported, &self.0.spec(), DeviceOperation::WriteZeroes, "it is slow");
        Box::pin(std::future::ready(Err(error)))
    }
}

#[tokio::test]
async fn read_only_export_answers_eperm() {
    let served = memory(true);
    let mut raw = served.raw().await;
    assert_eq!(raw.go().await.1 & 2, 2);
    assert_eq!(raw.ask(WRITE, 0, 0, 4096, &[1; 4096]).await.error, EPERM);
    assert_eq!(raw.ask(TRIM, 0, 0, 4096, &[]).await.error, EPERM);
    assert_eq!(raw.ask(ZEROES, 0, 0, 4096, &[]).await.error, EPERM);
    assert_eq!(raw.ask(READ, 0, 0, 4, &[]).await.data, [0; 4]);
    served.server.stop().await.unwrap();
}

/// A client that breaks the protocol loses its own connection; other connections go on.
#[tokio::test]
async fn protocol_violation_ends_own_connection() {
    let served = memory(false);
    let mut witness = served.transmitting().await;
    // Each of these ends its connection: unknown flags, an option or a request without its magic number, and a write
    // that is longer than the limit.
    let mut raw = served.raw().await;
    raw.stream.write_all(&[0; 16]).await.unwrap();
    assert!(raw.is_closed().await);
    let mut raw = served.transmitting().await;
    raw.stream.write_all(&[7; 28]).await.unwrap();
    assert!(raw.is_closed().await);
    let mut raw = served.transmitting().await;
    raw.request(WRITE, 0, 1, 0, (32 << 20) + 1, &[]).await;
    assert!(raw.is_closed().await);
    let mut raw = served.raw().await;
    raw.option(1, b"no such export").await;
    assert!(raw.is_closed().await);
    let mut raw = served.raw().await;
    raw.option(2, &[]).await;
    assert_eq!(raw.option_reply(2).await.0, 1);
    assert!(raw.is_closed().await);
    // A client may disconnect in the middle of a write, or with requests in flight.
    let mut raw = served.transmitting().await;
    raw.request(WRITE, 0, 1, 0, 4096, &[1; 100]).await;
    drop(raw);
    let mut raw = served.transmitting().await;
    for cookie in 0..100 {
        raw.request(READ, 0, cookie, 0, 65536, &[]).await;
    }
    drop(raw);
    assert_eq!(witness.ask(READ, 0, 0, 4, &[]).await.data, [0; 4]);
    let (figures, _) = served.server.reader()();
    assert!(figures.broken >= 4 && figures.last_reason.is_some(), "{figures:?}");
    served.server.stop().await.unwrap();
}

/// Requests beyond the limit wait for earlier ones, and all are answered.
#[tokio::test]
async fn requests_past_limit_are_answered() {
    let served = memory(false);
    let mut raw = served.transmitting().await;
    let (mut reader, mut writer) = raw.stream.split();
    let requests = 3 * nectary_nbd::limits::REQUESTS_MAX as u64;
    let send = async {
        for cookie in 0..requests {
            let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
            bytes.extend([0; 4]);
            bytes.extend(cookie.to_be_bytes());
            bytes.extend((cookie * 512 % SIZE).to_be_bytes());
            bytes.extend(512u32.to_be_bytes());
            writer.write_all(&bytes).await.unwrap();
        }
    };
    let receive = async {
        let mut seen = std::collections::BTreeSet::new();
        let mut reply = [0; 16 + 512];
        for _ in 0..requests {
            tokio::io::AsyncReadExt::read_exact(&mut reader, &mut reply).await.unwrap();
            seen.insert(u64::from_be_bytes(reply[8..16].try_into().unwrap()));
        }
        assert_eq!(seen.len() as u64, requests);
    };
    tokio::time::timeout(crate::support::PATIENCE, async { tokio::join!(send, receive) }).await.unwrap();
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn idle_connections_keep_no_client_out() {
    for threads in [0, 2] {
        let served = serve_few(Arc::new(MemoryDevice::new(SIZE)), threads, 8);
        let mut working = served.transmitting().await;
        assert_eq!(working.ask(READ, 0, 0, 4, &[]).await.error, 0);
        // More idle connections than the limit: silent ones, ones that haggle, and ones that have the export.
        let (mut silent, mut idle) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            silent.push(tokio::net::UnixStream::connect(&served.socket).await.unwrap());
            idle.push(served.raw().await);
            idle.push(served.transmitting().await);
        }
        let mut late = served.transmitting().await;
        assert_eq!(late.ask(READ, 0, 0, 4, &[]).await.error, 0);
        assert_eq!(working.ask(READ, 0, 0, 4, &[]).await.error, 0, "a client that works keeps its connection");
        let (figures, _) = served.server.reader()();
        assert!(figures.displaced >= 16 && figures.turned_away == 0, "{figures:?}");
        // If all connections are used, a further client is turned away.
        let mut used = Vec::new();
        for _ in 0..6 {
            let mut client = served.transmitting().await;
            assert_eq!(client.ask(READ, 0, 0, 4, &[]).await.error, 0);
            used.push(client);
        }
        let mut refused = tokio::net::UnixStream::connect(&served.socket).await.unwrap();
        let mut rest = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut refused, &mut rest).await.unwrap();
        assert!(rest.is_empty(), "it is turned away");
        served.server.stop().await.unwrap();
    }
}

#[tokio::test]
async fn extended_headers_carry_long_ranges() {
    const LARGE: u64 = 1 << 42;
    let served = serve(Arc::new(MemoryDevice::new(LARGE)), false);
    let mut raw = served.raw().await;
    raw.extended().await;
    raw.option(8, &[]).await;
    assert_eq!(raw.option_reply(8).await.0, ERR | 10, "the headers cannot become shorter again");
    let query = [&1u32.to_be_bytes()[..], &15u32.to_be_bytes(), b"base:allocation"].concat();
    raw.option(10, &named("disk", &query)).await;
    assert_eq!((raw.option_reply(10).await.0, raw.option_reply(10).await.0), (4, 1));
    assert_eq!(raw.go().await.0, LARGE);
    let extents = |list: &[(u64, u64)]| -> Vec<u8> {
        list.iter().flat_map(|&(length, flags)| [length, flags].map(u64::to_be_bytes).concat()).collect()
    };
    assert_eq!(raw.ask(WRITE, 1, LARGE - 65536, 65536, &[7; 65536]).await.error, 0);
    assert_eq!(raw.ask(READ, 4, LARGE - 4, 4, &[]).await.data, [7; 4]);
    let found = raw.ask_long(STATUS, 0, 0, LARGE, &[]).await.data;
    assert_eq!(found, extents(&[(LARGE - 65536, 3), (65536, 0)]));
    assert_eq!(raw.ask_long(STATUS, 8, 0, LARGE, &[]).await.data, extents(&[(LARGE - 65536, 3)]));
    assert_eq!(raw.ask_long(TRIM, 1, 100, LARGE - 200, &[]).await.error, 0);
    assert_eq!(raw.ask_long(ZEROES, 0, 1, LARGE - 2, &[]).await.error, 0);
    let found = raw.ask(READ, 0, LARGE - 4, 4, &[]).await.data;
    assert_eq!(found, [0, 0, 0, 7]);
    assert_eq!(raw.ask_long(ZEROES, 16, 0, LARGE, &[]).await.error, 0);
    assert_eq!(raw.ask(FLUSH, 0, 0, 0, &[]).await.error, 0);
    // Wrong requests are errors, and the data behind one are skipped.
    for (command, flags, offset, length, data, error) in [
        (ZEROES, 0, 1, LARGE, &[][..], ENOSPC),
        (TRIM, 0, 2, u64::MAX - 1, &[][..], EINVAL),
        (READ, 0, 0, 1 << 33, &[][..], EOVERFLOW),
        (CACHE, 0, 0, 1 << 33, &[][..], EOVERFLOW),
        (READ, 32, 0, 5, &b"noise"[..], EINVAL),
        (STATUS, 32, 0, 12, &b"more noise.."[..], EINVAL),
        (WRITE, 32, LARGE, 5, &b"noise"[..], ENOSPC),
    ] {
        let found = raw.ask_long(command, flags, offset, length, data).await.error;
        assert_eq!(found, error, "command {command} with flags {flags:#x}, {length} bytes at {offset}");
    }
    assert_eq!(raw.ask(READ, 0, 0, 4, &[]).await.data, [0; 4]);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn breaches_of_extended_headers_end_connections() {
    let served = memory(false);
    // A write whose flags say that it has no data, data beyond the limit, and a header of the other kind.
    for (command, flags, length) in [(WRITE, 0, 4096), (READ, 32, (32 << 20) + 1)] {
        let mut raw = served.raw().await;
        raw.extended().await;
        raw.go().await;
        let numbers = [0u64, 0, length].map(u64::to_be_bytes).concat();
        let header = [&0x21e4_1c71u32.to_be_bytes()[..], &[flags, command].map(u16::to_be_bytes).concat(), &numbers];
        raw.stream.write_all(&header.concat()).await.unwrap();
        assert!(raw.is_closed().await);
    }
    let mut raw = served.raw().await;
    raw.extended().await;
    raw.go().await;
    raw.stream.write_all(&[&0x2560_9513u32.to_be_bytes()[..], &[0; 28]].concat()).await.unwrap();
    assert!(raw.is_closed().await);
    let mut raw = served.raw().await;
    raw.extended().await;
    raw.option(1, b"disk").await;
    assert!(raw.is_closed().await, "the oldest option has no extended headers");
    served.server.stop().await.unwrap();
}
