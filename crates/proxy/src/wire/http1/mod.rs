//! HTTP/1: strict framing of the bytes before hyper gets them, informational responses, and the shortcut past hyper.

pub mod framing;
pub mod informational;
pub mod stream;
mod violation;
pub mod watch;
