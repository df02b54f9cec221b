//! What is found for a request, before a response is made of it.
//!
//! Owns: the types. `cached` finds one of them, and answers with it; `parts` joins several to one response.

use bytes::Bytes;
use http::{HeaderValue, Response};
use hyper::body::Incoming;
use nectary_store::{FillReader, StoredObject};

use super::super::pass::UnstoredReason;
use crate::access_log::CacheOutcome;
use crate::rules::cache_status::{CacheStatus, ForwardReason};
use crate::stored::response::StoredResponse;
use crate::upstream::{ConnectionLease, FetchError};

/// What answers a request.
pub(in crate::service) enum ReachedAnswer {
    /// A stored response, or one that is being stored.
    Usable(UsableResponse),
    /// A response that is not stored, and goes only to the requesting client.
    Unstored(Box<(Response<Incoming>, ConnectionLease)>, ForwardReason, UnstoredWay),
    /// The request goes to the origin without filling the store; a stored response may be served if the origin fails.
    Alone(ForwardReason, Option<StoredObject>),
    /// There is no response.
    Failed(FetchError, CacheStatus),
    /// Nothing stored may be served, and the request wants nothing else.
    NotStored,
    /// The origin gives no part that can be stored.
    NoPart,
}

/// How a response that is not stored answers the request that began its fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum UnstoredWay {
    /// It is passed on, but for what the request does not want of it.
    Direct(UnstoredReason),
    /// It is passed on as it is: the store cannot take it at present.
    Refused,
}

/// A response that answers a request, and what `NameCache-Status` and the log say of it.
pub(in crate::service) struct UsableResponse {
    pub body: UsableBody,
    pub status: CacheStatus,
    pub outcome: CacheOutcome,
    /// Cookies that are only for the requesting client, and that are not stored.
    pub cookies: Vec<HeaderValue>,
}

/// Where a response is.
pub(in crate::service) enum UsableBody {
    /// In the store; the number is its age in seconds.
    Object(StoredObject, u64),
    /// In a fetch under way.
    Filling(Box<FillingResponse>),
}

/// A response that is being stored.
pub(in crate::service) struct FillingResponse {
    pub reader: FillReader,
    pub stored: StoredResponse,
    pub metadata: Bytes,
    pub body_bytes: Option<u64>,
}

impl UsableResponse {
    /// The answer with a stored object.
    pub fn of_object(object: StoredObject, age_s: u64, status: CacheStatus, outcome: CacheOutcome) -> UsableResponse {
        UsableResponse { body: UsableBody::Object(object, age_s), status, outcome, cookies: Vec::new() }
    }
}
