//! The certificates that the proxy shows its clients, and those that its clients must show.
//!
//! Owns: reading them with their keys, the choice of one by the name that a client asks for, the protocols that are
//! offered, and reading them again while the proxy runs. Promises: a file that cannot be used changes nothing; a
//! connection keeps the certificates with which it began; sessions go on after the files were read again. Where clients
//! must show certificates there are no sessions to go on with, so each connection shows one that is valid now.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use nectary_host::tls::{read_certificates, read_key};
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio_rustls::TlsAcceptor;
use x509_parser::extensions::GeneralName;

use crate::acme::{ACME_PROTOCOL, AcmeOptions, AcmeShared, covers, is_only_acme};
use crate::error::Error;

/// The protocols that clients can choose, best first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The versions of TLS if 1.2 is refused.
static ONLY_13: [&SupportedProtocolVersion; 1] = [&TLS13];

/// The files of a certificate and of its key, both in PEM. The certificate's file may have its chain, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The file of the certificate.
    pub certificate: PathBuf,
    /// The file of its private key.
    pub key: PathBuf,
}

/// The rules of TLS with clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsRules {
    /// Whether a client that asks for a name without a certificate is refused; otherwise it gets the first certificate.
    pub refuses_unknown: bool,
    /// Whether TLS 1.2 is refused.
    pub is_13_only: bool,
    /// A file in PEM. Clients must then show a certificate that one of these has signed; without it they need none.
    pub client_ca: Option<PathBuf>,
}

/// A certificate that a proxy shows its clients.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ShownCertificate {
    /// Its file.
    pub path: PathBuf,
    /// The names of hosts that it is for, in lower case; one that begins with `*.` is for all names with one more label.
    pub names: Vec<String>,
    /// The end of its validity. *Units*: Unix seconds.
    pub not_after_s: i64,
    /// Whether the proxy has ordered it, and renews it by itself.
    pub is_ordered: bool,
}

impl ShownCertificate {
    /// The days until it ends, rounded down; negative if it has ended.
    pub fn days_left(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        (self.not_after_s - now).div_euclid(24 * 3600)
    }
}

/// The certificates of a proxy.
pub(crate) struct ProxyCertificates {
    provider: Arc<CryptoProvider>,
    /// The keys of the tickets with which clients go on with their sessions.
    ticketer: Arc<dyn ProducesTickets>,
    /// The certificates that are ordered, if any are.
    acme: Option<Arc<AcmeShared>>,
    state: RwLock<CertificateSet>,
}

/// Certificates that were read, and are not in use yet.
pub(crate) struct CertificateSet {
    files: Vec<CertificateFiles>,
    rules: TlsRules,
    config: Arc<ServerConfig>,
    shown: Vec<ShownCertificate>,
}

