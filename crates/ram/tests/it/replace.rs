//! Another donor takes the place of one while the device is used: no error, no wrong byte, and never fewer copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::{ServingDonor, create, options, spec};
use nectary_block::{BlockDevice, Buffer, IoContext, SurvivalLevel, read, write};
use nectary_ram::check::{RedundancyHealth, check};
use nectary_ram::device::owner::{MoveErrorKind, RamDevice};
use tokio::sync::watch;

const BYTES: u64 = 6 << 20;
const BLOCK: u64 = 4096;

/// The bytes of a block in a version.
fn content(block: u64, version: u64) -> Vec<u8> {
    let first = block.wrapping_mul(0x9e37_79b9).wrapping_add(version << 7);
    (0..BLOCK).map(|at| (first >> (at % 5 * 8)) as u8 ^ at as u8).collect()
}

/// The number of writes that the load does before and after a replacement.
const TURNS: u64 = 100;

/// Writes and reads blocks in turn until it is told to stop, then compares all. `turns` has the number of writes.
async fn load(device: Arc<RamDevice>, stop: Arc<AtomicBool>, turns: watch::Sender<u64>) {
    let mut versions = vec![0u64; (BYTES / BLOCK) as usize];
    let mut turn = 0u64;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let block = turn.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 7 & 0x3ff;
        write(&*device, block * BLOCK, Buffer::copy_of(&content(block, turn))).await.unwrap();
        versions[block as usize] = turn;
        let other = (turn * 13) & 0x3ff;
        let found = read(&*device, other * BLOCK, BLOCK as usize).await.unwrap();
        let version = versions[other as usize];
        let expected = if version == 0 { vec![0; BLOCK as usize] } else { content(other, version) };
        assert!(found[..] == expected[..], "block {other} in turn {turn}");
        if turn.is_multiple_of(50) {
            device.flush(IoContext::default()).await.unwrap();
        }
        turns.send_replace(turn);
    }
    device.flush(IoContext::default()).await.unwrap();
    compare(&device, &versions).await;
}

async fn compare(device: &RamDevice, versions: &[u64]) {
    for (block, version) in versions.iter().enumerate().filter(|(_, version)| **version > 0) {
        let found = read(device, block as u64 * BLOCK, BLOCK as usize).await.unwrap();
        assert!(found[..] == content(block as u64, *version)[..], "block {block}");
    }
}

fn number(device: &RamDevice, name: &str) -> u64 {
    device.figures()[0].get(name).unwrap_or_default()
}

