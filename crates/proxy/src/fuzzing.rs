//! For fuzz targets: the readers of bytes from clients, origins and the store.
//!
//! Owns: nothing. Not part of the public interface: it changes without notice.

pub use crate::stored::metadata::{Entries, Metadata, ResponseHead, decode, encode_marker, encode_response};
pub use crate::stored::response::{Found, StoredResponse, to_metadata};
pub use crate::wire::framing::{Framing, Phase, Violation};

/// The path that a request head names; `None` unless the head is complete and so simple that it is answered without
/// hyper.
pub fn plain_path(request: &[u8]) -> Option<&[u8]> {
    crate::service::plain_path(request)
}
