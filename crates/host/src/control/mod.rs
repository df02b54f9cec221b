//! The control socket: how a running part of Nectary, such as a proxy, reports its state and gets commands.
//!
//! Owns: the protocol, a server and a client. Promises: every message is one line of JSON; a request line is at most
//! [`REQUEST_BYTES_MAX`] long, an answer at most [`RESPONSE_BYTES_MAX`]; a connection may carry any number of requests,
//! one after another; the socket has mode 0600. Leaves to others: the methods.
//!
//! ```text
//! -> {"method":"status"}
//! <- {"ok":{"component":"proxy","name":"127.0.0.1:8080","state":"healthy","pid":4711,"problems":[],"detail":{}}}
//! -> {"method":"purge","params":{"key":"http://h/a"}}
//! <- {"error":{"kind":"unknown_method","message":"…","do":"…"}}
//! ```
//! Every part answers `methods` with the names and descriptions of its methods, and, by convention, `status` with a
//! [`PartStatus`](crate::PartStatus).

mod client;
mod message;
mod methods;
mod server;

pub use client::{RunningPart, parts, request};
pub use message::{ControlFault, FaultKind, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX};
pub use methods::ControlMethods;
pub use server::{ControlLimits, ControlServer};
