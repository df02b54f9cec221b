//! The messages of the control socket.
//!
//! Owns: the form of the messages and the limits on their length. Leaves to others: sending and receiving them.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest request line, including its newline. *Units*: bytes.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024;

/// The longest answer line that a client accepts, including its newline. *Units*: bytes.
pub const RESPONSE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ControlRequest {
    pub(crate) method: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) params: Value,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ControlResponse {
    #[serde(rename = "ok")]
    Ok(Value),
    #[serde(rename = "error")]
    Error(ControlFault),
}

/// The kinds of faults in a part's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The line is not a request.
    Malformed,
    /// The part has no method of that name.
    UnknownMethod,
    /// The parameters do not fit the method.
    Invalid,
    /// The object that the request names does not exist.
    NotFound,
    /// The part cannot serve the request now.
    Busy,
    /// The part tried to serve the request and failed.
    Failed,
}

/// The reason why a part refused a request, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlFault {
    /// The kind, which decides the remedy.
    pub kind: FaultKind,
    /// The problem and its place.
    pub message: String,
    /// The remedy; empty if it is not known.
    #[serde(rename = "do", default)]
    pub remedy: String,
}

impl ControlFault {
    /// Makes a fault.
    pub fn new(kind: FaultKind, message: impl Into<String>, remedy: impl Into<String>) -> ControlFault {
        ControlFault { kind, message: message.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for ControlFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// Encodes a response as one line, including its newline. A response that is too long is replaced by a fault.
pub(crate) fn encode(response: &ControlResponse) -> Vec<u8> {
    let mut line = serde_json::to_vec(response).unwrap_or_default();
    if line.is_empty() || line.len() >= RESPONSE_BYTES_MAX {
        let message = format!("the answer has {} bytes, at most {RESPONSE_BYTES_MAX} can be sent", line.len());
        let fault = ControlFault::new(FaultKind::Failed, message, "ask for less");
        line = serde_json::to_vec(&ControlResponse::Error(fault)).unwrap_or_default();
    }
    line.push(b'\n');
    line
}
