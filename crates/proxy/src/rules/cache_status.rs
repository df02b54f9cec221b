//! `NameCache-Status`: what this cache did with a request.
//!
//! Owns: the list member that this cache appends to `NameCache-Status` in every response. *Source*: RFC 9211.

use std::io::Write;

use http::HeaderValue;

/// The name of this cache.
pub const CACHE_NAME: &str = "nectary";

/// The reason why a request was forwarded to the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardReason {
    /// The cache does not handle this request.
    Bypass,
    /// The method is never answered from the store.
    Method,
    /// Nothing is stored for the URL.
    UriMiss,
    /// Responses are stored for the URL, but for other request headers.
    VaryMiss,
    /// The request's directives demand a request to the origin.
    Request,
    /// The stored response is stale.
    Stale,
}

impl ForwardReason {
    /// The token that RFC 9211 defines for the reason.
    pub fn token(self) -> &'static str {
        match self {
            ForwardReason::Bypass => "bypass",
            ForwardReason::Method => "method",
            ForwardReason::UriMiss => "uri-miss",
            ForwardReason::VaryMiss => "vary-miss",
            ForwardReason::Request => "request",
            ForwardReason::Stale => "stale",
        }
    }
}

/// What this cache did with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheStatus {
    /// The request was answered from the store.
    Hit {
        /// The remaining lifetime of the response in seconds; negative if it is stale.
        ttl_s: i64,
    },
    /// The request was forwarded to the origin.
    Forwarded {
        /// The reason why the request was forwarded.
        why: ForwardReason,
        /// The origin's status, if it answered.
        status: Option<u16>,
        /// Whether the response is being stored on the disk. It is not stored there if the store's admission rule
        /// refused it.
        stored: bool,
        /// Whether the request waited for another request's fetch.
        collapsed: bool,
    },
    /// The request was forwarded to the origin, and the response was not stored for a reason that is known.
    Unstored {
        /// The reason why the request was forwarded.
        why: ForwardReason,
        /// The origin's status.
        status: u16,
        /// A token that names the reason why the response was not stored.
        detail: &'static str,
    },
    /// The request was answered from the store with a stale response because the origin failed.
    Stale {
        /// The reason why the request was forwarded.
        why: ForwardReason,
        /// The origin's status, if it answered.
        status: Option<u16>,
        /// The remaining lifetime of the response in seconds; zero or negative.
        ttl_s: i64,
    },
    /// This cache itself answered the request, without the store or an origin.
    Own {
        /// A token that names the reason.
        detail: &'static str,
    },
}

impl CacheStatus {
    /// The list member, as a header value.
    pub fn value(&self) -> HeaderValue {
        let mut text = Vec::with_capacity(64);
        self.write(&mut text);
        HeaderValue::from_maybe_shared(bytes::Bytes::from(text)).expect("tokens and digits")
    }

    fn write(&self, out: &mut Vec<u8>) {
        let result = match self {
            CacheStatus::Hit { ttl_s } => write!(out, "{CACHE_NAME}; hit; ttl={ttl_s}"),
            CacheStatus::Forwarded { why, status, stored, collapsed } => {
                let mut result = write!(out, "{CACHE_NAME}; fwd={}", why.token());
                if let Some(status) = status {
                    result = result.and_then(|()| write!(out, "; fwd-status={status}"));
                }
                if *stored {
                    out.extend_from_slice(b"; stored");
                }
                if *collapsed {
                    out.extend_from_slice(b"; collapsed");
                }
                result
            }
            CacheStatus::Unstored { why, status, detail } => {
                write!(out, "{CACHE_NAME}; fwd={}; fwd-status={status}; detail={detail}", why.token())
            }
            CacheStatus::Stale { why, status, ttl_s } => {
                let result = write!(out, "{CACHE_NAME}; fwd={}", why.token());
                let result = match status {
                    Some(status) => result.and_then(|()| write!(out, "; fwd-status={status}")),
                    None => result,
                };
                result.and_then(|()| write!(out, "; ttl={ttl_s}; detail=stale"))
            }
            CacheStatus::Own { detail } => write!(out, "{CACHE_NAME}; detail={detail}"),
        };
        result.expect("a Vec takes what is written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_status_follows_rfc_9211() {
        let forwarded = |why, status, stored, collapsed| CacheStatus::Forwarded { why, status, stored, collapsed };
        let table = [
            (CacheStatus::Hit { ttl_s: 376 }, "nectary; hit; ttl=376"),
            (CacheStatus::Hit { ttl_s: -4 }, "nectary; hit; ttl=-4"),
            (
                forwarded(ForwardReason::UriMiss, Some(200), true, false),
                "nectary; fwd=uri-miss; fwd-status=200; stored",
            ),
            (
                forwarded(ForwardReason::VaryMiss, Some(200), true, true),
                "nectary; fwd=vary-miss; fwd-status=200; stored; collapsed",
            ),
            (forwarded(ForwardReason::Stale, Some(304), false, false), "nectary; fwd=stale; fwd-status=304"),
            (forwarded(ForwardReason::Request, None, false, false), "nectary; fwd=request"),
            (forwarded(ForwardReason::Method, Some(201), false, false), "nectary; fwd=method; fwd-status=201"),
            (forwarded(ForwardReason::Bypass, None, false, false), "nectary; fwd=bypass"),
            (
                CacheStatus::Unstored { why: ForwardReason::UriMiss, status: 200, detail: "too-large" },
                "nectary; fwd=uri-miss; fwd-status=200; detail=too-large",
            ),
            (CacheStatus::Own { detail: "loop" }, "nectary; detail=loop"),
            (
                CacheStatus::Stale { why: ForwardReason::Stale, status: Some(503), ttl_s: -4 },
                "nectary; fwd=stale; fwd-status=503; ttl=-4; detail=stale",
            ),
            (
                CacheStatus::Stale { why: ForwardReason::Stale, status: None, ttl_s: 0 },
                "nectary; fwd=stale; ttl=0; detail=stale",
            ),
        ];
        for (status, expected) in table {
            assert_eq!(status.value(), expected);
        }
    }
}
