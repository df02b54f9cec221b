//! A registry with its index and its packages on different hosts, behind two reverse proxies.
//!
//! The index of such a registry contains the full address of the packages' host, so clients would bypass the proxy.
//! Therefore a small server of the test is between the client and the proxies. It passes each request to the first
//! proxy, and replaces the packages' host in texts by its own `/files`, whose requests it passes to the second proxy.

use super::{finish, proxy, small_server};
use crate::access_log::AccessLogEntry;
use crate::http::{HttpConnection, HttpResponse};
use crate::nectary::{NectaryProxy, ProxyCommand};
use anyhow::Result;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const WAIT: Duration = Duration::from_secs(60);
/// The headers of a request, and of an answer, that are passed on.
const ASKED: [&str; 5] = ["accept", "user-agent", "cache-control", "pragma", "range"];
const ANSWERED: [&str; 4] = ["content-type", "etag", "last-modified", "location"];

/// The proxies and the server between them and a client.
pub struct SplitRegistry {
    /// The address for the client.
    pub address: SocketAddr,
    proxies: Vec<(ProxyCommand, NectaryProxy)>,
}

/// Splits a URL into its origin (scheme, host and port) and the rest.
pub fn origin_of(url: &str) -> Option<(&str, &str)> {
    let start = url.find("://")? + 3;
    let end = url[start..].find('/').map_or(url.len(), |end| start + end);
    Some(url.split_at(end))
}

impl SplitRegistry {
    /// Starts proxies for an index and for packages; `files` is the URL of the packages as the index has it.
    pub fn start(folder: &Path, index: &str, files: &str, default_ttl: &str) -> Result<SplitRegistry> {
        let mut proxies = Vec::new();
        for (name, origin) in [("index", index), ("files", files)] {
            let command = proxy(&folder.join(name), Some(origin.to_owned()), default_ttl)?;
            let nectary = command.start()?;
            proxies.push((command, nectary));
        }
        let (index, packages, named) = (proxies[0].1.listen, proxies[1].1.listen, files.to_owned());
        let address =
            small_server::start(Arc::new(move |method: &str, target: &str, headers: &[(String, String)]| {
                let own = headers.iter().find(|(name, _)| name == "host").map_or("", |(_, value)| value);
                let (proxy, target) = match target.strip_prefix("/files/") {
                    Some(rest) => (packages, format!("/{rest}")),
                    None => (index, target.to_owned()),
                };
                relay(proxy, method, &target, headers, &named, &format!("http://{own}/files"))
            }))?;
        Ok(SplitRegistry { address, proxies })
    }

    /// Stops the proxies; returns their logs.
    pub fn finish(self) -> Result<Vec<AccessLogEntry>> {
        let mut lines = Vec::new();
        for (command, nectary) in self.proxies {
            lines.extend(finish(nectary, &command)?);
        }
        Ok(lines)
    }
}

fn relay(
    proxy: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(String, String)],
    from: &str,
    to: &str,
) -> HttpResponse {
    let kept = headers.iter().filter(|(name, _)| ASKED.contains(&name.as_str()));
    let kept: Vec<(&str, &str)> = kept.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut response = match HttpConnection::new(proxy, WAIT).request(method, target, &kept) {
        Ok(response) => response,
        Err(error) => HttpResponse { status: 502, headers: Vec::new(), body: error.to_string().into_bytes() },
    };
    response.headers.retain(|(name, _)| ANSWERED.contains(&name.as_str()));
    let is_text = response.headers.iter().any(|(name, value)| {
        name == "content-type" && ["text/", "json", "html"].iter().any(|kind| value.contains(kind))
    });
    // Cargo's registries do not always send a content type.
    if (is_text || target.ends_with("/config.json"))
        && let Ok(text) = std::str::from_utf8(&response.body)
    {
        response.body = text.replace(from, to).into_bytes();
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_behind_their_host() {
        assert_eq!(origin_of("https://a:8/b/c"), Some(("https://a:8", "/b/c")));
        assert_eq!(origin_of("http://a"), Some(("http://a", "")));
        assert_eq!(origin_of("a/b"), None);
    }
}
