//! How far the filling of a donor and the scrub are.
//!
//! Owns: what each has begun. Leaves to others: what is read and written (`copies`, `scrub`).

use std::collections::BTreeMap;

use crate::format::StripeSet;
use crate::group::{Donor, Moment};
use crate::scrub::ScrubFindings;

/// The progress of filling a donor.
#[derive(Debug)]
pub(super) struct DonorRebuild {
    pub donor: Donor,
    /// The epoch in which the filling began.
    pub joined: u64,
    /// The stripes that the donor has.
    pub copied: StripeSet,
    /// Stripes whose sources return wrong bytes, and since when.
    pub wrong_since_us: BTreeMap<u64, Moment>,
    /// No copy of a stripe from this one on has begun.
    pub next: u64,
}

/// A step in progress.
#[derive(Debug)]
pub(super) struct CopyScrubStep {
    /// The number of its operation.
    pub operation: u64,
    pub found: ScrubFindings,
}
