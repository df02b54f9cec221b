//! Making, opening and deleting devices, and the loss of donors.

use std::time::{Duration, Instant};

use crate::support::{ServingDonor, create, open, options, refused, spec};
use nectary_block::{Buffer, DeviceErrorKind, IoContext, SurvivalLevel, read, write};
use nectary_nbd::{Export, ExportTable, ListenEndpoint, NetworkBlockServer, ServerOptions};
use nectary_ram::device;

const UNIT: u64 = 64 << 10;

/// The next client reads the data, also if it names the donors in another order.
#[tokio::test]
async fn next_client_reads_plain_device() {
    let (one, two) = (ServingDonor::new(4 << 20), ServingDonor::new(8 << 20));
    let sized = spec(&[&one, &two], ",size=6M");
    assert!(refused(&sized).await.detail.contains("none of the donors (2) holds anything"));
    create(&sized).await.unwrap();
    let again = create(&sized).await.unwrap_err();
    assert!(again.kind == DeviceErrorKind::Busy && again.detail.contains("holds device \"disk\" already"), "{again}");
    let device = open(&sized).await.unwrap();
    assert_eq!((device.geometry().size_bytes, device.geometry().flush_survives), (6 << 20, SurvivalLevel::Host));
    write(&*device, UNIT - 4096, Buffer::copy_of(&[7; 8192])).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
    // A device that one client has is refused to another.
    let busy = refused(&sized).await;
    assert!(busy.kind == DeviceErrorKind::Busy && busy.detail.contains("in use by another client"), "{busy}");
    drop(device);
    let turned = loop {
        // The donors notice the end of the connections a moment later.
        match open(&spec(&[&two, &one], "")).await {
            Ok(device) => break device,
            Err(error) => assert!(error.detail.contains("in use"), "{error}"),
        }
    };
    assert!(read(&*turned, UNIT - 4096, 8192).await.unwrap().iter().all(|&byte| byte == 7));
    let up = turned.figures()[0].get("donors_up");
    assert_eq!((up, one.donor.figures().devices.len()), (Some(2), 1));
    drop(turned);
    let deleted = loop {
        match device::delete(&options(&sized)).await {
            Ok(count) => break count,
            Err(error) => assert!(error.detail.contains("in use"), "{error}"),
        }
    };
    assert_eq!(deleted, 2);
    while !one.donor.figures().devices.is_empty() || two.donor.figures().free_bytes != 8 << 20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(device::delete(&options(&sized)).await.unwrap_err().kind, DeviceErrorKind::Absent);
}

#[tokio::test]
async fn oversized_device_error_names_donors() {
    let (one, two) = (ServingDonor::new(2 << 20), ServingDonor::new(4 << 20));
    let error = create(&spec(&[&one, &two], ",size=6M")).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Full && error.detail.contains("6M do not fit"), "{error}");
    assert!(error.detail.contains("1984K") && error.detail.contains("4032K"), "{error}");
    assert!(one.donor.figures().devices.is_empty());
    let error = create(&spec(&[&one, &two], "")).await.unwrap_err();
    assert!(error.detail.contains("size=8G"), "{error}");
}

/// A donor that is named under two addresses counts once.
#[tokio::test]
async fn error_names_all_silent_donors() {
    let (one, two, three) = (ServingDonor::new(2 << 20), ServingDonor::new(2 << 20), ServingDonor::new(2 << 20));
    let spec = spec(&[&one, &two, &three], ",size=3M");
    create(&spec).await.unwrap();
    let (first, last) = (one.end().await, three.end().await);
    let error = refused(&spec).await;
    for socket in [&first, &last] {
        assert!(error.detail.contains(&socket.display().to_string()), "{error}");
    }
    assert!(error.detail.contains("all 3 donors are needed") && error.kind == DeviceErrorKind::Absent, "{error}");
    // Two names lead to the same donor process.
    let alias = first.with_extension("alias");
    std::os::unix::fs::symlink(&two.socket, &alias).unwrap();
    let twice = format!("ram({},\"nbd+unix:///?socket={}\",id=disk,size=1M)", two.name(), alias.display());
    let error = create(&twice).await.unwrap_err();
    std::fs::remove_file(alias).unwrap();
    assert!(error.detail.contains("are the same donor"), "{error}");
}

