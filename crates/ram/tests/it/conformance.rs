//! The conformance tests of block devices, for devices on donors.

use crate::support::{Serving, create, open, spec};
use nectary_block::conformance::check;

#[tokio::test]
async fn a_device_on_one_donor_and_on_three_of_different_sizes_conforms() {
    for sizes in [&[8 << 20][..], &[2 << 20, 4 << 20, 8 << 20]] {
        let make = async |bytes: u64| {
            let donors: Vec<Serving> = sizes.iter().map(|&bytes| Serving::new(bytes)).collect();
            let spec = spec(&donors.iter().collect::<Vec<_>>(), &format!(",size={bytes}"));
            create(&spec).await.unwrap();
            let device = open(&spec).await.unwrap();
            // The donors serve until the runtime of this test ends.
            std::mem::forget(donors);
            device
        };
        check(make).await.unwrap();
    }
}

#[tokio::test]
async fn a_mirror_on_two_donors_and_on_three_conforms() {
    for count in [2, 3] {
        let make = async |bytes: u64| {
            let donors: Vec<Serving> = (0..count).map(|_| Serving::new(16 << 20)).collect();
            let spec = spec(&donors.iter().collect::<Vec<_>>(), &format!(",redundancy=mirror,size={bytes}"));
            create(&spec).await.unwrap();
            let device = open(&spec).await.unwrap();
            std::mem::forget(donors);
            device
        };
        check(make).await.unwrap();
    }
}

#[tokio::test]
async fn a_device_with_parity_in_place_conforms_on_three_donors_and_on_five() {
    for count in [3, 5] {
        let make = async |bytes: u64| {
            let donors: Vec<Serving> = (0..count).map(|_| Serving::new(16 << 20)).collect();
            let spec = spec(&donors.iter().collect::<Vec<_>>(), &format!(",redundancy=parity,size={bytes}"));
            create(&spec).await.unwrap();
            let device = open(&spec).await.unwrap();
            std::mem::forget(donors);
            device
        };
        check(make).await.unwrap();
    }
}

#[tokio::test]
async fn a_device_that_logs_parity_conforms_with_every_policy() {
    for (policy, count) in [("parity-log", 3), ("parity-cache", 4), ("adaptive", 5)] {
        let make = async |bytes: u64| {
            let donors: Vec<Serving> = (0..count).map(|_| Serving::new(32 << 20)).collect();
            let spec = spec(&donors.iter().collect::<Vec<_>>(), &format!(",redundancy={policy},size={bytes}"));
            create(&spec).await.unwrap();
            let device = open(&spec).await.unwrap();
            std::mem::forget(donors);
            device
        };
        check(make).await.unwrap_or_else(|failure| panic!("{policy} on {count}: {failure}"));
    }
}
