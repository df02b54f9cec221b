//! Three members of etcd, and three proxies that are nodes of one fleet, each with its own links to the members.
//!
//! Owns: their processes and files, what disturbs them ([`FleetTrouble`]), and waiting until all are members again.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::FleetRoundPlan;
use super::relay::TcpRelay;
use crate::guard::{GuardedProcess, find_program};
use crate::http::wait_listening;
use crate::nectary::certificates::ServerCertificates;
use crate::nectary::{NectaryProxy, ProxyCommand};
use crate::rng::SeededRng;
use crate::scratch::{ScratchFolder, free_address};

/// Nodes, and members of etcd.
pub const COUNT: usize = 3;
/// The name of the site: what clients name as host, at every port.
pub const SITE: &str = "127.0.0.1";
/// The lease of the nodes.
pub const LEASE: Duration = Duration::from_secs(2);
/// The longest time until all nodes are members after a trouble has ended.
const HEAL_MAX: Duration = Duration::from_secs(60);
/// The longest time until a process listens.
const START_MAX: Duration = Duration::from_secs(30);

/// What disturbs a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FleetTrouble {
    /// A node gets SIGKILL, and is started again.
    KillNode(usize),
    /// A node gets SIGSTOP, and then SIGCONT.
    StopNode(usize),
    /// All links of a node to etcd are cut.
    CutNode(usize),
    /// A member of etcd gets SIGKILL, and is started again.
    KillMember(usize),
    /// A member of etcd gets SIGSTOP, and then SIGCONT.
    StopMember(usize),
    /// The links of all nodes to a member of etcd are cut.
    CutMember(usize),
    /// Two members of etcd get SIGSTOP, so there is no majority.
    StopMajority(usize),
}

