//! Addresses to listen on: IP addresses with ports, and Unix sockets.
//!
//! Owns: how they are written on the command line. In a configuration file a path is whole; here it may begin at the
//! working directory.

use std::net::SocketAddr;

use nectary_config::ListenAddress;
use nectary_proxy::{SocketUsers, UnixSocket};

/// Reads an address to listen on; `:80` means every address.
pub(crate) fn parse_listen(text: &str) -> Result<ListenAddress, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return parse_path(path);
    }
    let full = if text.starts_with(':') { format!("[::]{text}") } else { text.replacen("localhost:", "127.0.0.1:", 1) };
    let address = full.parse::<SocketAddr>().map(ListenAddress::Socket);
    address.map_err(|_| "expected an IP address and a port, as 127.0.0.1:8080 or :8080, or unix:PATH".to_owned())
}

fn parse_path(path: &str) -> Result<ListenAddress, String> {
    if path.is_empty() || path.ends_with('/') || path.chars().any(char::is_control) {
        return Err("expected the path of a socket, as unix:/run/nectary/http.sock".to_owned());
    }
    std::path::absolute(path).map(ListenAddress::Unix).map_err(|error| format!("{path}: {error}"))
}

/// Those with an IP address and a port.
pub fn tcp_addresses(listed: &[ListenAddress]) -> Vec<SocketAddr> {
    let address = |listed: &ListenAddress| match listed {
        ListenAddress::Socket(address) => Some(*address),
        ListenAddress::Unix(_) => None,
    };
    listed.iter().filter_map(address).collect()
}

/// The Unix sockets, which are for these users, with the usual permissions.
pub fn unix_sockets(listed: &[ListenAddress], users: SocketUsers) -> impl Iterator<Item = UnixSocket> {
    listed.iter().filter_map(move |listed| match listed {
        ListenAddress::Socket(_) => None,
        ListenAddress::Unix(path) => Some(UnixSocket::new(path, users)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_paths() {
        let shown = |text: &str| parse_listen(text).map(|address| address.to_string());
        for (text, expected) in [
            (":80", "[::]:80"),
            ("localhost:81", "127.0.0.1:81"),
            ("[::1]:0", "[::1]:0"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(expected));
        }
        let here = std::env::current_dir().expect("a directory").join("a.sock");
        assert_eq!(parse_listen("unix:./a.sock"), Ok(ListenAddress::Unix(here)));
        for wrong in ["8080", "", "unix:", "unix:/run/", "unix:/a\u{7}", "example.org:80"] {
            assert!(parse_listen(wrong).expect_err(wrong).starts_with("expected"), "{wrong}");
        }
        let listed = [":80", "unix:/a", "unix:/b"].map(|text| parse_listen(text).expect("an address"));
        assert_eq!(tcp_addresses(&listed).len(), 1);
        let modes = unix_sockets(&listed, SocketUsers::Admin).map(|socket| socket.mode);
        assert_eq!(modes.collect::<Vec<_>>(), [0o600, 0o600]);
    }
}
