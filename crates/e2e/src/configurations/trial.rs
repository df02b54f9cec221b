//! A proxy that is looked at from outside: its addresses, requests to it, and words for what was answered.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use super::echo::EchoOrigin;
use super::{TrialEnvironment, free_addresses};
use crate::guard;
use crate::http::{HttpConnection, HttpResponse, RequestFailure, connect};

/// The longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// The time after which a connection counts as one that stays open.
const OPEN_AFTER: Duration = Duration::from_secs(3);
/// The name that requests are for unless they say another one.
const HOST: &str = "example.org";

/// A proxy with one of a feature's files.
pub struct FeatureTrial {
    /// Where it listens.
    pub listen: SocketAddr,
    /// A second address of it, which a file may use.
    pub second: SocketAddr,
    /// Its address for administration, if the file has one.
    pub admin: SocketAddr,
    /// The folder of its files.
    pub folder: PathBuf,
    /// The origin that most routes lead to.
    pub app: EchoOrigin,
    /// Another one.
    pub spare: EchoOrigin,
    /// The authority of the certificate for other.test.
    pub other_ca: PathBuf,
    /// The folder of a client's certificate.
    pub client: PathBuf,
    /// The highest serial of an answer so far.
    serial: AtomicU64,
}

impl FeatureTrial {
    pub(super) fn new(around: &TrialEnvironment, listen: SocketAddr, folder: &Path) -> Result<FeatureTrial> {
        let [second, admin] = free_addresses()?;
        Ok(FeatureTrial {
            listen,
            second,
            admin,
            folder: folder.to_owned(),
            app: around.app.clone(),
            spare: around.spare.clone(),
            other_ca: around.other.ca.clone(),
            client: around.client.clone(),
            serial: AtomicU64::new(0),
        })
    }

    /// What stands in braces in a file.
    pub(super) fn places(&self, around: &TrialEnvironment) -> Vec<(&'static str, String)> {
        let url = |echo: &EchoOrigin| format!("http://{}", echo.address());
        let path = |path: &Path| path.display().to_string();
        vec![
            ("listen", self.listen.to_string()),
            ("second", self.second.to_string()),
            ("admin", self.admin.to_string()),
            ("folder", path(&self.folder)),
            ("app", url(&around.app)),
            ("app-port", around.app.address().port().to_string()),
            ("spare", url(&around.spare)),
            ("closing", url(&around.closing)),
            ("cert", path(&around.own.certificate)),
            ("key", path(&around.own.key)),
            ("other-cert", path(&around.other.certificate)),
            ("other-key", path(&around.other.key)),
            ("other-ca", path(&around.other.ca)),
        ]
    }

    /// Makes a GET request on a new connection, written as `[HOST ]/path[ | header: value]…`.
    pub fn ask(&self, ask: &str) -> Result<HttpResponse> {
        let mut parts = ask.split(" | ");
        let first = parts.next().unwrap_or_default();
        let (host, target) = first.split_once(' ').unwrap_or((HOST, first));
        let mut head = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n");
        for header in parts {
            head += &format!("{header}\r\n");
        }
        self.exchange(self.listen, &format!("{head}\r\n"), "GET")
    }

    /// Sends bytes on a new connection, and reads one answer.
    pub fn exchange(&self, to: SocketAddr, bytes: &str, method: &str) -> Result<HttpResponse> {
        let answer = HttpConnection::new(to, ANSWER_MAX).exchange(bytes.as_bytes(), method);
        answer.with_context(|| bytes.lines().next().unwrap_or_default().to_owned())
    }

    /// An answer in words: its status, and for one of an origin whether it was `fetched` or `stored`.
    fn words(&self, response: &HttpResponse) -> String {
        let serial = response.header("x-serial").and_then(|serial| serial.parse::<u64>().ok());
        match serial {
            None => response.status.to_string(),
            Some(serial) if self.serial.fetch_max(serial, Ordering::Relaxed) < serial => {
                format!("{} fetched", response.status)
            }
            Some(_) => format!("{} stored", response.status),
        }
    }

