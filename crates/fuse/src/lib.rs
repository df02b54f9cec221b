//! The kernel's FUSE protocol: a trait for file systems, and the loop that serves their requests.
//!
//! Owns: decoding requests and checking their bounds, answers, `INIT`, interrupts, the memory of requests, threads,
//! mounts. Leaves to others: the file systems. Promises: any bytes from the kernel lead to a request, to an answer with
//! an error, or to nothing, but never to a panic.
//!
//! | file | what is in it |
//! |---|---|
//! | `protocol` | numbers and layouts |
//! | `decode`, `request` | decoding bytes into requests |
//! | `reply`, `attributes`, `directory` | encoding answers into bytes |
//! | `negotiate` | `INIT` |
//! | `channel`, `mount`, `notify`, `backing` | the kernel's side |
//! | `pool`, `flights` | memory of requests, and the requests in flight |
//! | `connection` | the loop: one step reads one request and hands it over |
//! | `crew` | threads that run the loop |
//!
//! A program with an event loop calls [`Worker::step`] whenever the worker's descriptor is readable; a program without
//! an event loop starts a [`Crew`].
//!
//! # Examples
//! An empty file system:
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
mod backing;
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
pub use backing::BackingFiles;
pub use channel::Channel;
pub use connection::{Connection, FileSystem, Limits, Step, Worker};
pub use crew::Crew;
pub use directory::Listing;
pub use error::{Errno, Error};
pub use flights::{LongCall, LongCalls};
pub use mount::{Mount, MountOptions, remount, unmount};
pub use negotiate::{Agreed, Wishes, request_bytes_allowed};
pub use notify::Notifier;
pub use pool::{Data, Pool};
pub use protocol::features;
pub use reply::Reply;
pub use request::{Call, Caller, Copy, Lock, Read, Request, SetAttributes, Write, without_rights};
