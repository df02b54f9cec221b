//! Which donors are trusted, as data.
//!
//! Owns: the standing of each donor, and the view that every donor has to store. Leaves to others: deciding it
//! (`membership`).

use super::event::Donor;
use crate::format::{MembershipView, RecordGeometry, ViewMember};

/// The standing of a donor with this client; the table in `mod.rs` describes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DonorStanding {
    /// Its copies are correct.
    Trusted,
    /// The others are being told that it is left.
    Leaving,
    /// The others have stored that it is left.
    Out,
    /// It is being filled.
    Rebuilding,
    /// Its memory is lost, and another donor was already out.
    Lost,
}

/// Another donor that took the place of one, until the others were told.
#[derive(Debug)]
pub(super) struct ReplacedDonor {
    pub donor: Donor,
    /// The former donor in the view. Its memory stays as it was, and is used again if the move cannot be told to all.
    pub former: ViewMember,
}

/// The view and marks that every donor has to store.
#[derive(Debug)]
pub(super) struct DonorMembership {
    pub view: MembershipView,
    pub standing: Vec<DonorStanding>,
    /// Whether the creation of the device has reached every donor.
    pub is_ready: bool,
    /// Whether this client creates the device.
    pub is_creating: bool,
    /// The donor that is being filled, and whether it has all its data.
    pub filling: Option<(Donor, bool)>,
    /// The move of a donor's place that has not been told to all others yet.
    pub replaced: Option<ReplacedDonor>,
    /// While attaching: the number of the newest view that a donor was seen to have.
    pub seen: (u64, u64),
}

impl DonorMembership {
    pub fn new(geometry: &RecordGeometry) -> DonorMembership {
        DonorMembership {
            view: MembershipView { generation: 0, epoch: 0, members: Vec::new() },
            standing: vec![DonorStanding::Out; usize::from(geometry.members)],
            is_ready: true,
            is_creating: false,
            filling: None,
            replaced: None,
            seen: (0, 0),
        }
    }
}
