//! Exit codes, and the mapping of failures to them.
//!
//! Owns: the table that `--help` and `docs/cli.md` show. Promises: a script can tell from the code whether to retry, to
//! create or to alert.

use std::process::ExitCode;

use nectary_attach as attach;
use nectary_bench as bench;
use nectary_block as block;
use nectary_host as host;
use nectary_nbd as nbd;
use nectary_proxy as proxy;
use nectary_ram::donor::DonorError;
use nectary_store as store;
use nectary_trace as trace;

use crate::machine;

/// Success; for a status: the part is healthy.
pub const GOOD: u8 = 0;
/// A failure; for a status: the part is broken.
pub const FAILED: u8 = 1;
/// The command line is wrong, or a trace that it names is malformed.
pub const USAGE: u8 = 2;
/// A store has damaged records, or a part is degraded.
pub const DEGRADED: u8 = 3;
/// The key, store, device, part or trace does not exist.
pub const NOT_FOUND: u8 = 4;
/// Another process has opened the store or device.
pub const BUSY: u8 = 5;

/// The table of exit codes, as help texts show it.
pub const HELP: &str = "\
Exit codes:
  0  done; every part is healthy           3  a part is degraded
  1  failed; a part is broken              4  no such key, store, device, part or trace
  2  the command line or a trace is wrong  5  another process has it open";

/// A failure of a command: the error, its exit code, and the remedy.
#[derive(Debug)]
pub struct CommandFailure {
    code: u8,
    error: anyhow::Error,
    remedy: Option<String>,
}

impl CommandFailure {
    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// What failed, and why.
    pub fn message(&self) -> String {
        format!("{:#}", self.error)
    }

    /// The same failure with another remedy.
    pub fn with_remedy(self, remedy: impl Into<String>) -> CommandFailure {
        CommandFailure { remedy: Some(remedy.into()), ..self }
    }

    /// Makes a failure with an exit code and a remedy.
    pub fn new(code: u8, message: impl Into<String>, remedy: impl Into<String>) -> CommandFailure {
        CommandFailure { code, error: anyhow::Error::msg(message.into()), remedy: Some(remedy.into()) }
    }

    /// Makes a failure with an exit code and without a remedy.
    pub fn bare(code: u8, message: impl Into<String>) -> CommandFailure {
        CommandFailure { code, error: anyhow::Error::msg(message.into()), remedy: None }
    }

    /// Adds to the failure what the command was doing.
    pub fn context(self, what: String) -> CommandFailure {
        CommandFailure { error: self.error.context(what), ..self }
    }

    /// Prints the failure to the standard error stream and returns its exit code.
    pub fn report(&self) -> ExitCode {
        // A closed standard error stream must not cause a panic.
        let _ = std::io::Write::write_all(&mut std::io::stderr().lock(), self.text().as_bytes());
        ExitCode::from(self.code)
    }

    fn text(&self) -> String {
        let mut text = format!("nectary: error: {}\n", causes(&self.error));
        if let Some(remedy) = &self.remedy {
            text += &format!("  what to do: {remedy}\n");
        }
        text
    }
}

impl<E: Into<anyhow::Error>> From<E> for CommandFailure {
    fn from(error: E) -> CommandFailure {
        let error = error.into();
        let (code, remedy) = error.chain().find_map(classify).unwrap_or((FAILED, None));
        CommandFailure { code, error, remedy: remedy.map(str::to_owned) }
    }
}

/// Returns an error with its causes; many errors already contain the text of their cause.
fn causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

const REMEDY_BUSY: &str = "stop the other process (`nectary status` lists what runs), or use another device";
const REMEDY_PART_BUSY: &str = "stop the other one (`nectary status` shows its process), or listen elsewhere";
const REMEDY_SPEC: &str =
    "check the SPEC: a file, `disk:/dev/sdb`, `memory:2G`, or a filter over one (docs/devices.md)";
const REMEDY_IO: &str = "see whether this user may read and write it, and what the kernel says of it (`dmesg`)";
const REMEDY_CORRUPT: &str = "if this is no store, name another path or device: nothing was changed; \
     only if what is there may be lost: `nectary store create SPEC --force`";
