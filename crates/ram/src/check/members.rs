//! Checking parity that is changed in place: the members of every stripe yield each other, unless the stripe is marked
//! as dirty, and no block is lost.

use std::ops::Range;

use bytes::Bytes;

use super::report::{CheckFindings, CheckProblem, ProblemKind};
use super::{Progress, READ_BYTES, TrustedDonors};
use crate::device::together::together;
use crate::format::{RecordGeometry, StripeSet};
use crate::in_place::{ParityLayout, StripeLayout, is_lost};

/// Some columns of a stripe.
struct ColumnPiece {
    stripe: u64,
    columns: Range<u64>,
    /// Whether what the members yield can be relied on.
    is_compared: bool,
}

/// Compares all members of the device. `dirty` has the marks, by donor.
pub async fn check(
    checked: &mut CheckFindings,
    geometry: &RecordGeometry,
    dirty: &[Option<&StripeSet>],
    donors: &TrustedDonors,
    progress: Progress<'_>,
) -> Result<(), String> {
    let rows = ParityLayout::new(geometry);
    let chunk_blocks = u64::from(geometry.chunk_bytes() / geometry.block_bytes);
    let piece_blocks = (READ_BYTES / u64::from(geometry.block_bytes)).max(1);
    let mut pieces = Vec::new();
    for stripe in 0..geometry.stripes() {
        let is_marked =
            rows.markers(stripe).into_iter().any(|donor| dirty[donor].is_some_and(|dirty| dirty.has(stripe)));
        let missing = (0..=rows.parity()).find(|member| !donors.is_there(rows.donor(stripe, *member)));
        match missing {
            Some(member) => {
                checked.counts.single_stripes += 1;
                if is_marked && member < rows.parity() {
                    unknown(checked, geometry, &rows, stripe, member);
                }
            }
            None if is_marked => checked.counts.marked_stripes += 1,
            None => checked.counts.compared_stripes += 1,
        }
        let (mut first, end) = (stripe * chunk_blocks, (stripe + 1) * chunk_blocks);
        while first < end {
            let columns = first..(first + piece_blocks).min(end);
            first = columns.end;
            pieces.push(ColumnPiece { stripe, columns, is_compared: !is_marked });
        }
    }
    let there = (0..=rows.parity()).filter(|donor| donors.is_there(*donor)).count() as u64;
    let all = there * pieces.iter().map(|piece| bytes_of(geometry, piece)).sum::<u64>();
    for piece in pieces {
        let read = |member: usize| {
            donors.read(rows.donor(piece.stripe, member), rows.offset(piece.columns.start), bytes_of(geometry, &piece))
        };
        let got = together((0..=rows.parity()).map(read).collect()).await;
        let members = got.into_iter().collect::<Result<Vec<Option<Bytes>>, String>>()?;
        checked.counts.read_bytes += there * bytes_of(geometry, &piece);
        compare(checked, geometry, &rows, &piece, members);
        progress(checked.counts.read_bytes, all);
    }
    Ok(())
}

fn bytes_of(geometry: &RecordGeometry, piece: &ColumnPiece) -> u64 {
    (piece.columns.end - piece.columns.start) * u64::from(geometry.block_bytes)
}

/// Reports what a missing donor had of a stripe that was being changed: it will be lost.
fn unknown(checked: &mut CheckFindings, geometry: &RecordGeometry, rows: &ParityLayout, stripe: u64, member: usize) {
    let chunk_blocks = u64::from(geometry.chunk_bytes() / geometry.block_bytes);
    let first = rows.block(stripe * chunk_blocks, member);
    let count = geometry.blocks().min(first + chunk_blocks).saturating_sub(first);
    if count > 0 {
        checked.counts.lost_blocks += count;
        let text = format!("stripe {stripe}: {count} blocks of a missing donor, changed when the last client ended");
        checked.problem(CheckProblem { block: Some(first), ..CheckProblem::of(ProblemKind::BlockLost, text) });
    }
}

fn compare(
    checked: &mut CheckFindings,
    geometry: &RecordGeometry,
    rows: &ParityLayout,
    piece: &ColumnPiece,
    members: Vec<Option<Bytes>>,
) {
    let size = geometry.block_bytes as usize;
    let missing = members.iter().position(Option::is_none);
    if missing.is_some() && !piece.is_compared {
        return;
    }
    let (mut differing, mut lost) = (Vec::new(), Vec::new());
    for (index, column) in piece.columns.clone().enumerate() {
        let part = index * size..(index + 1) * size;
        let mut sum = vec![0; size];
        for member in members.iter().flatten() {
            sum.iter_mut().zip(&member[part.clone()]).for_each(|(sum, byte)| *sum ^= byte);
        }
        if missing.is_none() && piece.is_compared && sum.iter().any(|byte| *byte != 0) {
            differing.push(column);
        }
        for (member, data) in members.iter().enumerate().take(rows.parity()) {
            let (block, data) =
                (rows.block(column, member), data.as_ref().map_or(&sum[..], |data| &data[part.clone()]));
            if block < geometry.blocks() && is_lost(&geometry.device, block, data) {
                lost.push(block);
            }
        }
    }
    let stripe = piece.stripe;
    if !differing.is_empty() {
        let count = differing.len() as u64;
        checked.counts.differing_blocks += count;
        checked.counts.doubtful_blocks += count * rows.parity() as u64;
        let text = format!("stripe {stripe}: {count} blocks of its parity are not the XOR of their blocks of data");
        let block = differing.first().map(|column| rows.block(*column, 0));
        checked.problem(CheckProblem { block, ..CheckProblem::of(ProblemKind::CopiesDiffer, text) });
    }
    if !lost.is_empty() {
        checked.counts.lost_blocks += lost.len() as u64;
        let text = format!("stripe {stripe}: {} blocks are lost: no donor had their right bytes", lost.len());
        checked
            .problem(CheckProblem { block: lost.first().copied(), ..CheckProblem::of(ProblemKind::BlockLost, text) });
    }
}
