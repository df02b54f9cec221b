//! Spare donors of a rig, and donors that leave.

use anyhow::{Context, Result, ensure};

use super::DonorRig;
use crate::ram::{NetworkNamespace, STEP_MAX};

impl DonorRig {
    /// Adds a spare donor to the SPEC of a device that is not attached.
    pub fn add_spare(&mut self) -> Result<()> {
        self.namespaces.push(NetworkNamespace::new(&self.scratch)?);
        let donor = self.start(self.donors.len())?;
        self.addresses.push(format!("{};spare", donor.address));
        self.donors.push(Some(donor));
        Ok(())
    }

    /// Returns the address of a donor.
    pub fn address(&self, number: usize) -> &str {
        &self.addresses[number]
    }

    /// Ends a donor with SIGTERM, and waits until it holds nothing and has ended.
    pub fn leave(&mut self, number: usize) -> Result<()> {
        let mut donor = self.donors[number].take().context("it does not run")?.process;
        donor.signal(libc::SIGTERM);
        ensure!(donor.wait(STEP_MAX)?.success(), "the donor: {}", donor.log_tail());
        ensure!(donor.log_text().contains("holds nothing, and ends"), "the donor: {}", donor.log_tail());
        Ok(())
    }
}
