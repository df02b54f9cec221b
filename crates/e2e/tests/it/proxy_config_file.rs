//! A proxy with a configuration file: two sites of two origins, the check of a file, and reloads under load.

use anyhow::{Context, Result, bail};
use nectary_e2e::guard;
use nectary_e2e::http::HttpConnection;
use nectary_e2e::nectary::{NectaryProxy, ProxyCommand, run};
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::scratch::ScratchFolder;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TARGET: &str = "/anything/a?size=1000&cc=max-age=60";

/// Lines that only ask for what the proxy cannot do.
const NOT_DONE: &str = "[origins.later]\nservers = [\"http://127.0.0.1:1\"]\nretries = 1";

/// Two sites, one of them of two servers, and a route of each kind.
fn text(command: &ProxyCommand, origins: &[&DeterministicOrigin; 3], more: &str) -> String {
    format!(
        r#"
[server]
workers = 1

[[listener]]
address = "{}"

[store]
device = "{}"
size = "{}"
memory = "{}"

[origins.one]
servers = ["{}"]

[origins.two]
servers = ["{}", "{}"]
host = "site"
first-byte = "5s"

[[site]]
names = ["one.example", "*.one.example"]

[[site.route]]
path = "/"
origin = "one"
response-headers = {{ set = {{ x-site = "one" }} }}
{more}

[[site.route]]
path = "/live/"
origin = "one"
pass = true

[[site.route]]
path = "=/old"
redirect = {{ to = "https://new.example", status = 308, keep-path = true }}

[[site]]
names = ["two.example"]

[[site.route]]
path = "/"
origin = "two"
query-ignore = ["utm_*"]
"#,
        command.listen,
        command.store,
        command.size,
        command.memory,
        origins[0].url(),
        origins[1].url(),
        origins[2].url(),
    )
}

/// A proxy with its file.
struct ConfiguredSites {
    scratch: ScratchFolder,
    command: ProxyCommand,
    file: PathBuf,
    origins: [DeterministicOrigin; 3],
}

impl ConfiguredSites {
    fn new(name: &str) -> Result<ConfiguredSites> {
        let scratch = ScratchFolder::new(name)?;
        let command = ProxyCommand::new(scratch.path(), None)?;
        let file = scratch.join("proxy.toml");
        let sites = ConfiguredSites {
            command,
            file,
            origins: [DeterministicOrigin::start()?, DeterministicOrigin::start()?, DeterministicOrigin::start()?],
            scratch,
        };
        sites.write("")?;
        Ok(sites)
    }

    /// Writes the file; `more` are lines for the first route.
    fn write(&self, more: &str) -> Result<()> {
        let [one, two, three] = &self.origins;
        Ok(std::fs::write(&self.file, text(&self.command, &[one, two, three], more))?)
    }

    fn start(&self) -> Result<NectaryProxy> {
        self.command.start_with_file(&self.file)
    }
}

fn ask(client: &mut HttpConnection, host: &str, target: &str) -> Result<nectary_e2e::http::HttpResponse> {
    let head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    Ok(client.exchange(head.as_bytes(), "GET")?)
}

