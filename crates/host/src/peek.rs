//! Bytes that wait in a Unix socket, without taking them.
//!
//! Owns: the call. The standard library can do this with TCP connections alone.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Copies bytes that wait in a connection into a buffer; they stay where they are. *Returns*: their number; 0 if the peer
/// has closed its side and no byte waits. *Errors*: as of `recv(2)`: [`io::ErrorKind::WouldBlock`] if nothing waits in a
/// connection that does not block. *Cost*: a system call.
#[allow(unsafe_code)]
pub fn peek(connection: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    let descriptor = connection.as_fd().as_raw_fd();
    // SAFETY: the call writes at most the length of the buffer into it, and the descriptor is borrowed meanwhile.
    let count = unsafe { libc::recv(descriptor, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_PEEK) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn peeked_bytes_stay() {
        let (mut near, mut far) = UnixStream::pair().expect("two ends");
        near.set_nonblocking(true).expect("a socket");
        let mut seen = [0; 8];
        let nothing = peek(&near, &mut seen).expect_err("nothing waits");
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        far.write_all(b"on").expect("room");
        far.write_all(b"e").expect("room");
        assert_eq!(peek(&near, &mut seen).expect("both pieces"), 3);
        assert_eq!((peek(&near, &mut seen[..2]).expect("a part"), &seen[..3]), (2, &b"one"[..]));
        let mut read = [0; 3];
        near.read_exact(&mut read).expect("all of it");
        drop(far);
        assert_eq!((&read, peek(&near, &mut seen).expect("the end")), (b"one", 0));
    }
}
