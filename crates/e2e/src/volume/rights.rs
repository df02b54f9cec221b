//! Checks that writes take set-user-ID, set-group-ID and capabilities away from a file, for tests of several file
//! systems.
//!
//! Owns: the cases: how a program writes, with which right, and the mode before and after.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// A user without rights, who owns the file.
const USER: u32 = 4242;
/// Modes before a write, and after one by a program without the right to keep the bits.
const MODES: [(u32, u32); 5] = [(0o4755, 0o755), (0o6755, 0o755), (0o2755, 0o755), (0o4644, 0o644), (0o755, 0o755)];
/// Programs that write to `$1`.
const WRITERS: [&str; 3] = [
    "echo more >> \"$1\"",
    "dd if=/dev/zero of=\"$1\" bs=4096 count=1 conv=notrunc status=none",
    "dd if=/dev/zero of=\"$1\" bs=4096 count=1 oflag=direct conv=notrunc status=none",
];

/// The attribute with a program's capabilities, and the value for `cap_net_raw+ep`.
const CAPABILITY: &CStr = c"security.capability";
const MAY_USE_RAW_SOCKETS: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The length of the capabilities of a file; `None` if it has none.
fn capabilities(file: &Path) -> Option<usize> {
    let path = CString::new(file.as_os_str().as_bytes()).ok()?;
    // SAFETY: both are strings that end with a zero byte; without a buffer, the call returns a length.
    let length = unsafe { libc::getxattr(path.as_ptr(), CAPABILITY.as_ptr(), std::ptr::null_mut(), 0) };
    usize::try_from(length).ok()
}

fn set_capabilities(file: &Path) {
    let path = CString::new(file.as_os_str().as_bytes()).expect("no zero byte");
    let value = MAY_USE_RAW_SOCKETS;
    // SAFETY: both are strings that end with a zero byte; the value has the length given to the call.
    let set = unsafe { libc::setxattr(path.as_ptr(), CAPABILITY.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Checks that a write by anyone takes capabilities away from a file below `written`, of which `seen` shows the same.
///
/// *Panics*: if it is not so.
pub fn check_writes_take_capabilities_away(written: &Path, seen: &Path) {
    for (index, writer) in WRITERS.iter().enumerate() {
        let name = format!("capable-{index}");
        let (file, other) = (written.join(&name), seen.join(&name));
        fs::write(&file, vec![1; 8192]).expect("it is written");
        for round in 0..2 {
            set_capabilities(&file);
            assert_eq!(capabilities(&other), Some(MAY_USE_RAW_SOCKETS.len()), "round {round}");
            let done = Command::new("sh").args(["-c", writer, "sh"]).arg(&file).status().expect("a shell runs");
            assert!(done.success(), "{writer}");
            assert_eq!(capabilities(&other), None, "{writer}, round {round}");
        }
    }
}

/// Checks it with a file below `written`, of which `seen` shows the same.
///
/// *Panics*: if it is not so.
pub fn check_writes_take_rights_away(written: &Path, seen: &Path) {
    fs::set_permissions(written, fs::Permissions::from_mode(0o755)).expect("others may look into it");
    let mut name = 0;
    for writer in WRITERS {
        for (mode, after) in MODES {
            for (user, expected) in [(USER, after), (0, mode)] {
                name += 1;
                let file = written.join(format!("rights-{name}"));
                fs::write(&file, vec![1; 8192]).expect("it is written");
                chown(&file, Some(USER), Some(USER)).expect("it is given away");
                fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("it gets the bits");
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={user}"), format!("--regid={user}")]).args([
                    "--clear-groups",
                    "sh",
                    "-c",
                ]);
                let done = command.args([writer, "sh"]).arg(&file).output().expect("setpriv runs");
                assert!(done.status.success(), "{writer}: {}", String::from_utf8_lossy(&done.stderr));
                let found = fs::metadata(seen.join(file.file_name().expect("a name"))).expect("it is there");
                let found = found.permissions().mode() & 0o7777;
                assert_eq!(found, expected, "{writer} by {user}: {mode:o} became {found:o}, not {expected:o}");
            }
        }
    }
}
