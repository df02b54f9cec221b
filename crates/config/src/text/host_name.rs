//! Names of hosts.
//!
//! Owns: which names are allowed, and their form: lower case, without a dot at the end. Promises: the name of a site
//! with a `*` has it as its whole first label. Leaves to others: looking names up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Read, ValueProblem, strange};
use crate::problem::quoted;
use crate::suggest::nearest;
use crate::values::{HostRule, SiteName, SrvName};

/// The longest name. *Units*: bytes.
const NAME_MAX: usize = 253;
/// The longest label of a name. *Units*: bytes.
const LABEL_MAX: usize = 63;

/// A host, and how it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostWord {
    /// A name in lower case, or an IP address; one of IPv6 without brackets.
    pub host: String,
    /// The port, if there is one; not 0.
    pub port: Option<u16>,
}

/// Reads the name of a host, without port.
fn bare_name(text: &str) -> Read<String> {
    const HELP: &str = "write a host, such as `example.org`";
    if text.is_empty() {
        return Err(ValueProblem { message: "the name is empty".to_owned(), help: HELP.to_owned() });
    }
    if let Some(strange) = strange(text) {
        let help = if text.is_ascii() {
            HELP.to_owned()
        } else {
            "write the name in its ASCII form, whose labels begin with `xn--` (punycode)".to_owned()
        };
        return Err(ValueProblem::has(text, &strange, help));
    }
    if let Some((_, rest)) = text.split_once("://") {
        let host = rest.split(['/', ':']).next().unwrap_or_default();
        return Err(ValueProblem::has(text, "a scheme", format!("write the host alone, as {}", quoted(host))));
    }
    if let Some((host, _)) = text.split_once('/') {
        return Err(ValueProblem::has(text, "a path", format!("write the host alone, as {}", quoted(host))));
    }
    if let Some(host) = text.strip_suffix('.') {
        return Err(ValueProblem::has(text, "a dot at the end", format!("write {}", quoted(host))));
    }
    if text.len() > NAME_MAX {
        return Err(ValueProblem::not(text, "a host", format!("a name has at most {NAME_MAX} bytes")));
    }
    text.split('.').try_for_each(|label| check_label(text, label))?;
    let last = text.rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<Ipv4Addr>().is_err() {
        return Err(ValueProblem::not(text, "a host", "an IPv4 address has four numbers from 0 to 255"));
    }
    Ok(text.to_ascii_lowercase())
}

/// Checks a part of a name between dots.
fn check_label(text: &str, label: &str) -> Read<()> {
    let help = match label {
        "" => "a name has no two dots side by side, and does not begin with one".to_owned(),
        long if long.len() > LABEL_MAX => format!("the part between two dots has at most {LABEL_MAX} bytes"),
        edge if edge.starts_with('-') || edge.ends_with('-') => {
            format!("{} may not begin or end with `-`", quoted(edge))
        }
        star if star.contains('*') => {
            "a `*` is only allowed as the whole first label, as in `*.example.org`".to_owned()
        }
        other if other.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) => return Ok(()),
        _ => "a name has letters, digits, `-` and dots".to_owned(),
    };
    Err(ValueProblem::not(text, "a host", help))
}

