//! The names of streams: the process, its command and the file.
//!
//! Owns: a bounded table of names. A name is looked up once per open file and process, not at each read; the command of
//! the process that read last is looked up once a second, however many files it opens.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nectary_block::AccessStream;

use super::nodes::{TreeNode, TreeNodes};

/// The largest number of stored names. At this limit all are deleted; they are looked up again when files are opened.
const NAMES_MAX: usize = 4096;
/// How long the command of a process is believed; a process may begin another program.
const COMMAND_VALID: Duration = Duration::from_secs(1);
/// The longest path of a name; of a longer path only the end is stored. *Units*: bytes.
const PATH_BYTES_MAX: usize = 256;

/// The name of a stream: a process and the file that it accesses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamName {
    /// The process; 0 if the kernel reads without a request of a process.
    pub process: u32,
    /// The command name of the process; empty if `/proc` does not have the process.
    pub command: String,
    /// The path of the file below the tree when the process first read it; only its end if it is long.
    pub path: String,
}

/// The names of streams.
#[derive(Default)]
pub struct StreamNames {
    names: Mutex<HashMap<u32, StreamName>>,
    /// The process whose command was looked up last, that time, and the command.
    command: Mutex<Option<(u32, Instant, String)>>,
}

impl StreamNames {
    /// Stores the name of a stream.
    pub fn learn(&self, stream: AccessStream, process: u32, nodes: &TreeNodes, node: &Arc<TreeNode>) {
        let command = self.command(process);
        let path = nodes.path_of(node).unwrap_or_default();
        let text = path.as_os_str().as_bytes();
        let end = String::from_utf8_lossy(&text[text.len().saturating_sub(PATH_BYTES_MAX)..]);
        let path = if text.len() > PATH_BYTES_MAX { format!("…{end}") } else { end.into_owned() };
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= NAMES_MAX {
            names.clear();
        }
        names.insert(stream.0, StreamName { process, command, path });
    }

    /// The command name of a process; empty if `/proc` does not have the process.
    fn command(&self, process: u32) -> String {
        let now = Instant::now();
        let mut known = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, since, command)) = &*known
            && *of == process
            && now.duration_since(*since) < COMMAND_VALID
        {
            return command.clone();
        }
        let command =
            std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default().trim_end().to_owned();
        *known = Some((process, now, command.clone()));
        command
    }

    /// The name of a stream.
    pub fn get(&self, stream: AccessStream) -> Option<StreamName> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).get(&stream.0).cloned()
    }
}
