//! The NBD protocol: any device can be an export for any NBD client, and any NBD server's export can be a device.
//!
//! Owns: fixed newstyle haggling (the negotiation of options), simple and structured replies, `base:allocation`, FLUSH,
//! FUA, TRIM, WRITE_ZEROES, CACHE, several connections, and TLS by STARTTLS, all of these for client and server; and
//! the URL of an export. Promises: input from the other side uses a limited amount of memory and leads to a reply or an
//! error; no answered write is lost without an error. Leaves to others: devices (`nectary-block`), certificates
//! (`nectary-host`), the contents of exports.
//!
//! | room | what is in it |
//! |---|---|
//! | `wire` | the bytes of the protocol, without I/O |
//! | `server` | haggling, checks and execution of requests, connections, listeners |
//! | `client` | haggling, replies, connections, the device |
#![forbid(unsafe_code)]

mod client;
mod error;
#[doc(hidden)]
pub mod fuzzing;
pub mod limits;
#[cfg(not(feature = "planted"))]
mod planted;
#[cfg(feature = "planted")]
pub mod planted;
mod server;
mod transport;
mod url;
mod wire;

pub use client::{ConnectOptions, ExportInfo, ListedExport, NbdDevice, info, list, register};
pub use error::{Error, NbdErrorKind};
pub use server::{
    BoundServer, Export, ExportFigures, ExportRefusal, ExportSource, ExportTable, ListenEndpoint, NetworkBlockServer,
    ServerFigures, ServerOptions,
};
pub use transport::{SplittableStream, Transport};
pub use url::{DEFAULT_PORT, ExportAddress, ExportUrl, URL_BYTES_MAX};