/// Waits until the status of the proxy is as wanted.
fn wait_for(nectary: &NectaryProxy, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    let begun = Instant::now();
    loop {
        let status = nectary.control()?.status()?;
        if is_so(&status) {
            return Ok(status);
        }
        if begun.elapsed() > Duration::from_secs(20) {
            bail!("the status is never {what}: {status}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The reloads that the status counts.
fn reloads(status: &Value) -> u64 {
    status["detail"]["configuration"]["reloads"].as_u64().unwrap_or_default()
}

#[test]
fn two_sites_of_one_file() -> Result<()> {
    let sites = ConfiguredSites::new("two-sites")?;
    let mut nectary = sites.start()?;
    let client = &mut nectary.client();
    for host in ["one.example", "www.one.example:8080", "TWO.example"] {
        let first = ask(client, host, TARGET)?;
        let second = ask(client, host, TARGET)?;
        assert_eq!((first.status, second.status, second.is_hit()), (200, 200, true), "{host}");
        let is_one = !host.starts_with('T');
        assert_eq!(second.header("x-site"), is_one.then_some("one"), "{host}");
    }
    let counts: Vec<u64> = sites.origins.iter().map(|origin| origin.count(TARGET).requests).collect();
    assert_eq!((counts[0], counts[1] + counts[2]), (1, 1));
    // Each rule has its effect.
    let more = format!("{TARGET}&utm_source=x");
    assert!(ask(client, "two.example", &more)?.is_hit());
    let live = "/live/anything/b?size=10&cc=max-age=60";
    assert!(!ask(client, "one.example", live)?.is_hit() && !ask(client, "one.example", live)?.is_hit());
    let moved = ask(client, "one.example", "/old?x")?;
    assert_eq!((moved.status, moved.header("location")), (308, Some("https://new.example/old?x")));
    assert_eq!(ask(client, "three.example", TARGET)?.status, 404);
    // A purge finds the site by any of its names.
    let mut control = nectary.control()?;
    control.purge(&json!({ "key": format!("https://www.one.example{TARGET}") }))?;
    assert!(!ask(client, "one.example", TARGET)?.is_hit() && ask(client, "two.example", TARGET)?.is_hit());
    control.purge(&json!({ "prefix": "http://two.example/" }))?;
    assert!(ask(client, "one.example", TARGET)?.is_hit() && !ask(client, "two.example", TARGET)?.is_hit());
    nectary.terminate(Duration::from_secs(20))?;
    Ok(())
}

#[test]
fn ten_reloads_lose_no_request() -> Result<()> {
    let sites = ConfiguredSites::new("reloads")?;
    let mut nectary = sites.start()?;
    let (stop, good) = (AtomicBool::new(false), AtomicU64::new(0));
    let listen = nectary.listen;
    let load = |host: &'static str| -> Result<()> {
        let mut client = HttpConnection::new(listen, Duration::from_secs(30));
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            number += 1;
            // Hits and misses.
            let target = format!("/anything/{}?size=1000&cc=max-age=60", number % 50);
            let response = ask(&mut client, host, &target)?;
            anyhow::ensure!(response.status == 200, "{host}{target}: {}", response.status);
            good.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let loads = ["one.example", "two.example", "x.one.example"].map(|host| scope.spawn(move || load(host)));
        let mut reload = || -> Result<()> {
            for round in 1..=10 {
                sites.write(&format!("default-ttl = \"{round}s\""))?;
                nectary.process.signal(libc::SIGHUP);
                wait_for(&nectary, "reloaded", |status| reloads(status) == round)?;
            }
            Ok(())
        };
        let reloaded = reload();
        stop.store(true, Ordering::Relaxed);
        for load in loads {
            load.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        reloaded
    })?;
    assert!(good.load(Ordering::Relaxed) > 100, "{good:?}");
    assert_eq!(nectary.control()?.status()?["state"], "healthy");
    nectary.terminate(Duration::from_secs(20))?;
    Ok(())
}

#[test]
fn a_wrong_file_changes_nothing() -> Result<()> {
    let sites = ConfiguredSites::new("wrong-file")?;
    let mut nectary = sites.start()?;
    let client = &mut nectary.client();
    assert_eq!(ask(client, "one.example", TARGET)?.status, 200);
    sites.write("no-such-key = 1\nneither = 2")?;
    nectary.process.signal(libc::SIGHUP);
    let is_wrong = |status: &Value| !status["detail"]["configuration"]["failure"].is_null();
    let status = wait_for(&nectary, "wrong", is_wrong)?;
    assert_eq!((&status["state"], reloads(&status)), (&json!("degraded"), 0));
    assert!(ask(client, "one.example", TARGET)?.is_hit());
    let log = nectary.process.log_text();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("SIGHUP")).collect();
    assert!(lines.len() == 1 && lines[0].contains("proxy.toml:") && lines[0].contains("1 more"), "{lines:?}");
    assert!(nectary.control()?.request("reload").is_err());
    // A file that only asks for what the proxy cannot do is refused as well.
    sites.write(NOT_DONE)?;
    let refused = nectary.control()?.request("reload").expect_err("refused").to_string();
    assert!(refused.contains("`retries`"), "{refused}");
    sites.write("")?;
    nectary.control()?.request("reload")?;
    let status = wait_for(&nectary, "good", |status| reloads(status) == 1)?;
    assert_eq!((&status["state"], is_wrong(&status)), (&json!("healthy"), false));
    nectary.terminate(Duration::from_secs(20))?;
    Ok(())
}

/// Runs `nectary proxy` with these arguments; returns its exit code and what it printed.
fn proxy(folder: &Path, arguments: &[&str]) -> Result<(i32, String)> {
    let (status, text) = run(&[&["proxy"][..], arguments].concat(), folder)?;
    Ok((status.code().with_context(|| guard::describe(status))?, text))
}

#[test]
fn files_are_checked_and_printed() -> Result<()> {
    let sites = ConfiguredSites::new("checked")?;
    let folder = sites.scratch.path();
    let file = sites.file.to_str().context("a path")?;
    let (code, printed) = proxy(folder, &["--config", file, "--check-config"])?;
    assert_eq!(code, 0, "{printed}");
    sites.write("retries = 5")?;
    let (code, printed) = proxy(folder, &["--config", file, "--check-config"])?;
    assert!(code == 2 && printed.contains("proxy.toml:") && printed.contains("retries"), "{code}: {printed}");
    sites.write(NOT_DONE)?;
    let (code, printed) = proxy(folder, &["--config", file])?;
    assert!(code == 2 && printed.contains("`retries`") && printed.contains("no other server"), "{code}: {printed}");
    sites.write("cookies-keep = [\"session\", \"lang*\"]\ncookies-key = [\"language\"]")?;
    let (code, printed) = proxy(folder, &["--config", file, "--check-config"])?;
    assert_eq!(code, 0, "{printed}");
    sites.write("")?;
    let (code, printed) = proxy(folder, &["--config", file, "--workers", "2"])?;
    assert!(code == 2 && printed.contains("--workers cannot be given beside --config"), "{code}: {printed}");
    // What a command line means is a file that is good, and that means the same when it is printed again.
    let options = [
        "--listen",
        "127.0.0.1:8080",
        "--store",
        "./store",
        "--size",
        "1G",
        "--origin",
        "http://127.0.0.1:3000",
        "--origin-host",
        "client",
        "--default-ttl",
        "/static/=1h",
        "--first-byte",
        "5s",
        "--key-header",
        "X-Forwarded-Proto",
        "--print-config",
    ];
    let (code, printed) = proxy(folder, &options)?;
    assert_eq!(code, 0, "{printed}");
    let of_options = folder.join("options.toml");
    std::fs::write(&of_options, &printed)?;
    let of_options = of_options.to_str().context("a path")?;
    let (code, again) = proxy(folder, &["--config", of_options, "--print-config"])?;
    assert_eq!((code, again), (0, printed));
    let (code, checked) = proxy(folder, &["--config", of_options, "--check-config"])?;
    assert_eq!(code, 0, "{checked}");
    let (code, printed) = proxy(
        folder,
        &["--listen", ":80", "--store", "a", "--origin", "http://a", "--default-ttl", "b/x=1", "--print-config"],
    )?;
    assert!(code == 2 && printed.contains("--default-ttl b/x=1s"), "{code}: {printed}");
    Ok(())
}
