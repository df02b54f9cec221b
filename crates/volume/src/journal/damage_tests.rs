//! Torn and damaged appends: a torn append at the end is the end of the journal, and a damaged one in the middle is an
//! error with its position.

use nectary_block::Buffer;

use super::tests::{JournalTestServer, SEGMENT_BLOCKS, SparseFile, first, options, put, server};
use super::*;
use crate::format::{BLOCK_BYTES, FrameKind, FramePosition, VerifiedFrame};

/// An append that was found: its first block, its length in blocks, and its number.
type Found = (u64, u64, u64);

/// Returns the appends of a segment.
async fn appends(device: &SharedDevice, segment: u64) -> Vec<Found> {
    let label = options();
    let mut found = Vec::new();
    let mut block = segment + 1;
    while block < segment + SEGMENT_BLOCKS {
        let blocks = (segment + SEGMENT_BLOCKS - block).min(1024);
        let bytes = nectary_block::read(&**device, block * BLOCK_BYTES as u64, blocks as usize * BLOCK_BYTES).await;
        let bytes = bytes.expect("it is read");
        let place = FramePosition { volume: Some(label.volume), address: block };
        let Ok(frame) = VerifiedFrame::decode(FrameKind::Append, place, &bytes) else { break };
        let length = frame.bytes.len().div_ceil(BLOCK_BYTES) as u64;
        found.push((block, length, frame.sequence));
        block += length;
    }
    found
}

/// Fills blocks with one byte value.
async fn fill(device: &SharedDevice, block: u64, blocks: u64, byte: u8) {
    let bytes = vec![byte; blocks as usize * BLOCK_BYTES];
    nectary_block::write(&**device, block * BLOCK_BYTES as u64, Buffer::copy_of(&bytes)).await.expect("it is written");
}

/// Flips one bit in the first block of a frame.
async fn flip(device: &SharedDevice, block: u64) {
    let mut bytes = nectary_block::read(&**device, block * BLOCK_BYTES as u64, BLOCK_BYTES).await.expect("it is read");
    bytes[100] ^= 4;
    nectary_block::write(&**device, block * BLOCK_BYTES as u64, bytes).await.expect("it is written");
}

/// Makes a volume with small appends, followed by a last one of many blocks.
async fn volume(file: &SparseFile) -> (SharedDevice, u64) {
    let device = file.open().await;
    format(&device, &options(), first).await.unwrap();
    let mut one = JournalTestServer::start(device.clone(), server(1), 40 * SEGMENT_BLOCKS).await;
    for inode in 0..4 {
        one.append(vec![put(inode, 100)]).await;
    }
    one.append(vec![put(9, 30_000)]).await;
    one.log.resign().await.unwrap();
    let segment = read(&device).await.unwrap().head.journal_segment;
    (device, segment)
}

fn has(volume: &VolumeContents, inode: u64) -> bool {
    volume.tables.get(&crate::format::TableKey::Inode(inode)).is_some()
}

/// The result does not depend on where the append is torn.
#[tokio::test]
async fn torn_last_append_ends_journal() {
    let file = SparseFile::new("torn-tail");
    let (device, segment) = volume(&file).await;
    let last = *appends(&device, segment).await.last().unwrap();
    let whole = read(&device).await.unwrap();
    assert!(whole.last_sequence == last.2 && has(&whole, 9) && last.1 > 4, "{last:?}");
    // The end of the append is missing, by whole blocks; then a middle block is wrong; then one bit is.
    for torn in (1..last.1).rev() {
        fill(&device, last.0 + torn, last.1 - torn, if torn % 2 == 0 { 0 } else { 0xff }).await;
        let found = read(&device).await.unwrap();
        assert_eq!((found.last_sequence, has(&found, 3), has(&found, 9)), (last.2 - 1, true, false), "block {torn}");
    }
    let file = SparseFile::new("torn-bit");
    let (device, segment) = volume(&file).await;
    let last = *appends(&device, segment).await.last().unwrap();
    flip(&device, last.0).await;
    let found = read(&device).await.unwrap();
    assert_eq!((found.last_sequence, has(&found, 3), has(&found, 9)), (last.2 - 1, true, false));
    // A server continues behind the torn append, and its appends are read.
    let mut next = JournalTestServer::start(device.clone(), server(2), 50 * SEGMENT_BLOCKS).await;
    next.append(vec![put(20, 100)]).await;
    next.log.resign().await.unwrap();
    assert!(has(&read(&device).await.unwrap(), 20));
}

/// Checks that readers and servers refuse the volume, and that the error says where.
async fn refused(device: &SharedDevice, block: u64, sequence: u64) {
    let errors = [read(device).await.err(), LeaderJournal::start(device.clone(), server(7)).await.err()];
    for error in errors {
        let Some(Error::Damaged { block: found, what }) = error else { panic!("{error:?}") };
        assert_eq!(found, block, "{what}");
        assert!(what.contains(&format!("append {sequence} had been flushed")), "{what}");
    }
}

/// The error says which block is damaged.
#[tokio::test]
async fn damaged_middle_append_is_error() {
    for kind in ["bit", "zeroes", "noise"] {
        let file = SparseFile::new(&format!("middle-{kind}"));
        let (device, segment) = volume(&file).await;
        let appends = appends(&device, segment).await;
        let (block, blocks, sequence) = appends[1];
        match kind {
            "bit" => flip(&device, block).await,
            "zeroes" => fill(&device, block, blocks, 0).await,
            _ => fill(&device, block, blocks, 0xa5).await,
        }
        refused(&device, block, sequence).await;
    }
}

/// A link is the append that names the next segment.
#[tokio::test]
async fn damaged_link_append_is_error() {
    let file = SparseFile::new("link");
    let device = file.open().await;
    format(&device, &options(), first).await.unwrap();
    let mut one = JournalTestServer::start(device.clone(), server(1), 40 * SEGMENT_BLOCKS).await;
    let next = one.segment().await;
    one.log.give_segment(next);
    // The appends fill the first segment and continue in the next one.
    for _ in 0..5 {
        one.append((0..40).map(|inode| put(inode, 52_000)).collect()).await;
    }
    one.append(vec![put(50, 100)]).await;
    one.append(vec![put(51, 100)]).await;
    one.log.resign().await.unwrap();
    let volume = read(&device).await.unwrap();
    assert!(has(&volume, 51));
    let (block, _, sequence) = *appends(&device, volume.head.journal_segment).await.last().unwrap();
    assert!(!appends(&device, next).await.is_empty());
    flip(&device, block).await;
    refused(&device, block, sequence).await;
}

#[tokio::test]
async fn damage_before_seal_is_error() {
    let file = SparseFile::new("sealed");
    let (device, segment) = volume(&file).await;
    let mut next = JournalTestServer::start(device.clone(), server(2), 50 * SEGMENT_BLOCKS).await;
    next.append(vec![put(20, 100)]).await;
    next.log.resign().await.unwrap();
    let (block, _, sequence) = *appends(&device, segment).await.last().unwrap();
    flip(&device, block).await;
    let Err(Error::Damaged { block: found, what }) = read(&device).await else { panic!("it is read") };
    assert_eq!(found, block);
    assert!(what.contains(&format!("sealed it with {sequence}")), "{what}");
}
