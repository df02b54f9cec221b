//! Names and values of headers.
//!
//! Owns: their syntax, and which headers may not be changed.

use super::{Read, ValueProblem};
use crate::problem::quoted;

/// The longest name. *Units*: bytes.
const NAME_MAX: usize = 256;
/// The longest value. *Units*: bytes.
const VALUE_MAX: usize = 8192;

/// The headers of a connection and of the framing of messages.
const KEPT: [&str; 10] = [
    "connection",
    "content-length",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Reads the name of a header, in lower case.
fn header_name(text: &str) -> Read<String> {
    const SIGNS: &[u8] = b"!#$%&'*+-.^_`|~";
    let is_token = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || SIGNS.contains(&byte));
    if text.is_empty() || !is_token {
        return Err(ValueProblem::not(
            text,
            "the name of a header",
            "a name has letters, digits and `-`, such as `x-request-id`",
        ));
    }
    if text.len() > NAME_MAX {
        return Err(ValueProblem::not(text, "the name of a header", format!("a name has at most {NAME_MAX} bytes")));
    }
    Ok(text.to_ascii_lowercase())
}

/// Reads the name of a header that may be set, removed, or be in a key.
pub(crate) fn settable_header(text: &str) -> Read<String> {
    let name = header_name(text)?;
    if !KEPT.contains(&name.as_str()) {
        return Ok(name);
    }
    let help = if name == "host" {
        "the key `host` of an origin decides which Host it gets".to_owned()
    } else {
        format!("it belongs to one connection or to the framing, as {} do", KEPT.join(", "))
    };
    Err(ValueProblem { message: format!("the header {} cannot be changed", quoted(&name)), help })
}

/// Reads the value of a header.
pub(crate) fn header_value(text: &str) -> Read<String> {
    if let Some(control) = text.chars().find(|c| c.is_control()) {
        return Err(ValueProblem::has(
            text,
            &format!("the control character U+{:04X}", u32::from(control)),
            "a value is a single line without tabs",
        ));
    }
    if text.trim_matches(' ').len() != text.len() {
        return Err(ValueProblem::has(text, "a space at an end", format!("write {}", quoted(text.trim_matches(' ')))));
    }
    if text.len() > VALUE_MAX {
        return Err(ValueProblem::not(text, "the value of a header", format!("a value has at most {VALUE_MAX} bytes")));
    }
    Ok(text.to_owned())
}
