//! A switch that the end of the client has cut short.
//!
//! A donor that takes a place is used only when all others have stored the view that names it. A client that ends in
//! between leaves a view whose new donor has no valid record: it has the copy of the former one's. Both have everything:
//! the former one was not changed after the view was decided, and the other one not before it is used. So the other
//! one may get the record that it lacks. First the former one gets a stamp of the attaching client, so that the earlier
//! client cannot go on with it.

use crate::format::{DonorRecord, MemberState, RecordStamp};
use crate::planted::{MirrorBug, planted};

/// The record of a donor, and what the donor calls itself now.
#[derive(Debug, Clone, Copy)]
pub struct RecordHolder<'a> {
    /// The record.
    pub record: &'a DonorRecord,
    /// The present incarnation.
    pub incarnation: u64,
}

/// Returns the records of the former donor and of the other one that finish the switch, if these two are what such a
/// switch has left. `newest` is the newest record of all, `client` the attaching client.
pub fn unfinished(
    newest: &DonorRecord,
    former: RecordHolder<'_>,
    other: RecordHolder<'_>,
    client: u64,
) -> Option<(DonorRecord, DonorRecord)> {
    let position = other.record.position;
    let named = newest.view.members.get(usize::from(position))?;
    let is_named = named.incarnation == other.incarnation && named.state == MemberState::Present;
    let is_same = former.record.position == position
        && former.record.geometry == newest.geometry
        && other.record.geometry == newest.geometry
        && former.record.view.members.len() == newest.view.members.len();
    // What an earlier move of the place has left is not what was copied.
    let was_copied = other.record.view.members.get(usize::from(position))?.incarnation == former.incarnation;
    let has_stopped = former.record.is_of(former.incarnation) && former.record.view.number() < newest.view.number();
    let is_copy = !other.record.is_of(other.incarnation) && other.record.view.number() < newest.view.number();
    if !is_named
        || !is_same
        || !was_copied && !planted(MirrorBug::EarlierCopyUsed)
        || !has_stopped && !planted(MirrorBug::FormerHasGoneOn)
        || !is_copy
        || !newest.is_ready
        || planted(MirrorBug::SwitchUnfinished)
    {
        return None;
    }
    let stamp = |before: RecordStamp| RecordStamp { client, revision: before.next_revision(), ..before };
    let fenced = DonorRecord { stamp: stamp(former.record.stamp), ..former.record.clone() };
    let finished = DonorRecord {
        stamp: stamp(other.record.stamp),
        view: newest.view.clone(),
        // The copy of the marks is older than the last parts.
        dirty: former.record.dirty.clone(),
        ..other.record.clone()
    };
    Some((fenced, finished))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{MembershipView, RecordGeometry, RedundancyCode, StripeSet, ViewMember};

    fn record(epoch: u64, place: ViewMember, dirty: u64) -> DonorRecord {
        let geometry = RecordGeometry {
            device: [7; 16],
            bytes: 8 << 20,
            block_bytes: 4096,
            stripe_bytes: 1 << 20,
            members: 3,
            code: RedundancyCode::Mirror,
        };
        let member = |incarnation: u64| ViewMember { incarnation, joined: 1, state: MemberState::Present };
        let mut marks = StripeSet::none(geometry.stripes());
        marks.set(dirty, true);
        DonorRecord {
            stamp: RecordStamp { generation: 4, client: 9, revision: epoch },
            geometry,
            position: 1,
            is_ready: true,
            view: MembershipView { generation: 4, epoch, members: vec![member(10), place, member(12)] },
            dirty: marks,
        }
    }

    #[test]
    fn interrupted_switch_is_finished() {
        let place = |incarnation: u64, joined: u64| ViewMember { incarnation, joined, state: MemberState::Present };
        let (former, copy) = (record(5, place(11, 1), 3), record(4, place(11, 1), 2));
        let newest = record(6, place(20, 6), 1);
        let found = |record, incarnation| RecordHolder { record, incarnation };
        let (fenced, finished) = unfinished(&newest, found(&former, 11), found(&copy, 20), 77).unwrap();
        assert_eq!((fenced.stamp.client, fenced.stamp.revision, fenced.view.epoch), (77, 6, 5));
        assert_eq!((finished.stamp.client, finished.view.epoch, finished.position), (77, 6, 1));
        assert!(finished.dirty.has(3) && !finished.dirty.has(2), "the marks at the switch");
        // One that had the place before the former one, and could not be emptied.
        let earlier = record(3, place(8, 1), 0);
        assert_eq!(unfinished(&newest, found(&earlier, 8), found(&copy, 20), 77), None);
        // The former one has gone on; it was started again; the other one was, or has been used already.
        let on = record(7, place(11, 1), 3);
        for (former, was, copy, is) in
            [(&on, 11, &copy, 20), (&former, 99, &copy, 20), (&former, 11, &copy, 99), (&former, 11, &newest, 20)]
        {
            assert_eq!(unfinished(&newest, found(former, was), found(copy, is), 77), None);
        }
        assert_eq!(unfinished(&on, found(&former, 11), found(&copy, 20), 77), None, "it was reverted");
    }
}
