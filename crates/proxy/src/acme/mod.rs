//! Certificates that the proxy orders from an authority that speaks ACME (RFC 8555), one for each name.
//!
//! Owns: the account, the orders, the answers to the authority's checks, renewal, and the directory of all that
//! ([format](../../../../docs/formats/acme-state.md)). Promises: all of it runs in a separate thread, so no client
//! waits for it; a name whose certificate cannot be had keeps no other name from its own; a failure is tried again
//! after pauses that grow to [`RetryRule::longest`]; no clock, however wrong, makes them shorter while the process runs,
//! nor longer at any time, and they outlive the process. Leaves to others: the choice between these certificates and
//! those of files (`accept::tls`), and the form of a status (the caller).
//!
//! ```text
//!  order_desk ──> account_keeper, one_order ──> authority_client ──> the authority
//!      │  │                          │
//!      │  │                          └──> challenge_answers <── workers (HTTP-01, TLS-ALPN-01)
//!      │  └──> pause_book, state_files      live_certificates <── workers (handshakes)
//!      └──> renewal_plan (pure)             progress <── status, metrics
//! ```

mod account_keeper;
mod acme_options;
mod authority_client;
mod challenge_answers;
mod issued_certificate;
mod live_certificates;
mod one_order;
mod order_desk;
mod order_failure;
mod pause_book;
mod progress;
mod renewal_plan;
mod state_files;

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

pub use acme_options::{AcmeOptions, LETS_ENCRYPT};
pub use progress::{AcmeFailure, AcmeName};
pub use renewal_plan::RetryRule;

pub(crate) use challenge_answers::{ACME_PROTOCOL, is_only_acme};
pub(crate) use issued_certificate::covers;
pub(crate) use order_desk::OrderDesk;

use challenge_answers::ChallengeAnswers;
use live_certificates::LiveCertificates;
use state_files::StateFiles;

/// What the workers share with the thread that orders certificates.
#[derive(Debug)]
pub(crate) struct AcmeShared {
    /// The answers to the checks that are under way.
    pub answers: ChallengeAnswers,
    /// The certificates in use.
    pub certificates: LiveCertificates,
    progress: RwLock<Vec<AcmeName>>,
    wanted: watch::Sender<Arc<AcmeOptions>>,
}

impl AcmeShared {
    /// Nothing is ordered yet.
    pub fn new(options: AcmeOptions) -> Arc<AcmeShared> {
        Arc::new(AcmeShared {
            answers: ChallengeAnswers::default(),
            certificates: LiveCertificates::default(),
            progress: RwLock::default(),
            wanted: watch::Sender::new(Arc::new(options)),
        })
    }

    /// The options in use.
    pub fn options(&self) -> Arc<AcmeOptions> {
        self.wanted.borrow().clone()
    }

    /// Uses other options from now on. `None`: nothing is ordered any more.
    pub fn change(&self, options: Option<AcmeOptions>) {
        let current = self.options();
        let options = options.unwrap_or_else(|| AcmeOptions { names: Vec::new(), ..AcmeOptions::clone(&current) });
        self.wanted.send_replace(Arc::new(options));
    }

    /// How far each name is.
    pub fn progress(&self) -> Vec<AcmeName> {
        self.progress.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn publish(&self, names: Vec<AcmeName>) {
        *self.progress.write().unwrap_or_else(PoisonError::into_inner) = names;
    }
}

/// Looks whether the directory of the account and the certificates is there or can be made; makes and writes nothing,
/// because the caller can be another user than that of the proxy. *Returns*: what the operator should know.
///
/// *Errors*: why there can be no such directory, with its path.
pub fn check_state(options: &AcmeOptions) -> Result<Option<String>, String> {
    StateFiles::new(&options.state, &options.directory).look()
}

/// Checks the file of certificates that are trusted for the authority's server.
pub(crate) fn check_ca(ca: &Path) -> Result<(), nectary_host::Error> {
    nectary_host::tls::read_certificates(ca).map(drop)
}
