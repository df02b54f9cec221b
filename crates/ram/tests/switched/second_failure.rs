//! A donor dies while another one is being moved: the move ends or is reverted, and nothing is lost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, ServingDonor, create, options};
use nectary_block::{BlockDevice, Buffer, IoContext, read, write};
use nectary_ram::device::owner::{RamDevice, planted};

const BYTES: u64 = 8 << 20;
/// The length of a write and of a read. *Units*: bytes.
const BLOCK: usize = 256 << 10;
/// The most parts of a move that are left when it is near its end. *Units*: bytes.
const NEAR_END_BYTES: u64 = 2 << 20;

/// Who begins the move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MoveTrigger {
    /// A user, to a donor that is no spare.
    Replace,
    /// The donor, which leaves.
    Sigterm,
}

fn content(block: u64, version: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (block as u8).wrapping_mul(31) ^ at as u8 ^ version).collect()
}

fn number(device: &RamDevice, name: &str) -> u64 {
    device.figures()[0].get(name).unwrap_or_default()
}

async fn wait(what: &str, device: &RamDevice, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: {:?}", device.figures());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// One of the eight cases: a donor dies early in the copy, or near its end, when another one is moved.
async fn second_failure(redundancy: &str, members: usize, moving: MoveTrigger, is_early: bool) {
    let case = format!("{redundancy}, {moving:?}, early {is_early}");
    let mut donors: Vec<ServingDonor> = (0..=members).map(|_| ServingDonor::new(40 << 20)).collect();
    let names: Vec<String> = donors.iter().map(|donor| donor.name()).collect();
    let spare = if moving == MoveTrigger::Sigterm { format!(",{};spare", names[members]) } else { String::new() };
    let named = format!("ram({}{spare},id=disk,redundancy={redundancy},patience=10s)", names[..members].join(","));
    create(&named.replace(",redundancy", ",size=8M,redundancy")).await.unwrap();
    let device = Arc::new(RamDevice::open(options(&named)).await.unwrap());
    for block in (0..BYTES / BLOCK as u64).step_by(3) {
        write(&*device, block * BLOCK as u64, Buffer::copy_of(&content(block, 1))).await.unwrap();
    }
    device.flush(IoContext::default()).await.unwrap();
    let replaced = match moving {
        MoveTrigger::Replace => {
            let (device, new) = (device.clone(), names[members].trim_matches('"').to_owned());
            Some(tokio::spawn(async move { device.replace("1", &new).await }))
        }
        MoveTrigger::Sigterm => {
            donors[0].donor.leave();
            None
        }
    };
    let progress = || device.report().moving.map(|moving| (moving.copied, moving.all - moving.copied));
    let is_due = || match progress() {
        Some((copied, left)) if is_early => copied > 0 && left > 0,
        Some((_, left)) => left <= NEAR_END_BYTES,
        None => number(&device, "replaced") > 0,
    };
    wait("the copy begins", &device, is_due).await;
    // The other donor dies.
    let dead = donors.remove(1).end().await;
    // Writes go on once the dead donor is left, and everything is there.
    let began = Instant::now();
    for block in (0..BYTES / BLOCK as u64).step_by(7) {
        write(&*device, block * BLOCK as u64, Buffer::copy_of(&content(block, 2))).await.unwrap();
    }
    device.flush(IoContext::default()).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(8), "{case}: {:?}", began.elapsed());
    if let Some(replaced) = replaced {
        let ended = replaced.await.unwrap();
        println!("{case}: {ended:?}");
    }
    if moving == MoveTrigger::Sigterm {
        // The spare takes the place of the dead one, or that of the leaving one if this was over before.
        wait("the spare has a place", &device, || number(&device, "replaced") + number(&device, "rebuilt") > 0).await;
    }
    let expected = |block: u64| match (block.is_multiple_of(7), block.is_multiple_of(3)) {
        (true, _) => content(block, 2),
        (_, true) => content(block, 1),
        _ => vec![0; BLOCK],
    };
    let check = async |device: &RamDevice| {
        for block in 0..BYTES / BLOCK as u64 {
            let found = read(device, block * BLOCK as u64, BLOCK).await.unwrap();
            assert!(found[..] == expected(block)[..], "{case}: block {block}");
        }
    };
    check(&device).await;
    // The client ends without a word; the next one finds everything.
    let present = device.spec();
    drop(device);
    let device = RamDevice::open(options(&present)).await.unwrap_or_else(|error| panic!("{case}: {error}"));
    check(&device).await;
    drop(donors);
    let _ = std::fs::remove_file(dead);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mirror_survives_death_during_move() {
    let _turn = crate::turn(module_path!());
    planted::hasten();
    for (moving, is_early) in [
        (MoveTrigger::Replace, true),
        (MoveTrigger::Replace, false),
        (MoveTrigger::Sigterm, true),
        (MoveTrigger::Sigterm, false),
    ] {
        second_failure("mirror", 2, moving, is_early).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adaptive_survives_death_during_move() {
    let _turn = crate::turn(module_path!());
    planted::hasten();
    for (moving, is_early) in [
        (MoveTrigger::Replace, true),
        (MoveTrigger::Replace, false),
        (MoveTrigger::Sigterm, true),
        (MoveTrigger::Sigterm, false),
    ] {
        second_failure("adaptive", 3, moving, is_early).await;
    }
}
