//! Runs a proxy that orders certificates from pebble, the test server of Let's Encrypt: `e2e-campaigns acme`.
//!
//! pebble and its name server are built from their Go modules into `target/tools`. For each kind of challenge a
//! certificate is issued and served, is kept by a restart, is revoked and ordered again, a name is refused, the
//! authority forgets the account, and a certificate of 90 seconds is renewed in time. A clock that is ahead is not
//! simulated here: the tests of `nectary-proxy` have certificates that end before they come.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use nectary_e2e::guard::{self, GuardedProcess, find_program};
use nectary_e2e::http::wait_listening;
use nectary_e2e::nectary::certificates::ServerCertificates;
use nectary_e2e::nectary::{NectaryProxy, ProxyCommand, binary};
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::scratch::{ScratchFolder, free_address};
use serde_json::{Value, json};

use crate::rounds::{NotRunPolicy, ProblemCounter, first_line};

const MODULE: &str = "github.com/letsencrypt/pebble/v2/cmd";
/// The longest time of a build.
const BUILD_LIMIT: Duration = Duration::from_secs(600);
/// The longest time of a step, and that of one command.
const STEP_LIMIT: Duration = Duration::from_secs(60);
const COMMAND_LIMIT: Duration = Duration::from_secs(20);
/// The longest time until a certificate of 90 seconds is renewed.
const RENEWAL_LIMIT: Duration = Duration::from_secs(90);
/// The lifetimes of certificates. *Units*: seconds.
const LONG_S: u64 = 90 * 86_400;
const SHORT_S: u64 = 90;

/// The names: the first is issued, the second comes with a reload, the third is refused.
const NAMES: [&str; 3] = ["one.acme.test", "two.acme.test", "blocked.acme.test"];

/// Orders, renews and revokes certificates with pebble.
#[derive(Args)]
pub struct AcmeArguments {
    /// The folder of the programs pebble and pebble-challtestsrv, if they are not to be built
    #[arg(long, value_name = "DIR")]
    tools: Option<PathBuf>,
    /// Only this challenge: http-01 or tls-alpn-01
    #[arg(long, value_name = "CHALLENGE")]
    challenge: Option<String>,
}

/// Runs the campaign.
pub fn campaign(arguments: &AcmeArguments) -> Result<ExitCode> {
    let scratch = ScratchFolder::new("acme")?;
    for program in ["curl", "openssl"] {
        if find_program(program).is_none() {
            return Ok(NotRunPolicy::IsAllowed.exit("acme", format!("{program} is not installed")));
        }
    }
    let tools = match find(arguments, &scratch)? {
        Ok(tools) => tools,
        Err(reason) => return Ok(NotRunPolicy::IsAllowed.exit("acme", reason)),
    };
    let mut problems = ProblemCounter::default();
    for challenge in ["http-01", "tls-alpn-01"] {
        if arguments.challenge.as_deref().is_some_and(|only| only != challenge) {
            continue;
        }
        if let Err(error) = AcmeRig::new(&scratch, &tools, challenge).and_then(|rig| rig.run()) {
            problems.add(format!("{challenge}: {error:#}"));
        }
    }
    Ok(problems.exit())
}

/// Finds or builds the programs; or says why they cannot be had. *Returns*: their folder.
fn find(arguments: &AcmeArguments, scratch: &ScratchFolder) -> Result<Result<PathBuf, String>> {
    if let Some(tools) = &arguments.tools {
        return Ok(Ok(tools.clone()));
    }
    let tools = binary()?.parent().and_then(Path::parent).context("a target directory")?.join("tools");
    for program in ["pebble", "pebble-challtestsrv"] {
        if tools.join(program).is_file() {
            continue;
        }
        let go = find_program("go").or_else(|| Some(PathBuf::from("/usr/local/go/bin/go")).filter(|go| go.is_file()));
        let Some(go) = go else {
            return Ok(Err(format!("{program} is built with Go, which is not installed")));
        };
        std::fs::create_dir_all(&tools)?;
        let mut command = Command::new(go);
        command.arg("install").arg(format!("{MODULE}/{program}@latest")).env("GOBIN", std::path::absolute(&tools)?);
        let (status, output) = guard::run("go", command, &scratch.join("go.log"), BUILD_LIMIT)?;
        if !status.success() {
            return Ok(Err(format!("{program} could not be built: {}", output.trim())));
        }
    }
    Ok(Ok(tools))
}

