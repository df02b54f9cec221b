//! A mirrored device on donors in this process: its report, the effect of a lost donor, and the exclusion of other
//! clients.

use std::time::{Duration, Instant};

use crate::support::{ServingDonor, create, open, options, refused, registry, spec};
use nectary_block::{Buffer, DeviceErrorKind, Error, IoContext, OpenOptions, SharedDevice, SurvivalLevel, read, write};
use nectary_ram::device::{self, RamOptions};
use tokio::net::{UnixListener, UnixStream};

const MIRROR: &str = ",redundancy=mirror,patience=10s";
const SIZED: &str = ",size=6M,redundancy=mirror,patience=10s";

/// Opens a device that an earlier client may still have.
async fn take_over(spec: &str) -> Result<SharedDevice, Error> {
    registry().open(spec, &OpenOptions { take_over: true, ..OpenOptions::default() }).await
}

async fn fill(device: &SharedDevice, byte: u8) {
    write(&**device, 0, Buffer::copy_of(&vec![byte; 6 << 20])).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
}

async fn holds(device: &SharedDevice, byte: u8) {
    let found = read(&**device, 0, 6 << 20).await.unwrap();
    let wrong = found.iter().filter(|&&found| found != byte).count();
    assert_eq!(wrong, 0, "{wrong} wrong bytes");
}

/// Waits until a number in the device's report has this value.
async fn wait_for(device: &SharedDevice, name: &str, value: u64) {
    let deadline = Instant::now() + crate::support::PATIENCE;
    while device.figures()[0].get(name) != Some(value) {
        assert!(Instant::now() < deadline, "{name} is {:?}", device.figures()[0]);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The next client reads the data; a second client at the same time is refused.
#[tokio::test]
async fn next_client_reads_mirror() {
    let (one, two, three) = (ServingDonor::new(8 << 20), ServingDonor::new(8 << 20), ServingDonor::new(8 << 20));
    let sized = spec(&[&one, &two, &three], SIZED);
    assert_eq!(refused(&sized).await.kind, DeviceErrorKind::Absent);
    create(&sized).await.unwrap();
    let again = create(&sized).await.unwrap_err();
    assert!(again.kind == DeviceErrorKind::Busy && again.detail.contains("it has the device already"), "{again}");
    let device = open(&sized).await.unwrap();
    assert_eq!(
        (device.geometry().size_bytes, device.geometry().flush_survives),
        (6 << 20, SurvivalLevel::HostAndDonor)
    );
    fill(&device, 7).await;
    let busy = refused(&sized).await;
    assert!(busy.kind == DeviceErrorKind::Busy && busy.detail.contains("--take-over"), "{busy}");
    let busy = device::delete(&options(&sized)).await.unwrap_err();
    assert_eq!(busy.kind, DeviceErrorKind::Busy, "{busy}");
    // A SPEC without redundancy names another device, so it is refused.
    let plain = refused(&spec(&[&one, &two, &three], "")).await;
    assert!(plain.detail.contains("redundancy=mirror"), "{plain}");
    drop(device);
    // The donors are named in another order.
    let device = open(&spec(&[&three, &one, &two], MIRROR)).await.unwrap();
    holds(&device, 7).await;
    drop(device);
    assert_eq!(device::delete(&options(&sized)).await.unwrap(), 3);
    let free = |donor: &ServingDonor| donor.donor.figures().free_bytes;
    let deadline = Instant::now() + crate::support::PATIENCE;
    while [&one, &two, &three].iter().any(|donor| free(donor) != 8 << 20) && Instant::now() < deadline {
        tokio::task::yield_now().await;
    }
    assert_eq!((free(&one), free(&two), free(&three)), (8 << 20, 8 << 20, 8 << 20));
    assert_eq!(device::delete(&options(&sized)).await.unwrap_err().kind, DeviceErrorKind::Absent);
}

#[tokio::test]
async fn mirror_take_over_fences_former_client() {
    let (one, two) = (ServingDonor::new(8 << 20), ServingDonor::new(8 << 20));
    let sized = spec(&[&one, &two], SIZED);
    create(&sized).await.unwrap();
    let first = open(&sized).await.unwrap();
    fill(&first, 1).await;
    let second = take_over(&sized).await.unwrap();
    holds(&second, 1).await;
    fill(&second, 2).await;
    let late = write(&*first, 0, Buffer::copy_of(&[9; 4096])).await.unwrap_err();
    assert!(late.kind == DeviceErrorKind::Latched && late.detail.contains("taken the device over"), "{late}");
    assert!(read(&*first, 0, 4096).await.is_err());
    holds(&second, 2).await;
}

/// A restarted donor of a mirror is filled, and then the other donor can be lost.
#[tokio::test]
async fn restarted_mirror_donor_is_refilled() {
    let (one, two) = (ServingDonor::new(8 << 20), ServingDonor::new(8 << 20));
    let sized = spec(&[&one, &two], SIZED);
    create(&sized).await.unwrap();
    let device = open(&sized).await.unwrap();
    fill(&device, 1).await;
    let socket = one.end().await;
    // The device is degraded, but no data is lost and no request is refused.
    fill(&device, 2).await;
    holds(&device, 2).await;
    assert_eq!(device.geometry().flush_survives, SurvivalLevel::Host);
    assert_eq!(device.figures()[0].get("donors_trusted"), Some(1));
    let one = ServingDonor::at(socket, 8 << 20);
    wait_for(&device, "donors_trusted", 2).await;
    wait_for(&device, "rebuilt", 1).await;
    // The device is whole only when the other donor has stored the view, too.
    wait_for(&device, "degraded", 0).await;
    two.end().await;
    holds(&device, 2).await;
    fill(&device, 3).await;
    holds(&device, 3).await;
    // The remaining donor has stored that it is the only one, and is trusted.
    drop(device);
    let device = open(&sized).await.unwrap();
    holds(&device, 3).await;
    assert_eq!(device.figures()[0].get("donors_trusted"), Some(1));
    drop((device, one));
}

#[tokio::test]
async fn a_lost_connection_costs_time_alone() {
    let (one, two) = (ServingDonor::new(8 << 20), ServingDonor::new(8 << 20));
    let sized = spec(&[&one, &two], SIZED);
    create(&sized).await.unwrap();
    let device = open(&sized).await.unwrap();
    fill(&device, 1).await;
    let one = one.cut().await;
    fill(&device, 2).await;
    let two = two.cut().await;
    holds(&device, 2).await;
    wait_for(&device, "donors_up", 2).await;
    assert_eq!(device.figures()[0].get("donors_trusted"), Some(2));
    drop((device, one, two));
}

/// A way to a donor on which the second connection, the first session, ends at once.
fn way_that_ends_a_session(donor: &ServingDonor) -> String {
    let (to, path) = (donor.socket.clone(), donor.socket.with_extension("way"));
    let name = format!("\"nbd+unix:///?socket={}\"", path.display());
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        for number in 1.. {
            let (mut client, _) = listener.accept().await.unwrap();
            let to = to.clone();
            tokio::spawn(async move {
                if number != 2 {
                    let mut server = UnixStream::connect(&to).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                }
            });
        }
    });
    name
}