const REMEDY_TOKEN: &str = "make one with `(umask 077; openssl rand -hex 32 > FILE)`";
const REMEDY_ORIGIN_CA: &str = "give --origin-ca a file with the certificate of the authority that signs your origins, in PEM (-----BEGIN CERTIFICATE-----)";
const REMEDY_CLIENT_CA: &str = "give `client-ca` of [tls] a file with the certificates of the authorities that sign those of your clients, in PEM (-----BEGIN CERTIFICATE-----)";
const REMEDY_CERTIFICATE: &str = "give --tls-cert a certificate with its chain and --tls-key its key, both in PEM and readable by this user; `nectary cert` makes some for tests";
const REMEDY_ACCESS_LOG: &str =
    "see that its directory exists and that this user may write there, or name another file";
const REMEDY_RAM: &str = "see the options of `ram(…)` in docs/devices.md, and the examples of `nectary ram --help`";
const REMEDY_LENT: &str = "name more donors, ask for less, or start donors with more --memory (or --quota)";
const REMEDY_ABSENT: &str = "check the SPEC, or make a store with `nectary store create SPEC --size 10G`";
/// The remedy if a device that is no store is absent.
const REMEDY_NO_DEVICE: &str = "check the SPEC; with --size a file is created";
const REMEDY_SERVER: &str = "see whether the server runs, and which exports it has: `nectary nbd list URL`";
const REMEDY_DONORS: &str =
    "see whether the donors run and what they hold: `nectary nbd list nbd://HOST:PORT`; docs/ram.md";
const REMEDY_FULL: &str = "free space there, or ask for a smaller --size";
const REMEDY_VOID: &str = "the figures of this run mean nothing: keep the command and its seed, and report it";
const REMEDY_LATCHED: &str = "see the first error on standard error; restart on a device that works";

const REMEDY_TRACE: &str = "check that it is a trace, and say its format with --format (`--help` lists them)";

/// The failure of a server that cannot listen; if another program listens there, the failure names it.
pub fn listening(error: nbd::Error) -> CommandFailure {
    match error.kind {
        nbd::NbdErrorKind::Absent => {
            CommandFailure::new(NOT_FOUND, error.to_string(), "make the directory of the socket first")
        }
        nbd::NbdErrorKind::Io => {
            let remedy =
                "check the address and the rights of this user (ports below 1024 need root), or listen elsewhere";
            CommandFailure::new(FAILED, error.to_string(), remedy)
        }
        nbd::NbdErrorKind::Busy => {
            let address = error.place.strip_prefix("tcp:").and_then(|address| address.parse().ok());
            match address.and_then(machine::who_listens) {
                Some(who) => {
                    let remedy =
                        format!("stop {who} (`nectary status` lists what runs of nectary), or listen elsewhere");
                    CommandFailure::new(BUSY, format!("{error}: {who} listens there"), remedy)
                }
                None => CommandFailure::from(error),
            }
        }
        _ => CommandFailure::from(error),
    }
}

/// The failure of a device that is to be attached or exported, and is no store.
pub fn opening(error: impl Into<anyhow::Error>) -> CommandFailure {
    let error = error.into();
    let device = error.chain().find_map(|cause| match cause.downcast_ref::<attach::Error>() {
        Some(attach::Error::Device(error)) => Some(error),
        _ => cause.downcast_ref::<block::Error>(),
    });
    let is_remote = |error: &block::Error| ["nbd", "ram("].iter().any(|start| error.device.starts_with(start));
    match device {
        Some(device) if device.kind == block::DeviceErrorKind::Absent && !is_remote(device) => {
            CommandFailure { code: NOT_FOUND, error, remedy: Some(REMEDY_NO_DEVICE.to_owned()) }
        }
        _ => CommandFailure::from(error),
    }
}

