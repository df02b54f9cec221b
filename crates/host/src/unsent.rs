//! What a connection still has to deliver.
//!
//! Owns: asking the kernel for the bytes that were written to a connection and that its peer has not acknowledged. A
//! server that closes a connection loses them if the peer sends anything afterwards: the kernel then resets the
//! connection.

use std::os::fd::{AsFd, AsRawFd};

/// The bytes that were written to a TCP connection and that its peer has not acknowledged; `None` if that is not known.
/// *Cost*: a system call.
#[allow(unsafe_code)]
pub fn unsent_bytes(connection: impl AsFd) -> Option<u64> {
    let mut count: libc::c_int = 0;
    // SAFETY: the call writes one `int`, and the descriptor is borrowed meanwhile.
    let result = unsafe { libc::ioctl(connection.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    u64::try_from(count).ok().filter(|_| result == 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn unread_bytes_are_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (mut server, _) = listener.accept().expect("a connection");
        assert_eq!(unsent_bytes(&server), Some(0));
        server.set_nonblocking(true).expect("a socket");
        let mut written = 0;
        while let Ok(count) = server.write(&[7; 65536]) {
            written += count;
        }
        assert!(unsent_bytes(&server).is_some_and(|bytes| bytes > 0 && bytes <= written as u64));
        client.read_exact(&mut vec![0; written]).expect("all of it");
        while unsent_bytes(&server) != Some(0) {
            std::thread::yield_now();
        }
        assert_eq!(unsent_bytes(std::fs::File::open("/dev/null").expect("a file")), None);
    }
}
