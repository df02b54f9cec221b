//! What a running proxy reads again: its log, its certificates, and its configuration file.
//!
//! Owns: the order of a reload: everything new is made first, and only then used, so a file that is wrong changes nothing.
//! Leaves to others: reading the file, and telling of what went wrong (the caller).

use std::sync::Arc;
use std::time::Duration;

use nectary_config::ProxyConfig;
use nectary_host::fleet::RulesHash;

use crate::accept::TlsService;
use crate::access_log::LogQueue;
use crate::configured::{options_of, sites_of, unchanged_parts};
use crate::error::Error;
use crate::fleet::{FleetPeers, FleetSeat};
use crate::sites::{KeysOfUrl, LiveSites};

/// The longest time for which reopening the access log waits for an earlier write.
const REOPEN_PATIENCE: Duration = Duration::from_secs(5);

/// Opens again what a proxy has open by a name: the file of the access log and the certificates; and takes a new
/// configuration. It is cheap to clone, and any thread can use it.
#[derive(Debug, Clone)]
pub struct ProxyReopener {
    pub(crate) log: Option<Arc<LogQueue>>,
    pub(crate) sites: LiveSites,
    pub(crate) tls: Option<Arc<TlsService>>,
    /// The configuration with which the proxy started.
    pub(crate) started: Option<Arc<ProxyConfig>>,
    /// The fleet of the proxy, which has to know its rules.
    pub(crate) fleet: Option<FleetSeat>,
    /// The certificates between nodes.
    pub(crate) peers: Option<Arc<FleetPeers>>,
}

impl ProxyReopener {
    /// Opens the access log by its name and reads the certificates; blocks the thread until that is done.
    ///
    /// Lines logged before may be in the new file. If the log could not be written, this tries at once. New connections
    /// to origins use the certificates. *Errors*: what could not be opened; the proxy goes on with what it has.
    pub fn reopen(&self) -> Vec<Error> {
        let tls = self.tls.as_ref().map_or(Ok(()), |tls| tls.certificates.reload());
        let trusts = self.sites.now().trusts().iter().map(|trust| trust.reload()).collect::<Vec<_>>();
        let peers = self.peers.as_ref().map_or(Ok(()), |peers| peers.reload());
        [self.reopen_log(), tls, peers].into_iter().chain(trusts).filter_map(Result::err).collect()
    }

    /// Opens the access log by its name, as [`reopen`](ProxyReopener::reopen) does.
    pub fn reopen_log(&self) -> Result<(), Error> {
        self.log.as_ref().map_or(Ok(()), |log| log.reopen(REOPEN_PATIENCE))
    }

    /// Uses another configuration: its sites, routes, origins, rules and certificates. New requests have it a moment
    /// later, and requests under way go on with what they began with. *Returns*: the tables that differ from those of the
    /// start, and that only a restart changes.
    ///
    /// *Errors*: what is wrong with it; then nothing has changed.
    pub fn reload(&self, config: &Arc<ProxyConfig>) -> Result<Vec<&'static str>, Error> {
        let options = options_of(config).map_err(Error::Config)?;
        let sites = sites_of(config, self.sites.next_generation()).map_err(Error::Config)?;
        let certificates = match &self.tls {
            Some(tls) if !options.certificates.is_empty() || options.acme.is_some() => {
                Some((tls, tls.certificates.prepare(options.certificates, options.tls)?))
            }
            _ => None,
        };
        // The fleet learns of them first, so that this node does not serve by rules that the others do not know.
        if let Some(fleet) = &self.fleet {
            fleet.set_rules(sites.rules());
        }
        self.sites.replace(sites);
        if let Some((tls, certificates)) = certificates {
            tls.certificates.install(certificates);
            // Names that are new are ordered, those that are gone are not renewed.
            if let Some(acme) = tls.certificates.acme() {
                acme.change(options.acme.as_ref().map(|options| tls.certificates.orders_of(options)));
            }
        }
        Ok(self.started.as_ref().map(|started| unchanged_parts(started, config)).unwrap_or_default())
    }

    /// The keys under which a response for a URL, or the responses for the URLs that begin so, may be stored. A URL that
    /// no site has, and every URL of a proxy without sites, is its own key.
    pub fn keys_of(&self, url: &str, is_prefix: bool) -> Vec<Vec<u8>> {
        self.sites.now().keys_of(&KeysOfUrl { url, is_prefix })
    }

    /// Why a purge of a URL, or of the URLs that begin so, finds nothing that the sites of now have stored; `None` if it may.
    pub fn doubt_of(&self, url: &str, is_prefix: bool) -> Option<String> {
        self.sites.now().doubt_of(&KeysOfUrl { url, is_prefix })
    }

    /// The same keys, and the rules by which they are made.
    pub fn keys_by_rules(&self, url: &str, is_prefix: bool) -> (Vec<Vec<u8>>, RulesHash) {
        let sites = self.sites.now();
        (sites.keys_of(&KeysOfUrl { url, is_prefix }), sites.rules())
    }

    /// The rules that make keys now.
    pub fn rules(&self) -> RulesHash {
        self.sites.now().rules()
    }
}
