//! `cache(…)` keeps the contract of a device, even on top of a device that completes its operations in any order.

use std::sync::Arc;

use nectary_block::conformance::{check_durability, check_seeded};
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_buffer::{CacheDevice, CacheOptions, WriteMode};
use nectary_sim::disk::{DiskOptions, SimulatedDisk};
use nectary_sim::late::{DetachedFilter, LateFilter, UnderWay, in_virtual_time};

use crate::support::unplanted;

fn cached(below: SharedDevice, mode: WriteMode, seed: u64) -> SharedDevice {
    let under_way = UnderWay::default();
    let late: SharedDevice = Arc::new(LateFilter::new(below, seed, &under_way));
    let owned: SharedDevice = Arc::new(DetachedFilter::new(late, &under_way));
    let options = CacheOptions { memory_bytes: 6 << 20, policy: "lru".to_owned(), mode, ..CacheOptions::default() };
    Arc::new(CacheDevice::new(owned, options, false).expect("a cache is made"))
}

/// The device below completes operations in any order.
#[test]
fn cache_on_late_device_conforms() {
    let _unplanted = unplanted();
    for mode in [WriteMode::WriteThrough, WriteMode::WriteBack] {
        for seed in 1..4 {
            let make = |bytes| async move { cached(Arc::new(MemoryDevice::new(bytes)), mode, seed) };
            let clauses = in_virtual_time(check_seeded(make, seed));
            assert!(clauses.unwrap_or_else(|failure| panic!("{mode}, seed {seed}: {failure}")) > 10);
        }
    }
}

/// The power is lost below a cache, on a disk that loses unflushed writes.
#[test]
fn flushed_data_survives_power_loss() {
    let _unplanted = unplanted();
    for mode in [WriteMode::WriteThrough, WriteMode::WriteBack] {
        for seed in 1..20 {
            let disks: std::cell::RefCell<Option<Arc<SimulatedDisk>>> = std::cell::RefCell::default();
            let disks = &disks;
            let make = |bytes| async move {
                let options = DiskOptions { seed, delays: true, lost_percent: 60, ..DiskOptions::default() };
                let disk = SimulatedDisk::new(bytes, options);
                *disks.borrow_mut() = Some(disk.clone());
                cached(disk, mode, seed)
            };
            let crash = |device: SharedDevice| async move {
                let found = disks.borrow().as_ref().map(|disk| disk.crash()).expect("made");
                drop(device);
                found as SharedDevice
            };
            in_virtual_time(check_durability(make, crash)).unwrap_or_else(|failure| panic!("{mode}: {failure}"));
        }
    }
}