/// Reads a host and perhaps a port.
pub(crate) fn host_word(text: &str) -> Read<HostWord> {
    let port_of = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let port = digits.parse::<u16>().ok().filter(|port| is_number && *port != 0);
        port.map(Some).ok_or_else(|| ValueProblem {
            message: format!("{} is not a port", quoted(digits)),
            help: "a port is a number from 1 to 65535".to_owned(),
        })
    };
    if let Some((address, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let not =
            || ValueProblem::not(text, "a host", "write an IPv6 address as `[2001:db8::1]` or `[2001:db8::1]:8080`");
        let host = address.parse::<Ipv6Addr>().map_err(|_| not())?.to_string();
        let port = match rest.strip_prefix(':') {
            Some(digits) => port_of(digits)?,
            None if rest.is_empty() => None,
            None => return Err(not()),
        };
        return Ok(HostWord { host, port });
    }
    if let Ok(address) = text.parse::<Ipv6Addr>() {
        return Err(ValueProblem::not(text, "a host", format!("an IPv6 address is in brackets: write `[{address}]`")));
    }
    match text.rsplit_once(':') {
        Some((host, digits)) if !host.contains("//") && !digits.starts_with("//") => {
            Ok(HostWord { host: bare_name(host)?, port: port_of(digits)? })
        }
        _ => Ok(HostWord { host: bare_name(text)?, port: None }),
    }
}

/// Reads a name of a site: a host without port, perhaps with `*.` before it.
pub(crate) fn site_name(text: &str) -> Read<SiteName> {
    if text == "*" {
        return Err(ValueProblem::not(
            text,
            "a host",
            "for a site that serves every other host, write `default = true`",
        ));
    }
    if let Some(suffix) = text.strip_prefix("*.") {
        if suffix.parse::<IpAddr>().is_ok() {
            return Err(ValueProblem::not(
                text,
                "a host",
                "a `*` stands for labels of a name, not for a part of an address",
            ));
        }
        return bare_name(suffix).map(SiteName::Wildcard).map_err(|wrong| ValueProblem {
            message: wrong.message.replace(&quoted(suffix), &quoted(text)),
            help: wrong.help,
        });
    }
    if let Ok(address) = text.parse::<Ipv6Addr>() {
        return Ok(SiteName::Exact(address.to_string()));
    }
    let word = host_word(text)?;
    if word.port.is_some() {
        return Err(ValueProblem::has(
            text,
            "a port",
            format!("a site is the same on every port: write {}", quoted(&word.host)),
        ));
    }
    Ok(SiteName::Exact(word.host))
}

/// Reads the name of SRV records.
pub(crate) fn srv_name(text: &str) -> Read<SrvName> {
    const EXAMPLE: &str = "a name is for example `_http._tcp.app.internal`";
    if text.parse::<IpAddr>().is_ok() {
        return Err(ValueProblem::not(
            text,
            "the name of SRV records",
            format!("write an address in `servers`; {EXAMPLE}"),
        ));
    }
    if let Some((name, _)) = text.rsplit_once(':').filter(|_| !text.contains("://")) {
        return Err(ValueProblem::has(text, "a port", format!("the records say the ports: write {}", quoted(name))));
    }
    let name = bare_name(text)
        .map_err(|wrong| ValueProblem { message: wrong.message, help: format!("{}; {EXAMPLE}", wrong.help) })?;
    SrvName::new(name).ok_or_else(|| ValueProblem::has(text, "no domain", EXAMPLE))
}

/// The words of the rule for `Host`.
const HOST_WORDS: [&str; 3] = ["own", "site", "client"];

/// Reads the rule for `Host`, and which word was perhaps meant where it is the name of a host.
pub(crate) fn host_rule(text: &str) -> Read<(HostRule, Option<&'static str>)> {
    match text.to_ascii_lowercase().as_str() {
        "own" => return Ok((HostRule::Own, None)),
        "site" => return Ok((HostRule::Site, None)),
        "client" => return Ok((HostRule::Client, None)),
        _ => {}
    }
    let word = host_word(text).map_err(|wrong| ValueProblem {
        help: format!("{}; or `own`, `site` or `client`", wrong.help),
        message: wrong.message,
    })?;
    let host = if word.host.contains(':') { format!("[{}]", word.host) } else { word.host };
    let fixed = match word.port {
        Some(port) => format!("{host}:{port}"),
        None => host,
    };
    let meant = if fixed == "origin" { Some("own") } else { nearest(&fixed, HOST_WORDS) };
    Ok((HostRule::Fixed(fixed), meant))
}