impl ProxyCertificates {
    /// Reads the files. The first certificate is shown to clients that ask for no name, or for one that no certificate is
    /// for. Certificates that are ordered come after those of files. *Errors*: [`Error::Certificate`], [`Error::TlsService`],
    /// [`Error::ClientCa`].
    pub fn new(
        files: Vec<CertificateFiles>,
        rules: TlsRules,
        acme: Option<Arc<AcmeShared>>,
    ) -> Result<ProxyCertificates, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let path = files.first().map(|files| files.certificate.clone()).unwrap_or_default();
        let failed = |error: rustls::Error| Error::Certificate { path, what: error.to_string() };
        let ticketer = rustls::crypto::ring::Ticketer::new().map_err(failed)?;
        let state = RwLock::new(CertificateSet::read(files, rules, &provider, &ticketer, &acme)?);
        Ok(ProxyCertificates { provider, ticketer, acme, state })
    }

    /// Reads the files again. New connections get what they have now. *Errors*: as [`new`](ProxyCertificates::new); then
    /// what was read before stays in use.
    pub fn reload(&self) -> Result<(), Error> {
        let (files, rules) = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            (state.files.clone(), state.rules.clone())
        };
        self.install(self.prepare(files, rules)?);
        Ok(())
    }

    /// Reads other files, without using them yet. *Errors*: as [`new`](ProxyCertificates::new).
    pub fn prepare(&self, files: Vec<CertificateFiles>, rules: TlsRules) -> Result<CertificateSet, Error> {
        CertificateSet::read(files, rules, &self.provider, &self.ticketer, &self.acme)
    }

    /// Gives new connections what was read.
    pub fn install(&self, state: CertificateSet) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// What does the handshake with a new client.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.state.read().unwrap_or_else(PoisonError::into_inner).config.clone())
    }

    /// The certificates that clients are shown.
    pub fn shown(&self) -> Vec<ShownCertificate> {
        let mut shown = self.state.read().unwrap_or_else(PoisonError::into_inner).shown.clone();
        let ordered = self.acme.iter().flat_map(|acme| acme.progress()).filter_map(|found| {
            let (path, names, not_after_s) = (found.path, vec![found.name], found.not_after_s?);
            Some(ShownCertificate { path, names, not_after_s, is_ordered: true })
        });
        shown.extend(ordered);
        shown
    }

    /// The options without the names for which a file has a certificate.
    pub fn orders_of(&self, options: &AcmeOptions) -> AcmeOptions {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let has_file = |name: &str| state.shown.iter().flat_map(|shown| &shown.names).any(|found| covers(found, name));
        let names = options.names.iter().filter(|name| !has_file(name)).cloned().collect();
        AcmeOptions { names, ..options.clone() }
    }

    /// What is shared with the thread that orders certificates, if there is one.
    pub fn acme(&self) -> Option<&Arc<AcmeShared>> {
        self.acme.as_ref()
    }
}

impl fmt::Debug for ProxyCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyCertificates").finish_non_exhaustive()
    }
}

impl CertificateSet {
    fn read(
        files: Vec<CertificateFiles>,
        rules: TlsRules,
        provider: &Arc<CryptoProvider>,
        ticketer: &Arc<dyn ProducesTickets>,
        acme: &Option<Arc<AcmeShared>>,
    ) -> Result<CertificateSet, Error> {
        let (mut by_name, mut first, mut all) = (HashMap::new(), None, Vec::new());
        for files in &files {
            let path = &files.certificate;
            let failed = |what: String| Error::Certificate { path: path.clone(), what };
            let chain = read_certificates(path).map_err(Error::Tls)?;
            let key = read_key(&files.key).map_err(Error::Tls)?;
            let shown = describe(path.clone(), &chain[0]).map_err(&failed)?;
            let certified = CertifiedKey::from_der(chain, key, provider)
                .map_err(|error| failed(format!("with the key {}: {error}", files.key.display())))?;
            let certified = Arc::new(certified);
            first.get_or_insert_with(|| certified.clone());
            for name in &shown.names {
                // The certificate that was named first is the one for a name.
                by_name.entry(name.clone()).or_insert_with(|| certified.clone());
            }
            all.push(shown);
        }
        let path = files.first().map(|files| files.certificate.clone()).unwrap_or_default();
        let failed = |error: rustls::Error| Error::Certificate { path, what: error.to_string() };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(if rules.is_13_only { &ONLY_13 } else { rustls::DEFAULT_VERSIONS })
            .map_err(failed)?;
        let builder = match &rules.client_ca {
            Some(path) => builder.with_client_cert_verifier(verifier(path, provider)?),
            None => builder.with_no_client_auth(),
        };
        let choice = ByName { by_name, first, refuses_unknown: rules.refuses_unknown, acme: acme.clone() };
        let mut config = builder.with_cert_resolver(Arc::new(choice));
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        config.alpn_protocols.extend(acme.iter().map(|_| ACME_PROTOCOL.to_vec()));
        if rules.client_ca.is_some() {
            // A client that goes on with a session shows no certificate, however long ago its own has ended.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        } else {
            config.ticketer = ticketer.clone();
        }
        Ok(CertificateSet { files, rules, config: Arc::new(config), shown: all })
    }
}

