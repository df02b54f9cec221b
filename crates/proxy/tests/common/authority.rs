//! A certificate authority that speaks just enough ACME, over TLS. It believes every signature, but really checks names:
//! by HTTP-01 or TLS-ALPN-01 at an address that the test names.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use x509_parser::time::ASN1Time;

/// A day. *Units*: seconds.
pub const DAY_S: i64 = 86_400;

/// The time so many seconds from now.
macro_rules! at {
    ($offset_s:expr) => {{
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64;
        ASN1Time::from_timestamp(now + $offset_s).expect("a time").to_datetime()
    }};
}

/// A running authority, which ends when it is dropped.
pub struct AcmeServer {
    /// Where the test keeps files; it is removed at the end.
    pub folder: PathBuf,
    pub address: SocketAddr,
    book: Arc<Mutex<AcmeServerState>>,
    task: JoinHandle<()>,
}

/// What the authority knows and does.
pub struct AcmeServerState {
    issuer: Issuer<'static, KeyPair>,
    url: String,
    nonces: u64,
    pub accounts: usize,
    pub orders: Vec<OrderRecord>,
    /// The requests for what is suggested.
    pub looks: usize,
    /// The pause that requests for what is suggested are told, and refused. *Units*: seconds.
    pub look_pause_s: Option<u64>,
    /// Whether its directory has a URL that is none.
    pub breaks_directory: bool,
    /// The kind of problem by which new orders are refused.
    pub refuses: Option<&'static str>,
    /// What it says when it refuses.
    pub says: &'static str,
    /// The pause that it asks for when it refuses a new order. *Units*: seconds.
    pub refusal_pause_s: Option<u64>,
    /// The new orders that were refused.
    pub refusals: usize,
    /// Whether each request for a new order said which certificate it replaces.
    pub replacements: Vec<bool>,
    /// Whether it has forgotten the account at the next order.
    pub forgets: bool,
    /// Where names are checked; a check waits until there is an address.
    pub check_at: Option<SocketAddr>,
    /// The validity of certificates, from now. *Units*: seconds.
    pub validity_s: (i64, i64),
    /// When the authority suggests to renew, from now. *Units*: seconds. `None`: it cannot be asked.
    pub suggests_s: Option<(i64, i64)>,
}

/// An order.
#[derive(Clone)]
pub struct OrderRecord {
    pub name: String,
    pub status: &'static str,
    /// What the check found, if it failed.
    pub problem: Option<String>,
    token: String,
    pem: String,
}

