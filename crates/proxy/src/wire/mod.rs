//! The layer between the sockets and hyper: strict framing, idle times, and the connections of a worker.

pub mod deadlines;
pub mod framing;
pub mod informational;
pub mod stream;
mod violation;
