//! Formatting of numbers and words for `nectary top`, in few columns.

use serde_json::Value;

use super::SampleChange;
use crate::live::printable;

/// Returns a count; 0 if the value is no number.
pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Returns a text without control characters.
pub fn word(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default())
}

/// Formats a number in at most five columns.
pub fn short(count: u64) -> String {
    let units = [(1_000_000_000_000, "T"), (1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
    let unit = units.into_iter().find(|(one, _)| count >= *one && count >= 10_000);
    match unit {
        None => count.to_string(),
        Some((one, unit)) if count / one >= 100 => format!("{}{unit}", count / one),
        Some((one, unit)) => format!("{:.1}{unit}", (count * 10 / one) as f64 / 10.0),
    }
}

/// Formats a number of bytes in at most six columns.
pub fn size(bytes: u64) -> String {
    let units = [(1_u64 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    let unit = units.into_iter().find(|(one, _)| bytes >= *one);
    match unit {
        None => bytes.to_string(),
        Some((one, unit)) if bytes / one >= 100 || bytes.is_multiple_of(one) => format!("{}{unit}", bytes / one),
        Some((one, unit)) => format!("{:.1}{unit}", (bytes as f64 * 10.0 / one as f64).floor() / 10.0),
    }
}

/// Formats a share in percent.
pub fn percent(part: u64, all: u64) -> String {
    if all == 0 { "-".to_owned() } else { format!("{:.1}", 100.0 * part as f64 / all as f64) }
}

/// Returns the growth of a number per second.
pub fn rate(grown: Option<u64>, change: Option<&SampleChange<'_>>) -> Option<u64> {
    Some((grown? as f64 / change?.seconds).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_at_any_size() {
        for (count, text) in [(0, "0"), (9999, "9999"), (10_000, "10.0k"), (999_999, "999k"), (u64::MAX, "18446744T")] {
            assert_eq!(short(count), text);
        }
        for (bytes, text) in [(0, "0"), (1023, "1023"), (8192, "8K"), (1536, "1.5K"), (1_048_575, "1023K")] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!((percent(1, 0), percent(1, 3)), ("-".to_owned(), "33.3".to_owned()));
    }
}