/// What accepts the certificates that were signed by one in a file. *Errors*: [`Error::TlsService`], [`Error::ClientCa`].
fn verifier(path: &Path, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let failed = |what: String| Error::ClientCa { path: path.to_owned(), what };
    let mut roots = RootCertStore::empty();
    for signer in read_certificates(path).map_err(Error::Tls)? {
        roots.add(signer).map_err(|error| failed(error.to_string()))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    verifier.map_err(|error| failed(error.to_string()))
}

/// Reads what a certificate is for.
fn describe(path: PathBuf, der: &[u8]) -> Result<ShownCertificate, String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).map_err(|error| error.to_string())?;
    let alternatives = certificate.subject_alternative_name().map_err(|error| error.to_string())?;
    let names = alternatives.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    let names = names.collect();
    Ok(ShownCertificate { path, names, not_after_s: certificate.validity().not_after.timestamp(), is_ordered: false })
}

/// Chooses a certificate by the name that a client asks for.
#[derive(Debug)]
struct ByName {
    by_name: HashMap<String, Arc<CertifiedKey>>,
    first: Option<Arc<CertifiedKey>>,
    refuses_unknown: bool,
    acme: Option<Arc<AcmeShared>>,
}

impl ByName {
    fn find(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let of_name = name.and_then(|name| {
            // A client must not send the dot at the end of a full name, but some do.
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            let exact = self.by_name.get(&name);
            let of_file = exact.or_else(|| self.by_name.get(&format!("*{}", &name[name.find('.')?..])));
            // A name whose certificate is not there yet is refused as an unknown one is, or has the placeholder.
            let ordered = || self.acme.as_ref()?.certificates.find(&name, !self.refuses_unknown);
            of_file.cloned().or_else(ordered)
        });
        let first = || self.first.clone().or_else(|| self.acme.as_ref()?.certificates.first());
        of_name.or_else(|| if self.refuses_unknown { None } else { first() })
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Some(acme) = self.acme.as_ref().filter(|_| is_only_acme(hello.alpn())) {
            return acme.answers.of_name(hello.server_name());
        }
        self.find(hello.server_name())
    }
}

/// What a worker needs for clients with TLS.
#[derive(Debug)]
pub(crate) struct TlsService {
    pub certificates: ProxyCertificates,
    /// The port of the first address with TLS, to which other clients are sent.
    pub port: u16,
}

impl TlsService {
    /// What does the handshake with a new client.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.certificates.acceptor()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certified() -> Arc<CertifiedKey> {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::default();
        let certificate = params.self_signed(&key).expect("a certificate").der().clone();
        let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = rustls::crypto::ring::default_provider();
        Arc::new(CertifiedKey::from_der(vec![certificate], key, &provider).expect("they fit"))
    }

    #[test]
    fn name_finds_its_certificate() {
        let (first, wild, exact) = (certified(), certified(), certified());
        let by_name = [("*.wild.test", &wild), ("a.wild.test", &exact), ("other.test", &exact)];
        let by_name = by_name.map(|(name, certified)| (name.to_owned(), certified.clone()));
        let choice = ByName { by_name: by_name.into(), first: Some(first.clone()), refuses_unknown: false, acme: None };
        for (name, expected) in [
            (Some("other.test"), &exact),
            (Some("OTHER.Test"), &exact),
            (Some("other.test."), &exact),
            (Some("a.wild.test"), &exact),
            (Some("b.wild.test"), &wild),
            (Some("B.WILD.test."), &wild),
            (Some("a.b.wild.test"), &first),
            (Some("wild.test"), &first),
            (Some("test"), &first),
            (None, &first),
        ] {
            let found = choice.find(name);
            assert!(found.is_some_and(|found| Arc::ptr_eq(&found, expected)), "{name:?}");
        }
    }
}
