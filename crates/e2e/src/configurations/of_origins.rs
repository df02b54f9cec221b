//! Features of origins: what their servers are told, which of them is asked, and how long an answer may take.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{ConfigurationFeature, FeatureTrial};

/// The longest time until a check has taken a server out.
const OUT_MAX: Duration = Duration::from_secs(4);
/// An answer that is never stored.
const FRESH: &str = "/a~cache-control=no-store";

/// The features, each with its two files.
pub const FEATURES: &[ConfigurationFeature] = &[
    ConfigurationFeature {
        name: "host-of-the-site",
        file: r#"
%listener
%store
%app
+ host = "site"
[[site]]
names = ["example.org", "www.example.org"]
[[site.route]]
origin = "app"
"#,
        see: host,
        with: "example.org",
        without: "own",
    },
    ConfigurationFeature {
        name: "host-of-the-client",
        file: r#"
%listener
%store
%app
+ host = "client"
[[site]]
names = ["example.org", "www.example.org"]
[[site.route]]
origin = "app"
"#,
        see: host,
        with: "www.example.org",
        without: "own",
    },
    ConfigurationFeature {
        name: "host-fixed",
        file: r#"
%listener
%store
%app
+ host = "inner.test"
[[site]]
names = ["example.org", "www.example.org"]
[[site.route]]
origin = "app"
"#,
        see: host,
        with: "inner.test",
        without: "own",
    },
    ConfigurationFeature {
        name: "several-servers",
        file: r#"
%listener
%store
[origins.app]
+ servers = ["{app}", "{spare}"]
- servers = ["{app}"]
%site
"#,
        see: |trial| trial.origins(4, FRESH),
        with: "app spare",
        without: "app",
    },
    ConfigurationFeature {
        name: "balance-hash",
        file: r#"
%listener
%store
[origins.app]
servers = ["{app}", "{spare}"]
+ balance = "hash"
%site
"#,
        see: |trial| Ok(trial.origins(8, FRESH)?.split(' ').count().to_string()),
        with: "1",
        without: "2",
    },
    ConfigurationFeature {
        name: "balance-least-outstanding",
        file: r#"
%listener
%store
[origins.app]
servers = ["{app}", "{spare}"]
+ balance = "least-outstanding"
%site
"#,
        see: beside_a_slow_request,
        with: "the other origin",
        without: "both origins",
    },
    ConfigurationFeature {
        name: "eject",
        file: r#"
%listener
%store
[origins.app]
servers = ["{closing}", "{spare}"]
retries = 0
+ eject = { failures = 1, time = "1m" }
- eject = { failures = 1000, time = "1m" }
%site
"#,
        see: |trial| {
            let statuses = trial.statuses(&[FRESH; 8])?;
            Ok(format!("{} times 502", statuses.matches("502").count()))
        },
        with: "1 times 502",
        without: "4 times 502",
    },
    ConfigurationFeature {
        name: "weight-0",
        file: r#"
%listener
%store
[origins.app]
+ servers = [{ url = "{app}", weight = 0 }, "{spare}"]
- servers = [{ url = "{app}", weight = 1 }, "{spare}"]
%site
"#,
        see: |trial| trial.origins(8, FRESH),
        with: "spare",
        without: "app spare",
    },
    ConfigurationFeature {
        name: "check",
        file: r#"
%listener
%store
[origins.app]
servers = ["{app}", "{spare}"]
eject = { failures = 1 }
+ check = { path = "/health~only=spare", interval = "100ms", time = "1s" }
%site
"#,
        see: |trial| {
            let begun = Instant::now();
            loop {
                let origins = trial.origins(8, FRESH)?;
                if origins == "spare" || begun.elapsed() > OUT_MAX {
                    return Ok(origins);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        },
        with: "spare",
        without: "app spare",
    },
    ConfigurationFeature {
        name: "retries",
        file: r#"
%listener
%store
[origins.app]
servers = ["{closing}", "{spare}"]
eject = { failures = 1000 }
+ retries = 1
- retries = 0
%site
"#,
        see: |trial| {
            let statuses = trial.statuses(&[FRESH; 4])?;
            Ok(if statuses.contains("502") { "some 502".to_owned() } else { statuses })
        },
        with: "200 200 200 200",
        without: "some 502",
    },
    ConfigurationFeature {
        name: "connections-max-of-a-server",
        file: "%listener\n%store\n%app\n+ connections-max = 1\n%site",
        see: |trial| {
            trial.app.take_at_once_max();
            let statuses = trial.statuses_at_once(&["/a~wait=500", "/b~wait=500"])?;
            Ok(format!("{statuses}, at once {}", trial.app.take_at_once_max()))
        },
        with: "200 200, at once 1",
        without: "200 200, at once 2",
    },
    ConfigurationFeature {
        name: "queue-time",
        file: "%listener\n%store\n%app\nconnections-max = 1\n+ queue-time = \"100ms\"\n%site",
        see: |trial| trial.statuses_at_once(&["/a~wait=800", "/b~wait=800"]),
        with: "200 503",
        without: "200 200",
    },
    ConfigurationFeature {
        name: "queue-max",
        file: "%listener\n%store\n%app\nconnections-max = 1\n+ queue-max = 0\n%site",
        see: |trial| trial.statuses_at_once(&["/a~wait=500", "/b~wait=500"]),
        with: "200 503",
        without: "200 200",
    },
    ConfigurationFeature {
        name: "first-byte",
        file: "%listener\n%store\n%app\n+ first-byte = \"300ms\"\n%site",
        see: |trial| trial.statuses(&["/a~wait=1500"]),
        with: "504",
        without: "200",
    },
    ConfigurationFeature {
        name: "total-time",
        file: "%listener\n%store\n%app\n+ total-time = \"300ms\"\n%site",
        see: |trial| trial.statuses(&["/a~wait=1500"]),
        with: "504",
        without: "200",
    },
    ConfigurationFeature {
        name: "idle-max",
        file: "%listener\n%store\n%app\n+ idle-max = 0\n%site",
        see: |trial| {
            let before = trial.app.connections();
            trial.statuses(&[FRESH; 3])?;
            Ok(format!("{} connections", trial.app.connections() - before))
        },
        with: "3 connections",
        without: "1 connections",
    },
    ConfigurationFeature {
        name: "store-close-delimited",
        file: "%listener\n%store\n%app\n+ store-close-delimited = false\n%site",
        see: |trial| trial.each(&["/a~cache-control=max-age=60~close=1"; 2]),
        with: "200 fetched, 200 fetched",
        without: "200 fetched, 200 stored",
    },
];

/// Which origins answer while one of them has a request that takes long.
fn beside_a_slow_request(trial: &FeatureTrial) -> Result<String> {
    let origins = [&trial.app, &trial.spare];
    for origin in origins {
        origin.take_at_once_max();
    }
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| trial.answered("/slow~wait=2000", "x-origin"));
        let begun = Instant::now();
        while origins.iter().all(|origin| origin.take_at_once_max() == 0) {
            ensure!(begun.elapsed() < OUT_MAX, "no origin got the slow request");
            std::thread::sleep(Duration::from_millis(5));
        }
        let quick = trial.origins(6, FRESH)?;
        let slow = slow.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        Ok(match quick.as_str() {
            "app spare" => "both origins".to_owned(),
            one if one != slow => "the other origin".to_owned(),
            one => format!("only {one}, which was busy"),
        })
    })
}

/// The `Host` that the origin got, or `own` if it is that of its URL.
fn host(trial: &FeatureTrial) -> Result<String> {
    let host = trial.sent("www.example.org /a", "host")?;
    Ok(if host == trial.app.address().to_string() { "own".to_owned() } else { host })
}
