//! Bytes that wait in a Unix socket, without taking them.
//!
//! Owns: the call. The standard library can do this with TCP connections alone.

use std::io;
use std::os::fd::AsFd;

use rustix::net::RecvFlags;

/// Copies bytes that wait in a connection into a buffer; they stay where they are. *Returns*: their number; 0 if the peer
/// has closed its side and no byte waits. *Errors*: as of `recv(2)`: [`io::ErrorKind::WouldBlock`] if nothing waits in a
/// connection that does not block. *Cost*: a system call.
pub fn peek(connection: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(connection, buffer, RecvFlags::PEEK)?.0)
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