/// An authority, its name server, an origin, and a proxy between them.
struct AcmeRig<'a> {
    tools: &'a Path,
    challenge: &'a str,
    folder: PathBuf,
    /// The certificate of the authority's own server.
    server: ServerCertificates,
    directory: SocketAddr,
    management: SocketAddr,
    names: SocketAddr,
    plain: SocketAddr,
    origin: DeterministicOrigin,
    command: ProxyCommand,
}

impl<'a> AcmeRig<'a> {
    fn new(scratch: &ScratchFolder, tools: &'a Path, challenge: &'a str) -> Result<AcmeRig<'a>> {
        let folder = scratch.join(challenge);
        std::fs::create_dir_all(&folder)?;
        Ok(AcmeRig {
            tools,
            challenge,
            server: ServerCertificates::make(&folder, "127.0.0.1,localhost")?,
            directory: free_address()?,
            management: free_address()?,
            names: free_address()?,
            plain: free_address()?,
            origin: DeterministicOrigin::start()?,
            command: ProxyCommand::new(&folder, None)?,
            folder,
        })
    }

    fn run(&self) -> Result<()> {
        let _names = self.start_names()?;
        let pebble = self.start_pebble(LONG_S)?;
        self.write_file(&NAMES[..1])?;
        let mut proxy = self.start_proxy()?;
        self.wait_served(NAMES[0])?;
        println!("{}: issued", self.challenge);

        let issued = self.file_of(NAMES[0])?;
        proxy.terminate(COMMAND_LIMIT)?;
        let mut proxy = self.start_proxy()?;
        self.is_served(NAMES[0]).context("after a restart")?;
        ensure!(self.file_of(NAMES[0])? == issued, "a restart has ordered another certificate");
        println!("{}: kept by a restart", self.challenge);

        self.revoke(NAMES[0]).context("cannot revoke")?;
        proxy.process.signal(libc::SIGHUP);
        // Between two orders of a name there is a minute, also over a restart.
        wait("another certificate after the revocation", 3 * STEP_LIMIT, || Ok(self.file_of(NAMES[0])? != issued))?;
        self.wait_served(NAMES[0])?;
        println!("{}: revoked, and ordered again", self.challenge);

        self.write_file(&[NAMES[0], NAMES[2]])?;
        proxy.process.signal(libc::SIGHUP);
        wait("a problem in the status", STEP_LIMIT, || Ok(self.problems(&proxy)?.contains(NAMES[2])))?;
        self.is_served(NAMES[0]).context("beside a refused name")?;
        println!("{}: refused: {}", self.challenge, self.problems(&proxy)?);

        // Another authority at the same address knows no account, and gives short certificates.
        drop(pebble);
        let _pebble = self.start_pebble(SHORT_S)?;
        self.write_file(&NAMES[..2])?;
        proxy.process.signal(libc::SIGHUP);
        self.wait_served(NAMES[1])?;
        println!("{}: issued by an authority that has forgotten the account", self.challenge);
        let short = self.file_of(NAMES[1])?;
        wait("a renewal in time", RENEWAL_LIMIT, || Ok(self.file_of(NAMES[1])? != short))?;
        self.is_served(NAMES[1]).context("after the renewal")?;
        println!("{}: renewed", self.challenge);
        ensure!(self.problems(&proxy)?.is_empty(), "the status is {}", self.problems(&proxy)?);
        proxy.terminate(COMMAND_LIMIT)?;
        Ok(())
    }

    /// Starts the name server, for which every name is on this machine.
    fn start_names(&self) -> Result<GuardedProcess> {
        let mut command = Command::new(self.tools.join("pebble-challtestsrv"));
        let none = ["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-defaultIPv6", ""];
        let management = free_address()?.to_string();
        command.args(none).args(["-dnsserver", &self.names.to_string(), "-management", &management]);
        let process = GuardedProcess::spawn("pebble-challtestsrv", command, &self.folder.join("names.log"), None)?;
        wait_listening(self.names, COMMAND_LIMIT).context("the name server does not listen")?;
        Ok(process)
    }

    /// Starts an authority whose certificates have this lifetime. It knows nothing of earlier ones.
    fn start_pebble(&self, lifetime_s: u64) -> Result<GuardedProcess> {
        let config = json!({ "pebble": {
            "listenAddress": self.directory,
            "managementListenAddress": self.management,
            "certificate": self.server.certificate,
            "privateKey": self.server.key,
            "httpPort": self.plain.port(),
            "tlsPort": self.command.listen.port(),
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
            "domainBlocklist": [NAMES[2]],
            "retryAfter": { "authz": 1, "order": 1 },
            "keyAlgorithm": "ecdsa",
            "profiles": { "default": { "description": "all", "validityPeriod": lifetime_s } },
        } });
        let file = self.folder.join("pebble.json");
        std::fs::write(&file, config.to_string())?;
        let mut command = Command::new(self.tools.join("pebble"));
        command.arg("-config").arg(file).args(["-dnsserver", &self.names.to_string()]).env("PEBBLE_VA_NOSLEEP", "1");
        let process = GuardedProcess::spawn("pebble", command, &self.folder.join("pebble.log"), None)?;
        wait_listening(self.directory, COMMAND_LIMIT).context("pebble does not listen")?;
        wait_listening(self.management, COMMAND_LIMIT).context("pebble does not listen for administration")?;
        let root = self.curl(&self.server.ca, &[&format!("https://{}/roots/0", self.management)])?;
        std::fs::write(self.root(), root)?;
        Ok(process)
    }

    /// The certificate that clients trust.
    fn root(&self) -> PathBuf {
        self.folder.join("root.pem")
    }

    fn configuration(&self) -> PathBuf {
        self.folder.join("proxy.toml")
    }

    /// Writes the proxy's file, with a site of these names.
    fn write_file(&self, names: &[&str]) -> Result<()> {
        let (command, ca) = (&self.command, self.server.ca.display());
        let text = format!(
            r#"
[server]
workers = 1

[[listener]]
address = "{}"
tls = true

[[listener]]
address = "{}"
redirect-to-https = true

[tls.acme]
directory = "https://{}/dir"
contact = ["admin@acme.test"]
accept-terms = true
state = "{}"
challenge = "{}"
ca = "{ca}"

[store]
device = "{}"
size = "{}"
memory = "{}"

[origins.one]
servers = ["{}"]

[[site]]
names = {names:?}

[[site.route]]
origin = "one"
"#,
            command.listen,
            self.plain,
            self.directory,
            self.folder.join("acme").display(),
            self.challenge,
            command.store,
            command.size,
            command.memory,
            self.origin.url(),
        );
        Ok(std::fs::write(self.configuration(), text)?)
    }

    fn start_proxy(&self) -> Result<NectaryProxy> {
        self.command.start_with_file(&self.configuration())
    }

    /// The file of a name's certificate; empty if there is none.
    fn file_of(&self, name: &str) -> Result<String> {
        let authority = self.directory.to_string().replace(':', "_3a");
        let path = self.folder.join("acme").join(format!("{authority}_2fdir")).join(format!("{name}.pem"));
        match path.is_file() {
            true => Ok(std::fs::read_to_string(path)?),
            false => Ok(String::new()),
        }
    }

    /// Asks the proxy for a page, as a client that trusts the authority.
    fn is_served(&self, name: &str) -> Result<()> {
        let port = self.command.listen.port();
        let (place, url) = (format!("{name}:{port}:127.0.0.1"), format!("https://{name}:{port}/anything/a?size=10"));
        self.curl(&self.root(), &["-f", "--resolve", &place, &url]).map(|_| ())
    }

    fn wait_served(&self, name: &str) -> Result<()> {
        wait(&format!("a certificate for {name}"), STEP_LIMIT, || Ok(self.is_served(name).is_ok()))
    }

    /// The problems in the proxy's status, one line.
    fn problems(&self, proxy: &NectaryProxy) -> Result<String> {
        let status = proxy.control()?.status()?;
        let problems = status["problems"].as_array().cloned().unwrap_or_default();
        let texts: Vec<&str> = problems.iter().filter_map(|problem| problem["what"].as_str()).collect();
        Ok(texts.join("; "))
    }

    fn curl(&self, ca: &Path, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("curl");
        command.args(["-sS", "--noproxy", "*", "-m", "20", "--cacert"]).arg(ca).args(arguments);
        self.output(command)
    }

    fn output(&self, command: Command) -> Result<String> {
        let log = self.folder.join("command.log");
        let _ = std::fs::remove_file(&log);
        let shown = format!("{command:?}");
        let (status, text) = guard::run("command", command, &log, COMMAND_LIMIT)?;
        if !status.success() {
            bail!("{shown}: {}: {text}", guard::describe(status));
        }
        Ok(text)
    }

    /// Revokes the certificate of a name, as its key may (RFC 8555, section 7.6).
    fn revoke(&self, name: &str) -> Result<()> {
        let (key, certificate) = (self.folder.join("revoked.pem"), self.folder.join("revoked.der"));
        std::fs::write(&key, self.file_of(name)?)?;
        let openssl = |arguments: &[&str], files: [(&str, &Path); 2]| {
            let mut command = Command::new("openssl");
            command.args(arguments);
            for (option, file) in files {
                command.arg(option).arg(file);
            }
            self.output(command)
        };
        openssl(&["x509", "-outform", "DER"], [("-in", key.as_path()), ("-out", certificate.as_path())])?;
        let public = self.folder.join("public.der");
        openssl(&["pkey", "-pubout", "-outform", "DER"], [("-in", key.as_path()), ("-out", public.as_path())])?;
        let public = std::fs::read(&public)?;
        let point = public.len().checked_sub(64).map(|start| &public[start..]).context("a public key")?;
        let jwk = json!({ "kty": "EC", "crv": "P-256", "x": base64(&point[..32]), "y": base64(&point[32..]) });

        let directory = self.curl(&self.server.ca, &[&format!("https://{}/dir", self.directory)])?;
        let directory: Value = serde_json::from_str(&directory)?;
        let (nonce, url) = (directory["newNonce"].as_str(), directory["revokeCert"].as_str());
        let (nonce, url) = (nonce.context("a place for nonces")?, url.context("a place to revoke")?);
        let head = self.curl(&self.server.ca, &["-I", nonce])?;
        let nonce = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("replay-nonce").then(|| value.trim().to_owned())
        });
        let protected = json!({ "alg": "ES256", "jwk": jwk, "nonce": nonce.context("a nonce")?, "url": url });
        let payload = json!({ "certificate": base64(&std::fs::read(&certificate)?), "reason": 1 });
        let (protected, payload) = (base64(protected.to_string().as_bytes()), base64(payload.to_string().as_bytes()));
        let (message, signature) = (self.folder.join("message"), self.folder.join("signature"));
        std::fs::write(&message, format!("{protected}.{payload}"))?;
        let mut sign = Command::new("openssl");
        sign.args(["dgst", "-sha256", "-sign"]).arg(&key).arg("-out").arg(&signature).arg(&message);
        self.output(sign)?;
        let signature = base64(&plain_signature(&std::fs::read(&signature)?).context("a signature")?);
        let body = json!({ "protected": protected, "payload": payload, "signature": signature }).to_string();
        let kind = "content-type: application/jose+json";
        self.curl(&self.server.ca, &["-f", "-X", "POST", "-H", kind, "-d", &body, url]).map(|_| ())
    }
}

