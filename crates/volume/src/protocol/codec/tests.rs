//! Every encoded message decodes to the same message, and no bytes make a decoder panic.

use super::{BODY_BYTES_MAX, HEADER_BYTES, MessageHeader};
use crate::format::Inode;
use crate::protocol::{
    AnswerTerms, AttributeChanges, FileAccess, FileId, FileLockRange, FileShape, GrantedSpace, HelloMessage,
    InodeAttributes, JudgedOwner, ListedName, MAY_KEEP_MAX, MappedExtent, MayKeep, MetadataOperation, MetadataQuestion,
    RefusalCode, ServerAnswer, ServerRefusal, SiblingSession, TimeChange, Token, TokenAspect, TokenGrant,
    VolumeMessage, VolumeStatistics,
};

const FILE: FileId = FileId { inode: 17, generation: 3 };
const DIRECTORY: FileId = FileId { inode: 1, generation: 1 };

fn attributes() -> InodeAttributes {
    let inode = Inode { mode: 0o100644, links: 1, size: 9, inline: vec![1, 2, 3], ..Inode::default() };
    InodeAttributes { number: 17, inode }
}

fn operations() -> Vec<MetadataOperation> {
    let mapped = MappedExtent { file_block: 3, blocks: 2, block: 4000, is_unwritten: false };
    let name = || b"name".to_vec();
    let changes = AttributeChanges {
        mode: Some(0o600),
        size: Some(7),
        accessed: Some(TimeChange::Now),
        modified: Some(TimeChange::At(-5)),
        drops_rights: true,
        judged: Some(JudgedOwner { owner: 1000, group: 50 }),
        ..AttributeChanges::default()
    };
    vec![
        MetadataOperation::Create {
            directory: DIRECTORY,
            name: name(),
            mode: 0o120777,
            owner: 1,
            group: 2,
            umask: 0o22,
            device: 5,
            target: b"there".to_vec(),
            target_block: None,
            open: true,
            inode: 0,
        },
        MetadataOperation::Create {
            directory: DIRECTORY,
            name: name(),
            mode: 0o120777,
            owner: 1,
            group: 2,
            umask: 0,
            device: 0,
            target: vec![b'a'; 4095],
            target_block: Some(mapped),
            open: false,
            inode: 0,
        },
        MetadataOperation::Link { file: FILE, directory: DIRECTORY, name: vec![0xff; 255] },
        MetadataOperation::Unlink { directory: DIRECTORY, name: name(), is_directory: true, expected: 17 },
        MetadataOperation::Rename {
            directory: DIRECTORY,
            name: name(),
            new_directory: FILE,
            new_name: b"other".to_vec(),
            flags: 2,
        },
        MetadataOperation::SetAttributes { file: FILE, changes },
        MetadataOperation::SetXattr { file: FILE, name: b"user.a".to_vec(), value: vec![7; 65536], flags: 1 },
        MetadataOperation::RemoveXattr { file: FILE, name: name() },
        MetadataOperation::Commit {
            file: FILE,
            truncate_generation: 4,
            size: 1 << 40,
            modified_ns: 8,
            changed_ns: 9,
            extents: vec![mapped; 4096],
        },
        MetadataOperation::Truncate { file: FILE, size: 5 },
        MetadataOperation::Allocate { file: FILE, start: 4096, end: 8192, mode: 3 },
        MetadataOperation::Access { accesses: vec![FileAccess { file: FILE, at_ns: -5, time_generation: 6 }; 256] },
        MetadataOperation::ReturnSpace { extents: vec![(5000, 2), (6000, 1)] },
        MetadataOperation::TakeReserved { file: FILE, start: 3, end: 1 << 51 },
    ]
}

