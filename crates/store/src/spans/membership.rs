//! What spans remember of who was there, and what a span may be believed that was away.
//!
//! Owns: the comparison of memberships. Promises: a span that missed a purge or a put of one of its keys is not believed,
//! in whatever order spans go and come back. Leaves to others: reading and writing of them (`recovery`, `writer`).
//!
//! A change is in force once all whom it names have it. So it was not where one of them has gone on from the change before to another;
//! and there may be a later one, unless all whom it names are seen.

use crate::recovery::Membership;

/// The last change of all, by what those remember that are seen (by number of the span); `None` where it cannot be known.
pub(super) fn latest(seen: &[Option<Membership>]) -> Option<Membership> {
    let mut candidates: Vec<Membership> = seen.iter().flatten().copied().filter(|own| own.number > 0).collect();
    candidates.sort_unstable_by_key(|own| std::cmp::Reverse(own.number));
    let is_possible = |latest: &Membership| {
        let named = seen.iter().enumerate().filter(|(span, _)| latest.present >> span & 1 == 1);
        named.flat_map(|(_, own)| own).all(|own| own.id == latest.id || own.id == latest.before || own.number == 0)
    };
    let latest = candidates.into_iter().find(is_possible)?;
    let are_seen = (0..u64::BITS as usize)
        .filter(|span| latest.present >> span & 1 == 1)
        .all(|span| seen.get(span).is_some_and(Option::is_some));
    are_seen.then_some(latest)
}

/// Whether the span of a number missed nothing, by what it remembers itself and the last change of all.
///
/// It may remember the change before and be named by the last: that was not in force yet when all ended, so nothing had been done that it
/// missed. Who knows no change at all was made and never used, or has lost what it knew.
pub(super) fn believed(span: u32, own: Membership, latest: &Membership) -> bool {
    own.number > 0 && (own.id == latest.id || own.id == latest.before && latest.present >> span & 1 == 1)
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
        let is_believed = |&span: &usize| seen[span].is_some_and(|own| believed(span as u32, own, &latest));
        Some((0..seen.len()).filter(is_believed).collect())
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
}
