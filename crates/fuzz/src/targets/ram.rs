//! The target of the structures of a network RAM disk on its donors: slots, summaries, trims, shapes, records and
//! windows.
//!
//! Bit 0 of an input's first byte chooses whether checksums are corrected; the other bits choose the structure. A
//! structure that decodes must encode, and decode to the same again.

use nectary_ram::format::slots::{
    CoveredMember, DonorAreas, GroupSummary, SLOT_HEADER_BYTES, SlotHeader, SlotShape, SummaryKind, TRIM_BYTES,
    TrimEntry,
};
use nectary_ram::format::{
    DonorRecord, FormerSize, LogShape, MemberState, MembershipView, RecordGeometry, RecordStamp, RecordSwap,
    RedundancyCode, RowZones, StripeSet, ViewMember, WINDOW_BYTES, WindowState,
};
use nectary_ram::logged::ParityLogConfiguration;
use xxhash_rust::xxh3::xxh3_64;

use super::choices;

/// Magics, versions, lengths.
pub const WORDS: &[&[u8]] = &[
    b"NECS",
    b"NECG",
    b"NECRAMSH",
    b"NECRAMMR",
    b"NECRAMWI",
    b"NECRAMSW",
    b"\x01\0\0\0",
    b"\x02\0\0\0",
    &[0xff; 8],
    &[0; 8],
];

const DEVICE: u64 = 0x1234_5678_9abc_def0;
const BLOCK: u32 = 7;

/// The structures, in the order of the choices.
const STRUCTURES: [fn(&[u8]); 7] = [slot, summary, trim, shape, record, state, swap];
/// The position of a structure's checksum, which covers the bytes before it. *Units*: bytes.
type ChecksumAt = fn(&[u8]) -> Option<usize>;

/// The positions for the first structures.
const CHECKSUMS: [ChecksumAt; 4] =
    [|_| Some(SLOT_HEADER_BYTES - 8), |bytes| Some(GroupSummary::bytes_of(*bytes.get(6)?) - 8), |_| None, |_| Some(64)];

fn slot(bytes: &[u8]) {
    if let Ok((slot, data)) = SlotHeader::decode_whole(bytes) {
        assert_eq!(slot.encode(data), bytes);
    }
    if let Ok(slot) = SlotHeader::decode(bytes) {
        let again = SlotHeader::decode(&slot.encode(&[])).expect("what was decoded is written");
        assert_eq!(SlotHeader { data_checksum: slot.data_checksum, ..again }, slot);
    }
}

fn summary(bytes: &[u8]) {
    if let Ok(summary) = GroupSummary::decode(bytes) {
        assert_eq!(GroupSummary::decode(&summary.encode()), Ok(summary));
    }
}

fn trim(bytes: &[u8]) {
    if let Ok(trim) = TrimEntry::decode(bytes, DEVICE, BLOCK) {
        assert_eq!(trim.encode(DEVICE, BLOCK), bytes[..TRIM_BYTES]);
    }
}

fn shape(bytes: &[u8]) {
    let Ok(shape) = SlotShape::decode(bytes) else { return };
    assert_eq!(SlotShape::decode(&shape.encode()), Ok(shape));
    // An accepted shape has room for all its areas.
    let areas = DonorAreas::new(&shape);
    let last = shape.groups - 1;
    assert!(areas.slot(last) + areas.slot_bytes == areas.donor_bytes);
    assert!(areas.summary(last) + areas.summary_bytes <= areas.spares_at);
    fits(&shape);
}

/// An accepted shape has room for its areas, also if the device has grown.
fn fits(shape: &SlotShape) {
    let (areas, last) = (DonorAreas::new(shape), shape.groups - 1);
    assert!(areas.slot(last) + areas.slot_bytes <= areas.donor_bytes);
    assert!(areas.summary(last) + areas.summary_bytes <= areas.donor_bytes);
    assert!(areas.spare(areas.spares) <= areas.head_bytes() && areas.head_bytes() <= areas.donor_bytes);
    for (donor, at) in areas.trims(shape.blocks - 1) {
        assert!((donor as u64) < areas.donors && at + TRIM_BYTES as u64 <= areas.donor_bytes);
    }
}

fn record(bytes: &[u8]) {
    let _ = RecordStamp::of(bytes);
    if let Ok(record) = DonorRecord::decode(bytes) {
        if let Some(shape) = ParityLogConfiguration::shape_of(&record.geometry) {
            fits(&shape);
        }
        assert_eq!(DonorRecord::decode(&record.encode()), Ok(record));
    }
}

fn state(bytes: &[u8]) {
    if let Ok(state) = WindowState::decode(bytes) {
        assert_eq!(WindowState::decode(&state.encode()), Ok(state));
    }
}

fn swap(bytes: &[u8]) {
    if let Ok(swap) = RecordSwap::decode(bytes) {
        assert_eq!(RecordSwap::decode(&swap.encode()), Ok(swap));
    }
}