impl FleetTrouble {
    /// The kinds.
    pub const KINDS: [&'static str; 7] =
        ["kill-node", "stop-node", "cut-node", "kill-member", "stop-member", "cut-member", "stop-majority"];

    /// One of the kinds, about a node or a member that a seed chooses.
    pub fn of_kind(kind: usize, rng: &mut SeededRng) -> FleetTrouble {
        let index = rng.index(COUNT);
        match kind % FleetTrouble::KINDS.len() {
            0 => FleetTrouble::KillNode(index),
            1 => FleetTrouble::StopNode(index),
            2 => FleetTrouble::CutNode(index),
            3 => FleetTrouble::KillMember(index),
            4 => FleetTrouble::StopMember(index),
            5 => FleetTrouble::CutMember(index),
            _ => FleetTrouble::StopMajority(index),
        }
    }

    /// Its kind, as an index into [`KINDS`](FleetTrouble::KINDS).
    pub fn kind(self) -> usize {
        match self {
            FleetTrouble::KillNode(_) => 0,
            FleetTrouble::StopNode(_) => 1,
            FleetTrouble::CutNode(_) => 2,
            FleetTrouble::KillMember(_) => 3,
            FleetTrouble::StopMember(_) => 4,
            FleetTrouble::CutMember(_) => 5,
            FleetTrouble::StopMajority(_) => 6,
        }
    }

    /// The node that cannot answer meanwhile.
    fn silent_node(self) -> Option<usize> {
        match self {
            FleetTrouble::KillNode(node) | FleetTrouble::StopNode(node) => Some(node),
            _ => None,
        }
    }
}

/// Where a node is reached; the clients share it.
#[derive(Debug)]
pub struct NodeAddress {
    /// For clients.
    pub clients: SocketAddr,
    /// For administration.
    pub admin: SocketAddr,
    /// For the other nodes.
    peers: SocketAddr,
    /// Odd while the node cannot answer; grows with each change.
    silence: AtomicU64,
}

impl NodeAddress {
    /// The number of changes so far; the node can answer if it is even.
    pub fn silence(&self) -> u64 {
        self.silence.load(Ordering::SeqCst)
    }
}

/// A fleet and its etcd.
pub struct FleetCluster {
    members: Vec<GuardedProcess>,
    member_commands: Vec<Vec<String>>,
    nodes: Vec<NectaryProxy>,
    node_commands: Vec<ProxyCommand>,
    relays: Vec<Vec<TcpRelay>>,
    scratch: ScratchFolder,
}

/// Why this machine cannot run a fleet; `None` if it can.
pub fn missing() -> Option<String> {
    find_program("etcd")
        .is_none()
        .then(|| "there is no program `etcd`: install the Debian package etcd-server".to_owned())
}

/// Addresses for the nodes of a fleet.
pub fn addresses() -> Result<Vec<NodeAddress>> {
    let node = |_| -> Result<NodeAddress> {
        let (clients, admin, peers) = (free_address()?, free_address()?, free_address()?);
        Ok(NodeAddress { clients, admin, peers, silence: AtomicU64::new(0) })
    };
    (0..COUNT).map(node).collect()
}

impl FleetCluster {
    /// Starts members and nodes in a folder of this run, in front of an origin, and waits until all nodes are members.
    pub fn start(addresses: &[NodeAddress], origin: SocketAddr, extent: &FleetRoundPlan) -> Result<FleetCluster> {
        let (scratch, serve_when_cut) = (ScratchFolder::new("fleet")?, extent.serve_when_cut);
        // One certificate is enough for nodes that have the same address.
        let certificates = (extent.shares || extent.is_fixed)
            .then(|| ServerCertificates::make_for_host(scratch.path(), SITE))
            .transpose()?;
        let (mut clients, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..COUNT {
            clients.push(free_address()?);
            peers.push(free_address()?);
        }
        let initial: Vec<_> = peers.iter().enumerate().map(|(index, peer)| format!("e{index}=http://{peer}")).collect();
        let member_commands: Vec<Vec<String>> = (0..COUNT)
            .map(|index| {
                let (client, peer) = (format!("http://{}", clients[index]), format!("http://{}", peers[index]));
                let folder = scratch.join(&format!("etcd-{index}")).display().to_string();
                let pairs = [
                    ("--name", format!("e{index}")),
                    ("--data-dir", folder),
                    ("--listen-client-urls", client.clone()),
                    ("--advertise-client-urls", client),
                    ("--listen-peer-urls", peer.clone()),
                    ("--initial-advertise-peer-urls", peer),
                    ("--initial-cluster", initial.join(",")),
                    ("--initial-cluster-token", "nectary-e2e".to_owned()),
                ];
                pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
            })
            .collect();
        let mut cluster = FleetCluster {
            members: Vec::new(),
            member_commands,
            nodes: Vec::new(),
            node_commands: Vec::new(),
            relays: Vec::new(),
            scratch,
        };
        let etcd_count = if extent.is_fixed { 0 } else { COUNT };
        for index in 0..etcd_count {
            let member = cluster.member(index)?;
            cluster.members.push(member);
        }
        for client in &clients[..etcd_count] {
            wait_listening(*client, START_MAX).with_context(|| format!("etcd does not listen on {client}"))?;
        }
        for (index, address) in addresses.iter().enumerate() {
            let relays =
                clients[..etcd_count].iter().map(|client| TcpRelay::start(*client)).collect::<Result<Vec<_>>>()?;
            let folder = cluster.scratch.join(&format!("node-{index}"));
            std::fs::create_dir_all(&folder)?;
            let command = ProxyCommand { listen: address.clients, ..ProxyCommand::new(&folder, None)? };
            let urls: Vec<_> = relays.iter().map(|relay| format!("\"http://{}\"", relay.address())).collect();
            let share = certificates.as_ref().map(|files| {
                let ServerCertificates { ca, certificate, key } = files;
                format!(
                    "address = \"{0}\"\nlisten = \"{0}\"\ncert = \"{1}\"\nkey = \"{2}\"\nca = \"{3}\"\n",
                    address.peers,
                    certificate.display(),
                    key.display(),
                    ca.display()
                )
            });
            let share = share.unwrap_or_default();
            let connection = match extent.is_fixed {
                true => {
                    let members: Vec<_> = addresses.iter().map(|node| format!("\"{}\"", node.peers)).collect();
                    format!("members = [{}]\npurge-log = \"{}\"", members.join(", "), folder.join("purges").display())
                }
                false => format!(
                    "node = \"n{index}\"\netcd = [{}]\nserve-when-cut = \"{}s\"",
                    urls.join(", "),
                    serve_when_cut.as_secs()
                ),
            };
            let text = format!(
                "[[listener]]\naddress = \"{}\"\n[server]\nworkers = 1\n[store]\ndevice = \"{}\"\nsize = \"256M\"\n\
                 memory = \"64M\"\n[admin]\nlisten = [\"{}\"]\n[fleet]\n{share}{connection}\n\
                 lease = \"{}s\"\nvalidate-when-cut = \"1000/s\"\npurge-time = \"5s\"\n\
                 [origins.o]\nservers = [\"http://{origin}\"]\n[[site]]\nnames = [\"{SITE}\"]\n[[site.route]]\norigin = \"o\"\n",
                address.clients,
                command.store,
                address.admin,
                LEASE.as_secs(),
            );
            std::fs::write(folder.join("proxy.toml"), text)?;
            cluster.nodes.push(command.start_with_file(&folder.join("proxy.toml"))?);
            cluster.node_commands.push(command);
            cluster.relays.push(relays);
        }
        cluster.wait_members()?;
        Ok(cluster)
    }

    fn member(&self, index: usize) -> Result<GuardedProcess> {
        let mut command = Command::new(find_program("etcd").context("no program etcd")?);
        command.args(&self.member_commands[index]);
        GuardedProcess::spawn("etcd", command, &self.scratch.join(&format!("etcd-{index}.log")), None)
    }

    /// Waits until every node is a member that has applied everything.
    pub fn wait_members(&self) -> Result<()> {
        let deadline = Instant::now() + HEAL_MAX;
        loop {
            let states: Vec<String> = self.nodes.iter().map(state_of).collect();
            if states.iter().all(|state| state == "member") {
                return Ok(());
            }
            if Instant::now() > deadline {
                let logs: String = self.nodes.iter().map(|node| node.process.log_tail()).collect();
                bail!("after {HEAL_MAX:?} the nodes are {states:?}\n{logs}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Disturbs the fleet for a time, ends that, and waits until all nodes are members again.
    pub fn disturb(&mut self, trouble: FleetTrouble, time: Duration, addresses: &[NodeAddress]) -> Result<()> {
        let silent = trouble.silent_node().map(|node| &addresses[node].silence);
        if let Some(silence) = silent {
            silence.fetch_add(1, Ordering::SeqCst);
        }
        self.begin(trouble);
        std::thread::sleep(time);
        self.end(trouble)?;
        if let Some(silence) = silent {
            silence.fetch_add(1, Ordering::SeqCst);
        }
        self.wait_members()
    }

    fn begin(&mut self, trouble: FleetTrouble) {
        match trouble {
            FleetTrouble::KillNode(node) => self.nodes[node].process.kill(),
            FleetTrouble::StopNode(node) => self.nodes[node].process.signal(libc::SIGSTOP),
            FleetTrouble::CutNode(node) => self.relays[node].iter().for_each(|relay| relay.set_cut(true)),
            FleetTrouble::KillMember(member) => self.members[member].kill(),
            FleetTrouble::StopMember(member) => self.members[member].signal(libc::SIGSTOP),
            FleetTrouble::CutMember(member) => self.relays.iter().for_each(|relays| relays[member].set_cut(true)),
            FleetTrouble::StopMajority(but) => {
                let stopped = self.members.iter_mut().enumerate().filter(|(index, _)| *index != but);
                stopped.for_each(|(_, member)| member.signal(libc::SIGSTOP));
            }
        }
    }

    fn end(&mut self, trouble: FleetTrouble) -> Result<()> {
        match trouble {
            FleetTrouble::KillNode(node) => {
                let command = &self.node_commands[node];
                self.nodes[node] = command.start_with_file(&command.folder.join("proxy.toml"))?;
            }
            FleetTrouble::StopNode(node) => self.nodes[node].process.signal(libc::SIGCONT),
            FleetTrouble::CutNode(node) => self.relays[node].iter().for_each(|relay| relay.set_cut(false)),
            FleetTrouble::KillMember(member) => self.members[member] = self.member(member)?,
            FleetTrouble::StopMember(member) => self.members[member].signal(libc::SIGCONT),
            FleetTrouble::CutMember(member) => self.relays.iter().for_each(|relays| relays[member].set_cut(false)),
            FleetTrouble::StopMajority(_) => self.members.iter_mut().for_each(|member| member.signal(libc::SIGCONT)),
        }
        Ok(())
    }

    /// Ends the nodes with SIGTERM; returns what was wrong.
    pub fn stop(mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for (index, node) in self.nodes.iter_mut().enumerate() {
            match node.terminate(START_MAX) {
                Ok(status) if status.success() => {}
                Ok(status) => problems.push(format!("node {index} ended with {status}")),
                Err(error) => problems.push(format!("node {index} does not end: {error:#}")),
            }
        }
        problems
    }
}

/// What a node says that it is.
fn state_of(node: &NectaryProxy) -> String {
    let status = node.control().and_then(|mut control| control.status());
    let state =
        status.ok().and_then(|status| status.pointer("/detail/fleet/state").and_then(Value::as_str).map(str::to_owned));
    state.unwrap_or_else(|| "silent".to_owned())
}
