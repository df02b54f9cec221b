//! Targets of `nectary-volume`: each kind of frame on the shared volume's disk, each kind of value and key of its
//! tables, and each kind of message between its hosts.
//!
//! For a frame, bit 0 of an input's first byte chooses whether identity, address and checksums are corrected; the other
//! bits choose the structure. A structure that decodes must encode to bytes that decode to the same structure.

use nectary_volume::format::{
    EpochHead, EpochRecord, ExtentRecord, ExtentState, FormatError, FrameKind, GrantRecord, Inode, JournalAppend,
    LeaseSector, NameRecord, ProjectRecord, ReplyRecord, RunChunk, RunIndex, RunRecord, SegmentHeader, SessionRecord,
    SpaceRecord, TableKey, TableKind, VerifiedFrame, VolumeIdentity, VolumeLabel, VolumeRecord, epoch_block,
    lease_block,
};
use nectary_volume::protocol::{
    AnswerTerms, AttributeChanges, FileAccess, FileId, MappedExtent, MayKeep, MetadataOperation, MetadataQuestion,
    RefusalCode, ServerAnswer, ServerRefusal, Token, TokenAspect, TokenGrant, VolumeMessage,
};

use super::choices;

/// Magics, a version, lengths.
pub const WORDS: &[&[u8]] = &[
    b"NVLB",
    b"NVLS",
    b"NVEH",
    b"NVSG",
    b"NVJA",
    b"NVRC",
    b"NVRI",
    b"\x01\0\0\0",
    b"\x40\0\0\0",
    &[0xff; 8],
    &[0, 0, 1, 0],
];

const VOLUME: VolumeIdentity = VolumeIdentity([7; 16]);
/// The address at which frames in allocated space are read. *Units*: blocks.
const BLOCK: u64 = 4096;
const EPOCH: u64 = 3;
const HEADER_BYTES: usize = 64;
const MESSAGE_HEADER_BYTES: usize = 32;

/// Decodes bytes and encodes the structure again; an error if the bytes are refused.
type Again = fn(&[u8]) -> Result<Vec<u8>, FormatError>;

/// The kinds of frames: the magic, and the function that decodes and encodes.
const FRAMES: [(FrameKind, Again); 7] = [
    (FrameKind::Label, |bytes| VolumeLabel::decode(0, bytes)?.encode(0)),
    (FrameKind::Lease, |bytes| LeaseSector::decode(VOLUME, 3, 1, bytes)?.encode(VOLUME, 1)),
    (FrameKind::EpochHead, |bytes| EpochHead::decode(VOLUME, epoch_block(EPOCH), bytes)?.encode(VOLUME)),
    (FrameKind::Segment, |bytes| SegmentHeader::decode(VOLUME, BLOCK, bytes)?.encode(VOLUME, BLOCK)),
    (FrameKind::Append, |bytes| Ok(JournalAppend::decode(VOLUME, BLOCK, 0, bytes)?.0.encode(VOLUME, BLOCK, 0)?.0)),
    (FrameKind::Chunk, |bytes| RunChunk::decode(VOLUME, BLOCK, bytes)?.encode(VOLUME, EPOCH, BLOCK)),
    (FrameKind::Index, |bytes| RunIndex::decode(VOLUME, BLOCK, bytes)?.encode(VOLUME, EPOCH, BLOCK)),
];

fn address(magic: FrameKind) -> u64 {
    match magic {
        FrameKind::Label => 0,
        FrameKind::Lease => lease_block(3, 1),
        FrameKind::EpochHead => epoch_block(EPOCH),
        _ => BLOCK,
    }
}

const VALUES: [Again; 11] = [
    |bytes| Inode::decode(bytes)?.encode(),
    |bytes| NameRecord::decode(bytes)?.encode(),
    |bytes| SessionRecord::decode(bytes)?.encode(),
    |bytes| ReplyRecord::decode(bytes)?.encode(),
    |bytes| Ok(ExtentRecord::decode(bytes)?.encode()),
    |bytes| Ok(SpaceRecord::decode(bytes)?.encode()),
    |bytes| Ok(GrantRecord::decode(bytes)?.encode()),
    |bytes| Ok(ProjectRecord::decode(bytes)?.encode()),
    |bytes| Ok(EpochRecord::decode(bytes)?.encode()),
    |bytes| Ok(RunRecord::decode(bytes)?.encode()),
    |bytes| Ok(VolumeRecord::decode(bytes)?.encode()),
];

/// If `bytes` decode, checks that their encoding decodes and encodes to the same bytes.
fn hold(again: Again, bytes: &[u8]) {
    if let Ok(first) = again(bytes) {
        assert_eq!(again(&first).as_ref(), Ok(&first), "what decodes is written and decodes to the same");
    }
}

