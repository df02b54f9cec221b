//! A device with parity that is changed in place, on donors in this process: lost donors, and a client that ends in the
//! middle of its work.

use std::time::{Duration, Instant};

use crate::support::{ServingDonor, create, options, spec};
use nectary_block::{BlockDevice, Buffer, DeviceErrorKind, IoContext, SurvivalLevel, read, write};
use nectary_ram::check::{RedundancyHealth, check};
use nectary_ram::device::owner::RamDevice;

const BYTES: usize = 6 << 20;
const BLOCK: usize = 4096;

fn content(version: u8) -> Vec<u8> {
    (0..BYTES).map(|at| version ^ (at / BLOCK * 13) as u8 ^ (at % 251) as u8).collect()
}

fn number(device: &RamDevice, name: &str) -> u64 {
    device.figures()[0].get(name).unwrap_or_default()
}

async fn wait_for(device: &RamDevice, name: &str, value: u64) {
    let deadline = Instant::now() + crate::support::PATIENCE;
    while number(device, name) != value {
        assert!(Instant::now() < deadline, "{name} is not {value}: {:?}", device.figures()[0]);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn holds(device: &RamDevice, version: u8) {
    let found = read(device, 0, BYTES).await.unwrap();
    let wrong = found.iter().zip(content(version)).filter(|(found, expected)| **found != *expected).count();
    assert_eq!(wrong, 0, "{wrong} wrong bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parity_survives_successive_donor_losses() {
    let mut donors: Vec<ServingDonor> = (0..4).map(|_| ServingDonor::new(8 << 20)).collect();
    let sized = spec(&donors.iter().collect::<Vec<_>>(), ",size=6M,redundancy=parity,patience=20s");
    create(&sized).await.unwrap();
    let device = RamDevice::open(options(&sized)).await.unwrap();
    assert_eq!(device.geometry().flush_survives, SurvivalLevel::Donor);
    let (one, two) = (content(1), content(2));
    write(&device, 0, Buffer::copy_of(&one)).await.unwrap();
    // Single blocks, so that old data and parity are read.
    for block in (0..BYTES / BLOCK).step_by(7) {
        write(&device, (block * BLOCK) as u64, Buffer::copy_of(&one[block * BLOCK..][..BLOCK])).await.unwrap();
    }
    let socket = donors.remove(1).end().await;
    holds(&device, 1).await;
    write(&device, 0, Buffer::copy_of(&two)).await.unwrap();
    for block in (0..BYTES / BLOCK).step_by(5) {
        write(&device, (block * BLOCK) as u64, Buffer::copy_of(&two[block * BLOCK..][..BLOCK])).await.unwrap();
    }
    holds(&device, 2).await;
    assert_eq!(device.geometry().flush_survives, SurvivalLevel::Nothing);
    assert!(number(&device, "reconstructed_reads") > 0);
    donors.insert(1, ServingDonor::at(socket, 8 << 20));
    wait_for(&device, "rebuilt", 1).await;
    wait_for(&device, "degraded", 0).await;
    donors.remove(2).end().await;
    holds(&device, 2).await;
    device.discard(0, 1 << 20, IoContext::default()).await.unwrap();
    assert!(read(&device, 0, 1 << 20).await.unwrap().iter().all(|byte| *byte == 0));
    device.detach().await.unwrap();
    drop(device);
    let checked = check(&options(&sized), &mut |_, _| {}).await.unwrap();
    assert_eq!((checked.health, checked.counts.lost_blocks), (RedundancyHealth::Degraded, 0), "{checked:?}");
}

/// What a missing donor had of unfinished stripes is an error, never wrong bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_stripes_return_errors() {
    let mut donors: Vec<ServingDonor> = (0..3).map(|_| ServingDonor::new(8 << 20)).collect();
    let sized = spec(&donors.iter().collect::<Vec<_>>(), ",size=6M,redundancy=parity,patience=20s");
    create(&sized).await.unwrap();
    let device = RamDevice::open(options(&sized)).await.unwrap();
    let one = content(1);
    write(&device, 0, Buffer::copy_of(&one)).await.unwrap();
    wait_for(&device, "dirty_stripes", 0).await;
    // The stripe is marked before the write returns, and stays so for a while.
    write(&device, 0, Buffer::copy_of(&one[..BLOCK])).await.unwrap();
    drop(device);
    donors.remove(1).end().await;
    let before = check(&options(&sized), &mut |_, _| {}).await.unwrap();
    let device = RamDevice::open(options(&sized)).await.unwrap();
    let lost = number(&device, "lost_blocks");
    assert_eq!(lost, before.counts.lost_blocks);
    let mut errors = 0;
    for block in 0..BYTES / BLOCK {
        let expected = &one[block * BLOCK..][..BLOCK];
        match read(&device, (block * BLOCK) as u64, BLOCK).await {
            Ok(found) => assert!(found[..] == *expected, "block {block}"),
            Err(error) => {
                assert_eq!(error.kind, DeviceErrorKind::Io, "{error}");
                errors += 1;
                write(&device, (block * BLOCK) as u64, Buffer::copy_of(expected)).await.unwrap();
            }
        }
    }
    assert!(errors > 0 && errors == lost, "{errors} errors, {lost} lost");
    holds(&device, 1).await;
    device.detach().await.unwrap();
    drop(device);
    let after = check(&options(&sized), &mut |_, _| {}).await.unwrap();
    assert_eq!((after.health, after.counts.lost_blocks), (RedundancyHealth::Degraded, 0), "{after:?}");
}
