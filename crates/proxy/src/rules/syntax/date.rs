//! HTTP dates.
//!
//! Owns: reading the three forms of RFC 9110, 5.6.7. Two common mistakes, which do not change the date, are accepted:
//! names in another case, and a wrong weekday. Everything else must follow the RFC: a date in another time zone, or
//! without some fields, is not a date.

/// The names of the months.
const MONTHS: [&[u8]; 12] =
    [b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec"];
/// The names of the days; two of the forms use only the first three letters.
const DAYS: [&[u8]; 7] = [b"monday", b"tuesday", b"wednesday", b"thursday", b"friday", b"saturday", b"sunday"];

/// Reads a date as Unix seconds; `None` if the value is not a date, or is before 1970.
///
/// Years with two digits from 70 on are in the 1900s, others in the 2000s.
pub fn parse_date_s(value: &http::HeaderValue) -> Option<u64> {
    let text = value.as_bytes().to_ascii_lowercase();
    let (day_name, rest) = text.split_at(text.iter().position(|byte| !byte.is_ascii_alphabetic())?);
    let is_short = DAYS.iter().any(|day| &day[..3] == day_name);
    let (year, month, day, time) = match (is_short, rest) {
        // Sun, 06 Nov 1994 08:49:37 GMT
        (true, [b',', b' ', d @ .., b' ', b'g', b'm', b't']) => {
            let [d1, d2, b' ', m1, m2, m3, b' ', year @ .., b' ', _, _, _, _, _, _, _, _] = d else { return None };
            (number(year, 4)?, [*m1, *m2, *m3], number(&[*d1, *d2], 2)?, &d[d.len() - 8..])
        }
        // Sun Nov  6 08:49:37 1994
        (true, [b' ', m1, m2, m3, b' ', d1, d2, b' ', time @ .., b' ', _, _, _, _]) => {
            let day = if *d1 == b' ' { number(&[*d2], 1)? } else { number(&[*d1, *d2], 2)? };
            (number(&rest[rest.len() - 4..], 4)?, [*m1, *m2, *m3], day, time)
        }
        // Sunday, 06-Nov-94 08:49:37 GMT
        (false, [b',', b' ', d1, d2, b'-', m1, m2, m3, b'-', y1, y2, b' ', time @ .., b' ', b'g', b'm', b't'])
            if DAYS.contains(&day_name) =>
        {
            let year = number(&[*y1, *y2], 2)?;
            (year + if year < 70 { 2000 } else { 1900 }, [*m1, *m2, *m3], number(&[*d1, *d2], 2)?, time)
        }
        _ => return None,
    };
    let [h1, h2, b':', m1, m2, b':', s1, s2] = *time else { return None };
    let (hour, minute, second) = (number(&[h1, h2], 2)?, number(&[m1, m2], 2)?, number(&[s1, s2], 2)?);
    let month = MONTHS.iter().position(|name| **name == month)? as u64;
    if year < 1970 || day < 1 || day > days_in(year, month) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // A leap second counts as the second before it.
    Some((days_before(year, month) + day - 1) * 86_400 + hour * 3600 + minute * 60 + second.min(59))
}

/// Reads a number of exactly `count` digits.
fn number(digits: &[u8], count: usize) -> Option<u64> {
    let is_number = digits.len() == count && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// The number of days in a month; `month` counts from 0.
fn days_in(year: u64, month: u64) -> u64 {
    match month {
        1 if is_leap(year) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

/// The number of days from the start of 1970 to the first of a month; `month` counts from 0, and `year` is 1970 or
/// later.
fn days_before(year: u64, month: u64) -> u64 {
    let leap_years = |until: u64| until / 4 - until / 100 + until / 400;
    let years = (year - 1970) * 365 + leap_years(year - 1) - leap_years(1969);
    years + (0..month).map(|month| days_in(year, month)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use std::time::{Duration, UNIX_EPOCH};

    fn parse(text: &str) -> Option<u64> {
        parse_date_s(&HeaderValue::from_str(text).expect("a value"))
    }

    /// Case and weekday do not matter.
    #[test]
    fn three_date_forms_parse() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "SUN, 06 nov 1994 08:49:37 gMT",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Mon Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(text), Some(784_111_777), "{text}");
        }
        assert_eq!(parse("Sun Nov 16 08:49:37 1994"), Some(784_111_777 + 864_000));
        assert_eq!(parse("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(parse("Thu, 18 Aug 2050 02:01:18 GMT"), Some(2_544_400_878));
        assert_eq!(parse("Sat, 31 Dec 2016 23:59:60 GMT"), parse("Sat, 31 Dec 2016 23:59:59 GMT"));
    }

    #[test]
    fn malformed_date_is_none() {
        for text in [
            "",
            "0",
            "yesterday",
            "Thu, 18 Aug 2050 02:01:18 UTC",
            "Thu, 18 Aug 2050 02:01:18 AEST",
            "Thu, 18 Aug 2050 02:01:18",
            "Thu, 18 Aug 50 02:01:18 GMT",
            "Thu 18 Aug 2050 02:01:18 GMT",
            "Thu, 18  Aug  2050 02:01:18 GMT",
            "Thu, 18-Aug-2050 02:01:18 GMT",
            "Thu, 18 Aug 2050 02.01.18 GMT",
            "Thu, 18 Aug 2050 2:01:18 GMT",
            "Thu, 8 Aug 2050 02:01:18 GMT",
            "Thu, 32 Aug 2050 02:01:18 GMT",
            "Thu, 00 Aug 2050 02:01:18 GMT",
            "Thu, 30 Feb 2052 02:01:18 GMT",
            "Thu, 29 Feb 2051 02:01:18 GMT",
            "Thu, 18 Aug 2050 24:01:18 GMT",
            "Thu, 18 Aug 2050 02:60:18 GMT",
            "Thu, 18 Aug 1969 02:01:18 GMT",
            "Xyz, 18 Aug 2050 02:01:18 GMT",
            "Thursday, 18 Aug 2050 02:01:18 GMT",
            "Thu, 18-Aug-50 02:01:18 GMT",
            "Thu Aug 8 02:01:18 2050",
            ", ",
            "thu, gmt",
            "thu, 18 aug  gmt",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        // The times are about nine days apart, up to the year 2169.
        for step in 0..8000 {
            let unix_s = step * (9 * 86_400 + 4321);
            let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(unix_s));
            assert_eq!(parse(&text), Some(unix_s), "{text}");
        }
    }
}
