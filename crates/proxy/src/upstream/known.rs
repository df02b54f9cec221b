//! What all workers know about origins.

use std::sync::Arc;

use super::addresses::Addresses;
use super::health::Health;
use super::names::Names;
use crate::options::NameFiles;

/// What all workers know about origins.
#[derive(Debug)]
pub(crate) struct KnownOrigins {
    /// The addresses that have failed.
    pub(super) addresses: Addresses,
    /// The origins that are failing.
    pub(super) health: Arc<Health>,
    /// The names of origins.
    pub(super) names: Arc<Names>,
}

impl KnownOrigins {
    /// Starts without knowledge.
    pub fn new(files: NameFiles) -> KnownOrigins {
        let (addresses, health) = (Addresses::default(), Arc::default());
        KnownOrigins { addresses, health, names: Arc::new(Names::new(files)) }
    }
}