/// The numbers of an ECDSA signature in DER, 32 bytes each.
fn plain_signature(der: &[u8]) -> Option<Vec<u8>> {
    let mut rest = der.get(2..)?;
    let mut plain = Vec::new();
    for _ in 0..2 {
        let length = usize::from(*rest.get(1)?);
        let number = rest.get(2..2 + length)?;
        rest = rest.get(2 + length..)?;
        let number = if number.len() > 32 { number.get(number.len() - 32..)? } else { number };
        plain.extend(std::iter::repeat_n(0, 32 - number.len()));
        plain.extend_from_slice(number);
    }
    Some(plain)
}

/// Base64url without `=`.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        let letters = (0..=chunk.len()).map(|index| bits >> (18 - 6 * index) & 63);
        text.extend(letters.map(|letter| char::from(LETTERS[letter as usize])));
    }
    text
}

/// Waits until a condition is met. *Errors*: it takes longer than `limit`, with the last error.
fn wait(what: &str, limit: Duration, is_so: impl Fn() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    loop {
        let found = is_so();
        match &found {
            Ok(true) => return Ok(()),
            _ if begun.elapsed() < limit => std::thread::sleep(Duration::from_millis(100)),
            Ok(false) => bail!("no {what} after {limit:?}"),
            Err(error) => bail!("no {what} after {limit:?}: {}", first_line(error)),
        }
    }
}
