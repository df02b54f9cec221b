//! Tests of a ring that is full, of a ring whose runtime or thread ends, and of a kernel that does not answer.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use super::*;
use crate::error::DeviceOperation;
use crate::file::tests::{FileTestDirectory, device};
use crate::file::transfer::SharedFileState;
use crate::{BlockDevice, FileEngine, read, write};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A read from a pipe, which does not end until bytes are written to the other end.
fn pipe_read() -> (DeviceTransfer, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: the array has room for the two descriptors that the call writes.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: both descriptors are new, so no other code owns them.
    let (from, to) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    let shared = SharedFileState {
        file: from.into(),
        spec: "pipe".to_owned(),
        block_bytes: 512,
        size_bytes: AtomicU64::new(4096),
        exact_bytes: AtomicU64::new(4096),
        latch: Default::default(),
    };
    let buffers = vec![Buffer::zeroed(4096)];
    let (operation, length) = (DeviceOperation::Read, 4096);
    (
        DeviceTransfer {
            shared: Arc::new(shared),
            operation,
            offset: 0,
            length,
            buffers,
            fua: false,
            done: 0,
            failures: 0,
        },
        to,
    )
}

#[test]
fn ring_queue_refuses_past_limit() {
    let mut core = RingCore::new(2, 3).unwrap();
    let mut others = Vec::new();
    for index in 0..6 {
        let (transfer, other) = pipe_read();
        others.push(other);
        let accepted = core.accept(RingJob::new(transfer, oneshot::channel().0));
        assert_eq!(matches!(accepted, EnqueueResult::Full(_)), index == 5, "operation {index}");
    }
    let mut ended = Ended::new();
    core.close(Duration::from_millis(1), &mut ended);
    assert_eq!(ended.len(), 5);
}

/// An operation that does not end before its ring closes fails, and its buffer is leaked, not freed.
#[test]
fn closed_ring_leaks_pending_buffer() {
    let mut core = RingCore::new(2, 2).unwrap();
    let (transfer, other) = pipe_read();
    let (reply, mut answer) = oneshot::channel();
    assert!(matches!(core.accept(RingJob::new(transfer, reply)), EnqueueResult::Yes));
    let mut ended = Ended::new();
    assert!(!core.turn(&mut ended) && ended.is_empty());
    core.close(Duration::from_millis(20), &mut ended);
    tell(ended);
    assert_eq!(answer.try_recv().unwrap().unwrap_err().kind, DeviceErrorKind::Io);
    assert!(matches!(core.accept(RingJob::new(pipe_read().0, oneshot::channel().0)), EnqueueResult::Closed(_)));
    // The kernel may now fill the buffer, which has no owner.
    use std::io::Write;
    std::fs::File::from(other).write_all(&[7; 4096]).unwrap();
}

/// The rings of runtimes that have ended are forgotten.
#[test]
fn device_serves_successive_runtimes() {
    let directory = FileTestDirectory::new();
    let device = runtime().block_on(device(&directory, FileEngine::Uring));
    assert_eq!(device.engine(), FileEngine::Uring);
    for round in 0..20u8 {
        let (outer, inner) = (runtime(), runtime());
        outer.block_on(async { write(&device, 0, Buffer::copy_of(&[round; 4096])).await.unwrap() });
        inner.block_on(async { assert_eq!(read(&device, 0, 4096).await.unwrap()[0], round) });
        outer.block_on(async { assert_eq!(read(&device, 0, 4096).await.unwrap()[0], round) });
    }
    RINGS.with(|rings| assert!(rings.borrow().len() <= 3, "rings of ended runtimes are forgotten"));
}

#[test]
fn runtime_end_awaits_kernel_operations() {
    let directory = FileTestDirectory::new();
    let device = runtime().block_on(device(&directory, FileEngine::Uring));
    let first = runtime();
    let pending = first.block_on(async {
        let operations: Vec<_> = (0..300u64)
            .map(|index| device.read_at(index % 200 * 4096, vec![Buffer::zeroed(4096)], Default::default()))
            .collect();
        tokio::task::yield_now().await;
        operations
    });
    drop(first);
    let mut done = 0;
    for operation in pending {
        // Every operation has ended, either with its bytes or with an error because it never began.
        match runtime().block_on(operation) {
            Ok(_) => done += 1,
            Err(error) => assert!(error.detail.contains("runtime ended"), "{error}"),
        }
    }
    assert!(done >= 200, "{done}");
}

