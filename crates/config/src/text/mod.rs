//! What texts in quotes say: addresses, hosts, paths, headers.
//!
//! Owns: the syntax of each kind of text. Promises: every function is total: a text is read, or it is said what is wrong
//! and how it is written. Leaves to others: where the text is.

mod acme_text;
mod address;
mod fleet_text;
mod header_text;
mod host_name;
mod path_text;
mod url_text;

pub(crate) use acme_text::{acme_directory, certificate_name, mail_address};
pub(crate) use address::{header_sender, listen_address, network, socket_address, socket_mode, socket_path};
pub(crate) use fleet_text::{etcd_url, fleet_name, node_name, peer_address, zone_name};
pub(crate) use header_text::{header_value, settable_header};
pub(crate) use host_name::{host_rule, host_word, site_name, srv_name};
pub(crate) use path_text::{check_path, file_path, name_pattern, origin_name, plain_name, route_path, tag};
pub(crate) use url_text::{redirect_target, server_url};

use std::time::Duration;

use crate::problem::quoted;
use crate::quantity::parse_size;
use crate::values::{RequestRate, WriteBudget};

/// What is wrong with a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValueProblem {
    /// What is wrong.
    pub message: String,
    /// How it is written, or what was perhaps meant.
    pub help: String,
}

impl ValueProblem {
    /// The text is not of a kind; a kind is for example `a network`.
    pub fn not(text: &str, kind: &str, help: impl Into<String>) -> ValueProblem {
        ValueProblem { message: format!("{} is not {kind}", quoted(text)), help: help.into() }
    }

    /// The text has something that it may not have.
    pub fn has(text: &str, what: &str, help: impl Into<String>) -> ValueProblem {
        ValueProblem { message: format!("{} has {what}", quoted(text)), help: help.into() }
    }
}

/// What a text means, or what is wrong with it.
pub(crate) type Read<T> = Result<T, ValueProblem>;

/// Reads a SPEC of a device. Its syntax is checked by what opens the device.
pub(crate) fn device_spec(text: &str) -> Read<String> {
    const HELP: &str = "write a path, `disk:/dev/sdb` or `memory:2G`";
    if text.trim().is_empty() {
        return Err(ValueProblem { message: "the device is empty".to_owned(), help: HELP.to_owned() });
    }
    if text.chars().any(char::is_control) {
        return Err(ValueProblem::has(text, "a control character", HELP));
    }
    Ok(text.to_owned())
}

/// Reads a size and a period.
pub(crate) fn write_budget(text: &str) -> Read<WriteBudget> {
    let wrong = || ValueProblem::not(text, "a write budget", "write a size and a period, such as `50G/day` or `2M/s`");
    let (size, period) = text.split_once('/').ok_or_else(wrong)?;
    let bytes = parse_size(size).filter(|bytes| *bytes > 0).ok_or_else(wrong)?;
    let Some((_, seconds)) = WriteBudget::PERIODS.iter().find(|(name, _)| *name == period) else {
        return Err(ValueProblem {
            message: format!("{} is not a period", quoted(period)),
            help: "allowed: s, min, h, day".to_owned(),
        });
    };
    Ok(WriteBudget { bytes, period: Duration::from_secs(*seconds) })
}

/// Reads a number of requests and a period.
pub(crate) fn request_rate(text: &str) -> Read<RequestRate> {
    let wrong =
        || ValueProblem::not(text, "a rate of requests", "write a number and a period, such as `50/s` or `600/min`");
    let (number, period) = text.split_once('/').ok_or_else(wrong)?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        return Err(wrong());
    }
    let Some(count) = number.parse::<u32>().ok().filter(|count| (1..=RequestRate::COUNT_MAX).contains(count)) else {
        let help = format!("allowed: 1 to {} in a period", RequestRate::COUNT_MAX);
        return Err(ValueProblem { message: format!("the rate cannot be {}", quoted(text)), help });
    };
    let Some((_, seconds)) = RequestRate::PERIODS.iter().find(|(name, _)| *name == period) else {
        let message = format!("{} is not a period", quoted(period));
        return Err(ValueProblem { message, help: "allowed: s, min".to_owned() });
    };
    Ok(RequestRate { count, period: Duration::from_secs(*seconds) })
}

/// The first character that is not visible ASCII, as a message names it.
fn strange(text: &str) -> Option<String> {
    let found = text.chars().find(|c| !c.is_ascii_graphic())?;
    Some(match found {
        ' ' => "a space".to_owned(),
        c if c.is_control() => format!("the control character U+{:04X}", u32::from(c)),
        c => format!("{}, which is not ASCII", quoted(&c.to_string())),
    })
}
