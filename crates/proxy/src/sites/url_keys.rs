//! The keys of a URL that an operator names, for example to purge it.
//!
//! Owns: finding the site of a URL, whichever of its names and whether `http` or `https` the operator writes; and saying so if
//! there is none.

use http::Uri;

use super::site_route::RouteTarget;
use super::site_table::SiteTable;
use crate::rules::key::push_key;

/// A URL, or the beginning of URLs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeysOfUrl<'a> {
    pub url: &'a str,
    pub is_prefix: bool,
}

impl SiteTable {
    /// The keys under which responses for a URL may be stored: one, or several if URLs that begin so have keys of several
    /// forms. A URL of no site is its own key, in the form of keys; so is the beginning of a host, unless it is a
    /// site's name: then it is all of the site.
    pub fn keys_of(&self, wanted: &KeysOfUrl<'_>) -> Vec<Vec<u8>> {
        let as_it_is = || vec![own_key(wanted)];
        if !self.has_names() {
            return as_it_is();
        }
        let Some((_, rest)) = wanted.url.split_once("://") else { return as_it_is() };
        let (host, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None if wanted.is_prefix && !self.is_named(rest.as_bytes()) => return as_it_is(),
            None => (rest, "/"),
        };
        if !wanted.is_prefix {
            let Ok(uri) = wanted.url.parse::<Uri>() else { return as_it_is() };
            let mut key = Vec::new();
            let has_key = self.find(Some(host.as_bytes()), path.as_bytes()).push_request_key(&uri, None, &mut key);
            return if has_key { vec![key] } else { as_it_is() };
        }
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for route in self.routes_of(host.as_bytes()) {
            let mut key = Vec::new();
            if route.key.push_prefix(&mut key, Some(host.as_bytes())) {
                key.extend_from_slice(path.as_bytes());
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        if keys.is_empty() { as_it_is() } else { keys }
    }

    /// Why no response for a URL, or for the URLs that begin so, is stored by this table; `None` if one may be. What a former
    /// table has stored may be there.
    pub fn doubt_of(&self, wanted: &KeysOfUrl<'_>) -> Option<String> {
        let (_, rest) = wanted.url.split_once("://")?;
        let (host, path) = rest.find('/').map_or((rest, None), |slash| (&rest[..slash], Some(&rest[slash..])));
        let route = self.find(Some(host.as_bytes()), path.unwrap_or("/").as_bytes());
        match &route.target {
            // It may be the beginning of a host.
            RouteTarget::NoSite if wanted.is_prefix && path.is_none() => {
                let key = own_key(wanted);
                let is_begun = self.routes().iter().any(|route| route.key.begins_with(&key));
                (!is_begun).then(|| "no site has this host".to_owned())
            }
            RouteTarget::NoSite => Some("no site has this host".to_owned()),
            RouteTarget::NoRoute if !wanted.is_prefix => {
                Some("the site of this host has no route for this path".to_owned())
            }
            RouteTarget::Pool(_) if !self.has_names() => {
                let (prefix, key) = (route.key.fixed_prefix()?, own_key(wanted));
                let rest = key.strip_prefix(prefix);
                let is_known = rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
                    || (wanted.is_prefix && prefix.starts_with(&key));
                let prefix = String::from_utf8_lossy(prefix);
                (!is_known).then(|| format!("the URLs of this proxy begin with {prefix}/"))
            }
            _ => None,
        }
    }
}

/// The key of a URL that no site's name changes: scheme and host as all keys have them. What is no URL stays as it is.
fn own_key(wanted: &KeysOfUrl<'_>) -> Vec<u8> {
    let url = wanted.url;
    let end = match url.find("://").map(|at| at + 3) {
        Some(host) if wanted.is_prefix => match url[host..].find('/') {
            Some(slash) => host + slash,
            None => return url.to_ascii_lowercase().into_bytes(),
        },
        _ => url.len(),
    };
    let mut key = Vec::new();
    if !url[..end].parse::<Uri>().is_ok_and(|uri| push_key(&mut key, &uri)) {
        return url.as_bytes().to_vec();
    }
    if wanted.is_prefix {
        // The path of the prefix, instead of that of its host alone.
        key.pop_if(|last| *last == b'/');
        key.extend_from_slice(&url.as_bytes()[end..]);
    }
    key
}
