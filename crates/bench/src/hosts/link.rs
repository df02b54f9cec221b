//! The network of two hosts: a pair of virtual Ethernet devices between two namespaces.
//!
//! Owns: namespaces and devices. This thread is on the server's host. The client-only host is a namespace that an idle
//! process (`cat`) holds open. Promises: namespaces and devices have no names outside, and end with their processes, so
//! nothing is left, however a run ends.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::Error;
use crate::files::network::{begin, ip};
use crate::process::{PipedProcess, ProcessEnvironment};

/// The address of the metadata server's host.
pub(crate) const SERVER_ADDRESS: &str = "10.78.0.1";
/// The address of the client-only host.
pub(crate) const CLIENT_ADDRESS: &str = "10.78.0.2";
/// How long the process that holds the client's namespace may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// The network of two hosts.
pub(super) struct HostLink {
    client: PipedProcess,
}

impl HostLink {
    /// Moves this thread to the server's host, and makes the client-only host and the link between them.
    pub fn new(nectary: &Path, folder: &Path) -> Result<HostLink, Error> {
        begin()?;
        let inside = ProcessEnvironment { group: None, has_own_network: true, processor: None };
        let command = inside.command(nectary, Path::new("cat"));
        let mut client = PipedProcess::start(command, "the client-only host", folder.join("client-host.said"))?;
        // The process (`cat`) echoes the line once it is in its namespace.
        client.tell("inside")?;
        client.line(PATIENCE)?;
        let holder = client.id();
        ip(None, &format!("link add server0 type veth peer name client0 netns {holder}"))?;
        ip(None, &format!("addr add {SERVER_ADDRESS}/24 dev server0"))?;
        ip(None, "link set server0 up")?;
        ip(Some(holder), "link set lo up")?;
        ip(Some(holder), &format!("addr add {CLIENT_ADDRESS}/24 dev client0"))?;
        ip(Some(holder), "link set client0 up")?;
        Ok(HostLink { client })
    }

    /// The command that runs `command` on the client-only host. Its environment is not taken over.
    pub fn on_client(&self, command: &Command) -> Command {
        let mut entered = Command::new("nsenter");
        entered.args(["--target", &self.client.id().to_string(), "--net"]);
        entered.arg(command.get_program()).args(command.get_args());
        entered
    }
}
