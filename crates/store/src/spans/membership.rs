//! The memberships that spans record (which spans were present), and whether a returning span may be trusted.
//!
//! Owns: the comparison of memberships. Promises: a span that missed a purge, or a put of one of its keys, is not
//! trusted, in whatever order spans are lost and return. Leaves to others: reading memberships (`recover`) and writing
//! them (`write/closing.rs`).
//!
//! A change of the membership is committed when all spans that it names have recorded it. Each change names the last
//! committed change before it. If a crash interrupts a change before all spans that it names have recorded it, the
//! change was not committed. Then nothing was done under it, and the next change names the same predecessor. Each open
//! makes two changes before it serves. So a span that has recorded neither of them is a copy from before that open, and
//! its objects may have been purged or replaced since. A copy from after that open is recognised by its purges
//! (`open`).

use crate::recover::SpanMembership;

/// Finds the last change of all spans, from the memberships of the present spans; `None` if it cannot be known. `seen`
/// is indexed by the number of the span.
///
/// All spans that the change names must be present. Each of them must have recorded this change, the change before it,
/// or a change that was never committed; or the span must be an older copy. The reason is that an absent span may have
/// served without the others.
pub(super) fn latest(seen: &[Option<SpanMembership>]) -> Option<SpanMembership> {
    let mut candidates: Vec<SpanMembership> = seen.iter().flatten().copied().filter(|own| own.number > 0).collect();
    candidates.sort_unstable_by_key(|own| std::cmp::Reverse(own.number));
    candidates.into_iter().find(|latest| {
        let are_with_it = named(latest).all(|span| match seen.get(span) {
            Some(Some(own)) => own.number == 0 || is_with(own, seen, latest) || is_older_copy(own, latest),
            _ => false,
        });
        are_with_it && !has_rival(latest, seen)
    })
}

/// Whether a span missed nothing, judged by the memberships of the present spans and the last change of all spans.
///
/// A span that has recorded no change was created and never used, or has lost its state: it is not trusted.
pub(super) fn believed(span: usize, seen: &[Option<SpanMembership>], latest: &SpanMembership) -> bool {
    let Some(Some(own)) = seen.get(span) else { return false };
    own.number > 0 && latest.present >> span & 1 == 1 && is_with(own, seen, latest)
}

/// The number and the identity of the last committed change; `latest` is the last change of all spans.
pub(super) fn last_in_force(seen: &[Option<SpanMembership>], latest: &SpanMembership) -> (u64, u64) {
    let has_it = |own: SpanMembership| own.id == latest.id || is_older_copy(&own, latest);
    let have_it = named(latest).all(|span| seen.get(span).copied().flatten().is_some_and(has_it));
    if have_it { (latest.number, latest.id) } else { (latest.before_number, latest.before) }
}

/// Whether a span that a change names is an older copy: the change before this one was committed, so the span once had
/// recorded that change, but its membership now is older. (The span may also have been absent at that change; it is not
/// trusted in either case.)
fn is_older_copy(own: &SpanMembership, latest: &SpanMembership) -> bool {
    own.number < latest.before_number
}

/// Whether a span's last change is `latest`, the change before it, or a later one that was never committed.
fn is_with(own: &SpanMembership, seen: &[Option<SpanMembership>], latest: &SpanMembership) -> bool {
    own.id == latest.id || own.id == latest.before || own.before == latest.before && came_to_nothing(own, seen)
}

/// Whether a change was never committed: a span that it names has not recorded it.
fn came_to_nothing(change: &SpanMembership, seen: &[Option<SpanMembership>]) -> bool {
    named(change).filter_map(|span| seen.get(span).copied().flatten()).any(|own| own.number < change.number)
}

/// Whether another change with the same predecessor was, or may have been, committed.
fn has_rival(latest: &SpanMembership, seen: &[Option<SpanMembership>]) -> bool {
    seen.iter().flatten().any(|other| {
        other.id != latest.id && other.before == latest.before && other.number > 0 && !came_to_nothing(other, seen)
    })
}

