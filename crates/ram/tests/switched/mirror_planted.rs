//! The checks of the live mirror detect two planted bugs: a donor that still serves an earlier owner, and a driver that
//! reports lost requests as done.

use std::time::{Duration, Instant};

use crate::support::{ServingDonor, create, open, options, registry, spec};
use nectary_block::{BlockDevice, Buffer, IoContext, OpenOptions, SharedDevice, WriteFlags, read, write};
use nectary_nbd::{ConnectOptions, ExportUrl, NbdDevice, info};
use nectary_ram::device::delete;
use nectary_ram::device::owner::planted::{self, Bug, plant};
use nectary_ram::donor::name::{ExportName, PAGE_NAME, SessionName};
use nectary_ram::donor::page::DonorPage;
use nectary_ram::format::{RecordStamp, RecordSwap, WINDOW_BYTES, WindowState};

const SIZED: &str = ",size=6M,redundancy=mirror,patience=5s";
const BYTES: usize = 6 << 20;
/// The longest time in which a donor frees what was let go.
const FREED_WITHIN: Duration = Duration::from_secs(10);

/// Opens a session with a donor, as any NBD client does.
async fn session(donor: &ServingDonor, client: u64) -> NbdDevice {
    let url = |export: &str| {
        let url = ExportUrl::parse(&format!("nbd+unix:///?socket={}", donor.socket.display())).unwrap();
        ExportUrl { export: export.to_owned(), connections: Some(1), ..url }
    };
    let page = info(&url(PAGE_NAME), &ConnectOptions::default()).await.unwrap().description.unwrap();
    let incarnation = DonorPage::parse(&page).unwrap().incarnation;
    let session = SessionName { incarnation, client, epoch: 1, has_metadata: true, only_reads: false };
    let name = ExportName { id: "disk".to_owned(), size_bytes: None, session: Some(session) };
    let mut options = ConnectOptions::default();
    options.is_single_session = true;
    NbdDevice::connect(&url(&name.to_string()), options).await.unwrap()
}

/// Reads the window of a donor.
async fn window(device: &NbdDevice) -> WindowState {
    let at = device.geometry().size_bytes - WINDOW_BYTES as u64;
    WindowState::decode(&read(device, at, WINDOW_BYTES).await.unwrap()).unwrap()
}

/// Returns what an earlier owner can still do on a donor after another client took the device over; every entry is an
/// error.
async fn late_writes() -> Vec<&'static str> {
    let (one, two) = (ServingDonor::new(8 << 20), ServingDonor::new(8 << 20));
    let sized = spec(&[&one, &two], SIZED);
    create(&sized).await.unwrap();
    let early = session(&one, 77).await;
    let state = window(&early).await;
    assert!(!state.is_owner && !state.is_owned && !state.record.is_empty());
    let at = early.geometry().size_bytes - WINDOW_BYTES as u64;
    let mut found = Vec::new();
    if write(&early, 0, Buffer::copy_of(&[9; 4096])).await.is_ok() {
        found.push("a session that is no owner has written");
    }
    // An exchange that expects another stamp changes nothing.
    let wrong = RecordSwap { expected: RecordStamp { generation: 99, client: 1, revision: 1 }, record: &state.record };
    let swap = async |swap: &RecordSwap<'_>| {
        let buffers = vec![Buffer::copy_of(&swap.encode())];
        early.write_at(at, buffers, WriteFlags::default(), IoContext::default()).await.is_ok()
    };
    assert!(!swap(&wrong).await && !window(&early).await.is_owner);
    let right = RecordSwap { expected: RecordStamp::of(&state.record), record: &state.record };
    assert!(swap(&right).await && window(&early).await.is_owner);
    write(&early, 0, Buffer::copy_of(&[0; 4096])).await.unwrap();
    // The window cannot be read together with blocks, and cannot be discarded.
    assert!(
        read(&early, at - 4096, 8192).await.is_err() && early.discard(at, 4096, IoContext::default()).await.is_err()
    );
    let device = registry().open(&sized, &OpenOptions { take_over: true, ..OpenOptions::default() }).await.unwrap();
    write(&*device, 0, Buffer::copy_of(&vec![5; BYTES])).await.unwrap();
    // The write is sent directly, because the machine would stop using such a connection.
    if write(&early, 0, Buffer::copy_of(&[9; 4096])).await.is_ok() {
        found.push("an earlier owner has written");
    }
    if early.failure().is_none() {
        found.push("the connection of an earlier owner goes on");
    }
    found
}

