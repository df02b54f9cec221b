//! Devices that log parity on donors in this process: what a lost donor costs, what survives when the client ends
//! without detaching, and who may use them. Their waits are shorter than those of users, whose waits `mirror` and the
//! whole-system tests have.

use std::time::{Duration, Instant};

use crate::support::{ServingDonor, create, open, refused, registry, spec};
use nectary_block::{Buffer, DeviceErrorKind, Error, IoContext, OpenOptions, SharedDevice, SurvivalLevel, read, write};
use nectary_ram::device::owner::planted::hasten;
use nectary_ram::device::{self, RamOptions};

const POLICIES: [&str; 3] = ["parity-log", "parity-cache", "adaptive"];
const BYTES: usize = 6 << 20;

fn more(policy: &str) -> String {
    format!(",size=6M,redundancy={policy},patience=10s")
}

fn donors(count: usize) -> Vec<ServingDonor> {
    hasten();
    (0..count).map(|_| ServingDonor::new(16 << 20)).collect()
}

fn named(donors: &[ServingDonor], policy: &str) -> String {
    spec(&donors.iter().collect::<Vec<_>>(), &more(policy))
}

async fn take_over(spec: &str) -> Result<SharedDevice, Error> {
    registry().open(spec, &OpenOptions { take_over: true, ..OpenOptions::default() }).await
}

/// Returns the bytes of the device in a version; each block differs from the others.
fn content(version: u8) -> Vec<u8> {
    (0..BYTES).map(|at| version ^ (at / 4096) as u8 ^ (at / 4096 / 256) as u8 ^ at as u8).collect()
}

async fn fill(device: &SharedDevice, version: u8) {
    write(&**device, 0, Buffer::copy_of(&content(version))).await.unwrap();
    device.flush(IoContext::default()).await.unwrap();
}

async fn holds(device: &SharedDevice, version: u8) {
    let (found, expected) = (read(&**device, 0, BYTES).await.unwrap(), content(version));
    let wrong = found.iter().zip(&expected).filter(|(found, expected)| found != expected).count();
    assert_eq!(wrong, 0, "{wrong} wrong bytes");
}

fn number(device: &SharedDevice, name: &str) -> u64 {
    device.figures()[0].get(name).unwrap_or_else(|| panic!("{name} is no number of it"))
}