/// A donor that ends the session of the survey does not count as missing.
#[tokio::test]
async fn survey_survives_ended_session() {
    let (one, two) = (ServingDonor::new(8 << 20), ServingDonor::new(8 << 20));
    create(&spec(&[&one, &two], SIZED)).await.unwrap();
    // With one of the two donors alone, nobody knows whether it has the newest data.
    let device = open(&format!("ram({},{},id=disk{MIRROR})", one.name(), way_that_ends_a_session(&two))).await.unwrap();
    assert_eq!(device.figures()[0].get("donors_trusted"), Some(2));
    fill(&device, 3).await;
    holds(&device, 3).await;
    std::fs::remove_file(two.socket.with_extension("way")).unwrap();
}

#[tokio::test]
async fn mirror_errors_name_remedy() {
    let (one, two) = (ServingDonor::new(8 << 20), ServingDonor::new(2 << 20));
    let error = create(&spec(&[&one, &two], SIZED)).await.unwrap_err();
    let name = two.socket.display().to_string();
    assert!(error.kind == DeviceErrorKind::Full && error.detail.contains(&name), "{error}");
    assert!(one.donor.figures().devices.is_empty());
    let other = format!("ram({},\"nbd+unix:///disk?socket=/nowhere\",id=disk,size=1M,redundancy=mirror)", one.name());
    let error = create(&other).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Unsupported && error.detail.contains("redundancy=none"), "{error}");
    // One of two donors is missing: the other donor alone is trusted only if the user confirms it.
    let two = ServingDonor::new(8 << 20);
    let sized = spec(&[&one, &two], SIZED);
    create(&sized).await.unwrap();
    let name = two.socket.display().to_string();
    let socket = two.end().await;
    let error = refused(&sized).await;
    assert!(error.kind == DeviceErrorKind::Absent && error.detail.contains("--trust-remaining"), "{error}");
    assert!(error.detail.contains(&name), "{error}");
    let trusting = OpenOptions { trust_remaining: true, ..OpenOptions::default() };
    let device = registry().open(&sized, &trusting).await.unwrap();
    assert_eq!(device.figures()[0].get("donors_trusted"), Some(1));
    drop(device);
    let _two = ServingDonor::at(socket, 8 << 20);
    let parsed = |spec: &str| RamOptions::parse(registry().arguments(spec, "ram", &OpenOptions::default()).unwrap());
    assert!(parsed("ram(h1:7070,id=disk,redundancy=mirror)").is_err());
}

