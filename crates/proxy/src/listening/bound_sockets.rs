//! The sockets that a proxy listens on.
//!
//! Owns: binding each address once or taking the inherited socket that has it, and a listener of each for every worker.
//! The workers share TCP addresses with `SO_REUSEPORT`, and inherited and Unix sockets by descriptors of the same socket.
//! Promises: no address is shared with another process by mistake; every inherited socket is used. Leaves to others: the
//! file of a Unix socket (`unix_socket`), and accepting (`accept`).

use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nectary_host::inherited::InheritedListeners;
use socket2::{Domain, Protocol, Socket, Type};

use crate::accept::WorkerListener;
use crate::connections::{EntranceRole, ProxyEntrance};
use crate::error::Error;
use crate::listening::unix_socket::{self, SocketFault, SocketFile, SocketUsers, UnixSocket};
use crate::options::ProxyOptions;

/// The maximum number of connections that wait to be accepted, per listener.
const BACKLOG: i32 = 1024;

/// The addresses that a proxy listens on, with the ports that were picked.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListenAddresses {
    pub clients: Vec<SocketAddr>,
    pub redirect: Vec<SocketAddr>,
    pub admin: Vec<SocketAddr>,
    pub peers: Vec<SocketAddr>,
    pub unix: Vec<UnixSocket>,
}

impl ListenAddresses {
    /// Those of TCP that are for these users.
    fn of(&mut self, door: EntranceRole) -> &mut Vec<SocketAddr> {
        match door {
            EntranceRole::Clients | EntranceRole::Tls => &mut self.clients,
            EntranceRole::Redirect => &mut self.redirect,
            EntranceRole::Admin => &mut self.admin,
            EntranceRole::Fleet => &mut self.peers,
        }
    }
}

/// The sockets of a proxy. Unix sockets and inherited ones listen; others do not yet.
#[derive(Debug)]
pub(crate) struct BoundSockets {
    pub addresses: ListenAddresses,
    /// The TCP sockets of each worker, and what the address of each is for.
    tcp: Vec<Vec<(Socket, ProxyEntrance)>>,
    unix: Vec<UnixEntrance>,
}

/// A Unix socket that listens.
#[derive(Debug)]
struct UnixEntrance {
    /// Its file, unless it was inherited.
    file: Option<Arc<SocketFile>>,
    listener: UnixListener,
    path: PathBuf,
    entrance: ProxyEntrance,
}

/// Checks that no address is given twice.
pub(crate) fn check_addresses(options: &ProxyOptions) -> Result<(), Error> {
    let has_socket = options.unix.iter().any(|socket| socket.users == SocketUsers::Clients);
    if options.listen.is_empty() && !has_socket {
        return Err(Error::NoAddress);
    }
    let mut named = HashSet::new();
    let peers = options.peers.iter().map(|peers| &peers.listen);
    let all = options.listen.iter().chain(&options.redirect).chain(&options.admin.listen).chain(peers);
    let mut fixed = all.filter(|address| address.port() != 0);
    if let Some(&address) = fixed.find(|address| !named.insert(**address)) {
        return Err(Error::AddressTwice { address });
    }
    let mut paths = HashSet::new();
    match options.unix.iter().find(|socket| !paths.insert(&socket.path)) {
        Some(socket) => Err(Error::UnixSocket { path: socket.path.clone(), fault: SocketFault::GivenTwice }),
        None => Ok(()),
    }
}

impl BoundSockets {
    /// Binds the addresses of the options. `has_tls` says whether clients use TLS.
    ///
    /// *Errors*: an address that cannot be used; an inherited socket that no address is of. No file of a socket remains.
    pub fn bind(options: &ProxyOptions, has_tls: bool, inherited: InheritedListeners) -> Result<BoundSockets, Error> {
        let InheritedListeners { tcp, unix } = inherited;
        let workers = (0..options.worker_count()).map(|_| Vec::new()).collect();
        let mut bound = BoundSockets { addresses: ListenAddresses::default(), tcp: workers, unix: Vec::new() };
        bound.bind_tcp(options, has_tls, tcp)?;
        bound.bind_unix(options, has_tls, unix)?;
        Ok(bound)
    }

    fn bind_tcp(&mut self, options: &ProxyOptions, has_tls: bool, inherited: Vec<TcpListener>) -> Result<(), Error> {
        let clients = options.listen.iter().map(|address| (*address, door_of_clients(has_tls)));
        let redirect = options.redirect.iter().map(|address| (*address, EntranceRole::Redirect));
        let admin = options.admin.listen.iter().map(|address| (*address, EntranceRole::Admin));
        let peers = options.peers.iter().map(|peers| (peers.listen, EntranceRole::Fleet));
        let mut inherited = inherited.into_iter().map(Some).collect::<Vec<_>>();
        for (address, door) in clients.chain(redirect).chain(admin).chain(peers) {
            let entrance = ProxyEntrance::new(options, address, door);
            let found = inherited.iter_mut().find(|socket| {
                let own = socket.as_ref().and_then(|socket| socket.local_addr().ok());
                own.is_some_and(|own| own == address)
            });
            let address = match found.and_then(Option::take) {
                Some(socket) => self.share(&socket, address, &entrance)?,
                None => self.open(address, &entrance)?,
            };
            self.addresses.of(door).push(address);
        }
        match inherited.into_iter().flatten().next() {
            Some(socket) => Err(Error::Inherited { address: socket.local_addr().ok() }),
            None => Ok(()),
        }
    }

