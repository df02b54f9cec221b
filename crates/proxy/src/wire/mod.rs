//! The layer between the sockets and hyper: strict framing, informational responses and time limits.

pub mod exchange;
pub mod http1;
pub mod http2;
pub mod transport;
