//! What all running parts of Nectary share: the place of their socket, its requests, stopping, and logging.
//!
//! Owns: the runtime directory, the control socket (server and client), [`Status`], [`Shutdown`], messages to the
//! standard error stream, TLS, and what the allocator keeps. Leaves to others: what a part answers, and how its answers
//! look on a terminal.
//!
//! The pieces: a part opens the [`RuntimeDirectory`], registers its [`Methods`] and starts a [`ControlServer`];
//! `nectary status` lists the sockets of that directory with [`control::parts`] and asks each of them with
//! [`control::request`].
#![deny(unsafe_code)]

pub mod allocator;
pub mod control;
mod error;
pub mod log;
mod runtime_directory;
mod shutdown;
mod status;
pub mod tls;

pub use control::{ControlServer, Fault, FaultKind, Limits, Methods};
pub use error::Error;
pub use runtime_directory::RuntimeDirectory;
pub use shutdown::{Shutdown, SignalWatch};
pub use status::{Problem, State, Status};