async fn empties(donor: &ServingDonor) {
    let deadline = Instant::now() + crate::support::PATIENCE;
    while !donor.donor.figures().devices.is_empty() {
        assert!(Instant::now() < deadline, "{:?}", donor.donor.figures());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn replaced(redundancy: &str, count: usize) {
    let mut donors: Vec<ServingDonor> = (0..=count).map(|_| ServingDonor::new(20 << 20)).collect();
    let other = donors.pop().unwrap();
    let all: Vec<&ServingDonor> = donors.iter().collect();
    let sized = spec(&all, &format!(",size=6M,redundancy={redundancy}"));
    create(&sized).await.unwrap();
    let device = Arc::new(RamDevice::open(options(&sized)).await.unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let (turns, mut written) = watch::channel(0);
    let working = tokio::spawn(load(device.clone(), stop.clone(), turns));
    written.wait_for(|turn| *turn >= TURNS).await.unwrap();
    let name = |donor: &ServingDonor| donor.name().trim_matches('"').to_owned();
    let refused = device.replace("h9:7070", &name(&other)).await.unwrap_err();
    let listed = format!("its donors are 1 ({}), 2 ({})", name(&donors[0]), name(&donors[1]));
    assert!(refused.kind == MoveErrorKind::NoSuchDonor && refused.message.contains(&listed), "{refused}");
    assert_eq!(device.drain("9").await.unwrap_err().kind, MoveErrorKind::NoSuchDonor);
    let refused = device.replace("1", &name(&donors[1])).await.unwrap_err();
    assert!(refused.message.contains("is donor 2 of the device already"), "{refused}");
    let refused = device.replace("1", "127.0.0.1:1").await.unwrap_err();
    assert_eq!(refused.kind, MoveErrorKind::Absent, "{refused}");
    assert_eq!(device.spec(), options(&sized).spec());
    device.replace(&name(&donors[0]), &name(&other)).await.unwrap();
    let present: Vec<&ServingDonor> = std::iter::once(&other).chain(&donors[1..]).collect();
    let renamed = spec(&present, &format!(",size=6M,redundancy={redundancy}"));
    assert_eq!(device.spec(), options(&renamed).spec(), "the SPEC names the present donors");
    assert_eq!((number(&device, "replaced"), number(&device, "left")), (1, 0), "it was never degraded");
    let survives = if redundancy == "parity" { SurvivalLevel::Donor } else { SurvivalLevel::HostAndDonor };
    assert_eq!(device.geometry().flush_survives, survives);
    empties(&donors[0]).await;
    let before = *written.borrow();
    written.wait_for(|turn| *turn >= before + TURNS).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    working.await.unwrap();
    device.detach().await.unwrap();
    drop(device);
    // The other donor has the place; the former one has nothing.
    donors[0] = other;
    let all: Vec<&ServingDonor> = donors.iter().collect();
    let sized = spec(&all, &format!(",size=6M,redundancy={redundancy}"));
    let checked = check(&options(&sized), &mut |_, _| {}).await.unwrap();
    assert_eq!((checked.health, checked.problem_count), (RedundancyHealth::Healthy, 0), "{checked:?}");
    let device = RamDevice::open(options(&sized)).await.unwrap();
    assert_eq!(number(&device, "donors_trusted"), count as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replace_under_load_never_degrades() {
    replaced("mirror", 2).await;
    replaced("mirror", 3).await;
    for redundancy in ["parity", "parity-log", "adaptive"] {
        replaced(redundancy, 3).await;
    }
}

/// A lost donor is replaced by a donor at another address, which gets the whole contents.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_donor_is_replaced() {
    let (one, two, three) = (ServingDonor::new(20 << 20), ServingDonor::new(20 << 20), ServingDonor::new(20 << 20));
    let sized = spec(&[&one, &two], ",size=6M,redundancy=mirror");
    create(&sized).await.unwrap();
    let device = RamDevice::open(options(&sized)).await.unwrap();
    write(&device, 0, Buffer::copy_of(&content(3, 3))).await.unwrap();
    let gone = one.name().trim_matches('"').to_owned();
    one.end().await;
    let deadline = Instant::now() + crate::support::PATIENCE;
    while number(&device, "left") == 0 {
        assert!(Instant::now() < deadline, "{:?}", device.figures());
        write(&device, 0, Buffer::copy_of(&content(3, 3))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    device.replace(&gone, three.name().trim_matches('"')).await.unwrap();
    assert_eq!((number(&device, "donors_trusted"), number(&device, "degraded")), (2, 0));
    two.end().await;
    let found = read(&device, 0, BLOCK as usize).await.unwrap();
    assert!(found[..] == content(3, 3)[..]);
}

/// A donor with too little memory is refused as a replacement, and the device stays as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsuitable_replacement_changes_nothing() {
    let (one, two, three) = (ServingDonor::new(20 << 20), ServingDonor::new(20 << 20), ServingDonor::new(4 << 20));
    let sized = spec(&[&one, &two], ",size=6M,redundancy=mirror");
    create(&sized).await.unwrap();
    let device = RamDevice::open(options(&sized)).await.unwrap();
    write(&device, 0, Buffer::copy_of(&content(3, 3))).await.unwrap();
    let refused = device.replace("2", three.name().trim_matches('"')).await.unwrap_err();
    assert!(refused.message.contains("are needed") && refused.kind == MoveErrorKind::Unsuitable, "{refused}");
    assert_eq!((number(&device, "donors_trusted"), number(&device, "replaced")), (2, 0));
    let found = read(&device, 0, BLOCK as usize).await.unwrap();
    assert!(found[..] == content(3, 3)[..]);
    drop((one, two));
}
