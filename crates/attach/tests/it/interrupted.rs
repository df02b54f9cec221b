//! Checks that a signal ends a program that reads from a cached tree while the source does not answer.

use std::fs;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::support::is_missing;
use nectary_attach::{MountedTree, TreeOptions};
use nectary_buffer::CacheOptions;
use nectary_fuse::{
    FuseChannel, FuseConnection, FuseFileSystem, FuseLimits, FuseMount, FuseRequest, LookupEntry, MountOptions,
    NodeAttributes, ReplyHandle, RequestCall, WorkerCrew, unmount,
};

/// The time limit of every wait.
const LIMIT: Duration = Duration::from_secs(30);
/// How long the kernel may cache entries and attributes.
const VALID: Duration = Duration::from_secs(3600);
const FILE: u64 = 2;
const FILE_BYTES: u64 = 64 << 10;

/// A file system with one file, whose reads wait until a gate is open.
#[derive(Default)]
struct SlowFileSystem {
    gate: Mutex<SlowReadState>,
    changed: Condvar,
}

#[derive(Default)]
struct SlowReadState {
    is_open: bool,
    held: Vec<(ReplyHandle, u32)>,
}

impl SlowFileSystem {
    fn attributes(node: u64) -> NodeAttributes {
        let mode = if node == FILE { libc::S_IFREG | 0o644 } else { libc::S_IFDIR | 0o755 };
        let size = if node == FILE { FILE_BYTES } else { 0 };
        NodeAttributes { number: node, size, mode, links: 1, block_bytes: 4096, ..NodeAttributes::default() }
    }

    /// Waits until a read is held back.
    fn wait_held(&self) {
        let gate = self.gate.lock().unwrap();
        let waited = self.changed.wait_timeout_while(gate, LIMIT, |gate| gate.held.is_empty()).unwrap();
        assert!(!waited.1.timed_out(), "no read came");
    }

    /// Answers the requests that are held back, and from now on every request at once.
    fn open(&self) {
        let mut gate = self.gate.lock().unwrap();
        gate.is_open = true;
        gate.held.drain(..).for_each(|(reply, size)| reply.bytes(&vec![7; size as usize]));
    }

    fn close(&self) {
        self.gate.lock().unwrap().is_open = false;
    }
}

impl FuseFileSystem for SlowFileSystem {
    fn serve(&self, request: FuseRequest<'_>, reply: ReplyHandle) {
        match request.call {
            RequestCall::LookUp { name } if name == c"file" => reply.entry(&LookupEntry {
                node: FILE,
                generation: 0,
                attributes: SlowFileSystem::attributes(FILE),
                entry_valid: VALID,
                attributes_valid: VALID,
            }),
            RequestCall::LookUp { .. } => reply.errno(libc::ENOENT),
            RequestCall::GetAttributes { .. } => reply.attributes(&SlowFileSystem::attributes(request.node), VALID),
            RequestCall::Open { .. } | RequestCall::OpenDirectory { .. } => reply.opened(1, 0),
            RequestCall::Read(read) => {
                let mut gate = self.gate.lock().unwrap();
                if gate.is_open {
                    return reply.bytes(&vec![7; read.size as usize]);
                }
                gate.held.push((reply, read.size));
                self.changed.notify_all();
            }
            RequestCall::Release { .. } | RequestCall::ReleaseDirectory { .. } | RequestCall::Flush { .. } => {
                reply.ok()
            }
            _ => reply.errno(libc::ENOSYS),
        }
    }
}

/// A slow source and the tree above it; both are removed whether the test passes or fails.
struct SlowMount {
    slow: Arc<SlowFileSystem>,
    tree: Option<MountedTree>,
    crew: Option<WorkerCrew>,
    scratch: PathBuf,
}

impl SlowMount {
    fn new() -> SlowMount {
        let scratch = Path::new("/var/tmp").join(format!("nectary-slow-{}", std::process::id()));
        let (source, directory) = (scratch.join("source"), scratch.join("shown"));
        fs::create_dir_all(&source).unwrap();
        fs::create_dir_all(&directory).unwrap();
        let slow = Arc::new(SlowFileSystem::default());
        let channel = FuseChannel::open(true).unwrap();
        let options = MountOptions {
            source: "slow".to_owned(),
            root_mode: libc::S_IFDIR | 0o755,
            for_all: true,
            ..MountOptions::default()
        };
        let mount = FuseMount::new(&channel, &options).unwrap();
        let connection = FuseConnection::new(slow.clone(), FuseLimits::default());
        let crew = WorkerCrew::start(connection, channel, "slow").unwrap();
        mount.attach(&source).unwrap();
        let mut shown = SlowMount { slow, tree: None, crew: Some(crew), scratch };
        let cache = CacheOptions { memory_bytes: 16 << 20, policy: "lru".to_owned(), ..CacheOptions::default() };
        shown.tree = Some(
            MountedTree::start(TreeOptions {
                source,
                directory,
                cache,
                is_exclusive: false,
                uses_handles: true,
                passthrough_bytes: 0,
            })
            .expect("it is shown"),
        );
        shown
    }

    fn file(&self) -> PathBuf {
        self.scratch.join("shown/file")
    }
}

impl Drop for SlowMount {
    fn drop(&mut self) {
        self.slow.open();
        if let Some(tree) = self.tree.take() {
            let _ = tree.unmount(true);
            let _ = tree.finish();
        }
        let _ = unmount(&self.scratch.join("source"), true);
        if let Some(crew) = self.crew.take() {
            let _ = crew.wait();
        }
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Starts a program that reads the file.
fn reader(path: &Path) -> Child {
    // Background processes of a script ignore SIGINT. If this test runs as one, the program that it starts would ignore
    // SIGINT too.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", "dd"]).arg(format!("if={}", path.display())).args([
        "of=/dev/null",
        "bs=4k",
        "count=1",
        "status=none",
    ]);
    command.stdin(Stdio::null()).spawn().expect("dd starts")
}

fn end(child: &mut Child) -> std::process::ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if began.elapsed() >= LIMIT {
            let _ = child.kill();
            panic!("it still waits after {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A signal ends a read that waits for its source, and the next read is right.
#[test]
fn signal_ends_waiting_read() {
    if is_missing("interrupted read") {
        return;
    }
    let shown = SlowMount::new();
    for signal in [libc::SIGINT, libc::SIGKILL, libc::SIGTERM] {
        shown.slow.close();
        let mut child = reader(&shown.file());
        shown.slow.wait_held();
        assert!(child.try_wait().unwrap().is_none(), "it waits");
        // SAFETY: a plain system call; the child is not reaped yet, so its number is not reused.
        unsafe { libc::kill(child.id() as i32, signal) };
        // The reader must end although the source has not answered.
        assert_eq!(end(&mut child).signal(), Some(signal));
        assert!(!shown.slow.gate.lock().unwrap().held.is_empty(), "the source still owes its answer");
        shown.slow.open();
        let mut bytes = Vec::new();
        fs::File::open(shown.file()).unwrap().read_to_end(&mut bytes).unwrap();
        assert!(bytes.len() as u64 == FILE_BYTES && bytes.iter().all(|&byte| byte == 7), "after signal {signal}");
        let tree = shown.tree.as_ref().unwrap();
        tree.drop_path(b"file", 0..u64::MAX).unwrap();
    }
}
