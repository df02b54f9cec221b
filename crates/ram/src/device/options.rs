//! The options of `ram(…)` in a SPEC.
//!
//! Owns: the names of the options, their defaults and bounds, and formatting them as a SPEC.

use std::time::Duration;

use nectary_block::{Error, SpecArguments, exact_size, parse_duration, parse_size};

use super::address::DonorAddress;
use super::redundancy::Redundancy;
use crate::donor::name::check_id;
use crate::format::record::{MEMBERS_MAX, PLAIN_MEMBERS_MAX};
use crate::placement::RedundancyPolicy;

/// The default time for which a request waits for a donor.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The default number of slots beyond the blocks of a device that logs parity. *Units*: percent.
pub const OVERFLOW_PERCENT: u32 = 25;
/// The maximum number of slots beyond the blocks. *Units*: percent.
const OVERFLOW_PERCENT_MAX: u32 = 200;

/// The default rate of the scrub. *Units*: bytes of the device each second.
pub const SCRUB_BYTES: u64 = 4 << 20;

/// The options of a device in a SPEC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RamOptions {
    pub(crate) donors: Vec<DonorAddress>,
    /// Donors that take the place of others.
    pub(crate) spares: Vec<DonorAddress>,
    pub(crate) id: String,
    /// The size of a device to make; for an existing device, the size that it must have.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) patience: Duration,
    pub(crate) redundancy: Redundancy,
    /// The number of slots beyond the blocks, for making a device that logs parity. *Units*: percent.
    pub(crate) overflow_percent: Option<u32>,
    /// The rate of the scrub; 0: it runs only when requested. *Units*: bytes each second.
    pub(crate) scrub_bytes: u64,
    /// Whether a device that another client has is attached nevertheless.
    pub(crate) take_over: bool,
    /// Whether, of two donors, one that is found alone is trusted: the user confirms that the device was not used
    /// without it.
    pub(crate) trust_remaining: bool,
}

impl RamOptions {
    /// Parses the arguments of `ram(…)`.
    ///
    /// *Errors*: [`nectary_block::ErrorKind::Invalid`] with the position in the SPEC.
    pub fn parse(mut arguments: SpecArguments) -> Result<RamOptions, Error> {
        let id = arguments.option("id", |text| check_id(text).map(|()| text.to_owned()))?;
        let size_bytes = arguments.option("size", parse_blocks)?;
        let patience = arguments.option("patience", parse_patience)?.unwrap_or(PATIENCE);
        let redundancy = arguments.option("redundancy", parse_redundancy)?.unwrap_or(RedundancyPolicy::None);
        let overflow_percent = arguments.option("overflow", parse_overflow)?;
        let scrub_bytes = arguments.option("scrub", parse_size)?;
        let texts = arguments.texts()?;
        arguments.finish()?;
        let donors = texts.iter().map(|text| DonorAddress::parse(text)).collect::<Result<Vec<_>, _>>();
        let donors = donors.map_err(|message| arguments.invalid(message))?;
        if donors.is_empty() || donors.len() > PLAIN_MEMBERS_MAX {
            let message = format!("{} donors; 1 to {PLAIN_MEMBERS_MAX} are taken: ram(h1:7070,h2:7070,id=disk)", donors.len());
            return Err(arguments.invalid(message));
        }
        let Some(id) = id else {
            return Err(arguments.invalid("a device needs a name: id=disk"));
        };
        for (index, donor) in donors.iter().enumerate() {
            if donors[..index].iter().any(|other| other.url == donor.url) {
                return Err(arguments.invalid(format!("{} is named twice", donor.text)));
            }
        }
        if let Some(at) = donors.iter().position(|donor| donor.is_spare)
            && donors[at..].iter().any(|donor| !donor.is_spare)
        {
            return Err(
                arguments.invalid(format!("{} is a spare: name spares after all other donors", donors[at].text))
            );
        }
        let (spares, donors): (Vec<DonorAddress>, Vec<DonorAddress>) =
            donors.into_iter().partition(|donor| donor.is_spare);
        let open = arguments.options();
        let (take_over, trust_remaining) = (open.take_over, open.trust_remaining);
        let count = donors.len();
        let (kind, least) = match redundancy {
            RedundancyPolicy::None => (Redundancy::None, 1),
            RedundancyPolicy::Mirror => (Redundancy::Mirror, 2),
            RedundancyPolicy::Parity => (Redundancy::Parity, 3),
            policy => (Redundancy::Log(policy), 3),
        };
        if kind != Redundancy::None && !(least..=MEMBERS_MAX).contains(&count) {
            let hosts: Vec<String> = (1..=least).map(|host| format!("h{host}:7070")).collect();
            let message = format!(
                "{count} donors; redundancy={redundancy} takes {least} to {MEMBERS_MAX}: ram({},id=disk)",
                hosts.join(",")
            );
            return Err(arguments.invalid(message));
        }
        if overflow_percent.is_some() && !matches!(kind, Redundancy::Log(_)) {
            let message = "overflow= belongs to redundancy=parity-log, parity-cache and adaptive".to_owned();
            return Err(arguments.invalid(message));
        }
        Ok(RamOptions {
            donors,
            spares,
            id,
            size_bytes,
            patience,
            redundancy: kind,
            overflow_percent,
            scrub_bytes: scrub_bytes.unwrap_or(SCRUB_BYTES),
            take_over,
            trust_remaining,
        })
    }

