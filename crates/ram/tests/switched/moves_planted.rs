//! Planted bugs of moves that need two moves in a row, and so are rare in `sim-campaigns ram-moves`. No test of another
//! module runs meanwhile, because planted bugs affect the whole process.

use nectary_ram::format::{Code, Geometry, Member, MemberState, Record, Stamp, Stripes, View};
use nectary_ram::mirror::{Donor, LinkState, Standing};
use nectary_ram::moving::{Found, Members, Mover, Next, PART_BYTES, Plan, Prepared, unfinished};
use nectary_ram::planted::{Bug, plant};

/// Two donors that are trusted and serve.
struct Well;

impl Members for Well {
    fn standing(&self) -> &[Standing] {
        &[Standing::Trusted; 2]
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
    let number = mover.begin(Plan::new(0, PART_BYTES, PART_BYTES, 0), false, ());
    assert_eq!(mover.prepared(&Well), Some(Prepared::Copies));
    assert!(matches!(mover.next(0, &Well), Next::Copy { part: 0, .. }));
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
fn record(epoch: u64, incarnation: u64) -> Record {
    let (device, code) = ([7; 16], Code::Mirror);
    let geometry = Geometry { device, bytes: 8 << 20, block_bytes: 4096, stripe_bytes: 1 << 20, members: 3, code };
    let member = |incarnation: u64| Member { incarnation, joined: 1, state: MemberState::Present };
    Record {
        stamp: Stamp { generation: 4, client: 9, revision: epoch },
        geometry,
        position: 1,
        is_ready: true,
        view: View { generation: 4, epoch, members: vec![member(10), member(incarnation), member(12)] },
        dirty: Stripes::none(geometry.stripes()),
    }
}

/// Whether a switch from a donor to another one counts as cut short, by what they and the newest view say.
fn is_finished(newest: &Record, former: (&Record, u64), other: (&Record, u64)) -> bool {
    let found = |(record, incarnation)| Found { record, incarnation };
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
fn planted_bugs_of_two_moves_are_found() {
    let _turn = crate::turn(module_path!());
    assert!(is_finished(&record(6, 20), (&record(5, 11), 11), (&record(4, 11), 20)), "it was cut short");
    let cases: [(Bug, fn() -> bool); 3] = [
        (Bug::EarlierMoveAnswered, earlier_move_counts),
        (Bug::EarlierCopyUsed, earlier_copy_is_used),
        (Bug::FormerHasGoneOn, former_that_has_gone_on_is_replaced),
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
