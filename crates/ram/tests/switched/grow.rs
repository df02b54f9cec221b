//! Devices grow: what they have stays, the new bytes are zeroes, and a client that dies meanwhile leaves a device of the
//! former or of the new size.

use std::time::{Duration, Instant};

use crate::support::{ServingDonor, create, open, options, spec};
use nectary_block::{Buffer, DeviceErrorKind, Error, IoContext, SharedDevice, read, write};
use nectary_nbd::{Export, ExportTable, ListenEndpoint, NetworkBlockServer, ServerOptions};
use nectary_ram::check::{RedundancyHealth, check};
use nectary_ram::device::owner::planted;
use nectary_ram::device::{self, grow};
use tokio::sync::RwLock;

/// The size of a device, in the middle of a stripe and of a region of trims; and its sizes later.
const SIZES: [usize; 3] = [(2 << 20) + (512 << 10), (4 << 20) + 4096, 6 << 20];
const KINDS: [(&str, usize); 7] =
    [("none", 3), ("mirror", 2), ("mirror", 3), ("parity", 3), ("parity", 4), ("parity-log", 3), ("adaptive", 4)];
const MEMORY: u64 = 64 << 20;

/// The test that stops clients is alone; the others are not.
static ALONE: RwLock<()> = RwLock::const_new(());

fn contents(version: usize, size: usize) -> Vec<u8> {
    (0..size).map(|at| (version * 7 + at / 4096 * 31 + at % 251) as u8).collect()
}

/// Tries again as long as donors have not noticed that the former client has gone.
async fn settled<T>(mut work: impl AsyncFnMut() -> Result<T, Error>) -> Result<T, Error> {
    let deadline = Instant::now() + crate::support::PATIENCE;
    loop {
        match work().await {
            Err(error) if error.kind == DeviceErrorKind::Busy && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            ended => return ended,
        }
    }
}

async fn fill(device: &SharedDevice, version: usize) {
    let size = device.geometry().size_bytes as usize;
    write(&**device, 0, Buffer::copy_of(&contents(version, size))).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
}

