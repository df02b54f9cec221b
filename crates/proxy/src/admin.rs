//! The settings that decide who may purge over HTTP.
//!
//! Owns: the options of administration, and reading and comparing the token. By default nobody may purge, not even from
//! a loopback address: behind a TLS terminator or a tunnel on the same machine, every client seems to have a loopback
//! address. Leaves to others: the effect of a purge (`service/purge`), and how requests are refused (`service/admin`).

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use subtle::ConstantTimeEq;

use crate::error::Error;

/// The shortest token, in bytes. A shorter token could be guessed.
pub const TOKEN_BYTES_MIN: usize = 16;
/// The longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 1024;

/// The settings that decide who may purge over HTTP. By default nobody may.
#[derive(Debug, Clone, Default)]
pub struct AdminOptions {
    /// The addresses that serve only administration; port 0 picks a free port. Without a token they must be loopback
    /// addresses.
    pub listen: Vec<SocketAddr>,
    /// The token that a purge request must show. If there is a token, `PURGE` is served on every address.
    pub token: Option<AdminToken>,
    /// Whether a purge request that came through another proxy is allowed.
    pub relayed: bool,
    /// What the addresses for administration answer to `GET`; nothing if it is `None`.
    pub pages: Option<AdminPages>,
}

/// A page of the addresses for administration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminPage {
    /// `/`: what an operator looks at in a browser; it fetches [`Status`](AdminPage::Status).
    Operator,
    /// `/page.css`: the style of that page.
    Style,
    /// `/page.js`: its script.
    Script,
    /// `/page.svg`: its icon.
    Icon,
    /// `/status.json`: the state, all counters, and what is requested from origins most.
    Status,
    /// `/metrics`: all counters, for Prometheus.
    Metrics,
    /// `/healthz`: whether the process answers.
    Health,
    /// `/readyz`: whether it should get requests.
    Ready,
}

impl AdminPage {
    /// The page with this path.
    pub(crate) fn of(path: &str) -> Option<AdminPage> {
        match path {
            "/" => Some(AdminPage::Operator),
            "/page.css" => Some(AdminPage::Style),
            "/page.js" => Some(AdminPage::Script),
            "/page.svg" => Some(AdminPage::Icon),
            "/status.json" => Some(AdminPage::Status),
            "/metrics" => Some(AdminPage::Metrics),
            "/healthz" => Some(AdminPage::Health),
            "/readyz" => Some(AdminPage::Ready),
            _ => None,
        }
    }

    /// Whether the page is the same for every proxy of this release, and so tells nothing about this one.
    pub(crate) fn is_static(self) -> bool {
        matches!(self, AdminPage::Operator | AdminPage::Style | AdminPage::Script | AdminPage::Icon)
    }

    /// Whether only those may see the page who show the token, or name this machine if there is none.
    pub(crate) fn is_protected(self) -> bool {
        matches!(self, AdminPage::Metrics | AdminPage::Status)
    }
}

/// The content of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminAnswer {
    /// Whether the answer is `200`; otherwise it is `503`.
    pub is_good: bool,
    /// The type of the text.
    pub content_type: &'static str,
    /// The text.
    pub text: String,
}

/// What makes the pages of the addresses for administration. It may block the thread for a moment.
#[derive(Clone)]
pub struct AdminPages(pub Arc<dyn Fn(AdminPage) -> AdminAnswer + Send + Sync>);

impl fmt::Debug for AdminPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminPages")
    }
}

impl AdminOptions {
    /// Checks the options, before anything is opened.
    ///
    /// *Errors*: [`Error::AdminWithoutToken`] if there is no token and other machines can reach an address for
    /// administration.
    pub fn check(&self) -> Result<(), Error> {
        match self.listen.iter().find(|address| self.token.is_none() && !is_loopback(address.ip())) {
            Some(&address) => Err(Error::AdminWithoutToken { address }),
            None => Ok(()),
        }
    }
}

