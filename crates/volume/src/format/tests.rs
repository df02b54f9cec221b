//! Golden bytes, round trips, and bytes that belong to no structure.

use nectary_kit::SeededRandom;

use super::*;
use crate::origin::ProcessOrigin;

const VOLUME: VolumeIdentity = VolumeIdentity(*b"identity-volume!");

fn label() -> VolumeLabel {
    VolumeLabel {
        volume: VOLUME,
        blocks: 1 << 20,
        segment_blocks: 2048,
        first_segment: 2048,
        hash_key: *b"key of the names",
        created_s: 1_700_000_000,
        lease_ms: 10_000,
        drift_per_mille: 20,
        incompat: 0,
        ro_compat: 1,
        compat: 2,
        version_min: 1,
        version_made: 1,
        name: "build".to_owned(),
    }
}

fn sector() -> LeaseSector {
    LeaseSector {
        incarnation: [7; 16],
        server: 3,
        state: LeaseState::Contends,
        ballot: 35,
        accepted: 3,
        value_incarnation: [9; 16],
        value_epoch: 5,
        renewal: 77,
        lease_ms: 10_000,
        host: "a.example".to_owned(),
        origin: ProcessOrigin { machine: 1, kernel: 2, domain: 3 },
    }
}

fn head() -> EpochHead {
    EpochHead {
        epoch: 1030,
        incarnation: [1; 16],
        previous_epoch: 1029,
        sealed_sequence: 400,
        sealed_chain: 0x1234_5678,
        journal_segment: 4096,
        base_segment: 2048,
        created_s: 5,
    }
}

fn segment() -> SegmentHeader {
    SegmentHeader {
        epoch: 1030,
        segment_use: SegmentUse::Journal,
        number: 0,
        previous: 2048,
        first_sequence: 401,
        manifest_sequence: 12,
        manifest_block: 2050,
        chain: 7,
        manifest_chain: 8,
    }
}

fn inode() -> Inode {
    let times_ns = [1, -2, 3, 4];
    Inode { mode: 0o100644, links: 1, size: 1 << 40, times_ns, inline: b"short".to_vec(), ..Inode::default() }
}

fn put(key: &TableKey, value: Vec<u8>) -> Mutation {
    Mutation { table: key.table(), key: key.encode(), action: MutationAction::Put(value) }
}

fn append() -> JournalAppend {
    let mutations = vec![
        put(&TableKey::Inode(17), inode().encode().unwrap()),
        put(
            &TableKey::Space(9000),
            SpaceRecord { blocks: 4, state: ExtentState::Data, owner: 17, since: 401 }.encode(),
        ),
        Mutation { table: TableKind::Orphans, key: TableKey::Orphan(17).encode(), action: MutationAction::Delete },
    ];
    let operation =
        Transaction { kind: TransactionKind::Operation, session: 5, number: 9, reply: b"ok".to_vec(), mutations };
    let empty =
        Transaction { kind: TransactionKind::Server, session: 0, number: 0, reply: Vec::new(), mutations: Vec::new() };
    let transactions = vec![operation, empty];
    JournalAppend { epoch: 1030, sequence: 401, flushed_sequence: 400, next_segment: 0, time_ns: 8, transactions }
}

fn chunk() -> RunChunk {
    let extent = ExtentRecord { block: 9000, blocks: 4, is_unwritten: true, epoch: 1030 };
    let records = vec![
        put(&TableKey::Inode(17), inode().encode().unwrap()),
        put(&TableKey::Extent(17, 0), extent.encode()),
        put(&TableKey::Extent(17, 256), extent.encode()),
    ];
    RunChunk { run: 3, records }
}

fn index() -> RunIndex {
    let place = |block, key: TableKey| ChunkPlace { block, blocks: 2, table: key.table(), key: key.encode() };
    RunIndex {
        run: 3,
        records: 3,
        chunks: vec![place(4097, TableKey::Inode(17)), place(4099, TableKey::Extent(17, 0))],
    }
}

/// A function that decodes the bytes of a structure and encodes the result again.
type Decode = fn(&[u8]) -> Result<Vec<u8>, FormatError>;

