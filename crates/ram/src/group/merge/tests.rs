//! The rule for attaching, case by case.

use super::*;
use crate::format::{RecordGeometry, RecordStamp, RedundancyCode, RowZones, StripeSet, ViewMember};

/// Makes a record for a position, whose view has these states: P present, L left, R rebuilding.
fn record(position: u16, number: (u64, u64), states: &str) -> DonorRecord {
    let geometry = RecordGeometry {
        device: [1; 16],
        bytes: 160,
        block_bytes: 16,
        stripe_bytes: 32,
        members: states.len() as u16,
        code: RedundancyCode::Mirror,
    };
    let state = |letter| match letter {
        'P' => MemberState::Present,
        'L' => MemberState::Left,
        _ => MemberState::Rebuilding,
    };
    let member = |(at, letter)| ViewMember { incarnation: 100 + at as u64, joined: 1, state: state(letter) };
    DonorRecord {
        stamp: RecordStamp::default(),
        geometry,
        position,
        is_ready: true,
        view: MembershipView {
            generation: number.0,
            epoch: number.1,
            members: states.chars().enumerate().map(member).collect(),
        },
        dirty: StripeSet::none(5),
    }
}

fn found(record: &DonorRecord) -> DonorContent<'_> {
    DonorContent::Record { record, incarnation: 100 + u64::from(record.position) }
}

/// The newest view wins, even if only some donors have stored it.
#[test]
fn newest_view_wins() {
    let (a, b, c) = (record(0, (1, 5), "PPL"), record(1, (1, 4), "PPP"), record(2, (1, 4), "PPP"));
    let merged = merge(&[found(&a), found(&b), found(&c)], false).unwrap();
    assert_eq!(merged.trusted, [true, true, false]);
    let newer = record(1, (2, 2), "LPP");
    let merged = merge(&[found(&a), found(&newer), found(&c)], false).unwrap();
    assert_eq!(merged.trusted, [false, true, true], "a later generation decides");
}

#[test]
fn merge_tolerates_one_of_three() {
    let (a, b) = (record(0, (1, 4), "PPP"), record(1, (1, 4), "PPP"));
    let merged = merge(&[found(&a), found(&b), DonorContent::Missing], false).unwrap();
    assert!(merged.trusted == [true, true, false] && merged.may_be_read_elsewhere);
    assert!(merge(&[found(&a), found(&b), DonorContent::Empty], false).unwrap().may_be_read_elsewhere);
    let refused = merge(&[found(&a), DonorContent::Missing, DonorContent::Empty], true);
    assert_eq!(refused, Err(AttachRefusal::TooFew { needed: 2, found: 1, missing: vec![1, 2] }));
    let left = record(0, (1, 5), "PPL");
    let refused = merge(&[found(&left), DonorContent::Missing, found(&record(2, (1, 4), "PPP"))], false);
    assert_eq!(refused, Err(AttachRefusal::TooFew { needed: 2, found: 1, missing: vec![1, 2] }));
}

/// One of two donors is enough only if its view leaves the other out, or the user confirms.
#[test]
fn one_of_two_needs_stored_view() {
    let alone = record(0, (1, 4), "PP");
    let refused = AttachRefusal::CannotSettle { present: 0, missing: 1 };
    assert_eq!(merge(&[found(&alone), DonorContent::Missing], false), Err(refused.clone()));
    assert_eq!(merge(&[found(&alone), DonorContent::Empty], false), Err(refused));
    assert_eq!(merge(&[found(&alone), DonorContent::Empty], true).unwrap().trusted, [true, false]);
    for told in ["PL", "PR"] {
        assert_eq!(
            merge(&[found(&record(0, (1, 5), told)), DonorContent::Missing], false).unwrap().trusted,
            [true, false]
        );
    }
    let refused = merge(&[found(&record(0, (1, 5), "LP")), DonorContent::Missing], true);
    assert!(matches!(refused, Err(AttachRefusal::TooFew { found: 0, .. })), "{refused:?}");
}

/// A donor of another incarnation, or with a record of an earlier membership, is not trusted.
#[test]
fn earlier_incarnation_is_not_trusted() {
    let (a, b, mut c) = (record(0, (1, 4), "PPP"), record(1, (1, 4), "PPP"), record(2, (1, 3), "PPP"));
    let other = DonorContent::Record { record: &c, incarnation: 7 };
    assert_eq!(merge(&[found(&a), found(&b), other], false).unwrap().trusted, [true, true, false]);
    c.view.members[2].joined = 0;
    assert_eq!(merge(&[found(&a), found(&b), found(&c)], false).unwrap().trusted, [true, true, false]);
}

/// Without redundancy every donor is needed, whatever the user confirms.
#[test]
fn merge_needs_all_without_redundancy() {
    for count in 1..4 {
        let plain = |position: usize| {
            let mut record = record(position as u16, (1, 4), &"P".repeat(count));
            record.geometry.code = RedundancyCode::None(RowZones::of(&vec![5; count]).unwrap());
            record
        };
        let records: Vec<DonorRecord> = (0..count).map(plain).collect();
        let all: Vec<DonorContent<'_>> = records.iter().map(found).collect();
        assert_eq!(merge(&all, false).unwrap().trusted, vec![true; count]);
        for missing in 0..count {
            for content in [DonorContent::Missing, DonorContent::Empty] {
                let mut rest = all.clone();
                rest[missing] = content;
                assert!(merge(&rest, true).is_err(), "{count} donors without {missing}");
            }
        }
    }
}

/// Empty donors are an error and never an empty device.
#[test]
fn merge_refuses_empty_donors() {
    assert_eq!(merge(&[DonorContent::Empty; 3], true), Err(AttachRefusal::Empty));
    let refused = merge(&[DonorContent::Empty, DonorContent::Missing, DonorContent::Empty], true);
    assert!(matches!(refused, Err(AttachRefusal::TooFew { found: 0, .. })), "{refused:?}");
    let mut creating = record(0, (1, 1), "PPP");
    creating.is_ready = false;
    assert_eq!(
        merge(&[found(&creating), DonorContent::Empty, DonorContent::Empty], true),
        Err(AttachRefusal::Incomplete)
    );
}
