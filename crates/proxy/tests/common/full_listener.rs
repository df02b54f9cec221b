//! An address that drops the first packets of new connections, as a dead host or a firewall does.

use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio::net::TcpStream;

/// A listener whose queue is full, until it is dropped.
pub struct FullListener {
    _socket: Socket,
    _queue: Vec<TcpStream>,
}

impl FullListener {
    /// Listens and fills the queue.
    pub async fn start(address: SocketAddr) -> FullListener {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket");
        socket.set_reuse_address(true).expect("an option");
        socket.bind(&address.into()).expect("the address");
        socket.listen(0).expect("listening");
        let mut queue = Vec::new();
        while let Ok(stream) = tokio::time::timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
            queue.push(stream.expect("a place in the queue"));
        }
        FullListener { _socket: socket, _queue: queue }
    }
}
