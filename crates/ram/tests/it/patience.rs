//! Two donors are lost: requests wait once, and then fail at once.

use std::time::{Duration, Instant};

use crate::support::{PATIENCE, ServingDonor, create, options, spec};
use nectary_block::{BlockDevice, Buffer, IoContext, read, write};
use nectary_ram::device::owner::RamDevice;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patience_is_counted_from_the_loss() {
    for (redundancy, count) in [("mirror", 2), ("adaptive", 3)] {
        let mut donors: Vec<ServingDonor> = (0..count).map(|_| ServingDonor::new(20 << 20)).collect();
        let more = format!(",redundancy={redundancy},patience=2s");
        let named = spec(&donors.iter().collect::<Vec<_>>(), &more);
        create(&spec(&donors.iter().collect::<Vec<_>>(), &format!(",size=6M{more}"))).await.unwrap();
        let device = RamDevice::open(options(&named)).await.unwrap();
        write(&device, 0, Buffer::copy_of(&vec![7; BLOCK * BLOCKS as usize])).await.unwrap();
        device.flush(IoContext::default()).await.unwrap();
        let left = || device.figures()[0].get("left").unwrap_or_default();
        donors.pop().unwrap().end().await;
        let deadline = Instant::now() + PATIENCE;
        while left() == 0 {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        donors.pop().unwrap().end().await;
        let (lost, mut failed) = (Instant::now(), 0);
        for block in 0..BLOCKS {
            failed += u64::from(read(&device, block * BLOCK as u64, BLOCK).await.is_err());
        }
        assert!(failed > 0, "{redundancy}: the blocks of two donors are errors");
        let written = write(&device, 0, Buffer::copy_of(&[8; BLOCK])).await;
        assert!(written.is_err() || device.flush(IoContext::default()).await.is_err(), "{redundancy}");
        assert!(lost.elapsed() < Duration::from_secs(4), "{redundancy}: {failed} errors in {:?}", lost.elapsed());
    }
}