fn questions() -> Vec<MetadataQuestion> {
    vec![
        MetadataQuestion::Lookup { directory: DIRECTORY, name: b"..".to_vec() },
        MetadataQuestion::GetAttributes { file: FILE },
        MetadataQuestion::ReadDirectory { directory: DIRECTORY, cookie: 1 << 40, entries: 8192 },
        MetadataQuestion::ReadMap { file: FILE, start: 0, end: 1 << 51 },
        MetadataQuestion::ReadXattr { file: FILE, name: b"user.a".to_vec() },
        MetadataQuestion::ListXattrs { file: FILE },
        MetadataQuestion::Statistics,
        MetadataQuestion::Open { file: FILE, level: 3, is_direct: true },
        MetadataQuestion::Push { file: FILE, size: 1 << 40 },
        MetadataQuestion::Close { file: FILE },
        MetadataQuestion::Siblings,
        MetadataQuestion::Gone { siblings: vec![SiblingSession { session: 7, incarnation: [9; 16] }; 1024] },
        MetadataQuestion::Unproven,
        MetadataQuestion::Numbers { count: 512 },
        MetadataQuestion::Space { blocks: 1024 },
    ]
}

fn answers() -> Vec<ServerAnswer> {
    let listed = ListedName { cookie: 1 << 50, name: b"name".to_vec(), attributes: attributes() };
    let mapped = MappedExtent { file_block: 3, blocks: 2, block: 4000, is_unwritten: true };
    vec![
        ServerAnswer::Done,
        ServerAnswer::Attributes(attributes()),
        ServerAnswer::Listing { names: vec![listed; 3], is_end: true },
        ServerAnswer::Map { extents: vec![mapped], answered_to: 99 },
        ServerAnswer::Bytes(vec![1; 65536]),
        ServerAnswer::Names(vec![b"user.a".to_vec(), b"user.b".to_vec()]),
        ServerAnswer::Statistics(VolumeStatistics { blocks: 3, free: 2, inodes: 1 }),
        ServerAnswer::Space(vec![GrantedSpace { block: 5000, blocks: 100 }]),
        ServerAnswer::Siblings(vec![SiblingSession { session: 7, incarnation: [9; 16] }]),
        ServerAnswer::Numbers { first: 1 << 40, count: 512 },
        ServerAnswer::Renamed(vec![FileId { inode: 1 << 40, generation: 3 }, FileId { inode: 9, generation: 1 }]),
    ]
}

fn messages() -> Vec<VolumeMessage> {
    let token = Token { object: FILE, what: TokenAspect::Data };
    let held = TokenGrant { token, level: 3, sequence: 77 };
    let lock = FileLockRange {
        file: FILE,
        owner: 5,
        process: 99,
        is_flock: false,
        is_exclusive: true,
        start: 0,
        last: u64::MAX,
    };
    let mapped = MappedExtent { file_block: 3, blocks: 2, block: 4000, is_unwritten: true };
    let shape = FileShape { attributes: attributes(), answered_to: 99, extents: vec![mapped; 64] };
    let mut all = vec![
        VolumeMessage::Hello(HelloMessage {
            role: 1,
            volume: [1; 16],
            host: "h1".to_owned(),
            session: 0,
            incarnation: [2; 16],
            kind: 1,
            machine: 3,
            boot: 4,
            connection: 6,
        }),
        VolumeMessage::OtherVersion { least: 1, most: 1 },
        VolumeMessage::Welcome { session: 5, lease_ms: 10_000, server_ns: 1 },
        VolumeMessage::Renew { session: 5, sent_ns: 6, acknowledged: 7, drained: 8 },
        VolumeMessage::Renewed { sent_ns: 6, lease_ms: 10_000, server_ns: 1, sequence: 8, stored: 9 },
        VolumeMessage::Reclaim { session: 5, held: vec![held; 4096], is_last: false },
        VolumeMessage::Goodbye { session: 5 },
        VolumeMessage::Evicted { session: 5, words: "its lease ended".to_owned() },
        VolumeMessage::Failure(ServerRefusal { code: RefusalCode::Posix, errno: 2, words: "no such name".to_owned() }),
        VolumeMessage::Acquire { token, level: 1, waits: true },
        VolumeMessage::Grant { held, minimum_ms: 10, is_watched: true, shape: None },
        VolumeMessage::Grant { held, minimum_ms: 10, is_watched: false, shape: Some(shape) },
        VolumeMessage::Push { file: FILE, size: 7, number: 8 },
        VolumeMessage::Pushed { number: 8 },
        VolumeMessage::NameChange { directory: FILE, number: 9, name: b"name".to_vec() },
        VolumeMessage::NameDropped { number: 9 },
        VolumeMessage::Early { now_ns: -5, stored: 7 },
        VolumeMessage::MayKeep(MayKeep {
            directories: vec![DIRECTORY; MAY_KEEP_MAX],
            attributes: vec![attributes(); MAY_KEEP_MAX],
        }),
        VolumeMessage::MayKeep(MayKeep::default()),
        VolumeMessage::Listed {
            grant: 4,
            names: vec![ListedName { cookie: 1 << 50, name: b"name".to_vec(), attributes: attributes() }; 2],
            are_kept: vec![true, false],
            is_end: true,
        },
        VolumeMessage::Recall { held, why: 2 },
        VolumeMessage::Return { held, is_lost: true },
        VolumeMessage::Lock { lock, waits: true },
        VolumeMessage::Unlock { lock },
        VolumeMessage::CancelLock { request: 4 },
        VolumeMessage::TestLock { lock },
        VolumeMessage::LockFound { lock: None },
        VolumeMessage::LockFound { lock: Some(lock) },
    ];
    for terms in [
        AnswerTerms::Durable,
        AnswerTerms::Early,
        AnswerTerms::Repeated { now_ns: -3 },
        AnswerTerms::Local { now_ns: 4 },
    ] {
        let operation = |operation| VolumeMessage::Operation { session: 5, number: 6, terms, operation };
        all.extend(operations().into_iter().map(operation));
    }
    all.extend(questions().into_iter().map(|question| VolumeMessage::Question { session: 5, question }));
    all.extend(answers().into_iter().map(VolumeMessage::Answer));
    all
}

