//! Checking a mirror: both copies of every stripe are equal, unless the stripe is marked as dirty.

use super::report::{CheckFindings, CheckProblem, ProblemKind};
use super::{Progress, READ_BYTES, TrustedDonors};
use crate::device::together::together;
use crate::format::{RecordGeometry, StripeSet, is_damaged};
use crate::in_place::{MirrorRing, is_lost};

/// The maximum number of pieces that are read at the same time, each from two donors.
const PIECES_MAX: usize = 4;

/// A part of a stripe on two donors.
#[derive(Clone, Copy)]
struct MirroredPiece {
    stripe: u64,
    /// The start of the piece in the device, in bytes.
    at: u64,
    donors: [usize; 2],
    offsets: [u64; 2],
    bytes: u64,
}

/// Compares all copies of the device. `dirty` has the marks, by donor.
pub async fn check(
    checked: &mut CheckFindings,
    geometry: &RecordGeometry,
    dirty: &[Option<&StripeSet>],
    donors: &TrustedDonors,
    progress: Progress<'_>,
) -> Result<(), String> {
    let ring = MirrorRing::new(geometry);
    let stripe_bytes = u64::from(geometry.stripe_bytes);
    let is_marked = |stripe: u64| dirty.iter().flatten().any(|dirty| dirty.has(stripe));
    let mut pieces = Vec::new();
    for stripe in 0..geometry.stripes() {
        let places = ring.places(stripe);
        let there = places.iter().filter(|place| donors.is_there(place.donor)).count();
        let start = stripe * stripe_bytes;
        let bytes = stripe_bytes.min(geometry.bytes - start);
        match there {
            0 => {
                checked.counts.lost_blocks += bytes / u64::from(geometry.block_bytes);
                let block = Some(start / u64::from(geometry.block_bytes));
                let text = format!("stripe {stripe}: both donors are missing");
                checked.problem(CheckProblem { block, ..CheckProblem::of(ProblemKind::BlockLost, text) });
                continue;
            }
            1 => checked.counts.single_stripes += 1,
            _ if is_marked(stripe) => checked.counts.marked_stripes += 1,
            _ => checked.counts.compared_stripes += 1,
        }
        if there < 2 || is_marked(stripe) {
            continue;
        }
        let mut done = 0;
        while done < bytes {
            let length = READ_BYTES.min(bytes - done);
            pieces.push(MirroredPiece {
                stripe,
                at: start + done,
                donors: [places[0].donor, places[1].donor],
                offsets: [places[0].offset + done, places[1].offset + done],
                bytes: length,
            });
            done += length;
        }
    }
    let all: u64 = pieces.iter().map(|piece| 2 * piece.bytes).sum();
    for batch in pieces.chunks(PIECES_MAX) {
        let read =
            |(piece, copy): (&MirroredPiece, usize)| donors.read(piece.donors[copy], piece.offsets[copy], piece.bytes);
        let reads = batch.iter().flat_map(|piece| [(piece, 0), (piece, 1)]).map(read).collect();
        let got = together(reads).await.into_iter().collect::<Result<Vec<_>, String>>()?;
        for (piece, copies) in batch.iter().zip(got.chunks(2)) {
            if let [Some(one), Some(two)] = copies {
                compare(checked, geometry, piece, one, two);
            }
            checked.counts.read_bytes += 2 * piece.bytes;
        }
        progress(checked.counts.read_bytes, all);
    }
    Ok(())
}

fn compare(checked: &mut CheckFindings, geometry: &RecordGeometry, piece: &MirroredPiece, one: &[u8], two: &[u8]) {
    let size = geometry.block_bytes as usize;
    let first = piece.at / size as u64;
    let copies = || one.chunks(size).zip(two.chunks(size)).zip(first..);
    let is_gone = |block: u64, copy: &[u8]| is_lost(&geometry.device, block, copy);
    let lost = copies().filter(|((one, two), block)| is_gone(*block, one) || is_gone(*block, two));
    let lost: Vec<u64> = lost.map(|(_, block)| block).collect();
    if !lost.is_empty() {
        checked.counts.lost_blocks += lost.len() as u64;
        let text = format!("stripe {}: {} blocks are lost: no donor had their right bytes", piece.stripe, lost.len());
        checked
            .problem(CheckProblem { block: lost.first().copied(), ..CheckProblem::of(ProblemKind::BlockLost, text) });
    }
    if one == two {
        return;
    }
    let differs = |(number, (one, two)): (usize, (&[u8], &[u8]))| (one != two).then_some(number as u64);
    let blocks: Vec<u64> = one.chunks(size).zip(two.chunks(size)).enumerate().filter_map(differs).collect();
    checked.counts.differing_blocks += blocks.len() as u64;
    checked.counts.doubtful_blocks += blocks.len() as u64;
    let block = blocks.first().map(|number| first + number);
    let names = piece.donors.map(|donor| checked.donors.get(donor).map_or("?", |donor| donor.name.as_str()));
    let (count, stripe) = (blocks.len(), piece.stripe);
    let has_damage = |copy: &[u8]| blocks.iter().any(|at| copy.chunks(size).nth(*at as usize).is_some_and(is_damaged));
    let says = [one, two].map(has_damage).into_iter().zip(names).filter(|(says, _)| *says).map(|(_, name)| name);
    let says: String = says.map(|name| format!("; {name} says that its memory is damaged")).collect();
    let text = format!("stripe {stripe}: {count} blocks differ between {} and {}{says}", names[0], names[1]);
    checked.problem(CheckProblem { block, ..CheckProblem::of(ProblemKind::CopiesDiffer, text) });
}
