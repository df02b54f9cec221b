//! The check of a device that was drained under load detects a drain that forgets what is written while it runs. No test
//! of another module runs meanwhile, because planted bugs affect the whole process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{ServingDonor, create, options};
use nectary_block::{Buffer, write};
use nectary_ram::check::{RedundancyHealth, check};
use nectary_ram::device::owner::RamDevice;
use nectary_ram::planted::{MirrorBug, plant};

/// A planted bug must be caught within this many drains.
const DRAINS_MAX: usize = 10;
const BLOCKS: u64 = 4096;

/// Drains a donor while blocks are written; returns what a check finds afterwards.
async fn drained() -> RedundancyHealth {
    let donors: Vec<ServingDonor> = (0..3).map(|_| ServingDonor::new(24 << 20)).collect();
    let names: Vec<String> = donors.iter().map(|donor| donor.name()).collect();
    let spare = names[2].trim_end_matches('"');
    let spec = format!("ram({},{},{spare};spare\",id=disk,size=16M,redundancy=mirror)", names[0], names[1]);
    create(&spec).await.unwrap();
    let device = Arc::new(RamDevice::open(options(&spec)).await.unwrap());
    write(&*device, 0, Buffer::copy_of(&vec![7; 16 << 20])).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (writer, stopped) = (device.clone(), stop.clone());
    let writing = tokio::spawn(async move {
        let mut turn = 0u64;
        while !stopped.load(Ordering::Relaxed) {
            turn += 1;
            let block = (turn.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 13) % BLOCKS;
            write(&*writer, block * 4096, Buffer::copy_of(&[turn as u8; 4096])).await.unwrap();
        }
    });
    device.drain("1").await.unwrap();
    stop.store(true, Ordering::Relaxed);
    writing.await.unwrap();
    device.detach().await.unwrap();
    drop(device);
    check(&options(&spec), &mut |_, _| {}).await.unwrap().health
}

/// The planted bug forgets blocks that are written while a drain runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_drain_bug_is_caught() {
    let _turn = crate::turn(module_path!());
    for _ in 0..3 {
        assert_eq!(drained().await, RedundancyHealth::Healthy);
    }
    plant(Some(MirrorBug::MoveForgets));
    for drain in 1..=DRAINS_MAX {
        if drained().await == RedundancyHealth::Broken {
            println!("caught by drain {drain}");
            plant(None);
            return;
        }
    }
    panic!("{} survived", MirrorBug::MoveForgets.name());
}
