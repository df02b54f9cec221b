//! Making, opening and deleting devices, and the loss of donors.

use std::time::{Duration, Instant};

use crate::support::{Serving, create, open, options, refused, spec};
use nectary_block::{Buffer, Context, ErrorKind, Survives, read, write};
use nectary_nbd::{Export, Exports, Listen, Server, ServerOptions};
use nectary_ram::device;

const UNIT: u64 = 64 << 10;

#[tokio::test]
async fn what_was_written_is_there_for_the_next_client_in_any_order_of_donors() {
    let (one, two) = (Serving::new(4 << 20), Serving::new(8 << 20));
    let sized = spec(&[&one, &two], ",size=6M");
    assert!(refused(&sized).await.detail.contains("none of the donors (2) holds anything"));
    create(&sized).await.unwrap();
    let again = create(&sized).await.unwrap_err();
    assert!(again.kind == ErrorKind::Busy && again.detail.contains("holds device \"disk\" already"), "{again}");
    let device = open(&sized).await.unwrap();
    assert_eq!((device.geometry().size_bytes, device.geometry().flush_survives), (6 << 20, Survives::Host));
    write(&*device, UNIT - 4096, Buffer::copy_of(&[7; 8192])).await.unwrap();
    device.flush(Context::default()).await.unwrap();
    // A device that one client has is refused to another.
    let busy = refused(&sized).await;
    assert!(busy.kind == ErrorKind::Busy && busy.detail.contains("in use by another client"), "{busy}");
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
    assert_eq!(device::delete(&options(&sized)).await.unwrap_err().kind, ErrorKind::Absent);
}

#[tokio::test]
async fn a_device_that_does_not_fit_names_what_each_donor_has() {
    let (one, two) = (Serving::new(2 << 20), Serving::new(4 << 20));
    let error = create(&spec(&[&one, &two], ",size=6M")).await.unwrap_err();
    assert!(error.kind == ErrorKind::Full && error.detail.contains("6M do not fit"), "{error}");
    assert!(error.detail.contains("1984K") && error.detail.contains("4032K"), "{error}");
    assert!(one.donor.figures().devices.is_empty());
    let error = create(&spec(&[&one, &two], "")).await.unwrap_err();
    assert!(error.detail.contains("size=8G"), "{error}");
}

#[tokio::test]
async fn donors_that_do_not_answer_are_named_all_at_once_and_a_donor_counts_once() {
    let (one, two, three) = (Serving::new(2 << 20), Serving::new(2 << 20), Serving::new(2 << 20));
    let spec = spec(&[&one, &two, &three], ",size=3M");
    create(&spec).await.unwrap();
    let (first, last) = (one.end().await, three.end().await);
    let error = refused(&spec).await;
    for socket in [&first, &last] {
        assert!(error.detail.contains(&socket.display().to_string()), "{error}");
    }
    assert!(error.detail.contains("all 3 donors are needed") && error.kind == ErrorKind::Absent, "{error}");
    // Two names lead to the same donor process.
    let alias = first.with_extension("alias");
    std::os::unix::fs::symlink(&two.socket, &alias).unwrap();
    let twice = format!("ram({},\"nbd+unix:///?socket={}\",id=disk,size=1M)", two.name(), alias.display());
    let error = create(&twice).await.unwrap_err();
    std::fs::remove_file(alias).unwrap();
    assert!(error.detail.contains("are the same donor"), "{error}");
}

#[tokio::test]
async fn a_lost_connection_costs_time_alone_while_the_donor_lives() {
    let (one, two) = (Serving::new(2 << 20), Serving::new(2 << 20));
    let spec = spec(&[&one, &two], ",size=2M,patience=10s");
    create(&spec).await.unwrap();
    let device = open(&spec).await.unwrap();
    write(&*device, 0, Buffer::copy_of(&vec![5; 2 << 20])).await.unwrap();
    let one = one.cut().await;
    // The data was not flushed, and still exists because the donor's process has not ended.
    assert!(read(&*device, 0, 2 << 20).await.unwrap().iter().all(|&byte| byte == 5));
    let one = one.cut().await;
    write(&*device, 4096, Buffer::copy_of(&vec![6; 1 << 20])).await.unwrap();
    device.flush(Context::default()).await.unwrap();
    assert!(read(&*device, 4096, 1 << 20).await.unwrap().iter().all(|&byte| byte == 6));
    let sessions: Vec<_> = device.figures().iter().filter_map(|figures| figures.get("sessions")).collect();
    assert_eq!(sessions, [3, 1]);
    drop((device, one));
}

