//! The options of `ram(…)` in a SPEC.
//!
//! Owns: their names, defaults and bounds, and the SPEC that says the same again.

use std::time::Duration;

use nectary_block::{Arguments, Error, ErrorKind, Operation, exact_size, parse_duration, parse_size};

use super::address::Address;
use super::label::{DONORS_MAX, Redundancy};
use crate::donor::name::check_id;
use crate::format::record::MEMBERS_MAX;

/// How long a request waits for a donor, unless the SPEC says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The policies that are known and not there yet.
const LATER: [&str; 4] = ["parity", "parity-log", "parity-cache", "adaptive"];

/// What a SPEC says of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RamOptions {
    pub(crate) donors: Vec<Address>,
    pub(crate) id: String,
    /// The size of a device to make; of one that is there, what it must be.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) patience: Duration,
    pub(crate) redundancy: Redundancy,
    /// Also attaches a device that another client has.
    pub(crate) take_over: bool,
    /// Of two donors, one that is alone is believed: the user says that the device was not used without it.
    pub(crate) trust_remaining: bool,
}

impl RamOptions {
    /// Takes the arguments of `ram(…)`.
    ///
    /// *Errors*: [`ErrorKind::Invalid`] with the place in the SPEC; [`ErrorKind::Unsupported`] for a redundancy that is
    /// not there yet.
    pub fn parse(mut arguments: Arguments) -> Result<RamOptions, Error> {
        let id = arguments.option("id", |text| check_id(text).map(|()| text.to_owned()))?;
        let size_bytes = arguments.option("size", parse_blocks)?;
        let patience = arguments.option("patience", parse_patience)?.unwrap_or(PATIENCE);
        let redundancy = arguments.option("redundancy", parse_redundancy)?.unwrap_or_default();
        let texts = arguments.texts()?;
        arguments.finish()?;
        let donors = texts.iter().map(|text| Address::parse(text)).collect::<Result<Vec<_>, _>>();
        let donors = donors.map_err(|message| arguments.invalid(message))?;
        if donors.is_empty() || donors.len() > DONORS_MAX {
            let message = format!("{} donors; 1 to {DONORS_MAX} are taken: ram(h1:7070,h2:7070,id=disk)", donors.len());
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
        let open = arguments.options();
        let (take_over, trust_remaining) = (open.take_over, open.trust_remaining);
        let kind = if redundancy == "mirror" { Redundancy::Mirror } else { Redundancy::None };
        let options = RamOptions { donors, id, size_bytes, patience, redundancy: kind, take_over, trust_remaining };
        match redundancy.as_str() {
            "mirror" if !(2..=MEMBERS_MAX).contains(&options.donors.len()) => {
                let count = options.donors.len();
                let message = format!("{count} donors; a mirror has 2 to {MEMBERS_MAX}: ram(h1:7070,h2:7070,id=disk)");
                Err(arguments.invalid(message))
            }
            "" | "mirror" => Ok(options),
            later => {
                let detail = format!("redundancy={later} is not there yet; redundancy=none and redundancy=mirror are");
                Err(Error::new(ErrorKind::Unsupported, &options.spec(), Operation::Open, detail))
            }
        }
    }

    /// The SPEC that names the device.
    pub fn spec(&self) -> String {
        let mut parts: Vec<String> = self.donors.iter().map(Address::spec).collect();
        parts.push(format!("id={}", self.id));
        parts.extend(self.size_bytes.map(|bytes| format!("size={}", exact_size(bytes))));
        if self.patience != PATIENCE {
            parts.push(format!("patience={}us", self.patience.as_micros()));
        }
        if self.redundancy == Redundancy::Mirror {
            parts.push("redundancy=mirror".to_owned());
        }
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

/// The empty text for none.
fn parse_redundancy(text: &str) -> Result<String, String> {
    match text {
        "none" => Ok(String::new()),
        "mirror" => Ok(text.to_owned()),
        later if LATER.contains(&later) => Ok(later.to_owned()),
        _ => Err(format!("\"{text}\" is no redundancy; none and mirror are there, {} come later", LATER.join(", "))),
    }
}
