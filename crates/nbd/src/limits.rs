//! Limits on the sizes, counts and times that the other side could otherwise choose.
//!
//! Owns: the numbers. A request beyond a limit is refused, and the error names the limit. So memory use is limited,
//! whatever a client or server sends.

use std::time::Duration;

/// The largest payload of one request or one content chunk, in bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// The maximum number of connections of a server at a time. Beyond it, a client gets the place of the connection that
/// has been open for longest without a request.
pub const CONNECTIONS_MAX: usize = 1024;
/// The maximum number of threads of a server that share the connections of one address.
pub const THREADS_MAX: usize = 64;
/// The maximum number of requests in flight on one connection of a server or client.
pub const REQUESTS_MAX: usize = 128;
/// The maximum number of bytes of requests in flight on one connection of a server or client.
pub const CONNECTION_BYTES_MAX: usize = 64 << 20;
/// The maximum number of bytes of requests in flight on all connections of a server together.
pub const SERVER_BYTES_MAX: usize = 512 << 20;
/// The maximum number of exports of a server.
pub const EXPORTS_MAX: usize = 1024;
/// The longest data of an option that a server accepts, in bytes. Longer data are skipped, and the option is refused.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// The longest data of an option that a server skips, in bytes. Longer data end the connection.
pub const OPTION_SKIP_BYTES_MAX: u32 = 4 << 20;
/// The maximum number of options that a client may send to a server on one connection.
pub const OPTIONS_MAX: u32 = 512;
/// The longest time for connecting and haggling together, for a server and for a client.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(15);
/// The longest time in which the other side may neither send nor receive in the middle of a message.
pub const STALL_TIME_MAX: Duration = Duration::from_secs(60);
/// The longest time for which a stopping server waits for requests in flight.
pub const STOP_TIME_MAX: Duration = Duration::from_secs(20);

/// The longest data of a reply to an option that a client accepts, in bytes.
pub const OPTION_REPLY_BYTES_MAX: u32 = 64 << 10;
/// The maximum number of replies to one option that a client accepts.
pub const OPTION_REPLIES_MAX: u32 = 16_384;
/// The longest error chunk that a client accepts, in bytes. The length includes the chunk's numbers and its message.
pub const ERROR_CHUNK_BYTES_MAX: u32 = 64 << 10;
/// The maximum number of extents in one answer about allocation that a client accepts. This is the limit of the
/// protocol document.
pub const EXTENTS_MAX: u32 = 1 << 20;
/// The maximum number of pieces, in any order, in which the data of one request of a client may arrive.
pub const PIECES_MAX: usize = 4096;
/// The maximum number of connections of one device of a client.
pub const CLIENT_CONNECTIONS_MAX: u32 = 16;
/// The default number of connections of one device to a server that allows several (multi-conn).
pub const CLIENT_CONNECTIONS: u32 = 4;
/// The default time for which a client's requests wait for a server that is away, counted from the loss of the last
/// connection.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// The longest such time.
pub const PATIENCE_MAX: Duration = Duration::from_secs(24 * 3600);
/// The maximum number of times that a client sends one request again after a lost connection.
pub const REPEATS_MAX: u32 = 8;
/// The default time after which a client's request without an answer makes its connection fail.
pub const REQUEST_TIME: Duration = Duration::from_secs(30);
