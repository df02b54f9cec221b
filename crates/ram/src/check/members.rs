//! Checking a device that is changed in place: the members of every stripe yield each other (those of a mirror are
//! equal, and one without redundancy has nothing to compare), unless the stripe is marked as dirty, and no block is lost.

use std::ops::Range;

use bytes::Bytes;

use super::report::{CheckFindings, CheckProblem, ProblemKind};
use super::{Progress, READ_BYTES, TrustedDonors};
use crate::device::together::together;
use crate::format::{RecordGeometry, StripeSet, is_damaged};
use crate::in_place::{RowLayout, is_lost};

/// The maximum number of reads at the same time, unless one column needs more.
const READS_MAX: usize = 8;

/// Some columns of a stripe.
struct ColumnPiece {
    stripe: u64,
    columns: Range<u64>,
    /// How many of its members are there.
    there: u64,
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
    let rows = RowLayout::new(geometry);
    let piece_blocks = (READ_BYTES / u64::from(geometry.block_bytes)).max(1);
    let mut pieces = Vec::new();
    for stripe in 0..geometry.stripes() {
        let is_marked =
            rows.markers(stripe).into_iter().flatten().any(|donor| dirty[donor].is_some_and(|dirty| dirty.has(stripe)));
        let is_missing = |member: &usize| !donors.is_there(rows.donor(stripe, *member));
        let missing: Vec<usize> = rows.all_members().filter(is_missing).collect();
        match missing[..] {
            [] if is_marked => checked.counts.marked_stripes += 1,
            [] if rows.has_parity() => checked.counts.compared_stripes += 1,
            [] => checked.counts.single_stripes += 1,
            [0] if !rows.has_parity() => lost(checked, geometry, &rows, stripe, 0, "its donor is missing"),
            [0, 1] if rows.is_copied() => lost(checked, geometry, &rows, stripe, 0, "both donors are missing"),
            [member, ..] => {
                checked.counts.single_stripes += 1;
                if is_marked && member < rows.parity() && !rows.is_copied() {
                    let why = "blocks of a missing donor, changed when the last client ended";
                    lost(checked, geometry, &rows, stripe, member, why);
                }
            }
        }
        // Of a mirror, there is nothing to compare then.
        if rows.is_copied() && (is_marked || !missing.is_empty()) {
            continue;
        }
        let there = (rows.all_members().len() - missing.len()) as u64;
        let Range { mut start, end } = rows.columns_of(stripe);
        while start < end {
            let columns = start..(start + piece_blocks).min(end);
            start = columns.end;
            pieces.push(ColumnPiece { stripe, columns, there, is_compared: !is_marked && rows.has_parity() });
        }
    }
    let read_of = |piece: &ColumnPiece| piece.there * bytes_of(geometry, piece);
    let all = pieces.iter().map(read_of).sum::<u64>();
    for batch in pieces.chunks((READS_MAX / rows.all_members().len()).max(1)) {
        let read = |(piece, member): (&ColumnPiece, usize)| {
            let offset = rows.offset(piece.columns.start, member);
            donors.read(rows.donor(piece.stripe, member), offset, bytes_of(geometry, piece))
        };
        let reads = batch.iter().flat_map(|piece| rows.all_members().map(move |member| (piece, member)));
        let got = together(reads.map(read).collect()).await.into_iter().collect::<Result<Vec<_>, String>>()?;
        for (piece, members) in batch.iter().zip(got.chunks(rows.all_members().len())) {
            checked.counts.read_bytes += read_of(piece);
            compare(checked, geometry, &rows, piece, members);
        }
        progress(checked.counts.read_bytes, all);
    }
    Ok(())
}

fn bytes_of(geometry: &RecordGeometry, piece: &ColumnPiece) -> u64 {
    (piece.columns.end - piece.columns.start) * u64::from(geometry.block_bytes)
}

/// Reports a member of a stripe that is lost.
fn lost(
    checked: &mut CheckFindings,
    geometry: &RecordGeometry,
    rows: &RowLayout,
    stripe: u64,
    member: usize,
    why: &str,
) {
    let columns = rows.columns_of(stripe);
    let first = rows.block(columns.start, member);
    let count = geometry.blocks().min(first + (columns.end - columns.start)).saturating_sub(first);
    if count > 0 {
        checked.counts.lost_blocks += count;
        let text = match rows.is_copied() {
            true => format!("stripe {stripe}: {why}"),
            false => format!("stripe {stripe}: {count} {why}"),
        };
        checked.problem(CheckProblem { block: Some(first), ..CheckProblem::of(ProblemKind::BlockLost, text) });
    }
}

fn compare(
    checked: &mut CheckFindings,
    geometry: &RecordGeometry,
    rows: &RowLayout,
    piece: &ColumnPiece,
    members: &[Option<Bytes>],
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
        for (member, data) in members.iter().enumerate() {
            if member == rows.parity() && !rows.is_copied() {
                continue;
            }
            // Both copies of a mirror are the same block.
            let block = if rows.is_copied() { column } else { rows.block(column, member) };
            let data = data.as_ref().map_or(&sum[..], |data| &data[part.clone()]);
            let is_first = lost.last() != Some(&block);
            if block < geometry.blocks() && is_first && is_lost(&geometry.device, block, data) {
                lost.push(block);
            }
        }
    }
    let stripe = piece.stripe;
    if !differing.is_empty() {
        let count = differing.len() as u64;
        checked.counts.differing_blocks += count;
        checked.counts.doubtful_blocks += count * rows.parity() as u64;
        let text = match rows.is_copied() {
            true => format!("stripe {stripe}: {count} blocks differ {}", between(checked, rows, piece, members, size)),
            false => format!("stripe {stripe}: {count} blocks of its parity are not the XOR of their blocks of data"),
        };
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

/// Describes the two copies that differ, and which donor says that its memory is damaged.
fn between(
    checked: &CheckFindings,
    rows: &RowLayout,
    piece: &ColumnPiece,
    members: &[Option<Bytes>],
    size: usize,
) -> String {
    let name = |donor: usize| checked.donors.get(donor).map_or("?", |donor| donor.name.as_str());
    let names: Vec<&str> = rows.donors(piece.stripe).map(name).collect();
    let is_damaged = |(_, data): &(&&str, &Option<Bytes>)| data.iter().any(|data| data.chunks(size).any(is_damaged));
    let says = names.iter().zip(members).filter(is_damaged);
    let says: String = says.map(|(name, _)| format!("; {name} says that its memory is damaged")).collect();
    format!("between {}{says}", names.join(" and "))
}
