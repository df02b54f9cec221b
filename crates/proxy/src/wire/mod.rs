//! The layer between the sockets and hyper: strict framing, informational responses and time limits.

pub mod deadlines;
pub mod framing;
pub mod informational;
pub mod stream;
mod violation;
