//! Where clients connect: the sockets of the proxy's addresses, and the files of Unix sockets.

pub(crate) mod bound_sockets;
pub(crate) mod unix_socket;