async fn wait_for(device: &SharedDevice, name: &str, value: u64) {
    let deadline = Instant::now() + crate::support::PATIENCE;
    while number(device, name) != value {
        assert!(Instant::now() < deadline, "{name} is {:?}", device.figures()[0]);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The next client reads what was flushed, also without one of the donors.
#[tokio::test]
async fn next_client_reads_flushed_parity() {
    let _turn = crate::turn(module_path!());
    for policy in POLICIES {
        let mut donors = donors(4);
        let sized = named(&donors, policy);
        assert_eq!(refused(&sized).await.kind, DeviceErrorKind::Absent);
        create(&sized).await.unwrap();
        let device = open(&sized).await.unwrap();
        let geometry = device.geometry();
        assert_eq!(
            (geometry.write_survives, geometry.flush_survives),
            (SurvivalLevel::Nothing, SurvivalLevel::HostAndDonor)
        );
        fill(&device, 1).await;
        // Parts are written again, so that groups have dead members and some groups stay open.
        write(&*device, 5 * 4096, Buffer::copy_of(&content(1)[5 * 4096..90 * 4096])).await.unwrap();
        device.discard(200 * 4096, 3 * 4096, IoContext::default()).await.unwrap();
        write(&*device, 201 * 4096, Buffer::copy_of(&content(1)[201 * 4096..202 * 4096])).await.unwrap();
        device.flush(IoContext::default()).await.unwrap();
        let busy = refused(&sized).await;
        assert!(busy.kind == DeviceErrorKind::Busy && busy.detail.contains("--take-over"), "{busy}");
        // The client ends without detaching.
        drop(device);
        donors.remove(2).end().await;
        let device = take_over(&sized).await.unwrap();
        assert_eq!(number(&device, "donors_trusted"), 3);
        let (mut expected, found) = (content(1), read(&*device, 0, BYTES).await.unwrap());
        expected[200 * 4096..201 * 4096].fill(0);
        expected[202 * 4096..203 * 4096].fill(0);
        assert!(found[..] == expected[..], "{policy}");
        // The report is renewed every 50 ms.
        for _ in 0..100 {
            if number(&device, "reconstructed_reads") > 0 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert!(number(&device, "reconstructed_reads") > 0);
        fill(&device, 2).await;
        holds(&device, 2).await;
    }
}

#[tokio::test]
async fn unforced_write_reads_nothing() {
    let _turn = crate::turn(module_path!());
    let donors = donors(3);
    let sized = named(&donors, "adaptive");
    create(&sized).await.unwrap();
    let device = open(&sized).await.unwrap();
    let read_bytes = || {
        let figures = device.figures();
        figures[1..].iter().map(|donor| donor.get("read_bytes").expect("each donor has it")).sum::<u64>()
    };
    let before = read_bytes();
    for number in 0..100 {
        write(&*device, number * 3 * 4096, Buffer::copy_of(&[7; 4096])).await.unwrap();
    }
    device.flush(IoContext::default()).await.unwrap();
    wait_for(&device, "completed", 101).await;
    let read = read_bytes() - before;
    // Donors that idle are asked now and then.
    assert!(read < 1600, "{read}");
}

/// A restarted donor of logged parity is filled, and then another donor can be lost.
#[tokio::test]
async fn restarted_parity_donor_is_refilled() {
    let _turn = crate::turn(module_path!());
    for policy in ["parity-log", "adaptive"] {
        let mut donors = donors(3);
        let sized = named(&donors, policy);
        create(&sized).await.unwrap();
        let device = open(&sized).await.unwrap();
        fill(&device, 1).await;
        let socket = donors.remove(0).end().await;
        holds(&device, 1).await;
        fill(&device, 2).await;
        holds(&device, 2).await;
        assert_eq!(device.geometry().flush_survives, SurvivalLevel::Host);
        assert_eq!(number(&device, "donors_trusted"), 2);
        donors.insert(0, ServingDonor::at(socket, 16 << 20));
        wait_for(&device, "rebuilt", 1).await;
        wait_for(&device, "degraded", 0).await;
        let socket = donors.remove(1).end().await;
        holds(&device, 2).await;
        fill(&device, 3).await;
        drop(device);
        let device = take_over(&sized).await.unwrap();
        holds(&device, 3).await;
        donors.insert(1, ServingDonor::at(socket, 16 << 20));
        wait_for(&device, "degraded", 0).await;
        holds(&device, 3).await;
    }
}

#[tokio::test]
async fn lost_parity_connection_loses_nothing() {
    let _turn = crate::turn(module_path!());
    let mut donors = donors(3);
    let sized = named(&donors, "parity-log");
    create(&sized).await.unwrap();
    let device = open(&sized).await.unwrap();
    fill(&device, 1).await;
    for (turn, version) in [(0, 2), (1, 3), (2, 4)] {
        let cut = donors.remove(turn).cut().await;
        donors.insert(turn, cut);
        fill(&device, version).await;
        wait_for(&device, "donors_up", 3).await;
    }
    holds(&device, 4).await;
    wait_for(&device, "donors_trusted", 3).await;
}

/// The space of overwritten and of trimmed blocks is used again.
#[tokio::test]
async fn overwritten_space_is_reused() {
    let _turn = crate::turn(module_path!());
    for policy in POLICIES {
        let donors = donors(3);
        let sized = named(&donors, policy);
        create(&sized).await.unwrap();
        let device = open(&sized).await.unwrap();
        fill(&device, 1).await;
        let mut expected = content(1);
        let mut state = 9u64;
        for round in 0..6000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = (state >> 33) as usize % (BYTES / 4096);
            let range = block * 4096..(block + 1) * 4096;
            match round % 16 {
                7 => {
                    device.write_zeroes(range.start as u64, 4096, IoContext::default()).await.unwrap();
                    expected[range].fill(0);
                }
                _ => {
                    expected[range.clone()].fill(round as u8);
                    let data = Buffer::copy_of(&expected[range.clone()]);
                    write(&*device, range.start as u64, data).await.unwrap();
                }
            }
        }
        device.flush(IoContext::default()).await.unwrap();
        assert!(number(&device, "cleaned_blocks") > 0 && number(&device, "freed_groups") > 0);
        assert!(read(&*device, 0, BYTES).await.unwrap()[..] == expected[..], "{policy}");
        drop(device);
        let device = take_over(&sized).await.unwrap();
        assert!(read(&*device, 0, BYTES).await.unwrap()[..] == expected[..], "{policy}, the next client");
    }
}

#[tokio::test]
async fn parity_take_over_fences_former_client() {
    let _turn = crate::turn(module_path!());
    let donors = donors(3);
    let sized = named(&donors, "parity-log");
    create(&sized).await.unwrap();
    let first = open(&sized).await.unwrap();
    fill(&first, 1).await;
    let second = take_over(&sized).await.unwrap();
    holds(&second, 1).await;
    fill(&second, 2).await;
    // Its memory may take a change, but no flush and no read succeeds.
    let _ = write(&*first, 0, Buffer::copy_of(&[9; 4096])).await;
    assert!(first.flush(IoContext::default()).await.is_err());
    assert!(read(&*first, 0, 4096).await.is_err());
    holds(&second, 2).await;
    drop((first, second));
    let (take_over, bytes) = (OpenOptions { take_over: true, ..OpenOptions::default() }, 16 << 20);
    let options = RamOptions::parse(registry().arguments(&sized, "ram", &take_over).unwrap()).unwrap();
    assert_eq!(device::delete(&options).await.unwrap(), 3);
    let deadline = Instant::now() + crate::support::PATIENCE;
    while donors.iter().any(|donor| donor.donor.figures().free_bytes != bytes) && Instant::now() < deadline {
        tokio::task::yield_now().await;
    }
    assert!(donors.iter().all(|donor| donor.donor.figures().free_bytes == bytes));
}

#[tokio::test]
async fn parity_errors_name_remedy() {
    let _turn = crate::turn(module_path!());
    let donors = donors(3);
    let all: Vec<&ServingDonor> = donors.iter().collect();
    let sized = named(&donors, "parity-log");
    create(&sized).await.unwrap();
    let other = refused(&spec(&all, ",redundancy=adaptive")).await;
    assert!(other.detail.contains("redundancy=parity-log, not redundancy=adaptive"), "{other}");
    let mirror = refused(&spec(&all, ",redundancy=mirror")).await;
    assert!(mirror.detail.contains("redundancy=parity-log"), "{mirror}");
    let plain = refused(&spec(&all, "")).await;
    assert!(plain.detail.contains("redundancy=parity-log"), "{plain}");
    // Attaching needs neither the size nor the overflow.
    drop(open(&spec(&all, ",redundancy=parity-log")).await.unwrap());
    let parsed = |more: &str| {
        let spec = format!("ram(h1:7070,h2:7070,h3:7070,id=disk{more})");
        RamOptions::parse(registry().arguments(&spec, "ram", &OpenOptions::default()).unwrap())
    };
    let there = parsed(",redundancy=adaptive,overflow=50%").unwrap();
    assert!(there.spec().ends_with("redundancy=adaptive,overflow=50%)"), "{}", there.spec());
    assert_eq!(parsed(",redundancy=adaptive,overflow=50").unwrap(), there);
    assert!(parsed(",redundancy=parity").is_ok());
    for wrong in [
        ",redundancy=raid",
        ",redundancy=parity,overflow=10%",
        ",redundancy=mirror,overflow=10%",
        ",redundancy=adaptive,overflow=201%",
    ] {
        assert_eq!(parsed(wrong).unwrap_err().kind, DeviceErrorKind::Invalid, "{wrong}");
    }
    let two = "ram(h1:7070,h2:7070,id=disk,redundancy=parity-log)";
    let two = RamOptions::parse(registry().arguments(two, "ram", &OpenOptions::default()).unwrap()).unwrap_err();
    assert!(two.detail.contains("takes 3 to 16"), "{two}");
    let tight = spec(&all, ",size=6M,redundancy=parity-log,overflow=0%").replace("id=disk", "id=tight");
    let tight = create(&tight).await.unwrap_err();
    assert!(tight.kind == DeviceErrorKind::Invalid && tight.detail.contains("more overflow"), "{tight}");
}
