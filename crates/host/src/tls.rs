//! TLS: certificates and keys from files, and the handshakes that turn a plain stream into an encrypted one.
//!
//! Owns: reading files of certificates, the choice of trusted certificates, errors that name the file, and texts that
//! explain a refused handshake. Promises: a client always verifies the server's certificate; a server that requires
//! certificates of clients verifies them; versions before TLS 1.2 are refused; a refused client can read the reason.
//! Leaves to others: the time at which a stream becomes encrypted, and what a client may do.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub use tokio_rustls::TlsStream;

use crate::Error;

/// The maximum number of certificates that one file may have.
const CERTIFICATES_MAX: usize = 4096;
/// The time for which a refused client may read the reason.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// The maximum number of bytes that a refused client may send while it reads the reason. *Units*: bytes.
const LINGER_BYTES_MAX: u64 = 64 << 10;

/// The server side of TLS. Clones share one configuration.
#[derive(Clone)]
pub struct ServerTls {
    acceptor: TlsAcceptor,
    wants_certificates: bool,
}

/// The client side of TLS. Clones share one configuration.
#[derive(Clone)]
pub struct ClientTls {
    connector: TlsConnector,
}

impl ServerTls {
    /// Reads the server's chain of certificates and its key, both in PEM. If there is a `client_ca`, clients must
    /// present a certificate that was signed by a certificate in that file.
    ///
    /// *Errors*: [`Error::Tls`] with the file and the problem.
    pub fn load(certificates: &Path, key: &Path, client_ca: Option<&Path>) -> Result<ServerTls, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(certificates, error))?;
        let builder = match client_ca {
            Some(path) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path)?), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| refused(path, error))?)
            }
            None => builder.with_no_client_auth(),
        };
        let config = builder
            .with_single_cert(read_certificates(certificates)?, read_key(key)?)
            .map_err(|error| refused(certificates, format!("with the key {}: {error}", key.display())))?;
        Ok(ServerTls { acceptor: TlsAcceptor::from(Arc::new(config)), wants_certificates: client_ca.is_some() })
    }

    /// Whether clients must present a certificate.
    pub fn wants_certificates(&self) -> bool {
        self.wants_certificates
    }

    /// Does the server's part of the handshake on a plain stream. *Errors*: the errors of the stream, or an error if
    /// the client does not speak TLS, or if it must have a trusted certificate and has none.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        match self.acceptor.accept(stream).into_fallible().await {
            Ok(stream) => Ok(TlsStream::from(stream)),
            Err((error, stream)) => {
                linger(stream).await;
                Err(error)
            }
        }
    }
}

impl ClientTls {
    /// Makes a client that trusts the certificates in the file `ca`, or the system's certificates if `ca` is `None`. If
    /// the server requires a certificate, the client presents the one in `identity`, which has the file of a
    /// certificate and the file of its key. All files are in PEM.
    ///
    /// *Errors*: [`Error::Tls`] with the file and the problem.
    pub fn load(ca: Option<&Path>, identity: Option<(&Path, &Path)>) -> Result<ClientTls, Error> {
        ClientTls::load_for(ca, identity, None)
    }

    /// Makes a client like [`load`](ClientTls::load), which offers this protocol (ALPN), such as `h2`.
    pub fn load_for(
        ca: Option<&Path>,
        identity: Option<(&Path, &Path)>,
        protocol: Option<&[u8]>,
    ) -> Result<ClientTls, Error> {
        let roots = match ca {
            Some(path) => roots(path)?,
            None => system_roots()?,
        };
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(ca.unwrap_or(Path::new("TLS")), error))?
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificates, key)) => builder
                .with_client_auth_cert(read_certificates(certificates)?, read_key(key)?)
                .map_err(|error| refused(certificates, format!("with the key {}: {error}", key.display())))?,
        };
        config.alpn_protocols.extend(protocol.map(<[u8]>::to_vec));
        Ok(ClientTls { connector: TlsConnector::from(Arc::new(config)) })
    }

    /// Does the client's part of the handshake on a plain stream; `name` is the server's host name or IP address.
    ///
    /// *Errors*: the errors of the stream, or an error if the server's certificate is not trusted or is not for `name`.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(&self, name: &str, stream: S) -> io::Result<TlsStream<S>> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("\"{name}\" is no name of a server")))?;
        Ok(TlsStream::from(self.connector.connect(name, stream).await?))
    }
}

/// Ends a stream on which the client must still read the reason of its refusal. The client's further bytes are read and
/// discarded, because the kernel drops unsent bytes if a socket is closed before all received bytes were read.
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let ending = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
    };
    // The client may already have disconnected, so an error is ignored.
    let _ = timeout(LINGER_TIME_MAX, ending).await;
}

/// Explains an error of a handshake, or of the first message after it, to the user. The text says what is wrong with
/// the other side and what to do. The result is `None` if TLS and its certificates are not the reason.
pub fn explain(error: &io::Error) -> Option<String> {
    let made = "`nectary cert` makes certificates";
    let text = match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::NoCertificatesPresented => "it showed no certificate, and one is required".to_owned(),
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            format!("it requires a certificate: give --tls-cert and --tls-key; {made}")
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            format!(
                "it says that the certificate of this side has expired, or is not valid yet: see both clocks; {made}"
            )
        }
        rustls::Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied,
        ) => "it does not accept the certificate of this side: use one of the authority that it trusts".to_owned(),
        rustls::Error::InvalidCertificate(
            problem @ (CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }),
        ) => format!("its certificate has expired, or is not valid yet ({problem}): see both clocks; {made}"),
        rustls::Error::InvalidCertificate(
            problem @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
        ) => format!("its certificate is for another host ({problem}): use one of its names, or make it one with this"),
        rustls::Error::InvalidCertificate(problem) => {
            format!("its certificate is not of the authority that is trusted here ({problem})")
        }
        rustls::Error::InvalidMessage(_) => "it does not speak TLS".to_owned(),
        _ => return None,
    };
    Some(text)
}

fn refused(path: &Path, problem: impl ToString) -> Error {
    Error::Tls { path: path.to_owned(), problem: problem.to_string() }
}

/// Reads the certificates of a file in PEM, at least one. *Errors*: [`Error::Tls`].
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read =
        CertificateDer::pem_file_iter(path).and_then(|list| list.take(CERTIFICATES_MAX).collect::<Result<Vec<_>, _>>());
    match read {
        Ok(certificates) if certificates.is_empty() => Err(refused(path, "there is no certificate in it (PEM)")),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(refused(path, error)),
    }
}

/// Reads the private key of a file in PEM. *Errors*: [`Error::Tls`].
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| refused(path, format!("no private key (PEM): {error}")))
}

fn roots(path: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|error| refused(path, error))?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, Error> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or("none are installed".to_owned(), ToString::to_string);
        return Err(refused(
            Path::new("/etc/ssl/certs"),
            format!("no certificates to trust: {why}; install ca-certificates, or name a file of them"),
        ));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_errors_name_the_file() {
        let folder = std::env::temp_dir().join(format!("nectary-host-tls-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let empty = folder.join("empty.pem");
        std::fs::write(&empty, "nothing\n").unwrap();
        let absent = folder.join("absent.pem");
        let text = |error: Option<Error>| error.map(|error| error.to_string()).unwrap_or_default();
        let found = text(ServerTls::load(&empty, &empty, None).err());
        assert!(found.contains("empty.pem") && found.contains("no certificate"), "{found}");
        let found = text(ClientTls::load(Some(&absent), None).err());
        assert!(found.contains("absent.pem"), "{found}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
