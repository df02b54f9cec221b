//! The target of `nectary-config`: a configuration file.

use nectary_config::fuzzing;

/// Keys, headers and values.
pub const WORDS: &[&[u8]] = &[
    b"[[listener]]\n",
    b"address = \":80\"\n",
    b"[store]\ndevice = \"a\"\n",
    b"[origins.a]\n",
    b"servers = [",
    b"{ url = \"http://a\", weight = 2 }",
    b"[[site]]\n",
    b"[[site.route]]\n",
    b"names = [\"*.a\"]\n",
    b"origin = \"a\"\n",
    b"query-ignore = [\"u*\"]\n",
    b"response-headers = { set = { ",
    b"redirect = { to = \"/\" }\n",
    b"status-ttl.404 = \"1m\"\n",
    b"default = true\n",
    b"\"1h30m\"",
    b"\"64G\"",
    b"\\u0000",
    b"\"\"\"",
    b"\xc3\xa4",
    b"\xff",
];

/// Reads a file. One that is right must be written and read again as an equal one; of one that is wrong every mistake
/// has a place and a bounded message.
pub fn file(input: &[u8]) {
    fuzzing::parse(input);
}

/// Makes files with all tables: two that are right, and one with a mistake in each of its parts.
pub fn file_seeds() -> Vec<Vec<u8>> {
    let texts = [SMALL, LARGE, WRONG];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

const SMALL: &str = "listener = [{ address = \":80\" }]\nstore.device = 'a'\n[forward-proxy]\nconnect-ports = [443]\n";

const LARGE: &str = r##"
[server]
workers = 4
trust-forwarded = ["10.0.0.0/8"]
[[listener]]
address = "unix:/run/a.sock"
tls = true
[tls]
version-min = "1.3"
[[tls.certificate]]
cert = "a.pem"
key = "a.key"
[store]
device = "disk:/dev/sdb"
size = "1.5T"
write-budget = "50G/day"
cluster-size = "64K"
[admin]
listen = ["127.0.0.1:9180"]
[log]
access = "-"
format = "json"
[limits]
url-max = 8000
head-time = "1m30s"
[origins.a]
servers = ["http://10.0.0.5:3000", { url = "https://[::1]", weight = 2 }]
http2 = true
host = "www.example.org:8080"
balance = "hash"
check = { path = "/health", status = [200] }
eject.failures = 3
[[site]]
names = ["example.org", "*.example.org"]
deny = ["2001:db8::/32"]
[[site.route]]
path = "/static/"
origin = "a"
default-ttl = "1d"
status-ttl = { 404 = "1m" }
query-keep = ["page", "utm_*"]
cookies-key = ["language"]
request-headers = { set = { x-a = "b" }, remove = ["dnt"] }
tags = ["shop"]
[[site.route]]
path = "=/old"
redirect = { to = "https://example.org/new", status = 301 }
"##;

const WRONG: &str = r##"
[[listener]]
address = "80"
[store]
size = 64G
sise = "1Q"
[origins]
servers = ["ftp://a"]
[[site]]
names = ["a*.b"]
[[site.route]]
origin = 'b'
path = "x"
path = "/"
request-headers.set.host = "\u0001"
"##;