#[test]
fn messages_survive_encoding() {
    for message in messages() {
        let bytes = message.encode(11, 12);
        let (header, decoded) = VolumeMessage::decode(&bytes).unwrap_or_else(|error| panic!("{message:?}: {error}"));
        assert_eq!((header.request, header.epoch), (11, 12));
        assert_eq!(decoded, message);
        assert_eq!(header.body_bytes as usize, bytes.len() - HEADER_BYTES);
    }
    for answer in answers() {
        assert_eq!(ServerAnswer::decode_stored(&answer.encode_stored()), Ok(answer));
    }
}

#[test]
fn corrupt_or_cut_message_refused() {
    for message in messages() {
        let bytes = message.encode(11, 12);
        for at in (0..bytes.len()).step_by(1 + bytes.len() / 97) {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(VolumeMessage::decode(&changed).is_err(), "{message:?} with byte {at} changed");
            assert!(VolumeMessage::decode(&bytes[..at]).is_err(), "{message:?} cut at {at}");
        }
        assert!(VolumeMessage::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}

/// The checksum is correct, so the decoder reaches the bounds of the body.
#[test]
fn noise_in_body_never_panics() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut refused = 0;
    for message in messages() {
        let bytes = message.encode(11, 12);
        let (header, body) = MessageHeader::open(&bytes).unwrap();
        for _ in 0..200 {
            let mut body = body.to_vec();
            for _ in 0..=next() % 3 {
                if !body.is_empty() {
                    let at = next() as usize % body.len().min(200);
                    body[at] = [0, 1, 0x7f, 0xff][next() as usize % 4];
                }
            }
            body.truncate(body.len() - (next() as usize % 3).min(body.len()));
            let changed = MessageHeader::seal(header.kind, 11, 12, &body);
            match VolumeMessage::decode(&changed) {
                Ok((_, decoded)) => assert_eq!(VolumeMessage::decode(&decoded.encode(11, 12)).unwrap().1, decoded),
                Err(_) => refused += 1,
            }
        }
    }
    println!("{refused} of {} refused", messages().len() * 200);
    assert!(refused > 1000);
    let long = MessageHeader::seal(3, 0, 0, &vec![0; BODY_BYTES_MAX]);
    assert!(VolumeMessage::decode(&long).is_err());
}
