//! The check of a device without a client: it agrees with devices that were used in every way, and counts what a
//! missing donor costs.

use crate::support::{Serving, create, options, spec};
use nectary_block::{BlockDevice, Buffer, Context, ErrorKind, read, write};
use nectary_nbd::{ConnectOptions, NbdDevice, Url, info};
use nectary_ram::check::{Checked, Health, What, check};
use nectary_ram::donor::UNIT_BYTES;
use nectary_ram::donor::name::{ExportName, PAGE_NAME, Session};
use nectary_ram::donor::page::Page;
use nectary_ram::format::{Stamp, Swap, WINDOW_BYTES, WindowState};
use nectary_ram::live::RedundantDevice;

const REDUNDANCIES: [&str; 5] = ["mirror", "parity", "parity-log", "parity-cache", "adaptive"];
const BYTES: usize = 6 << 20;

async fn checked(spec: &str) -> Checked {
    let mut last = (0, 0);
    let found = check(&options(spec), &mut |read, all| last = (read, all)).await.unwrap();
    assert_eq!(last.0, last.1, "{last:?}");
    found
}

/// Writes the whole device, then parts of it again, with trims in between.
async fn use_it(device: &RedundantDevice, version: u8) {
    let content: Vec<u8> = (0..BYTES).map(|at| version ^ (at / 4096) as u8 ^ at as u8).collect();
    write(device, 0, Buffer::copy_of(&content)).await.unwrap();
    for round in 0..40u64 {
        let at = (round * 37 % 1400) * 4096;
        write(device, at, Buffer::copy_of(&content[..9 * 4096])).await.unwrap();
        if round % 4 == 0 {
            device.discard(at + 4096, 3 * 4096, Context::default()).await.unwrap();
        }
        if round % 7 == 0 {
            device.flush(Context::default()).await.unwrap();
        }
    }
    device.flush(Context::default()).await.unwrap();
}

#[tokio::test]
async fn devices_that_were_used_and_detached_are_right_and_without_a_donor_nothing_is_lost() {
    for redundancy in REDUNDANCIES {
        let mut donors: Vec<Serving> = (0..3).map(|_| Serving::new(20 << 20)).collect();
        let sized = spec(&donors.iter().collect::<Vec<_>>(), &format!(",size=6M,redundancy={redundancy}"));
        create(&sized).await.unwrap();
        assert_eq!(checked(&sized).await.health, Health::Healthy, "{redundancy} before it is used");
        let device = RedundantDevice::open(options(&sized)).await.unwrap();
        use_it(&device, 1).await;
        let busy = check(&options(&sized), &mut |_, _| {}).await.unwrap_err();
        assert!(busy.kind == ErrorKind::Busy && busy.detail.contains("detach it there first"), "{busy}");
        assert!(!busy.detail.contains("--take-over"), "{busy}");
        let client = format!("its client is process {}", std::process::id());
        assert!(busy.detail.contains(&client), "{busy}");
        device.detach().await.unwrap();
        drop(device);
        let found = checked(&sized).await;
        assert_eq!((found.health, found.problem_count), (Health::Healthy, 0), "{redundancy}: {found:?}");
        assert!(found.is_detached && found.counts.compared_groups + found.counts.compared_stripes > 0, "{found:?}");
        // The client ends in the middle of its work, without detaching.
        let device = RedundantDevice::open(options(&sized)).await.unwrap();
        use_it(&device, 2).await;
        write(&device, 0, Buffer::copy_of(&[3; 33 * 4096])).await.unwrap();
        drop(device);
        let found = checked(&sized).await;
        assert!(found.health < Health::Broken && !found.is_detached, "{redundancy}: {found:?}");
        let device = RedundantDevice::open(options(&sized)).await.unwrap();
        device.detach().await.unwrap();
        drop(device);
        let found = checked(&sized).await;
        assert_eq!((found.health, found.problem_count), (Health::Healthy, 0), "{redundancy}: {found:?}");
        donors.remove(1).end().await;
        let found = checked(&sized).await;
        assert_eq!((found.health, found.counts.lost_blocks), (Health::Degraded, 0), "{redundancy}: {found:?}");
        assert!(found.counts.reconstructed_blocks + found.counts.single_stripes > 0, "{redundancy}: {found:?}");
        donors.remove(1).end().await;
        let error = check(&options(&sized), &mut |_, _| {}).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Absent, "{error}");
    }
}