fn frames() -> Vec<(&'static str, Vec<u8>, Decode)> {
    vec![
        ("label", label().encode(1).unwrap(), |bytes| VolumeLabel::decode(1, bytes)?.encode(1)),
        ("lease sector", sector().encode(VOLUME, 15).unwrap(), |bytes| {
            LeaseSector::decode(VOLUME, 3, 15, bytes)?.encode(VOLUME, 15)
        }),
        ("epoch head", head().encode(VOLUME).unwrap(), |bytes| {
            EpochHead::decode(VOLUME, epoch_block(1030), bytes)?.encode(VOLUME)
        }),
        ("segment header", segment().encode(VOLUME, 4096).unwrap(), |bytes| {
            SegmentHeader::decode(VOLUME, 4096, bytes)?.encode(VOLUME, 4096)
        }),
        ("append", append().encode(VOLUME, 4097, 1).unwrap().0, |bytes| {
            Ok(JournalAppend::decode(VOLUME, 4097, 1, bytes)?.0.encode(VOLUME, 4097, 1)?.0)
        }),
        ("run chunk", chunk().encode(VOLUME, 1030, 4200).unwrap(), |bytes| {
            RunChunk::decode(VOLUME, 4200, bytes)?.encode(VOLUME, 1030, 4200)
        }),
        ("run index", index().encode(VOLUME, 1030, 4300).unwrap(), |bytes| {
            RunIndex::decode(VOLUME, 4300, bytes)?.encode(VOLUME, 1030, 4300)
        }),
    ]
}

/// Returns an example of every value, with a function that decodes and encodes it again.
fn values() -> Vec<(&'static str, Vec<u8>, Decode)> {
    let name = NameRecord { inode: 17, generation: 2, kind: 8, name: b"file".to_vec() };
    let session = SessionRecord {
        incarnation: [2; 16],
        state: SessionState::Ended,
        kind: 1,
        flags: 1,
        lease_ms: 10_000,
        acknowledged: 4,
        machine: 1,
        boot: 2,
        created_ns: 3,
        ended_ns: 4,
        reason: 2,
        host: "b.example".to_owned(),
    };
    let grant = GrantRecord { length: 8, inode: 17, reserved_blocks: 8, sequence: 3, generation: 1 };
    let volume = VolumeRecord {
        blocks: 1 << 20,
        next_inode: 18,
        next_session: 6,
        next_run: 4,
        features: [0, 1, 2],
        used_blocks: 100,
        reserved_blocks: 8,
        membership: 0,
    };
    let run = RunRecord { index: 4300, index_blocks: 1, level: 0, replay_sequence: 401, records: 3, blocks: 4 };
    let epoch = EpochRecord { incarnation: [1; 16], state: EpochState::Sealed, segments: 2 };
    let orphan = OrphanRecord { since: 401, state: OrphanState::Nameless };
    let project = ProjectRecord { blocks: 4, inodes: 1, blocks_max: 0, inodes_max: 10 };
    let extent = ExtentRecord { block: 9000, blocks: 4, is_unwritten: false, epoch: 1 };
    let space = SpaceRecord { blocks: 4, state: ExtentState::QuarantinedMetadata, owner: 7, since: 400 };
    vec![
        ("inode", inode().encode().unwrap(), |bytes| Inode::decode(bytes)?.encode()),
        ("entry", name.encode().unwrap(), |bytes| NameRecord::decode(bytes)?.encode()),
        ("session", session.encode().unwrap(), |bytes| SessionRecord::decode(bytes)?.encode()),
        ("reply", ReplyRecord { status: 17, body: b"no".to_vec() }.encode().unwrap(), |bytes| {
            ReplyRecord::decode(bytes)?.encode()
        }),
        ("extent", extent.encode(), |bytes| Ok(ExtentRecord::decode(bytes)?.encode())),
        ("space", space.encode(), |bytes| Ok(SpaceRecord::decode(bytes)?.encode())),
        ("grant", grant.encode(), |bytes| Ok(GrantRecord::decode(bytes)?.encode())),
        ("orphan", orphan.encode(), |bytes| Ok(OrphanRecord::decode(bytes)?.encode())),
        ("project", project.encode(), |bytes| Ok(ProjectRecord::decode(bytes)?.encode())),
        ("epoch", epoch.encode(), |bytes| Ok(EpochRecord::decode(bytes)?.encode())),
        ("run", run.encode(), |bytes| Ok(RunRecord::decode(bytes)?.encode())),
        ("volume", volume.encode(), |bytes| Ok(VolumeRecord::decode(bytes)?.encode())),
    ]
}

#[test]
fn old_lease_sector_has_no_origin() {
    let written = sector().encode(VOLUME, 15).unwrap();
    let old = VerifiedFrame::encode(FrameKind::Lease, VOLUME, 0, lease_block(3, 15), 77, &written[64..208]).unwrap();
    // Its golden sum when the sector ended with the host.
    assert_eq!(crc32c::crc32c(&old), 0x63bf_0ffb);
    let decoded = LeaseSector::decode(VOLUME, 3, 15, &old).unwrap();
    assert_eq!(decoded, LeaseSector { origin: ProcessOrigin::default(), ..sector() });
}

