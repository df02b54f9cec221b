//! The kernel's FUSE protocol: one trait for a file system, one loop of requests.
//!
//! Owns: reading requests and bounding all that is in them, answers, `INIT`, interrupts, the memory of requests,
//! threads, mounts. Leaves to others: every file system. Promises: any bytes of the kernel, or of a stand-in, are a
//! request, an answer of `EINVAL`, or nothing; never a panic.
//!
//! | file | what is in it |
//! |---|---|
//! | `protocol` | numbers and layouts |
//! | `decode`, `request` | from bytes to requests |
//! | `reply`, `attributes`, `directory` | from answers to bytes |
//! | `negotiate` | `INIT` |
//! | `channel`, `mount`, `notify` | the kernel's side |
//! | `pool`, `flights` | memory of requests, and the requests under way |
//! | `connection` | the loop: one step reads one request and hands it over |
//! | `crew` | threads that go from step to step |
//!
//! A program with an event loop steps a [`Worker`] whenever its descriptor is readable; another starts a [`Crew`].
//!
//! # Examples
//! A file system with nothing in it:
//! ```
//! use nectary_fuse::{Call, FileSystem, Reply, Request};
//!
//! struct Empty;
//!
//! impl FileSystem for Empty {
//!     fn serve(&self, request: Request<'_>, reply: Reply) {
//!         match request.call {
//!             Call::LookUp { .. } => reply.errno(libc::ENOENT),
//!             _ => reply.errno(libc::ENOSYS),
//!         }
//!     }
//! }
//! ```

mod attributes;
mod channel;
mod connection;
mod crew;
mod decode;
mod directory;
mod error;
#[cfg(test)]
mod fake;
mod flights;
#[doc(hidden)]
pub mod fuzzing;
mod mount;
mod negotiate;
mod notify;
mod pool;
pub mod protocol;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use attributes::{Attributes, Entry, StatFs, Time};
pub use channel::Channel;
pub use connection::{Connection, FileSystem, Limits, Step, Worker};
pub use crew::Crew;
pub use directory::Listing;
pub use error::{Errno, Error};
pub use mount::{Mount, MountOptions, unmount};
pub use negotiate::{Agreed, Wishes, request_bytes_allowed};
pub use notify::Notifier;
pub use pool::{Data, Pool};
pub use protocol::features;
pub use reply::Reply;
pub use request::{Call, Caller, Copy, Lock, Read, Request, SetAttributes, Write};
