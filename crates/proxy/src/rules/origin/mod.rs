//! What an origin is asked, and how its responses are made fit for all clients that share them.

pub mod encodings;
pub mod forwarded;
pub mod host_sent;
pub mod key_cookies;
pub mod key_headers;
pub mod references;