    /// Returns the SPEC that names the device.
    pub fn spec(&self) -> String {
        let mut parts: Vec<String> = self.donors.iter().chain(&self.spares).map(DonorAddress::spec).collect();
        parts.push(format!("id={}", self.id));
        parts.extend(self.size_bytes.map(|bytes| format!("size={}", exact_size(bytes))));
        if self.patience != PATIENCE {
            parts.push(format!("patience={}us", self.patience.as_micros()));
        }
        if self.redundancy != Redundancy::None {
            parts.push(format!("redundancy={}", self.redundancy.name()));
        }
        if self.scrub_bytes != SCRUB_BYTES {
            parts.push(format!("scrub={}", exact_size(self.scrub_bytes)));
        }
        parts.extend(self.overflow_percent.map(|percent| format!("overflow={percent}%")));
        format!("ram({})", parts.join(","))
    }
}

fn parse_blocks(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    match bytes > 0 && bytes.is_multiple_of(4096) {
        true => Ok(bytes),
        false => Err(format!("a size of {bytes} bytes: a multiple of 4096 above 0 is needed")),
    }
}

fn parse_patience(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    let bounds = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);
    if bounds.contains(&time) { Ok(time) } else { Err("patience is 1ms to 24h".to_owned()) }
}

fn parse_redundancy(text: &str) -> Result<RedundancyPolicy, String> {
    text.parse().map_err(|_| {
        let known: Vec<&str> = RedundancyPolicy::ALL.into_iter().map(RedundancyPolicy::name).collect();
        format!("\"{text}\" is no redundancy; there are {}", known.join(", "))
    })
}

/// Parses an overflow, such as `25%` or `25`.
fn parse_overflow(text: &str) -> Result<u32, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse().ok();
    let most = OVERFLOW_PERCENT_MAX;
    percent.filter(|percent| *percent <= most).ok_or_else(|| format!("overflow is 0% to {most}%, as overflow=25%"))
}

#[cfg(test)]
mod tests {
    use nectary_block::{DeviceRegistry, OpenOptions};

    use super::*;

    fn options(spec: &str) -> Result<RamOptions, Error> {
        let registry = DeviceRegistry::with_builtins();
        RamOptions::parse(registry.arguments(spec, "ram", &OpenOptions::default())?)
    }

    #[test]
    fn specs_are_read_and_mistakes_named() {
        let spec = "ram(h1:7070,[::1]:7070,\"nbd+unix:///a?socket=/b\",id=disk,size=8G,patience=2s,redundancy=mirror)";
        let read = options(spec).unwrap();
        assert_eq!(options(&read.spec()).unwrap(), read);
        for (spec, words) in [
            ("ram(id=disk)", "0 donors; 1 to 64"),
            ("ram(h1:7070)", "id=disk"),
            ("ram(h1:7070,h1:7070,id=disk)", "h1:7070 is named twice"),
            ("ram(h1,id=disk)", "host:port"),
            ("ram(h1:7070,id=a b)", "no id"),
            ("ram(h1:7070,id=disk,size=5000)", "a multiple of 4096"),
            ("ram(h1:7070,id=disk,patience=0s)", "patience is 1ms to 24h"),
            ("ram(h1:7070,h2:7070,id=disk,redundancy=parity)", "2 donors; redundancy=parity takes 3 to 16"),
            ("ram(h1:7070,id=disk,redundancy=adaptive)", "1 donors; redundancy=adaptive takes 3 to 16"),
            ("ram(h1:7070,id=disk,redundancy=mirror)", "1 donors; redundancy=mirror takes 2 to 16"),
            ("ram(h1:7070,id=disk,redundancy=raid)", "no redundancy"),
            ("ram(stats(memory:1G),id=disk)", "not the device stats"),
            ("ram(h1:7070,id=disk,more=1)", "no option \"more\""),
            ("memory:1G", "expected ram(…)"),
        ] {
            let error = options(spec).unwrap_err();
            assert!(error.detail.contains(words), "{spec}: {error}");
        }
    }
}
