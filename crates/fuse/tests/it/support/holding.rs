//! A process that mounts a file system in memory, holds a call back, and notifies the kernel meanwhile.
//!
//! The process is this test program once more; it gets its orders by lines of its standard input, and reports by lines of
//! its standard output. It can be killed, which ends its threads and descriptors as the death of a real server does.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use nectary_fuse::{
    AbortGuard, FuseChannel, FuseConnection, FuseFileSystem, FuseLimits, FuseMount, FuseRequest, KernelNotifier,
    MountOptions, ReplyHandle, RequestCall, RequestedFeatures, WorkerCrew, unmount,
};

use super::MemoryFileSystem;

/// What tells this program that it is the process: the directory to mount on.
const DIRECTORY: &str = "NECTARY_TEST_HOLDING";
/// What begins a line of the process.
const TOLD: &str = "holding: ";
/// The longest wait for something that no lock delays.
const LIMIT: Duration = Duration::from_secs(20);
/// The most messages of a process.
const NOTICES_MAX: usize = 8;
const PAUSE: Duration = Duration::from_micros(200);

/// A message to the kernel that answers no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelNotice {
    /// A name is dropped.
    Dropped,
    /// A name is looked up again.
    Expired,
    /// A name was removed.
    Removed,
    /// The attributes of a node are dropped.
    Attributes,
    /// The attributes and pages of a node are dropped.
    Pages,
    /// A file has grown.
    Grown,
    /// All names are looked up again.
    Epoch,
}

impl KernelNotice {
    pub const ALL: [KernelNotice; 7] = [
        KernelNotice::Dropped,
        KernelNotice::Expired,
        KernelNotice::Removed,
        KernelNotice::Attributes,
        KernelNotice::Pages,
        KernelNotice::Grown,
        KernelNotice::Epoch,
    ];

    /// Whether the message waits for the lock of a directory.
    pub fn locks_directory(self) -> bool {
        matches!(self, KernelNotice::Dropped | KernelNotice::Expired | KernelNotice::Removed)
    }

    /// Whether the message waits for pages.
    pub fn locks_pages(self) -> bool {
        matches!(self, KernelNotice::Pages | KernelNotice::Grown)
    }

    /// Whether the message can be about this.
    pub fn fits(self, about: &NoticeSubject) -> bool {
        about.is_file || self != KernelNotice::Grown
    }

    fn send(self, notifier: &KernelNotifier, about: &NoticeSubject) -> std::io::Result<()> {
        let NoticeSubject { directory, node, name, .. } = about;
        match self {
            KernelNotice::Dropped => notifier.invalidate_entry(*directory, name.as_bytes(), false),
            KernelNotice::Expired => notifier.invalidate_entry(*directory, name.as_bytes(), true),
            KernelNotice::Removed => notifier.removed(*directory, *node, name.as_bytes()),
            KernelNotice::Attributes => notifier.invalidate_attributes(*node).map(drop),
            KernelNotice::Pages => notifier.invalidate_node(*node, 0, 0),
            KernelNotice::Grown => notifier.grow_node(*node, 1),
            // Linux before 6.16 does not know it.
            KernelNotice::Epoch => notifier.next_epoch().or(Ok(())),
        }
    }
}

/// What a message is about.
#[derive(Debug, Clone)]
pub struct NoticeSubject {
    pub directory: u64,
    pub node: u64,
    pub name: String,
    /// Whether the node is a file.
    pub is_file: bool,
}

/// A file system that holds reads and changes of names back while it is told so.
#[derive(Default)]
struct HoldingFileSystem {
    memory: MemoryFileSystem,
    holds: Mutex<bool>,
    changed: Condvar,
}

impl HoldingFileSystem {
    fn hold(&self, holds: bool) {
        *self.holds.lock().unwrap() = holds;
        self.changed.notify_all();
    }
}

impl FuseFileSystem for HoldingFileSystem {
    fn wishes(&self) -> RequestedFeatures {
        self.memory.wishes()
    }

    fn serve(&self, request: FuseRequest<'_>, reply: ReplyHandle) {
        let is_held = matches!(
            request.call,
            RequestCall::Read(_)
                | RequestCall::Create { .. }
                | RequestCall::Unlink { .. }
                | RequestCall::Rename { .. }
                | RequestCall::MakeDirectory { .. }
                | RequestCall::RemoveDirectory { .. }
                | RequestCall::Link { .. }
        );
        let holds = self.holds.lock().unwrap();
        if is_held && *holds {
            println!("{TOLD}held");
            // It keeps one of the threads that serve requests; the others go on.
            drop(self.changed.wait_while(holds, |holds| *holds).unwrap());
        } else {
            drop(holds);
        }
        self.memory.serve(request, reply);
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.memory.forget(node, lookups);
    }
}

