//! The code that all running parts of Nectary share: the control socket and its directory, stopping, and logging.
//!
//! Owns: the runtime directory, the control socket (server and client), [`PartStatus`], [`Shutdown`], messages on standard
//! error, TLS, the settings of the allocator, the limits of open descriptors and of memory, inherited sockets, a clock
//! that counts while the host is suspended, what calls in progress wait for, and the traits between a proxy and its fleet.
//! Leaves to others: the answers of each part, and the way in which they are shown on a terminal.
//!
//! A part opens the [`RuntimeDirectory`], registers its [`ControlMethods`] and starts a [`ControlServer`]. `nectary status`
//! requests the status of the part at each socket in that directory with [`control::parts`]; [`control::request`] calls
//! any method of one part.
#![deny(unsafe_code)]

pub mod allocator;
pub mod clock;
pub mod connect;
pub mod control;
pub mod descriptors;
mod error;
pub mod fleet;
pub mod inherited;
pub mod log;
pub mod memory;
mod newcomers;
mod peek;
pub mod progress;
mod reopen;
mod runtime_directory;
mod shutdown;
mod status;
pub mod tls;
pub mod unsent;

pub use control::{ControlFault, ControlLimits, ControlMethods, ControlServer, FaultKind};
pub use error::Error;
pub use newcomers::{Newcomer, Newcomers};
pub use peek::peek;
pub use reopen::ReopenSignals;
pub use runtime_directory::{RuntimeDirectory, is_control_socket};
pub use shutdown::{Shutdown, SignalWatch};
pub use status::{PartHealth, PartProblem, PartStatus};