#[tokio::test]
async fn a_donor_that_was_started_again_is_lost_and_the_other_goes_on() {
    let (one, two) = (Serving::new(2 << 20), Serving::new(2 << 20));
    let spec = spec(&[&one, &two], ",size=2M,patience=10s");
    create(&spec).await.unwrap();
    let device = open(&spec).await.unwrap();
    write(&*device, 0, Buffer::copy_of(&vec![5; 2 << 20])).await.unwrap();
    let one = Serving::at(one.end().await, 2 << 20);
    let error = read(&*device, 0, 4096).await.unwrap_err();
    assert!(error.kind == ErrorKind::Io && error.detail.contains("started again"), "{error}");
    // The other donor's unit can be read and written.
    assert_eq!(read(&*device, UNIT, 4096).await.unwrap()[0], 5);
    write(&*device, UNIT, Buffer::copy_of(&[6; 4096])).await.unwrap();
    // Data written on the lost donor is gone, so a flush cannot succeed.
    assert!(device.flush(Context::default()).await.is_err());
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

#[tokio::test]
async fn a_donor_that_is_away_costs_patience_and_then_errors_and_a_deadline_is_kept() {
    let (one, two) = (Serving::new(2 << 20), Serving::new(2 << 20));
    let spec = spec(&[&one, &two], ",size=2M,patience=400ms");
    create(&spec).await.unwrap();
    let device = open(&spec).await.unwrap();
    one.end().await;
    let began = Instant::now();
    let soon = Context { deadline: Some(began + Duration::from_millis(100)), ..Context::default() };
    let late = device.read_at(0, vec![Buffer::zeroed(4096)], soon).await.unwrap_err();
    assert!(late.kind == ErrorKind::TimedOut && began.elapsed() < Duration::from_millis(350), "{late}");
    let error = write(&*device, 0, Buffer::zeroed(4096)).await.unwrap_err();
    let waited = began.elapsed();
    assert!(error.kind == ErrorKind::Io && error.detail.contains("away"), "{error}");
    assert!((Duration::from_millis(390)..Duration::from_secs(5)).contains(&waited), "{waited:?}");
    // After that, requests fail at once.
    let began = Instant::now();
    read(&*device, 0, 4096).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_millis(300));
    assert!(read(&*device, UNIT, 4096).await.is_ok());
    drop(two);
}

#[tokio::test]
async fn a_server_of_another_make_can_be_a_donor_until_its_connection_is_lost() {
    let socket = std::env::temp_dir().join(format!("nectary-ram-other-{}.sock", std::process::id()));
    let memory = nectary_block::MemoryDevice::new(4 << 20);
    let export = Export::new("any", "", std::sync::Arc::new(memory), false).unwrap();
    let exports = Exports::new(vec![export]).unwrap();
    let server = Server::start(&[Listen::Unix(socket.clone())], exports, ServerOptions::default()).unwrap();
    let donor = Serving::new(4 << 20);
    let other = format!("\"nbd+unix:///any?socket={}\"", socket.display());
    let spec = format!("ram({},{other},id=disk,size=4M,patience=5s)", donor.name());
    create(&spec).await.unwrap();
    let device = open(&spec).await.unwrap();
    write(&*device, 0, Buffer::copy_of(&vec![5; 4 << 20])).await.unwrap();
    assert!(read(&*device, 0, 4 << 20).await.unwrap().iter().all(|&byte| byte == 5));
    assert_eq!(device.geometry().write_survives, Survives::Process);
    server.stop().await.unwrap();
    let error = read(&*device, UNIT, 4096).await.unwrap_err();
    assert!(error.detail.contains("it is lost"), "{error}");
    assert_eq!(read(&*device, 0, 4096).await.unwrap()[0], 5);
}

