//! A proxy with `[fleet]` as a process: what is wrong with its configuration, and what it says and does without etcd.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::a_running_proxy::{ProxyChild, origin_for_one_request, status};
use crate::common::{CommandResult, CommandScratch};

/// The longest time that a test waits for something.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Calls a method of the proxy with a control socket in this directory, as soon as there is one.
fn control(runtime: &Path, method: &str, params: Value) -> Value {
    let begun = Instant::now();
    loop {
        let found = std::fs::read_dir(runtime).into_iter().flatten().flatten().map(|entry| entry.path());
        let sockets = found.filter(|path| path.extension().is_some_and(|end| end == "sock"));
        if let Some(mut stream) = sockets.filter_map(|path| UnixStream::connect(path).ok()).next() {
            writeln!(stream, "{}", json!({ "method": method, "params": params })).expect("sent");
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).expect("an answer");
            return serde_json::from_str(&line).expect("JSON");
        }
        assert!(begun.elapsed() < WAIT_MAX, "no control socket in {}", runtime.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A configuration with these lines in `[fleet]`, in the file `proxy.toml`.
fn configuration(scratch: &CommandScratch, fleet: &str) {
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[server]\nworkers = 1\n[store]\ndevice = \"./s\"\nsize = \"64M\"\n\
         memory = \"32M\"\n[forward-proxy]\n[fleet]\n{fleet}"
    );
    std::fs::write(scratch.file("proxy.toml"), text).expect("written");
}

#[test]
fn wrong_fleet_keys_are_told() {
    let scratch = CommandScratch::new("fleet-keys");
    for (fleet, said) in [
        ("etcd = [\"http://127.0.0.1:1\"]\n", "`node` is missing in [fleet]"),
        ("node = \"a\"\n", "[fleet] has no `etcd`"),
        ("node = \"a\"\netcd = [\"http://127.0.0.1\"]\n", "`http://127.0.0.1` has no port"),
        ("node = \"a\"\netcd = [\"http://127.0.0.1:1\"]\nlease = \"1s\"\n", "`lease` cannot be 1s"),
    ] {
        configuration(&scratch, fleet);
        let CommandResult { code, errors, .. } = scratch.run("proxy --config proxy.toml");
        assert!(code == Some(2) && errors.contains(said), "{fleet}: {code:?} {errors}");
    }
    assert!(!scratch.file("s").exists(), "no store is made");
}

#[test]
fn unreadable_certificates_of_fleet_are_told() {
    let scratch = CommandScratch::new("fleet-ca");
    let share = "etcd = [\"http://127.0.0.1:1\"]\naddress = \"127.0.0.1:1\"\ncert = \"absent.pem\"\n\
                 key = \"node.key\"\nca = \"ca.pem\"\n";
    for (fleet, key) in
        [("etcd = [\"https://127.0.0.1:1\"]\netcd-ca = \"absent.pem\"\n", "`etcd-ca`: "), (share, "`cert`: ")]
    {
        configuration(&scratch, &format!("node = \"a\"\n{fleet}"));
        for options in ["--check-config", ""] {
            let ran = scratch.run(&format!("proxy {options} --config proxy.toml")).exits(2);
            ran.says(key).says("absent.pem");
        }
    }
}

/// It asks the origin, tells why, and ends well.
#[test]
fn node_without_etcd_asks_the_origin() {
    let scratch = CommandScratch::new("fleet-away");
    configuration(&scratch, "node = \"a\"\netcd = [\"http://127.0.0.1:1\"]\n");
    let proxy = ProxyChild::start_with_file(&scratch, "proxy.toml");
    for _ in 0..2 {
        let (url, origin) = origin_for_one_request("body");
        let response = proxy.ask("GET", &url);
        origin.join().expect("one request");
        assert!(response.ends_with("body") && response.contains("fwd=bypass"), "{response}");
    }
    let found = status(&scratch, 3);
    let problems = found[0]["status"]["problems"].to_string();
    assert!(problems.contains("this node is not a member"), "{problems}");
    assert_eq!(found[0]["status"]["detail"]["fleet"]["state"], "away");
    let text = scratch.run("fleet status").exits(3).text();
    for part in ["fleet nectary: node a (proxy ", "is cut off: origins answer", "what to do: "] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    let json: Value = serde_json::from_str(&scratch.run("fleet status --json").exits(3).text()).expect("JSON");
    assert_eq!((json[0]["fleet"]["node"].as_str(), json[0]["fleet"]["by"].as_str()), (Some("a"), Some("etcd")));
    let log = proxy.stop_and_read();
    assert!(log.contains("stopped"), "{log}");
    assert!(scratch.run("fleet status").exits(4).text().starts_with("no proxy with [fleet] is running"));
}

/// Until it has joined, its origins would answer all requests, within a limit; and it does not know which keys a URL
/// has.
#[test]
fn start_waits_for_the_fleet() {
    let scratch = CommandScratch::new("fleet-start");
    // It takes connections, and says nothing.
    let etcd = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = etcd.local_addr().expect("bound");
    configuration(&scratch, &format!("node = \"a\"\netcd = [\"http://{address}\"]\n"));
    let (runtime, begun) = (scratch.file("run"), Instant::now());
    let purging = std::thread::spawn(move || control(&runtime, "purge", json!({ "all": true })));
    let proxy = ProxyChild::start_with_file(&scratch, "proxy.toml");
    assert!(begun.elapsed() >= Duration::from_millis(2900), "it served after {:?}", begun.elapsed());
    let said = purging.join().expect("an answer").to_string();
    assert!(said.contains("this proxy starts"), "{said}");
    proxy.stop();
}

/// The process before it may have been a node of a fleet.
#[test]
fn purges_here_need_no_fleet() {
    let scratch = CommandScratch::new("purge-here");
    let proxy = ProxyChild::start(&scratch, "--store ./s");
    for method in ["purge-here", "purge"] {
        let said = control(&scratch.file("run"), method, json!({ "all": true }));
        assert!(said.get("ok").is_some(), "{method}: {said}");
    }
    proxy.stop();
}
