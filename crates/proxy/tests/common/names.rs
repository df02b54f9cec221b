//! Names of a test: a file of hosts and a server of names, both only for its proxy.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use domain::base::iana::Rcode;
use domain::base::name::Name;
use domain::base::{Message, MessageBuilder, Rtype, Serial, ToName, Ttl};
use domain::rdata::{A, Aaaa, Cname, Soa, Srv};
use nectary_proxy::NameFiles;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;

/// Files about names in a folder that is removed when the value is dropped.
pub struct TestNameFiles {
    folder: PathBuf,
    /// The files for a proxy's options.
    pub names: NameFiles,
}

impl TestNameFiles {
    /// Makes the files with these lines of hosts and this server of names.
    pub fn new(hosts: &str, server: Option<SocketAddr>) -> TestNameFiles {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("nectary-names-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let names = NameFiles { hosts: folder.join("hosts"), resolv_conf: folder.join("resolv.conf") };
        let files = TestNameFiles { folder, names };
        files.set_hosts(hosts);
        files.set_server(server.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 1))));
        files
    }

    /// Replaces the lines of hosts.
    pub fn set_hosts(&self, hosts: &str) {
        std::fs::write(&self.names.hosts, hosts).expect("written");
    }

    /// Replaces the server of names.
    pub fn set_server(&self, server: SocketAddr) {
        std::fs::write(&self.names.resolv_conf, format!("nameserver {server}\n")).expect("written");
    }
}

impl Drop for TestNameFiles {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// What a server of names answers about a name.
#[derive(Clone, Debug)]
pub enum NameResponse {
    /// These addresses, with a lifetime in seconds.
    Addresses(Vec<IpAddr>, u32),
    /// Like `AddressMarks`, but by UDP only that the answer is too long.
    TooLong(Vec<IpAddr>),
    /// These records of a service (priority, weight, port, target), with a lifetime in seconds.
    Services(Vec<(u16, u16, u16, String)>, u32),
    /// Like `Services`, but by UDP only that the answer is too long.
    ManyServices(Vec<(u16, u16, u16, String)>),
    /// The name is another name for this one, which is another name for the first.
    Alias(String),
    /// The name does not exist, which counts for this number of seconds.
    NoName(u32),
    /// The server cannot say.
    Failure,
    /// Nothing.
    Silence,
}

type Zone = Arc<Mutex<(HashMap<String, NameResponse>, Vec<String>)>>;

/// A server of names, which ends when it is dropped. It is silent about names that it was told nothing about.
pub struct NameServer {
    pub address: SocketAddr,
    zone: Zone,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl NameServer {
    /// Starts a server on a free port.
    pub async fn start() -> NameServer {
        let zone = Zone::default();
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = tcp.local_addr().expect("an address");
        let udp = UdpSocket::bind(address).await.expect("the port is free for UDP, too");
        let tasks = [tokio::spawn(serve_udp(udp, zone.clone())), tokio::spawn(serve_tcp(tcp, zone.clone()))];
        NameServer { address, zone, tasks }
    }

    /// Sets what the server says about a name.
    pub fn on(&self, name: &str, says: NameResponse) -> &NameServer {
        self.zone.lock().expect("the zone").0.insert(name.into(), says);
        self
    }

    /// The number of questions for addresses of IPv4, or for the records of a service, that have arrived for a name.
    pub fn count(&self, name: &str) -> usize {
        self.zone.lock().expect("the zone").1.iter().filter(|asked| *asked == name).count()
    }
}

async fn serve_udp(socket: UdpSocket, zone: Zone) {
    let mut room = [0; 2048];
    while let Ok((count, peer)) = socket.recv_from(&mut room).await {
        if let Some(answer) = answer(&zone, &room[..count], true) {
            _ = socket.send_to(&answer, peer).await;
        }
    }
}

async fn serve_tcp(listener: TcpListener, zone: Zone) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let zone = zone.clone();
        tokio::spawn(async move {
            while let Ok(count) = stream.read_u16().await {
                let mut question = vec![0; count.into()];
                if stream.read_exact(&mut question).await.is_err() {
                    return;
                }
                if let Some(answer) = answer(&zone, &question, false) {
                    _ = stream.write_u16(answer.len() as u16).await;
                    _ = stream.write_all(&answer).await;
                }
            }
        });
    }
}

