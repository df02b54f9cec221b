//! Features of listeners, TLS, limits of clients, administration, the log, and the forward proxy.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::trial::sent;
use super::{ConfigurationFeature, FeatureTrial};
use crate::http::HttpConnection;
use crate::nectary::AUTHORIZATION;

/// The longest time until a line is in the access log.
const LINE_MAX: Duration = Duration::from_secs(2);
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// The longest time until a connection is refused.
const REFUSAL_MAX: Duration = Duration::from_secs(1);

/// What is purged.
const TAG: (&str, &str) = ("Surrogate-Key", "t");

/// The features, each with its two files.
pub const FEATURES: &[ConfigurationFeature] = &[
    ConfigurationFeature {
        name: "tls-with-http2",
        file: "[[listener]]\naddress = \"{listen}\"\n+ tls = true\n+ [[tls.certificate]]\n+ cert = \"{cert}\"\n\
               + key = \"{key}\"\n%store\n%app\n%site",
        see: |trial| trial.curl("example.org", &["-k"]),
        with: "2 200",
        without: "refused",
    },
    ConfigurationFeature {
        name: "tls-certificate-by-name",
        file: r#"
%tls
+ [[tls.certificate]]
+ cert = "{other-cert}"
+ key = "{other-key}"
%store
%app
[[site]]
default = true
[[site.route]]
origin = "app"
"#,
        see: |trial| trial.curl("other.test", &["--cacert", shown(&trial.other_ca)?]),
        with: "2 200",
        without: "refused",
    },
    ConfigurationFeature {
        name: "tls-unknown-name",
        file: r#"
%listener
tls = true
[tls]
+ unknown-name = "refuse"
[[tls.certificate]]
cert = "{cert}"
key = "{key}"
%store
%app
[[site]]
default = true
[[site.route]]
origin = "app"
"#,
        see: |trial| Ok(format!("{}, {}", trial.curl("unknown.test", &["-k"])?, trial.curl("example.org", &["-k"])?)),
        with: "refused, 2 200",
        without: "2 200, 2 200",
    },
    ConfigurationFeature {
        name: "tls-version-min",
        file: r#"
%listener
tls = true
[tls]
+ version-min = "1.3"
[[tls.certificate]]
cert = "{cert}"
key = "{key}"
%store
%app
%site
"#,
        see: |trial| {
            let older = trial.curl("example.org", &["-k", "--tls-max", "1.2"])?;
            Ok(format!("{older}, {}", trial.curl("example.org", &["-k"])?))
        },
        with: "refused, 2 200",
        without: "2 200, 2 200",
    },
    ConfigurationFeature {
        name: "tls-client-ca",
        file: r#"
%listener
tls = true
[tls]
+ client-ca = "{other-ca}"
[[tls.certificate]]
cert = "{cert}"
key = "{key}"
%store
%app
%site
"#,
        see: |trial| {
            let (cert, key) = (trial.client.join("client-cert.pem"), trial.client.join("client-key.pem"));
            let named = trial.curl("example.org", &["-k", "--cert", shown(&cert)?, "--key", shown(&key)?])?;
            Ok(format!("{}, {named}", trial.curl("example.org", &["-k"])?))
        },
        with: "refused, 2 200",
        without: "2 200, 2 200",
    },
    ConfigurationFeature {
        name: "redirect-to-https",
        file: r#"
%tls
+ [[listener]]
+ address = "{second}"
+ redirect-to-https = true
%store
%app
%site
"#,
        see: |trial| {
            let head = "GET /a HTTP/1.1\r\nhost: example.org\r\n\r\n";
            let status = trial.status_at(trial.second, head)?;
            if status == "refused" {
                return Ok(status);
            }
            let response = trial.exchange(trial.second, head, "GET")?;
            let place = response.header("location").unwrap_or("-");
            let scheme = place.split("example.org").next().unwrap_or_default();
            Ok(format!("{status} {scheme}"))
        },
        with: "308 https://",
        without: "refused",
    },
    ConfigurationFeature {
        name: "proxy-protocol-from",
        file: "%listener\n+ proxy-protocol-from = [\"127.0.0.1\"]\n%store\n%app\n%site",
        see: |trial| {
            let head = "GET /a HTTP/1.1\r\nhost: example.org\r\n\r\n";
            let line = "PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n";
            let response = trial.exchange(trial.listen, &format!("{line}{head}"), "GET")?;
            Ok(format!("{} {}", response.status, sent(&response, "x-forwarded-for")))
        },
        with: "200 192.0.2.7",
        without: "400 -",
    },
    ConfigurationFeature {
        name: "trust-forwarded",
        file: "%listener\n%store\n+ trust-forwarded = [\"127.0.0.1\"]\n%app\n%site",
        see: |trial| {
            let told = trial.sent("/a | x-forwarded-for: 192.0.2.9", "x-forwarded-for")?;
            Ok(if told.contains("192.0.2.9") { "passed on".to_owned() } else { "removed".to_owned() })
        },
        with: "passed on",
        without: "removed",
    },
    ConfigurationFeature {
        name: "send-forwarded",
        file: "%listener\n%store\n+ send-forwarded = false\n%app\n%site",
        see: |trial| trial.sent("/a", "x-forwarded-for"),
        with: "-",
        without: "127.0.0.1",
    },
    ConfigurationFeature {
        name: "connections-max",
        file: "%listener\n%store\n[limits]\n+ connections-max = 2\n%app\n%site",
        see: |trial| third_connection(trial, "GET /a HT"),
        with: "200 200 503",
        without: "200 200 200",
    },
    ConfigurationFeature {
        name: "client-connections-max",
        file: "%listener\n%store\n[limits]\n+ client-connections-max = 2\n%app\n%site",
        see: |trial| third_connection(trial, ""),
        with: "200 200 429",
        without: "200 200 200",
    },
    ConfigurationFeature {
        name: "client-requests",
        file: "%listener\n%store\n[limits]\n+ client-requests = \"3/min\"\n%app\n%site",
        see: |trial| trial.statuses(&["/a"; 5]),
        with: "200 200 200 429 429",
        without: "200 200 200 200 200",
    },
    ConfigurationFeature {
        name: "upload-max",
        file: "%listener\n%store\n[limits]\n+ upload-max = \"10\"\n%app\n%site",
        see: |trial| {
            let text = "POST /a HTTP/1.1\r\nhost: example.org\r\ncontent-length: 11\r\n\r\nhello world";
            Ok(trial.exchange(trial.listen, text, "POST")?.status.to_string())
        },
        with: "413",
        without: "200",
    },
    ConfigurationFeature {
        name: "url-max",
        file: "%listener\n%store\n[limits]\n+ url-max = \"100\"\n%app\n%site",
        see: |trial| trial.statuses(&["/a", &format!("/{}", "x".repeat(200))]),
        with: "200 414",
        without: "200 200",
    },
    ConfigurationFeature {
        name: "headers-max",
        file: "%listener\n%store\n[limits]\n+ headers-max = 10\n%app\n%site",
        see: |trial| trial.statuses(&["/a", &format!("/a{}", " | x: y".repeat(12))]),
        with: "200 431",
        without: "200 200",
    },
    ConfigurationFeature {
        name: "head-time",
        file: "%listener\n%store\n[limits]\n+ head-time = \"300ms\"\n%app\n%site",
        see: |trial| Ok(trial.end_of("GET /a HTTP/1.1\r\nhost")?.to_owned()),
        with: "ended",
        without: "open",
    },
    ConfigurationFeature {
        name: "keep-alive",
        file: "%listener\n%store\n[limits]\n+ keep-alive = \"300ms\"\n%app\n%site",
        see: |trial| Ok(trial.end_of("GET /a HTTP/1.1\r\nhost: example.org\r\n\r\n")?.to_owned()),
        with: "ended",
        without: "open",
    },
    ConfigurationFeature {
        name: "log-access",
        file: "%listener\n%store\n[log]\n+ access = \"{folder}/access.log\"\n- access = \"none\"\n%app\n%site",
        see: |trial| {
            trial.statuses(&["/logged"])?;
            let line = logged(trial)?;
            Ok(if line.contains("/logged") { "a line".to_owned() } else { format!("no line {line}") })
        },
        with: "a line",
        without: "no line ",
    },
    ConfigurationFeature {
        name: "log-format-json",
        file: "%listener\n%store\n[log]\naccess = \"{folder}/access.log\"\n+ format = \"json\"\n%app\n%site",
        see: |trial| {
            trial.statuses(&["/logged"])?;
            let value = serde_json::from_str::<Value>(&logged(trial)?).unwrap_or_default();
            Ok(if value.is_object() { "an object".to_owned() } else { "text".to_owned() })
        },
        with: "an object",
        without: "text",
    },
    ConfigurationFeature {
        name: "admin-listen",
        file: "%listener\n%store\n+ %admin\n%app\n%site",
        see: |trial| {
            let pages = ["/healthz", "/readyz", "/metrics", "/status.json", "/"].map(|page| {
                trial.status_at(trial.admin, &format!("GET {page} HTTP/1.1\r\nhost: {}\r\n\r\n", trial.admin))
            });
            Ok(pages.into_iter().collect::<Result<Vec<_>>>()?.join(" "))
        },
        with: "200 200 200 200 200",
        without: "refused refused refused refused refused",
    },
    ConfigurationFeature {
        name: "admin-token-file",
        file: "%listener\n%store\n%admin\n+ token-file = \"{folder}/token\"\n%app\n%site",
        see: |trial| {
            let mut statuses = Vec::new();
            for headers in [&[TAG][..], &[TAG, AUTHORIZATION]] {
                let response = HttpConnection::new(trial.admin, ANSWER_MAX).request("PURGE", "/", headers)?;
                statuses.push(response.status.to_string());
            }
            Ok(statuses.join(" "))
        },
        with: "401 200",
        without: "200 200",
    },
    ConfigurationFeature {
        name: "forward-proxy",
        file: "%listener\n%store\n+ [forward-proxy]\n%app\n%site",
        see: |trial| {
            let origin = trial.app.address();
            let head = format!("GET http://{origin}/a HTTP/1.1\r\nhost: {origin}\r\n\r\n");
            let status = trial.exchange(trial.listen, &head, "GET")?.status;
            Ok(if status >= 400 { "refused".to_owned() } else { status.to_string() })
        },
        with: "200",
        without: "refused",
    },
    ConfigurationFeature {
        name: "forward-proxy-default-ttl",
        file: "%listener\n%store\n[forward-proxy]\n+ default-ttl = \"1h\"\n%app\n%site",
        see: |trial| {
            let target = format!("{0} http://{0}/a", trial.app.address());
            trial.each(&[&target, &target])
        },
        with: "200 fetched, 200 stored",
        without: "200 fetched, 200 fetched",
    },
    ConfigurationFeature {
        name: "connect-ports",
        file: "%listener\n%store\n[forward-proxy]\n+ connect-ports = [{app-port}]\n%app\n%site",
        see: |trial| {
            let origin = trial.app.address();
            // A tunnel's answer has no body: what follows would be the origin's.
            let head = format!("CONNECT {origin} HTTP/1.1\r\nhost: {origin}\r\n\r\n");
            Ok(trial.exchange(trial.listen, &head, "HEAD")?.status.to_string())
        },
        with: "200",
        without: "403",
    },
];

