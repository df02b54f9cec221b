//! What calls on a volume wait for, in words.

use std::time::Duration;

use nectary_host::progress;
use nectary_volume::client::WaitKind;

use crate::long_calls::WaitReason;

/// Work of this mount that others wait for, which takes long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingWork {
    /// The inode whose token is being given back, or whose data is committed for another host; `None`: the commit of
    /// every second.
    pub inode: Option<u64>,
    /// The time since it began.
    pub age: Duration,
    /// What it waits for.
    pub why: WaitReason,
}

/// Says what a wait is for. `server` is the address of the server, and `disk` the SPEC of the disk.
pub fn of_wait(wait: progress::WaitState, server: &str, disk: &str) -> WaitReason {
    let inode = wait.number;
    let at_server = "see `nectary status` and the log on the server's host; the call goes on when the server answers";
    let (what, remedy) = match WaitKind::of(wait.kind) {
        Some(WaitKind::Server) => (format!("waits for the answer of the server {server}"), at_server.to_owned()),
        Some(WaitKind::Look) => (
            format!("waits for the server {server}, or for another host that has to commit what it wrote"),
            "`nectary status` on the server's host names the session that others wait for".to_owned(),
        ),
        Some(WaitKind::Turn) => (
            format!("waits until the server {server} has answered some of the many calls before it"),
            at_server.to_owned(),
        ),
        Some(WaitKind::Token) => (
            format!("waits for the token of inode {inode}, which another host must give back"),
            "`nectary status` on the server's host names the session that has the token; it is ended if it does not \
             give the token back"
                .to_owned(),
        ),
        Some(WaitKind::Lock) => (
            format!("waits for a file lock on inode {inode} that another program holds"),
            "that program must release it; a signal ends the wait".to_owned(),
        ),
        Some(WaitKind::Space) => (
            "waits for free space".to_owned(),
            "remove files; `nectary status` on the server's host shows what keeps freed space".to_owned(),
        ),
        Some(WaitKind::Disk) => (
            format!("waits for the disk {disk}"),
            "check the disk and the way to it; the kernel's log may have its errors".to_owned(),
        ),
        Some(WaitKind::Lease) => {
            (format!("waits for the server {server} to renew this mount's lease"), at_server.to_owned())
        }
        Some(WaitKind::Session) => (format!("waits for a new session with the server {server}"), at_server.to_owned()),
        Some(WaitKind::File) => (
            format!("waits for another call on inode {inode}"),
            "see what that call waits for, which has been in progress for longer".to_owned(),
        ),
        Some(WaitKind::Kernel) => (
            format!("waits for the kernel, which drops cached pages of inode {inode}"),
            "the kernel may wait for a program that is stopped in a call on this file".to_owned(),
        ),
        None => (
            "is in progress, and waits for nothing that is known".to_owned(),
            "if it does not end, report this with the output of `nectary status --verbose`".to_owned(),
        ),
    };
    WaitReason { what, remedy, is_lock: WaitKind::of(wait.kind) == Some(WaitKind::Lock) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_name_reason_and_remedy() {
        let mut seen = std::collections::BTreeSet::new();
        for kind in 0..=WaitKind::Kernel as u8 {
            let WaitReason { what, remedy, is_lock } =
                of_wait(progress::WaitState { kind, number: 12 }, "h1:7200", "disk:/dev/sdb");
            assert!(seen.insert(what.clone()) && !remedy.is_empty(), "{what}");
            assert_eq!(is_lock, kind == WaitKind::Lock as u8);
        }
        let token =
            of_wait(progress::WaitState { kind: WaitKind::Token as u8, number: 12 }, "h1:7200", "disk:/dev/sdb");
        assert!(token.what.contains("inode 12"), "{token:?}");
    }
}
