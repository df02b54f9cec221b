//! Control of a device that is open elsewhere in this process.
//!
//! Owns: the commands to the owner of the device other than reads and writes. Promises: the device ends when its users
//! have gone, even if a controller is left.

use nectary_block::format_size;
use tokio::sync::{mpsc, oneshot};

use super::owner::Command;
use crate::device::address::Address;
use crate::donor::PROMISE_BYTES;
use crate::scrub::Findings;

/// Controls a device that is open elsewhere in this process.
#[derive(Clone)]
pub struct Remote {
    spec: String,
    commands: mpsc::WeakSender<Command>,
}

impl Remote {
    pub(super) fn new(spec: String, commands: mpsc::WeakSender<Command>) -> Remote {
        Remote { spec, commands }
    }

    /// The SPEC of the device.
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// As [`RedundantDevice::replace`](super::RedundantDevice::replace).
    pub async fn replace(&self, old: &str, new: &str) -> Result<(), String> {
        let new = Box::new(Address::parse(new)?);
        if !new.url.export.is_empty() {
            return Err(format!("{} names an export: redundancy needs donors of `nectary ram donate`", new.text));
        }
        let (reply, end) = oneshot::channel();
        self.command(Command::Replace { old: old.to_owned(), new, reply }, end).await?
    }

    /// As [`RedundantDevice::drain`](super::RedundantDevice::drain).
    pub async fn drain(&self, old: &str) -> Result<String, String> {
        let (reply, end) = oneshot::channel();
        let (spares, bytes) = self.command(Command::Spares { reply }, end).await?;
        let mut problems = Vec::new();
        for spare in spares {
            let (reply, end) = oneshot::channel();
            let (old, new) = (old.to_owned(), Box::new(spare.clone()));
            match self.command(Command::Replace { old, new, reply }, end).await? {
                Ok(()) => return Ok(spare.text),
                Err(why) => problems.push(why),
            }
        }
        match problems.is_empty() {
            true => {
                let needed = format_size(bytes.next_multiple_of(PROMISE_BYTES));
                let remedy = "attach it with a spare in the SPEC, as h5:7070;spare, or use `nectary ram replace`";
                Err(format!("the SPEC names no spare: it needs {needed} of free memory and other labels; {remedy}"))
            }
            false => Err(problems.join("; ")),
        }
    }

    /// As [`RedundantDevice::scrub`](super::RedundantDevice::scrub).
    pub async fn scrub(&self) -> Result<Findings, String> {
        let (reply, end) = oneshot::channel();
        self.command(Command::Scrub { reply }, end).await
    }

    async fn command<T>(&self, command: Command, end: oneshot::Receiver<T>) -> Result<T, String> {
        let gone = || "the device was given up".to_owned();
        // The sender is not kept, because the owner ends when all senders are gone.
        let commands = self.commands.upgrade().ok_or_else(gone)?;
        commands.send(command).await.map_err(|_| gone())?;
        drop(commands);
        end.await.map_err(|_| gone())
    }
}