#[test]
fn device_outlives_its_threads() {
    let directory = FileTestDirectory::new();
    let device = Arc::new(runtime().block_on(device(&directory, FileEngine::Uring)));
    let moved = runtime();
    let other = device.clone();
    let moved = std::thread::spawn(move || {
        moved.block_on(async { write(&*other, 0, Buffer::copy_of(&[3; 4096])).await.unwrap() });
        moved
    })
    .join()
    .unwrap();
    assert_eq!(moved.block_on(read(&*device, 0, 4096)).unwrap()[0], 3);
    let threads: Vec<_> = (0..4)
        .map(|index: u64| {
            let device = device.clone();
            std::thread::spawn(move || {
                runtime().block_on(async {
                    for round in 0..50u64 {
                        let value = (round % 251) as u8;
                        write(&*device, index * 65536, Buffer::copy_of(&[value; 16384])).await.unwrap();
                        assert_eq!(read(&*device, index * 65536, 16384).await.unwrap()[16383], value);
                    }
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn future_completes_on_other_thread() {
    let directory = FileTestDirectory::new();
    let (here, device) = (runtime(), runtime().block_on(device(&directory, FileEngine::Uring)));
    here.block_on(async {
        let operation = device.read_at(0, vec![Buffer::zeroed(4096)], Default::default());
        let elsewhere = tokio::task::spawn_blocking(move || runtime().block_on(operation));
        assert_eq!(elsewhere.await.unwrap().unwrap().len(), 1);
    });
}

#[test]
fn multithreaded_runtime_uses_pool() {
    let directory = FileTestDirectory::new();
    let device = runtime().block_on(device(&directory, FileEngine::Uring));
    let several = std::thread::spawn(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    });
    several.join().unwrap().block_on(async {
        write(&device, 0, Buffer::copy_of(&[4; 4096])).await.unwrap();
        assert_eq!(read(&device, 0, 4096).await.unwrap()[0], 4);
    });
}

/// A read fails at its deadline, and the ring keeps its buffer until the kernel has finished.
#[test]
fn deadline_leaves_buffer_in_ring() {
    use std::io::Write;
    use std::time::Instant;
    let directory = FileTestDirectory::new();
    runtime().block_on(async {
        let mut device = device(&directory, FileEngine::Uring).await;
        let (transfer, other) = pipe_read();
        Arc::get_mut(&mut device.shared).unwrap().file = transfer.shared.file.try_clone().unwrap();
        let deadline = Some(Instant::now() + Duration::from_millis(20));
        let context = crate::IoContext { deadline, ..Default::default() };
        let error = device.read_at(0, vec![Buffer::zeroed(4096)], context).await.unwrap_err();
        assert_eq!(error.kind, DeviceErrorKind::TimedOut, "{error}");
        let is_idle = || {
            RINGS.with(|rings| rings.borrow().iter().all(|local| local.ring.as_ref().unwrap().lock().core.is_idle()))
        };
        assert!(!is_idle(), "the operation and its buffer are still in the ring");
        std::fs::File::from(other).write_all(&[7; 4096]).unwrap();
        while !is_idle() {
            tokio::task::yield_now().await;
        }
    });
}

/// From now on, makes the kernel refuse io_uring to the calling thread.
fn forbid_uring() {
    let code = |code: u32| code as u16;
    let filter = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let errno = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filters = [
        filter(code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), 0, 0, 0),
        filter(code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K), 0, 1, libc::SYS_io_uring_setup as u32),
        filter(code(libc::BPF_RET | libc::BPF_K), 0, 0, errno),
        filter(code(libc::BPF_RET | libc::BPF_K), 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filters.len() as u16, filter: filters.as_mut_ptr() };
    // SAFETY: the program and its filters outlive the calls, which only touch the calling thread.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

#[test]
fn thread_without_ring_uses_pool() {
    let directory = FileTestDirectory::new();
    let device = runtime().block_on(device(&directory, FileEngine::Uring));
    let thread = std::thread::spawn(move || {
        forbid_uring();
        assert_eq!(RingCore::new(8, 0).err().and_then(|error| error.raw_os_error()), Some(libc::EPERM));
        runtime().block_on(async {
            for value in 0..3 {
                write(&device, 0, Buffer::copy_of(&[value; 4096])).await.unwrap();
                assert_eq!(read(&device, 0, 4096).await.unwrap()[0], value);
            }
        });
        RINGS.with(|rings| assert!(rings.borrow().iter().all(|local| local.ring.is_none())));
    });
    thread.join().unwrap();
}
