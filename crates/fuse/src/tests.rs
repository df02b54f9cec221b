//! Tests of the request loop over a pair of sockets, without a kernel.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use zerocopy::{FromBytes, IntoBytes};

use crate::fake::{FakeKernel, pair, request, with};
use crate::protocol::arguments::*;
use crate::protocol::opcode;
use crate::{
    Errno, FuseConnection, FuseFileSystem, FuseLimits, FuseRequest, LockRange, ReplyHandle, RequestCall, WorkerCrew,
};

/// The time limit of every wait.
const WAIT: Duration = Duration::from_secs(20);

/// A file system whose behaviour depends on the node number of each request.
#[derive(Default)]
struct ScriptedFileSystem {
    state: Mutex<ScriptState>,
    changed: Condvar,
}

#[derive(Default)]
struct ScriptState {
    serving: usize,
    serving_max: usize,
    served: Vec<String>,
    forgotten: Vec<(u64, u64)>,
    interrupted: Vec<(u64, bool)>,
    held: VecDeque<ReplyHandle>,
    is_open: bool,
}

/// The file system answers at once.
const AT_ONCE: u64 = 1;
/// The file system keeps the reply, and the test answers the request later.
const HOLD: u64 = 2;
/// The file system blocks until the gate is open.
const GATE: u64 = 3;
/// The file system drops the reply without an answer.
const DROP: u64 = 4;
/// The file system panics.
const PANIC: u64 = 5;
/// The file system keeps the reply, and an interrupt may answer the request before the test does.
const HOLD_CUT_SHORT: u64 = 6;

impl ScriptedFileSystem {
    fn until(&self, what: &str, mut is_there: impl FnMut(&mut ScriptState) -> bool) {
        let state = self.state.lock().unwrap();
        let (_state, result) = self.changed.wait_timeout_while(state, WAIT, |state| !is_there(state)).unwrap();
        assert!(!result.timed_out(), "{what}");
    }

    fn open(&self) {
        self.state.lock().unwrap().is_open = true;
        self.changed.notify_all();
    }

    fn held(&self) -> ReplyHandle {
        self.until("nothing is held", |state| !state.held.is_empty());
        self.state.lock().unwrap().held.pop_front().unwrap()
    }
}

impl FuseFileSystem for ScriptedFileSystem {
    fn serve(&self, request: FuseRequest<'_>, reply: ReplyHandle) {
        let mut state = self.state.lock().unwrap();
        state.served.push(format!("{:?} {:?}", request.call, request.data.as_ref().map(|data| data.to_vec())));
        state.serving += 1;
        state.serving_max = state.serving_max.max(state.serving);
        self.changed.notify_all();
        match (request.node, request.call) {
            // An unlock grants the lock to the first waiter.
            (_, RequestCall::SetLock { lock: LockRange { kind: libc::F_UNLCK, .. }, .. }) => {
                if let Some(waiting) = state.held.pop_front() {
                    waiting.ok();
                }
                reply.ok();
            }
            (AT_ONCE, RequestCall::Read(read)) => reply.bytes(&vec![7; read.size as usize]),
            (AT_ONCE, RequestCall::Write(write)) => reply.written(write.size),
            (HOLD, _) => state.held.push_back(reply),
            (HOLD_CUT_SHORT, _) => {
                reply.can_be_cut_short();
                state.held.push_back(reply);
            }
            (GATE, _) => {
                let (open, result) = self.changed.wait_timeout_while(state, WAIT, |state| !state.is_open).unwrap();
                assert!(!result.timed_out());
                state = open;
                reply.ok();
            }
            (DROP, _) => drop(reply),
            (PANIC, _) => {
                state.serving -= 1;
                drop(state);
                panic!("as the test wants");
            }
            _ => reply.ok(),
        }
        state.serving -= 1;
        self.changed.notify_all();
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.state.lock().unwrap().forgotten.push((node, lookups));
        self.changed.notify_all();
    }

    fn interrupted(&self, unique: u64, is_answered: bool) {
        self.state.lock().unwrap().interrupted.push((unique, is_answered));
        self.changed.notify_all();
    }
}

