//! What to do when the proxy cannot listen on an address.
//!
//! Owns: the remedies, and the name of the program that already listens there.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;

use nectary_proxy::{Error, SocketFault};

use crate::exit::{BUSY, CommandFailure, FAILED, NOT_FOUND, USAGE};
use crate::machine;

/// The failure of a start. That of an address names the program that already listens there.
pub fn failure_of(error: Error) -> CommandFailure {
    let known = match &error {
        Error::Listen { address, error: reason } => of_address(error.to_string(), *address, reason.kind()),
        Error::UnixSocket { path, fault } => of_socket(error.to_string(), path, fault),
        _ => None,
    };
    known.unwrap_or_else(|| error.into())
}

fn of_address(message: String, address: SocketAddr, reason: ErrorKind) -> Option<CommandFailure> {
    let elsewhere = "or choose another address (--listen, or --admin-listen for administration)";
    Some(match reason {
        ErrorKind::AddrInUse => match machine::who_listens(address) {
            Some(who) => {
                let remedy = format!("stop {who} (`nectary status` lists what runs of nectary), {elsewhere}");
                CommandFailure::new(BUSY, format!("{message}: {who} listens there"), remedy)
            }
            None => CommandFailure::new(BUSY, message, format!("see who has it with `ss -ltnp` as root, {elsewhere}")),
        },
        ErrorKind::PermissionDenied => {
            let remedy = format!("ports below 1024 need root or CAP_NET_BIND_SERVICE: allow it, {elsewhere}");
            CommandFailure::new(FAILED, message, remedy)
        }
        ErrorKind::AddrNotAvailable => {
            let remedy = format!("this machine has no such address (`ip address` lists them): add it, {elsewhere}");
            CommandFailure::new(FAILED, message, remedy)
        }
        _ => return None,
    })
}

fn of_socket(message: String, path: &Path, fault: &SocketFault) -> Option<CommandFailure> {
    let elsewhere = "or choose another path";
    Some(match fault {
        SocketFault::InUse => match machine::who_listens_at(path) {
            Some(who) => {
                let remedy = format!("stop {who} (`nectary status` lists what runs of nectary), {elsewhere}");
                CommandFailure::new(BUSY, format!("{message}: {who}"), remedy)
            }
            None => CommandFailure::new(BUSY, message, format!("see who it is with `ss -lxp` as root, {elsewhere}")),
        },
        SocketFault::NotSocket => {
            CommandFailure::new(FAILED, message, format!("remove it if nobody needs it, {elsewhere}"))
        }
        SocketFault::PathTooLong { .. } => CommandFailure::new(USAGE, message, "choose a shorter path"),
        SocketFault::NoDirectory { directory } => {
            let remedy = format!(
                "mkdir -p {}, {elsewhere}; RuntimeDirectory= in a unit of systemd makes a directory in /run",
                directory.display()
            );
            CommandFailure::new(NOT_FOUND, message, remedy)
        }
        SocketFault::Denied { directory } => {
            CommandFailure::new(FAILED, message, format!("let that user write to {}, {elsewhere}", directory.display()))
        }
        SocketFault::GivenTwice => CommandFailure::new(USAGE, message, "give each address once"),
        SocketFault::RedirectWithoutTls => CommandFailure::new(USAGE, message, "give --tls-cert and --tls-key"),
        SocketFault::Unknown(_) => {
            let remedy = "see with `ss -lxp` as root whether a process listens there, and remove the file if none does";
            CommandFailure::new(FAILED, message, format!("{remedy}, {elsewhere}"))
        }
        _ => return None,
    })
}
