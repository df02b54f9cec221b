//! Planted bugs of moves that need two moves in a row, and so are rare in `sim-campaigns ram-moves`. No test of another
//! module runs meanwhile, because planted bugs affect the whole process.

use nectary_ram::device::moves::{
    MoveMachine, MovePlan, MoveStep, Mover, PART_BYTES, PreparationResult, RecordHolder, unfinished,
};
use nectary_ram::format::{
    DonorRecord, MemberState, MembershipView, RecordGeometry, RecordStamp, RedundancyCode, StripeSet, ViewMember,
};
use nectary_ram::group::{Donor, DonorStanding, LinkState};
use nectary_ram::planted::{MirrorBug, plant};

/// Two donors that are trusted and serve.
struct HealthyDonors;

impl MoveMachine for HealthyDonors {
    fn standing(&self) -> &[DonorStanding] {
        &[DonorStanding::Trusted; 2]
    }

    fn link_state(&self, _: Donor) -> Option<LinkState> {
        Some(LinkState::Claimed)
    }

    fn is_view_stored(&self) -> bool {
        true
    }

    fn may_replace(&self, _: Donor) -> bool {
        false
    }
}

/// Begins a move of one part, whose copy is under way; returns its number.
fn begin(mover: &mut Mover<()>) -> u64 {
    let number = mover.begin(MovePlan::new(0, PART_BYTES, PART_BYTES, 0), false, ());
    assert_eq!(mover.prepared(&HealthyDonors), Some(PreparationResult::Copies));
    assert!(matches!(mover.next(0, &HealthyDonors), MoveStep::Copy { part: 0, .. }));
    number
}

/// A copy of an earlier move ends while the present one copies the same part; returns whether it counts.
fn earlier_move_counts() -> bool {
    let mut mover = Mover::new(2);
    let earlier = begin(&mut mover);
    mover.end(false);
    begin(&mut mover);
    mover.copied(earlier, 0, true);
    !mover.may_differ(0)
}

/// The record of place 1, with a view of this epoch in which the place has the donor of this incarnation.
fn record(epoch: u64, incarnation: u64) -> DonorRecord {
    let (device, code) = ([7; 16], RedundancyCode::Mirror);
    let geometry =
        RecordGeometry { device, bytes: 8 << 20, block_bytes: 4096, stripe_bytes: 1 << 20, members: 3, code };
    let member = |incarnation: u64| ViewMember { incarnation, joined: 1, state: MemberState::Present };
    DonorRecord {
        stamp: RecordStamp { generation: 4, client: 9, revision: epoch },
        geometry,
        position: 1,
        is_ready: true,
        view: MembershipView { generation: 4, epoch, members: vec![member(10), member(incarnation), member(12)] },
        dirty: StripeSet::none(geometry.stripes()),
    }
}

/// Whether a switch from a donor to another one counts as cut short, by what they and the newest view say.
fn is_finished(newest: &DonorRecord, former: (&DonorRecord, u64), other: (&DonorRecord, u64)) -> bool {
    let found = |(record, incarnation)| RecordHolder { record, incarnation };
    unfinished(newest, found(former), found(other), 77).is_some()
}

/// The other donor has the copy of the donor before the former one.
fn earlier_copy_is_used() -> bool {
    is_finished(&record(6, 20), (&record(5, 11), 11), (&record(3, 8), 20))
}

/// The former donor has a newer view than the one that gives its place away.
fn former_that_has_gone_on_is_replaced() -> bool {
    is_finished(&record(6, 20), (&record(7, 11), 11), (&record(4, 11), 20))
}

#[test]
fn planted_move_bugs_are_caught() {
    let _turn = crate::turn(module_path!());
    assert!(is_finished(&record(6, 20), (&record(5, 11), 11), (&record(4, 11), 20)), "it was cut short");
    let cases: [(MirrorBug, fn() -> bool); 3] = [
        (MirrorBug::EarlierMoveAnswered, earlier_move_counts),
        (MirrorBug::EarlierCopyUsed, earlier_copy_is_used),
        (MirrorBug::FormerHasGoneOn, former_that_has_gone_on_is_replaced),
    ];
    for (bug, is_wrong) in cases {
        assert!(!is_wrong(), "{}, although it is not planted", bug.name());
        plant(Some(bug));
        let is_found = is_wrong();
        plant(None);
        println!("planted: {}: found {is_found}", bug.name());
        assert!(is_found, "{} survived", bug.name());
    }
}
