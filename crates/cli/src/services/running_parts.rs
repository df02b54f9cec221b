//! The running parts of this machine, for the commands that show them.
//!
//! Owns: where root looks in addition to the own runtime directory: services run as other users, each with a directory
//! `/run/nectary-NAME` (`RuntimeDirectory=` of a systemd unit). Only root can make such a directory. What is in it
//! belongs to the service's user, so nothing is removed there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nectary_host::control::{self, RunningPart, request};
use nectary_host::{Error, RuntimeDirectory, is_control_socket};
use serde_json::Value;

/// Where the directories of services are.
const SERVICES: &str = "/run";
/// The beginning of their names.
const SERVICE_PREFIX: &str = "nectary-";
/// The runtime directory of root.
const OF_ROOT: &str = "/run/nectary";

/// The status of every running part: those with a socket in `directory`, and for root those of services. Each read or
/// write takes at most `timeout`.
///
/// *Errors*: those of [`control::parts`].
pub fn running_parts(directory: &RuntimeDirectory, timeout: Duration) -> Result<Vec<RunningPart>, Error> {
    let mut parts = control::parts(directory, timeout)?;
    if directory.path() == Path::new(OF_ROOT) {
        parts.extend(of_services(Path::new(SERVICES), timeout));
    }
    Ok(parts)
}

/// The parts with a socket in a directory of a service below `root`, in the order of their paths.
fn of_services(root: &Path, timeout: Duration) -> Vec<RunningPart> {
    let is_service = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(SERVICE_PREFIX) && path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
    };
    let mut sockets: Vec<PathBuf> = entries(root).filter(is_service).flat_map(|path| entries(&path)).collect();
    sockets.retain(|path| is_control_socket(path));
    sockets.sort();
    sockets.into_iter().filter_map(|path| part(path, timeout)).collect()
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

/// The part with this socket; `None` if no process serves it any more.
fn part(path: PathBuf, timeout: Duration) -> Option<RunningPart> {
    let status = match request(&path, "status", Value::Null, timeout) {
        Err(Error::Absent { .. }) => return None,
        Ok(value) => serde_json::from_value(value)
            .map_err(|error| Error::Protocol { path: path.clone(), problem: format!("not a status: {error}") }),
        Err(error) => Err(error),
    };
    Some(RunningPart { path, status })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn live_sockets_found_dead_ones_stay() {
        let root = std::env::temp_dir().join(format!("nectary-services-{}", std::process::id()));
        for name in ["nectary-proxy", "nectary-volume-builds", "other"] {
            std::fs::create_dir_all(root.join(name)).expect("made");
            UnixListener::bind(root.join(name).join("proxy-a.sock")).expect("bound, and closed at once");
        }
        let answering = UnixListener::bind(root.join("nectary-proxy/proxy-b.sock")).expect("bound");
        let _for_clients = UnixListener::bind(root.join("nectary-proxy/http.sock")).expect("bound");
        let closer = std::thread::spawn(move || answering.accept().map(drop));
        let found = of_services(&root, Duration::from_secs(5));
        closer.join().expect("no panic").expect("one connection");
        let paths: Vec<&Path> = found.iter().map(|part| part.path.as_path()).collect();
        assert_eq!(paths, [root.join("nectary-proxy/proxy-b.sock")]);
        assert!(found[0].status.is_err(), "it answers nothing");
        assert!(root.join("nectary-proxy/proxy-a.sock").exists());
        std::fs::remove_dir_all(&root).expect("removed");
    }
}
