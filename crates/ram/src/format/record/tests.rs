//! Encoded records decode to the same records, damaged ones are refused, and nothing panics.

use super::*;

fn record() -> DonorRecord {
    let geometry = RecordGeometry {
        device: [7; 16],
        bytes: 40 << 10,
        block_bytes: 4096,
        stripe_bytes: 8192,
        members: 3,
        code: RedundancyCode::Mirror,
    };
    let mut dirty = StripeSet::none(geometry.stripes());
    dirty.set(4, true);
    let member = |incarnation, state| ViewMember { incarnation, joined: incarnation + 1, state };
    let members =
        vec![member(10, MemberState::Present), member(20, MemberState::Left), member(30, MemberState::Rebuilding)];
    DonorRecord {
        stamp: RecordStamp { generation: 3, client: 0x1234_5678_9abc_def0, revision: 9 },
        geometry,
        position: 2,
        is_ready: true,
        view: MembershipView { generation: 2, epoch: 5, members },
        dirty,
    }
}

/// Returns the record of a device that logs parity.
fn log_record() -> DonorRecord {
    let log = LogShape {
        policy: 5,
        groups: 9,
        caches: 18,
        region_blocks: 3,
        column_blocks: 8,
        overflow_percent: 25,
        formers: Formers::default(),
    };
    let geometry = RecordGeometry { stripe_bytes: 0, code: RedundancyCode::Log(log), ..record().geometry };
    DonorRecord { geometry, dirty: StripeSet::none(0), ..record() }
}

/// A small pseudo-random generator, so that a failure can be repeated.
fn bits(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 16
}

/// Stores the correct checksum in a record whose bytes were changed.
fn seal(bytes: &mut [u8]) {
    let at = bytes.len() - CHECKSUM_BYTES;
    let checksum = xxh3_64(&bytes[..at]);
    bytes[at..].copy_from_slice(&checksum.to_le_bytes());
}

#[test]
fn record_survives_its_bytes() {
    let bytes = record().encode();
    assert_eq!(DonorRecord::decode(&bytes).unwrap(), record());
    assert_eq!(RecordStamp::of(&bytes), record().stamp);
    let mut area = bytes.clone();
    area.resize(METADATA_BYTES, 0);
    assert_eq!(DonorRecord::decode(&area).unwrap(), record(), "what is behind a record does not matter");
    assert_eq!(bytes.len(), 104 + 3 * 24 + 1 + 8);
}

/// The record of a device without redundancy has its zones and no marks.
#[test]
fn plain_record_round_trips() {
    let zones = RowZones::of(&[1, 3, 2]).unwrap();
    let geometry = RecordGeometry { code: RedundancyCode::None(zones), ..record().geometry };
    let plain = DonorRecord { geometry, dirty: StripeSet::none(0), ..record() };
    let bytes = plain.encode();
    assert_eq!((DonorRecord::decode(&bytes).unwrap(), geometry.losses_max()), (plain.clone(), 0));
    assert_eq!(bytes.len(), 104 + 3 * 24 + ZONES_BYTES + 8);
    let at = 104 + 3 * 24;
    // A donor that the device does not have, no rows, too few rows, a reserved word.
    for (at, byte) in [(at, 15), (at + 8, 0), (at + 24, 0), (at + 12, 1)] {
        let mut bad = bytes.clone();
        bad[at] = byte;
        seal(&mut bad);
        assert!(matches!(DonorRecord::decode(&bad), Err(FormatError::Range { what: "zones", .. })), "{at}");
    }
    let grown =
        RecordGeometry { bytes: 80 << 10, code: RedundancyCode::None(zones.grown(&[1, 1, 2]).unwrap()), ..geometry };
    assert!(grown.check().is_ok() && geometry.may_become(&grown) && !grown.may_become(&geometry));
    let members = 64;
    let most = RecordGeometry { members, code: RedundancyCode::None(RowZones::of(&[1; 64]).unwrap()), ..geometry };
    assert!(most.check().is_ok() && RecordGeometry { members: 65, ..most }.check().is_err());
    assert!(RecordGeometry { code: RedundancyCode::Mirror, ..most }.check().is_err());
}

