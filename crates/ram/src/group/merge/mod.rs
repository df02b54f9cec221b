//! The conclusion that an attaching client draws from the donors' records.
//!
//! Owns: this rule. Promises: every acknowledged write is on all trusted donors that hold its blocks, unless more
//! donors lost their memory than the policy tolerates.
//!
//! Reason: before a client acknowledges anything that a donor lacks, it stores a view without this donor on all others.
//! With more than two donors, at most one may be missing, so at least one of the donors that stored the view is
//! present. With two donors, the one that is present must have stored that view itself, or the user must confirm. A
//! view that only some donors stored is adopted: nothing was acknowledged under it yet, and the donor that it excludes
//! has nothing that the others lack. Without redundancy every donor has the only copy of its blocks, so all must be
//! present.

use super::error::AttachRefusal;
use crate::format::{DonorRecord, MemberState, MembershipView};
use crate::planted::{MirrorBug, planted};

/// The content found on a donor.
#[derive(Debug, Clone, Copy)]
pub enum DonorContent<'a> {
    /// The donor did not answer.
    Missing,
    /// The donor has no record of the device, so its memory does not belong to the device.
    Empty,
    /// The donor has a record.
    Record {
        /// The record.
        record: &'a DonorRecord,
        /// The donor's present incarnation.
        incarnation: u64,
    },
}

/// The conclusion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedView {
    /// The newest view.
    pub view: MembershipView,
    /// Whether each donor's data is trusted, by position.
    pub trusted: Vec<bool>,
    /// Whether an earlier client may still get answers from a missing donor that the view does not exclude.
    pub may_be_read_elsewhere: bool,
}

/// Draws the conclusion; `found[i]` is the content found on donor `i`.
///
/// *Errors*: [`AttachRefusal::Empty`], [`AttachRefusal::Incomplete`], [`AttachRefusal::TooFew`], [`AttachRefusal::CannotSettle`].
pub fn merge(found: &[DonorContent<'_>], trust_remaining: bool) -> Result<MergedView, AttachRefusal> {
    let record = |position: usize| match found[position] {
        DonorContent::Record { record, incarnation } => {
            let member = record.view.members.get(position)?;
            (member.incarnation == incarnation && record.view.members.len() == found.len()).then_some((record, member))
        }
        _ => None,
    };
    let records = || (0..found.len()).filter_map(record);
    let newest = records().filter(|(record, _)| record.is_ready).max_by_key(|(record, _)| record.view.number());
    let missing = |trusted: &[bool]| (0..found.len()).filter(|&position| !trusted[position]).collect::<Vec<_>>();
    let losses_max = records().next().map_or(1, |(record, _)| record.geometry.losses_max());
    let losses_max = if planted(MirrorBug::MissingBelieved) { 1 } else { losses_max };
    let needed = found.len().saturating_sub(losses_max).max(1);
    let Some((newest, _)) = newest else {
        let found_records = records().count();
        let is_all = !found.iter().any(|found| matches!(found, DonorContent::Missing));
        return Err(match (found_records, is_all) {
            (0, true) => AttachRefusal::Empty,
            (_, true) => AttachRefusal::Incomplete,
            _ => {
                let there = (0..found.len()).map(|position| record(position).is_some()).collect::<Vec<_>>();
                AttachRefusal::TooFew { needed, found: found_records, missing: missing(&there) }
            }
        });
    };
    let view = newest.view.clone();
    let is_trusted = |position: usize| {
        let member = &view.members[position];
        let own = record(position).map(|(_, own)| own);
        member.state == MemberState::Present
            && own.is_some_and(|own| own.joined == member.joined && own.incarnation == member.incarnation)
    };
    let trusted: Vec<bool> = (0..found.len()).map(is_trusted).collect();
    let count = trusted.iter().filter(|trusted| **trusted).count();
    if count < needed {
        return Err(AttachRefusal::TooFew { needed, found: count, missing: missing(&trusted) });
    }
    let gone = trusted.iter().position(|trusted| !trusted);
    if let (2, Some(gone)) = (found.len(), gone)
        && view.members[gone].state == MemberState::Present
        && !trust_remaining
    {
        return Err(AttachRefusal::CannotSettle { present: 1 - gone, missing: gone });
    }
    // One that is empty, or has an older identity, may have been replaced by a donor that was not looked at.
    let is_elsewhere = |gone: usize| match view.members[gone].state {
        MemberState::Left => false,
        MemberState::Present => true,
        MemberState::Rebuilding => matches!(found[gone], DonorContent::Missing),
    };
    Ok(MergedView { may_be_read_elsewhere: gone.is_some_and(is_elsewhere), view, trusted })
}

#[cfg(test)]
mod tests;
