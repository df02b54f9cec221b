//! The certificates with which other machines are reached.
//!
//! Owns: [`RenewedTls`], which reads its files again before a connection if they have changed: they are renewed while a
//! proxy runs. Files that cannot be used, as they are being written, leave in use what was read before.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use nectary_host::log::{LogLevel, LogThrottle};
use nectary_host::tls::ClientTls;

use crate::options::TlsFiles;

/// Limits how often it is logged that files cannot be used.
static UNUSABLE: LogThrottle = LogThrottle::every(Duration::from_secs(60));

/// What tells a file from the one that was there before: time of its last change, length and inode.
type FileStamp = Option<(SystemTime, u64, u64)>;

/// Files of TLS, and what was read of them.
pub struct RenewedTls {
    files: TlsFiles,
    state: Mutex<ReadFiles>,
}

/// What was read, and what the files were then.
struct ReadFiles {
    stamps: Vec<FileStamp>,
    tls: ClientTls,
}

impl RenewedTls {
    /// Reads the files. *Errors*: a text that names the file.
    pub fn load(files: TlsFiles) -> Result<RenewedTls, String> {
        let stamps = stamps_of(&files);
        let tls = read(&files)?;
        Ok(RenewedTls { files, state: Mutex::new(ReadFiles { stamps, tls }) })
    }

    /// What to connect with now.
    pub async fn current(this: &Arc<RenewedTls>) -> ClientTls {
        let reader = Arc::clone(this);
        let read = tokio::task::spawn_blocking(move || reader.read_changed()).await;
        // The task has panicked, or the runtime ends.
        read.unwrap_or_else(|_| this.state().tls.clone())
    }

    fn read_changed(&self) -> ClientTls {
        // Before reading: what changes meanwhile is read the next time.
        let stamps = stamps_of(&self.files);
        let mut state = self.state();
        if state.stamps != stamps {
            match read(&self.files) {
                Ok(tls) => *state = ReadFiles { stamps, tls },
                Err(error) => UNUSABLE.write(
                    LogLevel::Warning,
                    "proxy",
                    format_args!("fleet: new certificates cannot be used: {error}; those from before are"),
                ),
            }
        }
        state.tls.clone()
    }

    fn state(&self) -> MutexGuard<'_, ReadFiles> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(files: &TlsFiles) -> Result<ClientTls, String> {
    let identity = files.identity.as_ref().map(|(cert, key)| (cert.as_path(), key.as_path()));
    ClientTls::load_for(files.ca.as_deref(), identity, Some(b"h2")).map_err(|error| error.to_string())
}

fn stamps_of(files: &TlsFiles) -> Vec<FileStamp> {
    let (cert, key) = files.identity.as_ref().map(|(cert, key)| (cert.as_path(), key.as_path())).unzip();
    let stamp = |path: &Path| {
        let metadata = path.metadata().ok()?;
        Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
    };
    [files.ca.as_deref(), cert, key].into_iter().map(|path| path.and_then(stamp)).collect()
}
