//! What an attacher concludes from the records that it finds.
//!
//! Owns: the rule. Promises: if it names the donors whose data are believed, then each write that was ever acknowledged
//! is on all of them that hold its blocks, as long as no more donors lost their memory than the policy tolerates.
//!
//! Why: a client stores a view without a donor on all other donors before it acknowledges anything that this donor
//! lacks. Of more than two donors all but one have to be there, so one of those that were told is among them; of two,
//! the one that is there must itself have been told, or the user must know. A view that was stored only on some donors
//! is taken over: nothing was acknowledged by it yet, and it only leaves a donor that others can replace.

use super::error::Refusal;
use crate::format::{MemberState, Record, View};

/// What was found on a donor.
#[derive(Debug, Clone, Copy)]
pub enum Found<'a> {
    /// It did not answer.
    Missing,
    /// It has no record of the device: its memory is not that of a donor of the device.
    Empty,
    /// It has a record.
    Record {
        /// The record.
        record: &'a Record,
        /// What the donor calls itself.
        incarnation: u64,
    },
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// The newest view.
    pub view: View,
    /// Which donors' data are believed, by position.
    pub trusted: Vec<bool>,
    /// Whether a client of before may still get answers from a donor that is not there: a present one, or one that is
    /// being filled.
    pub may_be_read_elsewhere: bool,
}

/// Concludes from what was found, by position.
///
/// *Errors*: [`Refusal::Empty`], [`Refusal::Incomplete`], [`Refusal::TooFew`], [`Refusal::CannotSettle`].
pub fn merge(found: &[Found<'_>], trust_remaining: bool) -> Result<Merged, Refusal> {
    let record = |position: usize| match found[position] {
        Found::Record { record, incarnation } => {
            let member = record.view.members.get(position)?;
            (member.incarnation == incarnation && record.view.members.len() == found.len()).then_some((record, member))
        }
        _ => None,
    };
    let records = || (0..found.len()).filter_map(record);
    let newest = records().filter(|(record, _)| record.is_ready).max_by_key(|(record, _)| record.view.number());
    let missing = |trusted: &[bool]| (0..found.len()).filter(|&position| !trusted[position]).collect::<Vec<_>>();
    let needed = found.len() - 1;
    let Some((newest, _)) = newest else {
        let found_records = records().count();
        let is_all = !found.iter().any(|found| matches!(found, Found::Missing));
        return Err(match (found_records, is_all) {
            (0, true) => Refusal::Empty,
            (_, true) => Refusal::Incomplete,
            _ => {
                let there = (0..found.len()).map(|position| record(position).is_some()).collect::<Vec<_>>();
                Refusal::TooFew { needed, found: found_records, missing: missing(&there) }
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
        return Err(Refusal::TooFew { needed, found: count, missing: missing(&trusted) });
    }
    let gone = trusted.iter().position(|trusted| !trusted);
    if let (2, Some(gone)) = (found.len(), gone)
        && view.members[gone].state == MemberState::Present
        && !trust_remaining
    {
        return Err(Refusal::CannotSettle { present: 1 - gone, missing: gone });
    }
    // One that is empty, or has an older identity, may have been replaced by a donor that was not looked at.
    let is_elsewhere = |gone: usize| match view.members[gone].state {
        MemberState::Left => false,
        MemberState::Present => true,
        MemberState::Rebuilding => matches!(found[gone], Found::Missing),
    };
    Ok(Merged { may_be_read_elsewhere: gone.is_some_and(is_elsewhere), view, trusted })
}

#[cfg(test)]
#[path = "merge/tests.rs"]
mod tests;