/// Detaches a device. On a busy machine a donor may be late and left; it is filled first.
async fn close(device: SharedDevice) {
    let deadline = Instant::now() + crate::support::PATIENCE;
    while device.figures().iter().any(|figures| figures.get("degraded") == Some(1)) {
        assert!(Instant::now() < deadline, "{:?}", device.figures());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    device.close().await.unwrap();
}

/// Compares a device with what was written when it had `written` bytes; the others are zeroes.
async fn is_right(device: &SharedDevice, version: usize, written: usize) {
    let size = device.geometry().size_bytes as usize;
    let mut expected = contents(version, written);
    expected.resize(size, 0);
    let found = read(&**device, 0, size).await.unwrap();
    let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    assert_eq!(wrong, None, "of {size}, of which {written} were written");
}

/// Waits until a donor is filled, while the first block is written.
async fn is_filled(device: &SharedDevice, version: usize) {
    let figure = |name: &str| device.figures()[0].get(name).unwrap_or_default();
    let deadline = Instant::now() + crate::support::PATIENCE;
    while figure("rebuilt") == 0 || figure("degraded") == 1 {
        assert!(Instant::now() < deadline, "{:?}", device.figures());
        write(&**device, 0, Buffer::copy_of(&contents(version, 4096))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn is_healthy(named: &str) {
    if !named.contains("redundancy=none") {
        let checked = settled(async || check(&options(named), &mut |_, _| {}).await).await.unwrap();
        assert_eq!((checked.health, checked.problem_count), (RedundancyHealth::Healthy, 0), "{named}: {checked:?}");
    }
}

async fn made(redundancy: &str, count: usize, memory: u64) -> (Vec<ServingDonor>, String) {
    let donors: Vec<ServingDonor> = (0..count).map(|_| ServingDonor::new(memory)).collect();
    let all: Vec<&ServingDonor> = donors.iter().collect();
    create(&spec(&all, &format!(",size={},redundancy={redundancy}", SIZES[0]))).await.unwrap();
    let named = spec(&all, &format!(",redundancy={redundancy}"));
    let device = settled(async || open(&named).await).await.unwrap();
    fill(&device, 1).await;
    close(device).await;
    (donors, named)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growing_keeps_data_adds_zeroes() {
    let _turn = crate::turn(module_path!());
    let _others = ALONE.read().await;
    for (redundancy, count) in KINDS {
        let (_donors, named) = made(redundancy, count, MEMORY).await;
        for (version, sizes) in SIZES.windows(2).enumerate() {
            let grown = settled(async || grow(&options(&named), sizes[1] as u64).await).await.unwrap();
            assert_eq!((grown.size_bytes, grown.shares.len()), (sizes[1] as u64, count));
            is_healthy(&named).await;
            let device = settled(async || open(&named).await).await.unwrap();
            assert_eq!(device.geometry().size_bytes, sizes[1] as u64);
            is_right(&device, version + 1, sizes[0]).await;
            fill(&device, version + 2).await;
            is_right(&device, version + 2, sizes[1]).await;
            close(device).await;
            is_healthy(&named).await;
        }
        let device = settled(async || open(&named).await).await.unwrap();
        is_right(&device, 3, SIZES[2]).await;
        // While a client has the device, it does not grow.
        let busy = grow(&options(&named), 2 * SIZES[2] as u64).await.unwrap_err();
        assert_eq!(busy.kind, DeviceErrorKind::Busy, "{busy}");
        close(device).await;
        let smaller = settled(async || grow(&options(&named), SIZES[0] as u64).await).await.unwrap_err();
        assert!(smaller.kind == DeviceErrorKind::Invalid && smaller.detail.contains("does not shrink"), "{smaller}");
        let odd = grow(&options(&named), 2 * SIZES[2] as u64 + 1).await.unwrap_err();
        assert!(odd.kind == DeviceErrorKind::Invalid && odd.detail.contains("multiple"), "{odd}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grow_names_donors_lacking_memory() {
    let _turn = crate::turn(module_path!());
    let _others = ALONE.read().await;
    for (redundancy, count) in KINDS {
        let (donors, named) = made(redundancy, count, 20 << 20).await;
        let full = settled(async || grow(&options(&named), 400 << 20).await).await.unwrap_err();
        assert_eq!(full.kind, DeviceErrorKind::Full, "{full}");
        assert!(donors.iter().all(|donor| full.detail.contains(&donor.socket.display().to_string())), "{full}");
        let device = settled(async || open(&named).await).await.unwrap();
        is_right(&device, 1, SIZES[0]).await;
    }
}

/// The error names the donor with the small quota, and nothing is changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grow_past_quota_changes_nothing() {
    let _turn = crate::turn(module_path!());
    let _others = ALONE.read().await;
    for (redundancy, count) in KINDS {
        let mut donors: Vec<ServingDonor> = (1..count).map(|_| ServingDonor::new(MEMORY)).collect();
        donors.push(ServingDonor::with_quota(MEMORY, 12 << 20));
        let all: Vec<&ServingDonor> = donors.iter().collect();
        create(&spec(&all, &format!(",size={},redundancy={redundancy}", SIZES[0]))).await.unwrap();
        let named = spec(&all, &format!(",redundancy={redundancy}"));
        let sizes = || donors.iter().map(|donor| donor.donor.figures().devices[0].size_bytes).collect::<Vec<_>>();
        let before = sizes();
        // Without redundancy, other donors take what this one may not give.
        let size = if redundancy == "none" { 180 << 20 } else { 40 << 20 };
        let full = settled(async || grow(&options(&named), size).await).await.unwrap_err();
        let name = donors[count - 1].socket.display().to_string();
        assert!(
            full.kind == DeviceErrorKind::Full && full.detail.contains(&name) && full.detail.contains("quota"),
            "{full}"
        );
        assert!(full.detail.contains("12M"), "{full}");
        assert_eq!(sizes(), before, "{redundancy}");
        let grown = settled(async || grow(&options(&named), SIZES[2] as u64).await).await.unwrap();
        assert!(grown.shares[count - 1] <= 12 << 20, "{:?}", grown.shares);
        if redundancy == "none" {
            let grown = settled(async || grow(&options(&named), 60 << 20).await).await.unwrap();
            assert_eq!(grown.shares.iter().filter(|share| **share == (12 << 20) - (64 << 10)).count(), 1);
        }
    }
}

/// A device without redundancy grows on another NBD server, up to the size of its export.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_server_grows_within_export() {
    let _turn = crate::turn(module_path!());
    let _others = ALONE.read().await;
    let socket = std::env::temp_dir().join(format!("nectary-ram-grow-other-{}.sock", std::process::id()));
    let memory = nectary_block::MemoryDevice::from_image(vec![0xa5; 4 << 20]);
    let export = Export::new("any", "", std::sync::Arc::new(memory), false).unwrap();
    let exports = ExportTable::new(vec![export]).unwrap();
    let _server =
        NetworkBlockServer::start(&[ListenEndpoint::Unix(socket.clone())], exports, ServerOptions::default()).unwrap();
    let other = format!("\"nbd+unix:///any?socket={}\"", socket.display());
    let donor = ServingDonor::new(4 << 20);
    let named = format!("ram({},{other},id=disk)", donor.name());
    // What the server held before is overwritten, also where the device grows.
    device::create(&options(&named.replace(",id", &format!(",size={},id", SIZES[0]))), true).await.unwrap();
    let device = settled(async || open(&named).await).await.unwrap();
    fill(&device, 1).await;
    close(device).await;
    settled(async || grow(&options(&named), SIZES[1] as u64).await).await.unwrap();
    let device = settled(async || open(&named).await).await.unwrap();
    is_right(&device, 1, SIZES[0]).await;
    fill(&device, 2).await;
    close(device).await;
    let full = settled(async || grow(&options(&named), 9 << 20).await).await.unwrap_err();
    let name = socket.display().to_string();
    assert!(full.kind == DeviceErrorKind::Full && full.detail.contains(&name), "{full}");
    let most = 2 * ((4 << 20) - (64 << 10));
    settled(async || grow(&options(&named), most).await).await.unwrap();
    let device = settled(async || open(&named).await).await.unwrap();
    assert_eq!(device.geometry().size_bytes, most);
    is_right(&device, 2, SIZES[1]).await;
    close(device).await;
    let third = ServingDonor::new(4 << 20);
    let named = format!("ram({},{other},{},id=disk,redundancy=parity)", donor.name(), third.name());
    let refused = grow(&options(&named), 9 << 20).await.unwrap_err();
    assert!(refused.kind == DeviceErrorKind::Unsupported && refused.detail.contains("redundancy=none"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grow_needs_all_donors() {
    let _turn = crate::turn(module_path!());
    let _others = ALONE.read().await;
    planted::hasten();
    for (redundancy, count) in KINDS {
        let (mut donors, named) = made(redundancy, count, MEMORY).await;
        donors.remove(0).end().await;
        let absent = settled(async || grow(&options(&named), SIZES[1] as u64).await).await.unwrap_err();
        assert_eq!(absent.kind, DeviceErrorKind::Absent, "{absent}");
    }
}

/// A donor that is lost after growing is filled with its larger part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn donor_lost_after_growing_is_refilled() {
    let _turn = crate::turn(module_path!());
    let _others = ALONE.read().await;
    planted::hasten();
    for (redundancy, count) in &KINDS[1..] {
        let (mut donors, named) = made(redundancy, *count, MEMORY).await;
        settled(async || grow(&options(&named), SIZES[1] as u64).await).await.unwrap();
        let device = settled(async || open(&named).await).await.unwrap();
        fill(&device, 2).await;
        let again = ServingDonor::at(donors.remove(0).end().await, MEMORY);
        donors.insert(0, again);
        is_filled(&device, 2).await;
        is_right(&device, 2, SIZES[1]).await;
        close(device).await;
        is_healthy(&named).await;
    }
}

/// What the device gains reads as zeroes, although a donor and a client were lost together before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parity_grows_zeroes_after_losses() {
    let _turn = crate::turn(module_path!());
    let _others = ALONE.read().await;
    planted::hasten();
    let (mut donors, named) = made("parity", 3, MEMORY).await;
    let device = settled(async || open(&named).await).await.unwrap();
    // The client ends while the last stripe is marked. The last donor has the member that is behind the device's end.
    let at = 2 << 20;
    write(&*device, at as u64, Buffer::copy_of(&contents(1, SIZES[0])[at..][..4096])).await.unwrap();
    drop(device);
    let socket = donors.remove(2).end().await;
    let device = settled(async || open(&named).await).await.unwrap();
    assert_eq!(device.figures()[0].get("degraded"), Some(1));
    donors.push(ServingDonor::at(socket, MEMORY));
    is_filled(&device, 1).await;
    close(device).await;
    settled(async || grow(&options(&named), SIZES[1] as u64).await).await.unwrap();
    is_healthy(&named).await;
    let device = settled(async || open(&named).await).await.unwrap();
    is_right(&device, 1, SIZES[0]).await;
}

/// Kills the client that grows a device before its durable step number `steps`; returns the size that the device then
/// has, or `None` if growing has fewer steps.
async fn killed(redundancy: &str, count: usize, steps: u64) -> Option<usize> {
    let (_donors, named) = made(redundancy, count, MEMORY).await;
    let growing = options(&named);
    planted::stop_after(steps);
    let is_killed = tokio::select! {
        () = planted::stopped() => true,
        grown = grow(&growing, SIZES[1] as u64) => grown.is_err(),
    };
    planted::stop_after(u64::MAX);
    if !is_killed {
        return None;
    }
    let device = settled(async || open(&named).await).await.unwrap();
    let size = device.geometry().size_bytes as usize;
    assert!(SIZES[..2].contains(&size), "{redundancy}, killed at step {steps}: {size}");
    is_right(&device, 1, SIZES[0]).await;
    fill(&device, 2).await;
    close(device).await;
    is_healthy(&named).await;
    settled(async || grow(&options(&named), SIZES[1] as u64).await).await.unwrap();
    let device = settled(async || open(&named).await).await.unwrap();
    assert_eq!(device.geometry().size_bytes, SIZES[1] as u64);
    is_right(&device, 2, size).await;
    Some(size)
}

/// A client killed while it grows a device leaves the former or the new size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grow_survives_kill_at_any_step() {
    let _turn = crate::turn(module_path!());
    let _alone = ALONE.write().await;
    for (redundancy, count) in [("none", 2), ("mirror", 2), ("parity", 3), ("adaptive", 3)] {
        // A device of an earlier test that is still closing may use up a step.
        let is_good = |sizes: &Vec<usize>| (sizes[count], sizes[sizes.len() - 1]) == (SIZES[0], SIZES[1]);
        let mut sizes = killed_at_each_step(redundancy, count).await;
        if !is_good(&sizes) {
            sizes = killed_at_each_step(redundancy, count).await;
        }
        assert!(is_good(&sizes), "{redundancy}: {sizes:?}");
    }
}

/// Kills a client at each step; returns the sizes that the device then has. The size changes after every donor has its
/// room, and before the last donor has stored it.
async fn killed_at_each_step(redundancy: &str, count: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    while let Some(size) = killed(redundancy, count, sizes.len() as u64).await {
        sizes.push(size);
    }
    println!("{redundancy} on {count} donors: {} steps, {:?}", sizes.len(), sizes);
    assert!(sizes.len() > 2 * count, "{redundancy}: {sizes:?}");
    sizes
}
