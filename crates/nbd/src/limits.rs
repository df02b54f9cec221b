//! Limits on everything that the other side decides: sizes, counts, times.
//!
//! Owns: the numbers. A request beyond a limit is refused, and the error names the limit. No memory grows without a
//! limit because of what a client or server sends.

use std::time::Duration;

/// The largest payload of one request or one content chunk, in bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Server: connections at a time.
pub const CONNECTIONS_MAX: usize = 256;
/// Server: threads that share the connections of an address.
pub const THREADS_MAX: usize = 64;
/// Server and client: requests in flight on one connection.
pub const REQUESTS_MAX: usize = 128;
/// Server and client: bytes of requests in flight on one connection.
pub const CONNECTION_BYTES_MAX: usize = 64 << 20;
/// Server: bytes of requests in flight on all connections together.
pub const SERVER_BYTES_MAX: usize = 512 << 20;
/// Server: exports.
pub const EXPORTS_MAX: usize = 1024;
/// Server: the data of an option, in bytes; a longer one is skipped and refused.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Server: the longest option that is skipped; a longer one ends the connection.
pub const OPTION_SKIP_BYTES_MAX: u32 = 4 << 20;
/// Server: options on one connection.
pub const OPTIONS_MAX: u32 = 512;
/// How long connecting and haggling may take together.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(15);
/// How long the other side may neither send nor receive in the middle of a message.
pub const STALL_TIME_MAX: Duration = Duration::from_secs(60);
/// Server: how long requests in flight may take when the server stops.
pub const STOP_TIME_MAX: Duration = Duration::from_secs(20);

/// Client: the data of a reply to an option, in bytes.
pub const OPTION_REPLY_BYTES_MAX: u32 = 64 << 10;
/// Client: replies to one option.
pub const OPTION_REPLIES_MAX: u32 = 16_384;
/// Client: the message of an error chunk with its numbers, in bytes.
pub const ERROR_CHUNK_BYTES_MAX: u32 = 64 << 10;
/// Client: extents in one answer about allocation; the limit of the document.
pub const EXTENTS_MAX: u32 = 1 << 20;
/// Client: the number of pieces in which the data of one request may arrive, in any order.
pub const PIECES_MAX: usize = 4096;
/// Client: connections of one device.
pub const CLIENT_CONNECTIONS_MAX: u32 = 16;
/// Client: connections of one device to a server with multi-conn.
pub const CLIENT_CONNECTIONS: u32 = 4;
/// Client: how long a request may go without an answer before its connection counts as failed.
pub const REQUEST_TIME: Duration = Duration::from_secs(30);
