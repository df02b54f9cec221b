//! What the origin is asked for, and what of a request is part of the key.
//!
//! Owns: the options that decide whether clients with different requests share a stored response.

use crate::rules::key_headers::KeyHeader;
use crate::rules::origin::host_sent::OriginHost;

/// What the origin is asked for, and what of a request is part of the key.
#[derive(Debug, Clone, Default)]
pub struct OriginOptions {
    /// The `Host` that the origin of a reverse proxy gets. It is also the authority in the keys of the origin's URLs.
    pub host: OriginHost,
    /// Request headers that are part of every key, as if each response named them in `Vary`. Of the headers about
    /// earlier hops (`X-Forwarded-Host` and others), only those named here reach the origin, if a trusted peer sent
    /// them.
    pub key_headers: Vec<KeyHeader>,
    /// Whether bodies that end with the origin's connection are not stored, although the connection was closed cleanly.
    pub distrusts_close: bool,
}
