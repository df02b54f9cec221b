//! What `[tls.acme]` has in quotes: the URL of a directory, mail addresses, and names that can have a certificate.
//!
//! Owns: their syntax.

use std::net::IpAddr;

use super::{Read, ValueProblem, host_word, site_name, strange};
use crate::values::SiteName;

/// The longest URL of a directory. *Units*: bytes.
const DIRECTORY_MAX: usize = 2048;
/// The longest mail address. *Units*: bytes.
const MAIL_MAX: usize = 254;

/// Reads the URL of an authority's directory.
pub(crate) fn acme_directory(text: &str) -> Read<String> {
    const KIND: &str = "the URL of a directory";
    const HELP: &str =
        "write the `https` URL of the authority, such as `https://acme-v02.api.letsencrypt.org/directory`";
    if let Some(strange) = strange(text) {
        return Err(ValueProblem::has(text, &strange, HELP));
    }
    if text.len() > DIRECTORY_MAX {
        return Err(ValueProblem::not(text, KIND, format!("it has at most {DIRECTORY_MAX} bytes")));
    }
    let Some(rest) = text.strip_prefix("https://") else { return Err(ValueProblem::not(text, KIND, HELP)) };
    if text.contains('#') {
        return Err(ValueProblem::has(text, "a `#`", "what follows a `#` is never sent: leave it out"));
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(ValueProblem::has(text, "a user", HELP));
    }
    host_word(authority)?;
    Ok(text.to_owned())
}

/// Reads a mail address, with or without `mailto:` before it.
pub(crate) fn mail_address(text: &str) -> Read<String> {
    const HELP: &str = "write one address, such as `admin@example.org`";
    if let Some(strange) = strange(text) {
        return Err(ValueProblem::has(text, &strange, HELP));
    }
    let not = || ValueProblem::not(text, "a mail address", HELP);
    let address = text.strip_prefix("mailto:").unwrap_or(text);
    let (user, host) = address.split_once('@').ok_or_else(not)?;
    let is_plain = |sign: char| !matches!(sign, ',' | ';' | '?' | '&' | '%' | '<' | '>' | '"' | '\\' | ':' | '@');
    if user.is_empty() || address.len() > MAIL_MAX || !user.chars().all(is_plain) || !host.chars().all(is_plain) {
        return Err(not());
    }
    host_word(host).map_err(|_| not())?;
    Ok(address.to_owned())
}

/// Reads a name that can have a certificate.
pub(crate) fn certificate_name(text: &str) -> Read<String> {
    match site_name(text)? {
        SiteName::Wildcard(_) => {
            let help =
                "an authority gives wildcards only to who can change the DNS: name a file in [[tls.certificate]]";
            Err(ValueProblem::has(text, "a `*`", help))
        }
        SiteName::Exact(name) if name.parse::<IpAddr>().is_ok() => {
            Err(ValueProblem::not(text, "a name", "addresses get no certificate: name a file in [[tls.certificate]]"))
        }
        SiteName::Exact(name) => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_https_urls() {
        for good in ["https://a/", "https://a", "https://acme.test:14000/dir?x=1", "https://[::1]:14000/dir"] {
            assert_eq!(acme_directory(good), Ok(good.to_owned()));
        }
        for bad in ["", "http://a/", "https://", "https://u@a/", "https://a/#b", "https://a b/", "a", "https://a:0/"] {
            assert!(acme_directory(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn mail_addresses_are_one_each() {
        assert_eq!(mail_address("mailto:a.b@c.test"), Ok("a.b@c.test".to_owned()));
        assert_eq!(mail_address("a+b@c"), Ok("a+b@c".to_owned()));
        for bad in ["", "a", "@c", "a@", "a@b@c", "a@c,d@e", "a@c?subject=x", "a b@c", "a@c:25"] {
            assert!(mail_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn wildcards_and_addresses_get_no_certificate() {
        assert_eq!(certificate_name("WWW.Example.org"), Ok("www.example.org".to_owned()));
        for bad in ["*.example.org", "*", "192.0.2.1", "::1", "[::1]", "a:80", ""] {
            assert!(certificate_name(bad).is_err(), "{bad}");
        }
    }
}
