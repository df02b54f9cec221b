//! The hash of the rules that make keys, of a configuration. What is in it says `sites`.

use std::sync::Arc;

use nectary_config::ProxyConfig;
use nectary_host::fleet::RulesHash;

use crate::configured::{ConfigProblems, sites_of};

/// The hash of the rules of a configuration. *Errors*: those of its sites.
pub fn rules_of(config: &Arc<ProxyConfig>) -> Result<RulesHash, ConfigProblems> {
    Ok(sites_of(config, 0)?.rules())
}
