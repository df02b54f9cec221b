//! Campaigns with network RAM disks: faults of their donors, and second failures.

pub mod donors;
pub mod second_failure;
