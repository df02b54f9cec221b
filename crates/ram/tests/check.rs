//! The check of a detached device: it finds no problem in devices after every kind of use, and counts what a missing
//! donor affects.

mod support;

use nectary_block::{BlockDevice, Buffer, Context, ErrorKind, write};
use nectary_ram::check::{Checked, Health, check};
use nectary_ram::live::RedundantDevice;
use support::{Serving, create, options, spec};

const REDUNDANCIES: [&str; 4] = ["mirror", "parity-log", "parity-cache", "adaptive"];
const BYTES: usize = 6 << 20;

async fn checked(spec: &str) -> Checked {
    let mut last = (0, 0);
    let found = check(&options(spec), &mut |read, all| last = (read, all)).await.unwrap();
    assert_eq!(last.0, last.1, "{last:?}");
    found
}

/// Writes the whole device, then parts of it again, with trims in between.
async fn use_it(device: &RedundantDevice, version: u8) {
    let content: Vec<u8> = (0..BYTES).map(|at| version ^ (at / 4096) as u8 ^ at as u8).collect();
    write(device, 0, Buffer::copy_of(&content)).await.unwrap();
    for round in 0..40u64 {
        let at = (round * 37 % 1400) * 4096;
        write(device, at, Buffer::copy_of(&content[..9 * 4096])).await.unwrap();
        if round % 4 == 0 {
            device.discard(at + 4096, 3 * 4096, Context::default()).await.unwrap();
        }
        if round % 7 == 0 {
            device.flush(Context::default()).await.unwrap();
        }
    }
    device.flush(Context::default()).await.unwrap();
}

#[tokio::test]
async fn devices_that_were_used_and_detached_are_right_and_without_a_donor_nothing_is_lost() {
    for redundancy in REDUNDANCIES {
        let mut donors: Vec<Serving> = (0..3).map(|_| Serving::new(20 << 20)).collect();
        let sized = spec(&donors.iter().collect::<Vec<_>>(), &format!(",size=6M,redundancy={redundancy}"));
        create(&sized).await.unwrap();
        assert_eq!(checked(&sized).await.health, Health::Healthy, "{redundancy} before it is used");
        let device = RedundantDevice::open(options(&sized)).await.unwrap();
        use_it(&device, 1).await;
        let busy = check(&options(&sized), &mut |_, _| {}).await.unwrap_err();
        assert_eq!(busy.kind, ErrorKind::Busy, "{busy}");
        device.detach().await;
        drop(device);
        let found = checked(&sized).await;
        assert_eq!((found.health, found.problem_count), (Health::Healthy, 0), "{redundancy}: {found:?}");
        assert!(found.is_detached && found.counts.compared_groups + found.counts.compared_stripes > 0, "{found:?}");
        // The client ends in the middle of its work, without detaching.
        let device = RedundantDevice::open(options(&sized)).await.unwrap();
        use_it(&device, 2).await;
        write(&device, 0, Buffer::copy_of(&[3; 33 * 4096])).await.unwrap();
        drop(device);
        let found = checked(&sized).await;
        assert!(found.health < Health::Broken && !found.is_detached, "{redundancy}: {found:?}");
        let device = RedundantDevice::open(options(&sized)).await.unwrap();
        device.detach().await;
        drop(device);
        let found = checked(&sized).await;
        assert_eq!((found.health, found.problem_count), (Health::Healthy, 0), "{redundancy}: {found:?}");
        donors.remove(1).end().await;
        let found = checked(&sized).await;
        assert_eq!((found.health, found.counts.lost_blocks), (Health::Degraded, 0), "{redundancy}: {found:?}");
        assert!(found.counts.reconstructed_blocks + found.counts.single_stripes > 0, "{redundancy}: {found:?}");
        donors.remove(1).end().await;
        let error = check(&options(&sized), &mut |_, _| {}).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Absent, "{error}");
    }
}

#[tokio::test]
async fn without_redundancy_there_is_nothing_to_check() {
    let donor = Serving::new(4 << 20);
    let sized = spec(&[&donor], ",size=1M");
    create(&sized).await.unwrap();
    let error = check(&options(&sized), &mut |_, _| {}).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
}
