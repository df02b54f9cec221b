//! `nectary proxy` as a process: its status, its exclusive use of the store, its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use crate::common::{CommandResult, CommandScratch};
use serde_json::Value;

/// A running proxy; it is killed when this is dropped.
pub struct ProxyChild {
    child: Child,
    address: SocketAddr,
    /// The error output that the proxy still writes.
    errors: BufReader<std::process::ChildStderr>,
}

impl ProxyChild {
    /// Starts a proxy on a port of the system's choice and waits until it prints its address.
    pub fn start(scratch: &CommandScratch, options: &str) -> ProxyChild {
        ProxyChild::start_at(scratch, "127.0.0.1:0", options)
    }

    fn start_at(scratch: &CommandScratch, listen: &str, options: &str) -> ProxyChild {
        ProxyChild::of(
            scratch.command(&format!("proxy --listen {listen} --size 64M --memory 32M --workers 1 {options}")),
        )
    }

    /// Starts a proxy by a configuration file, which has one listener.
    pub fn start_with_file(scratch: &CommandScratch, file: &str) -> ProxyChild {
        ProxyChild::of(scratch.command(&format!("proxy --config {file}")))
    }

    fn of(mut command: Command) -> ProxyChild {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let mut errors = BufReader::new(child.stderr.take().expect("piped"));
        let mut said = String::new();
        let address = loop {
            let mut line = String::new();
            assert!(errors.read_line(&mut line).expect("text") > 0, "it ended:\n{said}");
            said += &line;
            if let Some((_, address)) = line.trim_end().split_once(" on http://") {
                break address.parse().expect("an address");
            }
        };
        ProxyChild { child, address, errors }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.expect("kill is there").success());
    }

    /// Waits for the end of the proxy; returns the exit code and the rest of its output.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.errors.read_to_string(&mut rest).expect("text");
        (self.child.wait().expect("it ends").code(), rest)
    }

    /// Stops the proxy; it ends well.
    pub fn stop(self) {
        self.stop_and_read();
    }

    /// Stops the proxy, which ends well; returns the rest of its output.
    pub fn stop_and_read(self) -> String {
        self.signal("TERM");
        let (code, rest) = self.end();
        assert_eq!(code, Some(0), "{rest}");
        rest
    }

    /// Sends a request for `url` and returns the whole response.
    pub fn ask(&self, method: &str, url: &str) -> String {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        write!(stream, "{method} {url} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("text");
        response
    }
}

