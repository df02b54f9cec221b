//! URLs of servers, and where a redirect leads.
//!
//! Owns: their syntax.

use super::{Read, ValueProblem, host_word, socket_path, strange};
use crate::problem::quoted;
use crate::suggest::nearest;
use crate::values::{ServerScheme, ServerUrl};

/// The longest target of a redirect. *Units*: bytes.
const TARGET_MAX: usize = 4096;

const SCHEMES: [ServerScheme; 2] = [ServerScheme::Http, ServerScheme::Https];

/// Reads the URL of a server: scheme, host and port; or `unix:` and a path.
pub(crate) fn server_url(text: &str) -> Read<ServerUrl> {
    const HELP: &str = "write scheme, host and port, such as `http://10.0.0.5:3000` or `https://app.example.org`";
    if let Some(path) = text.strip_prefix("unix:") {
        let host = socket_path(text, path)?.to_owned();
        return Ok(ServerUrl { scheme: ServerScheme::Unix, host, port: ServerScheme::Unix.default_port() });
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        let help = match host_word(text) {
            Ok(_) => format!("a scheme is missing: write `http://{text}` or `https://{text}`"),
            Err(_) => HELP.to_owned(),
        };
        return Err(ValueProblem::not(text, "the URL of a server", help));
    };
    let lower = scheme.to_ascii_lowercase();
    let Some(scheme) = SCHEMES.into_iter().find(|known| known.name() == lower) else {
        if matches!(lower.as_str(), "h2" | "h2c") {
            let scheme = if lower == "h2" { "https" } else { "http" };
            let shown = quoted(&format!("{scheme}://{rest}"));
            return Err(ValueProblem::has(
                text,
                "an unknown scheme",
                format!("write {shown}, and `http2 = true` beside it"),
            ));
        }
        let perhaps = nearest(&lower, SCHEMES.map(ServerScheme::name));
        let perhaps = perhaps.map_or(String::new(), |scheme| format!("perhaps `{scheme}`; "));
        return Err(ValueProblem::has(text, "an unknown scheme", format!("{perhaps}allowed: http, https")));
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains('@') {
        return Err(ValueProblem::has(
            text,
            "a user",
            "to log in at a server, set the header authorization in request-headers",
        ));
    }
    if let Some(end) = authority.find(['/', '?', '#']) {
        let shown = format!("{}://{}", scheme.name(), &authority[..end]);
        return Err(ValueProblem::has(text, "a path", format!("a server has none: write {}", quoted(&shown))));
    }
    let word = host_word(authority)?;
    Ok(ServerUrl { scheme, port: word.port.unwrap_or(scheme.default_port()), host: word.host })
}

/// Reads where a redirect leads: a URL of `http` or `https`, or a path.
pub(crate) fn redirect_target(text: &str) -> Read<String> {
    const HELP: &str = "write a URL, such as `https://example.org/`, or a path, such as `/new/`";
    if let Some(strange) = strange(text) {
        return Err(ValueProblem::has(text, &strange, "write it percent-encoded, for example `%20` for a space"));
    }
    if text.contains('\\') {
        return Err(ValueProblem::has(text, "a `\\`", "browsers take it for a `/`: write `%5C`"));
    }
    if text.len() > TARGET_MAX {
        return Err(ValueProblem::not(text, "a place to redirect to", format!("it has at most {TARGET_MAX} bytes")));
    }
    if text.starts_with('/') && !text.starts_with("//") {
        return Ok(text.to_owned());
    }
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let Some(rest) = rest else { return Err(ValueProblem::not(text, "a URL or a path", HELP)) };
    host_word(rest.split(['/', '?', '#']).next().unwrap_or_default())?;
    Ok(text.to_owned())
}