struct ScriptRun {
    kernel: Option<FakeKernel>,
    script: Arc<ScriptedFileSystem>,
    crew: WorkerCrew,
}

impl ScriptRun {
    fn new(limits: FuseLimits) -> ScriptRun {
        let (kernel, channel) = pair();
        let script = Arc::new(ScriptedFileSystem::default());
        let crew = WorkerCrew::start(FuseConnection::new(script.clone(), limits), channel, "test").unwrap();
        ScriptRun { kernel: Some(kernel), script, crew }
    }

    fn begun(limits: FuseLimits) -> ScriptRun {
        let run = ScriptRun::new(limits);
        assert_eq!(run.kernel().init(38).error, 0);
        run
    }

    fn kernel(&self) -> &FakeKernel {
        self.kernel.as_ref().unwrap()
    }

    fn answer(&self) -> (u64, i32) {
        let answer = self.kernel().answer().expect("an answer");
        (answer.unique, answer.error)
    }

    fn served(&self) -> String {
        self.script.until("nothing was served", |state| !state.served.is_empty());
        self.script.state.lock().unwrap().served.remove(0)
    }
}

impl Drop for ScriptRun {
    fn drop(&mut self) {
        self.kernel.take();
        self.script.open();
        self.script.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner).held.clear();
        if !std::thread::panicking() {
            self.crew.wait().unwrap();
        }
    }
}

fn read(size: u32) -> Vec<u8> {
    ReadIn { size, ..ReadIn::default() }.as_bytes().to_vec()
}

fn few(workers: usize) -> FuseLimits {
    FuseLimits { workers, ..FuseLimits::default() }
}

#[test]
fn negotiation_happens_first_and_once() {
    let run = ScriptRun::new(few(1));
    run.kernel().send(opcode::READ, 2, AT_ONCE, &read(10));
    assert_eq!(run.answer(), (2, -libc::EIO));
    let agreed = run.kernel().init(38);
    assert_eq!((agreed.error, agreed.bytes.len()), (0, 64));
    let allowed = crate::request_bytes_allowed().min(1 << 20) as u32;
    assert_eq!(u32::read_from_prefix(&agreed.bytes[20..]).unwrap().0, allowed);
    assert_eq!(run.kernel().init(38).error, -libc::EIO);
    run.kernel().send(opcode::READ, 4, AT_ONCE, &read(10));
    assert_eq!(run.kernel().answer().unwrap().bytes, [7; 10]);
    // A read of more than the size limit is refused.
    run.kernel().send(opcode::READ, 6, AT_ONCE, &read(2 << 20));
    assert_eq!(run.answer(), (6, -libc::EINVAL));
}

/// Data of writes arrive whole at every length around a unit.
#[test]
fn write_data_arrive_whole() {
    let run = ScriptRun::begun(few(2));
    for (index, length) in [0, 1, 4095, 4096, 65_535, 65_536, 65_537, 200_000].into_iter().enumerate() {
        let unique = 2 * index as u64 + 2;
        let data: Vec<u8> = (0..length).map(|byte| (byte * 7 % 251) as u8).collect();
        let write = WriteIn { size: length as u32, offset: 512, ..WriteIn::default() };
        if length > 100_000 {
            let full: libc::c_int = 1 << 20;
            // A socket only accepts messages up to the size of its buffer, so the buffer is enlarged. SAFETY: the
            // option is read from the value, which outlives the call.
            unsafe {
                libc::setsockopt(
                    std::os::fd::AsRawFd::as_raw_fd(run.kernel()),
                    libc::SOL_SOCKET,
                    libc::SO_SNDBUFFORCE,
                    (&raw const full).cast(),
                    4,
                )
            };
        }
        run.kernel().send(opcode::WRITE, unique, AT_ONCE, &with(write, &data));
        assert_eq!(run.answer(), (unique, 0));
        assert!(run.served().ends_with(&format!("Some({data:?})")), "{length}");
    }
    let write = WriteIn { size: 5, ..WriteIn::default() };
    for data in [&b"four"[..], b"sixsix"] {
        run.kernel().send(opcode::WRITE, 100, AT_ONCE, &with(write, data));
        assert_eq!(run.answer(), (100, -libc::EINVAL));
    }
}