/// A path as an argument.
fn shown(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}

/// The statuses of two connections that stay open, on which `more` is sent after the answers, and of a third one.
fn third_connection(trial: &FeatureTrial, more: &str) -> Result<String> {
    let head = b"GET /a HTTP/1.1\r\nhost: example.org\r\n\r\n";
    let mut kept = [(); 2].map(|()| HttpConnection::new(trial.listen, ANSWER_MAX));
    let mut statuses = Vec::new();
    for connection in &mut kept {
        statuses.push(connection.exchange(head, "GET")?.status.to_string());
        connection.send(more.as_bytes())?;
    }
    // What has begun a request is not displaced; nothing shows from outside when the proxy has seen that.
    std::thread::sleep(REFUSAL_MAX / 4);
    let mut third = HttpConnection::new(trial.listen, REFUSAL_MAX);
    third.send(b"")?;
    // A refusal comes without a request, and its connection takes none.
    let response = match third.wait_begun() {
        Ok(()) => third.receive("GET")?,
        Err(_) => third.exchange(head, "GET")?,
    };
    statuses.push(response.status.to_string());
    Ok(statuses.join(" "))
}

/// The first line of the access log; empty if there is none after a while.
fn logged(trial: &FeatureTrial) -> Result<String> {
    let (path, begun) = (trial.folder.join("access.log"), Instant::now());
    loop {
        let text = if path.is_file() { std::fs::read_to_string(&path)? } else { String::new() };
        match text.split_once('\n') {
            Some((line, _)) => return Ok(line.to_owned()),
            None if begun.elapsed() > LINE_MAX => return Ok(String::new()),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