/// The golden bytes are those of version 1.
#[test]
fn format_matches_golden_bytes() {
    let sums: Vec<(&str, usize, u32)> =
        frames().iter().chain(&values()).map(|(name, bytes, _)| (*name, bytes.len(), crc32c::crc32c(bytes))).collect();
    let golden = include_str!("golden.txt");
    let found: String = sums.iter().map(|(name, length, sum)| format!("{name} {length} {sum:08x}\n")).collect();
    assert_eq!(found, golden);
    // Some offsets are checked by hand against the document.
    let label = label().encode(0).unwrap();
    assert_eq!((&label[..4], label[4], &label[160..165]), (b"NVLB".as_slice(), 1, b"build".as_slice()));
    assert_eq!(
        (label[64..72].to_vec(), label[120..124].to_vec()),
        ((1_u64 << 20).to_le_bytes().to_vec(), 10_000_u32.to_le_bytes().to_vec())
    );
    let sector = sector().encode(VOLUME, 15).unwrap();
    assert_eq!((sector[80], sector[84], sector[88], sector[120], sector[128]), (3, 1, 35, 5, 77));
    let head = head().encode(VOLUME).unwrap();
    assert_eq!(
        (head[88..96].to_vec(), head[120..128].to_vec()),
        (400_u64.to_le_bytes().to_vec(), 401_u64.to_le_bytes().to_vec())
    );
    let inode = inode().encode().unwrap();
    assert_eq!(
        (inode[32..40].to_vec(), inode[120], &inode[128..]),
        ((1_u64 << 40).to_le_bytes().to_vec(), 5, b"short".as_slice())
    );
    let append = append().encode(VOLUME, 4097, 1).unwrap().0;
    assert_eq!((append[48..50].to_vec(), append[68], append[72..74].to_vec()), (vec![145, 1], 2, vec![144, 1]));
    assert_eq!(
        (append[128 + 4], append[128 + 6], append[128 + 8], append[128 + 16], append[128 + 32]),
        (1, 3, 5, 9, 2)
    );
    assert_eq!((lease_block(0, 0), lease_block(31, 15), epoch_block(1023)), (64, 575, 1599));
}

#[test]
fn encoded_structures_decode_equal() {
    for (name, bytes, decode) in frames().iter().chain(&values()) {
        assert_eq!(decode(bytes).as_ref(), Ok(bytes), "{name}");
    }
    let (decoded, blocks, chain) =
        JournalAppend::decode(VOLUME, 4097, 1, &append().encode(VOLUME, 4097, 1).unwrap().0).unwrap();
    assert_eq!((decoded, blocks, chain), (append(), 1, append().encode(VOLUME, 4097, 1).unwrap().1));
    for key in [
        TableKey::Volume,
        TableKey::Inode(1),
        TableKey::Entry(1, (1 << 63) - 1),
        TableKey::Xattr(7, b"user.x".to_vec()),
        TableKey::Grant(1, 2, 3),
        TableKey::Project(9),
        TableKey::Reply(1, 2),
    ] {
        assert_eq!(TableKey::decode(key.table(), &key.encode()), Ok(key));
    }
    assert!(
        TableKey::Extent(1, 256).encode() < TableKey::Extent(1, 257).encode(),
        "the order of bytes is that of numbers"
    );
    assert!(TableKey::Extent(1, u64::MAX).encode() < TableKey::Extent(2, 0).encode());
}

#[test]
fn flipped_frame_bit_is_detected() {
    let mut random = SeededRandom::new(1);
    for (name, bytes, decode) in frames() {
        let length = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as u64;
        for _ in 0..300 {
            let (at, bit) = (random.below(length) as usize, random.below(8));
            // The changed byte is reserved, but the checksum covers it.
            let mut wrong = bytes.clone();
            wrong[at] ^= 1 << bit;
            assert!(decode(&wrong).is_err(), "{name}: bit {bit} of byte {at}");
        }
    }
}

/// A frame of another position, volume or chain is refused.
#[test]
fn misplaced_or_foreign_frame_refused() {
    let bytes = segment().encode(VOLUME, 4096).unwrap();
    let problem = SegmentHeader::decode(VOLUME, 4097, &bytes).unwrap_err().problem;
    assert_eq!(problem, FormatProblem::Misplaced { expected: 4097, found: 4096 });
    let other = VolumeIdentity([0; 16]);
    assert_eq!(SegmentHeader::decode(other, 4096, &bytes).unwrap_err().problem, FormatProblem::OtherVolume);
    let bytes = append().encode(VOLUME, 4097, 1).unwrap().0;
    let problem = JournalAppend::decode(VOLUME, 4097, 2, &bytes).unwrap_err().problem;
    assert!(matches!(problem, FormatProblem::Checksum { .. }), "it follows another append");
    let torn = &bytes[..100];
    assert!(matches!(JournalAppend::decode(VOLUME, 4097, 1, torn).unwrap_err().problem, FormatProblem::Short { .. }));
}

