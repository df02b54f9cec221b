//! The rules of admission to a store's disk, as options.
//!
//! Owns: the names of the options. Leaves to others: their meaning and bounds (`nectary_store::AdmissionOptions`).

use std::str::FromStr;

use clap::Args;
use nectary_block::parse_size;
use nectary_store::{AdmissionOptions, AdmitRule, WriteBudget};

/// Which objects are written to the disk.
#[derive(Debug, Args)]
pub struct AdmissionArguments {
    /// Which objects are written to the store's disk: all, or second-request: only objects requested again
    #[arg(long, value_name = "RULE", value_parser = AdmitRule::from_str, default_value = AdmitRule::All.name())]
    pub admit: AdmitRule,
    /// Do not write responses with shorter bodies to the store's disk, for example 100
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub admit_bytes_min: Option<u64>,
    /// Do not write responses with longer bodies to the store's disk, for example 100M
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub admit_bytes_max: Option<u64>,
    /// How much may be written to the store's disk, for example 50G/day or 2M/s; beyond it, less is admitted
    #[arg(long, value_name = "SIZE/PERIOD", value_parser = WriteBudget::from_str)]
    pub write_budget: Option<WriteBudget>,
}

impl AdmissionArguments {
    /// The options of the store.
    pub fn options(&self) -> AdmissionOptions {
        AdmissionOptions {
            rule: self.admit,
            bytes_min: self.admit_bytes_min.unwrap_or(0),
            bytes_max: self.admit_bytes_max,
            write_budget: self.write_budget,
            ..AdmissionOptions::default()
        }
    }
}
