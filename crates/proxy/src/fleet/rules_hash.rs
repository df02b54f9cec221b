//! The hash of the rules that make keys.
//!
//! Owns: what of a table of sites is in it: names of sites, paths of routes, and of each route the keys' beginning, the
//! query, the cookies, the headers in keys and the size of parts. Times, origins and access are not in it: nodes may
//! differ in these. It is the same for every build that has the same rules.

use std::sync::Arc;

use nectary_config::ProxyConfig;
use nectary_host::fleet::RulesHash;

use crate::configured::{ConfigProblems, sites_of};
use crate::sites::Sites;

/// The hash of the rules of a configuration. *Errors*: those of its sites.
pub fn rules_of(config: &Arc<ProxyConfig>) -> Result<RulesHash, ConfigProblems> {
    let sites = sites_of(config, 0)?;
    Ok(hash_of(&sites))
}

/// The hash of the rules of a table.
pub(crate) fn hash_of(sites: &Sites) -> RulesHash {
    // xxh3 has a fixed definition.
    let text = sites.key_rules().join("\n");
    RulesHash(xxhash_rust::xxh3::xxh3_128(text.as_bytes()))
}