/// Requests that are cut off are refused at every length.
#[test]
fn truncated_requests_are_refused() {
    let run = ScriptRun::begun(few(1));
    let whole: &[(u32, Vec<u8>)] = &[
        (opcode::LOOKUP, b"name\0".to_vec()),
        (opcode::SETATTR, SetAttributesIn::default().as_bytes().to_vec()),
        (opcode::SYMLINK, b"a\0b\0".to_vec()),
        (opcode::RENAME2, with(Rename2In::default(), b"a\0b\0")),
        (opcode::CREATE, with(CreateIn::default(), b"a\0")),
        (opcode::SETXATTR, with(SetXattrIn { size: 2, flags: 0 }, b"\0\0\0\0\0\0\0\0user.a\0vv")),
        (opcode::GETLK, LockIn::default().as_bytes().to_vec()),
        (opcode::COPY_FILE_RANGE, CopyIn::default().as_bytes().to_vec()),
        (opcode::READDIRPLUS, read(4096)),
        (opcode::FALLOCATE, AllocateIn::default().as_bytes().to_vec()),
        (opcode::STATX, StatXIn::default().as_bytes().to_vec()),
    ];
    for (opcode, arguments) in whole {
        run.kernel().send(*opcode, 2, 99, arguments);
        assert_eq!(run.answer(), (2, 0), "operation {opcode}");
        for length in 0..arguments.len() {
            run.kernel().send(*opcode, 4, 99, &arguments[..length]);
            assert_eq!(run.answer(), (4, -libc::EINVAL), "operation {opcode} at {length}");
        }
    }
    // The length in the header differs from the length of the message.
    let mut bytes = request(opcode::READ, 6, AT_ONCE, &read(1));
    bytes[0] += 1;
    run.kernel().send_raw(&bytes);
    assert_eq!(run.answer(), (6, -libc::EINVAL));
    // A message that is shorter than a header cannot be answered. The next request is served normally.
    run.kernel().send_raw(&bytes[..39]);
    run.kernel().send(opcode::READ, 8, AT_ONCE, &read(1));
    assert_eq!(run.answer(), (8, 0));
}

/// Names may have any bytes, except those that lead to another directory.
#[test]
fn names_allow_most_bytes() {
    let run = ScriptRun::begun(few(1));
    let mut odd: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
    odd.push(0);
    run.kernel().send(opcode::LOOKUP, 2, AT_ONCE, &odd);
    assert_eq!(run.answer(), (2, 0));
    assert!(run.served().contains("\\xff"));
    for name in [&b"\0"[..], b".\0", b"..\0", b"a/b\0", b"/\0", b"no end"] {
        for opcode in [opcode::LOOKUP, opcode::UNLINK, opcode::RMDIR] {
            run.kernel().send(opcode, 4, AT_ONCE, name);
            assert_eq!(run.answer(), (4, -libc::EINVAL), "{name:?}");
        }
        run.kernel().send(opcode::RENAME, 6, AT_ONCE, &with(RenameIn { parent: 1 }, &[b"good\0", name].concat()));
        assert_eq!(run.answer(), (6, -libc::EINVAL), "{name:?}");
    }
    let long = [vec![b'a'; 4095], vec![0]].concat();
    run.kernel().send(opcode::LOOKUP, 8, AT_ONCE, &long);
    assert_eq!(run.answer(), (8, 0));
    run.kernel().send(opcode::LOOKUP, 10, AT_ONCE, &[b"a", &long[..]].concat());
    assert_eq!(run.answer(), (10, -libc::EINVAL));
}

