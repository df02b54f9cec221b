//! Where a mount or a server runs, and the proof that its process has ended: a lock on the disk.
//!
//! Owns: the numbers that name a host, its kernel's start and the locked inode; the byte that each session locks.
//! Promises: two origins with a boot are equal only if both sides run on one kernel and see each other's locks, so an
//! origin without a boot proves nothing. A lock that is not held is final: a session takes it before its greeting, and
//! the kernel releases it when the process and its last request have ended. Leaves to others: what follows from the
//! proof (`server`, `client`).

use nectary_block::{IoContext, SharedDevice};

use crate::format::SessionRecord;

/// The names of this machine and of the present start of its kernel.
const MACHINE: &str = "/etc/machine-id";
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Locks of sessions are at this offset and behind it, outside of every disk.
const LOCKS_START: u64 = 1 << 62;
/// The start value and the factor of FNV-1a, which is the same on every host and in every version.
const FNV: (u64, u64) = (0xcbf2_9ce4_8422_2325, 0x0100_0000_01b3);

fn hash(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV.1))
}

/// The place where a process uses a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessOrigin {
    /// A hash of the machine's identity.
    pub machine: u64,
    /// A hash of the identity of the kernel's start; 0: it is not known.
    pub kernel: u64,
    /// A hash of what [`lock_domain`](nectary_block::BlockDevice::lock_domain) names; 0: locks prove nothing.
    pub domain: u64,
}

impl ProcessOrigin {
    /// Returns the origin of a process of this host that has opened this device.
    pub fn of(device: &SharedDevice) -> ProcessOrigin {
        let kernel = std::fs::read(BOOT).unwrap_or_default();
        ProcessOrigin::new(&std::fs::read(MACHINE).unwrap_or_default(), &kernel, device.lock_domain().as_deref())
    }

    fn new(machine: &[u8], kernel: &[u8], domain: Option<&str>) -> ProcessOrigin {
        let named = |bytes: &[u8]| if bytes.is_empty() { 0 } else { hash(FNV.0, bytes).max(1) };
        let domain = domain.unwrap_or_default().as_bytes();
        ProcessOrigin { machine: hash(FNV.0, machine), kernel: named(kernel), domain: named(domain) }
    }

    /// Whether a process here can tell, by a lock, if a process with the other origin has ended.
    pub fn sees_locks_of(&self, other: &ProcessOrigin) -> bool {
        self.kernel != 0 && self.domain != 0 && self == other
    }

    /// Returns the number that names kernel and domain in the record of a session; 0: locks prove nothing.
    pub fn boot(&self) -> u64 {
        match self.kernel != 0 && self.domain != 0 {
            true => hash(hash(FNV.0, &self.kernel.to_le_bytes()), &self.domain.to_le_bytes()).max(1),
            false => 0,
        }
    }

    /// Whether a process here can tell, by a lock, if the session's process has ended.
    pub fn can_prove(&self, session: &SessionRecord) -> bool {
        self.boot() != 0 && (self.machine, self.boot()) == (session.machine, session.boot)
    }
}

/// Whether a process of the one session can tell, by a lock, if that of the other has ended.
pub(crate) fn are_siblings(one: &SessionRecord, other: &SessionRecord) -> bool {
    one.boot != 0 && (one.machine, one.boot) == (other.machine, other.boot)
}

/// The byte that a session locks.
fn lock_offset(incarnation: [u8; 16]) -> u64 {
    LOCKS_START | (u128::from_be_bytes(incarnation) as u64 & ((1 << 61) - 1))
}

/// Takes the lock of a new session, and returns the session's origin. If the lock cannot be taken, the origin says that
/// nothing can be proven.
pub(crate) async fn hold(device: &SharedDevice, incarnation: [u8; 16]) -> ProcessOrigin {
    let origin = ProcessOrigin::of(device);
    match origin.boot() != 0 && device.lock(lock_offset(incarnation), 1).await.unwrap_or(false) {
        true => origin,
        false => ProcessOrigin { domain: 0, ..origin },
    }
}

/// Releases the lock of a session that has no I/O in progress and begins none any more.
pub(crate) async fn let_go(device: &SharedDevice, incarnation: [u8; 16]) {
    // If this fails, the lock is held until the process ends.
    let _ = device.unlock(lock_offset(incarnation), 1).await;
}