/// Whether an address is a loopback address of IPv4, of IPv6, or of IPv4 mapped into IPv6.
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// A secret that a request for administration shows as `Authorization: Bearer TOKEN`.
#[derive(Clone)]
pub struct AdminToken(Box<[u8]>);

impl AdminToken {
    /// Reads a file that holds one token, with or without a line end after it.
    ///
    /// *Errors*: [`Error::AdminToken`] if the file cannot be read or does not hold a token. A token has
    /// [`TOKEN_BYTES_MIN`] to [`TOKEN_BYTES_MAX`] visible ASCII characters.
    pub fn read(path: &Path) -> Result<AdminToken, Error> {
        let failed = |what: String| Error::AdminToken { path: path.to_owned(), what };
        let mut bytes = Vec::new();
        // Reads at most one byte more than the longest token with its line end. The extra byte shows that a token is
        // too long.
        let limit = TOKEN_BYTES_MAX as u64 + 3;
        let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes));
        read.map_err(|error| failed(error.to_string()))?;
        AdminToken::parse(&bytes).map_err(failed)
    }

    fn parse(bytes: &[u8]) -> Result<AdminToken, String> {
        let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let token = line.strip_suffix(b"\r").unwrap_or(line);
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err("a token is one line of visible ASCII characters without spaces".into());
        }
        if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
            return Err(format!("a token has {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} characters"));
        }
        Ok(AdminToken(token.into()))
    }

    /// Whether the value of an `Authorization` header shows this token. The time of the comparison reveals at most the
    /// token's length.
    pub(crate) fn is_shown_by(&self, authorization: &[u8]) -> bool {
        let Some((scheme, rest)) = authorization.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(rest.trim_ascii().ct_eq(&self.0))
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_one_bounded_line() {
        let parse = |text: &str| AdminToken::parse(text.as_bytes()).map(|token| token.0.len());
        for end in ["", "\n", "\r\n"] {
            assert_eq!(parse(&format!("0123456789abcdef{end}")), Ok(16));
            assert_eq!(parse(&format!("{}{end}", "x".repeat(1024))), Ok(1024));
            assert!(parse(&format!("0123456789abcde{end}")).expect_err("short").contains("16 to 1024"));
            assert!(parse(&format!("{}{end}", "x".repeat(1025))).expect_err("long").contains("16 to 1024"));
        }
        for wrong in
            ["", "\n", "0123456789 abcdef", "0123456789abcdef\n\n", "0123456789abcdef\0", "0123456789abcd\u{e9}f"]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_the_whole_token_is_shown() {
        let token = AdminToken::parse(b"0123456789abcdef").expect("a token");
        assert!(token.is_shown_by(b"Bearer 0123456789abcdef") && token.is_shown_by(b"bearer  0123456789abcdef "));
        for wrong in [
            &b""[..],
            b"Bearer",
            b"Bearer ",
            b"0123456789abcdef",
            b"Basic 0123456789abcdef",
            b"Bearer 0123456789abcde",
            b"Bearer 0123456789abcdeF",
            b"Bearer 0123456789abcdef0",
        ] {
            assert!(!token.is_shown_by(wrong), "{}", String::from_utf8_lossy(wrong));
        }
        assert_eq!(format!("{token:?}"), "AdminToken");
    }

    #[test]
    fn remote_admin_addresses_need_token() {
        let options = |listen: &str, token| AdminOptions {
            listen: vec![listen.parse().expect("an address")],
            token,
            relayed: false,
            pages: None,
        };
        assert!(options("127.0.0.1:1", None).check().is_ok() && options("[::1]:1", None).check().is_ok());
        let token = AdminToken::parse(b"0123456789abcdef").ok();
        for listen in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            assert!(options(listen, None).check().expect_err(listen).to_string().contains("token"), "{listen}");
            assert!(options(listen, token.clone()).check().is_ok(), "{listen}");
        }
    }
}
