//! The rules of admission to the disk, as the caller sets them.
//!
//! Owns: the rules, their names and bounds, and the text form of a write budget.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The smallest write budget, in bytes per day.
pub const WRITE_BUDGET_BYTES_A_DAY_MIN: u64 = 64 << 20;
/// The names of periods, and their lengths in seconds; the first name of each length is used for display.
const PERIODS: [(&str, u64); 9] = [
    ("day", 86_400),
    ("d", 86_400),
    ("hour", 3600),
    ("h", 3600),
    ("minute", 60),
    ("min", 60),
    ("second", 1),
    ("sec", 1),
    ("s", 1),
];

/// The rule that decides, by earlier requests, which objects are written to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdmitRule {
    /// All objects.
    #[default]
    All,
    /// Objects whose key was requested before, if that request is still remembered.
    SecondRequest,
}

impl AdmitRule {
    /// The name of the rule, for parsing and display.
    pub fn name(self) -> &'static str {
        match self {
            AdmitRule::All => "all",
            AdmitRule::SecondRequest => "second-request",
        }
    }
}

impl FromStr for AdmitRule {
    type Err = String;

    fn from_str(text: &str) -> Result<AdmitRule, String> {
        [AdmitRule::All, AdmitRule::SecondRequest]
            .into_iter()
            .find(|rule| rule.name() == text)
            .ok_or_else(|| format!("\"{text}\" is no rule of admission; write `all` or `second-request`"))
    }
}

/// The largest number of bytes that may be written to the device in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteBudget {
    /// Bytes per period.
    pub bytes: u64,
    /// The period.
    pub period: Duration,
}

impl WriteBudget {
    /// The bytes that the budget allows per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.period.as_secs_f64()
    }
}

impl FromStr for WriteBudget {
    type Err = String;

    fn from_str(text: &str) -> Result<WriteBudget, String> {
        let wrong = || format!("\"{text}\" is no write budget; write a size and a period, such as 50G/day or 2M/s");
        let (size, period) = text.split_once('/').ok_or_else(wrong)?;
        let bytes = nectary_block::parse_size(size)?;
        let (_, seconds) = PERIODS.iter().find(|(name, _)| *name == period.trim()).ok_or_else(wrong)?;
        Ok(WriteBudget { bytes, period: Duration::from_secs(*seconds) })
    }
}

impl fmt::Display for WriteBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = nectary_block::format_size(self.bytes);
        match PERIODS.iter().find(|(_, seconds)| Duration::from_secs(*seconds) == self.period) {
            Some((name, _)) => write!(f, "{size}/{name}"),
            None => write!(f, "{size} in {:?}", self.period),
        }
    }
}

/// The rules of admission to the disk. An object that is not admitted is still served, and may stay in memory.
///
/// The default admits everything. Whatever the rules say, an object is admitted if it replaces an object that is, or
/// may be, on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdmissionOptions {
    /// The rule that decides by earlier requests.
    pub rule: AdmitRule,
    /// Bodies of fewer bytes than this are not admitted, except empty bodies, which may be redirects. For a body of
    /// unknown length that fits into one record, this is decided at its end.
    pub bytes_min: u64,
    /// Bodies of more bytes than this are not admitted.
    pub bytes_max: Option<u64>,
    /// The limit on the bytes written to the device in a period. Near this limit, fewer objects are admitted. In a
    /// store of several spans, each span gets a share in proportion to its size.
    pub write_budget: Option<WriteBudget>,
    /// Whether the caller keeps some objects in memory alone ([`Fill::keep_in_memory`](crate::Fill::keep_in_memory)).
    pub has_copies: bool,
    /// The seed of random decisions under a write budget; by default each store draws its own.
    pub seed: Option<u64>,
}

impl AdmissionOptions {
    /// Whether everything is admitted.
    pub fn is_open(&self) -> bool {
        *self == AdmissionOptions { seed: self.seed, ..AdmissionOptions::default() }
    }

    /// Checks the options without a device. *Errors*: `Invalid` for bounds that no object meets, and for a budget that
    /// is too small.
    pub fn check(&self) -> Result<(), Error> {
        if let Some(most) = self.bytes_max
            && most < self.bytes_min.max(1)
        {
            return Err(Error::invalid(format!(
                "no object has at least {} and at most {most} bytes, so none would be admitted",
                self.bytes_min
            )));
        }
        let Some(budget) = self.write_budget else { return Ok(()) };
        let least = WRITE_BUDGET_BYTES_A_DAY_MIN;
        if budget.period.is_zero() || budget.bytes_per_s() * 86_400.0 < least as f64 {
            return Err(Error::invalid(format!(
                "a write budget of {budget} is too small: {} is the least",
                WriteBudget { bytes: least, period: Duration::from_secs(86_400) }
            )));
        }
        Ok(())
    }

    /// The options for one span of a store: its write budget is `share`/`all` of the store's write budget.
    pub(crate) fn share(self, share: u64, all: u64) -> AdmissionOptions {
        let part = |bytes: u64| (u128::from(bytes) * u128::from(share) / u128::from(all.max(1))) as u64;
        let write_budget = self.write_budget.map(|budget| WriteBudget { bytes: part(budget.bytes).max(1), ..budget });
        AdmissionOptions { write_budget, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Write budgets are sizes per period, and nonsense is refused.
    #[test]
    fn write_budget_parses_sizes() {
        for (text, bytes, seconds, shown) in [
            ("50G/day", 50 << 30, 86_400, "50G/day"),
            ("2M/s", 2 << 20, 1, "2M/second"),
            ("1.5T/d", 3 << 39, 86_400, "1536G/day"),
            ("512M / h", 512 << 20, 3600, "512M/hour"),
        ] {
            let budget: WriteBudget = text.parse().expect(text);
            assert_eq!((budget.bytes, budget.period.as_secs()), (bytes, seconds), "{text}");
            assert_eq!(budget.to_string(), shown);
        }
        for text in ["", "50G", "/day", "50G/week", "ten/day", "50G/", "-1G/day"] {
            assert!(text.parse::<WriteBudget>().is_err(), "{text}");
        }
    }

    #[test]
    fn options_admitting_nothing_are_refused() {
        let refused = |options: AdmissionOptions| options.check().expect_err("it admits nothing").message;
        assert!(AdmissionOptions::default().check().is_ok() && AdmissionOptions::default().is_open());
        let bounds = AdmissionOptions { bytes_min: 2, bytes_max: Some(1), ..AdmissionOptions::default() };
        assert!(refused(bounds).contains("at least 2 and at most 1 bytes"));
        let none = AdmissionOptions { bytes_max: Some(0), ..AdmissionOptions::default() };
        assert!(refused(none).contains("at most 0 bytes"));
        let budget = |text: &str| AdmissionOptions { write_budget: text.parse().ok(), ..AdmissionOptions::default() };
        assert!(refused(budget("1M/day")).contains("64M/day is the least"));
        assert!(refused(budget("0/s")).contains("too small"));
        assert!(budget("64M/day").check().is_ok() && !budget("64M/day").is_open());
        assert!("sometimes".parse::<AdmitRule>().expect_err("no rule").contains("second-request"));
    }

    #[test]
    fn spans_share_budget_by_size() {
        let whole = AdmissionOptions { write_budget: "100G/day".parse().ok(), ..AdmissionOptions::default() };
        let bytes = |options: AdmissionOptions| options.write_budget.expect("a budget").bytes;
        assert_eq!((bytes(whole.share(1, 4)), bytes(whole.share(3, 4))), (25 << 30, 75 << 30));
    }
}
