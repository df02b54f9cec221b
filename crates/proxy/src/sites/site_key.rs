//! The first part of a site's keys: scheme and authority.
//!
//! Owns: its form. Preset and site differ: the one origin of a reverse proxy has keys with its own scheme and authority;
//! a site's keys begin with its first name, whatever servers it has, so two sites never share a key. Where an origin gets
//! the host that the client names, that host is in the key: for a site after its first name and a `!`, unless it is that
//! name. The name of a site never has a `!`.

use crate::rules::invalidate::origin_of;
use crate::rules::origin::host_sent::push_host;

/// What the host of a client's request changes in a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientHost {
    /// Nothing.
    Ignored,
    /// It is the authority of the key.
    Instead,
    /// It follows the site's first name.
    Behind,
}

/// What all keys of a site begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SiteKey {
    /// Scheme and authority, as `http://example.org`.
    prefix: Vec<u8>,
    /// Whether origins speak TLS, which decides the port that is not written.
    is_https: bool,
    client: ClientHost,
    /// Whether it is the key of a site of a configuration file, and so need not be the URL that clients use.
    pub is_of_site: bool,
}

impl SiteKey {
    /// The keys of the one origin of a reverse proxy. `authority` is in the form of [`push_host`]; if `is_client_host`,
    /// it stands only for requests that name no host.
    pub fn of_origin(is_https: bool, authority: &str, is_client_host: bool) -> SiteKey {
        let scheme = if is_https { "https://" } else { "http://" };
        let client = if is_client_host { ClientHost::Instead } else { ClientHost::Ignored };
        SiteKey { prefix: [scheme, authority].concat().into_bytes(), is_https, client, is_of_site: false }
    }

    /// The keys of a site with this first name. If `is_client_host`, the host that the client names is in them.
    pub fn of_site(name: &str, is_https: bool, is_client_host: bool) -> SiteKey {
        let client = if is_client_host { ClientHost::Behind } else { ClientHost::Ignored };
        SiteKey {
            prefix: format!("http://{}", name.to_ascii_lowercase()).into_bytes(),
            is_https,
            client,
            is_of_site: true,
        }
    }

    /// What all keys begin with, scheme and authority; `None` if the client's host decides.
    pub fn fixed_prefix(&self) -> Option<&[u8]> {
        (self.client == ClientHost::Ignored).then_some(&self.prefix[..])
    }

    /// Whether the first name of the site, or the origin, begins so.
    pub fn begins_with(&self, beginning: &[u8]) -> bool {
        self.prefix.starts_with(beginning)
    }

    /// What all keys begin with.
    #[cfg(test)]
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Appends scheme and authority of the key for a request that names `host`; false if that is not a host.
    pub fn push_prefix(&self, out: &mut Vec<u8>, host: Option<&[u8]>) -> bool {
        match (self.client, host) {
            (ClientHost::Ignored, _) | (_, None) => {
                out.extend_from_slice(&self.prefix);
                true
            }
            (ClientHost::Instead, Some(host)) => {
                out.extend_from_slice(if self.is_https { b"https://" } else { b"http://" });
                push_host(out, host, self.is_https)
            }
            (ClientHost::Behind, Some(host)) => {
                out.extend_from_slice(&self.prefix);
                let end = out.len();
                out.push(b'!');
                let is_host = push_host(out, host, self.is_https);
                if is_host && out[end + 1..] == *self.name() {
                    out.truncate(end);
                }
                is_host
            }
        }
    }

    /// The host in the key that the client chose; `None` if it chose none.
    pub fn client_host_of<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        let authority = origin_of(key);
        let host = match self.client {
            ClientHost::Ignored => return None,
            ClientHost::Instead => authority.get(if self.is_https { 8 } else { 7 }..)?,
            ClientHost::Behind => match authority.get(self.prefix.len()..)? {
                b"" => authority.get(b"http://".len()..)?,
                behind => behind.strip_prefix(b"!")?,
            },
        };
        std::str::from_utf8(host).ok()
    }

    fn name(&self) -> &[u8] {
        &self.prefix[b"http://".len()..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_host_round_trips_through_key() {
        let key = |rule: &SiteKey, host: Option<&str>| {
            let mut out = Vec::new();
            let is_good = rule.push_prefix(&mut out, host.map(str::as_bytes));
            out.extend_from_slice(b"/x");
            let sent = rule.client_host_of(&out).map(str::to_owned);
            is_good.then(|| (String::from_utf8(out).expect("text"), sent))
        };
        let expected = |key: &str, sent: Option<&str>| Some((key.to_owned(), sent.map(str::to_owned)));
        let own = SiteKey::of_origin(true, "a:81", false);
        assert_eq!(key(&own, Some("evil")), expected("https://a:81/x", None));
        let client = SiteKey::of_origin(false, "a:81", true);
        assert_eq!(key(&client, Some("B:80")), expected("http://b/x", Some("b")));
        assert_eq!(key(&client, None), expected("http://a:81/x", Some("a:81")));
        assert_eq!(key(&client, Some("b:0")), None);
        let site = SiteKey::of_site("Example.org", false, false);
        assert_eq!(key(&site, Some("evil")), expected("http://example.org/x", None));
        let site = SiteKey::of_site("example.org", false, true);
        assert_eq!(key(&site, Some("Example.ORG:80")), expected("http://example.org/x", Some("example.org")));
        assert_eq!(
            key(&site, Some("www.example.org:81")),
            expected("http://example.org!www.example.org:81/x", Some("www.example.org:81"))
        );
        assert_eq!(key(&site, None), expected("http://example.org/x", Some("example.org")));
    }
}
