//! The errors of this crate: of the runtime directory, control sockets and TLS files.
//!
//! Owns: the one error type of the crate. Each variant has its own remedy.

use std::io;
use std::path::PathBuf;

use crate::control::ControlFault;

/// A failure of the runtime directory, of a control socket, or of a TLS file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime directory cannot be used. The user can name another directory in `NECTARY_RUNTIME_DIR`.
    #[error("runtime directory {path}: {problem}; set NECTARY_RUNTIME_DIR to a directory that only you can write to")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The problem.
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
        fault: ControlFault,
    },
    /// The other side does not speak the protocol, or its message is longer than the limit.
    #[error("{path}: {problem}")]
    Protocol {
        /// The socket.
        path: PathBuf,
        /// The expected and the received message.
        problem: String,
    },
    /// A file of certificates or a key cannot be used.
    #[error("{path}: {problem}")]
    Tls {
        /// The file.
        path: PathBuf,
        /// The problem.
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
