//! Functions for fuzz targets: the readers of bytes from clients, origins and the store.
//!
//! This module owns nothing. It is not part of the public interface and changes without notice.

pub use crate::accept::proxy_header::{ParsedHeader, parse as parse_proxy_header};
pub use crate::stored::metadata::{
    HeaderEntries, ObjectMetadata, ResponseHead, decode, encode_marker, encode_response,
};
pub use crate::stored::response::{ObjectView, StoredResponse, to_metadata};
pub use crate::wire::http1::framing::{FramingPhase, FramingReader, FramingViolation};

/// The path that a request head names; `None` unless the head is complete and so simple that the proxy answers it
/// without hyper.
pub fn plain_path(request: &[u8]) -> Option<&[u8]> {
    crate::service::plain_path(request)
}
