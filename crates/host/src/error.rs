//! The errors between a running part and its clients.
//!
//! Owns: the one error type of the crate. It has a kind for each remedy.

use std::io;
use std::path::PathBuf;

use crate::control::Fault;

/// A failure of the runtime directory or of a control socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime directory cannot be used. The user can name another one in `NECTARY_RUNTIME_DIR`.
    #[error("runtime directory {path}: {problem}; set NECTARY_RUNTIME_DIR to a directory that only you can write to")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Nothing listens on the socket: the part is not running.
    #[error("{path}: nothing is listening there; is it running? `nectary status` lists what is")]
    Absent {
        /// The socket.
        path: PathBuf,
    },
    /// Another process serves a part of the same name.
    #[error("{path}: another process is already serving this part")]
    Busy {
        /// The socket.
        path: PathBuf,
    },
    /// The part answered with a fault.
    #[error("{path}: {fault}")]
    Fault {
        /// The socket.
        path: PathBuf,
        /// The part's fault.
        fault: Fault,
    },
    /// The other side does not speak the protocol, or its message is longer than the limit.
    #[error("{path}: {problem}")]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// What was expected and what was received.
        problem: String,
    },
    /// A file of certificates or a key cannot be used.
    #[error("{path}: {problem}")]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The operating system refused a call.
    #[error("{path}: {source}")]
    Io {
        /// The socket or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}
