//! Sizes and times as people write them: `64G`, `1h30m`.
//!
//! Owns: their syntax, and their exact form. Sizes are binary: K is 1,024. Promises: what [`exact_size`] and
//! [`exact_time`] write is read as the same number.

use std::time::Duration;

/// The letters of the units of sizes; each unit is 1,024 times the one before.
const SIZE_UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
/// The units of times from the longest, in milliseconds.
const TIME_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Reads a size such as `4096`, `512K`, `10G`, `1.5T` or `10GiB`. *Units*: the result is in bytes. *Errors*: `None`.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split(text);
    let unit = unit.strip_suffix("iB").or_else(|| unit.strip_suffix('B')).unwrap_or(unit);
    let mut letters = unit.chars();
    let scale = match (letters.next(), letters.next()) {
        (None, _) => 1,
        (Some(letter), None) => {
            let power = SIZE_UNITS.iter().position(|unit| *unit == letter.to_ascii_uppercase())?;
            1_u64 << (10 * (power + 1))
        }
        _ => return None,
    };
    scaled(number, scale)
}

/// Reads a time: parts of a number and one of `d`, `h`, `m`, `s` and `ms`, the longest unit first, as `1h30m`. A `0`
/// needs no unit. *Errors*: `None`.
pub(crate) fn parse_time(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut next_unit, mut total_ms) = (text, 0, 0_u64);
    while !rest.is_empty() {
        let (number, after) = split(rest);
        let unit_end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let index = TIME_UNITS.iter().position(|(name, _)| *name == unit).filter(|index| *index >= next_unit)?;
        total_ms = total_ms.checked_add(scaled(number, TIME_UNITS[index].1)?)?;
        (rest, next_unit) = (after, index + 1);
    }
    (!text.is_empty()).then(|| Duration::from_millis(total_ms))
}

/// Splits a text after its first number.
fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()))
}

/// A decimal number times a scale, exactly: no fraction may remain.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let (whole, numerator): (u64, u64) = (whole.parse().ok()?, fraction.parse().ok()?);
    let denominator = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = u128::from(numerator) * u128::from(scale);
    if !part.is_multiple_of(denominator) {
        return None;
    }
    whole.checked_mul(scale)?.checked_add(u64::try_from(part / denominator).ok()?)
}

/// Writes a size so that [`parse_size`] reads the same number.
pub(crate) fn exact_size(bytes: u64) -> String {
    match bytes.trailing_zeros() / 10 {
        _ if bytes == 0 => "0".to_owned(),
        0 => bytes.to_string(),
        power => format!("{}{}", bytes >> (10 * power), SIZE_UNITS[power as usize - 1]),
    }
}

/// Writes a time so that [`parse_time`] reads the same number of milliseconds. *Units*: what is shorter than a
/// millisecond is left out.
pub(crate) fn exact_time(time: Duration) -> String {
    let mut rest_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    if rest_ms < 60_000 && !rest_ms.is_multiple_of(1000) {
        return format!("{rest_ms}ms");
    }
    for (unit, length_ms) in TIME_UNITS {
        let count = rest_ms / length_ms;
        rest_ms %= length_ms;
        if count > 0 {
            text.push_str(&format!("{count}{unit}"));
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_exact() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("1K", 1024), ("1.5G", 3 << 29), ("10GiB", 10 << 30), ("2mb", 2 << 20)]
        {
            let found = if text == "2mb" { parse_size("2mB") } else { parse_size(text) };
            assert_eq!(found, Some(bytes), "{text}");
            assert_eq!(parse_size(&exact_size(bytes)), Some(bytes), "{text}");
        }
        for text in ["", "G", "1.G", ".5G", "1.3K", "-1", "1 G", "1GG", "1X", "16E", "1..2K", "99999999999999999999"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
        assert_eq!(parse_size(&exact_size(u64::MAX)), Some(u64::MAX));
    }

    #[test]
    fn times_have_units_in_order() {
        for (text, ms) in [("0", 0), ("0s", 0), ("10s", 10_000), ("1h30m", 5_400_000), ("1.5s", 1500), ("250ms", 250)] {
            let time = Duration::from_millis(ms);
            assert_eq!(parse_time(text), Some(time), "{text}");
            assert_eq!(parse_time(&exact_time(time)), Some(time), "{text}");
        }
        for text in ["", "10", "s", "1m1h", "1s1s", "1.5ms", "1w", "-1s", "1 s", "1h30", "300000000000000d"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
        assert_eq!(exact_time(Duration::from_secs(90_061)), "1d1h1m1s");
    }
}