/// A record with a log is read back, and values out of bounds are refused with the name of the field.
#[test]
fn log_record_round_trips() {
    let bytes = log_record().encode();
    assert_eq!(DonorRecord::decode(&bytes).unwrap(), log_record());
    assert_eq!(bytes.len(), 104 + 3 * 24 + LOG_SHAPE_BYTES + 8);
    let at = 104 + 3 * 24;
    let places = ["policy", "groups", "caches", "region blocks", "column blocks", "overflow"];
    for (number, what) in places.into_iter().enumerate() {
        let found = if what == "groups" { 0 } else { 0xff00 };
        let mut bad = bytes.clone();
        bad[at + 4 * number..][..4].copy_from_slice(&u32::to_le_bytes(found));
        seal(&mut bad);
        assert_eq!(DonorRecord::decode(&bad), Err(FormatError::Range { what, found: u64::from(found) }));
    }
    // A mirror must not have a log shape, and a device that logs parity must not have stripes.
    for (at, value) in [(80, 1), (76, 16)] {
        let mut bad = bytes.clone();
        bad[at] = value;
        seal(&mut bad);
        assert!(matches!(DonorRecord::decode(&bad), Err(FormatError::Range { what: "stripe bytes", .. })), "{at}");
    }
}

/// A stripe must have a chunk for each donor except one; other sizes are refused.
#[test]
fn parity_record_round_trips() {
    let parity =
        DonorRecord { geometry: RecordGeometry { code: RedundancyCode::Parity, ..record().geometry }, ..record() };
    let bytes = parity.encode();
    assert_eq!((DonorRecord::decode(&bytes).unwrap(), bytes[80]), (parity.clone(), 3));
    assert_eq!(parity.geometry.chunk_bytes(), 4096);
    for (members, stripe_bytes, what) in [(2, 8192, "members"), (4, 8192, "stripe bytes"), (3, 4096, "stripe bytes")] {
        let geometry = RecordGeometry { members, stripe_bytes, ..parity.geometry };
        let refused = geometry.check().unwrap_err();
        assert!(matches!(refused, FormatError::Range { what: found, .. } if found == what), "{refused:?}");
    }
}

/// Former sizes that do not fit the later sizes are refused.
#[test]
fn former_sizes_round_trip() {
    use crate::format::FormerSize;
    let mut grown = log_record();
    let mut log = grown.geometry.log().unwrap();
    (log.formers[0], log.formers[1]) = (FormerSize { blocks: 4, groups: 4 }, FormerSize { blocks: 8, groups: 7 });
    grown.geometry.code = RedundancyCode::Log(log);
    let bytes = grown.encode();
    assert_eq!(DonorRecord::decode(&bytes).unwrap(), grown);
    assert_eq!(bytes.len(), log_record().encode().len() + FORMER_BYTES);
    assert!(grown.geometry.is_same_device(&log_record().geometry));
    let at = 104 + 3 * 24 + LOG_SHAPE_BYTES;
    // Not larger than the size before, not smaller than the present one, more groups than now, behind an empty one.
    for (at, value) in [(at, 0), (at, 8), (at + 8, 10), (at + 12, 10), (at + 24, 9)] {
        let mut bad = bytes.clone();
        bad[at] = value;
        seal(&mut bad);
        assert!(
            matches!(DonorRecord::decode(&bad), Err(FormatError::Range { what: "former size", .. })),
            "{at} {value}"
        );
    }
    // Mirrors and parity in place have no former sizes.
    for code in [RedundancyCode::Mirror, RedundancyCode::Parity] {
        let mut other = DonorRecord { geometry: RecordGeometry { code, ..record().geometry }, ..record() }.encode();
        other[12] = 1;
        seal(&mut other);
        assert!(matches!(DonorRecord::decode(&other), Err(FormatError::Range { what: "former size", .. })), "{code:?}");
    }
}