impl AcmeServer {
    /// Starts an authority that checks no name yet.
    pub async fn start(name: &str) -> AcmeServer {
        let folder = std::env::temp_dir().join(format!("nectary-proxy-acme-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        std::fs::write(folder.join("ca.pem"), params.self_signed(&key).expect("an authority").pem()).expect("written");
        let issuer = Issuer::new(params, key);
        let own = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
        let certificate = params.signed_by(&own, &issuer).expect("a certificate").der().clone();
        let key = PrivateKeyDer::try_from(own.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("a certificate");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let book = Arc::new(Mutex::new(AcmeServerState {
            issuer,
            url: format!("https://{address}"),
            nonces: 0,
            accounts: 0,
            orders: Vec::new(),
            looks: 0,
            look_pause_s: None,
            breaks_directory: false,
            refuses: None,
            says: "not for you",
            refusal_pause_s: None,
            refusals: 0,
            replacements: Vec::new(),
            forgets: false,
            check_at: None,
            validity_s: (-3600, 90 * DAY_S),
            suggests_s: Some((60 * DAY_S, 61 * DAY_S)),
        }));
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let task = tokio::spawn(serve(listener, acceptor, book.clone()));
        AcmeServer { folder, address, book, task }
    }

    /// The URL of its directory.
    pub fn directory(&self) -> String {
        format!("https://{}/dir", self.address)
    }

    /// The certificate that signs all others, in PEM.
    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// A state directory of the test.
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// The file of a name's certificate in the state directory.
    pub fn file_of(&self, name: &str) -> PathBuf {
        let address = self.address.to_string().replace(':', "_3a");
        self.state().join(format!("{address}_2fdir")).join(format!("{name}.pem"))
    }

    /// What it knows and does.
    pub fn book(&self) -> MutexGuard<'_, AcmeServerState> {
        self.book.lock().expect("no panic")
    }

    /// The accounts and the orders so far.
    pub fn counts(&self) -> (usize, usize) {
        let book = self.book();
        (book.accounts, book.orders.len())
    }

    /// Puts a certificate with this validity, from now in seconds, into the state directory. *Returns*: its bytes.
    pub fn put(&self, name: &str, validity_s: (i64, i64)) -> Vec<u8> {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        (params.not_before, params.not_after) = (at!(validity_s.0), at!(validity_s.1));
        params.use_authority_key_identifier_extension = true;
        let signed = params.signed_by(&key, &self.book().issuer).expect("a certificate");
        let file = self.file_of(name);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(file, format!("{}{}", key.serialize_pem(), signed.pem())).expect("written");
        signed.der().to_vec()
    }
}

impl Drop for AcmeServer {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The certificate in a file of a state directory.
pub fn certificate_in(path: &Path) -> Vec<u8> {
    CertificateDer::from_pem_file(path).expect("a certificate").to_vec()
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, book: Arc<Mutex<AcmeServerState>>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (acceptor, book) = (acceptor.clone(), book.clone());
        tokio::spawn(async move {
            let Ok(mut stream) = acceptor.accept(stream).await else { return };
            while let Some((method, path, body)) = read_request(&mut stream).await {
                let answer = answer(&book, &method, &path, &body).await;
                if stream.write_all(&answer).await.is_err() || stream.flush().await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Reads a request; `None` at the end of the connection.
async fn read_request(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<(String, String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if !matches!(stream.read_buf(&mut bytes).await, Ok(count) if count > 0) {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok()).flatten()
    });
    while bytes.len() < end + length.unwrap_or(0) {
        if !matches!(stream.read_buf(&mut bytes).await, Ok(count) if count > 0) {
            return None;
        }
    }
    let mut words = head.split(' ');
    Some((words.next()?.to_owned(), words.next()?.to_owned(), bytes[end..].to_vec()))
}

/// The payload of a signed request.
fn payload(body: &[u8]) -> Value {
    let signed: Value = serde_json::from_slice(body).expect("a signed request");
    let decoded = from_base64(signed["payload"].as_str().expect("a payload"));
    serde_json::from_slice(&decoded).unwrap_or(Value::Null)
}

/// Decodes base64url without `=`.
fn from_base64(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'-' => 62,
        _ => 63,
    };
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for byte in text.bytes() {
        bits = (bits << 6 | u32::from(value(byte))) & 0xff_ffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

async fn answer(book: &Mutex<AcmeServerState>, method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let (place, rest) = path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
    let index = rest.parse::<usize>().unwrap_or(0);
    if place == "challenge" {
        check(book, index).await;
    }
    let mut book = book.lock().expect("no panic");
    let url = book.url.clone();
    if (method, place) == ("POST", "new-order") {
        book.replacements.push(payload(body)["replaces"].is_string());
    }
    let (status, headers, text) = match (method, place) {
        ("GET", "dir") => (200, String::new(), book.directory().to_string()),
        ("HEAD", "nonce") => (200, String::new(), String::new()),
        ("GET", "renewal") if book.look_pause_s.is_some() => {
            book.looks += 1;
            let headers = format!("retry-after: {}\r\n", book.look_pause_s.unwrap_or_default());
            (503, headers, json!({ "type": "about:blank", "detail": "later" }).to_string())
        }
        ("GET", "renewal") => {
            book.looks += 1;
            let window = book.suggests_s.map(|(from, to)| json!({ "start": rfc3339(from), "end": rfc3339(to) }));
            (200, "retry-after: 21600\r\n".to_owned(), json!({ "suggestedWindow": window }).to_string())
        }
        ("POST", "account") => {
            book.accounts += 1;
            (201, format!("location: {url}/account/{}\r\n", book.accounts), json!({ "status": "valid" }).to_string())
        }
        ("POST", "new-order") if book.forgets => {
            book.forgets = false;
            // So long that a message does not have all of it.
            let (kind, detail) = ("urn:ietf:params:acme:error:accountDoesNotExist", "gone ".repeat(200));
            (400, String::new(), json!({ "type": kind, "detail": detail, "status": 400 }).to_string())
        }
        ("POST", "new-order") if book.refuses.is_some() => {
            book.refusals += 1;
            let kind = format!("urn:ietf:params:acme:error:{}", book.refuses.unwrap_or_default());
            // Only with these statuses is the header a pause.
            let status = if book.refusal_pause_s.is_some() { 429 } else { 403 };
            let headers = book.refusal_pause_s.map(|pause_s| format!("retry-after: {pause_s}\r\n")).unwrap_or_default();
            (status, headers, json!({ "type": kind, "detail": book.says, "status": status }).to_string())
        }
        ("POST", "new-order") => {
            let wanted = payload(body);
            let name = wanted["identifiers"][0]["value"].as_str().expect("a name").to_owned();
            let index = book.orders.len();
            book.orders.push(OrderRecord {
                name,
                status: "pending",
                problem: None,
                token: format!("token-{index}"),
                pem: String::new(),
            });
            let mut order = book.order(index);
            order["replaces"] = wanted["replaces"].clone();
            (201, format!("location: {url}/order/{index}\r\n"), order.to_string())
        }
        ("POST", "order") => (200, String::new(), book.order(index).to_string()),
        ("POST", "authorization") => (200, String::new(), book.authorization(index).to_string()),
        ("POST", "challenge") => (200, String::new(), book.challenges(index)[0].to_string()),
        ("POST", "finalize") => {
            let csr = from_base64(payload(body)["csr"].as_str().expect("a request"));
            book.sign(index, csr);
            (200, String::new(), book.order(index).to_string())
        }
        ("POST", "certificate") => (200, String::new(), book.orders[index].pem.clone()),
        _ => (404, String::new(), json!({ "type": "about:blank", "detail": path }).to_string()),
    };
    book.nonces += 1;
    let (nonce, length) = (book.nonces, text.len());
    let head =
        format!("HTTP/1.1 {status} X\r\nreplay-nonce: nonce-{nonce}\r\n{headers}content-length: {length}\r\n\r\n");
    format!("{head}{text}").into_bytes()
}

fn rfc3339(offset_s: i64) -> String {
    let time = at!(offset_s);
    let (date, clock) = (time.date(), time.time());
    format!("{date}T{:02}:{:02}:{:02}Z", clock.hour(), clock.minute(), clock.second())
}

impl AcmeServerState {
    fn directory(&self) -> Value {
        let url = &self.url;
        let mut directory = json!({
            "newNonce": format!("{url}/nonce"),
            "newAccount": format!("{url}/account"),
            "newOrder": format!("{url}/new-order"),
        });
        if self.breaks_directory {
            directory["newNonce"] = "".into();
        }
        if self.suggests_s.is_some() {
            directory["renewalInfo"] = format!("{url}/renewal").into();
        }
        directory
    }

    fn order(&self, index: usize) -> Value {
        let (url, record) = (&self.url, &self.orders[index]);
        let mut order = json!({
            "status": record.status,
            "identifiers": [{ "type": "dns", "value": record.name }],
            "authorizations": [format!("{url}/authorization/{index}")],
            "finalize": format!("{url}/finalize/{index}"),
        });
        if record.status == "valid" {
            order["certificate"] = format!("{url}/certificate/{index}").into();
        }
        order
    }

    fn authorization(&self, index: usize) -> Value {
        let record = &self.orders[index];
        let status = if matches!(record.status, "pending" | "invalid") { record.status } else { "valid" };
        json!({
            "status": status,
            "identifier": { "type": "dns", "value": record.name },
            "challenges": self.challenges(index),
        })
    }

    fn challenges(&self, index: usize) -> Vec<Value> {
        let record = &self.orders[index];
        let status = if matches!(record.status, "pending" | "invalid") { record.status } else { "valid" };
        let problem = record.problem.as_ref().map(
            |detail| json!({ "type": "urn:ietf:params:acme:error:incorrectResponse", "detail": detail, "status": 403 }),
        );
        let kinds = ["http-01", "tls-alpn-01", "dns-01"];
        let challenge = |kind| {
            let url = format!("{}/challenge/{index}", self.url);
            json!({ "type": kind, "url": url, "token": record.token, "status": status })
        };
        let mut challenges: Vec<Value> = kinds.map(challenge).into();
        if let Some(problem) = problem {
            challenges[2]["error"] = problem;
        }
        challenges
    }

    fn sign(&mut self, index: usize, csr: Vec<u8>) {
        let csr = CertificateSigningRequestDer::from(csr);
        let mut wanted = CertificateSigningRequestParams::from_der(&csr).expect("a request");
        (wanted.params.not_before, wanted.params.not_after) = (at!(self.validity_s.0), at!(self.validity_s.1));
        wanted.params.use_authority_key_identifier_extension = true;
        let signed = wanted.signed_by(&self.issuer).expect("a certificate");
        self.orders[index].pem = signed.pem();
        self.orders[index].status = "valid";
    }
}

/// Checks the name of an order as soon as there is an address.
async fn check(book: &Mutex<AcmeServerState>, index: usize) {
    let (address, record) = loop {
        let found = {
            let book = book.lock().expect("no panic");
            book.check_at.map(|address| (address, book.orders[index].clone()))
        };
        match found {
            Some(found) => break found,
            None => tokio::time::sleep(Duration::from_millis(2)).await,
        }
    };
    let by_http = http_01(address, &record).await;
    let found = match by_http {
        Ok(()) => Ok(()),
        Err(http) => tls_alpn_01(address, &record.name).await.map_err(|tls| format!("{http}; {tls}")),
    };
    let mut book = book.lock().expect("no panic");
    let order = &mut book.orders[index];
    order.status = if found.is_ok() { "ready" } else { "invalid" };
    order.problem = found.err();
}

async fn http_01(address: SocketAddr, record: &OrderRecord) -> Result<(), String> {
    let mut probe = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let token = &record.token;
    let request = format!(
        "GET /.well-known/acme-challenge/{token} HTTP/1.0\r\nhost: {}\r\nconnection: close\r\n\r\n",
        record.name
    );
    probe.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(5), probe.read_to_end(&mut text)).await;
    read.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let thumbprint = text.split_once("\r\n\r\n").and_then(|(_, body)| body.strip_prefix(&format!("{token}.")));
    match thumbprint {
        Some(thumbprint) if thumbprint.len() == 43 && text.contains(" 200 ") => Ok(()),
        _ => Err(format!("the answer is {}", text.lines().next().unwrap_or_default())),
    }
}

/// Looks whether the certificate for this name and protocol has the extension of a check.
async fn tls_alpn_01(address: SocketAddr, name: &str) -> Result<(), String> {
    let (certificate, protocol) = shown(address, name, b"acme-tls/1").await?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).map_err(|error| error.to_string())?;
    let found = parsed.extensions().iter().find(|found| found.oid.to_id_string() == "1.3.6.1.5.5.7.1.31");
    let found = found.ok_or("the certificate has no acmeIdentifier")?;
    let is_right = found.critical && found.value.len() == 34 && protocol == b"acme-tls/1";
    is_right.then_some(()).ok_or_else(|| "the acmeIdentifier is wrong".to_owned())
}

/// The certificate that a client of one protocol is shown, whoever signed it, and the protocol that was chosen.
pub async fn shown(address: SocketAddr, name: &str, protocol: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustingVerifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::try_from(name.to_owned()).map_err(|error| error.to_string())?;
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let mut stream =
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| error.to_string())?;
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| chain.first()).ok_or("no certificate")?.to_vec();
    let chosen = session.alpn_protocol().unwrap_or_default().to_vec();
    if protocol == b"acme-tls/1" {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await;
        let is_ended = ended.is_ok_and(|ended| ended.is_ok_and(|count| count == 0));
        assert!(is_ended, "the connection of a check ends after the handshake");
    }
    Ok((certificate, chosen))
}

/// Believes every certificate.
#[derive(Debug)]
struct TrustingVerifier;

impl ServerCertVerifier for TrustingVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
