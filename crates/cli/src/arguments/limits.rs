//! The limits of a proxy: sizes, counts and times that clients and origins could otherwise choose.

use std::time::Duration;

use clap::Args;
use nectary_block::{parse_duration, parse_size};
use nectary_proxy::ProxyLimits;

/// The limits of `proxy`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits (times as 500ms, 60s, 10m, 1h)")]
pub struct LimitArguments {
    /// Connections of clients at a time; others get 503. It is less where the limit of open files (`ulimit -Hn`) does
    /// not suffice for them and as many to origins; `nectary status --json` shows both
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value = "10000")]
    pub connections_max: u32,
    /// The longest head of a request
    #[arg(long, value_name = "SIZE", value_parser = parse_head_size, default_value = "32K")]
    pub request_head_max: u64,
    /// The longest head of an origin's response
    #[arg(long, value_name = "SIZE", value_parser = parse_head_size, default_value = "32K")]
    pub response_head_max: u64,
    /// Headers of a request or response, at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000), default_value = "100")]
    pub headers_max: u16,
    /// The longest URL, at most as long as a request's head, for example 8000 or 16K
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "8000")]
    pub url_max: u64,
    /// The longest body of a request
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    pub upload_max: u64,
    /// Fetches for the store at a time, in each worker; others are passed on and not stored
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value = "1000")]
    pub fills_max: u32,
    /// A range that starts beyond this is fetched alone and not stored
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "16M")]
    pub range_start_max: u64,
    /// Unused connections that each worker keeps to one origin
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32), default_value = "128")]
    pub origin_idle_max: u32,
    /// How long the head of a request may take
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "20s")]
    pub head_time: Duration,
    /// How long a client's connection stays open without a request
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "75s")]
    pub keep_alive: Duration,
    /// How long a client may send nothing of its request's body; 0s for any time
    #[arg(long, value_name = "TIME", value_parser = parse_any_time, default_value = "60s")]
    pub client_silence: Duration,
    /// How long a client or an origin may take no byte of what is sent to it; 0s for any time
    #[arg(long, value_name = "TIME", value_parser = parse_any_time, default_value = "60s")]
    pub send_silence: Duration,
    /// How long connecting to an origin may take, at all its addresses and with TLS
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "10s")]
    pub connect_time: Duration,
    /// How long an origin may take from the request to the end of the response's head
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "60s")]
    pub first_byte: Duration,
    /// How long an origin may send nothing of a response's body; longer for streams of events, 0s for any time
    #[arg(long, value_name = "TIME", value_parser = parse_any_time, default_value = "60s")]
    pub origin_silence: Duration,
    /// How long an unused connection to an origin is kept
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "30s")]
    pub origin_keep_alive: Duration,
    /// How long a tunnel (CONNECT, WebSocket) may carry nothing in either direction; 0s for any time
    #[arg(long, value_name = "TIME", value_parser = parse_any_time, default_value = "10m")]
    pub tunnel_silence: Duration,
    /// How long responses may go on after SIGTERM; the store is closed at once
    #[arg(long, value_name = "TIME", value_parser = parse_any_time, default_value = "30s")]
    pub drain: Duration,
}

impl LimitArguments {
    /// The limits in the form that the proxy takes.
    pub fn limits(&self) -> ProxyLimits {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut limits = ProxyLimits::default();
        limits.connections_max = self.connections_max as usize;
        limits.request_head_bytes_max = size(self.request_head_max);
        limits.response_head_bytes_max = size(self.response_head_max);
        limits.headers_max = self.headers_max.into();
        limits.url_bytes_max = size(self.url_max);
        limits.request_body_bytes_max = self.upload_max;
        limits.fills_max = self.fills_max as usize;
        limits.range_fill_start_bytes_max = self.range_start_max;
        limits.origin_idle_connections_max = self.origin_idle_max as usize;
        limits.head_timeout = self.head_time;
        limits.keep_alive_timeout = self.keep_alive;
        limits.body_timeout = self.client_silence;
        limits.write_timeout = self.send_silence;
        limits.connect_timeout = self.connect_time;
        limits.response_timeout = self.first_byte;
        limits.origin_body_timeout = self.origin_silence;
        limits.origin_idle_timeout = self.origin_keep_alive;
        limits.tunnel_timeout = self.tunnel_silence;
        limits.drain_timeout = self.drain;
        limits
    }
}