/// Waits until a donor has as much free memory.
async fn wait_for_free(donor: &ServingDonor, bytes: u64) {
    let deadline = Instant::now() + crate::support::PATIENCE;
    while donor.donor.figures().free_bytes != bytes {
        assert!(Instant::now() < deadline, "{} bytes are free", donor.donor.figures().free_bytes);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn mirror_delete_needs_matching_spec() {
    let donors: Vec<ServingDonor> = (0..4).map(|_| ServingDonor::new(8 << 20)).collect();
    let [one, two, three, four] = &donors[..] else { unreachable!() };
    create(&spec(&[one, two, three], SIZED)).await.unwrap();
    let device = open(&spec(&[one, two, three], MIRROR)).await.unwrap();
    fill(&device, 5).await;
    // It is in use, whatever the SPEC says of its redundancy.
    for more in [MIRROR, ""] {
        let error = device::delete(&options(&spec(&[one, two, three], more))).await.unwrap_err();
        assert!(error.kind == DeviceErrorKind::Busy && error.detail.contains("detach it there"), "{error}");
    }
    drop(device);
    take_over(&spec(&[one, two, three], MIRROR)).await.unwrap().close().await.unwrap();
    for (donors, more, words) in [
        (&[one, two][..], MIRROR, "the device has 3 donors, 2 are named: name all"),
        (&[one, two, three, four], MIRROR, "the device has 3 donors, 4 are named: name all"),
        (&[one, two, three], ",redundancy=adaptive", "redundancy=mirror, not redundancy=adaptive"),
        (&[one, two, three], "", "name it with redundancy=mirror"),
        (&[one], "", "--part"),
    ] {
        let spec = spec(donors, more);
        let error = device::delete(&options(&spec)).await.unwrap_err();
        assert!(error.kind == DeviceErrorKind::Invalid && error.detail.contains(words), "{spec}: {error}");
        let error = refused(&spec).await;
        assert!(error.kind == DeviceErrorKind::Invalid && error.detail.contains(words), "{spec}: {error}");
    }
    let device = open(&spec(&[one, two, three], MIRROR)).await.unwrap();
    assert_eq!(device.figures()[0].get("donors_trusted"), Some(3));
    holds(&device, 5).await;
    device.close().await.unwrap();
    drop(device);
    // A donor that was not of the device is named, and so is the way to free what stays.
    let error = device::delete(&options(&spec(&[one, two, four], MIRROR))).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Absent && error.detail.contains("deleted on 2 donors"), "{error}");
    assert!(error.detail.contains(&four.socket.display().to_string()) && error.detail.contains("--part"), "{error}");
    wait_for_free(one, 8 << 20).await;
    assert_ne!(three.donor.figures().free_bytes, 8 << 20);
    // Its record says that it has a place.
    let part = options(&spec(&[three], ""));
    let error = device::delete_part(&part, false).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Busy && error.detail.contains("--force"), "{error}");
    device::delete_part(&part, true).await.unwrap();
    wait_for_free(three, 8 << 20).await;
    assert_eq!(device::delete_part(&part, true).await.unwrap_err().kind, DeviceErrorKind::Absent);
}

#[tokio::test]
async fn delete_keeps_part_in_use() {
    let (one, two) = (ServingDonor::new(8 << 20), ServingDonor::new(8 << 20));
    create(&spec(&[&one, &two], SIZED)).await.unwrap();
    let device = open(&spec(&[&one, &two], MIRROR)).await.unwrap();
    fill(&device, 6).await;
    let error = device::delete_part(&options(&spec(&[&two], "")), true).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Busy && !error.detail.contains("--take-over"), "{error}");
    let error = device::delete_part(&options(&spec(&[&one, &two], MIRROR)), true).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Invalid && error.detail.contains("name only this one"), "{error}");
    let error = device::grow(&options(&spec(&[&one, &two], MIRROR)), 8 << 20).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Busy && error.detail.contains("detach it there first"), "{error}");
    assert!(!error.detail.contains("--take-over"), "{error}");
    holds(&device, 6).await;
    assert_eq!(device.figures()[0].get("donors_trusted"), Some(2));
}
