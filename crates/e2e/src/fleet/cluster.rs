//! Three members of etcd, and three proxies that are nodes of one fleet, each with its own links to the members.
//!
//! Owns: their processes and files, what disturbs them ([`Trouble`]), and waiting until all are members again.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Extent;
use super::relay::Relay;
use crate::guard::{Process, find_program};
use crate::http::wait_listening;
use crate::nectary::certificates::Certificates;
use crate::nectary::{Nectary, ProxyCommand};
use crate::rng::Rng;
use crate::scratch::{Scratch, free_address};

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
pub enum Trouble {
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

impl Trouble {
    /// The kinds.
    pub const KINDS: [&'static str; 7] =
        ["kill-node", "stop-node", "cut-node", "kill-member", "stop-member", "cut-member", "stop-majority"];

    /// One of the kinds, about a node or a member that a seed chooses.
    pub fn of_kind(kind: usize, rng: &mut Rng) -> Trouble {
        let index = rng.index(COUNT);
        match kind % Trouble::KINDS.len() {
            0 => Trouble::KillNode(index),
            1 => Trouble::StopNode(index),
            2 => Trouble::CutNode(index),
            3 => Trouble::KillMember(index),
            4 => Trouble::StopMember(index),
            5 => Trouble::CutMember(index),
            _ => Trouble::StopMajority(index),
        }
    }

    /// Its kind, as an index into [`KINDS`](Trouble::KINDS).
    pub fn kind(self) -> usize {
        match self {
            Trouble::KillNode(_) => 0,
            Trouble::StopNode(_) => 1,
            Trouble::CutNode(_) => 2,
            Trouble::KillMember(_) => 3,
            Trouble::StopMember(_) => 4,
            Trouble::CutMember(_) => 5,
            Trouble::StopMajority(_) => 6,
        }
    }

    /// The node that cannot answer meanwhile.
    fn silent_node(self) -> Option<usize> {
        match self {
            Trouble::KillNode(node) | Trouble::StopNode(node) => Some(node),
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
pub struct Cluster {
    members: Vec<Process>,
    member_commands: Vec<Vec<String>>,
    nodes: Vec<Nectary>,
    node_commands: Vec<ProxyCommand>,
    relays: Vec<Vec<Relay>>,
    scratch: Scratch,
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

impl Cluster {
    /// Starts members and nodes in a folder of this run, in front of an origin, and waits until all nodes are members.
    pub fn start(addresses: &[NodeAddress], origin: SocketAddr, extent: &Extent) -> Result<Cluster> {
        let (scratch, serve_when_cut) = (Scratch::new("fleet")?, extent.serve_when_cut);
        // One certificate is enough for nodes that have the same address.
        let certificates = extent.shares.then(|| Certificates::make_for_host(scratch.path(), SITE)).transpose()?;
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
        let mut cluster = Cluster {
            members: Vec::new(),
            member_commands,
            nodes: Vec::new(),
            node_commands: Vec::new(),
            relays: Vec::new(),
            scratch,
        };
        for index in 0..COUNT {
            let member = cluster.member(index)?;
            cluster.members.push(member);
        }
        for client in &clients {
            wait_listening(*client, START_MAX).with_context(|| format!("etcd does not listen on {client}"))?;
        }
        for (index, address) in addresses.iter().enumerate() {
            let relays = clients.iter().map(|client| Relay::start(*client)).collect::<Result<Vec<_>>>()?;
            let folder = cluster.scratch.join(&format!("node-{index}"));
            std::fs::create_dir_all(&folder)?;
            let command = ProxyCommand { listen: address.clients, ..ProxyCommand::new(&folder, None)? };
            let urls: Vec<_> = relays.iter().map(|relay| format!("\"http://{}\"", relay.address())).collect();
            let share = certificates.as_ref().map(|files| {
                let Certificates { ca, certificate, key } = files;
                format!(
                    "address = \"{0}\"\nlisten = \"{0}\"\ncert = \"{1}\"\nkey = \"{2}\"\nca = \"{3}\"\n",
                    address.peers,
                    certificate.display(),
                    key.display(),
                    ca.display()
                )
            });
            let share = share.unwrap_or_default();
            let text = format!(
                "[[listener]]\naddress = \"{}\"\n[server]\nworkers = 1\n[store]\ndevice = \"{}\"\nsize = \"256M\"\n\
                 memory = \"64M\"\n[admin]\nlisten = [\"{}\"]\n[fleet]\nnode = \"n{index}\"\n{share}etcd = [{}]\n\
                 lease = \"{}s\"\nserve-when-cut = \"{}s\"\nvalidate-when-cut = \"1000/s\"\npurge-time = \"5s\"\n\
                 [origins.o]\nservers = [\"http://{origin}\"]\n[[site]]\nnames = [\"{SITE}\"]\n[[site.route]]\norigin = \"o\"\n",
                address.clients,
                command.store,
                address.admin,
                urls.join(", "),
                LEASE.as_secs(),
                serve_when_cut.as_secs(),
            );
            std::fs::write(folder.join("proxy.toml"), text)?;
            cluster.nodes.push(command.start_with_file(&folder.join("proxy.toml"))?);
            cluster.node_commands.push(command);
            cluster.relays.push(relays);
        }
        cluster.wait_members()?;
        Ok(cluster)
    }

    fn member(&self, index: usize) -> Result<Process> {
        let mut command = Command::new(find_program("etcd").context("no program etcd")?);
        command.args(&self.member_commands[index]);
        Process::spawn("etcd", command, &self.scratch.join(&format!("etcd-{index}.log")), None)
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
    pub fn disturb(&mut self, trouble: Trouble, time: Duration, addresses: &[NodeAddress]) -> Result<()> {
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

    fn begin(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::KillNode(node) => self.nodes[node].process.kill(),
            Trouble::StopNode(node) => self.nodes[node].process.signal(libc::SIGSTOP),
            Trouble::CutNode(node) => self.relays[node].iter().for_each(|relay| relay.set_cut(true)),
            Trouble::KillMember(member) => self.members[member].kill(),
            Trouble::StopMember(member) => self.members[member].signal(libc::SIGSTOP),
            Trouble::CutMember(member) => self.relays.iter().for_each(|relays| relays[member].set_cut(true)),
            Trouble::StopMajority(but) => {
                let stopped = self.members.iter_mut().enumerate().filter(|(index, _)| *index != but);
                stopped.for_each(|(_, member)| member.signal(libc::SIGSTOP));
            }
        }
    }

    fn end(&mut self, trouble: Trouble) -> Result<()> {
        match trouble {
            Trouble::KillNode(node) => {
                let command = &self.node_commands[node];
                self.nodes[node] = command.start_with_file(&command.folder.join("proxy.toml"))?;
            }
            Trouble::StopNode(node) => self.nodes[node].process.signal(libc::SIGCONT),
            Trouble::CutNode(node) => self.relays[node].iter().for_each(|relay| relay.set_cut(false)),
            Trouble::KillMember(member) => self.members[member] = self.member(member)?,
            Trouble::StopMember(member) => self.members[member].signal(libc::SIGCONT),
            Trouble::CutMember(member) => self.relays.iter().for_each(|relays| relays[member].set_cut(false)),
            Trouble::StopMajority(_) => self.members.iter_mut().for_each(|member| member.signal(libc::SIGCONT)),
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
fn state_of(node: &Nectary) -> String {
    let status = node.control().and_then(|mut control| control.status());
    let state =
        status.ok().and_then(|status| status.pointer("/detail/fleet/state").and_then(Value::as_str).map(str::to_owned));
    state.unwrap_or_else(|| "silent".to_owned())
}
