//! Sizes, durations and shares as people write them: `10G`, `12ms`, `1%`.
//!
//! Owns: the only parser and the only formatter of quantities in SPECs, options and messages. Sizes are binary (K is
//! 1024).

use std::time::Duration;

/// The letters of the units; each unit is 1024 times the previous one.
const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];

/// Reads a size such as `4096`, `512K`, `10G`, `1.5T`, `10GiB`; a trailing `B` or `iB` is allowed.
///
/// *Units*: the result is in bytes. *Errors*: a sentence about the mistake in the text.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is not a size; write a number and a unit, such as 4096, 512K, 10G or 1.5T");
    let (number, unit) = split(text.trim()).ok_or_else(wrong)?;
    let unit = unit.strip_suffix("iB").or_else(|| unit.strip_suffix('B')).unwrap_or(unit);
    let mut letters = unit.chars();
    let scale = match (letters.next(), letters.next()) {
        (None, _) => 1u64,
        (Some(letter), None) => {
            let power = UNITS.iter().position(|&u| u == letter.to_ascii_uppercase()).ok_or_else(wrong)?;
            1 << (10 * (power + 1))
        }
        _ => return Err(wrong()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale).ok_or_else(|| format!("\"{text}\" is more than 16 EiB"));
    }
    let value = number.parse::<f64>().map_err(|_| wrong())? * scale as f64;
    if value >= u64::MAX as f64 {
        return Err(format!("\"{text}\" is more than 16 EiB"));
    }
    Ok(value.round() as u64)
}

/// Writes a size for people: exactly if a unit divides the size (`10G`), otherwise with two decimals (`1.46G`).
pub fn format_size(bytes: u64) -> String {
    let exact = exact_size(bytes);
    if exact.len() <= 5 {
        return exact;
    }
    let power = (bytes.max(1).ilog2() / 10).min(UNITS.len() as u32);
    if power == 0 {
        return exact;
    }
    let number = format!("{:.2}", bytes as f64 / (1u64 << (10 * power)) as f64);
    let number = number.trim_end_matches('0').trim_end_matches('.');
    format!("{number}{}", UNITS[power as usize - 1])
}

/// Writes a size so that [`parse_size`] returns exactly the same number.
pub fn exact_size(bytes: u64) -> String {
    let power = (bytes.trailing_zeros() / 10).min(UNITS.len() as u32);
    match power {
        _ if bytes == 0 => "0".to_owned(),
        0 => bytes.to_string(),
        _ => format!("{}{}", bytes >> (10 * power), UNITS[power as usize - 1]),
    }
}

/// Reads a duration such as `12ms`, `1.5s`, `100us`, `2m`, `1h`.
///
/// *Errors*: a sentence about the mistake in the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is not a duration; write a number and a unit, such as 12ms, 1.5s or 2m");
    let (number, unit) = split(text.trim()).ok_or_else(wrong)?;
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let number = number.parse::<f64>().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

/// Reads a share such as `1%`, `0.5%` or `0.01`; the result is between 0 and 1.
///
/// *Errors*: a sentence about the mistake in the text.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let wrong = || format!("\"{text}\" is not a share; write one such as 1%, 0.5% or 0.01");
    let (number, unit) = split(text.trim()).ok_or_else(wrong)?;
    let number = number.parse::<f64>().map_err(|_| wrong())?;
    let share = match unit {
        "%" => number / 100.0,
        "" => number,
        _ => return Err(wrong()),
    };
    if share <= 1.0 { Ok(share) } else { Err(format!("\"{text}\" is more than 100%")) }
}

/// Splits a non-negative decimal number from the text after it.
fn split(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number.starts_with(|c: char| c.is_ascii_digit())).then_some((number, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512K", 512 << 10),
            ("512k", 512 << 10),
            ("10G", 10 << 30),
            ("10GiB", 10 << 30),
            ("10 GB", 10 << 30),
            ("1.5T", 3 << 39),
            ("15E", 15 << 60),
            ("1B", 1),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1X", "1GG", "1.2.3", "16E", "99999999999999999999", "1e3", "1é"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_back() {
        for bytes in [0, 1, 512, 4096, 5 << 20, (1 << 20) + 512, u64::MAX, 10 << 30, 3 << 39] {
            assert_eq!(parse_size(&exact_size(bytes)), Ok(bytes));
        }
        assert_eq!(format_size(10 << 30), "10G");
        assert_eq!(format_size(3 << 39), "1536G");
        assert_eq!(format_size(1_567_890_123), "1.46G");
        assert_eq!(format_size(1000), "1000");
        assert_eq!(format_size(100_000), "97.66K");
    }

    #[test]
    fn durations_and_shares_are_parsed() {
        assert_eq!(parse_duration("12ms"), Ok(Duration::from_millis(12)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_share("1%"), Ok(0.01));
        assert_eq!(parse_share("0.25"), Ok(0.25));
        for text in ["", "12", "1y", "ms", "99999999999999999999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        for text in ["", "101%", "2", "%", "1 percent"] {
            assert!(parse_share(text).is_err(), "{text}");
        }
    }
}
