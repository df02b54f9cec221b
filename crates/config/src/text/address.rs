//! Addresses of listeners, and networks.
//!
//! Owns: their syntax. Promises: names of hosts are not looked up.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::{Read, ValueProblem};
use crate::values::{HeaderSender, IpNetwork, ListenAddress, SocketMode};

/// The longest path of a Unix socket. *Units*: bytes.
const SOCKET_PATH_MAX: usize = 107;

/// Reads an address for clients: `127.0.0.1:8080`, `[::1]:8080`, `:80`, or `unix:/path`.
pub(crate) fn listen_address(text: &str) -> Read<ListenAddress> {
    let Some(path) = text.strip_prefix("unix:") else { return socket_address(text).map(ListenAddress::Socket) };
    socket_path(text, path).map(|path| ListenAddress::Unix(path.into()))
}

/// Reads the path of a Unix socket, which follows `unix:` in a text.
pub(crate) fn socket_path<'a>(text: &str, path: &'a str) -> Read<&'a str> {
    if !path.starts_with('/') || path.chars().any(char::is_control) {
        return Err(ValueProblem::not(
            text,
            "a Unix socket",
            "write a whole path, such as `unix:/run/nectary/http.sock`",
        ));
    }
    if path.len() > SOCKET_PATH_MAX {
        return Err(ValueProblem::has(
            text,
            "a long path",
            format!("a socket's path has at most {SOCKET_PATH_MAX} bytes"),
        ));
    }
    Ok(path)
}

/// Reads an IP address and a port; `:80` is every address.
pub(crate) fn socket_address(text: &str) -> Read<SocketAddr> {
    let full = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None if text.starts_with(':') => format!("[::]{text}"),
        None => text.to_owned(),
    };
    full.parse().map_err(|_| ValueProblem::not(text, "an address", address_help(text)))
}

/// What was perhaps meant by something that is no address.
fn address_help(text: &str) -> String {
    let is_port = |port: &str| !port.starts_with('+') && port.parse::<u16>().is_ok();
    if let Some(port) = text.strip_prefix("*:").filter(|port| is_port(port)) {
        return format!("for every address write `:{port}`");
    }
    if is_port(text) {
        return format!("for every address write `:{text}`");
    }
    if let Some((host, port)) = text.rsplit_once(':')
        && host.parse::<Ipv6Addr>().is_ok()
        && is_port(port)
    {
        return format!("write `[{host}]:{port}`");
    }
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        let shown = if address.is_ipv6() { format!("[{address}]:443") } else { format!("{address}:443") };
        return format!("a port is missing: write for example `{shown}`");
    }
    if let Some((host, port)) = text.rsplit_once(':')
        && host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
        && !is_port(port)
    {
        return "a port is a number from 0 to 65535".to_owned();
    }
    "write an IP address and a port, such as `127.0.0.1:8080`, `[::1]:8080` or `:80`".to_owned()
}

/// Reads who sends the PROXY protocol: a network, or `unix`.
pub(crate) fn header_sender(text: &str) -> Read<HeaderSender> {
    match text {
        "unix" => Ok(HeaderSender::Unix),
        text => network(text).map(HeaderSender::Network),
    }
}

/// Reads the permissions of a file: three octal digits, perhaps with a zero before them.
pub(crate) fn socket_mode(text: &str) -> Read<SocketMode> {
    let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = u16::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= SocketMode::MAX);
    mode.map(SocketMode)
        .ok_or_else(|| ValueProblem::not(text, "a mode", "write it as `chmod` takes it, such as `0660`"))
}

/// Reads an address, or an address and the bits of a network.
pub(crate) fn network(text: &str) -> Read<IpNetwork> {
    const HELP: &str = "write `192.0.2.7`, `192.0.2.0/24` or `2001:db8::/32`";
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let Ok(address) = address.parse::<IpAddr>() else { return Err(ValueProblem::not(text, "a network", HELP)) };
    let bits_max: u8 = if address.is_ipv4() { 32 } else { 128 };
    let Some(bits) = bits else {
        return IpNetwork::new(address, bits_max).ok_or_else(|| ValueProblem::not(text, "a network", HELP));
    };
    let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
    let network = bits.parse().ok().filter(|_| digits).and_then(|bits| IpNetwork::new(address, bits));
    let Some(network) = network else {
        let kind = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        return Err(ValueProblem::not(
            text,
            "a network",
            format!("a network of {kind} has 0 to {bits_max} bits after the `/`"),
        ));
    };
    if network.address != address {
        return Err(ValueProblem::has(
            text,
            "bits after those of the network",
            format!("write `{network}` for the network, or `{address}` for the address"),
        ));
    }
    Ok(network)
}