/// Reads a frame.
pub fn frame(input: &[u8]) {
    let (choices, bytes) = choices(input);
    let (magic, again) = FRAMES[usize::from(choices >> 1) % FRAMES.len()];
    let mut bytes = bytes.to_vec();
    if choices & 1 == 1 && bytes.len() >= HEADER_BYTES {
        put_right(&mut bytes, magic);
    }
    hold(again, &bytes);
}

/// Corrects identity, address, length and checksums, so that the decoder reads the fields.
fn put_right(bytes: &mut [u8], magic: FrameKind) {
    let length = (bytes.len() as u32).min(magic.bytes_max() as u32);
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[16..32].copy_from_slice(&VOLUME.0);
    bytes[40..48].copy_from_slice(&address(magic).to_le_bytes());
    let whole = &mut bytes[..length as usize];
    if magic == FrameKind::Append && whole.len() >= HEADER_BYTES + 4 {
        let chain = crc32c::crc32c_append(crc32c::crc32c(&[0; 4]), &whole[HEADER_BYTES + 4..]);
        whole[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&chain.to_le_bytes());
    }
    whole[12..16].fill(0);
    let checksum = crc32c::crc32c(whole);
    whole[12..16].copy_from_slice(&checksum.to_le_bytes());
}

/// Reads a value of a table, or a key.
pub fn value(input: &[u8]) {
    let (choices, bytes) = choices(input);
    let choice = usize::from(choices);
    match VALUES.get(choice) {
        Some(again) => hold(*again, bytes),
        None => {
            let table = TableKind::ALL[choice % TableKind::ALL.len()];
            if let Ok(key) = TableKey::decode(table, bytes) {
                assert_eq!(key.encode(), bytes);
            }
        }
    }
}

/// Reads a message. Bit 0 of the first byte chooses whether its header and checksum are corrected.
pub fn message(input: &[u8]) {
    let (choices, bytes) = choices(input);
    let mut bytes = bytes.to_vec();
    if choices & 1 == 1 && bytes.len() >= MESSAGE_HEADER_BYTES {
        let length = (bytes.len() - MESSAGE_HEADER_BYTES) as u32;
        bytes[..4].copy_from_slice(b"NVPM");
        bytes[6..8].fill(0);
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        bytes[12..16].fill(0);
        let checksum = crc32c::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    }
    if let Ok((header, message)) = VolumeMessage::decode(&bytes) {
        let again = message.encode(header.request, header.epoch);
        assert_eq!(VolumeMessage::decode(&again).map(|(_, message)| message), Ok(message));
    }
}

/// Makes messages of most kinds.
pub fn message_seeds() -> Vec<Vec<u8>> {
    let file = FileId { inode: 17, generation: 3 };
    let name = || b"name".to_vec();
    let extents = vec![MappedExtent { file_block: 1, blocks: 2, block: BLOCK, is_unwritten: false }];
    let commit = MetadataOperation::Commit {
        file,
        truncate_generation: 4,
        size: 5,
        modified_ns: 6,
        changed_ns: 7,
        extents: extents.clone(),
    };
    let operations = [
        commit,
        MetadataOperation::Link { file, directory: file, name: name() },
        MetadataOperation::SetXattr { file, name: name(), value: vec![1; 9], flags: 0 },
        MetadataOperation::SetAttributes {
            file,
            changes: AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() },
        },
        MetadataOperation::Access { accesses: vec![FileAccess { file, at_ns: 8, time_generation: 9 }] },
        MetadataOperation::ReturnSpace { extents: vec![(BLOCK, 2)] },
        MetadataOperation::TakeReserved { file, start: 1, end: 3 },
    ];
    let token = Token { object: file, what: TokenAspect::Data };
    let held = TokenGrant { token, level: 1, sequence: 2 };
    let mut messages = vec![
        VolumeMessage::Renew { session: 1, sent_ns: 2, acknowledged: 3, drained: 4 },
        VolumeMessage::Evicted { session: 1, words: "why".to_owned() },
        VolumeMessage::Reclaim { session: 1, held: vec![held], is_last: true },
        VolumeMessage::Acquire { token, level: 1, waits: true },
        VolumeMessage::Question { session: 1, question: MetadataQuestion::Lookup { directory: file, name: name() } },
        VolumeMessage::Answer(ServerAnswer::Map { extents, answered_to: 9 }),
        VolumeMessage::Question { session: 1, question: MetadataQuestion::Numbers { count: 9 } },
        VolumeMessage::Answer(ServerAnswer::Numbers { first: 100, count: 9 }),
        VolumeMessage::Answer(ServerAnswer::Renamed(vec![file, file])),
        VolumeMessage::Answer(ServerAnswer::Names(vec![name()])),
        VolumeMessage::Failure(ServerRefusal { code: RefusalCode::Full, errno: 28, words: "full".to_owned() }),
    ];
    for terms in [AnswerTerms::Early, AnswerTerms::Repeated { now_ns: 5 }, AnswerTerms::Local { now_ns: 5 }] {
        let operations = operations.iter().cloned();
        messages.extend(operations.map(|operation| VolumeMessage::Operation {
            session: 1,
            number: 2,
            terms,
            operation,
        }));
    }
    messages.push(VolumeMessage::Early { now_ns: 5, stored: 6 });
    messages.push(VolumeMessage::MayKeep(MayKeep { directories: vec![file], attributes: Vec::new() }));
    messages.iter().map(|message| [&[1][..], &message.encode(7, 8)].concat()).collect()
}

