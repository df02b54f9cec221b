//! Limits on everything that the other side could otherwise choose: sizes, counts, times.
//!
//! Owns: the numbers. A request beyond a limit is refused, and the error names the limit. Whatever a client or server
//! sends, the use of memory has a limit.

use std::time::Duration;

/// The largest payload of one request or one content chunk, in bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Server: the most connections at a time.
pub const CONNECTIONS_MAX: usize = 256;
/// Server: the most threads that share the connections of an address.
pub const THREADS_MAX: usize = 64;
/// Server and client: the most requests in flight on one connection.
pub const REQUESTS_MAX: usize = 128;
/// Server and client: the most bytes of requests in flight on one connection.
pub const CONNECTION_BYTES_MAX: usize = 64 << 20;
/// Server: the most bytes of requests in flight on all connections together.
pub const SERVER_BYTES_MAX: usize = 512 << 20;
/// Server: the most exports.
pub const EXPORTS_MAX: usize = 1024;
/// Server: the longest data of an option, in bytes. Longer data are skipped, and the option is refused.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Server: the longest data of an option that are skipped, in bytes. Longer data end the connection.
pub const OPTION_SKIP_BYTES_MAX: u32 = 4 << 20;
/// Server: the most options on one connection.
pub const OPTIONS_MAX: u32 = 512;
/// Server and client: the longest time for connecting and haggling together.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(15);
/// Server and client: the longest time in which the other side neither sends nor receives in the middle of a message.
pub const STALL_TIME_MAX: Duration = Duration::from_secs(60);
/// Server: the longest time for which a stopping server waits for requests in flight.
pub const STOP_TIME_MAX: Duration = Duration::from_secs(20);

/// Client: the longest data of a reply to an option, in bytes.
pub const OPTION_REPLY_BYTES_MAX: u32 = 64 << 10;
/// Client: the most replies to one option.
pub const OPTION_REPLIES_MAX: u32 = 16_384;
/// Client: the longest error chunk, with its numbers and its message, in bytes.
pub const ERROR_CHUNK_BYTES_MAX: u32 = 64 << 10;
/// Client: the most extents in one answer about allocation. This is the limit of the protocol document.
pub const EXTENTS_MAX: u32 = 1 << 20;
/// Client: the most pieces in which the data of one request may arrive. The order of the pieces does not matter.
pub const PIECES_MAX: usize = 4096;
/// Client: the most connections of one device.
pub const CLIENT_CONNECTIONS_MAX: u32 = 16;
/// Client: the connections of one device to a server that allows several (multi-conn), by default.
pub const CLIENT_CONNECTIONS: u32 = 4;
/// Client: the time after which a request without an answer makes its connection fail, by default.
pub const REQUEST_TIME: Duration = Duration::from_secs(30);
