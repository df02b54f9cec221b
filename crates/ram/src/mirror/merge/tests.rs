//! The rule for attaching, case by case.

use super::*;
use crate::format::{Code, Geometry, Member, Stamp, Stripes};

/// Makes a record for a position, whose view has these states: P present, L left, R rebuilding.
fn record(position: u16, number: (u64, u64), states: &str) -> Record {
    let geometry = Geometry {
        device: [1; 16],
        bytes: 160,
        block_bytes: 16,
        stripe_bytes: 32,
        members: states.len() as u16,
        code: Code::Mirror,
    };
    let state = |letter| match letter {
        'P' => MemberState::Present,
        'L' => MemberState::Left,
        _ => MemberState::Rebuilding,
    };
    let member = |(at, letter)| Member { incarnation: 100 + at as u64, joined: 1, state: state(letter) };
    Record {
        stamp: Stamp::default(),
        geometry,
        position,
        is_ready: true,
        view: View { generation: number.0, epoch: number.1, members: states.chars().enumerate().map(member).collect() },
        dirty: Stripes::none(5),
    }
}

fn found(record: &Record) -> Found<'_> {
    Found::Record { record, incarnation: 100 + u64::from(record.position) }
}

#[test]
fn newest_view_wins_and_a_partly_stored_one_is_taken_over() {
    let (a, b, c) = (record(0, (1, 5), "PPL"), record(1, (1, 4), "PPP"), record(2, (1, 4), "PPP"));
    let merged = merge(&[found(&a), found(&b), found(&c)], false).unwrap();
    assert_eq!(merged.trusted, [true, true, false]);
    let newer = record(1, (2, 2), "LPP");
    let merged = merge(&[found(&a), found(&newer), found(&c)], false).unwrap();
    assert_eq!(merged.trusted, [false, true, true], "a later generation decides");
}

#[test]
fn one_of_three_may_be_missing_and_not_two() {
    let (a, b) = (record(0, (1, 4), "PPP"), record(1, (1, 4), "PPP"));
    let merged = merge(&[found(&a), found(&b), Found::Missing], false).unwrap();
    assert!(merged.trusted == [true, true, false] && merged.may_be_read_elsewhere);
    assert!(merge(&[found(&a), found(&b), Found::Empty], false).unwrap().may_be_read_elsewhere);
    let refused = merge(&[found(&a), Found::Missing, Found::Empty], true);
    assert_eq!(refused, Err(Refusal::TooFew { needed: 2, found: 1, missing: vec![1, 2] }));
    let left = record(0, (1, 5), "PPL");
    let refused = merge(&[found(&left), Found::Missing, found(&record(2, (1, 4), "PPP"))], false);
    assert_eq!(refused, Err(Refusal::TooFew { needed: 2, found: 1, missing: vec![1, 2] }));
}

#[test]
fn one_of_two_donors_settles_only_what_it_was_told() {
    let alone = record(0, (1, 4), "PP");
    let refused = Refusal::CannotSettle { present: 0, missing: 1 };
    assert_eq!(merge(&[found(&alone), Found::Missing], false), Err(refused.clone()));
    assert_eq!(merge(&[found(&alone), Found::Empty], false), Err(refused));
    assert_eq!(merge(&[found(&alone), Found::Empty], true).unwrap().trusted, [true, false]);
    for told in ["PL", "PR"] {
        assert_eq!(merge(&[found(&record(0, (1, 5), told)), Found::Missing], false).unwrap().trusted, [true, false]);
    }
    let refused = merge(&[found(&record(0, (1, 5), "LP")), Found::Missing], true);
    assert!(matches!(refused, Err(Refusal::TooFew { found: 0, .. })), "{refused:?}");
}

#[test]
fn other_incarnation_and_earlier_membership_are_not_believed() {
    let (a, b, mut c) = (record(0, (1, 4), "PPP"), record(1, (1, 4), "PPP"), record(2, (1, 3), "PPP"));
    let other = Found::Record { record: &c, incarnation: 7 };
    assert_eq!(merge(&[found(&a), found(&b), other], false).unwrap().trusted, [true, true, false]);
    c.view.members[2].joined = 0;
    assert_eq!(merge(&[found(&a), found(&b), found(&c)], false).unwrap().trusted, [true, true, false]);
}

#[test]
fn empty_donors_are_an_error_and_never_an_empty_disk() {
    assert_eq!(merge(&[Found::Empty; 3], true), Err(Refusal::Empty));
    let refused = merge(&[Found::Empty, Found::Missing, Found::Empty], true);
    assert!(matches!(refused, Err(Refusal::TooFew { found: 0, .. })), "{refused:?}");
    let mut creating = record(0, (1, 1), "PPP");
    creating.is_ready = false;
    assert_eq!(merge(&[found(&creating), Found::Empty, Found::Empty], true), Err(Refusal::Incomplete));
}
