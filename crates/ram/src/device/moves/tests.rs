//! Tests of a move's steps with donors that exist only as their standing.

use super::*;
use crate::group::{DonorRequest, RequestId};

struct MoveTestDonors {
    standing: Vec<DonorStanding>,
    may_replace: bool,
    is_told: bool,
}

impl MoveMachine for MoveTestDonors {
    fn standing(&self) -> &[DonorStanding] {
        &self.standing
    }

    fn link_state(&self, _: Donor) -> Option<LinkState> {
        Some(LinkState::Claimed)
    }

    fn is_view_stored(&self) -> bool {
        self.is_told
    }

    fn may_replace(&self, _: Donor) -> bool {
        self.may_replace
    }
}

const WELL: DonorStanding = DonorStanding::Trusted;

fn seen(may_replace: bool) -> MoveTestDonors {
    MoveTestDonors { standing: vec![WELL; 2], may_replace, is_told: true }
}

fn plan(bytes: u64) -> MovePlan {
    let mut plan = MovePlan::new(0, bytes, PART_BYTES, 0);
    plan.prepared();
    plan
}

#[test]
fn changed_part_is_copied_again() {
    let mut plan = plan(40 * PART_BYTES - 8);
    let seen = seen(true);
    let mut copied = Vec::new();
    for now_us in (0..2_000_000).step_by(5000) {
        match plan.next(now_us, &seen, true) {
            MoveStep::Copy { part, offset, bytes } => {
                assert_eq!(bytes, if part == 39 { PART_BYTES - 8 } else { PART_BYTES });
                if copied.len() == 5 {
                    plan.touch(offset + 7, 1);
                    plan.touch(40 * PART_BYTES, 99);
                }
                copied.push(part);
                plan.copied(part, copied.len() != 9);
            }
            MoveStep::Switch => break,
            MoveStep::Wait | MoveStep::GoOn => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(plan.is_paused() && copied.len() == 42, "{copied:?}");
    assert_eq!(plan.progress(), (40 * PART_BYTES - 8, 40 * PART_BYTES - 8));
    copied.sort_unstable();
    copied.dedup();
    assert_eq!(copied, (0..40).collect::<Vec<_>>());
}

/// The switch waits until all donors are well and no request is on its way.
#[test]
fn switch_awaits_donors_and_requests() {
    let mut plan = plan(PART_BYTES);
    let mut seen = seen(false);
    let at = PAUSE_EVERY_US;
    assert_eq!(plan.next(at, &seen, false), MoveStep::Copy { part: 0, offset: 0, bytes: PART_BYTES });
    plan.copied(0, true);
    assert!(plan.next(at, &seen, true) == MoveStep::Wait && !plan.is_paused());
    seen.may_replace = true;
    assert!(plan.next(at, &seen, false) == MoveStep::Wait && plan.is_paused());
    seen.may_replace = false;
    assert!(plan.next(at + 1, &seen, true) == MoveStep::GoOn && !plan.is_paused());
    seen.may_replace = true;
    assert_eq!(plan.next(2 * at + 1, &seen, true), MoveStep::Switch);
}

#[test]
fn switch_awaits_part_in_copy() {
    let (mut plan, seen, at) = (plan(PART_BYTES), seen(true), PAUSE_EVERY_US);
    assert!(matches!(plan.next(at, &seen, true), MoveStep::Copy { part: 0, .. }) && plan.is_paused());
    assert_eq!(plan.next(at, &seen, true), MoveStep::Wait);
    plan.copied(0, false);
    assert!(matches!(plan.next(at, &seen, true), MoveStep::Copy { part: 0, .. }));
    plan.copied(0, true);
    assert_eq!(plan.next(at, &seen, true), MoveStep::Switch);
}

#[test]
fn former_donor_is_emptied_last() {
    let (mut plan, mut seen) = (plan(PART_BYTES), MoveTestDonors { is_told: false, ..seen(false) });
    plan.switched();
    assert_eq!(plan.next(0, &seen, true), MoveStep::Wait);
    seen.is_told = true;
    assert_eq!(plan.next(0, &seen, true), MoveStep::Empty);
}

#[test]
fn lost_donor_ends_other_move() {
    let mut plan = plan(PART_BYTES);
    let mut seen = MoveTestDonors { standing: vec![WELL, DonorStanding::Leaving], ..seen(false) };
    assert!(matches!(plan.next(0, &seen, true), MoveStep::Copy { .. }), "it is not decided yet");
    seen.standing[1] = DonorStanding::Out;
    assert_eq!(plan.next(0, &seen, true), MoveStep::Stop(MoveStop::OtherLost(1)));
    seen.standing = vec![DonorStanding::Out, WELL];
    assert_eq!(plan.next(0, &seen, true), MoveStep::Stop(MoveStop::Left));
    plan.switched();
    assert_eq!(plan.next(0, &seen, true), MoveStep::Stop(MoveStop::TakerLost));
    seen.standing = vec![WELL; 2];
    assert_eq!(plan.next(0, &seen, true), MoveStep::Empty);
}

/// A mover that copies donor 0 of two, after all its parts but the last.
fn mover() -> Mover<()> {
    let (mut mover, donors) = (Mover::new(2), seen(false));
    mover.begin(MovePlan::new(0, 3 * PART_BYTES, PART_BYTES, 0), false, ());
    assert_eq!(mover.prepared(&donors), Some(PreparationResult::Copies));
    for part in 0..2 {
        copy(&mut mover, part);
    }
    mover
}

fn copy(mover: &mut Mover<()>, part: u64) {
    assert!(matches!(mover.next(0, &seen(false)), MoveStep::Copy { part: next, .. } if next == part), "part {part}");
    mover.copied(mover.number(), part, true);
}

fn write(offset: u64, bytes: usize) -> DonorRequest {
    DonorRequest::Write { offset, data: vec![1; bytes].into(), force: false }
}

/// A part that is copied while the write is in progress still counts as different.
#[test]
fn written_parts_differ_until_recopied() {
    let ends: [fn(&mut Mover<()>); 2] = [|mover| mover.answered(0, 7), |mover| mover.lost(0)];
    for end in ends {
        let mut mover = mover();
        assert!(!mover.may_differ(0) && !mover.may_differ(1) && mover.may_differ(2));
        assert!(mover.send(0, 7, write(PART_BYTES - 1, 2), true).is_some());
        copy(&mut mover, 0);
        copy(&mut mover, 1);
        assert!(mover.may_differ(0) && mover.may_differ(1), "it may be done after they were read");
        end(&mut mover);
        copy(&mut mover, 0);
        copy(&mut mover, 1);
        assert!(!mover.may_differ(0) && !mover.may_differ(1));
    }
}

#[test]
fn only_moved_donor_changes_count() {
    let mut mover = mover();
    assert!(mover.send(1, 7, write(0, 8), true).is_some());
    assert!(mover.send(0, 8, DonorRequest::Read { offset: 0, bytes: 8 }, true).is_some());
    mover.answered(1, 7);
    mover.answered(0, 8);
    assert!(mover.send(0, 9, write(0, 0), false).is_none(), "there is no connection");
    mover.lost(1);
    assert!(!mover.may_differ(0));
}

/// Requests kept during a pause are sent after it, or dropped if the connection is lost.
#[test]
fn paused_requests_are_sent_later() {
    for is_lost in [false, true] {
        let (mut mover, mut donors) = (mover(), seen(true));
        assert!(mover.send(0, 7, write(0, 8), true).is_some());
        assert!(matches!(mover.next(PAUSE_EVERY_US, &donors), MoveStep::Wait));
        assert!(mover.moving().is_some_and(|moving| moving.plan().is_paused()));
        assert!(mover.send(0, 8, write(8, 8), true).is_none());
        if is_lost {
            mover.lost(0);
        }
        donors.may_replace = false;
        assert_eq!(mover.next(PAUSE_EVERY_US + 1, &donors), MoveStep::GoOn);
        let kept: Vec<RequestId> = mover.take_kept().into_iter().map(|(request, _)| request).collect();
        assert_eq!(kept, if is_lost { vec![] } else { vec![8] });
        assert!(mover.end(false).is_some_and(|ended| ended.kept.is_empty() && ended.stage == MoveStage::Copying));
    }
}

#[test]
fn events_of_earlier_move_are_ignored() {
    let mut mover = mover();
    let earlier = mover.number();
    assert!(mover.is_present(earlier));
    assert!(mover.end(false).is_some());
    assert!(!mover.is_present(mover.number()), "there is none");
    mover.begin(MovePlan::new(0, PART_BYTES, PART_BYTES, 0), false, ());
    assert_eq!(mover.prepared(&seen(false)), Some(PreparationResult::Copies));
    assert!(matches!(mover.next(0, &seen(false)), MoveStep::Copy { part: 0, .. }));
    mover.copied(earlier, 0, true);
    assert!(mover.may_differ(0) && !mover.is_present(earlier));
    mover.copied(mover.number(), 0, true);
    assert!(!mover.may_differ(0));
}

#[test]
fn move_needs_whole_other_donors() {
    let mut donors = seen(true);
    let check = |mover: &Mover<()>, donors: &MoveTestDonors, is_connected: bool| mover.check(0, donors, is_connected);
    let free = Mover::new(2);
    assert_eq!((check(&free, &donors, true), check(&free, &donors, false)), (Ok(false), Err(NotNow::Silent)));
    assert_eq!(check(&mover(), &donors, true), Err(NotNow::Moving(0)));
    donors.standing[0] = DonorStanding::Out;
    assert_eq!(check(&free, &donors, false), Ok(true));
    donors.standing[0] = DonorStanding::Rebuilding;
    assert_eq!(check(&free, &donors, true), Err(NotNow::Unsettled));
    donors.standing[1] = DonorStanding::Out;
    assert_eq!(check(&free, &donors, true), Err(NotNow::NotWhole(1)));
}

#[test]
fn returned_donor_ends_its_move() {
    for (standing, follows) in
        [(DonorStanding::Out, PreparationResult::TakesPlace), (DonorStanding::Trusted, PreparationResult::IsBack)]
    {
        let mut donors = seen(true);
        donors.standing[0] = standing;
        let mut mover = Mover::new(2);
        mover.begin(MovePlan::new(0, PART_BYTES, PART_BYTES, 0), true, ());
        assert_eq!(mover.prepared(&donors), Some(follows));
    }
}
