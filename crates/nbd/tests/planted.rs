//! The checks catch each planted bug, and without a bug no check fails. This test needs its own process, because a
//! planted bug affects the whole process.

mod support;

use std::sync::Arc;
use std::time::Duration;

use nectary_block::conformance::VolatileDevice;
use nectary_block::{
    BlockDevice, Buffer, DelayFilter, DelayOptions, IoContext, MemoryDevice, StatsFilter, read, write,
};
use nectary_nbd::planted::{Bug, plant};
use support::serve;

const WRITE: u16 = 1;

/// Checks that no write is lost when parts of a block and the whole block are written concurrently.
async fn parts_of_a_block() -> Result<(), String> {
    let slow = DelayOptions { read: Duration::from_millis(2), write: Duration::from_millis(1), ..Default::default() };
    let served = serve(Arc::new(DelayFilter::new(Arc::new(MemoryDevice::new(1 << 20)), slow)), false);
    let mut clients = [served.transmitting().await, served.transmitting().await];
    for round in 0..4u64 {
        let block = round * 4096;
        for part in 0..8u64 {
            let data = [part as u8 + 1; 512];
            clients[part as usize % 2].request(WRITE, 0, part, block + part * 512, 512, &data).await;
        }
        for part in 0..8 {
            assert_eq!(clients[part % 2].reply(0).await.error, 0);
        }
        let found = clients[0].ask(0, 0, block, 4096, &[]).await.data;
        for (part, bytes) in found.chunks(512).enumerate() {
            if bytes != [part as u8 + 1; 512] {
                return Err(format!("round {round}: part {part} of a block has {}", bytes[0]));
            }
        }
        // A whole block is written while a part of it is read, changed and written. The result must be the same as if
        // one write had followed the other.
        clients[0].request(WRITE, 0, 1, block + 512, 512, &[0x55; 512]).await;
        clients[1].request(WRITE, 0, 2, block, 4096, &[0x77; 4096]).await;
        assert_eq!((clients[0].reply(0).await.error, clients[1].reply(0).await.error), (0, 0));
        let found = clients[0].ask(0, 0, block, 4096, &[]).await.data;
        let is_whole = |range: std::ops::Range<usize>| found[range].iter().all(|&byte| byte == 0x77);
        if !is_whole(0..512) || !is_whole(1024..4096) {
            return Err(format!("round {round}: a whole block that was written is gone in part"));
        }
    }
    served.server.stop().await.map_err(|error| error.to_string())
}

/// Checks that bytes that were written on one connection survive a loss of power after a flush on another connection.
async fn flush_of_others() -> Result<(), String> {
    let below = VolatileDevice::new(1 << 20);
    let served = serve(Arc::new(StatsFilter::new(below.clone())), false);
    let (one, other) = (served.device(1).await, served.device(1).await);
    write(&*one, 8192, Buffer::copy_of(&[3; 4096])).await.map_err(|error| error.to_string())?;
    other.flush(IoContext::default()).await.map_err(|error| error.to_string())?;
    let found = read(&*below.crash(), 8192, 4096).await.map_err(|error| error.to_string())?;
    if found[0] != 3 { Err(format!("a flushed block has {}", found[0])) } else { Ok(()) }
}

/// Checks, by a read of this crate's client, that the server's replies follow the protocol.
async fn replies() -> Result<(), String> {
    let served = serve(Arc::new(MemoryDevice::new(1 << 20)), false);
    let device = served.device(1).await;
    let buffer = read(&*device, 4096, 4096).await.map_err(|error| error.to_string())?;
    assert!(buffer.iter().all(|&byte| byte == 0));
    Ok(())
}

async fn check(bug: Bug) -> Result<(), String> {
    match bug {
        Bug::RangeUnlocked => parts_of_a_block().await,
        Bug::FlushOfOwnWritesOnly => flush_of_others().await,
        Bug::DataTwice | Bug::WrongCookie => replies().await,
    }
}

/// Each planted bug is caught, and the same check passes without the bug.
#[tokio::test]
async fn planted_bugs_are_caught() {
    for &bug in Bug::EVERY {
        plant(None);
        check(bug).await.unwrap_or_else(|found| panic!("without {}: {found}", bug.name()));
        plant(Some(bug));
        let found = check(bug).await;
        plant(None);
        let found = found.expect_err(&format!("planted and not caught: {}", bug.name()));
        println!("planted: {}: caught: {found}", bug.name());
    }
}
