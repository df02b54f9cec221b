//! `nectary store` on a store of the proxy: files put for it to serve, variants, and a store that it has open.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;

use crate::a_running_proxy::ProxyChild;
use crate::common::CommandScratch;

#[test]
fn put_by_url_is_served() {
    let scratch = CommandScratch::new("preload");
    scratch.run("store create ./s --size 64M").exits(0);
    let url = "http://127.0.0.1:9/page";
    let options = "--ttl 1h --header content-type:text/plain --header surrogate-key:news";
    scratch.run_with(&format!("store put ./s HTTP://127.0.0.1:9/page - {options}"), b"hello").exits(0);
    assert_eq!(scratch.run("store get ./s HTTP://127.0.0.1:9/page").exits(0).output, b"hello");
    scratch.run_with("store put ./s http://127.0.0.1:9 -", b"root").exits(0);
    let proxy = ProxyChild::start(&scratch, "--store ./s");
    let hit = proxy.ask("GET", url);
    assert!(hit.starts_with("HTTP/1.1 200") && hit.contains("nectary; hit") && hit.ends_with("hello"), "{hit}");
    for line in ["content-length: 5\r\n", "content-type: text/plain\r\n", "cache-control: max-age=3600\r\n"] {
        assert!(hit.contains(line), "{line} in {hit}");
    }
    assert!(proxy.ask("GET", "http://127.0.0.1:9/").contains("max-age=86400"));
    drop(proxy);
    scratch.run("store purge ./s --tag news").exits(0);
    scratch.run(&format!("store get ./s {url}")).exits(4);
    scratch.run("store delete ./s http://127.0.0.1:9").exits(0);
    scratch.run("store get ./s http://127.0.0.1:9/").exits(4);
    for (wrong, reason) in [
        ("http://user@h/", "no URL"),
        ("http://h/ --ttl 0", "stale at once"),
        ("http://h/ --header vary:accept", "vary"),
        ("http://h/ --header cache-control:no-store", "cache-control"),
        ("http://h/ --header nonsense", "accept-encoding: gzip"),
        ("greeting --ttl 1h", "--ttl"),
    ] {
        let (key, options) = wrong.split_once(' ').unwrap_or((wrong, ""));
        scratch.run_with(&format!("store put ./s {key} - {options}"), b"x").exits(2).says(reason);
    }
}

#[test]
fn request_headers_choose_stored_variant() {
    let scratch = CommandScratch::new("variants");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/a", listener.local_addr().expect("bound"));
    let origin = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("one connection");
        let mut lines = BufReader::new(&stream).lines();
        while lines.next().is_some_and(|line| !line.expect("text").is_empty()) {}
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\ncache-control: max-age=60\r\nvary: host, x-kind\r\n\r\n";
        write!(&stream, "{head}kind").expect("sent");
    });
    let proxy = ProxyChild::start(&scratch, "--store ./s");
    assert!(proxy.ask("GET", &url).ends_with("kind"));
    origin.join().expect("it answered");
    proxy.stop();
    let get = format!("store get ./s {url}");
    let none = scratch.run(&get).exits(4).says("host, x-kind").says("--header 'host: VALUE'");
    assert!(none.output.is_empty());
    let listed = scratch.run(&format!("{get} --variants")).exits(0).text();
    assert!(listed.starts_with("--header 'host: ") && listed.lines().count() == 1, "{listed}");
    scratch.run("store get ./s http://h/ --variants").exits(4).says("no variants");
    let host = url.trim_start_matches("http://").trim_end_matches("/a");
    let found = [format!("--header host:{host}"), "--header host:x".to_owned()]
        .map(|header| scratch.run(&format!("{get} {header}")))
        .into_iter()
        .find(|ran| ran.code == Some(0));
    assert_eq!(found.expect("one of them is what the client sent").output, b"kind");
    scratch.run(&format!("{get} --header host:x --header x-kind:1")).exits(4).says("the given headers");
}

#[test]
fn open_store_purge_names_command() {
    let scratch = CommandScratch::new("purge-in-use");
    scratch.run("store create ./s --size 64M").exits(0);
    scratch.run_with("store put ./s http://127.0.0.1:9/a -", b"hello").exits(0);
    let proxy = ProxyChild::start(&scratch, "--store ./s");
    assert!(proxy.ask("GET", "http://127.0.0.1:9/a").contains("nectary; hit"));
    scratch.run("store stat ./s").exits(5).says("nectary status --verbose").says("process ");
    scratch.run("store purge ./s --all").exits(5).says(r#"'{"method":"purge","params":{"all":true}}'"#);
    scratch.run("store purge ./s --tag a").exits(5).says(r#"{"tags":["a"]}"#);
    let ran = scratch.run("store delete ./s http://127.0.0.1:9/a").exits(5);
    let (_, command) = ran.errors.split_once("goes on: ").expect("a command");
    assert!(command.contains(".sock'"), "{command}");
    if Command::new("sh").args(["-c", "command -v nc"]).output().is_ok_and(|found| found.status.success()) {
        let ran = Command::new("sh").args(["-c", command]).output().expect("a shell");
        assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), r#"{"ok":{}}"#, "{ran:?}");
        assert!(proxy.ask("GET", "http://127.0.0.1:9/a").starts_with("HTTP/1.1 502"));
    }
}

#[test]
fn long_body_error_names_limit() {
    let scratch = CommandScratch::new("too-long");
    scratch.run("store create ./s --size 16M").exits(0);
    std::fs::write(scratch.file("in"), vec![7; 8 << 20]).expect("written");
    scratch.run("store put ./s a in").exits(1).says("at most").says("larger store");
    scratch.run_with("store put ./s a -", &vec![7; 8 << 20]).exits(1).says("at most").says("larger store");
    scratch.run("store get ./s a").exits(4).says("\"a\"");
    scratch.run("store put ./s a ./absent").exits(1).says("what to do");
    scratch.run("store put ./s a .").exits(1).says("directory").says("what to do");
    scratch.run("store create ./z --size 10").exits(2).says("512K are the least");
    assert!(!scratch.file("z").exists());
}