/// Corrects checksums, so that the decoder reads the fields.
fn put_right(structure: usize, bytes: &mut [u8]) {
    if structure == 0 && bytes.len() > SLOT_HEADER_BYTES {
        let checksum = xxh3_64(&bytes[SLOT_HEADER_BYTES..]).to_le_bytes();
        bytes[SLOT_HEADER_BYTES - 16..SLOT_HEADER_BYTES - 8].copy_from_slice(&checksum);
    }
    let at = match CHECKSUMS.get(structure) {
        Some(at) => at(bytes),
        // A record contains its own length.
        None if structure == 4 && bytes.len() >= 20 => {
            let length = bytes.len() as u32;
            bytes[16..20].copy_from_slice(&length.to_le_bytes());
            (length as usize).checked_sub(8)
        }
        None => None,
    };
    if let Some(at) = at.filter(|at| at + 8 <= bytes.len()) {
        let checksum = xxh3_64(&bytes[..at]).to_le_bytes();
        bytes[at..at + 8].copy_from_slice(&checksum);
    }
}

/// Decodes one structure.
pub fn slots(input: &[u8]) {
    let (choices, bytes) = choices(input);
    let structure = usize::from(choices >> 1) % STRUCTURES.len();
    let mut bytes = bytes.to_vec();
    if choices & 1 == 1 {
        put_right(structure, &mut bytes);
    }
    STRUCTURES[structure](&bytes);
    if structure >= 5 {
        // A window is longer than an input, so zeroes are added.
        bytes.resize(WINDOW_BYTES, 0);
        STRUCTURES[structure](&bytes);
    }
}

/// Makes one of each structure, and a record of each kind.
pub fn slot_seeds() -> Vec<Vec<u8>> {
    let (data_checksum, is_lost) = (0, false);
    let (generation, sequence) = (2, 3);
    let slot =
        SlotHeader { device: DEVICE, generation, group: 5, member: 1, block: 9, sequence, data_checksum, is_lost };
    let named = Some(CoveredMember { block: 9, sequence: 3, checksum: 4 });
    let members = vec![named, None, named];
    let summary = GroupSummary {
        kind: SummaryKind::Sealed,
        device: DEVICE,
        generation: 2,
        group: 5,
        parity_checksum: 6,
        members,
    };
    let open = GroupSummary { kind: SummaryKind::Open, ..summary.clone() };
    let device = *b"sixteen of bytes";
    let shape = SlotShape {
        policy: 5,
        device,
        blocks: 1000,
        block_bytes: 4096,
        members: 3,
        groups: 420,
        caches: 18,
        region_blocks: 62,
        formers: Default::default(),
    };
    let mirror = RecordGeometry {
        device,
        bytes: 1 << 24,
        block_bytes: 4096,
        stripe_bytes: 1 << 20,
        members: 2,
        code: RedundancyCode::Mirror,
    };
    let log = LogShape {
        policy: 5,
        groups: 420,
        caches: 18,
        region_blocks: 62,
        column_blocks: 8,
        overflow_percent: 25,
        formers: Default::default(),
    };
    let logged =
        RecordGeometry { bytes: 1000 * 4096, stripe_bytes: 0, members: 4, code: RedundancyCode::Log(log), ..mirror };
    let stamp = RecordStamp { generation: 3, client: 4, revision: 5 };
    let record = |geometry: RecordGeometry| {
        let member = ViewMember { incarnation: 6, joined: 1, state: MemberState::Present };
        let members = vec![member; usize::from(geometry.members)];
        let view = MembershipView { generation: 3, epoch: 1, members };
        let mut dirty = StripeSet::none(geometry.marks());
        dirty.set(3, true);
        DonorRecord { stamp, geometry, position: 1, is_ready: true, view, dirty }.encode()
    };
    let parity = record(RecordGeometry { members: 3, code: RedundancyCode::Parity, ..mirror });
    let zones = RowZones::of(&[3, 13]).unwrap_or_default();
    let plain = record(RecordGeometry { code: RedundancyCode::None(zones), ..mirror });
    let mut formers = log.formers;
    (formers[0], formers[1]) = (FormerSize { blocks: 500, groups: 210 }, FormerSize { blocks: 900, groups: 378 });
    let grown = record(RecordGeometry { code: RedundancyCode::Log(LogShape { formers, ..log }), ..logged });
    let (mirrored, logged) = (record(mirror), record(logged));
    let head = |bytes: Vec<u8>| bytes[..bytes.len().min(4000)].to_vec();
    let state = WindowState { is_owner: true, is_owned: false, record: Vec::new() };
    let seeds = [
        (0, slot.encode(&[7; 16])),
        (1, summary.encode()),
        (1, open.encode()),
        (2, TrimEntry { sequence: 8 }.encode(DEVICE, BLOCK).to_vec()),
        (3, shape.encode()),
        (4, mirrored),
        (4, parity),
        (4, plain),
        (4, logged),
        (4, grown),
        (5, head(state.encode())),
        (6, head(RecordSwap { expected: stamp, record: &[] }.encode())),
    ];
    seeds.into_iter().map(|(structure, bytes)| [&[structure << 1 | 1][..], &bytes].concat()).collect()
}
