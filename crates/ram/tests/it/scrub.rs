//! The scrub finds a flipped bit on a donor while the device is used, and repairs it if anyone knows the right bytes.

use crate::support::{ServingDonor, create, options, spec};
use nectary_block::{BlockDevice, Buffer, IoContext, read, write};
use nectary_ram::check::{RedundancyHealth, check};
use nectary_ram::device::owner::RamDevice;
use nectary_ram::scrub::ScrubFindings;

const BLOCK: usize = 4096;
/// The block with the pattern, in the middle of a long write.
const PLACE: usize = 300;

fn pattern() -> Vec<u8> {
    (0..64u8).map(|at| at.wrapping_mul(37) ^ 0xc5).collect()
}

/// The contents of the device: each block has other bytes, and one has the pattern.
fn contents() -> Vec<u8> {
    let mut contents: Vec<u8> = (0..6 << 20).map(|at| (at / BLOCK * 31) as u8 ^ (at % 251) as u8).collect();
    contents[PLACE * BLOCK..PLACE * BLOCK + 64].copy_from_slice(&pattern());
    contents
}

async fn device(donors: &[ServingDonor], redundancy: &str) -> (String, RamDevice) {
    let sized = spec(&donors.iter().collect::<Vec<_>>(), &format!(",size=6M,redundancy={redundancy}"));
    create(&sized).await.unwrap();
    let device = RamDevice::open(options(&sized)).await.unwrap();
    write(&device, 0, Buffer::copy_of(&contents())).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
    (sized, device)
}

fn flip_one(donors: &[ServingDonor]) {
    let flipped = donors.iter().map(|donor| donor.donor.flip("disk", &pattern())).find(|flipped| *flipped > 0);
    assert_eq!(flipped, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrub_repairs_flipped_bit() {
    for redundancy in ["mirror", "parity", "parity-log", "parity-cache", "adaptive"] {
        let donors: Vec<ServingDonor> = (0..3).map(|_| ServingDonor::new(20 << 20)).collect();
        let (sized, device) = device(&donors, redundancy).await;
        assert_eq!(device.scrub().await.unwrap(), ScrubFindings::default(), "{redundancy}");
        flip_one(&donors);
        let found = device.scrub().await.unwrap();
        assert_eq!(found, ScrubFindings { repaired: 1, ..ScrubFindings::default() }, "{redundancy}");
        assert_eq!(device.scrub().await.unwrap(), ScrubFindings::default(), "{redundancy}");
        let figures = device.figures();
        let number = |name: &str| figures[0].get(name);
        assert_eq!(
            (number("scrub_passes"), number("scrub_repaired"), number("scrub_done_bytes")),
            (Some(3), Some(1), None)
        );
        assert!(read(&device, 0, 6 << 20).await.unwrap()[..] == contents()[..], "{redundancy}");
        device.detach().await.unwrap();
        drop(device);
        let checked = check(&options(&sized), &mut |_, _| {}).await.unwrap();
        assert_eq!(
            (checked.health, checked.problem_count),
            (RedundancyHealth::Healthy, 0),
            "{redundancy}: {checked:?}"
        );
    }
}

/// A client that has not written a block learns it in its first pass, and repairs nothing before that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrub_repairs_after_first_pass() {
    let donors: Vec<ServingDonor> = (0..2).map(|_| ServingDonor::new(20 << 20)).collect();
    let (sized, first) = device(&donors, "mirror").await;
    first.detach().await.unwrap();
    drop(first);
    let second = RamDevice::open(options(&sized)).await.unwrap();
    assert_eq!(second.scrub().await.unwrap(), ScrubFindings::default());
    flip_one(&donors);
    assert_eq!(second.scrub().await.unwrap(), ScrubFindings { repaired: 1, ..ScrubFindings::default() });
    second.detach().await.unwrap();
    drop(second);
    flip_one(&donors);
    let third = RamDevice::open(options(&sized)).await.unwrap();
    for _ in 0..2 {
        assert_eq!(third.scrub().await.unwrap(), ScrubFindings { doubtful: 1, ..ScrubFindings::default() });
    }
    // Once it is written again, it is known.
    let block = contents()[PLACE * BLOCK..(PLACE + 1) * BLOCK].to_vec();
    write(&third, (PLACE * BLOCK) as u64, Buffer::copy_of(&block)).await.unwrap();
    assert_eq!(third.scrub().await.unwrap(), ScrubFindings::default());
    // If both copies are damaged, nobody has the right bytes.
    assert_eq!(donors.iter().map(|donor| donor.donor.flip("disk", &pattern())).sum::<usize>(), 2);
    assert_eq!(third.scrub().await.unwrap(), ScrubFindings { lost: 1, ..ScrubFindings::default() });
    assert!(read(&third, (PLACE * BLOCK) as u64, BLOCK).await.is_err());
}
