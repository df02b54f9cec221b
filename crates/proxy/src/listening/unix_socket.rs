//! Unix sockets that the proxy listens on.
//!
//! Owns: the options of one, making its file, and removing it. Promises:
//! 1. The file of a process that was killed is replaced: a connection to it is refused. One that another process listens
//!    on, or that may be listened on, is not, and neither is anything that is no socket.
//! 2. Nobody can connect before the file has its permissions.
//! 3. The file is removed with the last listener on it, and only if it is still the one that was made here.
//!
//! Two processes that start at once are kept apart by a lock of the directory. Leaves to others: sockets that were
//! inherited, whose files belong to who made them, and the connections (`accept`).

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

/// The longest path of a Unix socket, without its terminating zero. *Units*: bytes.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// How often the lock of a directory is tried, and the time between two attempts. Any user who may read a directory can
/// lock it, so a lock that is never released keeps nobody from starting.
const LOCK_ATTEMPTS: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// A Unix socket to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixSocket {
    /// Its path, absolute.
    pub path: PathBuf,
    /// Who connects to it.
    pub users: SocketUsers,
    /// The permissions of its file, at most `0o777`. Who may write to the file may connect.
    pub mode: u32,
    /// Whether each connection begins with the PROXY protocol (version 1 or 2). Not for [`SocketUsers::Admin`].
    pub has_proxy_header: bool,
}

impl UnixSocket {
    /// A socket for these users, with the usual permissions: everyone on this machine may connect as a client, and only
    /// the user that the proxy runs as for administration.
    pub fn new(path: impl Into<PathBuf>, users: SocketUsers) -> UnixSocket {
        let mode = if users == SocketUsers::Admin { 0o600 } else { 0o666 };
        UnixSocket { path: path.into(), users, mode, has_proxy_header: false }
    }
}

impl std::fmt::Display for UnixSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unix:{}", self.path.display())
    }
}

/// Who connects to a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketUsers {
    /// Clients, over TLS if the proxy has certificates.
    Clients,
    /// Clients that are sent to TLS.
    Redirect,
    /// Administration. The permissions of the file decide who may, so no token is needed.
    Admin,
}

/// Why the proxy cannot listen on a Unix socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketFault {
    /// A process listens there.
    #[error("another process listens there")]
    InUse,
    /// There is something else than a socket.
    #[error("there is something that is no socket, which is not removed")]
    NotSocket,
    /// The path does not fit into an address.
    #[error("the path has {bytes} bytes, and that of a socket at most {SOCKET_PATH_BYTES_MAX}")]
    PathTooLong {
        /// The length of the path.
        bytes: usize,
    },
    /// The directory of the path is not there.
    #[error("there is no directory {directory}")]
    NoDirectory {
        /// The directory.
        directory: PathBuf,
    },
    /// This user may not make or remove files in the directory.
    #[error("the user of this process may not write to the directory {directory}")]
    Denied {
        /// The directory.
        directory: PathBuf,
    },
    /// The path is given twice.
    #[error("it is given twice")]
    GivenTwice,
    /// Clients are to be sent to TLS, and there is no certificate.
    #[error("it sends clients to TLS, and there is no certificate")]
    RedirectWithoutTls,
    /// It is not known whether a process listens there.
    #[error("whether another process listens there is not known: {0}")]
    Unknown(io::Error),
    /// Another error of the operating system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The file of a socket that was made here. It is removed when this value is dropped, if it is still the same. That
/// comes before the last listener is closed: until then the number of its inode is not used again.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: FileIdentity,
}

/// What tells a file from another one at the same path.
#[derive(Debug, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl FileIdentity {
    fn of(metadata: &Metadata) -> FileIdentity {
        FileIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_same = fs::symlink_metadata(&self.path).is_ok_and(|found| FileIdentity::of(&found) == self.identity);
        if is_same {
            // One that cannot be removed is replaced by the next start.
            _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens on a path; clients can connect from then on. *Errors*: nobody listens, and what was there is as before, unless
/// it was the file of a process that has ended.
pub(crate) fn listen(path: &Path, mode: u32, backlog: i32) -> Result<(UnixListener, SocketFile), SocketFault> {
    let bytes = path.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        return Err(SocketFault::PathTooLong { bytes });
    }
    let directory = path.parent().unwrap_or(Path::new("/")).to_owned();
    if !directory.is_dir() {
        return Err(SocketFault::NoDirectory { directory });
    }
    let denied = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => SocketFault::Denied { directory: directory.clone() },
        io::ErrorKind::AddrInUse => SocketFault::InUse,
        _ => SocketFault::Io(error),
    };
    let _lock = lock(&directory);
    if is_stale(path)? {
        fs::remove_file(path).map_err(denied)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?).map_err(denied)?;
    let identity = FileIdentity::of(&fs::symlink_metadata(path)?);
    let file = SocketFile { path: path.to_owned(), identity };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    socket.set_nonblocking(true)?;
    socket.listen(backlog)?;
    Ok((socket.into(), file))
}

