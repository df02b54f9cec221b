//! What `[fleet]` has in quotes: names, addresses of nodes, and URLs of etcd.
//!
//! Owns: their syntax.

use super::{Read, ValueProblem, host_word, server_url, strange};
use crate::values::{PeerAddress, ServerScheme, ServerUrl};

/// The longest name of a fleet. *Units*: bytes.
const FLEET_MAX: usize = 64;
/// The longest name of a node or a zone. *Units*: bytes.
const NODE_MAX: usize = 128;

/// Reads the name of a fleet.
pub(crate) fn fleet_name(text: &str) -> Read<String> {
    plain(text, "the name of a fleet", "._-", FLEET_MAX)
}

/// Reads the name of a node.
pub(crate) fn node_name(text: &str) -> Read<String> {
    plain(text, "the name of a node", "._:[]-", NODE_MAX)
}

/// Reads the name of a zone.
pub(crate) fn zone_name(text: &str) -> Read<String> {
    plain(text, "the name of a zone", "._:-", NODE_MAX)
}

fn plain(text: &str, kind: &str, signs: &str, bytes_max: usize) -> Read<String> {
    if text.is_empty() || !text.chars().all(|sign| sign.is_ascii_alphanumeric() || signs.contains(sign)) {
        return Err(ValueProblem::not(text, kind, format!("write letters, digits and `{signs}`")));
    }
    if text.len() > bytes_max {
        return Err(ValueProblem::not(text, kind, format!("it has at most {bytes_max} bytes")));
    }
    Ok(text.to_owned())
}

/// Reads where a node is reached.
pub(crate) fn peer_address(text: &str) -> Read<PeerAddress> {
    const HELP: &str = "write a host and a port, such as `10.0.0.1:7443`";
    if text.contains("://") {
        return Err(ValueProblem::has(text, "a scheme", HELP));
    }
    let word = host_word(text)?;
    match word.port {
        Some(port) => Ok(PeerAddress { host: word.host, port }),
        None => Err(ValueProblem::has(text, "no port", HELP)),
    }
}

/// Reads the URL of a member of etcd. Its port is always written: that of etcd is not that of the scheme.
pub(crate) fn etcd_url(text: &str) -> Read<ServerUrl> {
    const HELP: &str = "write scheme, host and port, such as `https://10.0.0.9:2379`";
    if let Some(strange) = strange(text) {
        return Err(ValueProblem::has(text, &strange, HELP));
    }
    let url = server_url(text)?;
    if url.scheme == ServerScheme::Unix {
        return Err(ValueProblem::not(text, "the URL of a member of etcd", HELP));
    }
    let authority = text.split_once("://").map_or(text, |(_, rest)| rest.trim_end_matches('/'));
    match host_word(authority)?.port {
        Some(_) => Ok(url),
        None => Err(ValueProblem::has(text, "no port", HELP)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fleet_names_are_plain() {
        assert_eq!(fleet_name("edge-1.a_b"), Ok("edge-1.a_b".to_owned()));
        assert_eq!(node_name("[::1]:7443"), Ok("[::1]:7443".to_owned()));
        for bad in ["", "a/b", "a b", "ü", "a\\", &"x".repeat(129)] {
            assert!(fleet_name(bad).is_err() && node_name(bad).is_err() && zone_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn peer_addresses_have_a_port() {
        let address = peer_address("Node-a.internal:7443").expect("an address");
        assert_eq!(address.to_string(), "node-a.internal:7443");
        assert_eq!(peer_address("[2001:db8::1]:1").expect("an address").to_string(), "[2001:db8::1]:1");
        for bad in ["", "a", ":80", "a:0", "https://a:1", "::1", "a:b"] {
            assert!(peer_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn etcd_urls_have_a_port() {
        for good in ["http://a:2379", "https://[::1]:2379/", "https://a:443"] {
            assert!(etcd_url(good).is_ok(), "{good}");
        }
        for bad in ["http://a", "https://[::1]", "unix:/run/etcd.sock", "a:2379", "http://a:2379/x", ""] {
            assert!(etcd_url(bad).is_err(), "{bad}");
        }
    }
}
