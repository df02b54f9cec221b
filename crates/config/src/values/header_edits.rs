//! Changes of headers.
//!
//! Owns: the values of `request-headers` and `response-headers`.

use crate::place::LocatedValue;

/// `{ set = { NAME = "VALUE" }, remove = [NAME] }`: what is changed of the headers of a message. First headers are
/// removed, then set.
///
/// Names are in lower case, and no name is twice in it. Names of the connection (`connection`, `transfer-encoding` and
/// the like), of the framing (`content-length`) and `host` are never in it. Values have neither control characters nor
/// spaces at the ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeaderEdits {
    /// `set`: headers that the message then has once, with this value, in the order of the file.
    pub set: Vec<HeaderValue>,
    /// `remove`: headers that the message then has not.
    pub remove: Vec<LocatedValue<String>>,
}

/// A header that is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderValue {
    /// The name, in lower case.
    pub name: LocatedValue<String>,
    /// The value, which may be empty.
    pub value: LocatedValue<String>,
}

impl HeaderEdits {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }
}