/// Whether the file of a process that has ended is at the path; `false` if there is nothing. *Errors*: there is something
/// else.
fn is_stale(path: &Path) -> Result<bool, SocketFault> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(SocketFault::Unknown(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(SocketFault::NotSocket),
        Ok(_) => {}
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A process whose queue is full lets others wait.
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Ok(()) => Err(SocketFault::InUse),
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => Ok(true),
            io::ErrorKind::NotFound => Ok(false),
            io::ErrorKind::WouldBlock => Err(SocketFault::InUse),
            _ => Err(SocketFault::Unknown(error)),
        },
    }
}

/// Keeps other processes that do the same from a directory until the file is dropped; `None` if that does not succeed.
fn lock(directory: &Path) -> Option<File> {
    let file = File::open(directory).ok()?;
    for _ in 0..LOCK_ATTEMPTS {
        match file.try_lock() {
            Ok(()) => return Some(file),
            Err(fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(fs::TryLockError::Error(_)) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    const BACKLOG: i32 = 4;

    /// A new directory, which is removed at the end.
    struct SocketDirectory(PathBuf);

    impl SocketDirectory {
        fn new(name: &str) -> SocketDirectory {
            let path = std::env::temp_dir().join(format!("nectary-proxy-unix-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).expect("a folder");
            SocketDirectory(path)
        }
    }

    impl Drop for SocketDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn file_has_its_mode_and_goes() {
        let folder = SocketDirectory::new("mode");
        let path = folder.0.join("a.sock");
        for mode in [0o600, 0o660, 0o666] {
            let (listener, file) = listen(&path, mode, BACKLOG).expect("a listener");
            assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, mode);
            assert!(UnixStream::connect(&path).is_ok());
            drop((listener, file));
            assert!(fs::symlink_metadata(&path).is_err(), "it is removed");
        }
    }

    #[test]
    fn stale_socket_replaced_live_kept() {
        let folder = SocketDirectory::new("stale");
        let path = folder.0.join("a.sock");
        drop(UnixListener::bind(&path).expect("a socket of a process that was killed"));
        let (_listener, file) = listen(&path, 0o600, BACKLOG).expect("it is replaced");
        let before = FileIdentity::of(&fs::symlink_metadata(&path).expect("a file"));
        assert!(matches!(listen(&path, 0o600, BACKLOG), Err(SocketFault::InUse)));
        assert_eq!(FileIdentity::of(&fs::symlink_metadata(&path).expect("a file")), before);
        assert!(UnixStream::connect(&path).is_ok(), "who listened listens");
        drop(file);
    }

    #[test]
    fn full_queue_is_no_stale_file() {
        let folder = SocketDirectory::new("full");
        let path = folder.0.join("a.sock");
        let (_listener, _file) = listen(&path, 0o600, 0).expect("a listener");
        let mut waiting = Vec::new();
        loop {
            let client = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a socket");
            client.set_nonblocking(true).expect("an option");
            match client.connect(&SockAddr::unix(&path).expect("an address")) {
                Ok(()) => waiting.push(client),
                Err(error) => break assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert!(matches!(listen(&path, 0o600, BACKLOG), Err(SocketFault::InUse)));
    }

    #[test]
    fn only_sockets_are_removed() {
        let folder = SocketDirectory::new("foreign");
        let (path, target) = (folder.0.join("a.sock"), folder.0.join("target"));
        fs::write(&path, "precious").expect("written");
        assert!(matches!(listen(&path, 0o600, BACKLOG), Err(SocketFault::NotSocket)));
        assert_eq!(fs::read(&path).expect("still there"), b"precious");
        drop(UnixListener::bind(&target).expect("a socket"));
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink(&target, &path).expect("a link");
        assert!(matches!(listen(&path, 0o600, BACKLOG), Err(SocketFault::NotSocket)));
        assert!(fs::symlink_metadata(&target).is_ok());
    }

    #[test]
    fn file_of_another_process_stays() {
        let folder = SocketDirectory::new("others");
        let path = folder.0.join("a.sock");
        let (_listener, file) = listen(&path, 0o600, BACKLOG).expect("a listener");
        fs::remove_file(&path).expect("somebody removes it");
        let (_later, its_file) = listen(&path, 0o600, BACKLOG).expect("the next process");
        drop(file);
        assert!(UnixStream::connect(&path).is_ok(), "the file of the next process is not removed");
        drop(its_file);
        assert!(fs::symlink_metadata(&path).is_err());
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let folder = SocketDirectory::new("errors");
        let told = |path: &Path| listen(path, 0o600, BACKLOG).expect_err("no listener").to_string();
        let absent = told(&folder.0.join("absent/a.sock"));
        assert!(absent.contains("no directory") && absent.ends_with("/absent"), "{absent}");
        let long = folder.0.join("x".repeat(SOCKET_PATH_BYTES_MAX));
        assert!(told(&long).ends_with("at most 107"), "{}", told(&long));
        let longest = "x".repeat(SOCKET_PATH_BYTES_MAX - folder.0.as_os_str().len() - 1);
        assert!(listen(&folder.0.join(longest), 0o600, BACKLOG).is_ok(), "the longest path");
    }
}