/// Ranges that end beyond the largest file offset are refused.
#[test]
fn ranges_beyond_limit_are_refused() {
    let run = ScriptRun::begun(few(1));
    let offset = i64::MAX as u64;
    let requests = [
        (opcode::READ, ReadIn { offset, size: 1, ..ReadIn::default() }.as_bytes().to_vec()),
        (opcode::FALLOCATE, AllocateIn { offset: u64::MAX, length: 2, ..AllocateIn::default() }.as_bytes().to_vec()),
        (opcode::COPY_FILE_RANGE, CopyIn { to_offset: 1, length: offset, ..CopyIn::default() }.as_bytes().to_vec()),
        (opcode::SETLK, LockIn { start: 2, end: 1, ..LockIn::default() }.as_bytes().to_vec()),
        (opcode::SETLK, LockIn { kind: 9, ..LockIn::default() }.as_bytes().to_vec()),
        (opcode::SETATTR, SetAttributesIn { valid: 8, size: offset + 1, ..Default::default() }.as_bytes().to_vec()),
        (
            opcode::SETATTR,
            SetAttributesIn { valid: 16, accessed_ns: 1 << 30, ..Default::default() }.as_bytes().to_vec(),
        ),
        (opcode::SETXATTR, with(SetXattrIn { size: u32::MAX, flags: 0 }, b"\0\0\0\0\0\0\0\0user.a\0vv")),
        (opcode::IOCTL, IoctlIn { input_bytes: 1, ..IoctlIn::default() }.as_bytes().to_vec()),
    ];
    for (index, (opcode, arguments)) in requests.into_iter().enumerate() {
        run.kernel().send(opcode, 2, 99, &arguments);
        assert_eq!(run.answer(), (2, -libc::EINVAL), "request {index}");
    }
    // Only the file system knows that there is no data.
    run.kernel().send(opcode::LSEEK, 2, 99, SeekIn { offset: offset + 1, ..SeekIn::default() }.as_bytes());
    assert_eq!(run.answer().0, 2);
}

/// Many nodes are forgotten at once, and no more than the message names.
#[test]
fn batch_forget_ends_with_message() {
    let run = ScriptRun::begun(few(1));
    // The records of the message fill the head and extend over two units of the data.
    let count = 70_000 / 16;
    let all: Vec<u8> = (0..count).flat_map(|node: u64| with(ForgetOne { node, lookups: 1 }, &[])).collect();
    run.kernel().send(opcode::BATCH_FORGET, 2, 0, &with(BatchForgetIn { count: u32::MAX, padding: 0 }, &all));
    run.script.until("not all are forgotten", |state| state.forgotten.len() == count as usize);
    let forgotten = std::mem::take(&mut run.script.state.lock().unwrap().forgotten);
    assert!(forgotten.iter().copied().eq((0..count).map(|node| (node, 1))));
    run.kernel().send(opcode::BATCH_FORGET, 4, 0, &with(BatchForgetIn { count: 1, padding: 0 }, &all[..48]));
    run.kernel().send(opcode::FORGET, 6, 7, ForgetIn { lookups: 3 }.as_bytes());
    run.script.until("it is not forgotten", |state| state.forgotten == [(0, 1), (7, 3)]);
}

/// An interrupted read is answered at once, and only once.
#[test]
fn interrupted_read_is_answered_once() {
    let run = ScriptRun::begun(few(1));
    let interrupt = |unique: u64| {
        run.kernel().send(opcode::INTERRUPT, unique | 1, 0, InterruptIn { unique }.as_bytes());
    };
    run.kernel().send(opcode::READ, 2, HOLD_CUT_SHORT, &read(10));
    interrupt(2);
    assert_eq!(run.answer(), (2, -libc::EINTR));
    run.script.held().bytes(&[1; 10]);
    // If a request must not be answered early, the interrupt only marks it. The file system answers it later.
    run.kernel().send(opcode::READ, 4, HOLD, &read(10));
    interrupt(4);
    run.script.until("the interrupt is lost", |state| state.interrupted.len() == 2);
    let held = run.script.held();
    assert!(held.is_interrupted());
    held.bytes(&[2; 10]);
    assert_eq!(run.kernel().answer().unwrap().bytes, [2; 10]);
    assert_eq!(run.script.state.lock().unwrap().interrupted, [(2, true), (4, false)]);
    // An interrupt can arrive on another descriptor before its request.
    interrupt(6);
    run.kernel().send(opcode::READ, 6, HOLD_CUT_SHORT, &read(10));
    assert_eq!(run.answer(), (6, -libc::EINTR));
    // An interrupt that arrives after the answer has no effect.
    interrupt(4);
    run.kernel().send(opcode::READ, 8, AT_ONCE, &read(1));
    assert_eq!(run.answer(), (8, 0));
}

