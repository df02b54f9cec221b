//! Targets of `nectary-volume`: each kind of frame on the shared volume's disk, each kind of value and key of its
//! tables, and each kind of message between its hosts.
//!
//! For a frame, bit 0 of an input's first byte chooses whether identity, address and checksums are corrected; the other
//! bits choose the structure. A structure that decodes must encode to bytes that decode to the same structure.

use nectary_volume::format::{
    Append, Chunk, EpochHead, EpochRecord, Extent, ExtentState, FormatError, Frame, Grant, Identity, Index, Inode, Key,
    Label, LeaseSector, Magic, Name, Project, Reply, RunRecord, SegmentHeader, Session, Space, Table, VolumeRecord,
    epoch_block, lease_block,
};
use nectary_volume::protocol::{
    Accessed, Answer, Changes, Code, Failure, FileId, Held, Mapped, MayKeep, Message, Operation, Question, Terms,
    Token, What,
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

const VOLUME: Identity = Identity([7; 16]);
/// The address at which frames in allocated space are read. *Units*: blocks.
const BLOCK: u64 = 4096;
const EPOCH: u64 = 3;
const HEADER_BYTES: usize = 64;
const MESSAGE_HEADER_BYTES: usize = 32;

/// Decodes bytes and encodes the structure again; an error if the bytes are refused.
type Again = fn(&[u8]) -> Result<Vec<u8>, FormatError>;

/// The kinds of frames: the magic, and the function that decodes and encodes.
const FRAMES: [(Magic, Again); 7] = [
    (Magic::Label, |bytes| Label::decode(0, bytes)?.encode(0)),
    (Magic::Lease, |bytes| LeaseSector::decode(VOLUME, 3, 1, bytes)?.encode(VOLUME, 1)),
    (Magic::EpochHead, |bytes| EpochHead::decode(VOLUME, epoch_block(EPOCH), bytes)?.encode(VOLUME)),
    (Magic::Segment, |bytes| SegmentHeader::decode(VOLUME, BLOCK, bytes)?.encode(VOLUME, BLOCK)),
    (Magic::Append, |bytes| Ok(Append::decode(VOLUME, BLOCK, 0, bytes)?.0.encode(VOLUME, BLOCK, 0)?.0)),
    (Magic::Chunk, |bytes| Chunk::decode(VOLUME, BLOCK, bytes)?.encode(VOLUME, EPOCH, BLOCK)),
    (Magic::Index, |bytes| Index::decode(VOLUME, BLOCK, bytes)?.encode(VOLUME, EPOCH, BLOCK)),
];

fn address(magic: Magic) -> u64 {
    match magic {
        Magic::Label => 0,
        Magic::Lease => lease_block(3, 1),
        Magic::EpochHead => epoch_block(EPOCH),
        _ => BLOCK,
    }
}

const VALUES: [Again; 11] = [
    |bytes| Inode::decode(bytes)?.encode(),
    |bytes| Name::decode(bytes)?.encode(),
    |bytes| Session::decode(bytes)?.encode(),
    |bytes| Reply::decode(bytes)?.encode(),
    |bytes| Ok(Extent::decode(bytes)?.encode()),
    |bytes| Ok(Space::decode(bytes)?.encode()),
    |bytes| Ok(Grant::decode(bytes)?.encode()),
    |bytes| Ok(Project::decode(bytes)?.encode()),
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
fn put_right(bytes: &mut [u8], magic: Magic) {
    let length = (bytes.len() as u32).min(magic.bytes_max() as u32);
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[16..32].copy_from_slice(&VOLUME.0);
    bytes[40..48].copy_from_slice(&address(magic).to_le_bytes());
    let whole = &mut bytes[..length as usize];
    if magic == Magic::Append && whole.len() >= HEADER_BYTES + 4 {
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
            let table = Table::ALL[choice % Table::ALL.len()];
            if let Ok(key) = Key::decode(table, bytes) {
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
    if let Ok((header, message)) = Message::decode(&bytes) {
        let again = message.encode(header.request, header.epoch);
        assert_eq!(Message::decode(&again).map(|(_, message)| message), Ok(message));
    }
}

/// Makes messages of most kinds.
pub fn message_seeds() -> Vec<Vec<u8>> {
    let file = FileId { inode: 17, generation: 3 };
    let name = || b"name".to_vec();
    let extents = vec![Mapped { file_block: 1, blocks: 2, block: BLOCK, is_unwritten: false }];
    let commit = Operation::Commit {
        file,
        truncate_generation: 4,
        size: 5,
        modified_ns: 6,
        changed_ns: 7,
        extents: extents.clone(),
    };
    let operations = [
        commit,
        Operation::Link { file, directory: file, name: name() },
        Operation::SetXattr { file, name: name(), value: vec![1; 9], flags: 0 },
        Operation::SetAttributes { file, changes: Changes { mode: Some(0o600), ..Changes::default() } },
        Operation::Access { accesses: vec![Accessed { file, at_ns: 8, time_generation: 9 }] },
        Operation::ReturnSpace { extents: vec![(BLOCK, 2)] },
        Operation::TakeReserved { file, start: 1, end: 3 },
    ];
    let token = Token { object: file, what: What::Data };
    let held = Held { token, level: 1, sequence: 2 };
    let mut messages = vec![
        Message::Renew { session: 1, sent_ns: 2, acknowledged: 3, drained: 4 },
        Message::Evicted { session: 1, words: "why".to_owned() },
        Message::Reclaim { session: 1, held: vec![held], is_last: true },
        Message::Acquire { token, level: 1, waits: true },
        Message::Question { session: 1, question: Question::Lookup { directory: file, name: name() } },
        Message::Answer(Answer::Map { extents, answered_to: 9 }),
        Message::Question { session: 1, question: Question::Numbers { count: 9 } },
        Message::Answer(Answer::Numbers { first: 100, count: 9 }),
        Message::Answer(Answer::Renamed(vec![file, file])),
        Message::Answer(Answer::Names(vec![name()])),
        Message::Failure(Failure { code: Code::Full, errno: 28, words: "full".to_owned() }),
    ];
    for terms in [Terms::Early, Terms::Repeated { now_ns: 5 }, Terms::Local { now_ns: 5 }] {
        let operations = operations.iter().cloned();
        messages.extend(operations.map(|operation| Message::Operation { session: 1, number: 2, terms, operation }));
    }
    messages.push(Message::Early { now_ns: 5, stored: 6 });
    messages.push(Message::MayKeep(MayKeep { directories: vec![file], attributes: Vec::new() }));
    messages.iter().map(|message| [&[1][..], &message.encode(7, 8)].concat()).collect()
}

/// Makes a frame of each kind without its padding. The fields of its body are zero where the format allows this.
pub fn frame_seeds() -> Vec<Vec<u8>> {
    let extent = Space { blocks: 4, state: ExtentState::Data, owner: 17, since: 2 }.encode();
    // The append has one transaction of a session, with one mutation: a put into the table of space.
    let mut append = vec![0; 64];
    append[4] = 1;
    let mut transaction = [(40 + 48_u32).to_le_bytes(), [1, 0, 1, 0]].concat();
    transaction.resize(40, 0);
    transaction.extend([6, 1, 8, 0, 32, 0, 0, 0]);
    transaction.extend(Key::Space(9000).encode());
    transaction.extend(&extent);
    append.extend(&transaction);
    let record = transaction[40..].to_vec();
    let mut chunk = vec![1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
    chunk.extend(&record);
    let mut index = vec![1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    index.extend([[0, 16, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 6, 0, 8, 0]].concat());
    index.extend(Key::Space(9000).encode());
    let numbers = |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let mut label = numbers(&[1 << 20, 2048, 2048, 2048, 1, 2, 3, 10_000 | (20 << 32), 0, 0, 0, 1]);
    label.resize(160, 0);
    let mut lease = vec![0; 144];
    lease[16] = 3;
    let head = numbers(&[1, 2, 2, 0, 0, 4096, 2048, 1, 5]);
    let segment = numbers(&[1, 0, 0, 1, 0, 0]);
    let bodies = [label, lease, head, segment, append, chunk, index];
    let seeds = FRAMES.iter().zip(bodies).enumerate().map(|(number, ((magic, _), body))| {
        let frame = Frame::encode(*magic, VOLUME, EPOCH, address(*magic), 1, &body);
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
    let name = Name { inode: 17, generation: 1, kind: 8, name: b"file".to_vec() };
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
        Reply { status: 17, body: b"no".to_vec() }.encode().expect("it is within its bounds"),
        Extent { block: BLOCK, blocks: 4, is_unwritten: true, epoch: EPOCH }.encode(),
        Space { blocks: 4, state: ExtentState::Granted, owner: 5, since: 2 }.encode(),
        Grant { length: 8, inode: 17, reserved_blocks: 8, sequence: 3, generation: 1 }.encode(),
        Project::default().encode(),
        [&[1; 16][..], &[2], &[0; 15]].concat(),
        run.encode(),
        volume,
    ];
    let values = values.into_iter().enumerate().map(|(number, value)| [&[number as u8][..], &value].concat());
    let keys = [Key::Volume, Key::Entry(1, 2), Key::Xattr(1, b"user.a".to_vec()), Key::Grant(1, 2, 3), Key::Project(1)];
    let tables = Table::ALL.len() as u8;
    // The first byte of a key's input. It is at least `VALUES.len()`, so it selects no value; its remainder modulo
    // `tables` selects the table.
    let choice = |key: &Key| (key.table().number() - 1) + tables;
    values.chain(keys.iter().map(|key| [&[choice(key)][..], &key.encode()].concat())).collect()
}
