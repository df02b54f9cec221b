//! Memory of a donor that is damaged while no client writes: it is never returned as data, also by a client that did not
//! write it.

use crate::support::{Serving, create, options, spec};
use nectary_block::{BlockDevice, Buffer, Context, read, write};
use nectary_ram::check::{Health, check};
use nectary_ram::live::RedundantDevice;

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

async fn damaged(redundancy: &str) -> (Vec<Serving>, String) {
    let donors: Vec<Serving> = (0..3).map(|_| Serving::new(20 << 20)).collect();
    let named = spec(&donors.iter().collect::<Vec<_>>(), &format!(",redundancy={redundancy}"));
    let sized = spec(&donors.iter().collect::<Vec<_>>(), &format!(",size=6M,redundancy={redundancy}"));
    create(&sized).await.unwrap();
    let device = RedundantDevice::open(options(&named)).await.unwrap();
    write(&device, 0, Buffer::copy_of(&contents())).await.unwrap();
    device.flush(Context::default()).await.unwrap();
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
        let device = RedundantDevice::open(options(&named)).await.unwrap();
        let (first, bytes) = ((PLACE - 8) * BLOCK, 16 * BLOCK);
        for _ in 0..8 {
            let found = read(&device, first as u64, bytes).await.unwrap();
            assert!(found[..] == contents()[first..first + bytes], "{redundancy}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_before_attaching_is_found_and_repaired() {
    for redundancy in ["mirror", "parity"] {
        let (_donors, named) = damaged(redundancy).await;
        let checked = check(&options(&named), &mut |_, _| {}).await.unwrap();
        assert!(checked.health != Health::Healthy && checked.problem_count > 0, "{redundancy}: {checked:?}");
        let device = RedundantDevice::open(options(&named)).await.unwrap();
        // A change of another block of the stripe neither spreads nor hides it.
        write(&device, ((PLACE + 1) * BLOCK) as u64, Buffer::copy_of(&[7; BLOCK])).await.unwrap();
        let found = device.scrub().await.unwrap();
        assert_eq!((found.repaired, found.lost, found.doubtful), (1, 0, 0), "{redundancy}");
        let mut expected = contents();
        expected[(PLACE + 1) * BLOCK..(PLACE + 2) * BLOCK].fill(7);
        assert!(read(&device, 0, 6 << 20).await.unwrap()[..] == expected[..], "{redundancy}");
        device.detach().await.unwrap();
        drop(device);
        let checked = check(&options(&named), &mut |_, _| {}).await.unwrap();
        assert_eq!((checked.health, checked.problem_count), (Health::Healthy, 0), "{redundancy}: {checked:?}");
    }
}
