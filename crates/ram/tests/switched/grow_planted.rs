//! The checks of a device that has grown detect bytes that have moved, a size without room, and parity that is lost. No
//! test of another module runs meanwhile, because planted bugs affect the whole process.

use std::time::Instant;

use crate::support::{ServingDonor, create, open, options, spec};
use nectary_block::{Buffer, DeviceErrorKind, Error, IoContext, read, write};
use nectary_ram::check::check;
use nectary_ram::device::grow;
use nectary_ram::device::owner::planted::{self, Bug, plant};

/// 41 units: the donor with less memory, which is the second one, has one more than the other.
const SIZE: u64 = 41 << 16;
const LARGER: u64 = 4 << 20;

async fn settled<T>(mut work: impl AsyncFnMut() -> Result<T, Error>) -> T {
    let deadline = Instant::now() + crate::support::PATIENCE;
    loop {
        match work().await {
            Ok(done) => return done,
            Err(error) => assert!(error.kind == DeviceErrorKind::Busy && Instant::now() < deadline, "{error}"),
        }
        tokio::task::yield_now().await;
    }
}

/// Writes a device, and lets it grow; the client is killed before its step number `steps`. Returns whether the device
/// is right.
async fn is_right(steps: u64) -> bool {
    let donors: Vec<ServingDonor> = [16, 14].map(|megabytes| ServingDonor::new(megabytes << 20)).into();
    let named = spec(&donors.iter().collect::<Vec<_>>(), "");
    create(&named.replace(",id", &format!(",size={SIZE},id"))).await.unwrap();
    let contents: Vec<u8> = (0..SIZE).map(|at| (at >> 16) as u8).collect();
    let device = settled(async || open(&named).await).await;
    write(&*device, 0, Buffer::copy_of(&contents)).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
    drop(device);
    planted::stop_after(steps);
    tokio::select! {
        () = planted::stopped() => {}
        () = async { _ = settled(async || grow(&options(&named), LARGER).await).await } => {}
    }
    planted::stop_after(u64::MAX);
    let device = settled(async || open(&named).await).await;
    let size = device.geometry().size_bytes;
    let found = read(&*device, 0, size as usize).await;
    found.is_ok_and(|found| found[..contents.len()] == contents[..])
}

/// Lets a device with parity grow from the middle of a stripe; returns the number of problems that a check finds.
async fn problems_of_parity() -> u64 {
    let donors: Vec<ServingDonor> = (0..3).map(|_| ServingDonor::new(16 << 20)).collect();
    let named = spec(&donors.iter().collect::<Vec<_>>(), ",redundancy=parity");
    create(&named.replace(",id", &format!(",size={SIZE},id"))).await.unwrap();
    let device = settled(async || open(&named).await).await;
    write(&*device, 0, Buffer::copy_of(&[7; SIZE as usize])).await.unwrap();
    device.close().await.unwrap();
    settled(async || grow(&options(&named), LARGER).await).await;
    settled(async || check(&options(&named), &mut |_, _| {}).await).await.problem_count
}

/// The planted bugs move bytes, store a size before there is room for it, or lose parity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_grow_bugs_are_caught() {
    let _turn = crate::turn(module_path!());
    assert!(is_right(u64::MAX).await && is_right(0).await && problems_of_parity().await == 0);
    for (bug, steps) in [(Bug::FormersIgnored, u64::MAX), (Bug::SizeBeforeRoom, 0)] {
        plant(Some(bug));
        assert!(!is_right(steps).await, "{} survived", bug.name());
        plant(None);
    }
    plant(Some(Bug::ParityTrimmed));
    assert!(problems_of_parity().await > 0, "{} survived", Bug::ParityTrimmed.name());
}