/// A crew serves requests in parallel and never exceeds its limit.
#[test]
fn crew_works_within_limit() {
    let run = ScriptRun::begun(few(3));
    for unique in [2, 4, 6, 8, 10] {
        run.kernel().send(opcode::READ, unique, GATE, &read(1));
    }
    run.script.until("not all of the crew works", |state| state.serving == 3);
    assert_eq!(run.crew.started(), 3);
    run.script.open();
    let mut answered: Vec<u64> = (0..5).map(|_| run.answer().0).collect();
    answered.sort_unstable();
    assert_eq!(answered, [2, 4, 6, 8, 10]);
    assert_eq!((run.crew.started(), run.script.state.lock().unwrap().serving_max), (3, 3));
}

#[test]
fn waiting_lock_allows_unlock() {
    let run = ScriptRun::begun(few(1));
    let lock = |kind: i32| LockIn { kind: kind as u32, ..LockIn::default() }.as_bytes().to_vec();
    for unique in [2, 4, 6] {
        run.kernel().send(opcode::SETLKW, unique, HOLD, &lock(libc::F_WRLCK));
    }
    for unique in [8, 10, 12] {
        run.kernel().send(opcode::SETLK, unique, HOLD, &lock(libc::F_UNLCK));
    }
    let answered: Vec<(u64, i32)> = (0..6).map(|_| run.answer()).collect();
    assert_eq!(answered, [(2, 0), (8, 0), (4, 0), (10, 0), (6, 0), (12, 0)]);
}

#[test]
fn requests_under_way_are_limited() {
    let run = ScriptRun::begun(FuseLimits { requests: 2, ..few(1) });
    for unique in [2, 4, 6] {
        run.kernel().send(opcode::READ, unique, HOLD, &read(1));
    }
    run.script.until("two are not held", |state| state.held.len() == 2);
    assert_eq!(run.script.state.lock().unwrap().served.len(), 2);
    // The third request is received only after one of the first two is answered.
    run.script.held().ok();
    assert_eq!(run.answer(), (2, 0));
    run.script.until("the third is not held", |state| state.held.len() == 2);
    assert_eq!(run.script.state.lock().unwrap().served.len(), 3);
}

/// A request that is not answered fails, and the next one is served.
#[test]
fn unanswered_request_fails_alone() {
    let run = ScriptRun::begun(few(1));
    run.kernel().send(opcode::READ, 2, DROP, &read(1));
    assert_eq!(run.answer(), (2, -libc::EIO));
    run.kernel().send(opcode::READ, 4, PANIC, &read(1));
    assert_eq!(run.answer(), (4, -libc::EIO));
    // The panic has poisoned no lock that the request loop needs.
    run.kernel().send(opcode::READ, 6, AT_ONCE, &read(1));
    assert_eq!(run.answer(), (6, 0));
}

#[test]
fn invalid_error_numbers_become_eio() {
    for number in [0, -5, 512, i32::MAX, i32::MIN] {
        assert_eq!(Errno::new(number).number(), libc::EIO);
    }
    assert_eq!(Errno::new(libc::ENOSPC).number(), libc::ENOSPC);
}

#[test]
fn connection_end_ends_crew() {
    let began = Instant::now();
    let mut run = ScriptRun::begun(few(4));
    run.kernel().send(opcode::READ, 2, HOLD, &read(1));
    run.script.until("it is not held", |state| state.held.len() == 1);
    run.kernel.take();
    run.crew.wait().unwrap();
    assert!(began.elapsed() < WAIT);
    // The connection has ended, so no process gets this answer.
    run.script.held().ok();
}