    /// Makes requests, one after the other; returns the answers in words.
    pub fn each(&self, asks: &[&str]) -> Result<String> {
        let answers: Result<Vec<String>> = asks.iter().map(|ask| Ok(self.words(&self.ask(ask)?))).collect();
        Ok(answers?.join(", "))
    }

    /// The statuses of requests, one after the other.
    pub fn statuses(&self, asks: &[&str]) -> Result<String> {
        let answers: Result<Vec<String>> = asks.iter().map(|ask| Ok(self.ask(ask)?.status.to_string())).collect();
        Ok(answers?.join(" "))
    }

    /// The statuses of requests at once, the lowest first.
    pub fn statuses_at_once(&self, asks: &[&str]) -> Result<String> {
        let answers: Vec<Result<HttpResponse>> = std::thread::scope(|scope| {
            let started: Vec<_> = asks.iter().map(|ask| scope.spawn(move || self.ask(ask))).collect();
            let joined = started.into_iter().map(|thread| thread.join());
            joined.map(|answer| answer.unwrap_or_else(|_| Err(anyhow::anyhow!("a client panicked")))).collect()
        });
        let mut statuses = Vec::new();
        for answer in answers {
            statuses.push(answer?.status.to_string());
        }
        statuses.sort_unstable();
        Ok(statuses.join(" "))
    }

    /// A header of the answer, or `-`.
    pub fn answered(&self, ask: &str, name: &str) -> Result<String> {
        Ok(self.ask(ask)?.header(name).unwrap_or("-").to_owned())
    }

    /// A header of the request as the origin got it, or `-`.
    pub fn sent(&self, ask: &str, name: &str) -> Result<String> {
        Ok(sent(&self.ask(ask)?, name))
    }

    /// The names of the origins that answer so many requests.
    pub fn origins(&self, count: usize, ask: &str) -> Result<String> {
        let answers: Result<BTreeSet<String>> = (0..count).map(|_| self.answered(ask, "x-origin")).collect();
        Ok(answers?.into_iter().collect::<Vec<_>>().join(" "))
    }

    /// Sends bytes, and waits for some seconds. *Returns*: whether the connection has `ended`, or is `open`; bytes that
    /// come are ignored.
    pub fn end_of(&self, bytes: &str) -> Result<&'static str> {
        let mut stream = connect(self.listen, OPEN_AFTER)?;
        stream.write_all(bytes.as_bytes())?;
        let mut room = [0; 4096];
        loop {
            match stream.read(&mut room) {
                Ok(0) => return Ok("ended"),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                    return Ok("open");
                }
                Err(_) => return Ok("ended"),
            }
        }
    }

    /// The status of an answer of another address, or `refused` if nothing listens there.
    pub fn status_at(&self, address: SocketAddr, head: &str) -> Result<String> {
        match HttpConnection::new(address, ANSWER_MAX).exchange(head.as_bytes(), "GET") {
            Ok(response) => Ok(response.status.to_string()),
            Err(RequestFailure::Connection(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                Ok("refused".to_owned())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Asks for `https://HOST:PORT/a` with curl. *Returns*: version and status, or `refused`.
    pub fn curl(&self, host: &str, arguments: &[&str]) -> Result<String> {
        let port = self.listen.port();
        let mut command = Command::new("curl");
        command.args(["-sS", "--noproxy", "*", "-m", "20", "--http2", "-o", "/dev/null"]);
        command.args(["-w", "%{http_version} %{http_code}", "--resolve", &format!("{host}:{port}:127.0.0.1")]);
        command.args(arguments).arg(format!("https://{host}:{port}/a"));
        let log = self.folder.join("curl.log");
        let _ = std::fs::remove_file(&log);
        let (status, text) = guard::run("curl", command, &log, ANSWER_MAX * 2)?;
        Ok(if status.success() { text.trim().to_owned() } else { "refused".to_owned() })
    }
}

/// A header of the request that an origin answered with, or `-`.
pub(super) fn sent(response: &HttpResponse, name: &str) -> String {
    let head = String::from_utf8_lossy(&response.body);
    let mut fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let found = fields.find(|(found, _)| found.eq_ignore_ascii_case(name));
    found.map_or_else(|| "-".to_owned(), |(_, value)| value.trim().to_owned())
}
