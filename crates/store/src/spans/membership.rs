//! What spans remember of who was there, and what a span may be believed that was away.
//!
//! Owns: the comparison of memberships. Promises: a span that missed a purge or a put of one of its keys is not believed,
//! in whatever order spans go and come back. Leaves to others: reading and writing of them (`recovery`, `writer`).
//!
//! A change is in force once all whom it names have it; each names the last one before it that was. One that a crash ended was not
//! in force where somebody whom it names has not come as far; then nothing was done under it, and the next change names the same one before.

use crate::recovery::Membership;

/// The last change of all, by what those remember that are seen (by number of the span); `None` where it cannot be known.
///
/// All whom it names have to be seen, and to have it, or the one before it, or another that came to nothing. Who is not seen may have
/// gone on alone.
pub(super) fn latest(seen: &[Option<Membership>]) -> Option<Membership> {
    let mut candidates: Vec<Membership> = seen.iter().flatten().copied().filter(|own| own.number > 0).collect();
    candidates.sort_unstable_by_key(|own| std::cmp::Reverse(own.number));
    candidates.into_iter().find(|latest| {
        let are_with_it = named(latest).all(|span| match seen.get(span) {
            Some(Some(own)) => own.number == 0 || is_with(own, seen, latest),
            _ => false,
        });
        are_with_it && !has_rival(latest, seen)
    })
}

/// Whether the span of a number missed nothing, by what those remember that are seen and the last change of all.
///
/// Who knows no change at all was made and never used, or has lost what it knew.
pub(super) fn believed(span: usize, seen: &[Option<Membership>], latest: &Membership) -> bool {
    let Some(Some(own)) = seen.get(span) else { return false };
    own.number > 0 && latest.present >> span & 1 == 1 && is_with(own, seen, latest)
}

/// The identity of the last change that was in force, where `latest` is the last of all.
pub(super) fn last_in_force(seen: &[Option<Membership>], latest: &Membership) -> u64 {
    let have_it = named(latest).all(|span| seen.get(span).copied().flatten().is_some_and(|own| own.id == latest.id));
    if have_it { latest.id } else { latest.before }
}

/// Whether what a span remembers is a change, the one before it, or another after that one which came to nothing.
fn is_with(own: &Membership, seen: &[Option<Membership>], latest: &Membership) -> bool {
    own.id == latest.id || own.id == latest.before || own.before == latest.before && came_to_nothing(own, seen)
}

/// Whether a change was never in force: somebody whom it names has not come as far.
fn came_to_nothing(change: &Membership, seen: &[Option<Membership>]) -> bool {
    named(change).filter_map(|span| seen.get(span).copied().flatten()).any(|own| own.number < change.number)
}

/// Whether another change after the same one was in force, or may have been.
fn has_rival(latest: &Membership, seen: &[Option<Membership>]) -> bool {
    seen.iter().flatten().any(|other| {
        other.id != latest.id && other.before == latest.before && other.number > 0 && !came_to_nothing(other, seen)
    })
}

/// The numbers of the spans that a change names.
fn named(change: &Membership) -> impl Iterator<Item = usize> + use<> {
    let present = change.present;
    (0..u64::BITS as usize).filter(move |span| present >> span & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Change `id` after `before`, which names the spans in `present`.
    fn knows(number: u64, before: u64, id: u64, present: u64) -> Option<Membership> {
        Some(Membership { number, id, before, since: 0, present })
    }

    fn who(seen: &[Option<Membership>]) -> Option<Vec<usize>> {
        let latest = latest(seen)?;
        Some((0..seen.len()).filter(|span| believed(*span, seen, &latest)).collect())
    }

    #[test]
    fn who_knows_the_last_change_or_is_named_by_it_is_believed() {
        let all = knows(4, 30, 40, 0b111);
        let without_1 = knows(5, 40, 50, 0b101);
        assert_eq!(who(&[all, all, all]), Some(vec![0, 1, 2]));
        assert_eq!(who(&[without_1, all, without_1]), Some(vec![0, 2]), "1 was away");
        assert_eq!(who(&[without_1, None, without_1]), Some(vec![0, 2]), "1 is still away");
        assert_eq!(who(&[without_1, all, all]), Some(vec![0, 2]), "2 is named, and nothing was done before it knew");
        assert_eq!(who(&[without_1, all, knows(0, 0, 0, 0)]), Some(vec![0]), "2 has lost what it knew");
    }

    #[test]
    fn where_somebody_may_have_gone_on_alone_nobody_is_believed() {
        let all = knows(4, 30, 40, 0b111);
        assert_eq!(who(&[all, None, all]), None, "1 may have lost the others and gone on");
        assert_eq!(who(&[None, knows(4, 30, 40, 0b111), None]), None);
        assert_eq!(who(&[knows(5, 40, 50, 0b001), None, None]), Some(vec![0]), "it lost the others itself");
        assert_eq!(who(&[None, None, None]), None);
    }

    #[test]
    fn a_change_that_was_never_in_force_does_not_hide_one_that_was() {
        // 0 came back, and all ended before 1 and 2 had flushed that. They went on without it, and 1 lost 2.
        let seen = [knows(6, 50, 60, 0b111), knows(6, 50, 61, 0b010), knows(5, 40, 50, 0b110)];
        assert_eq!(who(&seen), Some(vec![1]));
    }

    #[test]
    fn crashes_in_a_row_while_a_span_comes_back_lose_nothing() {
        // Two changes after 5 came to nothing, as 1 had neither; 0 is empty since the first.
        let seen = [knows(7, 50, 70, 0b111), knows(5, 40, 50, 0b110), knows(6, 50, 60, 0b111)];
        assert_eq!(who(&seen), Some(vec![0, 1, 2]));
        assert_eq!(last_in_force(&seen, &latest(&seen).expect("known")), 50);
        // Here 1 went on alone after 5, and a change of number 7 came to nothing before that.
        let seen = [knows(7, 50, 70, 0b111), knows(6, 50, 61, 0b010), knows(5, 40, 50, 0b110)];
        assert_eq!(who(&seen), Some(vec![1]));
    }
}
