//! An operation in progress: of the user, or a copy that the machine makes.
//!
//! Owns: how a range is cut into pieces of stripes, and the state of each piece. A read has a piece for each stripe,
//! which any copy can answer; a change has a part for each copy of each piece, and every part must be done.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use crate::format::RecordGeometry;
use crate::group::{Donor, Moment, RequestId};

/// The reason why a stripe is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyReason {
    /// Its copies may differ since the former client crashed.
    Resync,
    /// The donor is being filled.
    Rebuild,
    /// The donor returned wrong bytes.
    Repair,
}

/// The work of an operation.
#[derive(Debug, Clone)]
pub(super) enum InPlaceWork {
    Read,
    Write {
        data: Bytes,
        is_forced: bool,
    },
    Zeroes {
        is_forced: bool,
    },
    Trim,
    Copy {
        to: Donor,
        why: CopyReason,
    },
    /// Compares all members of a row, the first piece.
    Scrub,
}

impl InPlaceWork {
    /// Whether the operation changes blocks for the user.
    pub fn is_change(&self) -> bool {
        matches!(self, InPlaceWork::Write { .. } | InPlaceWork::Zeroes { .. } | InPlaceWork::Trim)
    }
}

/// A request to a donor for a piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct PieceRequest {
    pub donor: Donor,
    pub request: RequestId,
    pub sent_us: Moment,
}

/// A range of blocks within one stripe.
#[derive(Debug, Clone, Default)]
pub(super) struct StripePiece {
    pub stripe: u64,
    pub blocks: Range<u64>,
    pub asked: Vec<PieceRequest>,
    /// Donors that returned wrong bytes for this piece.
    pub wrong: Vec<Donor>,
    /// What they returned.
    pub doubted: BTreeMap<Donor, Bytes>,
    /// The data that was read or has to be written. Of a change, the new parity; empty: zeroes, or none.
    pub data: Option<Bytes>,
    /// The data members of a row; `blocks` are those of the first one.
    pub members: Range<usize>,
    /// What was read of each member of the row.
    pub read: BTreeMap<usize, Bytes>,
    /// With parity: whether the members that were read do not yield the right bytes.
    pub is_unsolvable: bool,
}

impl StripePiece {
    /// Notes that a request for the piece is answered; returns whether the piece still needs the answer.
    pub fn answered(&mut self, request: RequestId) -> bool {
        let is_awaited = self.asked.iter().any(|asked| asked.request == request);
        self.asked.retain(|asked| asked.request != request);
        is_awaited && self.data.is_none()
    }
}

/// The state of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartState {
    Unsent,
    Sent,
    Done,
    /// The donor is left, so it need not do this part.
    Excused,
}

/// A piece on one donor.
#[derive(Debug, Clone)]
pub(super) struct DonorPiece {
    pub donor: Donor,
    pub piece: usize,
    pub state: PartState,
}

/// An operation in progress.
#[derive(Debug)]
pub(super) struct InPlaceOperation {
    /// The user's number for the operation, until the user has an answer.
    pub user: Option<u64>,
    pub work: InPlaceWork,
    pub blocks: Range<u64>,
    pub began_us: Moment,
    pub pieces: Vec<StripePiece>,
    pub parts: Vec<DonorPiece>,
    /// Whether the parts are determined.
    pub is_planned: bool,
    /// Whether data on a donor may have been changed.
    pub has_begun: bool,
}

impl InPlaceOperation {
    pub fn new(
        user: Option<u64>,
        work: InPlaceWork,
        blocks: Range<u64>,
        geometry: &RecordGeometry,
        began_us: Moment,
    ) -> InPlaceOperation {
        let pieces = pieces(&blocks, geometry.stripe_blocks());
        InPlaceOperation {
            user,
            work,
            blocks,
            began_us,
            pieces,
            parts: Vec::new(),
            is_planned: false,
            has_begun: false,
        }
    }

    /// Whether every part is done or excused.
    pub fn is_settled(&self) -> bool {
        self.parts.iter().all(|part| matches!(part.state, PartState::Done | PartState::Excused))
    }

    /// Replaces a piece by one piece for each of its blocks; returns whether there is more than one.
    pub fn split(&mut self, at: usize) -> bool {
        let Range { start, end } = self.pieces[at].blocks;
        if end - start < 2 {
            return false;
        }
        let of = StripePiece {
            stripe: self.pieces[at].stripe,
            members: self.pieces[at].members.clone(),
            ..StripePiece::default()
        };
        let rest = (start + 1..end).map(|block| StripePiece { blocks: block..block + 1, ..of.clone() });
        let rest: Vec<StripePiece> = rest.collect();
        self.pieces[at] = StripePiece { blocks: start..start + 1, ..of };
        self.pieces.extend(rest);
        true
    }

    /// Returns the bytes of all pieces, if all have arrived.
    pub fn data(&self) -> Option<Bytes> {
        if let [only] = &self.pieces[..] {
            return only.data.clone();
        }
        let mut pieces: Vec<&StripePiece> = self.pieces.iter().collect();
        pieces.sort_by_key(|piece| piece.blocks.start);
        let mut whole = Vec::new();
        for piece in pieces {
            whole.extend_from_slice(piece.data.as_ref()?);
        }
        Some(whole.into())
    }
}

fn pieces(blocks: &Range<u64>, stripe_blocks: u64) -> Vec<StripePiece> {
    let mut pieces = Vec::new();
    let mut first = blocks.start;
    while first < blocks.end {
        let stripe = first / stripe_blocks;
        let end = blocks.end.min((stripe + 1) * stripe_blocks);
        pieces.push(StripePiece { stripe, blocks: first..end, ..StripePiece::default() });
        first = end;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::RedundancyCode;

    #[test]
    fn ranges_are_cut_at_stripes() {
        let cut: Vec<_> = pieces(&(3..9), 4).into_iter().map(|piece| (piece.stripe, piece.blocks)).collect();
        assert_eq!(cut, [(0, 3..4), (1, 4..8), (2, 8..9)]);
        assert!(pieces(&(3..3), 4).is_empty());
    }

    #[test]
    fn split_pieces_keep_order() {
        let geometry = RecordGeometry {
            device: [0; 16],
            bytes: 160,
            block_bytes: 16,
            stripe_bytes: 64,
            members: 2,
            code: RedundancyCode::Mirror,
        };
        let mut operation = InPlaceOperation::new(None, InPlaceWork::Read, 2..6, &geometry, 0);
        assert!(operation.split(0) && !operation.split(0) && operation.pieces.len() == 3);
        assert_eq!(operation.data(), None);
        for piece in &mut operation.pieces {
            piece.data = Some(piece.blocks.clone().map(|block| block as u8).collect::<Vec<_>>().into());
        }
        assert_eq!(operation.data().unwrap()[..], [2, 3, 4, 5]);
    }
}