/// If this is the process, serves until there are no more orders, and returns true.
pub fn serve_as_process() -> bool {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return false };
    let options = MountOptions {
        source: "nectary-fuse-test".to_owned(),
        subtype: "nectary-test".to_owned(),
        root_mode: libc::S_IFDIR | 0o755,
        ..MountOptions::default()
    };
    let mounted =
        FuseChannel::open(true).and_then(|channel| FuseMount::new(&channel, &options).map(|mount| (channel, mount)));
    let (channel, mount) = match mounted {
        Ok(mounted) => mounted,
        Err(error) => {
            println!("{TOLD}refused {error}");
            return true;
        }
    };
    let file_system = Arc::new(HoldingFileSystem::default());
    let _guard = AbortGuard::start(&mount).unwrap();
    let notifier = || KernelNotifier::apart(&channel).unwrap();
    let notifiers: Vec<_> = (0..NOTICES_MAX).map(|_| notifier()).collect();
    let connection = FuseConnection::new(file_system.clone(), FuseLimits { workers: 4, ..FuseLimits::default() });
    let crew = WorkerCrew::start(connection, channel, "holding").unwrap();
    mount.attach(&directory).unwrap();
    drop(mount);
    println!("{TOLD}mounted");
    let orders = std::io::stdin().lines().map_while(Result::ok);
    std::thread::scope(|scope| {
        let mut notifiers = notifiers.into_iter().enumerate();
        for order in orders {
            let words: Vec<&str> = order.split(' ').collect();
            let [kind, directory, node, name] = words[..] else {
                file_system.hold(order == "hold");
                println!("{TOLD}done");
                continue;
            };
            let notice = KernelNotice::ALL[kind.parse::<usize>().unwrap()];
            let about = NoticeSubject {
                directory: directory.parse().unwrap(),
                node: node.parse().unwrap(),
                name: name.to_owned(),
                is_file: true,
            };
            let (number, notifier) = notifiers.next().expect("there is one for each message");
            scope.spawn(move || {
                let sent = notice.send(&notifier, &about);
                println!("{TOLD}sent {number} {sent:?}");
            });
        }
        file_system.hold(false);
    });
    let _ = unmount(&directory, true);
    crew.wait().unwrap();
    true
}

/// The process, as its user sees it. When this is dropped, the process has ended, and its directory is gone.
pub struct HoldingProcess {
    pub directory: PathBuf,
    child: Child,
    lines: Receiver<String>,
    /// The result of each message that was sent.
    notices: Vec<Option<String>>,
    is_held: bool,
    /// The number of orders that were followed.
    done: usize,
}

impl HoldingProcess {
    /// Starts the process, as the test with this name. If this machine cannot mount, prints the reason and returns `None`.
    pub fn start(test: &str) -> Option<HoldingProcess> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("nectary-fuse-held-{}-{serial}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(DIRECTORY, &directory);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            let told = |line: String| line.split_once(TOLD).map(|(_, told)| told.to_owned());
            for line in stdout.lines().map_while(Result::ok).filter_map(told) {
                _ = tell.send(line);
            }
        });
        let process = HoldingProcess { directory, child, lines, notices: Vec::new(), is_held: false, done: 0 };
        match process.lines.recv_timeout(LIMIT).unwrap().strip_prefix("refused ") {
            Some(reason) => {
                println!("NOT RUN: {test}: {reason}");
                None
            }
            None => Some(process),
        }
    }

    fn order(&mut self, line: &str) {
        let mut stdin = self.child.stdin.as_ref().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Waits for the next line for a moment, and notes what it says.
    fn hear(&mut self) {
        let Ok(line) = self.lines.recv_timeout(PAUSE) else { return };
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        match words[..] {
            ["sent", number, result] => self.notices[number.parse::<usize>().unwrap()] = Some(result.to_owned()),
            ["held"] => self.is_held = true,
            _ => self.done += 1,
        }
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&HoldingProcess) -> bool) {
        let until = Instant::now() + LIMIT;
        while !is_so(self) {
            assert!(Instant::now() < until, "{what}");
            self.hear();
        }
    }

    /// From now on reads and changes of names are held back.
    pub fn hold(&mut self) {
        self.order("hold");
        self.until("it holds nothing back", |this| this.done == 1);
    }

    /// Waits until a call is held back.
    pub fn wait_for_held(&mut self) {
        self.until("no call is held back", |this| this.is_held);
    }

    /// Lets a thread send a message; returns when it was sent, or waits in the kernel for a lock.
    pub fn notify(&mut self, notice: KernelNotice, about: &NoticeSubject) {
        let kind = KernelNotice::ALL.iter().position(|kind| *kind == notice).unwrap();
        self.order(&format!("{kind} {} {} {}", about.directory, about.node, about.name));
        self.notices.push(None);
        self.until("a message is not sent", |this| this.unsent() <= this.uninterruptible());
    }

    /// The number of threads of the process that wait in the kernel, and cannot be killed.
    fn uninterruptible(&self) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        tasks.filter(|task| waits_in_kernel(&task.path())).count()
    }

    fn unsent(&self) -> usize {
        self.notices.iter().filter(|notice| notice.is_none()).count()
    }

    /// The number of messages that were not sent so far.
    pub fn standing(&mut self) -> usize {
        self.hear();
        self.unsent()
    }

    /// The errors with which messages were not sent.
    pub fn failures(&self) -> Vec<String> {
        self.notices.iter().flatten().filter(|result| *result != "Ok(())").cloned().collect()
    }

    /// Lets the process answer what it holds back.
    pub fn answer(&mut self) {
        self.order("answer");
    }

    /// Kills the process. Its end may take a while.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Lets the process end; it unmounts the file system.
    pub fn end(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Whether the process has ended, and how.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Ends the connection by force, so that the kernel fails what it waits for.
    pub fn abort(&self) {
        force(&self.directory);
    }
}

/// Whether a thread, by its directory in `/proc`, waits in the kernel for a lock, or for an answer.
pub fn waits_in_kernel(thread: &Path) -> bool {
    let stat = std::fs::read_to_string(thread.join("stat"));
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('D')))
}

fn force(directory: &Path) {
    let path = std::ffi::CString::new(directory.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is a string that ends with a zero byte and outlives the call.
    unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) };
}

impl Drop for HoldingProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // Nothing is mounted there if the process has unmounted it.
        self.abort();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir(&self.directory);
    }
}