/// Reads the size of a head: less would refuse every request, and more would let a client occupy memory.
fn parse_head_size(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes @ 1024..=0x100_0000 => Ok(bytes),
        _ => Err("a head has 1K to 16M".to_owned()),
    }
}

/// The longest time that a limit may have. Longer ones have no use, and sums of them could be too large.
const TIME_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// Reads a time, which may be zero.
pub(super) fn parse_any_time(text: &str) -> Result<Duration, String> {
    at_most_a_year(parse_duration(text)?)
}

/// Refuses a time that is too long for a limit.
pub(super) fn at_most_a_year(time: Duration) -> Result<Duration, String> {
    if time > TIME_MAX { Err("a limit is a year at most".to_owned()) } else { Ok(time) }
}

/// Reads a time that is not zero.
fn parse_time(text: &str) -> Result<Duration, String> {
    match parse_any_time(text)? {
        Duration::ZERO => Err("this time must be longer than 0s".to_owned()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{NectaryArguments, NectaryCommand};
    use clap::Parser;

    fn limits(options: &str) -> Option<ProxyLimits> {
        let line = format!("nectary proxy --listen :80 --store ./a {options}");
        match NectaryArguments::try_parse_from(line.split_whitespace()).ok()?.command {
            NectaryCommand::Proxy(arguments) => Some(arguments.limits.limits()),
            _ => None,
        }
    }

    #[test]
    fn defaults_are_those_of_the_proxy() {
        assert_eq!(limits("").expect("parsed").figures(), ProxyLimits::default().figures());
    }

    #[test]
    fn disk_deadlines_may_be_short() {
        for (text, ms) in [("250ms", 250), ("1.5s", 1500), ("2s", 2000), ("5", 5000), ("0", 0)] {
            assert_eq!(crate::arguments::parse_deadline(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert!(
            crate::arguments::parse_deadline("9999999h").is_err() && crate::arguments::parse_deadline("x").is_err()
        );
    }

    #[test]
    fn every_limit_is_an_option() {
        let given = "--connections-max 1 --request-head-max 2K --response-head-max 3K --headers-max 4 --url-max 5 \
                     --upload-max 6 --fills-max 7 --range-start-max 8 --origin-idle-max 9 --head-time 10s \
                     --keep-alive 11s --client-silence 12s --send-silence 13s --connect-time 14s --first-byte 15s \
                     --origin-silence 16s --origin-keep-alive 17s --tunnel-silence 18s --drain 19s";
        let (given, usual) = (limits(given).expect("parsed").figures(), ProxyLimits::default().figures());
        let (given, usual) = (given.as_object().expect("a map"), usual.as_object().expect("a map"));
        assert_eq!(given.len(), 19);
        given.iter().for_each(|(name, value)| assert_ne!(value, &usual[name], "{name} has no option"));
        for wrong in ["--url-max x", "--request-head-max 5", "--head-time 0s", "--headers-max 0", "--drain 5"] {
            assert!(limits(wrong).is_none(), "{wrong}");
        }
        for option in
            ["head-time", "keep-alive", "client-silence", "connect-time", "first-byte", "tunnel-silence", "drain"]
        {
            assert!(limits(&format!("--{option} 8784h")).is_some(), "{option}");
            for wrong in ["8785h", "5000000000000000000s", "9223372036854775807s"] {
                assert!(limits(&format!("--{option} {wrong}")).is_none(), "{option} {wrong}");
            }
        }
    }
}
