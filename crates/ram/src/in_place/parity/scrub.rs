//! The scrub of parity: all members of every column are read, and their XOR has to be zero.
//!
//! Owns: the comparison, and which member is wrong. Promises: while columns are compared, no other operation uses
//! them, so every difference is damage; a member is overwritten only if all others match the checksums of the client's
//! last writes. Leaves to others: the pace and the findings (`crate::scrub`), and overwriting (`mirror/scrub`).
//!
//! | the XOR | members that do not match their checksum | members without one | then |
//! |---|---|---|---|
//! | zero | none | any | all checksums are known from now on |
//! | not zero | one | none | it is overwritten with what the others yield |
//! | not zero | none | one | the same: it is the one without a checksum |
//! | not zero | one, and the others yield its checksum | any | the same |
//! | not zero | none, or one that the others do not yield | several | the columns are doubtful: nothing is changed |
//! | any | several, or one that the others do not yield | none | these blocks are lost |

use std::ops::Range;

use bytes::Bytes;

use super::members::xor_into;
use crate::group::DonorStanding;
use crate::in_place::machine::InPlaceMachine;
use crate::in_place::operation::{DonorPiece, InPlaceOperation, InPlaceWork, PartState, StripePiece};
use crate::planted::{MirrorBug, planted};
use crate::scrub::ScrubFindings;

/// The conclusion about one column.
enum ColumnVerdict {
    Right,
    /// This member is wrong; the others yield it.
    Wrong(usize),
    Lost(u64),
    Doubtful,
}

impl InPlaceMachine {
    /// Makes the operation of a step that begins at a column; *returns* also the columns that it locks.
    pub(in crate::in_place) fn row_step(&self, first: u64, bytes_max: u64) -> (InPlaceOperation, Range<u64>) {
        let geometry = &self.group.geometry();
        let chunk_blocks = u64::from(geometry.chunk_bytes() / geometry.block_bytes);
        let columns_max = (bytes_max / u64::from(geometry.block_bytes)).max(1);
        let end = (first + columns_max).min((first / chunk_blocks + 1) * chunk_blocks);
        let mut operation = InPlaceOperation::new(None, InPlaceWork::Scrub, first..end, geometry, self.group.now_us());
        let block = self.rows.block(first, 0);
        let (stripe, members) = (first / chunk_blocks, 0..self.rows.parity());
        operation.pieces =
            vec![StripePiece { stripe, blocks: block..block + (end - first), members, ..StripePiece::default() }];
        (operation, first..end)
    }

    pub(in crate::in_place) fn drive_row_scrub(&mut self, number: u64, mut operation: InPlaceOperation) {
        if operation.parts.is_empty() {
            if self.group.standing().iter().any(|standing| *standing != DonorStanding::Trusted) {
                return self.end_step(number, operation, false);
            }
            for member in 0..=self.rows.parity() {
                self.ask_member(number, &mut operation.pieces[0], 0, member);
            }
            if operation.pieces[0].read.len() <= self.rows.parity() {
                self.operations.insert(number, operation);
                return;
            }
            self.compare_members(&mut operation);
        }
        self.end_scrub(number, operation);
    }

    /// Compares all members, and lists what has to be overwritten: a piece with the right bytes, and a part, for each
    /// wrong block.
    fn compare_members(&mut self, operation: &mut InPlaceOperation) {
        let size = self.group.geometry().block_bytes as usize;
        let row = operation.pieces[0].clone();
        let (mut found, first) = (ScrubFindings::default(), self.columns(&row).start);
        for index in 0..(row.blocks.end - row.blocks.start) as usize {
            let column = first + index as u64;
            let member = |data: &Bytes| data.slice(index * size..(index + 1) * size);
            let members: Vec<Bytes> = row.read.values().map(member).collect();
            let wrong = match self.verdict(column, &members) {
                ColumnVerdict::Right => continue,
                ColumnVerdict::Wrong(wrong) => wrong,
                ColumnVerdict::Lost(count) => {
                    found.lost += count;
                    continue;
                }
                ColumnVerdict::Doubtful => {
                    found.doubtful += 1;
                    continue;
                }
            };
            found.repaired += 1;
            let parity = self.rows.parity();
            let from_damaged = if wrong == parity { 0 } else { parity };
            let wrong = if planted(MirrorBug::ScrubFromDamaged) { from_damaged } else { wrong };
            let donor = self.rows.donor(row.stripe, wrong);
            operation.parts.push(DonorPiece { donor, piece: operation.pieces.len(), state: PartState::Unsent });
            let block = row.blocks.start + index as u64;
            let data = Some(sum_of(&members, wrong).into());
            operation.pieces.push(StripePiece {
                stripe: row.stripe,
                blocks: block..block + 1,
                data,
                ..StripePiece::default()
            });
        }
        self.note_findings(found);
    }

    fn verdict(&mut self, column: u64, members: &[Bytes]) -> ColumnVerdict {
        let at = |machine: &InPlaceMachine, member: usize| machine.checksum_at(column, member);
        let known: Vec<Option<bool>> =
            (0..members.len()).map(|member| self.checksums.is_right(at(self, member), &members[member])).collect();
        let wrong: Vec<usize> = (0..members.len()).filter(|member| known[*member] == Some(false)).collect();
        let unknown: Vec<usize> = (0..members.len()).filter(|member| known[*member].is_none()).collect();
        let is_zero = sum_of(members, members.len()).iter().all(|byte| *byte == 0);
        let is_yielded =
            |member: usize| self.checksums.is_right(at(self, member), &sum_of(members, member)) != Some(false);
        match (&wrong[..], &unknown[..]) {
            ([], _) if is_zero => {
                for member in unknown {
                    self.checksums.wrote(at(self, member), &members[member]);
                }
                ColumnVerdict::Right
            }
            ([wrong], _) if is_yielded(*wrong) => ColumnVerdict::Wrong(*wrong),
            ([], [unknown]) => ColumnVerdict::Wrong(*unknown),
            ([_], [_, ..]) | ([], _) => ColumnVerdict::Doubtful,
            _ => ColumnVerdict::Lost(wrong.len() as u64),
        }
    }
}

/// Returns the XOR of all members except one.
fn sum_of(members: &[Bytes], except: usize) -> Vec<u8> {
    let mut sum = vec![0; members.first().map_or(0, Bytes::len)];
    let others = members.iter().enumerate().filter(|(member, _)| *member != except);
    others.for_each(|(_, data)| xor_into(&mut sum, data));
    sum
}