#[test]
fn greatest_record_fits_into_the_area() {
    let mut greatest = record();
    greatest.geometry = RecordGeometry { bytes: 65_536 * 8192, members: 16, ..greatest.geometry };
    greatest.view.members = vec![greatest.view.members[0]; 16];
    greatest.dirty = StripeSet::none(STRIPES_MAX);
    let bytes = greatest.encode();
    assert!(bytes.len() <= METADATA_BYTES);
    assert_eq!(DonorRecord::decode(&bytes).unwrap(), greatest);
    greatest.geometry.bytes += 4096;
    assert!(matches!(greatest.geometry.check(), Err(FormatError::Range { what: "device bytes", .. })));
}

#[test]
fn every_single_changed_byte_is_noticed() {
    for bytes in [record().encode(), log_record().encode()] {
        each_changed_byte_is_noticed(&bytes);
    }
}

fn each_changed_byte_is_noticed(bytes: &[u8]) {
    for at in 0..bytes.len() {
        let mut damaged = bytes.to_vec();
        damaged[at] ^= 0x40;
        assert!(DonorRecord::decode(&damaged).is_err(), "byte {at}");
        assert!(DonorRecord::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
}

/// An empty area has no record; the error about a newer record names what is newer.
#[test]
fn newer_record_is_refused() {
    assert!(
        DonorRecord::is_absent(&[])
            && DonorRecord::is_absent(&[0; METADATA_BYTES])
            && !DonorRecord::is_absent(&record().encode())
    );
    assert_eq!(DonorRecord::decode(&[0; METADATA_BYTES]), Err(FormatError::Magic));
    assert_eq!(RecordStamp::of(&[0; METADATA_BYTES]), RecordStamp::default());
    for (at, what) in [(8, "version"), (12, "feature set"), (80, "policy")] {
        let mut newer = record().encode();
        newer[at] = 0x82;
        seal(&mut newer);
        assert_eq!(DonorRecord::decode(&newer), Err(FormatError::Unsupported { what, found: 0x82 }));
    }
    for (at, what) in [(82, "position"), (86, "ready"), (120, "member state")] {
        let mut bad = record().encode();
        bad[at] = 99;
        seal(&mut bad);
        assert_eq!(DonorRecord::decode(&bad), Err(FormatError::Range { what, found: 99 }));
    }
}

#[test]
fn record_with_greatest_counts_is_damaged() {
    for (at, what, max) in [
        (24, "generation", GENERATION_MAX),
        (40, "revision", COUNT_MAX),
        (88, "view generation", GENERATION_MAX),
        (96, "view epoch", COUNT_MAX),
    ] {
        for (value, is_good) in [(max, true), (max + 1, false), (u64::MAX, false)] {
            let mut bytes = record().encode();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            seal(&mut bytes);
            match is_good {
                true => assert_eq!(DonorRecord::decode(&bytes).unwrap().encode(), bytes),
                false => assert_eq!(DonorRecord::decode(&bytes), Err(FormatError::Range { what, found: value })),
            }
            assert!(RecordStamp::of(&bytes).next_revision() <= COUNT_MAX);
        }
    }
}

/// Random records never cause a panic, even if their checksums are correct.
#[test]
fn random_records_never_panic() {
    let mut state = 1;
    let mut accepted = 0;
    for round in 0..40_000 {
        let mut bytes = if round % 2 == 0 { record().encode() } else { log_record().encode() };
        for _ in 0..1 + bits(&mut state) % 6 {
            let at = bits(&mut state) as usize % bytes.len();
            bytes[at] = bits(&mut state) as u8;
        }
        if bits(&mut state).is_multiple_of(4) {
            bytes.truncate(bits(&mut state) as usize % (bytes.len() + 1));
        }
        if bytes.len() > 16 + CHECKSUM_BYTES && bits(&mut state).is_multiple_of(2) {
            let length = (bytes.len() as u32).to_le_bytes();
            bytes[16..20].copy_from_slice(&length);
            seal(&mut bytes);
        }
        RecordStamp::of(&bytes);
        if let Ok(decoded) = DonorRecord::decode(&bytes) {
            accepted += 1;
            assert!(decoded.geometry.check().is_ok());
            assert_eq!(DonorRecord::decode(&decoded.encode()).as_ref(), Ok(&decoded));
        }
    }
    assert!(accepted > 1000, "{accepted} of the changed records are still good");
}
