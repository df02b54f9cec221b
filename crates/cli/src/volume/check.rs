//! `nectary volume check` and `info`.
//!
//! Owns: reading a volume without changing it. It may be served meanwhile: what is shown is then as of the newest append
//! that could be read. Leaves to others: what must agree (`nectary-volume`).

use std::fmt::Write as _;

use nectary_block::format_size;
use nectary_volume::format::{Session, Table, VolumeRecord};
use nectary_volume::journal;
use nectary_volume::metadata;
use serde_json::{Value, json};

use super::serve::state_name;
use crate::arguments::VolumeReadArguments;
use crate::exit::{DEGRADED, FAILED, Failure, GOOD};
use crate::output;

/// Problems that are shown; a damaged volume may have any number.
const SHOWN_MAX: usize = 100;