fn answer(zone: &Zone, question: &[u8], is_udp: bool) -> Option<Vec<u8>> {
    let query = Message::from_octets(question).ok()?;
    let asked = query.sole_question().ok()?;
    let (name, kind) = (asked.qname().to_string().to_lowercase(), asked.qtype());
    let says = {
        let mut zone = zone.lock().expect("the zone");
        if matches!(kind, Rtype::A | Rtype::SRV) {
            zone.1.push(name.clone());
        }
        zone.0.get(&name).cloned().unwrap_or(NameResponse::Silence)
    };
    let rcode = match says {
        NameResponse::NoName(_) => Rcode::NXDOMAIN,
        NameResponse::Failure => Rcode::SERVFAIL,
        NameResponse::Silence => return None,
        _ => Rcode::NOERROR,
    };
    let mut message = MessageBuilder::new_vec().start_answer(&query, rcode).expect("room");
    match says {
        NameResponse::TooLong(_) | NameResponse::ManyServices(_) if is_udp => message.header_mut().set_tc(true),
        NameResponse::Addresses(found, seconds) => push(&mut message, asked.qname(), kind, &found, seconds),
        NameResponse::TooLong(found) => push(&mut message, asked.qname(), kind, &found, 60),
        NameResponse::Services(found, seconds) if kind == Rtype::SRV => {
            push_services(&mut message, asked.qname(), &found, seconds)
        }
        NameResponse::ManyServices(found) if kind == Rtype::SRV => {
            push_services(&mut message, asked.qname(), &found, 60)
        }
        NameResponse::Services(..) | NameResponse::ManyServices(_) => {}
        NameResponse::Alias(target) => {
            let target: Name<Vec<u8>> = target.parse().expect("a name");
            message.push((asked.qname(), 60, Cname::new(target.clone()))).expect("room");
            message.push((target, 60, Cname::new(asked.qname().to_name::<Vec<u8>>()))).expect("room");
        }
        NameResponse::NoName(seconds) => {
            let mut message = message.authority();
            let (root, ttl) = (Name::root_vec(), Ttl::from_secs(seconds));
            let soa = Soa::new(root.clone(), root.clone(), Serial(1), ttl, ttl, ttl, ttl);
            message.push((root, ttl, soa)).expect("room");
            return Some(message.finish());
        }
        NameResponse::Failure | NameResponse::Silence => {}
    }
    Some(message.finish())
}

fn push_services(
    message: &mut domain::base::message_builder::AnswerBuilder<Vec<u8>>,
    name: &impl domain::base::ToName,
    found: &[(u16, u16, u16, String)],
    seconds: u32,
) {
    for (priority, weight, port, target) in found {
        let target: Name<Vec<u8>> = target.parse().expect("a name");
        message.push((name, seconds, Srv::new(*priority, *weight, *port, target))).expect("room");
    }
}

fn push(
    message: &mut domain::base::message_builder::AnswerBuilder<Vec<u8>>,
    name: &impl domain::base::ToName,
    kind: Rtype,
    found: &[IpAddr],
    seconds: u32,
) {
    for address in found {
        match (address, kind) {
            (IpAddr::V4(address), Rtype::A) => {
                message.push((name, seconds, A::new(*address))).expect("room");
            }
            (IpAddr::V6(address), Rtype::AAAA) => {
                message.push((name, seconds, Aaaa::new(*address))).expect("room");
            }
            _ => {}
        }
    }
}