#[tokio::test]
async fn without_redundancy_there_is_nothing_to_check() {
    let donor = Serving::new(4 << 20);
    let sized = spec(&[&donor], ",size=1M");
    create(&sized).await.unwrap();
    let error = check(&options(&sized), &mut |_, _| {}).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
}

/// Flips a bit behind the first place where a donor has `pattern`; returns whether it has it.
async fn flip(donor: &Serving, pattern: &[u8]) -> bool {
    let url = |export: &str| {
        let url = Url::parse(&format!("nbd+unix:///?socket={}", donor.socket.display())).unwrap();
        Url { export: export.to_owned(), connections: Some(1), ..url }
    };
    let page = info(&url(PAGE_NAME), &ConnectOptions::default()).await.unwrap().description.unwrap();
    let incarnation = Page::parse(&page).unwrap().incarnation;
    let session = Session { incarnation, client: 99, epoch: 1, has_metadata: true, only_reads: false };
    let name = ExportName { id: "disk".to_owned(), size_bytes: None, session: Some(session) };
    let mut options = ConnectOptions::default();
    (options.is_single_session, options.unit_bytes) = (true, Some(UNIT_BYTES));
    let device = NbdDevice::connect(&url(&name.to_string()), options).await.unwrap();
    let at = device.geometry().size_bytes - WINDOW_BYTES as u64;
    let state = WindowState::decode(&read(&device, at, WINDOW_BYTES).await.unwrap()).unwrap();
    // The same record again makes this session the owner.
    let swap = Swap { expected: Stamp::of(&state.record), record: &state.record }.encode();
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

#[tokio::test]
async fn a_flipped_bit_is_found_at_its_block_and_with_a_donor_less_it_is_a_lost_block() {
    let pattern: Vec<u8> = (0..64u8).map(|at| at.wrapping_mul(37) ^ 0xc5).collect();
    for redundancy in REDUNDANCIES {
        let mut donors: Vec<Serving> = (0..3).map(|_| Serving::new(20 << 20)).collect();
        let sized = spec(&donors.iter().collect::<Vec<_>>(), &format!(",size=6M,redundancy={redundancy}"));
        create(&sized).await.unwrap();
        let device = RedundantDevice::open(options(&sized)).await.unwrap();
        use_it(&device, 1).await;
        let mut block = vec![9; 4096];
        block[..64].copy_from_slice(&pattern);
        write(&device, 1450 * 4096, Buffer::copy_of(&block)).await.unwrap();
        // Behind it enough to close its group.
        write(&device, 600 * 4096, Buffer::copy_of(&[5; 512 * 4096])).await.unwrap();
        device.detach().await.unwrap();
        drop(device);
        assert_eq!(checked(&sized).await.health, Health::Healthy, "{redundancy}");
        let mut flipped = None;
        for (number, donor) in donors.iter().enumerate() {
            if flipped.is_none() && flip(donor, &pattern).await {
                flipped = Some(number);
            }
        }
        let flipped = flipped.expect("a donor has the block");
        let found = checked(&sized).await;
        let at = |what: What| found.problems.iter().any(|one| one.what == what && one.block == Some(1450));
        if redundancy == "mirror" {
            assert!(found.health == Health::Broken && found.counts.doubtful_blocks == 1, "{found:?}");
            assert!(at(What::CopiesDiffer), "{found:?}");
            continue;
        }
        if redundancy == "parity" {
            // Nobody can tell which block of the column it is.
            assert!(found.health == Health::Broken && found.counts.doubtful_blocks == 2, "{found:?}");
            assert!(found.problems.iter().any(|one| one.what == What::CopiesDiffer), "{found:?}");
            continue;
        }
        // `adaptive` may have put the block into a group that is still open: no stored parity covers it there.
        let is_open = redundancy == "adaptive" && at(What::NotCovered);
        assert!(found.health == Health::Degraded && found.counts.lost_blocks == 0, "{redundancy}: {found:?}");
        assert!(is_open || found.counts.damaged_slots == 1 && at(What::SlotDamaged), "{redundancy}: {found:?}");
        donors.remove((flipped + 1) % 3).end().await;
        let found = checked(&sized).await;
        // If the donor with the summary is missing, the group counts as open, and what is read there is not known.
        let is_it = |what: What| matches!(what, What::BlockLost | What::BlockDoubtful);
        let is_lost = found.problems.iter().any(|one| is_it(one.what) && one.block == Some(1450));
        assert!(is_open || is_lost && found.health == Health::Broken, "{redundancy}: {found:?}");
    }
}
