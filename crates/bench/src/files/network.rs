//! A network inside this machine: the client's link, a switch, and a link for each donor, each with a chosen rate.
//!
//! Owns: namespaces, links and their rates. This process is in the client's namespace. The switch is a bridge in its
//! own namespace, which an idle process (`cat`) holds open. Each donor's process has its own namespace. Both ends of
//! each link send through a token bucket (TBF) with the link's rate. The bucket holds only two packets, so each packet
//! takes the time that it needs at this rate. Links are full duplex. Promises: namespaces have no names and end with
//! their processes, so nothing is left, however a run ends.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::process::{PipedProcess, ProcessEnvironment, run};
use crate::{Error, sys};

/// The port of donors.
pub(super) const PORT: u16 = 7070;
/// The size of the bucket: two packets. *Units*: bytes.
const BURST_BYTES: u32 = 3200;
/// How much data may wait at the sending end of a link. *Units*: bytes.
const QUEUE_BYTES: u32 = 1 << 20;
/// How long the process that holds the switch may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// The number of the next network. Each network has its own number, because the links of an earlier one disappear only
/// some time after it is dropped.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The rate of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LinkRate {
    /// As fast as the machine.
    Unshaped,
    /// Megabits a second.
    Shaped(u32),
}

impl LinkRate {
    /// Its name in reports and figures.
    pub fn name(self) -> String {
        match self {
            LinkRate::Unshaped => "unshaped".to_owned(),
            LinkRate::Shaped(megabits) => format!("{megabits}mbit"),
        }
    }

    /// The arguments of `tc` that limit a device to this rate; `None` for an unshaped link.
    fn shape(self, device: &str) -> Option<String> {
        let LinkRate::Shaped(megabits) = self else { return None };
        Some(format!("qdisc add dev {device} root tbf rate {megabits}mbit burst {BURST_BYTES} limit {QUEUE_BYTES}"))
    }
}

/// Moves this thread, and the processes that it starts later, into a new network namespace: the client's. Call it once,
/// before any other function here.
pub(crate) fn begin() -> Result<(), Error> {
    sys::own_network()?;
    ip(None, "link set lo up")
}

/// A network of a client and donors; dropping it removes the client's link.
pub(super) struct DonorNetwork {
    link: LinkRate,
    /// The process that holds the switch's namespace.
    switch: PipedProcess,
    uplink: String,
    number: u32,
    donors: u32,
}

impl DonorNetwork {
    /// Makes a switch, and the link of this process to it.
    pub fn new(nectary: &Path, folder: &Path, link: LinkRate) -> Result<DonorNetwork, Error> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % 200;
        let inside = ProcessEnvironment { group: None, has_own_network: true, processor: None };
        let command = inside.command(nectary, Path::new("cat"));
        let mut switch = PipedProcess::start(command, "the switch", folder.join(format!("switch-{number}.said")))?;
        // The process (`cat`) echoes the line once it is in its namespace.
        switch.tell("inside")?;
        switch.line(PATIENCE)?;
        let uplink = format!("client{number}");
        let network = DonorNetwork { link, switch, uplink, number, donors: 0 };
        let (holder, uplink) = (network.switch.id(), &network.uplink);
        ip(None, &format!("link add {uplink} type veth peer name port0 netns {holder}"))?;
        ip(None, &format!("addr add 10.77.{number}.1/24 dev {uplink}"))?;
        ip(None, &format!("link set {uplink} up"))?;
        ip(Some(holder), "link add name switch type bridge")?;
        ip(Some(holder), "link set switch up")?;
        ip(Some(holder), "link set port0 master switch up")?;
        shape(None, link, uplink)?;
        shape(Some(holder), link, "port0")?;
        Ok(network)
    }

    /// Links a donor's process, which has its own network namespace, to the switch. Returns the donor's address for the
    /// client.
    pub fn join(&mut self, donor: u32) -> Result<String, Error> {
        self.donors += 1;
        let (holder, number) = (self.switch.id(), self.donors);
        let address = format!("10.77.{}.{}", self.number, number + 1);
        ip(Some(holder), &format!("link add name port{number} type veth peer name eth0 netns {donor}"))?;
        ip(Some(holder), &format!("link set port{number} master switch up"))?;
        ip(Some(donor), &format!("addr add {address}/24 dev eth0"))?;
        ip(Some(donor), "link set eth0 up")?;
        shape(Some(holder), self.link, &format!("port{number}"))?;
        shape(Some(donor), self.link, "eth0")?;
        Ok(format!("{address}:{PORT}"))
    }
}

impl Drop for DonorNetwork {
    fn drop(&mut self) {
        let _ = ip(None, &format!("link del {}", self.uplink));
    }
}

/// Runs `ip` in this process's network namespace, or in that of `process`.
pub(crate) fn ip(process: Option<u32>, arguments: &str) -> Result<(), Error> {
    run(tool("ip", process).args(arguments.split(' '))).map(drop)
}

fn shape(process: Option<u32>, link: LinkRate, device: &str) -> Result<(), Error> {
    let Some(arguments) = link.shape(device) else { return Ok(()) };
    run(tool("tc", process).args(arguments.split(' '))).map(drop)
}

fn tool(name: &str, process: Option<u32>) -> Command {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = match process {
        None => Command::new(name),
        Some(process) => {
            let mut command = Command::new("nsenter");
            command.args(["--target", &process.to_string(), "--net", name]);
            command
        }
    };
    command.env("PATH", path);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only links with a rate are shaped.
    #[test]
    fn shaped_links_use_token_bucket() {
        let shape = LinkRate::Shaped(10).shape("eth0").unwrap();
        assert_eq!(shape, "qdisc add dev eth0 root tbf rate 10mbit burst 3200 limit 1048576");
        assert!(LinkRate::Unshaped.shape("eth0").is_none());
        assert_eq!(
            (LinkRate::Shaped(155).name(), LinkRate::Unshaped.name()),
            ("155mbit".to_owned(), "unshaped".to_owned())
        );
    }
}
