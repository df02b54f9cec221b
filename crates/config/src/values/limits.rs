//! The limits of a proxy.
//!
//! Owns: the values of `[limits]`.

use std::fmt;
use std::time::Duration;

use crate::place::Setting;

/// `[limits]`: sizes, counts and times that clients and origins could otherwise choose. The keys have the names of the
/// options of `nectary proxy`, and their bounds; those by client network are only here. Times are a year (366 days) at
/// most.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LimitConfig {
    /// `connections-max`: connections of clients at a time; at least 1. Default: 10,000.
    pub connections_max: Setting<u32>,
    /// `client-connections-max`: connections of one client network at a time; at least 1. Default: no limit.
    pub client_connections_max: Setting<u32>,
    /// `client-requests`: how often one client network may send requests. Default: no limit.
    pub client_requests: Setting<RequestRate>,
    /// `request-head-max`: the longest head of a request. *Units*: bytes, 1 KiB to 16 MiB. Default: 32 KiB.
    pub request_head_bytes_max: Setting<u64>,
    /// `response-head-max`: the longest head of an origin's response. *Units*: bytes, 1 KiB to 16 MiB. Default: 32 KiB.
    pub response_head_bytes_max: Setting<u64>,
    /// `headers-max`: headers of a message; 1 to 10,000. Default: 100.
    pub headers_max: Setting<u16>,
    /// `url-max`: the longest URL; at most as long as a request's head. *Units*: bytes, at least 1. Default: 8,000.
    pub url_bytes_max: Setting<u64>,
    /// `upload-max`: the longest body of a request. *Units*: bytes. Default: 1 GiB.
    pub upload_bytes_max: Setting<u64>,
    /// `fills-max`: fetches for the store at a time, in each worker; at least 1. Default: 1,000.
    pub fills_max: Setting<u32>,
    /// `range-start-max`: a range that starts beyond this is fetched alone and not stored. *Units*: bytes. Default:
    /// 16 MiB.
    pub range_start_bytes_max: Setting<u64>,
    /// `origin-idle-max`: unused connections that each worker keeps to one origin. Default: 128.
    pub origin_idle_max: Setting<u32>,
    /// `head-time`: how long the head of a request may take; not 0. Default: 20 s.
    pub head_time: Setting<Duration>,
    /// `keep-alive`: how long a client's connection stays open without a request; not 0. Default: 75 s.
    pub keep_alive: Setting<Duration>,
    /// `client-silence`: how long a client may send nothing of its request's body; 0 for any time. Default: 60 s.
    pub client_silence: Setting<Duration>,
    /// `send-silence`: how long a peer may take no byte of what is sent to it; 0 for any time. Default: 60 s.
    pub send_silence: Setting<Duration>,
    /// `connect-time`: how long connecting to an origin may take, with TLS; not 0. Default: 10 s.
    pub connect_time: Setting<Duration>,
    /// `first-byte`: from the request to the end of the response's head; not 0. Default: 60 s.
    pub first_byte: Setting<Duration>,
    /// `origin-silence`: how long an origin may send nothing of a body; 0 for any time. Default: 60 s.
    pub origin_silence: Setting<Duration>,
    /// `origin-keep-alive`: how long an unused connection to an origin is kept; not 0. Default: 30 s.
    pub origin_keep_alive: Setting<Duration>,
    /// `tunnel-silence`: how long a tunnel may carry nothing in either direction; 0 for any time. Default: 10 min.
    pub tunnel_silence: Setting<Duration>,
    /// `drain`: how long responses may go on after SIGTERM. Default: 30 s.
    pub drain: Setting<Duration>,
}

/// How often requests may come, as `50/s` or `600/min`. As many may come at once as in a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestRate {
    /// The requests in a period: 1 to [`COUNT_MAX`](RequestRate::COUNT_MAX).
    pub count: u32,
    /// The period.
    pub period: Duration,
}

impl RequestRate {
    /// The most requests in a period.
    pub const COUNT_MAX: u32 = 1_000_000;

    /// The names of the periods, and their lengths. *Units*: seconds.
    pub const PERIODS: [(&'static str, u64); 2] = [("s", 1), ("min", 60)];
}

/// Writes the rate as the file has it.
impl fmt::Display for RequestRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.count;
        match RequestRate::PERIODS.iter().find(|(_, seconds)| Duration::from_secs(*seconds) == self.period) {
            Some((name, _)) => write!(f, "{count}/{name}"),
            None => write!(f, "{count} in {:?}", self.period),
        }
    }
}
