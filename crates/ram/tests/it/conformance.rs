//! The conformance tests of block devices, for devices on donors.

use crate::support::{ServingDonor, create, open, spec};
use nectary_block::conformance::check;

/// A device without redundancy conforms on one donor, and on three of different sizes.
#[tokio::test]
async fn plain_device_conforms() {
    for sizes in [&[8 << 20][..], &[2 << 20, 4 << 20, 8 << 20]] {
        let make = async |bytes: u64| {
            let donors: Vec<ServingDonor> = sizes.iter().map(|&bytes| ServingDonor::new(bytes)).collect();
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

/// A mirror conforms on two donors, and on three.
#[tokio::test]
async fn mirror_device_conforms() {
    for count in [2, 3] {
        let make = async |bytes: u64| {
            let donors: Vec<ServingDonor> = (0..count).map(|_| ServingDonor::new(16 << 20)).collect();
            let spec = spec(&donors.iter().collect::<Vec<_>>(), &format!(",redundancy=mirror,size={bytes}"));
            create(&spec).await.unwrap();
            let device = open(&spec).await.unwrap();
            std::mem::forget(donors);
            device
        };
        check(make).await.unwrap();
    }
}

/// A device whose parity is changed in place conforms on three donors, and on five.
#[tokio::test]
async fn parity_device_conforms() {
    for count in [3, 5] {
        let make = async |bytes: u64| {
            let donors: Vec<ServingDonor> = (0..count).map(|_| ServingDonor::new(16 << 20)).collect();
            let spec = spec(&donors.iter().collect::<Vec<_>>(), &format!(",redundancy=parity,size={bytes}"));
            create(&spec).await.unwrap();
            let device = open(&spec).await.unwrap();
            std::mem::forget(donors);
            device
        };
        check(make).await.unwrap();
    }
}

/// The device conforms with every policy that logs parity.
#[tokio::test]
async fn logged_parity_device_conforms() {
    for (policy, count) in [("parity-log", 3), ("parity-cache", 4), ("adaptive", 5)] {
        let make = async |bytes: u64| {
            let donors: Vec<ServingDonor> = (0..count).map(|_| ServingDonor::new(32 << 20)).collect();
            let spec = spec(&donors.iter().collect::<Vec<_>>(), &format!(",redundancy={policy},size={bytes}"));
            create(&spec).await.unwrap();
            let device = open(&spec).await.unwrap();
            std::mem::forget(donors);
            device
        };
        check(make).await.unwrap_or_else(|failure| panic!("{policy} on {count}: {failure}"));
    }
}
