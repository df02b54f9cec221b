//! What all workers know about origins.

use std::sync::Arc;

use super::addresses::AddressMarks;
use super::health::OriginHealth;
use super::names::SharedNames;
use crate::options::NameFiles;

/// What all workers know about origins.
#[derive(Debug)]
pub(crate) struct KnownOrigins {
    /// The addresses that have failed.
    pub(super) addresses: AddressMarks,
    /// The origins that are failing.
    pub(super) health: Arc<OriginHealth>,
    /// The names of origins.
    pub(super) names: Arc<SharedNames>,
}

impl KnownOrigins {
    /// Starts without knowledge.
    pub fn new(files: NameFiles) -> KnownOrigins {
        let (addresses, health) = (AddressMarks::default(), Arc::default());
        KnownOrigins { addresses, health, names: Arc::new(SharedNames::new(files)) }
    }
}
