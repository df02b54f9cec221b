//! Every encoded message decodes to the same message, and no bytes make a decoder panic.

use super::{BODY_BYTES_MAX, HEADER_BYTES, Header};
use crate::format::Inode;
use crate::protocol::{
    Accessed, Answer, Attributes, Changes, Code, Failure, FileId, Granted, Held, Hello, Listed, Locked, MAY_KEEP_MAX,
    Mapped, MayKeep, Message, Operation, Question, Shape, Sibling, Statistics, Terms, TimeChange, Token, What,
};

const FILE: FileId = FileId { inode: 17, generation: 3 };
const DIRECTORY: FileId = FileId { inode: 1, generation: 1 };

fn attributes() -> Attributes {
    let inode = Inode { mode: 0o100644, links: 1, size: 9, inline: vec![1, 2, 3], ..Inode::default() };
    Attributes { number: 17, inode }
}

fn operations() -> Vec<Operation> {
    let mapped = Mapped { file_block: 3, blocks: 2, block: 4000, is_unwritten: false };
    let name = || b"name".to_vec();
    let changes = Changes {
        mode: Some(0o600),
        size: Some(7),
        accessed: Some(TimeChange::Now),
        modified: Some(TimeChange::At(-5)),
        ..Changes::default()
    };
    vec![
        Operation::Create {
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
        Operation::Create {
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
        Operation::Link { file: FILE, directory: DIRECTORY, name: vec![0xff; 255] },
        Operation::Unlink { directory: DIRECTORY, name: name(), is_directory: true, expected: 17 },
        Operation::Rename {
            directory: DIRECTORY,
            name: name(),
            new_directory: FILE,
            new_name: b"other".to_vec(),
            flags: 2,
        },
        Operation::SetAttributes { file: FILE, changes },
        Operation::SetXattr { file: FILE, name: b"user.a".to_vec(), value: vec![7; 65536], flags: 1 },
        Operation::RemoveXattr { file: FILE, name: name() },
        Operation::Commit {
            file: FILE,
            truncate_generation: 4,
            size: 1 << 40,
            modified_ns: 8,
            changed_ns: 9,
            extents: vec![mapped; 4096],
        },
        Operation::Truncate { file: FILE, size: 5 },
        Operation::Allocate { file: FILE, start: 4096, end: 8192, mode: 3 },
        Operation::Access { accesses: vec![Accessed { file: FILE, at_ns: -5, time_generation: 6 }; 256] },
        Operation::ReturnSpace { extents: vec![(5000, 2), (6000, 1)] },
        Operation::TakeReserved { file: FILE, start: 3, end: 1 << 51 },
    ]
}

fn questions() -> Vec<Question> {
    vec![
        Question::Lookup { directory: DIRECTORY, name: b"..".to_vec() },
        Question::GetAttributes { file: FILE },
        Question::ReadDirectory { directory: DIRECTORY, cookie: 1 << 40, entries: 8192 },
        Question::ReadMap { file: FILE, start: 0, end: 1 << 51 },
        Question::ReadXattr { file: FILE, name: b"user.a".to_vec() },
        Question::ListXattrs { file: FILE },
        Question::Statistics,
        Question::Open { file: FILE, level: 3, is_direct: true },
        Question::Push { file: FILE, size: 1 << 40 },
        Question::Close { file: FILE },
        Question::Siblings,
        Question::Gone { siblings: vec![Sibling { session: 7, incarnation: [9; 16] }; 1024] },
        Question::Unproven,
        Question::Numbers { count: 512 },
        Question::Space { blocks: 1024 },
    ]
}

fn answers() -> Vec<Answer> {
    let listed = Listed { cookie: 1 << 50, name: b"name".to_vec(), attributes: attributes() };
    let mapped = Mapped { file_block: 3, blocks: 2, block: 4000, is_unwritten: true };
    vec![
        Answer::Done,
        Answer::Attributes(attributes()),
        Answer::Listing { names: vec![listed; 3], is_end: true },
        Answer::Map { extents: vec![mapped], answered_to: 99 },
        Answer::Bytes(vec![1; 65536]),
        Answer::Names(vec![b"user.a".to_vec(), b"user.b".to_vec()]),
        Answer::Statistics(Statistics { blocks: 3, free: 2, inodes: 1 }),
        Answer::Space(vec![Granted { block: 5000, blocks: 100 }]),
        Answer::Siblings(vec![Sibling { session: 7, incarnation: [9; 16] }]),
        Answer::Numbers { first: 1 << 40, count: 512 },
        Answer::Renamed(vec![FileId { inode: 1 << 40, generation: 3 }, FileId { inode: 9, generation: 1 }]),
    ]
}

fn messages() -> Vec<Message> {
    let token = Token { object: FILE, what: What::Data };
    let held = Held { token, level: 3, sequence: 77 };
    let lock =
        Locked { file: FILE, owner: 5, process: 99, is_flock: false, is_exclusive: true, start: 0, last: u64::MAX };
    let mapped = Mapped { file_block: 3, blocks: 2, block: 4000, is_unwritten: true };
    let shape = Shape { attributes: attributes(), answered_to: 99, extents: vec![mapped; 64] };
    let mut all = vec![
        Message::Hello(Hello {
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
        Message::OtherVersion { least: 1, most: 1 },
        Message::Welcome { session: 5, lease_ms: 10_000, server_ns: 1 },
        Message::Renew { session: 5, sent_ns: 6, acknowledged: 7, drained: 8 },
        Message::Renewed { sent_ns: 6, lease_ms: 10_000, server_ns: 1, sequence: 8, stored: 9 },
        Message::Reclaim { session: 5, held: vec![held; 4096], is_last: false },
        Message::Goodbye { session: 5 },
        Message::Evicted { session: 5, words: "its lease ended".to_owned() },
        Message::Failure(Failure { code: Code::Posix, errno: 2, words: "no such name".to_owned() }),
        Message::Acquire { token, level: 1, waits: true },
        Message::Grant { held, minimum_ms: 10, is_watched: true, shape: None },
        Message::Grant { held, minimum_ms: 10, is_watched: false, shape: Some(shape) },
        Message::Push { file: FILE, size: 7, number: 8 },
        Message::Pushed { number: 8 },
        Message::NameChange { directory: FILE, number: 9, name: b"name".to_vec() },
        Message::NameDropped { number: 9 },
        Message::Early { now_ns: -5, stored: 7 },
        Message::MayKeep(MayKeep {
            directories: vec![DIRECTORY; MAY_KEEP_MAX],
            attributes: vec![attributes(); MAY_KEEP_MAX],
        }),
        Message::MayKeep(MayKeep::default()),
        Message::Listed {
            grant: 4,
            names: vec![Listed { cookie: 1 << 50, name: b"name".to_vec(), attributes: attributes() }; 2],
            are_kept: vec![true, false],
            is_end: true,
        },
        Message::Recall { held, why: 2 },
        Message::Return { held, is_lost: true },
        Message::Lock { lock, waits: true },
        Message::Unlock { lock },
        Message::CancelLock { request: 4 },
        Message::TestLock { lock },
        Message::LockFound { lock: None },
        Message::LockFound { lock: Some(lock) },
    ];
    for terms in [Terms::Durable, Terms::Early, Terms::Repeated { now_ns: -3 }, Terms::Local { now_ns: 4 }] {
        let operation = |operation| Message::Operation { session: 5, number: 6, terms, operation };
        all.extend(operations().into_iter().map(operation));
    }
    all.extend(questions().into_iter().map(|question| Message::Question { session: 5, question }));
    all.extend(answers().into_iter().map(Message::Answer));
    all
}

#[test]
fn every_message_comes_back_as_it_was() {
    for message in messages() {
        let bytes = message.encode(11, 12);
        let (header, decoded) = Message::decode(&bytes).unwrap_or_else(|error| panic!("{message:?}: {error}"));
        assert_eq!((header.request, header.epoch), (11, 12));
        assert_eq!(decoded, message);
        assert_eq!(header.body_bytes as usize, bytes.len() - HEADER_BYTES);
    }
    for answer in answers() {
        assert_eq!(Answer::decode_stored(&answer.encode_stored()), Ok(answer));
    }
}

#[test]
fn a_changed_or_cut_message_is_refused() {
    for message in messages() {
        let bytes = message.encode(11, 12);
        for at in (0..bytes.len()).step_by(1 + bytes.len() / 97) {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(Message::decode(&changed).is_err(), "{message:?} with byte {at} changed");
            assert!(Message::decode(&bytes[..at]).is_err(), "{message:?} cut at {at}");
        }
        assert!(Message::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}

/// The checksum is correct, so the decoder reaches the bounds of the body.
#[test]
fn wrong_bodies_with_a_right_checksum_are_refused_or_decode() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut refused = 0;
    for message in messages() {
        let bytes = message.encode(11, 12);
        let (header, body) = Header::open(&bytes).unwrap();
        for _ in 0..200 {
            let mut body = body.to_vec();
            for _ in 0..=next() % 3 {
                if !body.is_empty() {
                    let at = next() as usize % body.len().min(200);
                    body[at] = [0, 1, 0x7f, 0xff][next() as usize % 4];
                }
            }
            body.truncate(body.len() - (next() as usize % 3).min(body.len()));
            let changed = Header::seal(header.kind, 11, 12, &body);
            match Message::decode(&changed) {
                Ok((_, decoded)) => assert_eq!(Message::decode(&decoded.encode(11, 12)).unwrap().1, decoded),
                Err(_) => refused += 1,
            }
        }
    }
    println!("{refused} of {} refused", messages().len() * 200);
    assert!(refused > 1000);
    let long = Header::seal(3, 0, 0, &vec![0; BODY_BYTES_MAX]);
    assert!(Message::decode(&long).is_err());
}