/// Encoding refuses such values as well as decoding.
#[test]
fn out_of_bounds_values_refused() {
    assert!(NameRecord { inode: 1, generation: 1, kind: 8, name: b"a/b".to_vec() }.encode().is_err());
    assert!(NameRecord { inode: 1, generation: 1, kind: 8, name: b"..".to_vec() }.encode().is_err());
    assert!(NameRecord { inode: 1, generation: 1, kind: 8, name: vec![b'x'; 256] }.encode().is_err());
    assert!(Inode { inline: vec![0; 2049], ..inode() }.encode().is_err());
    assert!(Inode { size: 1 << 63, ..inode() }.encode().is_err());
    assert!(ReplyRecord { status: 0, body: vec![0; 4097] }.encode().is_err());
    let unsorted = RunChunk { run: 1, records: chunk().records.into_iter().rev().collect() };
    assert_eq!(unsorted.encode(VOLUME, 1, 2048).unwrap_err().problem, FormatProblem::Order);
    let empty = RunChunk { run: 1, records: Vec::new() };
    assert!(empty.encode(VOLUME, 1, 2048).is_err());
    let long = put(&TableKey::Inode(1), vec![0; 65545]);
    let mut transaction = append().transactions[0].clone();
    transaction.mutations.push(long);
    assert!(JournalAppend { transactions: vec![transaction], ..append() }.encode(VOLUME, 4097, 1).is_err());
    assert!(VolumeLabel::decode(0, &VolumeLabel { lease_ms: 10, ..label() }.encode(0).unwrap()).is_err());
    assert!(TableKey::decode(TableKind::Entries, &TableKey::Entry(1, 1 << 63).encode()).is_err());
    assert!(TableKey::decode(TableKind::Inodes, &[0; 9]).is_err());
    assert!(TableKey::decode(TableKind::Volume, &[1]).is_err());
}

/// Whatever decodes is encoded to the same bytes again.
#[test]
fn decoders_never_panic_on_noise() {
    let seed = std::env::var("NECTARY_FORMAT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("NECTARY_FORMAT_SEED={seed}");
    let mut random = SeededRandom::new(seed);
    let mut decoded = 0;
    for (name, bytes, decode) in frames().iter().chain(&values()) {
        for round in 0..2000 {
            let mut wrong = match round % 4 {
                0 => {
                    let length = random.below(600) as usize;
                    random.bytes(length)
                }
                _ => bytes.clone(),
            };
            for _ in 0..random.below(4) {
                if !wrong.is_empty() {
                    let (at, value) = (random.below(wrong.len().min(400) as u64) as usize, random.next_u64() as u8);
                    wrong[at] = value;
                }
            }
            if round % 5 == 0 {
                wrong.truncate(random.below(wrong.len() as u64 + 1) as usize);
            }
            // The checksum is corrected, so that the decoder reaches the fields.
            if bytes.starts_with(b"NV") && wrong.len() >= 64 {
                let length = u32::from_le_bytes(wrong[8..12].try_into().unwrap()) as usize;
                if let Some(whole) = wrong.get_mut(..length).filter(|whole| whole.len() >= 64) {
                    whole[12..16].fill(0);
                    let sum = crc32c::crc32c(whole);
                    whole[12..16].copy_from_slice(&sum.to_le_bytes());
                }
            }
            if let Ok(again) = decode(&wrong) {
                decoded += 1;
                assert!(decode(&again).is_ok_and(|third| third == again), "{name}");
            }
        }
        for table in TableKind::ALL {
            let length = random.below(30) as usize;
            let key = random.bytes(length);
            if let Ok(found) = TableKey::decode(table, &key) {
                assert_eq!(found.encode(), key);
            }
        }
    }
    assert!(decoded > 1000, "the fields are reached: {decoded}");
}

#[test]
fn frame_header_states_block_count() {
    let blocks = |body: usize| {
        let bytes = VerifiedFrame::encode(FrameKind::Append, VOLUME, 1, 7, 1, &vec![1; body]).unwrap();
        let said = VerifiedFrame::blocks_said(FrameKind::Append, &bytes[..BLOCK_BYTES]);
        assert_eq!(said as usize * BLOCK_BYTES, bytes.len());
        (said, VerifiedFrame::blocks_said(FrameKind::Chunk, &bytes))
    };
    assert_eq!((blocks(0), blocks(BLOCK_BYTES - 64), blocks(BLOCK_BYTES)), ((1, 1), (1, 1), (2, 1)));
    assert_eq!(blocks((4 << 20) - 64), (1024, 1));
    let damaged = [&b"NVJA\x01\0\0\0"[..], &[0xff; 56]].concat();
    assert_eq!(
        (
            VerifiedFrame::blocks_said(FrameKind::Append, &damaged),
            VerifiedFrame::blocks_said(FrameKind::Append, b"NVJA")
        ),
        (1, 1)
    );
}