impl Drop for ProxyChild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers one request with `body`, which may be stored for a minute; returns the URL and the thread.
pub fn origin_for_one_request(body: &'static str) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/a", listener.local_addr().expect("bound"));
    let serve = move || {
        let (stream, _) = listener.accept().expect("one connection");
        let mut lines = BufReader::new(&stream).lines();
        while lines.next().is_some_and(|line| !line.expect("text").is_empty()) {}
        let length = body.len();
        write!(&stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\ncache-control: max-age=60\r\nsurrogate-key: news\r\n\r\n{body}")
            .expect("sent");
    };
    (url, std::thread::spawn(serve))
}

/// Returns the answer of `nectary status` about the parts that run in a scratch directory.
pub fn status(scratch: &CommandScratch, code: i32) -> Value {
    let CommandResult { output, .. } = scratch.run("status --json").exits(code);
    serde_json::from_slice(&output).expect("JSON")
}

/// A stored response survives a clean stop and a kill.
#[test]
fn stored_response_survives_kill() {
    let scratch = CommandScratch::new("again");
    let (url, origin) = origin_for_one_request("hello");
    let proxy = ProxyChild::start(&scratch, "--store ./s");
    let miss = proxy.ask("GET", &url);
    assert!(miss.starts_with("HTTP/1.1 200") && miss.ends_with("hello"), "{miss}");
    origin.join().expect("it answered");
    proxy.signal("TERM");
    let (code, rest) = proxy.end();
    assert_eq!(code, Some(0), "{rest}");
    for _ in 0..2 {
        let proxy = ProxyChild::start(&scratch, "--store ./s");
        let hit = proxy.ask("GET", &url);
        assert!(hit.contains("nectary; hit") && hit.ends_with("hello"), "{hit}");
        proxy.signal("KILL");
        assert_eq!(proxy.end().0, None, "killed");
    }
    assert!(scratch.run(&format!("store get ./s {url}")).exits(0).output == b"hello");
}

/// An object that was requested once is not on the disk, and status says so.
#[test]
fn first_request_stays_in_memory() {
    let scratch = CommandScratch::new("second-request");
    let options = "--store ./s --admit second-request --write-budget 50G/day --admit-bytes-max 1M";
    let (once, twice) = (origin_for_one_request("once"), origin_for_one_request("twice"));
    let proxy = ProxyChild::start(&scratch, options);
    for (url, _) in [&once, &twice] {
        let miss = proxy.ask("GET", url);
        assert!(miss.contains("cache-status: nectary; fwd=uri-miss; fwd-status=200\r\n"), "{miss}");
    }
    assert!(proxy.ask("GET", &twice.0).contains("nectary; hit"), "memory keeps it");
    let stat = status(&scratch, 0)[0]["status"]["detail"]["store"].clone();
    let (admission, counts) = (&stat["admission"], &stat["counts"]);
    assert_eq!((admission["rule"].as_str(), admission["bytes_max"].as_u64()), (Some("second-request"), Some(1 << 20)));
    assert_eq!(admission["write_budget"]["budget_bytes"].as_u64(), Some(50 << 30), "{admission}");
    assert_eq!(
        ["unadmitted_first", "admitted", "admitted_later"].map(|name| counts[name].as_u64()),
        [Some(2), Some(1), Some(1)]
    );
    proxy.signal("TERM");
    assert_eq!(proxy.end().0, Some(0));
    assert_eq!(scratch.run(&format!("store get ./s {}", twice.0)).exits(0).output, b"twice");
    scratch.run(&format!("store get ./s {}", once.0)).exits(4);
    for (_, origin) in [once, twice] {
        origin.join().expect("it answered");
    }
}

#[test]
fn healthy_proxy_owns_its_store() {
    let scratch = CommandScratch::new("running");
    let proxy = ProxyChild::start(&scratch, "--store ./s");
    let parts = status(&scratch, 0);
    let part = &parts[0]["status"];
    assert_eq!((part["component"].as_str(), part["state"].as_str()), (Some("proxy"), Some("healthy")));
    assert_eq!(part["pid"], proxy.child.id());
    assert_eq!(part["detail"]["addresses"][0], proxy.address.to_string());
    assert!(part["detail"]["store"]["sequences"]["written"].is_u64());
    assert!(part["detail"]["requests"]["requests"].is_u64());
    scratch.run("store stat ./s").exits(5).says("what to do");
    scratch.run("proxy --listen 127.0.0.1:0 --store ./s").exits(5).says("in use");
    proxy.signal("TERM");
    assert_eq!(proxy.end().0, Some(0));
    assert_eq!(status(&scratch, 4), serde_json::json!([]));
    scratch.run("store stat ./s").exits(0);
}

/// Sends a request to a Unix socket for clients, and returns the whole response.
fn ask_at(path: &std::path::Path) -> String {
    let mut stream = UnixStream::connect(path).expect("it listens");
    write!(stream, "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("text");
    response
}

#[test]
fn killed_proxy_leaves_no_obstacle() {
    let scratch = CommandScratch::new("unix");
    // The path of a socket is short, and that of the build may be long.
    let folder = std::env::temp_dir().join(format!("nectary-cli-unix-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("http.sock");
    let at = format!("unix:{}", path.display());
    let options = format!("--store ./s --listen {at}");
    let other = "--store ./t --size 64M --memory 32M";
    let proxy = ProxyChild::start(&scratch, &options);
    assert!(ask_at(&path).starts_with("HTTP/1.1 400"));
    assert_eq!(status(&scratch, 0)[0]["status"]["detail"]["addresses"][1], at);
    let busy = scratch.run(&format!("proxy --listen {at} {other}")).exits(5);
    busy.says("another process listens there").says("nectary (process ");
    proxy.signal("KILL");
    assert_eq!(proxy.end().0, None, "killed");
    assert!(path.exists(), "its file is stale");
    let proxy = ProxyChild::start(&scratch, &options);
    assert!(ask_at(&path).starts_with("HTTP/1.1 400"));
    proxy.stop();
    assert!(!path.exists(), "it is removed");
    std::fs::write(&path, "precious").expect("written");
    scratch.run(&format!("proxy --listen {at} {other}")).exits(1).says("no socket").says("remove it");
    assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
    scratch.run(&format!("proxy --listen {at}/a {other}")).exits(4).says("no directory");
    let absent = scratch.run(&format!("proxy --listen unix:{}/absent/a {other}", folder.display())).exits(4);
    absent.says("mkdir -p").says("/absent");
    scratch.run(&format!("proxy --listen unix:/{} {other}", "x".repeat(107))).exits(2).says("at most 107");
    scratch.run(&format!("proxy --listen unix: {other}")).exits(2).says("the path of a socket");
    assert!(!scratch.file("t").exists(), "no store is made");
    let printed = scratch.run(&format!("proxy --print-config --listen {at} --store ./s")).exits(0).text();
    assert!(printed.contains(&format!("address = \"{at}\"")), "{printed}");
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Sends a request to the control socket of the only part that runs here.
fn ask_control(scratch: &CommandScratch, request: &str) -> Value {
    let sockets = std::fs::read_dir(scratch.file("run")).expect("a runtime directory");
    let mut paths = sockets.map(|entry| entry.expect("listed").path());
    let path = paths.find(|path| path.extension().is_some_and(|ending| ending == "sock")).expect("a socket");
    let mut stream = UnixStream::connect(path).expect("it listens");
    writeln!(stream, "{request}").expect("sent");
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("text");
    serde_json::from_str(&answer).expect("JSON")
}

#[test]
fn control_socket_purges_running_proxy() {
    let scratch = CommandScratch::new("control");
    let proxy = ProxyChild::start(&scratch, "--store ./s");
    let params = |url: &str| {
        let tags = r#"{"tags":["news"]}"#.to_owned();
        let (key, prefix) = (format!(r#"{{"key":"{url}"}}"#), format!(r#"{{"prefix":"{}"}}"#, &url[..url.len() - 1]));
        [tags, key, prefix, r#"{"all":true}"#.to_owned()]
    };
    for which in 0..4 {
        let (url, origin) = origin_for_one_request("hello");
        assert!(proxy.ask("GET", &url).ends_with("hello"));
        origin.join().expect("it answered");
        assert!(proxy.ask("GET", &url).contains("nectary; hit"));
        let answer = ask_control(&scratch, &format!(r#"{{"method":"purge","params":{}}}"#, params(&url)[which]));
        assert_eq!(answer, serde_json::json!({"ok": {}}));
        // The origin server has ended.
        assert!(proxy.ask("GET", &url).starts_with("HTTP/1.1 502"), "{which}");
    }
    for wrong in ["{}", r#"{"tags":[]}"#, r#"{"tags":[""]}"#, r#"{"key":"h/a"}"#, r#"{"prefix":"/a"}"#] {
        let answer = ask_control(&scratch, &format!(r#"{{"method":"purge","params":{wrong}}}"#));
        assert_eq!(answer["error"]["kind"], "invalid", "{wrong}: {answer}");
    }
}

/// What an address answers to a `GET`: the head and the body.
fn page(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("text");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    (head.to_owned(), body.to_owned())
}

#[test]
fn operators_page_shows_what_status_tells() {
    let scratch = CommandScratch::new("page");
    let admin = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let proxy = ProxyChild::start(&scratch, &format!("--store ./s --admin-listen {admin}"));
    let (url, origin) = origin_for_one_request("hello");
    proxy.ask("GET", &url);
    proxy.ask("GET", &url);
    origin.join().expect("it answered");
    for (path, kind, text) in [
        ("/", "text/html; charset=utf-8", "<title>"),
        ("/page.css", "text/css; charset=utf-8", "prefers-color-scheme"),
        ("/page.js", "text/javascript; charset=utf-8", "/status.json"),
        ("/page.svg", "image/svg+xml", "<svg "),
    ] {
        let (head, body) = page(admin, path);
        assert!(head.contains(&format!("content-type: {kind}\r\n")) && body.contains(text), "{path}: {head}");
    }
    let (head, body) = page(admin, "/status.json");
    assert!(head.contains("content-type: application/json\r\n"), "{head}");
    let document: Value = serde_json::from_str(&body).expect("JSON");
    let told = status(&scratch, 0)[0]["status"].clone();
    for name in ["component", "name", "state", "pid", "problems"] {
        assert_eq!(document[name], told[name], "{name}");
    }
    let names = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&document["detail"]), names(&told["detail"]));
    assert_eq!(names(&document["detail"]["requests"]), names(&told["detail"]["requests"]));
    assert_eq!(document["latency_bounds_us"].as_array().map(Vec::len), Some(15));
    assert!(document["at_ms"].is_u64() && document["release"].is_string());
    let row = serde_json::json!({ "name": url, "requests": 1, "bytes": 5, "error_max": 0 });
    for list in ["urls_by_requests", "urls_by_bytes"] {
        assert_eq!(document["origin_traffic"][list], serde_json::json!([row]), "{list}");
    }
    proxy.stop();
}

#[test]
fn killed_proxy_leaves_no_part() {
    let scratch = CommandScratch::new("killed");
    let proxy = ProxyChild::start(&scratch, "--store ./s");
    proxy.signal("KILL");
    assert_eq!(proxy.end().0, None);
    assert_eq!(status(&scratch, 4), serde_json::json!([]));
}

#[test]
fn address_in_use_is_named() {
    let scratch = CommandScratch::new("address");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound");
    let line = format!("proxy --listen {address} --store ./s --size 64M --memory 32M");
    let own = format!("process {}", std::process::id());
    scratch.run(&line).exits(5).says(&address.to_string()).says(&own).says("--listen");
    assert!(!scratch.file("s").exists(), "no store before the port");
    assert_eq!(status(&scratch, 4), serde_json::json!([]), "a proxy that did not start is no part");
}

#[test]
fn two_proxies_share_no_address() {
    let scratch = CommandScratch::new("two");
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let first = ProxyChild::start_at(&scratch, &free.to_string(), "--store ./a");
    let line = format!("proxy --listen {free} --store ./b --size 64M --memory 32M");
    scratch.run(&line).exits(5).says(&format!("nectary (process {})", first.child.id())).says("nectary status");
    assert!(!scratch.file("b").exists(), "no store before the port");
    assert_eq!(status(&scratch, 0)[0]["status"]["pid"], first.child.id());
}

#[test]
fn too_few_descriptors_leave_no_store() {
    let scratch = CommandScratch::new("few-descriptors");
    let line = "proxy --listen 127.0.0.1:0 --workers 1 --store ./s --size 16M --memory 16M";
    for limit in [20, 28, 36] {
        scratch.run_after(&format!("ulimit -n {limit}"), line).exits(1).says("file descriptors").says("ulimit");
        assert!(!scratch.file("s").exists(), "{limit}");
    }
}

#[test]
fn impossible_file_size_is_refused() {
    let scratch = CommandScratch::new("huge");
    for size in ["18446744073709551615", "18446744073709547520", "9223372036854775808", "8E"] {
        let line = format!("proxy --listen 127.0.0.1:0 --memory 32M --store ./s --size {size}");
        scratch.run(&line).exits(2).says("smaller size");
        assert!(!scratch.file("s").exists(), "{size}");
    }
}

#[test]
fn failed_start_creates_no_store() {
    let scratch = CommandScratch::new("nothing");
    let line = "proxy --listen 127.0.0.1:0 --store ./s --size 64M";
    scratch.run(&format!("{line} --memory 1K")).exits(2).says("--memory 1K is too little").says("8M");
    assert!(!scratch.file("s").exists());
    scratch.run(&format!("{line} --memory 900T")).exits(2).says("more than this machine has").says("--memory");
    assert!(!scratch.file("s").exists());
    scratch
        .run("proxy --listen 127.0.0.1:0 --store . --memory 32M")
        .exits(2)
        .says("not a regular file")
        .says("what to do");
    scratch.run("proxy --listen 192.0.2.1:80 --store ./s --memory 32M").exits(1).says("no such address");
    assert!(!scratch.file("s").exists());
    for small in ["--store ./s --size 1K", "--store ./s --span ./t --size 1K", "--store ./s --span ./t --size 511K"] {
        scratch.run(&format!("proxy --listen 127.0.0.1:0 --memory 32M {small}")).exits(2).says("512K are the least");
        assert!(!scratch.file("s").exists() && !scratch.file("t").exists(), "{small}");
    }
    for (wrong, reason) in [
        ("--admit-bytes-min 2M --admit-bytes-max 1M", "at most 1048576 bytes"),
        ("--write-budget 1M/day", "64M/day is the least"),
        ("--write-budget 50G", "a size and a period"),
        ("--admit sometimes", "second-request"),
    ] {
        scratch.run(&format!("{line} --memory 32M {wrong}")).exits(2).says(reason);
        assert!(!scratch.file("s").exists(), "{wrong}");
    }
    std::fs::write(scratch.file("short"), "0123456789\n").expect("written");
    for (wrong, reason) in [
        ("--admin-listen 0.0.0.0:0", "--admin-token-file"),
        ("--admin-listen :0", "other machines"),
        ("--admin-token-file ./absent", "./absent"),
        ("--admin-token-file ./short", "16 to 1024"),
    ] {
        scratch.run(&format!("{line} --memory 32M {wrong}")).exits(2).says(reason).says("token");
        assert!(!scratch.file("s").exists(), "{wrong}");
    }
    for (wrong, code, reason, remedy) in [
        ("--origin-ca ./absent", 2, "./absent: No such file", "--origin-ca"),
        ("--origin-ca ./short", 2, "./short: there is no certificate", "PEM"),
        ("--access-log ./absent/log", 1, "./absent/log: No such file", "directory exists"),
        ("--access-log .", 1, "Is a directory", "another file"),
        ("--listen 127.0.0.1:9 --admin-listen 127.0.0.1:9", 2, "127.0.0.1:9 is given twice", "once"),
    ] {
        scratch.run(&format!("{line} --memory 32M {wrong}")).exits(code).says(reason).says(remedy);
        assert!(!scratch.file("s").exists(), "{wrong}");
    }
    let absent = "proxy --listen 127.0.0.1:0 --store ./absent/s";
    scratch.run(absent).exits(4).says("no directory ./absent").says("mkdir -p ./absent");
    std::fs::write(scratch.file("s"), b"the rest of a store").expect("written");
    scratch
        .run(&format!("{line} --memory 32M"))
        .exits(1)
        .says("too few for a store")
        .says("if it is no store, name another path");
    std::fs::write(scratch.file("photos"), vec![b'x'; 2 << 20]).expect("written");
    scratch
        .run("proxy --listen 127.0.0.1:0 --store ./photos --memory 32M")
        .exits(1)
        .says("not a Nectary store")
        .says("name another path or device: nothing was changed");
    assert_eq!(std::fs::read(scratch.file("s")).expect("there"), b"the rest of a store");
}

#[test]
fn signals_reopen_log_and_end_nothing() {
    let scratch = CommandScratch::new("signals");
    let (log, rotated) = (scratch.file("log"), scratch.file("log.1"));
    let mut proxy = ProxyChild::start(&scratch, "--store ./s --access-log ./log");
    for signal in ["HUP", "USR1", "USR2"] {
        assert!(proxy.ask("GET", "/").starts_with("HTTP/1.1 400"));
        std::fs::rename(&log, &rotated).expect("renamed");
        proxy.signal(signal);
        let mut line = String::new();
        while !line.contains(&format!("SIG{signal}: ")) {
            line.clear();
            assert!(proxy.errors.read_line(&mut line).expect("text") > 0, "it ended");
        }
        assert!(log.exists(), "{line}");
    }
    std::fs::rename(&log, &rotated).expect("renamed");
    assert_eq!(ask_control(&scratch, r#"{"method":"reopen"}"#), serde_json::json!({"ok": {}}));
    assert!(log.exists());
    std::fs::remove_file(&log).and_then(|()| std::fs::create_dir(&log)).expect("a directory");
    let answer = ask_control(&scratch, r#"{"method":"reopen"}"#);
    assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("Is a directory")), "{answer}");
    status(&scratch, 0);
    proxy.signal("TERM");
    assert_eq!(proxy.end().0, Some(0));
}

/// The problem is over as soon as the log can be written again.
#[test]
fn unwritable_log_is_a_problem() {
    let scratch = CommandScratch::new("full-log");
    std::os::unix::fs::symlink("/dev/full", scratch.file("log")).expect("a link");
    let proxy = ProxyChild::start(&scratch, "--store ./s --access-log ./log");
    assert!(proxy.ask("GET", "/").starts_with("HTTP/1.1 400"));
    let state = || scratch.run("status").code;
    let wait_for = |code| {
        (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            state() == Some(code)
        })
    };
    assert!(wait_for(3), "the log fails");
    assert!(status(&scratch, 3).to_string().contains("No space left on device"));
    let metrics = scratch.run("top --prometheus").exits(0).text();
    for line in ["access_log_failing", "responses_total"] {
        assert!(metrics.contains(&format!("nectary_proxy_{line}{{proxy=\"127.0.0.1:0\"")), "{metrics}");
    }
    std::fs::remove_file(scratch.file("log")).expect("removed");
    proxy.signal("USR1");
    assert!(wait_for(0), "it works again");
    proxy.signal("TERM");
    assert_eq!(proxy.end().0, Some(0));
    assert_eq!(std::fs::read_to_string(scratch.file("log")).expect("a log").lines().count(), 1);
}

/// The start goes on as far as the address, which this machine does not have.
#[test]
fn unused_lifetimes_are_told_at_start() {
    let scratch = CommandScratch::new("unused-lifetimes");
    let line = "proxy --listen 192.0.2.1:80 --store ./s --memory 32M --origin http://app.internal";
    let found = scratch.run(&format!("{line} --default-ttl www.example=1h --default-ttl /x=5m")).exits(1);
    let found = found.says("--default-ttl www.example=3600s never counts: URLs have the host app.internal");
    assert_eq!(found.errors.matches("never counts").count(), 1, "{}", found.errors);
}

/// The status says that the origin refuses every connection.
#[test]
fn refusing_origin_degrades_proxy() {
    let scratch = CommandScratch::new("origin-down");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let proxy = ProxyChild::start(&scratch, &format!("--store ./s --origin http://{address}"));
    for code in [0, 0, 3] {
        assert!(proxy.ask("GET", "/a").starts_with("HTTP/1.1 502"));
        let parts = status(&scratch, code);
        assert_eq!(parts.to_string().contains("the origin takes no connections: 3 in a row"), code == 3, "{parts}");
    }
    assert!(status(&scratch, 3).to_string().contains("refused"));
    let listener = TcpListener::bind(address).expect("still free");
    let serve = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("one connection");
        let mut lines = BufReader::new(&stream).lines();
        while lines.next().is_some_and(|line| !line.expect("text").is_empty()) {}
        write!(&stream, "HTTP/1.1 204 No Content\r\n\r\n").expect("sent");
    });
    assert!(proxy.ask("GET", "/a").starts_with("HTTP/1.1 204"));
    serve.join().expect("it answered");
    status(&scratch, 0);
}
