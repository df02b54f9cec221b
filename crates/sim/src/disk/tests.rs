//! The disk keeps the contract, and its faults occur exactly as often as configured.

use std::sync::Mutex;

use nectary_block::conformance::{check_durability, check_seeded};
use nectary_block::{BlockDevice, read, write};

use super::*;

const BLOCK: usize = 4096;

fn block(value: u8) -> Buffer {
    Buffer::copy_of(&[value; BLOCK])
}

#[tokio::test]
async fn disk_without_rot_conforms() {
    for seed in 1..=3 {
        let make = |size| async move {
            SimulatedDisk::new(size, DiskOptions { seed, ..DiskOptions::default() }) as SharedDevice
        };
        check_seeded(make, seed).await.unwrap_or_else(|failure| panic!("{failure}"));
        let last = Mutex::new(SimulatedDisk::new(0, DiskOptions::default()));
        let (made, crashed) = (&last, &last);
        let make = |size| async move {
            let disk = SimulatedDisk::new(size, DiskOptions { seed, ..DiskOptions::default() });
            *made.lock().unwrap() = disk.clone();
            disk as SharedDevice
        };
        let crash = |_: SharedDevice| async move { crashed.lock().unwrap().crash() as SharedDevice };
        check_durability(make, crash).await.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// The seed decides which of the three happens to each write.
#[tokio::test]
async fn unflushed_writes_kept_lost_or_torn() {
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..20 {
        let disk = SimulatedDisk::new(1 << 20, DiskOptions { seed, ..DiskOptions::default() });
        for index in 0..20 {
            write(&*disk, index * BLOCK as u64, block(1)).await.unwrap();
        }
        BlockDevice::flush(&*disk, IoContext::default()).await.unwrap();
        for index in 0..20 {
            write(&*disk, index * BLOCK as u64, block(2)).await.unwrap();
        }
        let found = disk.crash();
        for index in 0..20 {
            let found = read(&*found, index * BLOCK as u64, BLOCK).await.unwrap();
            let sectors: Vec<u8> = found.chunks(512).map(|sector| sector[0]).collect();
            assert!(sectors.iter().all(|value| [1, 2].contains(value)), "what was flushed is there at least");
            match sectors.iter().filter(|&&value| value == 2).count() {
                0 => lost += 1,
                8 => kept += 1,
                _ => torn += 1,
            }
        }
    }
    assert!(kept > 100 && lost > 60 && torn > 40, "kept {kept}, lost {lost}, torn {torn}");
}

/// A flush does not wait for late operations.
#[tokio::test]
async fn late_operations_end_unordered() {
    let disk =
        SimulatedDisk::new(1 << 20, DiskOptions { late_percent: 50, lost_percent: 100, ..DiskOptions::default() });
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for index in 0..16u64 {
        let (operation, order) = (
            BlockDevice::write_at(
                &*disk,
                index * BLOCK as u64,
                vec![block(1)],
                WriteFlags::default(),
                IoContext::default(),
            ),
            order.clone(),
        );
        tasks.push(tokio::spawn(async move {
            operation.await.unwrap();
            order.lock().unwrap().push(index);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(!order.lock().unwrap().is_sorted(), "{order:?}");
    // A flush does not cover a write that had not ended when the flush began.
    let pending = BlockDevice::write_at(&*disk, 0, vec![block(2)], WriteFlags::default(), IoContext::default());
    BlockDevice::flush(&*disk, IoContext::default()).await.unwrap();
    assert_eq!(read(&*disk.crash(), 0, BLOCK).await.unwrap()[0], 1);
    pending.await.unwrap();
}

/// Rot stays inside its bounds: neither more sectors than allowed nor protected ranges.
#[tokio::test]
async fn rot_stays_until_overwritten() {
    let options = DiskOptions {
        rotten_percent: 100,
        rotten_max: 3,
        protected: vec![0..BLOCK as u64, 1 << 19..1 << 20],
        ..DiskOptions::default()
    };
    let disk = SimulatedDisk::new(1 << 20, options);
    for index in 0..10 {
        write(&*disk, index * BLOCK as u64, block(0)).await.unwrap();
    }
    assert_eq!(disk.rotten_count(), 3);
    let flipped = |bytes: &[u8]| bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
    for _ in 0..2 {
        assert_eq!(flipped(&read(&*disk, 0, BLOCK).await.unwrap()), 0, "the protected range is sound");
        assert_eq!(flipped(&read(&*disk, 0, 10 * BLOCK).await.unwrap()), 3);
    }
    BlockDevice::flush(&*disk, IoContext::default()).await.unwrap();
    let found = disk.crash();
    assert_eq!(flipped(&read(&*found, 0, 10 * BLOCK).await.unwrap()), 3, "rot outlives a crash");
}
