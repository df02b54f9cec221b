//! Tests of a move's steps with donors that exist only as their standing.

use super::*;
use crate::mirror::{DonorRequest, RequestId};

struct Donors {
    standing: Vec<Standing>,
    may_replace: bool,
    is_told: bool,
}

impl Members for Donors {
    fn standing(&self) -> &[Standing] {
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

const WELL: Standing = Standing::Trusted;

fn seen(may_replace: bool) -> Donors {
    Donors { standing: vec![WELL; 2], may_replace, is_told: true }
}

fn plan(bytes: u64) -> Plan {
    let mut plan = Plan::new(0, bytes, PART_BYTES, 0);
    plan.prepared();
    plan
}

#[test]
fn part_that_changes_while_copied_is_copied_again() {
    let mut plan = plan(40 * PART_BYTES - 8);
    let seen = seen(true);
    let mut copied = Vec::new();
    for now_us in (0..2_000_000).step_by(5000) {
        match plan.next(now_us, &seen, true) {
            Next::Copy { part, offset, bytes } => {
                assert_eq!(bytes, if part == 39 { PART_BYTES - 8 } else { PART_BYTES });
                if copied.len() == 5 {
                    plan.touch(offset + 7, 1);
                    plan.touch(40 * PART_BYTES, 99);
                }
                copied.push(part);
                plan.copied(part, copied.len() != 9);
            }
            Next::Switch => break,
            Next::Wait | Next::GoOn => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(plan.is_paused() && copied.len() == 42, "{copied:?}");
    assert_eq!(plan.progress(), (40 * PART_BYTES - 8, 40 * PART_BYTES - 8));
    copied.sort_unstable();
    copied.dedup();
    assert_eq!(copied, (0..40).collect::<Vec<_>>());
}

#[test]
fn unwell_donors_and_requests_hold_the_switch_up() {
    let mut plan = plan(PART_BYTES);
    let mut seen = seen(false);
    let at = PAUSE_EVERY_US;
    assert_eq!(plan.next(at, &seen, false), Next::Copy { part: 0, offset: 0, bytes: PART_BYTES });
    plan.copied(0, true);
    assert!(plan.next(at, &seen, true) == Next::Wait && !plan.is_paused());
    seen.may_replace = true;
    assert!(plan.next(at, &seen, false) == Next::Wait && plan.is_paused());
    seen.may_replace = false;
    assert!(plan.next(at + 1, &seen, true) == Next::GoOn && !plan.is_paused());
    seen.may_replace = true;
    assert_eq!(plan.next(2 * at + 1, &seen, true), Next::Switch);
}

#[test]
fn part_under_way_holds_the_switch_up() {
    let (mut plan, seen, at) = (plan(PART_BYTES), seen(true), PAUSE_EVERY_US);
    assert!(matches!(plan.next(at, &seen, true), Next::Copy { part: 0, .. }) && plan.is_paused());
    assert_eq!(plan.next(at, &seen, true), Next::Wait);
    plan.copied(0, false);
    assert!(matches!(plan.next(at, &seen, true), Next::Copy { part: 0, .. }));
    plan.copied(0, true);
    assert_eq!(plan.next(at, &seen, true), Next::Switch);
}

#[test]
fn former_donor_is_emptied_last() {
    let (mut plan, mut seen) = (plan(PART_BYTES), Donors { is_told: false, ..seen(false) });
    plan.switched();
    assert_eq!(plan.next(0, &seen, true), Next::Wait);
    seen.is_told = true;
    assert_eq!(plan.next(0, &seen, true), Next::Empty);
}

#[test]
fn lost_donor_ends_the_move_of_another() {
    let mut plan = plan(PART_BYTES);
    let mut seen = Donors { standing: vec![WELL, Standing::Leaving], ..seen(false) };
    assert!(matches!(plan.next(0, &seen, true), Next::Copy { .. }), "it is not decided yet");
    seen.standing[1] = Standing::Out;
    assert_eq!(plan.next(0, &seen, true), Next::Stop(Stop::OtherLost(1)));
    seen.standing = vec![Standing::Out, WELL];
    assert_eq!(plan.next(0, &seen, true), Next::Stop(Stop::Left));
    plan.switched();
    assert_eq!(plan.next(0, &seen, true), Next::Stop(Stop::TakerLost));
    seen.standing = vec![WELL; 2];
    assert_eq!(plan.next(0, &seen, true), Next::Empty);
}

/// A mover that copies donor 0 of two, after all its parts but the last.
fn mover() -> Mover<()> {
    let (mut mover, donors) = (Mover::new(2), seen(false));
    mover.begin(Plan::new(0, 3 * PART_BYTES, PART_BYTES, 0), false, ());
    assert_eq!(mover.prepared(&donors), Some(Prepared::Copies));
    for part in 0..2 {
        copy(&mut mover, part);
    }
    mover
}

fn copy(mover: &mut Mover<()>, part: u64) {
    assert!(matches!(mover.next(0, &seen(false)), Next::Copy { part: next, .. } if next == part), "part {part}");
    mover.copied(mover.number(), part, true);
}

fn write(offset: u64, bytes: usize) -> DonorRequest {
    DonorRequest::Write { offset, data: vec![1; bytes].into(), force: false }
}

#[test]
fn write_makes_its_parts_differ_until_copied_after_its_end() {
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
fn only_changes_of_the_moved_donor_count() {
    let mut mover = mover();
    assert!(mover.send(1, 7, write(0, 8), true).is_some());
    assert!(mover.send(0, 8, DonorRequest::Read { offset: 0, bytes: 8 }, true).is_some());
    mover.answered(1, 7);
    mover.answered(0, 8);
    assert!(mover.send(0, 9, write(0, 0), false).is_none(), "there is no connection");
    mover.lost(1);
    assert!(!mover.may_differ(0));
}

#[test]
fn kept_requests_are_sent_after_the_pause_and_dropped_with_the_connection() {
    for is_lost in [false, true] {
        let (mut mover, mut donors) = (mover(), seen(true));
        assert!(mover.send(0, 7, write(0, 8), true).is_some());
        assert!(matches!(mover.next(PAUSE_EVERY_US, &donors), Next::Wait));
        assert!(mover.moving().is_some_and(|moving| moving.plan().is_paused()));
        assert!(mover.send(0, 8, write(8, 8), true).is_none());
        if is_lost {
            mover.lost(0);
        }
        donors.may_replace = false;
        assert_eq!(mover.next(PAUSE_EVERY_US + 1, &donors), Next::GoOn);
        let kept: Vec<RequestId> = mover.take_kept().into_iter().map(|(request, _)| request).collect();
        assert_eq!(kept, if is_lost { vec![] } else { vec![8] });
        assert!(mover.end(false).is_some_and(|ended| ended.kept.is_empty() && ended.stage == Stage::Copying));
    }
}

#[test]
fn what_belongs_to_an_earlier_move_is_too_late() {
    let mut mover = mover();
    let earlier = mover.number();
    assert!(mover.is_present(earlier));
    assert!(mover.end(false).is_some());
    assert!(!mover.is_present(mover.number()), "there is none");
    mover.begin(Plan::new(0, PART_BYTES, PART_BYTES, 0), false, ());
    assert_eq!(mover.prepared(&seen(false)), Some(Prepared::Copies));
    assert!(matches!(mover.next(0, &seen(false)), Next::Copy { part: 0, .. }));
    mover.copied(earlier, 0, true);
    assert!(mover.may_differ(0) && !mover.is_present(earlier));
    mover.copied(mover.number(), 0, true);
    assert!(!mover.may_differ(0));
}

#[test]
fn move_begins_only_where_the_others_are_whole() {
    let mut donors = seen(true);
    let check = |mover: &Mover<()>, donors: &Donors, is_connected: bool| mover.check(0, donors, is_connected);
    let free = Mover::new(2);
    assert_eq!((check(&free, &donors, true), check(&free, &donors, false)), (Ok(false), Err(NotNow::Silent)));
    assert_eq!(check(&mover(), &donors, true), Err(NotNow::Moving(0)));
    donors.standing[0] = Standing::Out;
    assert_eq!(check(&free, &donors, false), Ok(true));
    donors.standing[0] = Standing::Rebuilding;
    assert_eq!(check(&free, &donors, true), Err(NotNow::Unsettled));
    donors.standing[1] = Standing::Out;
    assert_eq!(check(&free, &donors, true), Err(NotNow::NotWhole(1)));
}

#[test]
fn left_donor_that_is_back_ends_the_move() {
    for (standing, follows) in [(Standing::Out, Prepared::TakesPlace), (Standing::Trusted, Prepared::IsBack)] {
        let mut donors = seen(true);
        donors.standing[0] = standing;
        let mut mover = Mover::new(2);
        mover.begin(Plan::new(0, PART_BYTES, PART_BYTES, 0), true, ());
        assert_eq!(mover.prepared(&donors), Some(follows));
    }
}
