//! Features of sites and routes: which requests they are for, what is stored, and what is changed on the way.

use anyhow::Result;

use super::{ConfigurationFeature, FeatureTrial};
use crate::http::HttpConnection;

/// The features, each with its two files.
pub const FEATURES: &[ConfigurationFeature] = &[
    ConfigurationFeature {
        name: "site-names",
        file: r#"
%listener
%store
%app
[origins.spare]
servers = ["{spare}"]
%site
+ [[site]]
+ names = ["other.test"]
+ [[site.route]]
+ origin = "spare"
- [[site]]
- default = true
- [[site.route]]
- origin = "app"
"#,
        see: |trial| trial.answered("other.test /a", "x-origin"),
        with: "spare",
        without: "app",
    },
    ConfigurationFeature {
        name: "site-wildcard",
        file: r#"
%listener
%store
%app
[[site]]
+ names = ["example.org", "*.example.org"]
- names = ["example.org"]
[[site.route]]
origin = "app"
"#,
        see: |trial| trial.statuses(&["/a", "deep.www.example.org /a", "example.com /a"]),
        with: "200 200 404",
        without: "200 404 404",
    },
    ConfigurationFeature {
        name: "site-default",
        file: r#"
%listener
%store
%app
[[site]]
names = ["example.org"]
+ default = true
[[site.route]]
origin = "app"
"#,
        see: |trial| trial.statuses(&["/a", "unknown.test /a"]),
        with: "200 200",
        without: "200 404",
    },
    ConfigurationFeature {
        name: "site-allow",
        file: r#"
%listener
%store
%app
[[site]]
names = ["example.org"]
+ allow = ["10.0.0.0/8"]
- allow = ["127.0.0.0/8"]
[[site.route]]
origin = "app"
"#,
        see: |trial| trial.statuses(&["/a"]),
        with: "403",
        without: "200",
    },
    ConfigurationFeature {
        name: "route-deny",
        file: r#"
%listener
%store
%app
%site
[[site.route]]
path = "/inner/"
origin = "app"
+ deny = ["127.0.0.1"]
"#,
        see: |trial| trial.statuses(&["/a", "/inner/a"]),
        with: "200 403",
        without: "200 200",
    },
    ConfigurationFeature {
        name: "longest-path",
        file: r#"
%listener
%store
%app
[origins.spare]
servers = ["{spare}"]
%site
+ [[site.route]]
+ path = "/static/"
+ origin = "spare"
[[site.route]]
path = "/static/own/"
origin = "app"
- [[site.route]]
- path = "/never/"
- origin = "spare"
"#,
        see: |trial| {
            let origins = ["/a", "/static/a", "/static/own/a"].map(|target| trial.answered(target, "x-origin"));
            Ok(origins.into_iter().collect::<Result<Vec<_>>>()?.join(" "))
        },
        with: "app spare app",
        without: "app app app",
    },
    ConfigurationFeature {
        name: "exact-path",
        file: r#"
%listener
%store
%app
%site
[[site.route]]
+ path = "=/only"
- path = "/only"
origin = "app"
default-ttl = "1h"
"#,
        see: |trial| trial.each(&["/only", "/only", "/only/a", "/only/a"]),
        with: "200 fetched, 200 stored, 200 fetched, 200 fetched",
        without: "200 fetched, 200 stored, 200 fetched, 200 stored",
    },
    ConfigurationFeature {
        name: "redirect",
        file: r#"
%listener
%store
%app
%site
+ [[site.route]]
+ path = "=/old"
+ redirect = { to = "https://new.test/x", status = 301 }
"#,
        see: location,
        with: "301 https://new.test/x",
        without: "200 -",
    },
    ConfigurationFeature {
        name: "redirect-keep-path",
        file: r#"
%listener
%store
%app
%site
[[site.route]]
path = "=/old"
+ redirect = { to = "https://new.test", keep-path = true, status = 308 }
- redirect = { to = "https://new.test/x", status = 308 }
"#,
        see: location,
        with: "308 https://new.test/old?b=1",
        without: "308 https://new.test/x",
    },
    ConfigurationFeature {
        name: "default-ttl",
        file: "%listener\n%store\n%app\n%site\n+ default-ttl = \"1h\"",
        see: |trial| trial.each(&["/a", "/a"]),
        with: "200 fetched, 200 stored",
        without: "200 fetched, 200 fetched",
    },
    ConfigurationFeature {
        name: "status-ttl",
        file: "%listener\n%store\n%app\n%site\n+ status-ttl = { 404 = \"1m\" }",
        see: |trial| trial.each(&["/a~status=404", "/a~status=404", "/a", "/a"]),
        with: "404 fetched, 404 stored, 200 fetched, 200 fetched",
        without: "404 fetched, 404 fetched, 200 fetched, 200 fetched",
    },
    ConfigurationFeature {
        name: "pass",
        file: "%listener\n%store\n%app\n%site\n+ pass = true",
        see: |trial| trial.each(&["/a~cache-control=max-age=60", "/a~cache-control=max-age=60"]),
        with: "200 fetched, 200 fetched",
        without: "200 fetched, 200 stored",
    },
    ConfigurationFeature {
        name: "stale-unreachable",
        file: "%listener\n%store\n%app\n%site\n+ stale-unreachable = \"1h\"\n- stale-unreachable = \"0s\"",
        see: |trial| {
            let target = "/a~cache-control=max-age=10~age=20~etag=t";
            let before = trial.each(&[target])?;
            trial.app.set_closed(true);
            let after = trial.each(&[target]);
            trial.app.set_closed(false);
            Ok(format!("{before}, {}", after?))
        },
        with: "200 fetched, 200 stored",
        without: "200 fetched, 502",
    },
    ConfigurationFeature {
        name: "stale-while-revalidate",
        file: "%listener\n%store\n%app\n%site\n+ stale-while-revalidate = \"1m\"",
        see: |trial| trial.each(&["/a~cache-control=max-age=10~age=20~etag=t"; 2]),
        with: "200 fetched, 200 stored",
        without: "200 fetched, 200 fetched",
    },
    ConfigurationFeature {
        name: "query-ignore",
        file: "%listener\n%store\n%app\n%site\n+ query-ignore = [\"utm_*\"]",
        see: |trial| {
            trial.each(&[
                "/a~cache-control=max-age=60?b=1",
                "/a~cache-control=max-age=60?utm_source=x&b=1",
                "/a~cache-control=max-age=60?b=2",
            ])
        },
        with: "200 fetched, 200 stored, 200 fetched",
        without: "200 fetched, 200 fetched, 200 fetched",
    },
    ConfigurationFeature {
        name: "query-keep",
        file: "%listener\n%store\n%app\n%site\n+ query-keep = [\"page\"]",
        see: |trial| {
            trial.each(&[
                "/a~cache-control=max-age=60?page=1&x=1",
                "/a~cache-control=max-age=60?page=1&x=2",
                "/a~cache-control=max-age=60?page=2&x=1",
            ])
        },
        with: "200 fetched, 200 stored, 200 fetched",
        without: "200 fetched, 200 fetched, 200 fetched",
    },
    ConfigurationFeature {
        name: "cookies-ignore",
        file: "%listener\n%store\n%app\n%site\n+ cookies-ignore = [\"_ga*\"]",
        see: |trial| {
            trial.each(&[
                "/a~cache-control=max-age=60~vary=cookie | cookie: _ga=1; s=1",
                "/a~cache-control=max-age=60~vary=cookie | cookie: _ga=2; s=1",
                "/a~cache-control=max-age=60~vary=cookie | cookie: _ga=2; s=2",
            ])
        },
        with: "200 fetched, 200 stored, 200 fetched",
        without: "200 fetched, 200 fetched, 200 fetched",
    },
    ConfigurationFeature {
        name: "cookies-keep",
        file: "%listener\n%store\n%app\n%site\n+ cookies-keep = [\"session\"]",
        see: |trial| trial.sent("/a | cookie: session=1; _ga=2", "cookie"),
        with: "session=1",
        without: "session=1; _ga=2",
    },
    ConfigurationFeature {
        name: "cookies-key",
        file: "%listener\n%store\n%app\n%site\n+ cookies-key = [\"language\"]",
        see: |trial| {
            trial.each(&[
                "/a~cache-control=max-age=60 | cookie: language=de; x=1",
                "/a~cache-control=max-age=60 | cookie: language=de; x=2",
                "/a~cache-control=max-age=60 | cookie: language=fr; x=1",
            ])
        },
        with: "200 fetched, 200 stored, 200 fetched",
        without: "200 fetched, 200 stored, 200 stored",
    },
    ConfigurationFeature {
        name: "key-headers",
        file: "%listener\n%store\n%app\n%site\n+ key-headers = [\"x-device\"]",
        see: |trial| {
            trial.each(&[
                "/a~cache-control=max-age=60 | x-device: phone",
                "/a~cache-control=max-age=60 | x-device: phone",
                "/a~cache-control=max-age=60 | x-device: desk",
            ])
        },
        with: "200 fetched, 200 stored, 200 fetched",
        without: "200 fetched, 200 stored, 200 stored",
    },
    ConfigurationFeature {
        name: "ignore-request-cache-control",
        file: "%listener\n%store\n%app\n%site\n+ ignore-request-cache-control = true",
        see: |trial| {
            trial.each(&["/a~cache-control=max-age=60", "/a~cache-control=max-age=60 | cache-control: no-cache"])
        },
        with: "200 fetched, 200 stored",
        without: "200 fetched, 200 fetched",
    },
    ConfigurationFeature {
        name: "store-set-cookie",
        file: "%listener\n%store\n%app\n%site\n+ store-set-cookie = true",
        see: |trial| trial.each(&["/a~cache-control=max-age=60~set-cookie=s=1"; 2]),
        with: "200 fetched, 200 stored",
        without: "200 fetched, 200 fetched",
    },
    ConfigurationFeature {
        name: "strip-tags",
        file: "%listener\n%store\n%app\n%site\n+ strip-tags = true",
        see: |trial| trial.answered("/a~cache-control=max-age=60~surrogate-key=t", "surrogate-key"),
        with: "-",
        without: "t",
    },
    ConfigurationFeature {
        name: "tags",
        file: "%listener\n%store\n%admin\n%app\n%site\n+ tags = [\"shop\"]",
        see: |trial| {
            let target = "/a~cache-control=max-age=60";
            let before = trial.each(&[target, target])?;
            let mut operator = HttpConnection::new(trial.admin, std::time::Duration::from_secs(20));
            operator.request("PURGE", "/", &[("Surrogate-Key", "shop")])?;
            Ok(format!("{before}, {}", trial.each(&[target])?))
        },
        with: "200 fetched, 200 stored, 200 fetched",
        without: "200 fetched, 200 stored, 200 stored",
    },
    ConfigurationFeature {
        name: "request-headers-set",
        file: "%listener\n%store\n%app\n%site\n+ request-headers = { set = { x-from = \"proxy\" } }",
        see: |trial| trial.sent("/a | x-from: client", "x-from"),
        with: "proxy",
        without: "client",
    },
    ConfigurationFeature {
        name: "request-headers-remove",
        file: "%listener\n%store\n%app\n%site\n+ request-headers = { remove = [\"dnt\"] }",
        see: |trial| trial.sent("/a | dnt: 1", "dnt"),
        with: "-",
        without: "1",
    },
    ConfigurationFeature {
        name: "response-headers-set",
        file: "%listener\n%store\n%app\n%site\n+ response-headers = { set = { x-frame-options = \"DENY\" } }",
        see: |trial| trial.answered("/a", "x-frame-options"),
        with: "DENY",
        without: "-",
    },
    ConfigurationFeature {
        name: "response-headers-remove",
        file: "%listener\n%store\n%app\n%site\n+ response-headers = { remove = [\"server\"] }",
        see: |trial| trial.answered("/a", "server"),
        with: "-",
        without: "echo",
    },
];

/// The status and the place of a redirect.
fn location(trial: &FeatureTrial) -> Result<String> {
    let response = trial.ask("/old?b=1")?;
    Ok(format!("{} {}", response.status, response.header("location").unwrap_or("-")))
}