#[tokio::test]
async fn something_else_on_a_donor_is_not_overwritten() {
    let socket = std::env::temp_dir().join(format!("nectary-ram-full-{}.sock", std::process::id()));
    let memory = nectary_block::MemoryDevice::from_image(vec![1; 1 << 20]);
    let export = Export::new("", "", std::sync::Arc::new(memory), false).unwrap();
    let exports = Exports::new(vec![export]).unwrap();
    let _server = Server::start(&[Listen::Unix(socket.clone())], exports, ServerOptions::default()).unwrap();
    let spec = format!("ram(\"nbd+unix:///?socket={}\",id=disk,size=512K)", socket.display());
    let error = create(&spec).await.unwrap_err();
    assert!(error.kind == ErrorKind::Busy && error.detail.contains("--force"), "{error}");
    assert!(refused(&spec).await.detail.contains("no network RAM disk"));
    device::create(&options(&spec), true).await.unwrap();
    let device = open(&spec).await.unwrap();
    assert!(read(&*device, 0, 512 << 10).await.unwrap().iter().all(|&byte| byte == 0));
}

#[tokio::test]
async fn a_device_is_deleted_only_by_a_spec_that_names_it_and_only_if_no_client_has_it() {
    let donors: Vec<Serving> = (0..3).map(|_| Serving::new(4 << 20)).collect();
    let [one, two, three] = &donors[..] else { unreachable!() };
    create(&spec(&[one, two], ",size=4M")).await.unwrap();
    let device = open(&spec(&[one, two], "")).await.unwrap();
    write(&*device, 0, Buffer::copy_of(&vec![5; 4 << 20])).await.unwrap();
    let (whole, part) = (options(&spec(&[one, two], "")), options(&spec(&[two], "")));
    for error in [device::delete(&whole).await.unwrap_err(), device::delete_part(&part, true).await.unwrap_err()] {
        assert!(error.kind == ErrorKind::Busy && error.detail.contains("detach it there first"), "{error}");
        assert!(!error.detail.contains("policy"), "{error}");
    }
    let error = device::grow(&whole, 8 << 20).await.unwrap_err();
    assert!(error.kind == ErrorKind::Busy && error.detail.contains("detach it there first"), "{error}");
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
        assert!(error.kind == ErrorKind::Invalid && error.detail.contains(words), "{error}");
    }
    let plain = refused(&spec(&[one, two], ",redundancy=mirror")).await;
    assert!(plain.kind == ErrorKind::Invalid && plain.detail.contains("name it without"), "{plain}");
    let device = open(&spec(&[one, two], "")).await.unwrap();
    assert!(read(&*device, 0, 4 << 20).await.unwrap().iter().all(|&byte| byte == 5));
    drop(device);
    let error = loop {
        match device::delete_part(&part, false).await.unwrap_err() {
            error if error.detail.contains("in use") => tokio::task::yield_now().await,
            error => break error,
        }
    };
    assert!(error.kind == ErrorKind::Busy && error.detail.contains("--force"), "{error}");
    device::delete_part(&part, true).await.unwrap();
    assert_eq!(device::delete_part(&part, true).await.unwrap_err().kind, ErrorKind::Absent);
    // The donor might have been started again: the device is lost, and what is left can be deleted.
    let error = refused(&spec(&[one, two], "")).await;
    assert!(error.kind == ErrorKind::Absent && error.detail.contains("nectary ram delete"), "{error}");
    let error = device::delete(&whole).await.unwrap_err();
    assert!(error.kind == ErrorKind::Absent && error.detail.contains("deleted on 1 donors"), "{error}");
    let error = device::delete(&whole).await.unwrap_err();
    assert!(error.kind == ErrorKind::Absent && error.detail.contains("no donor has a part"), "{error}");
}