fn classify(cause: &(dyn std::error::Error + 'static)) -> Option<(u8, Option<&'static str>)> {
    let attached = cause.downcast_ref::<attach::Error>();
    if attached.is_some_and(attach::Error::is_in_use) {
        return Some((BUSY, None));
    }
    let device = match attached {
        Some(attach::Error::Device(error)) => Some(error),
        _ => cause.downcast_ref::<block::Error>(),
    };
    if let Some(DonorError::TooLittle { .. }) = cause.downcast_ref::<DonorError>() {
        return Some((USAGE, None));
    }
    if let Some(DonorError::NotThere { .. }) = cause.downcast_ref::<DonorError>() {
        return Some((FAILED, Some("give a smaller --memory, or end what uses the memory")));
    }
    if let Some(error) = device {
        // Most error messages of network RAM disks already contain the remedy.
        let is_ram = error.device.starts_with("ram(");
        let is_nbd = error.device.starts_with("nbd");
        return Some(match error.kind {
            block::DeviceErrorKind::Absent if is_ram => (NOT_FOUND, Some(REMEDY_DONORS)),
            block::DeviceErrorKind::Busy if is_ram => (BUSY, None),
            block::DeviceErrorKind::Full if is_ram => (FAILED, Some(REMEDY_LENT)),
            block::DeviceErrorKind::TimedOut | block::DeviceErrorKind::Io if is_ram => (FAILED, None),
            block::DeviceErrorKind::Invalid | block::DeviceErrorKind::Unsupported if is_ram => {
                (USAGE, Some(REMEDY_RAM))
            }
            block::DeviceErrorKind::Absent if is_nbd => (NOT_FOUND, Some(REMEDY_SERVER)),
            block::DeviceErrorKind::TimedOut | block::DeviceErrorKind::Io if is_nbd => (FAILED, Some(REMEDY_SERVER)),
            block::DeviceErrorKind::Absent => (NOT_FOUND, Some(REMEDY_ABSENT)),
            block::DeviceErrorKind::Busy => (BUSY, Some(REMEDY_BUSY)),
            block::DeviceErrorKind::Invalid | block::DeviceErrorKind::Unsupported => (USAGE, Some(REMEDY_SPEC)),
            block::DeviceErrorKind::Full => (FAILED, Some(REMEDY_FULL)),
            block::DeviceErrorKind::Latched => (FAILED, Some(REMEDY_LATCHED)),
            block::DeviceErrorKind::TimedOut | block::DeviceErrorKind::Io => (FAILED, Some(REMEDY_IO)),
        });
    }
    match cause.downcast_ref::<proxy::Error>() {
        Some(proxy::Error::AdminWithoutToken { .. }) => return Some((USAGE, None)),
        Some(proxy::Error::AdminToken { .. }) => return Some((USAGE, Some(REMEDY_TOKEN))),
        Some(proxy::Error::OriginCa { .. }) => return Some((USAGE, Some(REMEDY_ORIGIN_CA))),
        Some(proxy::Error::AccessLog { .. }) => return Some((FAILED, Some(REMEDY_ACCESS_LOG))),
        Some(proxy::Error::Inherited { .. } | proxy::Error::InheritedUnix { .. }) => {
            return Some((USAGE, Some("name its address with --listen")));
        }
        Some(proxy::Error::KeyHeaders { .. }) => return Some((USAGE, Some("give --key-header fewer times"))),
        Some(proxy::Error::RedirectWithoutTls { .. }) => return Some((USAGE, None)),
        Some(proxy::Error::ClientCa { .. }) => return Some((USAGE, Some(REMEDY_CLIENT_CA))),
        Some(proxy::Error::Certificate { .. } | proxy::Error::Tls(_)) => {
            return Some((USAGE, Some(REMEDY_CERTIFICATE)));
        }
        Some(proxy::Error::Config(_)) => return Some((USAGE, None)),
        Some(proxy::Error::AddressTwice { .. }) => return Some((USAGE, Some("give each address once"))),
        _ => {}
    }
    match cause.downcast_ref::<host::Error>() {
        Some(host::Error::Busy { .. }) => return Some((BUSY, Some(REMEDY_PART_BUSY))),
        Some(host::Error::Absent { .. }) => return Some((NOT_FOUND, None)),
        _ => {}
    }
    if let Some(error) = cause.downcast_ref::<nbd::Error>() {
        return Some(match error.kind {
            nbd::NbdErrorKind::Absent => (NOT_FOUND, Some(REMEDY_SERVER)),
            nbd::NbdErrorKind::Busy => (BUSY, Some(REMEDY_PART_BUSY)),
            nbd::NbdErrorKind::Invalid => (USAGE, None),
            nbd::NbdErrorKind::Io | nbd::NbdErrorKind::Protocol | nbd::NbdErrorKind::TimedOut => {
                (FAILED, Some(REMEDY_SERVER))
            }
            _ => (FAILED, None),
        });
    }
    if let Some(error) = cause.downcast_ref::<bench::Error>() {
        return Some(match error.kind {
            bench::ExperimentErrorKind::Usage => (USAGE, None),
            bench::ExperimentErrorKind::Missing => (NOT_FOUND, None),
            bench::ExperimentErrorKind::Busy => (BUSY, None),
            bench::ExperimentErrorKind::Void => (FAILED, Some(REMEDY_VOID)),
            bench::ExperimentErrorKind::Failed => (FAILED, None),
        });
    }
    match cause.downcast_ref::<trace::Error>() {
        Some(trace::Error::Absent { .. }) => return Some((NOT_FOUND, Some("check the path"))),
        Some(trace::Error::Malformed { .. }) => return Some((USAGE, Some(REMEDY_TRACE))),
        Some(trace::Error::TooLarge { .. } | trace::Error::Usage(_)) => {
            return Some((USAGE, None));
        }
        Some(trace::Error::Io { source, .. }) => {
            // Decoders report damaged input with these kinds; a directory is not a trace either.
            use std::io::ErrorKind::{InvalidData, InvalidInput, IsADirectory, UnexpectedEof};
            let is_usage = matches!(source.kind(), InvalidData | InvalidInput | IsADirectory | UnexpectedEof);
            return Some((if is_usage { USAGE } else { FAILED }, None));
        }
        None => {}
    }
    let error = cause.downcast_ref::<store::Error>()?;
    Some(match error.kind {
        store::StoreErrorKind::Absent => (NOT_FOUND, Some(REMEDY_ABSENT)),
        store::StoreErrorKind::Busy => (BUSY, None),
        store::StoreErrorKind::Invalid => (USAGE, None),
        store::StoreErrorKind::Stopped => (FAILED, Some(REMEDY_LATCHED)),
        store::StoreErrorKind::Corrupt => (FAILED, Some(REMEDY_CORRUPT)),
        store::StoreErrorKind::Io => (FAILED, Some(REMEDY_IO)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_kinds_have_codes_and_remedies() {
        let busy =
            block::Error::new(block::DeviceErrorKind::Busy, "file:/a", block::DeviceOperation::Open, "by process 7");
        let failure = CommandFailure::from(anyhow::Error::new(busy).context("cannot open the store"));
        assert_eq!(failure.code, BUSY);
        let text = failure.text();
        assert!(text.contains("cannot open the store") && text.contains("process 7"), "{text}");
        assert!(text.contains("what to do: stop the other process"), "{text}");
        let small = block::Error::new(
            block::DeviceErrorKind::Invalid,
            "ram(h1:7070)",
            block::DeviceOperation::Open,
            "too small",
        );
        assert!(CommandFailure::from(small).text().contains("docs/devices.md"));
        let twice = std::io::Error::from_raw_os_error(13);
        let twice = attach::Error::NotPermitted { what: "mounting", source: twice };
        assert_eq!(CommandFailure::from(twice).text().matches("os error 13").count(), 1);
        let absent = |device| {
            block::Error::new(block::DeviceErrorKind::Absent, device, block::DeviceOperation::Open, "not there")
        };
        let given = opening(attach::Error::Device(absent("file:./a")));
        assert!(given.code == NOT_FOUND && given.text().contains("--size"), "{}", given.text());
        let text = opening(absent("nbd://h/a")).text();
        assert!(text.contains("nbd list") && !text.contains("store create"), "{text}");
        let corrupt = store::Error::new(store::StoreErrorKind::Corrupt, "magic");
        assert_eq!(CommandFailure::from(corrupt).code, FAILED);
    }
}
