//! The check of a device without a client: it agrees with devices that were used in every way, and counts what a
//! missing donor costs.

use crate::support::{ServingDonor, create, options, spec};
use nectary_block::{BlockDevice, Buffer, DeviceErrorKind, IoContext, read, write};
use nectary_nbd::{ConnectOptions, ExportUrl, NbdDevice, info};
use nectary_ram::check::{CheckFindings, ProblemKind, RedundancyHealth, check};
use nectary_ram::device::owner::RamDevice;
use nectary_ram::donor::UNIT_BYTES;
use nectary_ram::donor::name::{ExportName, PAGE_NAME, SessionName};
use nectary_ram::donor::page::DonorPage;
use nectary_ram::format::{RecordStamp, RecordSwap, WINDOW_BYTES, WindowState};

const REDUNDANCIES: [&str; 5] = ["mirror", "parity", "parity-log", "parity-cache", "adaptive"];
const BYTES: usize = 6 << 20;

async fn checked(spec: &str) -> CheckFindings {
    let mut last = (0, 0);
    let found = check(&options(spec), &mut |read, all| last = (read, all)).await.unwrap();
    assert_eq!(last.0, last.1, "{last:?}");
    found
}

/// Writes the whole device, then parts of it again, with trims in between.
async fn use_it(device: &RamDevice, version: u8) {
    let content: Vec<u8> = (0..BYTES).map(|at| version ^ (at / 4096) as u8 ^ at as u8).collect();
    write(device, 0, Buffer::copy_of(&content)).await.unwrap();
    for round in 0..40u64 {
        let at = (round * 37 % 1400) * 4096;
        write(device, at, Buffer::copy_of(&content[..9 * 4096])).await.unwrap();
        if round % 4 == 0 {
            device.discard(at + 4096, 3 * 4096, IoContext::default()).await.unwrap();
        }
        if round % 7 == 0 {
            device.flush(IoContext::default()).await.unwrap();
        }
    }
    device.flush(IoContext::default()).await.unwrap();
}

/// A detached device is healthy; without one of its donors it is degraded, and nothing is lost.
#[tokio::test]
async fn check_passes_after_detach() {
    for redundancy in REDUNDANCIES {
        let mut donors: Vec<ServingDonor> = (0..3).map(|_| ServingDonor::new(20 << 20)).collect();
        let sized = spec(&donors.iter().collect::<Vec<_>>(), &format!(",size=6M,redundancy={redundancy}"));
        create(&sized).await.unwrap();
        assert_eq!(checked(&sized).await.health, RedundancyHealth::Healthy, "{redundancy} before it is used");
        let device = RamDevice::open(options(&sized)).await.unwrap();
        use_it(&device, 1).await;
        let busy = check(&options(&sized), &mut |_, _| {}).await.unwrap_err();
        assert!(busy.kind == DeviceErrorKind::Busy && busy.detail.contains("detach it there first"), "{busy}");
        assert!(!busy.detail.contains("--take-over"), "{busy}");
        let client = format!("its client is process {}", std::process::id());
        assert!(busy.detail.contains(&client), "{busy}");
        device.detach().await.unwrap();
        drop(device);
        let found = checked(&sized).await;
        assert_eq!((found.health, found.problem_count), (RedundancyHealth::Healthy, 0), "{redundancy}: {found:?}");
        assert!(found.is_detached && found.counts.compared_groups + found.counts.compared_stripes > 0, "{found:?}");
        // The client ends in the middle of its work, without detaching.
        let device = RamDevice::open(options(&sized)).await.unwrap();
        use_it(&device, 2).await;
        write(&device, 0, Buffer::copy_of(&[3; 33 * 4096])).await.unwrap();
        drop(device);
        let found = checked(&sized).await;
        assert!(found.health < RedundancyHealth::Broken && !found.is_detached, "{redundancy}: {found:?}");
        let device = RamDevice::open(options(&sized)).await.unwrap();
        device.detach().await.unwrap();
        drop(device);
        let found = checked(&sized).await;
        assert_eq!((found.health, found.problem_count), (RedundancyHealth::Healthy, 0), "{redundancy}: {found:?}");
        donors.remove(1).end().await;
        let found = checked(&sized).await;
        assert_eq!(
            (found.health, found.counts.lost_blocks),
            (RedundancyHealth::Degraded, 0),
            "{redundancy}: {found:?}"
        );
        assert!(found.counts.reconstructed_blocks + found.counts.single_stripes > 0, "{redundancy}: {found:?}");
        donors.remove(1).end().await;
        let error = check(&options(&sized), &mut |_, _| {}).await.unwrap_err();
        assert_eq!(error.kind, DeviceErrorKind::Absent, "{error}");
    }
}

#[tokio::test]
async fn check_needs_redundancy() {
    let donor = ServingDonor::new(4 << 20);
    let sized = spec(&[&donor], ",size=1M");
    create(&sized).await.unwrap();
    let error = check(&options(&sized), &mut |_, _| {}).await.unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Unsupported, "{error}");
}

