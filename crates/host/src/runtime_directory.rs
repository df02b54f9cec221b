//! The directory of the control sockets of running parts.
//!
//! Owns: the choice of the directory (`$NECTARY_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/nectary`, else `/run/nectary` for
//! root, else `/tmp/nectary-UID`), and the check that the directory belongs to this user and that no other user can
//! write to it. In `/tmp`, another user may have created the directory first. Leaves to others: the files in the
//! directory.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::Error;

/// The longest path of a Unix socket, without its terminating zero. *Units*: bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The kinds of parts, with which the names of their control sockets begin.
const KINDS: [&str; 6] = ["attach-", "cache-", "donor-", "export-", "proxy-", "volume-"];

/// Whether a path is named as the control socket of a part. Sockets of other names in the same directory are for clients.
pub fn is_control_socket(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".sock") && KINDS.iter().any(|kind| name.starts_with(kind))
}

/// A runtime directory that passed the checks and is safe to use.
#[derive(Debug, Clone)]
pub struct RuntimeDirectory {
    path: PathBuf,
}

impl RuntimeDirectory {
    /// Finds this user's runtime directory; creates it with mode 0700 if it is absent.
    ///
    /// *Errors*: [`Error::Directory`] if the directory cannot be created, does not belong to this user, or if other
    /// users can write to it.
    pub fn open() -> Result<RuntimeDirectory, Error> {
        RuntimeDirectory::at(choose(|name| std::env::var_os(name).map(PathBuf::from), user_id()))
    }

    /// Uses `path`; creates it with mode 0700 if it is absent.
    ///
    /// *Errors*: the errors of [`RuntimeDirectory::open`].
    pub fn at(path: impl Into<PathBuf>) -> Result<RuntimeDirectory, Error> {
        let path = path.into();
        let refuse = |problem: String| Error::Directory { path: path.clone(), problem };
        let mut builder = DirBuilder::new();
        if let Err(error) = builder.recursive(true).mode(0o700).create(&path) {
            return Err(refuse(format!("cannot be made: {error}")));
        }
        // The check does not follow a symbolic link: in /tmp a link could lead anywhere.
        let metadata = fs::symlink_metadata(&path).map_err(|error| refuse(error.to_string()))?;
        if !metadata.is_dir() {
            return Err(refuse("it is not a directory".to_owned()));
        }
        let user = user_id();
        if metadata.uid() != user {
            return Err(refuse(format!("it belongs to user {}, expected {user}", metadata.uid())));
        }
        if metadata.mode() & 0o022 != 0 {
            return Err(refuse(format!("others can write to it (mode {:03o})", metadata.mode() & 0o777)));
        }
        Ok(RuntimeDirectory { path })
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the socket of the part called `part`, such as `proxy-127.0.0.1:8080`.
    ///
    /// *Errors*: [`Error::Directory`] if the path is too long for a socket.
    pub fn socket(&self, part: &str) -> Result<PathBuf, Error> {
        let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') { c } else { '_' };
        let name: String = part.chars().map(safe).collect();
        let path = self.path.join(format!("{name}.sock"));
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            let problem =
                format!("{} is longer than the {SOCKET_PATH_BYTES_MAX} bytes of a socket's path", path.display());
            return Err(Error::Directory { path: self.path.clone(), problem });
        }
        Ok(path)
    }

    /// The paths of all control sockets in the directory, in the order of their names.
    ///
    /// *Errors*: [`Error::Io`] if the directory cannot be read.
    pub fn sockets(&self) -> Result<Vec<PathBuf>, Error> {
        let failed = |source| Error::Io { path: self.path.clone(), source };
        let mut sockets = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if is_control_socket(&path) {
                sockets.push(path);
            }
        }
        sockets.sort();
        Ok(sockets)
    }

    /// Keeps other processes from creating and removing sockets in the directory until the returned file is dropped.
    pub(crate) fn lock(&self) -> Result<File, Error> {
        let failed = |source: io::Error| Error::Io { path: self.path.clone(), source };
        let directory = File::open(&self.path).map_err(failed)?;
        directory.lock().map_err(failed)?;
        Ok(directory)
    }
}

/// Chooses the directory from environment variables and the user's number.
fn choose(variable: impl Fn(&str) -> Option<PathBuf>, user: u32) -> PathBuf {
    let set = |name| variable(name).filter(|path| path.is_absolute());
    if let Some(path) = set("NECTARY_RUNTIME_DIR") {
        path
    } else if let Some(path) = set("XDG_RUNTIME_DIR") {
        path.join("nectary")
    } else if user == 0 {
        PathBuf::from("/run/nectary")
    } else {
        PathBuf::from(format!("/tmp/nectary-{user}"))
    }
}

/// The effective user of this process.
fn user_id() -> u32 {
    // The owner of /proc/self is the effective user. Without /proc, the result is a number that owns no directory, so
    // every directory is refused.
    fs::metadata("/proc/self").map_or(u32::MAX, |metadata| metadata.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_follows_documented_rule() {
        let both = |name: &str| match name {
            "NECTARY_RUNTIME_DIR" => Some(PathBuf::from("/a")),
            "XDG_RUNTIME_DIR" => Some(PathBuf::from("/b")),
            _ => None,
        };
        assert_eq!(choose(both, 7), PathBuf::from("/a"));
        assert_eq!(choose(|name| both(name).filter(|_| name != "NECTARY_RUNTIME_DIR"), 7), PathBuf::from("/b/nectary"));
        assert_eq!(choose(|_| None, 0), PathBuf::from("/run/nectary"));
        assert_eq!(choose(|_| None, 7), PathBuf::from("/tmp/nectary-7"));
        assert_eq!(choose(|_| Some(PathBuf::from("relative")), 7), PathBuf::from("/tmp/nectary-7"));
    }

    #[test]
    fn client_sockets_are_not_control() {
        for (name, expected) in [
            ("proxy-127.0.0.1_80.sock", true),
            ("volume-mount-0.sock", true),
            ("http.sock", false),
            ("proxy.sock", false),
            ("attach-nbd0.log", false),
        ] {
            assert_eq!(is_control_socket(&Path::new("/run/nectary").join(name)), expected, "{name}");
        }
    }

    #[test]
    fn name_cannot_escape_directory() {
        let directory = RuntimeDirectory { path: PathBuf::from("/run/nectary") };
        let socket = directory.socket("proxy-[::1]:80/../../etc").expect("short enough");
        assert_eq!(socket, PathBuf::from("/run/nectary/proxy-___1__80_.._.._etc.sock"));
        assert!(matches!(directory.socket(&"x".repeat(200)), Err(Error::Directory { .. })));
    }
}
