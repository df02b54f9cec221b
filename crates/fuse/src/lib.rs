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
//! | `channel`, `mount`, `notify`, `guard`, `backing` | the kernel's side |
//! | `pool`, `flights` | memory of requests, and the requests in flight |
//! | `file_system` | the trait of a file system, with a method for each call |
//! | `connection` | the loop: one step reads one request and hands it over |
//! | `crew` | threads that run the loop |
//!
//! A program with an event loop calls [`ConnectionWorker::step`] whenever the worker's descriptor is readable; a program without
//! an event loop starts a [`WorkerCrew`].
//!
//! # Examples
//! An empty file system:
//! ```
//! use nectary_fuse::{FuseFileSystem, ReplyHandle, RequestContext};
//!
//! struct Empty;
//!
//! impl FuseFileSystem for Empty {
//!     fn look_up(&self, _of: RequestContext, _name: &std::ffi::CStr, reply: ReplyHandle) {
//!         reply.errno(libc::ENOENT);
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
mod file_system;
mod flights;
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod mount;
mod negotiate;
mod notify;
mod pool;
pub mod protocol;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use attributes::{LookupEntry, NodeAttributes, StatFs, Time};
pub use backing::BackingFiles;
pub use channel::FuseChannel;
pub use connection::{ConnectionWorker, FuseConnection, FuseLimits, WorkerStep};
pub use crew::WorkerCrew;
pub use directory::DirectoryListing;
pub use error::{Errno, Error};
pub use file_system::FuseFileSystem;
pub use flights::{LongCall, LongCalls};
pub use guard::AbortGuard;
pub use mount::{FuseMount, MountOptions, remount, unmount};
pub use negotiate::{NegotiationResult, RequestedFeatures, request_bytes_allowed};
pub use notify::KernelNotifier;
pub use pool::{BufferPool, PooledData};
pub use protocol::features;
pub use reply::ReplyHandle;
pub use request::{
    CopyCall, FuseRequest, LockRange, ReadCall, RequestCall, RequestCaller, RequestContext, SetAttributes, WriteCall,
    without_rights,
};
