//! A proxy with `[fleet]` as a process: what is wrong with its configuration, and what it says and does without etcd.

use serde_json::Value;

use crate::a_running_proxy::{Running, origin_for_one_request, status};
use crate::common::{Ran, Scratch};

/// A configuration with these lines in `[fleet]`, in the file `proxy.toml`.
fn configuration(scratch: &Scratch, fleet: &str) {
    let text = format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\n[server]\nworkers = 1\n[store]\ndevice = \"./s\"\nsize = \"64M\"\n\
         memory = \"32M\"\n[forward-proxy]\n[fleet]\n{fleet}"
    );
    std::fs::write(scratch.file("proxy.toml"), text).expect("written");
}

#[test]
fn wrong_fleet_keys_are_told() {
    let scratch = Scratch::new("fleet-keys");
    for (fleet, said) in [
        ("etcd = [\"http://127.0.0.1:1\"]\n", "`node` is missing in [fleet]"),
        ("node = \"a\"\n", "[fleet] has no `etcd`"),
        ("node = \"a\"\netcd = [\"http://127.0.0.1\"]\n", "`http://127.0.0.1` has no port"),
        ("node = \"a\"\netcd = [\"http://127.0.0.1:1\"]\nlease = \"1s\"\n", "`lease` cannot be 1s"),
    ] {
        configuration(&scratch, fleet);
        let Ran { code, errors, .. } = scratch.run("proxy --config proxy.toml");
        assert!(code == Some(2) && errors.contains(said), "{fleet}: {code:?} {errors}");
    }
    assert!(!scratch.file("s").exists(), "no store is made");
}

#[test]
fn unreadable_certificates_of_etcd_are_told() {
    let scratch = Scratch::new("fleet-ca");
    configuration(&scratch, "node = \"a\"\netcd = [\"https://127.0.0.1:1\"]\netcd-ca = \"absent.pem\"\n");
    let ran = scratch.run("proxy --config proxy.toml").exits(1);
    ran.says("cannot join the fleet nectary").says("absent.pem");
}

/// It asks the origin, tells why, and ends well.
#[test]
fn node_without_etcd_asks_the_origin() {
    let scratch = Scratch::new("fleet-away");
    configuration(&scratch, "node = \"a\"\netcd = [\"http://127.0.0.1:1\"]\n");
    let proxy = Running::start_with_file(&scratch, "proxy.toml");
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