/// A lost connection costs only time as long as the donor's process lives.
#[tokio::test]
async fn lost_connection_loses_no_data() {
    let (one, two) = (ServingDonor::new(2 << 20), ServingDonor::new(2 << 20));
    let spec = spec(&[&one, &two], ",size=2M,patience=10s");
    create(&spec).await.unwrap();
    let device = open(&spec).await.unwrap();
    write(&*device, 0, Buffer::copy_of(&vec![5; 2 << 20])).await.unwrap();
    let one = one.cut().await;
    // The data was not flushed, and still exists because the donor's process has not ended.
    assert!(read(&*device, 0, 2 << 20).await.unwrap().iter().all(|&byte| byte == 5));
    let one = one.cut().await;
    write(&*device, 4096, Buffer::copy_of(&vec![6; 1 << 20])).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
    assert!(read(&*device, 4096, 1 << 20).await.unwrap().iter().all(|&byte| byte == 6));
    let sessions: Vec<_> = device.figures().iter().filter_map(|figures| figures.get("sessions")).collect();
    assert_eq!(sessions, [3, 1]);
    drop((device, one));
}

/// Blocks on the other donor can still be read and written, and a flush fails.
#[tokio::test]
async fn restarted_donor_is_lost() {
    let (one, two) = (ServingDonor::new(2 << 20), ServingDonor::new(2 << 20));
    let spec = spec(&[&one, &two], ",size=2M,patience=10s");
    create(&spec).await.unwrap();
    let device = open(&spec).await.unwrap();
    write(&*device, 0, Buffer::copy_of(&vec![5; 2 << 20])).await.unwrap();
    let one = ServingDonor::at(one.end().await, 2 << 20);
    let error = read(&*device, 0, 4096).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Io && error.detail.contains("started again"), "{error}");
    // The other donor's unit can be read and written.
    assert_eq!(read(&*device, UNIT, 4096).await.unwrap()[0], 5);
    write(&*device, UNIT, Buffer::copy_of(&[6; 4096])).await.unwrap();
    // Data written on the lost donor is gone, so a flush cannot succeed.
    assert!(device.flush(IoContext::default()).await.is_err());
    assert_eq!(device.figures()[0].get("donors_lost"), Some(1));
    drop(device);
    loop {
        let error = refused(&spec).await;
        if !error.detail.contains("in use") {
            assert!(error.detail.contains("it is empty"), "{error}");
            break;
        }
    }
    assert!(one.donor.figures().devices.is_empty(), "opening makes nothing");
}

/// A request fails at its deadline or after the patience, and later requests fail at once.
#[tokio::test]
async fn absent_donor_costs_patience() {
    let (one, two) = (ServingDonor::new(2 << 20), ServingDonor::new(2 << 20));
    let spec = spec(&[&one, &two], ",size=2M,patience=400ms");
    create(&spec).await.unwrap();
    let device = open(&spec).await.unwrap();
    one.end().await;
    let began = Instant::now();
    let soon = IoContext { deadline: Some(began + Duration::from_millis(100)), ..IoContext::default() };
    let late = device.read_at(0, vec![Buffer::zeroed(4096)], soon).await.unwrap_err();
    assert!(late.kind == DeviceErrorKind::TimedOut && began.elapsed() < Duration::from_millis(350), "{late}");
    let error = write(&*device, 0, Buffer::zeroed(4096)).await.unwrap_err();
    let waited = began.elapsed();
    assert!(error.kind == DeviceErrorKind::Io && error.detail.contains("away"), "{error}");
    assert!((Duration::from_millis(390)..Duration::from_secs(5)).contains(&waited), "{waited:?}");
    // After that, requests fail at once.
    let began = Instant::now();
    read(&*device, 0, 4096).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_millis(300));
    assert!(read(&*device, UNIT, 4096).await.is_ok());
    drop(two);
}

/// An NBD server of another make can be a donor, and is lost with its connection.
#[tokio::test]
async fn foreign_server_serves_until_disconnect() {
    let socket = std::env::temp_dir().join(format!("nectary-ram-other-{}.sock", std::process::id()));
    let memory = nectary_block::MemoryDevice::new(4 << 20);
    let export = Export::new("any", "", std::sync::Arc::new(memory), false).unwrap();
    let exports = ExportTable::new(vec![export]).unwrap();
    let server =
        NetworkBlockServer::start(&[ListenEndpoint::Unix(socket.clone())], exports, ServerOptions::default()).unwrap();
    let donor = ServingDonor::new(4 << 20);
    let other = format!("\"nbd+unix:///any?socket={}\"", socket.display());
    let spec = format!("ram({},{other},id=disk,size=4M,patience=5s)", donor.name());
    create(&spec).await.unwrap();
    let device = open(&spec).await.unwrap();
    write(&*device, 0, Buffer::copy_of(&vec![5; 4 << 20])).await.unwrap();
    assert!(read(&*device, 0, 4 << 20).await.unwrap().iter().all(|&byte| byte == 5));
    assert_eq!(device.geometry().write_survives, SurvivalLevel::Process);
    server.stop().await.unwrap();
    let error = read(&*device, UNIT, 4096).await.unwrap_err();
    assert!(error.detail.contains("it is lost"), "{error}");
    assert_eq!(read(&*device, 0, 4096).await.unwrap()[0], 5);
}