/// Flips a bit behind the first place where a donor has `pattern`; returns whether it has it.
async fn flip(donor: &ServingDonor, pattern: &[u8]) -> bool {
    let url = |export: &str| {
        let url = ExportUrl::parse(&format!("nbd+unix:///?socket={}", donor.socket.display())).unwrap();
        ExportUrl { export: export.to_owned(), connections: Some(1), ..url }
    };
    let page = info(&url(PAGE_NAME), &ConnectOptions::default()).await.unwrap().description.unwrap();
    let incarnation = DonorPage::parse(&page).unwrap().incarnation;
    let session = SessionName { incarnation, client: 99, epoch: 1, has_metadata: true, only_reads: false };
    let name = ExportName { id: "disk".to_owned(), size_bytes: None, session: Some(session) };
    let mut options = ConnectOptions::default();
    (options.is_single_session, options.unit_bytes) = (true, Some(UNIT_BYTES));
    let device = NbdDevice::connect(&url(&name.to_string()), options).await.unwrap();
    let at = device.geometry().size_bytes - WINDOW_BYTES as u64;
    let state = WindowState::decode(&read(&device, at, WINDOW_BYTES).await.unwrap()).unwrap();
    // The same record again makes this session the owner.
    let swap = RecordSwap { expected: RecordStamp::of(&state.record), record: &state.record }.encode();
    write(&device, at, Buffer::copy_of(&swap)).await.unwrap();
    let mut memory = Vec::new();
    while (memory.len() as u64) < at {
        let length = (at - memory.len() as u64).min(1 << 20) as usize;
        memory.extend_from_slice(&read(&device, memory.len() as u64, length).await.unwrap());
    }
    let Some(place) = memory.windows(pattern.len()).position(|found| found == pattern) else { return false };
    let place = (place + 15) / 8 * 8;
    memory[place] ^= 1;
    write(&device, place as u64, Buffer::copy_of(&memory[place..place + 8])).await.unwrap();
    true
}

/// With logged parity and another donor missing, the block is reported as lost or doubtful.
#[tokio::test]
async fn check_finds_flipped_bit() {
    let pattern: Vec<u8> = (0..64u8).map(|at| at.wrapping_mul(37) ^ 0xc5).collect();
    for redundancy in REDUNDANCIES {
        let mut donors: Vec<ServingDonor> = (0..3).map(|_| ServingDonor::new(20 << 20)).collect();
        let sized = spec(&donors.iter().collect::<Vec<_>>(), &format!(",size=6M,redundancy={redundancy}"));
        create(&sized).await.unwrap();
        let device = RamDevice::open(options(&sized)).await.unwrap();
        use_it(&device, 1).await;
        let mut block = vec![9; 4096];
        block[..64].copy_from_slice(&pattern);
        write(&device, 1450 * 4096, Buffer::copy_of(&block)).await.unwrap();
        // Behind it enough to close its group.
        write(&device, 600 * 4096, Buffer::copy_of(&[5; 512 * 4096])).await.unwrap();
        device.detach().await.unwrap();
        drop(device);
        assert_eq!(checked(&sized).await.health, RedundancyHealth::Healthy, "{redundancy}");
        let mut flipped = None;
        for (number, donor) in donors.iter().enumerate() {
            if flipped.is_none() && flip(donor, &pattern).await {
                flipped = Some(number);
            }
        }
        let flipped = flipped.expect("a donor has the block");
        let found = checked(&sized).await;
        let at = |what: ProblemKind| found.problems.iter().any(|one| one.what == what && one.block == Some(1450));
        if redundancy == "mirror" {
            assert!(found.health == RedundancyHealth::Broken && found.counts.doubtful_blocks == 1, "{found:?}");
            assert!(at(ProblemKind::CopiesDiffer), "{found:?}");
            continue;
        }
        if redundancy == "parity" {
            // Nobody can tell which block of the column it is.
            assert!(found.health == RedundancyHealth::Broken && found.counts.doubtful_blocks == 2, "{found:?}");
            assert!(found.problems.iter().any(|one| one.what == ProblemKind::CopiesDiffer), "{found:?}");
            continue;
        }
        // `adaptive` may have put the block into a group that is still open: no stored parity covers it there.
        let is_open = redundancy == "adaptive" && at(ProblemKind::NotCovered);
        assert!(found.health == RedundancyHealth::Degraded && found.counts.lost_blocks == 0, "{redundancy}: {found:?}");
        assert!(is_open || found.counts.damaged_slots == 1 && at(ProblemKind::SlotDamaged), "{redundancy}: {found:?}");
        donors.remove((flipped + 1) % 3).end().await;
        let found = checked(&sized).await;
        // If the donor with the summary is missing, the group counts as open, and what is read there is not known.
        let is_it = |what: ProblemKind| matches!(what, ProblemKind::BlockLost | ProblemKind::BlockDoubtful);
        let is_lost = found.problems.iter().any(|one| is_it(one.what) && one.block == Some(1450));
        assert!(is_open || is_lost && found.health == RedundancyHealth::Broken, "{redundancy}: {found:?}");
    }
}
