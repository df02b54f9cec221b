//! The client side of a control socket. Its calls block, because the caller has nothing else to do.
//!
//! Owns: sending one request and reading its answer, and listing the running parts of Nectary. Promises, whatever the
//! server does: each read or write waits no longer than the timeout, and no more bytes of an answer are read than the
//! protocol allows.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::message::{ControlRequest, ControlResponse, RESPONSE_BYTES_MAX};
use crate::{Error, PartStatus, RuntimeDirectory};

/// Sends a request to the part whose socket is at `path` and waits for its answer. Each read or write waits at most
/// `timeout`.
///
/// *Errors*: [`Error::Absent`] if nothing listens, [`Error::ControlFault`] if the part refuses the request,
/// [`Error::Protocol`] if the answer is malformed, [`Error::Io`] if the part takes too long.
pub fn request(path: &Path, method: &str, params: Value, timeout: Duration) -> Result<Value, Error> {
    let failed = |source: io::Error| Error::Io { path: path.to_owned(), source };
    let mut stream = UnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::Absent { path: path.to_owned() },
        _ => failed(error),
    })?;
    stream.set_read_timeout(Some(timeout)).map_err(failed)?;
    stream.set_write_timeout(Some(timeout)).map_err(failed)?;
    let malformed = |problem: String| Error::Protocol { path: path.to_owned(), problem };
    let mut line = serde_json::to_vec(&ControlRequest { method: method.to_owned(), params })
        .map_err(|error| malformed(format!("the request cannot be written as JSON: {error}")))?;
    line.push(b'\n');
    // A server with too many clients answers before it reads, so this write may fail. The server's answer says more
    // than the write's error, so the answer is read before the error is returned.
    let sent = stream.write_all(&line);
    line.clear();
    let mut answer = BufReader::new((&stream).take(RESPONSE_BYTES_MAX as u64));
    answer.read_until(b'\n', &mut line).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => failed(io::Error::new(io::ErrorKind::TimedOut, "it did not answer in time")),
        _ => failed(error),
    })?;
    if line.is_empty() {
        sent.map_err(failed)?;
    }
    if line.last() != Some(&b'\n') {
        return Err(malformed(format!("expected a line of JSON, found {} bytes without an end", line.len())));
    }
    match serde_json::from_slice(&line) {
        Ok(ControlResponse::Ok(value)) => Ok(value),
        Ok(ControlResponse::Error(fault)) => Err(Error::Fault { path: path.to_owned(), fault }),
        Err(error) => Err(malformed(format!("expected an answer, found something else: {error}"))),
    }
}

/// A part whose socket was found in the runtime directory.
#[derive(Debug)]
pub struct RunningPart {
    /// The path of the part's socket.
    pub path: PathBuf,
    /// The answer to `status`, or the reason why there was no answer.
    pub status: Result<PartStatus, Error>,
}

/// Requests the status of every part that has a socket in `directory`, and waits at most `timeout` for each read or
/// write. Removes sockets that no process serves any more.
///
/// *Errors*: [`Error::Io`] if the directory cannot be read.
pub fn parts(directory: &RuntimeDirectory, timeout: Duration) -> Result<Vec<RunningPart>, Error> {
    let mut parts = Vec::new();
    for path in directory.sockets()? {
        let status = match request(&path, "status", Value::Null, timeout) {
            Err(Error::Absent { .. }) => {
                remove_stale(directory, &path)?;
                continue;
            }
            Ok(value) => serde_json::from_value(value)
                .map_err(|error| Error::Protocol { path: path.clone(), problem: format!("not a status: {error}") }),
            Err(error) => Err(error),
        };
        parts.push(RunningPart { path, status });
    }
    Ok(parts)
}

/// Removes a socket if no process listens on it. The lock keeps a server from starting on this socket between the check
/// and the removal.
fn remove_stale(directory: &RuntimeDirectory, path: &Path) -> Result<(), Error> {
    let _lock = directory.lock()?;
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => match fs::remove_file(path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Io { path: path.to_owned(), source }),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}
