//! Control of a device that is open elsewhere in this process.
//!
//! Owns: the commands to the owner of the device other than reads and writes. Promises: the device ends when its users
//! have gone, even if a controller is left.

use nectary_block::format_size;
use tokio::sync::{mpsc, oneshot, watch};

use super::device_owner::OwnerCommand;
use super::moving::{MoveError, MoveErrorKind};
use super::report::DeviceReport;
use crate::device::address::DonorAddress;
use crate::donor::PROMISE_BYTES;
use crate::scrub::ScrubFindings;

/// Controls a device that is open elsewhere in this process.
#[derive(Clone)]
pub struct DeviceController {
    reports: watch::Receiver<DeviceReport>,
    commands: mpsc::WeakSender<OwnerCommand>,
}

impl DeviceController {
    pub(super) fn new(
        reports: watch::Receiver<DeviceReport>,
        commands: mpsc::WeakSender<OwnerCommand>,
    ) -> DeviceController {
        DeviceController { reports, commands }
    }

    /// The SPEC of the device, with its present donors.
    pub fn spec(&self) -> String {
        self.reports.borrow().spec.to_string()
    }

    /// As [`RamDevice::replace`](super::RamDevice::replace).
    pub async fn replace(&self, old: &str, new: &str) -> Result<(), MoveError> {
        let invalid = |why: String| MoveError::new(MoveErrorKind::Invalid, why);
        let new = Box::new(DonorAddress::parse(new).map_err(invalid)?);
        if !new.url.export.is_empty() {
            let why = "names an export: redundancy needs donors of `nectary ram donate`";
            return Err(invalid(format!("{} {why}", new.text)));
        }
        let (reply, end) = oneshot::channel();
        self.command(OwnerCommand::Replace { old: old.to_owned(), new, reply }, end).await?
    }

    /// As [`RamDevice::drain`](super::RamDevice::drain).
    pub async fn drain(&self, old: &str) -> Result<String, MoveError> {
        let (reply, end) = oneshot::channel();
        let (spares, used, bytes) = self.command(OwnerCommand::Spares { old: old.to_owned(), reply }, end).await??;
        let mut problems: Vec<MoveError> = Vec::new();
        for spare in spares {
            let (reply, end) = oneshot::channel();
            let (old, new) = (old.to_owned(), Box::new(spare.clone()));
            match self.command(OwnerCommand::Replace { old, new, reply }, end).await? {
                Ok(()) => return Ok(spare.text),
                // Another spare does not help.
                Err(error) if error.kind == MoveErrorKind::NotNow => return Err(error),
                Err(error) => problems.push(error),
            }
        }
        let Some(kind) = problems.last().map(|error| error.kind) else {
            let needed = format_size(bytes.next_multiple_of(PROMISE_BYTES));
            let what = match used.is_empty() {
                true => "the SPEC names no spare".to_owned(),
                false => format!("no spare is left: {} has a place in the device already", used.join(", ")),
            };
            let needs = format!("a spare needs {needed} of free memory, and labels that no other donor has");
            return Err(MoveError::new(MoveErrorKind::NoSpare, format!("{what}; {needs}")));
        };
        let messages: Vec<String> = problems.into_iter().map(|error| error.message).collect();
        Err(MoveError::new(kind, messages.join("; ")))
    }

    /// As [`RamDevice::scrub`](super::RamDevice::scrub).
    pub async fn scrub(&self) -> Result<ScrubFindings, String> {
        let (reply, end) = oneshot::channel();
        self.command(OwnerCommand::Scrub { reply }, end).await
    }

    async fn command<T>(&self, command: OwnerCommand, end: oneshot::Receiver<T>) -> Result<T, String> {
        let gone = || "the device was given up".to_owned();
        // The sender is not kept, because the owner ends when all senders are gone.
        let commands = self.commands.upgrade().ok_or_else(gone)?;
        commands.send(command).await.map_err(|_| gone())?;
        drop(commands);
        end.await.map_err(|_| gone())
    }
}
