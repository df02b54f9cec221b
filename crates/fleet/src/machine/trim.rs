//! How much of the log is removed.
//!
//! Owns: the rule. It is a function of what the log has, so that any node comes to the same result.

use super::FleetRules;

/// A purge in the log, as its key tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEntry {
    /// Its revision.
    pub revision: u64,
    /// The length of its value. *Units*: bytes.
    pub bytes: u64,
    /// When it was accepted, by the clock of the node that did. *Units*: seconds since 1970.
    pub accepted_s: u64,
}

/// The revision up to which purges are removed, so that the rest is small and young enough; `None` if nothing is. The
/// entries are in order of their revisions. The newest one always stays, as it says how far the log goes.
pub fn trim_through(rules: &FleetRules, entries: &[LogEntry], now_s: u64) -> Option<u64> {
    let oldest_s = now_s.saturating_sub(rules.log_age_max.as_secs());
    let mut bytes: u64 = entries.iter().map(|entry| entry.bytes).sum();
    let mut through = None;
    for entry in entries.split_last().map(|(_, rest)| rest).unwrap_or_default() {
        if bytes <= rules.log_bytes_max && entry.accepted_s >= oldest_s {
            break;
        }
        bytes = bytes.saturating_sub(entry.bytes);
        through = Some(entry.revision);
    }
    through
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn log_trims_by_size_and_age() {
        let rules = FleetRules { log_bytes_max: 100, log_age_max: Duration::from_secs(50), ..FleetRules::default() };
        let entry = |revision, accepted_s| LogEntry { revision, bytes: 40, accepted_s };
        let trim = |entries: &[LogEntry], now_s| trim_through(&rules, entries, now_s);
        assert_eq!(trim(&[], 1000), None);
        assert_eq!(trim(&[entry(5, 1000), entry(6, 1000)], 1000), None);
        assert_eq!(trim(&[entry(5, 1000), entry(6, 1000), entry(9, 1000)], 1000), Some(5), "it is larger than 100");
        assert_eq!(trim(&[entry(5, 900), entry(6, 950)], 1000), Some(5), "it is older than 50 s");
        assert_eq!(trim(&[entry(5, 950), entry(6, 950)], 1000), None, "it is 50 s old");
        assert_eq!(trim(&[entry(5, 1), entry(6, 1)], 1000), Some(5), "the newest one stays");
    }
}