/// Returns the number of wrong bytes and errors after connections were cut during writes, with the other donor gone.
async fn lost_writes(rounds: u8) -> usize {
    let (mut one, two) = (ServingDonor::new(8 << 20), ServingDonor::new(8 << 20));
    let sized = spec(&[&one, &two], SIZED);
    create(&sized).await.unwrap();
    let device = open(&sized).await.unwrap();
    for round in 1..=rounds {
        let writes: Vec<_> = (0..BYTES >> 16)
            .map(|at| write_part(device.clone(), at as u64 * (64 << 10), round))
            .map(tokio::spawn)
            .collect();
        one = one.cut().await;
        for write in writes {
            write.await.unwrap();
        }
    }
    while device.figures()[0].get("degraded") != Some(0) {
        tokio::task::yield_now().await;
    }
    two.end().await;
    let mut wrong = 0;
    for at in 0..BYTES >> 16 {
        match read(&*device, (at as u64) << 16, 64 << 10).await {
            Ok(found) => wrong += usize::from(found.iter().any(|&byte| byte != rounds)),
            Err(_) => wrong += 1,
        }
    }
    drop(one);
    wrong
}

async fn write_part(device: SharedDevice, offset: u64, byte: u8) {
    let data = Buffer::copy_of(&vec![byte; 64 << 10]);
    device.write_at(offset, vec![data], WriteFlags::default(), IoContext::default()).await.unwrap();
}

/// Returns the number of bytes of a deleted device that the next one with its name has. The client that deletes is killed
/// when no donor has the record any more, and before one of them has freed what is behind it.
async fn remains_of_a_deletion() -> usize {
    let (one, two) = (ServingDonor::new(8 << 20), ServingDonor::new(8 << 20));
    let sized = spec(&[&one, &two], SIZED);
    create(&sized).await.unwrap();
    let device = open(&sized).await.unwrap();
    write(&*device, 0, Buffer::copy_of(&vec![7; BYTES])).await.unwrap();
    device.close().await.unwrap();
    let options = options(&sized);
    planted::stop_after(3);
    tokio::select! {
        () = planted::stopped() => {}
        deleted = delete(&options) => panic!("it was to be killed: {deleted:?}"),
    }
    planted::stop_after(u64::MAX);
    // A donor may still free what the killed client let go.
    let begun = Instant::now();
    while let Err(error) = create(&sized).await {
        assert!(begun.elapsed() < FREED_WITHIN, "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let device = open(&sized).await.unwrap();
    read(&*device, 0, BYTES).await.unwrap().iter().filter(|byte| **byte != 0).count()
}

/// There is only one test, because a planted bug affects the whole process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_mirror_bugs_are_caught() {
    let _turn = crate::turn(module_path!());
    assert_eq!(late_writes().await, Vec::<&str>::new());
    assert_eq!(lost_writes(8).await, 0);
    assert_eq!(remains_of_a_deletion().await, 0);
    for bug in Bug::EVERY {
        plant(Some(*bug));
        let found = match bug {
            Bug::OldOwnerServed => late_writes().await.len(),
            Bug::LostWriteAnswered => lost_writes(8).await,
            Bug::RemainsKept => remains_of_a_deletion().await,
            // `grow_planted` finds these.
            Bug::FormersIgnored | Bug::SizeBeforeRoom | Bug::ParityTrimmed => continue,
        };
        plant(None);
        println!("{}: {found} findings", bug.name());
        assert!(found > 0, "{} is not found", bug.name());
    }
}
