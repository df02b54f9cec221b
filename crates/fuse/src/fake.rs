//! A fake kernel for tests. It uses a pair of sockets, which preserve the boundaries of messages.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::channel::FuseChannel;
use crate::protocol::arguments::{InHeader, InitIn};
use crate::protocol::opcode;

/// The time limit of every wait. *Units*: seconds.
const WAIT_SECONDS_MAX: i64 = 20;

/// The kernel's side of the connection.
pub struct FakeKernel {
    file: File,
}

impl AsRawFd for FakeKernel {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.file.as_raw_fd()
    }
}

/// An answer, as the kernel would get it.
#[derive(Debug, PartialEq, Eq)]
pub struct KernelAnswer {
    pub unique: u64,
    pub error: i32,
    pub bytes: Vec<u8>,
}

/// Makes the kernel's side of a connection, and the blocking channel at its other end.
pub fn pair() -> (FakeKernel, FuseChannel) {
    let mut ends = [0; 2];
    // SAFETY: the call writes two numbers into the array.
    let result =
        unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    // SAFETY: the call returned two new descriptors, which no other code owns.
    let [kernel, channel] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    let wait = libc::timeval { tv_sec: WAIT_SECONDS_MAX, tv_usec: 0 };
    // SAFETY: the option is read from the value, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            kernel.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const wait).cast(),
            size_of::<libc::timeval>() as u32,
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    (FakeKernel { file: File::from(kernel) }, FuseChannel::from(channel))
}

impl FakeKernel {
    /// Sends bytes unchanged.
    pub fn send_raw(&self, bytes: &[u8]) {
        (&self.file).write_all(bytes).expect("the socket takes it");
    }

    /// Sends a request.
    pub fn send(&self, opcode: u32, unique: u64, node: u64, arguments: &[u8]) {
        self.send_raw(&request(opcode, unique, node, arguments));
    }

    /// Sends `INIT` with all features, and returns the answer.
    pub fn init(&self, minor: u32) -> KernelAnswer {
        let asked = InitIn { major: 7, minor, read_ahead_bytes_max: 131_072, flags: u32::MAX };
        let mut arguments = asked.as_bytes().to_vec();
        arguments.extend(u32::MAX.to_ne_bytes());
        arguments.resize(64, 0);
        self.send(opcode::INIT, 1, 0, &arguments);
        self.answer().expect("INIT is answered")
    }

    /// Reads the next answer; `None` if no answer comes in time.
    pub fn answer(&self) -> Option<KernelAnswer> {
        let mut bytes = vec![0; 2 << 20];
        let count = (&self.file).read(&mut bytes).ok().filter(|&count| count >= 16)?;
        bytes.truncate(count);
        let length = u32::read_from_prefix(&bytes).expect("a head").0;
        assert_eq!(length as usize, count, "the answer has the length that it says");
        let error = i32::read_from_prefix(&bytes[4..]).expect("a head").0;
        let unique = u64::read_from_prefix(&bytes[8..]).expect("a head").0;
        Some(KernelAnswer { unique, error, bytes: bytes.split_off(16) })
    }
}

/// Encodes a request.
pub fn request(opcode: u32, unique: u64, node: u64, arguments: &[u8]) -> Vec<u8> {
    let length = (size_of::<InHeader>() + arguments.len()) as u32;
    let header = InHeader { length, opcode, unique, node, process: 4711, ..InHeader::default() };
    [header.as_bytes(), arguments].concat()
}

/// Encodes arguments and appends `rest`.
pub fn with<T: IntoBytes + Immutable>(arguments: T, rest: &[u8]) -> Vec<u8> {
    [arguments.as_bytes(), rest].concat()
}
