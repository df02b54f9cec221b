//! Memory of a donor that is damaged while no client writes: it is never returned as data, also by a client that did not
//! write it.

use crate::support::{ServingDonor, create, options, spec};
use nectary_block::{BlockDevice, Buffer, IoContext, read, write};
use nectary_ram::check::{RedundancyHealth, check};
use nectary_ram::device::owner::RamDevice;

const BLOCK: usize = 4096;
const PLACE: usize = 300;

fn contents() -> Vec<u8> {
    let mut contents: Vec<u8> = (0..6 << 20).map(|at| (at / BLOCK * 31) as u8 ^ (at % 251) as u8).collect();
    contents[PLACE * BLOCK + 8..PLACE * BLOCK + 72].copy_from_slice(&pattern());
    contents
}

fn pattern() -> Vec<u8> {
    (0..64u8).map(|at| at.wrapping_mul(37) ^ 0xc5).collect()
}

async fn damaged(redundancy: &str) -> (Vec<ServingDonor>, String) {
    let donors: Vec<ServingDonor> = (0..3).map(|_| ServingDonor::new(20 << 20)).collect();
    let named = spec(&donors.iter().collect::<Vec<_>>(), &format!(",redundancy={redundancy}"));
    let sized = spec(&donors.iter().collect::<Vec<_>>(), &format!(",size=6M,redundancy={redundancy}"));
    create(&sized).await.unwrap();
    let device = RamDevice::open(options(&named)).await.unwrap();
    write(&device, 0, Buffer::copy_of(&contents())).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
    device.detach().await.unwrap();
    drop(device);
    let damaged = donors.iter().map(|donor| donor.donor.rot("disk", &pattern())).find(|damaged| *damaged > 0);
    assert_eq!(damaged, Some(1));
    (donors, named)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_before_attaching_is_not_returned() {
    for redundancy in ["mirror", "parity", "adaptive"] {
        let (_donors, named) = damaged(redundancy).await;
        let device = RamDevice::open(options(&named)).await.unwrap();
        let (first, bytes) = ((PLACE - 8) * BLOCK, 16 * BLOCK);
        for _ in 0..8 {
            let found = read(&device, first as u64, bytes).await.unwrap();
            assert!(found[..] == contents()[first..first + bytes], "{redundancy}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_before_attach_is_repaired() {
    for redundancy in ["mirror", "parity"] {
        let (_donors, named) = damaged(redundancy).await;
        let checked = check(&options(&named), &mut |_, _| {}).await.unwrap();
        assert!(checked.health != RedundancyHealth::Healthy && checked.problem_count > 0, "{redundancy}: {checked:?}");
        let device = RamDevice::open(options(&named)).await.unwrap();
        // A change of another block of the stripe neither spreads nor hides it.
        write(&device, ((PLACE + 1) * BLOCK) as u64, Buffer::copy_of(&[7; BLOCK])).await.unwrap();
        let found = device.scrub().await.unwrap();
        // On a busy machine the donor may have been late, left, and filled again, which repairs it, too.
        let was_filled = device.figures()[0].get("rebuilt").unwrap_or_default() > 0;
        assert_eq!((found.lost, found.doubtful), (0, 0), "{redundancy}");
        assert!(found.repaired == 1 || was_filled, "{redundancy}: {found:?}");
        let mut expected = contents();
        expected[(PLACE + 1) * BLOCK..(PLACE + 2) * BLOCK].fill(7);
        assert!(read(&device, 0, 6 << 20).await.unwrap()[..] == expected[..], "{redundancy}");
        device.detach().await.unwrap();
        drop(device);
        let checked = check(&options(&named), &mut |_, _| {}).await.unwrap();
        assert_eq!(
            (checked.health, checked.problem_count),
            (RedundancyHealth::Healthy, 0),
            "{redundancy}: {checked:?}"
        );
    }
}

/// A client is lost with an unfinished write, and one copy of that stripe has damaged memory: afterwards both copies are
/// equal nevertheless, so that a block does not seem to change back and forth.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_unfinished_stripe_leaves_equal_copies() {
    const UNFINISHED: usize = PLACE + 2;
    let mut written = contents();
    let other: Vec<u8> = pattern().iter().map(|byte| byte ^ 0x5a).collect();
    written[UNFINISHED * BLOCK + 8..UNFINISHED * BLOCK + 72].copy_from_slice(&other);
    for (damaged, has_both) in [(0, false), (1, false), (0, true)] {
        let donors: Vec<ServingDonor> = (0..3).map(|_| ServingDonor::new(20 << 20)).collect();
        let named = spec(&donors.iter().collect::<Vec<_>>(), ",redundancy=mirror");
        create(&spec(&donors.iter().collect::<Vec<_>>(), ",size=6M,redundancy=mirror")).await.unwrap();
        let device = RamDevice::open(options(&named)).await.unwrap();
        write(&device, 0, Buffer::copy_of(&written)).await.unwrap();
        drop(device);
        // Twice, so that nothing is changed.
        let has = |donor: &&ServingDonor| [(); 2].map(|()| donor.donor.flip("disk", &other)) == [1; 2];
        let copies: Vec<&ServingDonor> = donors.iter().filter(has).collect();
        assert_eq!(copies.len(), 2);
        // Only one of them has the last write, and it or the other one has damage elsewhere.
        assert_eq!(copies[0].donor.flip("disk", &other), 1);
        assert_eq!(copies[damaged].donor.rot("disk", &pattern()), 1);
        if has_both {
            let at = (PLACE + 4) * BLOCK;
            assert!(copies[1].donor.rot("disk", &contents()[at..at + 64]) > 0);
        }
        let device = RamDevice::open(options(&named)).await.unwrap();
        let found = device.scrub().await.unwrap();
        assert_eq!((found.doubtful, found.lost), (0, 0), "{damaged} {has_both}: {found:?}");
        let first = PLACE * BLOCK;
        let bytes = read(&device, first as u64, 8 * BLOCK).await.unwrap();
        let expected = &written[first..first + 8 * BLOCK];
        let differ = (0..bytes.len()).filter(|at| bytes[*at] != expected[*at]).count();
        assert!(differ <= 1, "{damaged} {has_both}: {differ} bytes differ");
    }
}
