//! Blocks that `fallocate` reserved can be written when the disk is full.

use crate::common::{ROOT, TestVolume};
use nectary_block::Buffer;
use nectary_volume::client::{NewInode, OpenAccess, OpenFile, VolumeClient, WritePosition};

const BLOCK: u64 = 4096;
const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
const PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
const ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;

async fn create(client: &VolumeClient, name: &[u8]) -> OpenFile {
    let new = NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() };
    client.create_open(ROOT, name, new).await.expect("it is made").1
}

async fn blocks(client: &VolumeClient, file: &OpenFile) -> u64 {
    client.attributes(file.id()).await.expect("it is there").inode.blocks
}

/// Takes all space of the disk by files of another host.
async fn fill(client: &VolumeClient) -> OpenFile {
    let file = create(client, b"full").await;
    let (mut at, mut step) = (0, 1 << 30);
    while step >= BLOCK {
        match file.allocate(at, step, 0).await {
            Ok(()) => at += step,
            Err(error) if error.errno() == libc::ENOSPC => step /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    let refused = file.write(WritePosition::Offset(at), vec![Buffer::copy_of(&[1; 4096])]).await;
    assert_eq!(refused.err().map(|error| error.errno()), Some(libc::ENOSPC));
    file
}

/// Uses up the free blocks that a host holds.
async fn use_up(client: &VolumeClient) -> OpenFile {
    let file = create(client, b"more").await;
    loop {
        match file.write(WritePosition::End, vec![Buffer::copy_of(&[1; 4096])]).await {
            Ok(_) => {}
            Err(error) if error.errno() == libc::ENOSPC => return file,
            Err(error) => panic!("{error}"),
        }
    }
}

fn piece(number: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|byte| (byte.wrapping_mul(31).wrapping_add(number * 7) % 251 + 1) as u8).collect()
}

async fn end(
    volume: TestVolume,
    server: nectary_volume::server::MetadataServer,
    clients: [VolumeClient; 2],
    files: Vec<OpenFile>,
) {
    for file in files {
        file.close().await;
    }
    for client in clients {
        client.close().await.expect("it closes");
    }
    server.stop().await.expect("it stops");
    assert_eq!(volume.problems().await, Vec::<String>::new());
}

#[tokio::test]
async fn reservation_writable_on_full_disk() {
    const LENGTH: u64 = 40 << 20;
    const PIECE: usize = 10_000;
    let volume = TestVolume::new("reserved").await;
    let server = volume.serve(&[0, 1]).await;
    let (here, there) = (volume.connect(0).await, volume.connect(1).await);
    let file = create(&here, b"file").await;
    file.allocate(0, LENGTH, 0).await.expect("it is allocated");
    assert_eq!(blocks(&here, &file).await, LENGTH / BLOCK);
    let full = fill(&there).await;
    let mut expected = Vec::new();
    for number in 0..LENGTH / PIECE as u64 {
        let bytes = piece(number, PIECE);
        let written = file.write(WritePosition::Offset(number * PIECE as u64), vec![Buffer::copy_of(&bytes)]).await;
        written.unwrap_or_else(|error| panic!("piece {number}: {error}"));
        expected.extend(bytes);
        match number % 500 {
            // Then the block of which a part is written moves.
            100 => file.sync().await.expect("it is synced"),
            // Another host looks, or reads.
            200 => assert_eq!(blocks(&there, &file).await, LENGTH / BLOCK),
            300 => {
                let other = there.open(file.id(), OpenAccess::Read, false).await.expect("it opens");
                let read = other.read(expected.len() as u64 - 50, 100).await.expect("it is read").to_vec();
                assert_eq!(read, [&expected[expected.len() - 50..], &[0; 50]].concat());
                other.close().await;
            }
            _ => {}
        }
    }
    file.sync().await.expect("it is synced");
    assert_eq!(blocks(&here, &file).await, LENGTH / BLOCK);
    let other = there.open(file.id(), OpenAccess::Read, false).await.expect("it opens");
    assert!(other.read(0, expected.len()).await.expect("it is read").to_vec() == expected);
    end(volume, server, [here, there], vec![file, full, other]).await;
}

#[tokio::test]
async fn append_uses_preallocated_blocks() {
    let volume = TestVolume::new("reserved-behind").await;
    let server = volume.serve(&[0, 1]).await;
    let (here, there) = (volume.connect(0).await, volume.connect(1).await);
    let file = create(&here, b"file").await;
    file.write(WritePosition::End, vec![Buffer::copy_of(&[7; 4096])]).await.expect("it is written");
    file.allocate(0, 64 * BLOCK, KEEP_SIZE).await.expect("it is allocated");
    file.truncate(2 * BLOCK).await.expect("it grows");
    file.allocate(0, 3 * BLOCK, 0).await.expect("it grows");
    file.close().await;
    let (full, more) = (fill(&there).await, use_up(&here).await);
    let file = here.open(file.id(), OpenAccess::Both, false).await.expect("it opens");
    let mut expected = [vec![7; 4096], vec![0; 2 * 4096]].concat();
    for number in 0..61 {
        let bytes = piece(number, 4096);
        let written = file.write(WritePosition::End, vec![Buffer::copy_of(&bytes)]).await;
        written.unwrap_or_else(|error| panic!("block {number}: {error}"));
        expected.extend(bytes);
    }
    let refused = file.write(WritePosition::End, vec![Buffer::copy_of(&[1; 4096])]).await;
    assert_eq!(refused.err().map(|error| error.errno()), Some(libc::ENOSPC));
    assert!(file.read(0, 100 * 4096).await.expect("it is read").to_vec() == expected);
    assert_eq!(blocks(&there, &file).await, 64);
    end(volume, server, [here, there], vec![file, full, more]).await;
}

/// Holes are punched between the writes.
#[tokio::test]
async fn random_writes_keep_reservation() {
    const BLOCKS: u64 = 400;
    let volume = TestVolume::new("reserved-random").await;
    let server = volume.serve(&[0, 1]).await;
    let (here, there) = (volume.connect(0).await, volume.connect(1).await);
    let file = create(&here, b"file").await.synced(true);
    file.allocate(0, BLOCKS * BLOCK, 0).await.expect("it is allocated");
    let full = fill(&there).await;
    let mut expected = vec![0; (BLOCKS * BLOCK) as usize];
    let mut state = 7_u64;
    let mut order: Vec<u64> = (0..BLOCKS).collect();
    for last in (1..order.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(last, (state >> 33) as usize % (last + 1));
    }
    for (index, block) in order.into_iter().enumerate() {
        let bytes = piece(block, 4096);
        let written = file.write(WritePosition::Offset(block * BLOCK), vec![Buffer::copy_of(&bytes)]).await;
        written.unwrap_or_else(|error| panic!("block {block}: {error}"));
        let from = (block * BLOCK) as usize;
        expected[from..from + 4096].copy_from_slice(&bytes);
        match index {
            // The space that the hole leaves is reserved again.
            130 => {
                file.allocate(from as u64, BLOCK, PUNCH_HOLE | KEEP_SIZE).await.expect("it is punched");
                file.allocate(from as u64, BLOCK, 0).await.expect("it is allocated again");
            }
            260 | 390 => file.allocate(from as u64, BLOCK, ZERO_RANGE).await.expect("it is zeroed"),
            _ => continue,
        }
        expected[from..from + 4096].fill(0);
    }
    file.allocate(0, BLOCKS * BLOCK, ZERO_RANGE).await.expect("it is zeroed");
    assert!(file.read(0, expected.len()).await.expect("it is read").to_vec().iter().all(|byte| *byte == 0));
    let bytes = vec![Buffer::copy_of(&expected)];
    file.write(WritePosition::Offset(0), bytes).await.expect("it is written once more");
    assert_eq!(blocks(&here, &file).await, BLOCKS);
    assert!(file.read(0, expected.len()).await.expect("it is read").to_vec() == expected);
    end(volume, server, [here, there], vec![file, full]).await;
}

#[tokio::test]
async fn refused_fallocate_changes_nothing() {
    let volume = TestVolume::new("reserved-refused").await;
    let server = volume.serve(&[0, 1]).await;
    let (here, there) = (volume.connect(0).await, volume.connect(1).await);
    let file = create(&here, b"file").await;
    file.write(WritePosition::Offset(0), vec![Buffer::copy_of(&[7; 5000])]).await.expect("it is written");
    let full = fill(&there).await;
    for mode in [0, KEEP_SIZE] {
        let refused = file.allocate(0, 64 << 20, mode).await;
        assert_eq!(refused.err().map(|error| error.errno()), Some(libc::ENOSPC));
        let found = there.attributes(file.id()).await.expect("it is there").inode;
        assert_eq!((found.size, found.blocks), (5000, 2));
    }
    end(volume, server, [here, there], vec![file, full]).await;
}

/// The range has more extents than fit into one transaction.
#[tokio::test]
async fn fragmented_range_zeroed_and_punched() {
    // More than one transaction takes.
    const EXTENTS: u64 = 9000;
    const END: u64 = 2 * EXTENTS * BLOCK;
    let volume = TestVolume::new("reserved-many").await;
    let server = volume.serve(&[0, 1]).await;
    let (here, there) = (volume.connect(0).await, volume.connect(1).await);
    let file = create(&here, b"file").await;
    let fragment = async || {
        for number in 0..EXTENTS {
            let written =
                file.write(WritePosition::Offset(2 * number * BLOCK), vec![Buffer::copy_of(&[7; 4096])]).await;
            written.unwrap_or_else(|error| panic!("block {number}: {error}"));
        }
        file.sync().await.expect("it is synced");
        assert_eq!(blocks(&here, &file).await, EXTENTS);
    };
    for (mode, after, is_zero) in [
        (0, 2 * EXTENTS, false),
        (ZERO_RANGE, 2 * EXTENTS, true),
        (PUNCH_HOLE | KEEP_SIZE, 0, true),
        (ZERO_RANGE | KEEP_SIZE, 2 * EXTENTS, true),
    ] {
        file.allocate(0, END, PUNCH_HOLE | KEEP_SIZE).await.expect("it is emptied");
        fragment().await;
        file.allocate(0, END, mode).await.unwrap_or_else(|error| panic!("mode {mode}: {error}"));
        assert_eq!(blocks(&here, &file).await, after, "mode {mode}");
        for at in [0, EXTENTS, 2 * EXTENTS - 2] {
            let read = file.read(at * BLOCK, 4096).await.expect("it is read").to_vec();
            assert_eq!(read, [if is_zero { 0 } else { 7 }; 4096], "mode {mode}, block {at}");
        }
    }
    end(volume, server, [here, there], vec![file]).await;
}

#[tokio::test]
async fn what_statfs_shows_can_be_reserved() {
    let volume = TestVolume::new("reserved-all").await;
    let server = volume.serve(&[0, 1]).await;
    let (here, there) = (volume.connect(0).await, volume.connect(1).await);
    let file = create(&here, b"file").await;
    // The session has space in hand.
    file.write(WritePosition::End, vec![Buffer::copy_of(&[1; 4096])]).await.expect("it is written");
    file.sync().await.expect("it is synced");
    let free = here.statistics().await.expect("it is known").free;
    file.allocate(BLOCK, (free - 32) * BLOCK, 0).await.expect("it is allocated");
    assert!(here.statistics().await.expect("it is known").free <= 32);
    end(volume, server, [here, there], vec![file]).await;
}
