//! Every request has a line in the access log, which says what the cache did with the request.

use std::path::{Path, PathBuf};

use nectary_config::{LogFormat, LogTarget};
use nectary_proxy::{AccessLog, ProxyOptions};
use serde_json::Value;

use crate::common::sites::{at, config, configured, origin as origin_of, route, site};
use crate::common::*;

#[tokio::test]
async fn stop_leaves_all_requests_logged() {
    let folder = std::env::temp_dir().join(format!("nectary-proxy-log-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("access.log");
    let _ = std::fs::remove_file(&path);
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::ok(&["cache-control: max-age=60", "etag: \"x\""], b"hello"));
    origin.on("/private", OriginScript::ok(&["cache-control: private"], b"mine"));
    let mut options = options();
    options.access_log = nectary_proxy::AccessLog::File(path.clone());
    let mut proxy = TestProxy::start(options).await;
    let url = origin.url("/a");
    get(proxy.address, &url, &["user-agent: \"me\"", "referer: http://r/"]).await;
    get(proxy.address, &url, &[]).await;
    get(proxy.address, &url, &["if-none-match: \"x\""]).await;
    get(proxy.address, &url, &["range: bytes=0-1"]).await;
    get(proxy.address, &origin.url("/private"), &[]).await;
    get(proxy.address, "/nothing", &[]).await;
    get(proxy.address, "http://127.0.0.1:1/", &[]).await;
    TestClient::connect(proxy.address).await.ask(&[&format!("PURGE {url} HTTP/1.1"), AUTHORIZATION]).await;
    proxy.stop().await;
    let text = std::fs::read_to_string(&path).expect("a log");
    let found: Vec<String> = text
        .lines()
        .map(|line| {
            assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
            let fields: Vec<&str> = line.split('"').collect();
            let after: Vec<&str> = fields[6].split_whitespace().collect();
            assert!(after[1].parse::<f64>().expect("seconds") < 20.0);
            format!("{}|{}|{}|{}|{} {}", fields[1], fields[2].trim(), fields[3], fields[5], after[0], after[2])
        })
        .collect();
    let expected = [
        format!("GET {url} HTTP/1.1|200 5|http://r/|\\x22me\\x22|MISS 5"),
        format!("GET {url} HTTP/1.1|200 5|-|-|HIT 5"),
        format!("GET {url} HTTP/1.1|304 0|-|-|HIT 5"),
        format!("GET {url} HTTP/1.1|206 2|-|-|HIT 5"),
        format!("GET {} HTTP/1.1|200 4|-|-|PASS 4", origin.url("/private")),
        "GET /nothing HTTP/1.1|400 182|-|-|OWN -".to_owned(),
        "GET http://127.0.0.1:1/ HTTP/1.1|502 77|-|-|FAILED -".to_owned(),
        format!("PURGE {url} HTTP/1.1|200 {}|-|-|PURGED -", url.len() + 8),
    ];
    let strip_bytes = |line: &str| {
        // Ignore the length of the proxy's own texts.
        if line.ends_with("OWN -") || line.ends_with("FAILED -") {
            line.split('|')
                .enumerate()
                .map(|(at, part)| if at == 1 { &part[..3] } else { part })
                .collect::<Vec<_>>()
                .join("|")
        } else {
            line.to_owned()
        }
    };
    let found: Vec<_> = found.iter().map(|line| strip_bytes(line)).collect();
    let expected: Vec<_> = expected.iter().map(|line| strip_bytes(line)).collect();
    assert_eq!(found, expected);
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[tokio::test]
async fn cut_response_is_logged() {
    let folder = std::env::temp_dir().join(format!("nectary-proxy-cut-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("access.log");
    let _ = std::fs::remove_file(&path);
    let origin = TestOrigin::start().await;
    let head = b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: 10\r\n\r\n";
    origin.on("/a", OriginScript::raw(head).then(b"01234").wait("end").close());
    let mut options = options();
    options.access_log = nectary_proxy::AccessLog::File(path.clone());
    let mut proxy = TestProxy::start(options).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(request(&[&format!("GET {} HTTP/1.1", origin.url("/a"))]).as_bytes()).await;
    client.head().await;
    assert_eq!(client.take(5).await, b"01234");
    origin.open("end");
    assert!(client.rest().await.is_empty());
    proxy.stop().await;
    let text = std::fs::read_to_string(&path).expect("a log");
    assert!(text.contains("\" 200 5 \"-\" \"-\" MISS ") && text.trim_end().ends_with(" 10"), "{text}");
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[tokio::test]
async fn rotated_log_loses_no_request() {
    let folder = std::env::temp_dir().join(format!("nectary-proxy-rotated-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (path, rotated) = (folder.join("access.log"), folder.join("access.log.1"));
    let _ = std::fs::remove_file(&path);
    let origin = TestOrigin::start().await;
    origin.on("/a", OriginScript::fresh(b"hello"));
    let mut options = options();
    options.access_log = nectary_proxy::AccessLog::File(path.clone());
    let mut proxy = TestProxy::start(options).await;
    get(proxy.address, &origin.url("/a"), &[]).await;
    std::fs::rename(&path, &rotated).expect("renamed");
    let reopener = proxy.reopener();
    let problems = tokio::task::spawn_blocking(move || reopener.reopen()).await.expect("joined");
    assert!(problems.is_empty(), "{problems:?}");
    assert!(path.exists(), "it is there when the call returns");
    get(proxy.address, &origin.url("/a"), &[]).await;
    proxy.stop().await;
    let lines = |path| std::fs::read_to_string(path).expect("a log").lines().count();
    assert_eq!(lines(&path) + lines(&rotated), 2);
    assert!(lines(&path) >= 1);
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// The path of a log that is not there yet.
fn new_log(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("nectary-proxy-{name}-{}.log", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

/// The lines of a log in JSON; the log is removed.
fn objects(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a log");
    std::fs::remove_file(path).expect("removed");
    text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect()
}

/// The fields of a line that tell one request from another and are the same in each run; times are `true`.
fn steady(line: &Value) -> Value {
    let mut line = line.clone();
    let fields = line.as_object_mut().expect("an object");
    for (name, value) in [("client", "127.0.0.1"), ("method", "GET"), ("scheme", "http"), ("protocol", "HTTP/1.1")] {
        assert_eq!(fields.remove(name), Some(value.into()), "{name}");
    }
    let time = fields.remove("time").expect("a time");
    assert!(time.as_str().is_some_and(|time| time.len() == 24 && time.ends_with('Z')), "{time}");
    let total = fields.remove("total_ms").expect("a duration");
    assert!(total.as_f64().is_some_and(|ms| ms < 20_000.0), "{total}");
    for name in ["connect_ms", "first_byte_ms"] {
        if let Some(ms) = fields.remove(name) {
            assert!(ms.as_f64() <= total.as_f64(), "{name}: {ms} of {total}");
            fields.insert(name.to_owned(), true.into());
        }
    }
    line
}

#[tokio::test]
async fn json_lines_tell_sites_and_servers() {
    let origin = TestOrigin::start().await;
    let long = vec![7; 100_000];
    origin.on("/a", OriginScript::fresh(b"hello")).on("/static/long", OriginScript::fresh(&long));
    origin.on("/private", OriginScript::ok(&["cache-control: private"], b"mine"));
    let path = new_log("json");
    let site = site(&["one.example", "www.one.example"], vec![route("/", "app"), route("/static/", "app")]);
    let mut config = config(vec![site], vec![origin_of("app", &[origin.address])]);
    config.log.access = Some(at(LogTarget::File(path.clone())));
    config.log.format = Some(at(LogFormat::Json));
    let mut proxy = configured(config).await;
    let agent = "user-agent: \"me\"";
    get(proxy.address, "/a", &["host: one.example", agent]).await;
    // One is answered without hyper, the other one with it.
    get(proxy.address, "/a", &["host: one.example", agent]).await;
    get(proxy.address, "/a", &["host: www.one.example", "x-other: 1"]).await;
    get(proxy.address, "/private", &["host: www.one.example"]).await;
    get(proxy.address, "/static/long", &["host: one.example"]).await;
    get(proxy.address, "/a", &["host: three.example"]).await;
    proxy.stop().await;
    let found: Vec<_> = objects(&path).iter().map(steady).collect();
    let server = format!("http://{}", origin.address);
    // The connection to the origin is kept after the first request.
    let expected = serde_json::json!([
        {
            "host": "one.example", "target": "/a", "status": 200, "bytes": 5, "object_bytes": 5,
            "user_agent": "\"me\"", "outcome": "MISS", "site": "one.example", "route": "/",
            "server": server, "connect_ms": true, "first_byte_ms": true,
        },
        {
            "host": "one.example", "target": "/a", "status": 200, "bytes": 5, "object_bytes": 5,
            "user_agent": "\"me\"", "outcome": "HIT", "site": "one.example", "route": "/",
        },
        {
            "host": "www.one.example", "target": "/a", "status": 200, "bytes": 5, "object_bytes": 5,
            "outcome": "HIT", "site": "one.example", "route": "/",
        },
        {
            "host": "www.one.example", "target": "/private", "status": 200, "bytes": 4, "object_bytes": 4,
            "outcome": "PASS", "site": "one.example", "route": "/", "server": server, "first_byte_ms": true,
        },
        {
            "host": "one.example", "target": "/static/long", "status": 200, "bytes": 100_000, "object_bytes": 100_000,
            "outcome": "MISS", "site": "one.example", "route": "/static/", "server": server, "first_byte_ms": true,
        },
        {
            "host": "three.example", "target": "/a", "status": 404, "bytes": found[5]["bytes"], "outcome": "OWN",
        },
    ]);
    assert_eq!(Value::Array(found), expected);
}

#[tokio::test]
async fn json_lines_tell_refusals_and_failures() {
    let path = new_log("json-refused");
    let access_log = AccessLog::File(path.clone());
    let log_format = nectary_proxy::LogFormat::Json;
    let mut proxy = TestProxy::start(ProxyOptions { access_log, log_format, ..options() }).await;
    get(proxy.address, "http://127.0.0.1:1/x", &[]).await;
    let mut client = TestClient::connect(proxy.address).await;
    client.send(b"G\x01T /\xff\\ HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.reply(false).await.status, 400);
    proxy.stop().await;
    let found = objects(&path);
    let failed = &found[0];
    assert_eq!(
        (&failed["status"], &failed["outcome"], &failed["host"], &failed["target"], failed.get("server")),
        (&502.into(), &"FAILED".into(), &"127.0.0.1:1".into(), &"/x".into(), None)
    );
    let refused = &found[1];
    assert_eq!(
        (&refused["status"], &refused["outcome"], &refused["method"], &refused["target"], refused.get("site")),
        (&400.into(), &"OWN".into(), &"-".into(), &"G\u{1}T /\\xFF\\x5C".into(), None)
    );
}