/// Data of another kind on a donor is overwritten only with force.
#[tokio::test]
async fn create_keeps_foreign_data() {
    let socket = std::env::temp_dir().join(format!("nectary-ram-full-{}.sock", std::process::id()));
    let memory = nectary_block::MemoryDevice::from_image(vec![1; 1 << 20]);
    let export = Export::new("", "", std::sync::Arc::new(memory), false).unwrap();
    let exports = ExportTable::new(vec![export]).unwrap();
    let _server =
        NetworkBlockServer::start(&[ListenEndpoint::Unix(socket.clone())], exports, ServerOptions::default()).unwrap();
    let spec = format!("ram(\"nbd+unix:///?socket={}\",id=disk,size=512K)", socket.display());
    let error = create(&spec).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Busy && error.detail.contains("--force"), "{error}");
    assert!(refused(&spec).await.detail.contains("no network RAM disk"));
    device::create(&options(&spec), true).await.unwrap();
    let device = open(&spec).await.unwrap();
    assert!(read(&*device, 0, 512 << 10).await.unwrap().iter().all(|&byte| byte == 0));
}

/// A device is deleted only by a SPEC that names it, and only if no client has it.
#[tokio::test]
async fn plain_delete_needs_unused_named_device() {
    let donors: Vec<ServingDonor> = (0..3).map(|_| ServingDonor::new(4 << 20)).collect();
    let [one, two, three] = &donors[..] else { unreachable!() };
    create(&spec(&[one, two], ",size=4M")).await.unwrap();
    let device = open(&spec(&[one, two], "")).await.unwrap();
    write(&*device, 0, Buffer::copy_of(&vec![5; 4 << 20])).await.unwrap();
    let (whole, part) = (options(&spec(&[one, two], "")), options(&spec(&[two], "")));
    for error in [device::delete(&whole).await.unwrap_err(), device::delete_part(&part, true).await.unwrap_err()] {
        assert!(error.kind == DeviceErrorKind::Busy && error.detail.contains("detach it there first"), "{error}");
        assert!(!error.detail.contains("policy"), "{error}");
    }
    let error = device::grow(&whole, 8 << 20).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Busy && error.detail.contains("detach it there first"), "{error}");
    drop(device);
    while device::delete_part(&part, false).await.unwrap_err().detail.contains("in use") {
        tokio::task::yield_now().await;
    }
    for (donors, more, words) in [
        (&[one][..], "", "the device has 2 donors, 1 are named"),
        (&[one, two, three], "", "the device has 2 donors, 3 are named: name all"),
        (&[one, two], ",redundancy=mirror", "has no redundancy: name it without"),
    ] {
        let error = device::delete(&options(&spec(donors, more))).await.unwrap_err();
        assert!(error.kind == DeviceErrorKind::Invalid && error.detail.contains(words), "{error}");
    }
    let plain = refused(&spec(&[one, two], ",redundancy=mirror")).await;
    assert!(plain.kind == DeviceErrorKind::Invalid && plain.detail.contains("name it without"), "{plain}");
    let device = open(&spec(&[one, two], "")).await.unwrap();
    assert!(read(&*device, 0, 4 << 20).await.unwrap().iter().all(|&byte| byte == 5));
    drop(device);
    let error = loop {
        match device::delete_part(&part, false).await.unwrap_err() {
            error if error.detail.contains("in use") => tokio::task::yield_now().await,
            error => break error,
        }
    };
    assert!(error.kind == DeviceErrorKind::Busy && error.detail.contains("--force"), "{error}");
    device::delete_part(&part, true).await.unwrap();
    assert_eq!(device::delete_part(&part, true).await.unwrap_err().kind, DeviceErrorKind::Absent);
    // The donor might have been started again: the device is lost, and what is left can be deleted.
    let error = refused(&spec(&[one, two], "")).await;
    assert!(error.kind == DeviceErrorKind::Absent && error.detail.contains("nectary ram delete"), "{error}");
    let error = device::delete(&whole).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Absent && error.detail.contains("deleted on 1 donors"), "{error}");
    let error = device::delete(&whole).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Absent && error.detail.contains("no donor has a part"), "{error}");
}