/// The numbers of the spans that a change names.
fn named(change: &SpanMembership) -> impl Iterator<Item = usize> + use<> {
    let present = change.present;
    (0..u64::BITS as usize).filter(move |span| present >> span & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the change `id`, which follows the change `before` and names the spans in `present`.
    fn knows(number: u64, before: u64, id: u64, present: u64) -> Option<SpanMembership> {
        Some(SpanMembership { number, id, before, before_number: 0, since: 0, present })
    }

    /// Makes a change that also has the number of the change before it.
    fn follows(number: u64, before_number: u64, present: u64) -> Option<SpanMembership> {
        let id = |number| number * 10;
        Some(SpanMembership { number, id: id(number), before: id(before_number), before_number, since: 0, present })
    }

    fn who(seen: &[Option<SpanMembership>]) -> Option<Vec<usize>> {
        let latest = latest(seen)?;
        Some((0..seen.len()).filter(|span| believed(*span, seen, &latest)).collect())
    }

    /// A span that knows the last change, or is named by it, is believed.
    #[test]
    fn last_change_decides_membership() {
        let all = knows(4, 30, 40, 0b111);
        let without_1 = knows(5, 40, 50, 0b101);
        assert_eq!(who(&[all, all, all]), Some(vec![0, 1, 2]));
        assert_eq!(who(&[without_1, all, without_1]), Some(vec![0, 2]), "1 was away");
        assert_eq!(who(&[without_1, None, without_1]), Some(vec![0, 2]), "1 is still away");
        assert_eq!(who(&[without_1, all, all]), Some(vec![0, 2]), "2 is named, and nothing was done before it knew");
        assert_eq!(who(&[without_1, all, knows(0, 0, 0, 0)]), Some(vec![0]), "2 has lost what it knew");
    }

    /// A span restored from before the last open is rejected and does not hide the others.
    #[test]
    fn older_span_copy_is_rejected() {
        // Each open makes two changes: the open before the last made changes 5 and 6, and the last open made changes 7
        // and 8.
        let (now, half_way) = (follows(8, 7, 0b111), follows(7, 6, 0b111));
        assert_eq!(who(&[now, follows(6, 5, 0b111), now]), Some(vec![0, 2]), "1 is of the open before");
        assert_eq!(who(&[now, follows(2, 1, 0b111), now]), Some(vec![0, 2]), "1 is of long ago");
        assert_eq!(who(&[now, half_way, now]), Some(vec![0, 1, 2]), "nothing was done before all had both");
        assert_eq!(
            who(&[half_way, follows(6, 5, 0b111), half_way]),
            Some(vec![0, 1, 2]),
            "an open that ended half way"
        );
        assert_eq!(who(&[half_way, follows(5, 4, 0b111), half_way]), Some(vec![0, 2]), "the same, and 1 is older");
        assert_eq!(last_in_force(&[now, follows(6, 5, 0b111), now], &now.expect("some")), (8, 80));
        assert_eq!(last_in_force(&[now, half_way, now], &now.expect("some")), (7, 70));
        // Span 1 served without the others after they were lost, so span 1 is newer than the others.
        let alone = follows(9, 8, 0b010);
        assert_eq!(who(&[now, alone, now]), Some(vec![1]));
        assert_eq!(who(&[now, None, follows(6, 5, 0b111)]), None, "1 may still have gone on alone");
    }

    /// Where a span may have continued alone, no span is believed.
    #[test]
    fn possible_split_believes_nobody() {
        let all = knows(4, 30, 40, 0b111);
        assert_eq!(who(&[all, None, all]), None, "1 may have lost the others and gone on");
        assert_eq!(who(&[None, knows(4, 30, 40, 0b111), None]), None);
        assert_eq!(who(&[knows(5, 40, 50, 0b001), None, None]), Some(vec![0]), "it lost the others itself");
        assert_eq!(who(&[None, None, None]), None);
    }

    #[test]
    fn uncommitted_change_hides_nothing() {
        // Span 0 returned, and the store ended before spans 1 and 2 had flushed that change. They continued without
        // span 0, and then span 1 lost span 2.
        let seen = [knows(6, 50, 60, 0b111), knows(6, 50, 61, 0b010), knows(5, 40, 50, 0b110)];
        assert_eq!(who(&seen), Some(vec![1]));
    }

    /// Several crashes while a span comes back lose nothing.
    #[test]
    fn crashes_during_return_lose_nothing() {
        // Two changes after change 5 were never committed, because span 1 recorded neither. Span 0 has been empty since
        // the first of them.
        let seen = [knows(7, 50, 70, 0b111), knows(5, 40, 50, 0b110), knows(6, 50, 60, 0b111)];
        assert_eq!(who(&seen), Some(vec![0, 1, 2]));
        assert_eq!(last_in_force(&seen, &latest(&seen).expect("known")).1, 50);
        // Here span 1 made a change 6 that names only span 1, and served without the others. Change 7, which span 0
        // recorded, was never committed.
        let seen = [knows(7, 50, 70, 0b111), knows(6, 50, 61, 0b010), knows(5, 40, 50, 0b110)];
        assert_eq!(who(&seen), Some(vec![1]));
    }
}