    /// Gives each worker an inherited socket. *Returns*: its address.
    fn share(
        &mut self,
        socket: &TcpListener,
        address: SocketAddr,
        entrance: &ProxyEntrance,
    ) -> Result<SocketAddr, Error> {
        let failed = |error| Error::Listen { address, error };
        socket.set_nonblocking(true).map_err(failed)?;
        for of_worker in &mut self.tcp {
            of_worker.push((socket.try_clone().map_err(failed)?.into(), entrance.clone()));
        }
        Ok(address)
    }

    /// Gives each worker a new socket. *Returns*: their address, with the port that was picked.
    fn open(&mut self, mut address: SocketAddr, entrance: &ProxyEntrance) -> Result<SocketAddr, Error> {
        // The workers share each address with `SO_REUSEPORT`. A second proxy could share the address unnoticed, so the
        // address is first bound exclusively.
        bind(address, false).map_err(|error| Error::Listen { address, error })?;
        for of_worker in &mut self.tcp {
            let socket = bind(address, true).map_err(|error| Error::Listen { address, error })?;
            // With port 0, the other workers use the port that the first worker's socket got.
            address = local_address(&socket).map_err(|error| Error::Listen { address, error })?;
            of_worker.push((socket, entrance.clone()));
        }
        Ok(address)
    }

    fn bind_unix(&mut self, options: &ProxyOptions, has_tls: bool, inherited: Vec<UnixListener>) -> Result<(), Error> {
        let mut inherited = inherited.into_iter().map(Some).collect::<Vec<_>>();
        for socket in &options.unix {
            let failed = |fault| Error::UnixSocket { path: socket.path.clone(), fault };
            let door = match socket.users {
                SocketUsers::Clients => door_of_clients(has_tls),
                SocketUsers::Redirect if has_tls => EntranceRole::Redirect,
                SocketUsers::Redirect => return Err(failed(SocketFault::RedirectWithoutTls)),
                SocketUsers::Admin => EntranceRole::Admin,
            };
            let is_it = |found: &&mut Option<UnixListener>| found.as_ref().is_some_and(|it| has_path(it, &socket.path));
            let (file, listener) = match inherited.iter_mut().find(is_it).and_then(Option::take) {
                Some(listener) => {
                    listener.set_nonblocking(true).map_err(|error| failed(SocketFault::Io(error)))?;
                    (None, listener)
                }
                None => {
                    let (listener, file) = unix_socket::listen(&socket.path, socket.mode, BACKLOG).map_err(failed)?;
                    (Some(Arc::new(file)), listener)
                }
            };
            let entrance = ProxyEntrance::of_socket(socket, door);
            self.unix.push(UnixEntrance { file, listener, path: socket.path.clone(), entrance });
            self.addresses.unix.push(socket.clone());
        }
        match inherited.into_iter().flatten().next() {
            Some(socket) => Err(Error::InheritedUnix { path: path_of(&socket) }),
            None => Ok(()),
        }
    }

    /// Listens on every socket. *Returns*: the listeners of each worker. *Errors*: [`Error::Listen`],
    /// [`Error::UnixSocket`].
    pub fn listen(self) -> Result<Vec<Vec<(WorkerListener, ProxyEntrance)>>, Error> {
        let mut all = Vec::new();
        for of_worker in self.tcp {
            let mut listeners = of_worker.into_iter().map(listen).collect::<Result<Vec<_>, _>>()?;
            for socket in &self.unix {
                let failed = |error| Error::UnixSocket { path: socket.path.clone(), fault: SocketFault::Io(error) };
                let listener = socket.listener.try_clone().map_err(failed)?;
                listeners.push((WorkerListener::Unix { file: socket.file.clone(), listener }, socket.entrance.clone()));
            }
            all.push(listeners);
        }
        Ok(all)
    }
}

/// The users of an address for clients.
fn door_of_clients(has_tls: bool) -> EntranceRole {
    if has_tls { EntranceRole::Tls } else { EntranceRole::Clients }
}

/// The path of a Unix socket, if it has one.
fn path_of(listener: &UnixListener) -> Option<PathBuf> {
    listener.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned))
}

fn has_path(listener: &UnixListener, path: &Path) -> bool {
    path_of(listener).is_some_and(|own| own == path)
}

fn listen((socket, entrance): (Socket, ProxyEntrance)) -> Result<(WorkerListener, ProxyEntrance), Error> {
    let address = local_address(&socket).unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    socket.listen(BACKLOG).map_err(|error| Error::Listen { address, error })?;
    Ok((WorkerListener::Tcp(socket.into()), entrance))
}

fn local_address(socket: &Socket) -> std::io::Result<SocketAddr> {
    let address = socket.local_addr()?.as_socket();
    address.ok_or_else(|| std::io::Error::other("it is no address of IPv4 or IPv6"))
}

/// Binds a socket to an address. If `is_shared`, other sockets can share the address.
fn bind(address: SocketAddr, is_shared: bool) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
