//! `cache(…)` keeps the contract of a device, even on top of a device that completes its operations in any order.

use std::sync::Arc;

use nectary_block::conformance::{check_durability, check_seeded};
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_buffer::{CacheDevice, Mode, Options};
use nectary_sim::disk::{Disk, DiskOptions};
use nectary_sim::late::{Late, Owned, UnderWay, in_virtual_time};

use crate::support::unplanted;

fn cached(below: SharedDevice, mode: Mode, seed: u64) -> SharedDevice {
    let under_way = UnderWay::default();
    let late: SharedDevice = Arc::new(Late::new(below, seed, &under_way));
    let owned: SharedDevice = Arc::new(Owned::new(late, &under_way));
    let options = Options { memory_bytes: 6 << 20, policy: "lru".to_owned(), mode, ..Options::default() };
    Arc::new(CacheDevice::new(owned, options, false).expect("a cache is made"))
}

#[test]
fn cached_device_over_one_that_completes_in_any_order_keeps_the_contract() {
    let _unplanted = unplanted();
    for mode in [Mode::WriteThrough, Mode::WriteBack] {
        for seed in 1..4 {
            let make = |bytes| async move { cached(Arc::new(MemoryDevice::new(bytes)), mode, seed) };
            let clauses = in_virtual_time(check_seeded(make, seed));
            assert!(clauses.unwrap_or_else(|failure| panic!("{mode}, seed {seed}: {failure}")) > 10);
        }
    }
}

#[test]
fn what_was_flushed_survives_a_loss_of_power_below_a_cache() {
    let _unplanted = unplanted();
    for mode in [Mode::WriteThrough, Mode::WriteBack] {
        for seed in 1..20 {
            let disks: std::cell::RefCell<Option<Arc<Disk>>> = std::cell::RefCell::default();
            let disks = &disks;
            let make = |bytes| async move {
                let options = DiskOptions { seed, delays: true, lost_percent: 60, ..DiskOptions::default() };
                let disk = Disk::new(bytes, options);
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