/// Makes a frame of each kind without its padding. The fields of its body are zero where the format allows this.
pub fn frame_seeds() -> Vec<Vec<u8>> {
    let extent = SpaceRecord { blocks: 4, state: ExtentState::Data, owner: 17, since: 2 }.encode();
    // The append has one transaction of a session, with one mutation: a put into the table of space.
    let mut append = vec![0; 64];
    append[4] = 1;
    let mut transaction = [(40 + 48_u32).to_le_bytes(), [1, 0, 1, 0]].concat();
    transaction.resize(40, 0);
    transaction.extend([6, 1, 8, 0, 32, 0, 0, 0]);
    transaction.extend(TableKey::Space(9000).encode());
    transaction.extend(&extent);
    append.extend(&transaction);
    let record = transaction[40..].to_vec();
    let mut chunk = vec![1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
    chunk.extend(&record);
    let mut index = vec![1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    index.extend([[0, 16, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 6, 0, 8, 0]].concat());
    index.extend(TableKey::Space(9000).encode());
    let numbers = |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let mut label = numbers(&[1 << 20, 2048, 2048, 2048, 1, 2, 3, 10_000 | (20 << 32), 0, 0, 0, 1]);
    label.resize(160, 0);
    let mut lease = vec![0; 144];
    lease[16] = 3;
    let head = numbers(&[1, 2, 2, 0, 0, 4096, 2048, 1, 5]);
    let segment = numbers(&[1, 0, 0, 1, 0, 0]);
    let bodies = [label, lease, head, segment, append, chunk, index];
    let seeds = FRAMES.iter().zip(bodies).enumerate().map(|(number, ((magic, _), body))| {
        let frame = VerifiedFrame::encode(*magic, VOLUME, EPOCH, address(*magic), 1, &body);
        let mut frame = frame.expect("seeds are within their bounds");
        frame.truncate(HEADER_BYTES + body.len());
        put_right(&mut frame, *magic);
        [&[((number as u8) << 1) | 1][..], &frame].concat()
    });
    seeds.collect()
}

/// Makes a value of each kind, and a key of each table.
pub fn value_seeds() -> Vec<Vec<u8>> {
    let inode = Inode { mode: 0o120_777, links: 1, inline: b"target".to_vec(), ..Inode::default() };
    let name = NameRecord { inode: 17, generation: 1, kind: 8, name: b"file".to_vec() };
    let mut session = vec![1; 16];
    session.extend([1, 1, 1, 0]);
    session.resize(68, 0);
    session.extend([1, 0, b'a']);
    let volume = [&[0_u8; 2][..], &[1][..], &[0; 5][..], &[16][..], &[0; 7][..], &[1][..], &[0; 63][..]].concat();
    let run = RunRecord { index: BLOCK, index_blocks: 1, level: 0, replay_sequence: 2, records: 1, blocks: 1 };
    let values = [
        inode.encode().expect("it is within its bounds"),
        name.encode().expect("it is within its bounds"),
        session,
        ReplyRecord { status: 17, body: b"no".to_vec() }.encode().expect("it is within its bounds"),
        ExtentRecord { block: BLOCK, blocks: 4, is_unwritten: true, epoch: EPOCH }.encode(),
        SpaceRecord { blocks: 4, state: ExtentState::Granted, owner: 5, since: 2 }.encode(),
        GrantRecord { length: 8, inode: 17, reserved_blocks: 8, sequence: 3, generation: 1 }.encode(),
        ProjectRecord::default().encode(),
        [&[1; 16][..], &[2], &[0; 15]].concat(),
        run.encode(),
        volume,
    ];
    let values = values.into_iter().enumerate().map(|(number, value)| [&[number as u8][..], &value].concat());
    let keys = [
        TableKey::Volume,
        TableKey::Entry(1, 2),
        TableKey::Xattr(1, b"user.a".to_vec()),
        TableKey::Grant(1, 2, 3),
        TableKey::Project(1),
    ];
    let tables = TableKind::ALL.len() as u8;
    // The first byte of a key's input. It is at least `VALUES.len()`, so it selects no value; its remainder modulo
    // `tables` selects the table.
    let choice = |key: &TableKey| (key.table().number() - 1) + tables;
    values.chain(keys.iter().map(|key| [&[choice(key)][..], &key.encode()].concat())).collect()
}