/// Whether the process of a session has ended, and all that it wrote is on the disk. The session's origin must be that
/// of this process. An error is no proof.
pub(crate) async fn is_gone(device: &SharedDevice, incarnation: [u8; 16]) -> bool {
    // Without direct I/O, the kernel may still have to write what the process wrote. A flush of the same inode does.
    matches!(device.is_locked(lock_offset(incarnation), 1).await, Ok(false))
        && device.flush(IoContext::default()).await.is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nectary_block::{FileDevice, MemoryDevice, OpenOptions};

    use super::*;
    use crate::format::SessionState;

    #[test]
    fn origin_differs_by_kernel_and_inode() {
        let origin = ProcessOrigin::new(b"m", b"b", Some("0:1:2"));
        assert_eq!(origin, ProcessOrigin::new(b"m", b"b", Some("0:1:2")));
        let others = [
            ProcessOrigin::new(b"n", b"b", Some("0:1:2")),
            ProcessOrigin::new(b"m", b"c", Some("0:1:2")),
            ProcessOrigin::new(b"m", b"b", Some("0:1:3")),
            ProcessOrigin::new(b"m", b"b0:", Some("1:2")),
        ];
        let session = |origin: ProcessOrigin| SessionRecord {
            incarnation: [1; 16],
            state: SessionState::Active,
            kind: 1,
            flags: 0,
            lease_ms: 5000,
            acknowledged: 0,
            machine: origin.machine,
            boot: origin.boot(),
            created_ns: 0,
            ended_ns: 0,
            reason: 0,
            host: String::new(),
        };
        assert!(origin.can_prove(&session(origin)) && origin.sees_locks_of(&origin));
        assert!(are_siblings(&session(origin), &session(origin)));
        for other in others {
            assert!(!origin.can_prove(&session(other)) && !origin.sees_locks_of(&other), "{other:?}");
            assert!(!are_siblings(&session(origin), &session(other)), "{other:?}");
        }
        for nothing in [ProcessOrigin::new(b"m", b"b", None), ProcessOrigin::new(b"m", b"", Some("0:1:2"))] {
            assert!(nothing.boot() == 0 && !nothing.sees_locks_of(&nothing), "{nothing:?}");
            assert!(!nothing.can_prove(&session(nothing)), "two without a proof are not the same place");
            assert!(!are_siblings(&session(nothing), &session(nothing)));
        }
    }

    #[test]
    fn session_lock_lies_beyond_the_disk() {
        for incarnation in [[0; 16], [0xff; 16], [0x80; 16]] {
            let offset = lock_offset(incarnation);
            assert!(offset >= 1 << 62 && offset < i64::MAX as u64, "{offset:#x}");
        }
        let mut high = [0; 16];
        high[..8].fill(0xff);
        assert_eq!(lock_offset(high), 1 << 62, "the low bits count");
        assert_ne!(lock_offset([1; 16]), lock_offset([2; 16]));
    }

    #[tokio::test]
    async fn session_is_gone_when_descriptor_closes() {
        let path = std::env::temp_dir().join(format!("nectary-origin-{}", std::process::id()));
        let options = OpenOptions { create_bytes: Some(1 << 20), is_shared: true, ..OpenOptions::default() };
        let open = async || Arc::new(FileDevice::open_file(&path, &options).await.expect("it opens")) as SharedDevice;
        let (mount, server) = (open().await, open().await);
        let origin = hold(&mount, [7; 16]).await;
        assert!(origin.boot() != 0 && origin == ProcessOrigin::of(&server));
        hold(&mount, [8; 16]).await;
        for device in [&mount, &server] {
            assert!(!is_gone(device, [7; 16]).await && is_gone(device, [9; 16]).await);
        }
        let_go(&mount, [7; 16]).await;
        assert!(is_gone(&server, [7; 16]).await && is_gone(&mount, [7; 16]).await && !is_gone(&server, [8; 16]).await);
        drop(mount);
        assert!(is_gone(&server, [8; 16]).await);
        assert_eq!(hold(&server, [8; 16]).await, origin);
        std::fs::remove_file(&path).expect("it is removed");
        let memory: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
        assert_eq!(hold(&memory, [8; 16]).await.boot(), 0);
        assert!(!is_gone(&memory, [8; 16]).await, "what cannot be asked proves nothing");
    }
}
