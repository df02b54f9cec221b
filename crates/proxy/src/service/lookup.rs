//! Whether an object of the store answers a request: one decision for all code that serves hits.
//!
//! Owns: that decision. Its callers differ in what they can wait for and in how they write the answer: `direct` writes
//! bytes, `hit` and `cached` make responses with `reply`. The decision waits for nothing, and the metadata of an object
//! are decoded only once.

use http::HeaderName;
use nectary_store::Object;

use crate::rules::cache_control::RequestDirectives;
use crate::rules::cache_status::Forward;
use crate::rules::serve::{Verdict, decide};
use crate::stored::response::{Found, StoredResponse};
use crate::worker::Worker;

/// The treatment of an object that was found.
pub(super) enum Lookup<'a> {
    /// It is the answer, with its age and its remaining lifetime in seconds.
    Serve(&'a StoredResponse, u64, i64),
    /// It is the answer, with its age and its remaining lifetime in seconds, and it must be validated for the next
    /// request.
    ServeAndValidate(u64, i64),
    /// It must be validated first, for this reason.
    Validate(Forward),
    /// The URL varies by these headers: look up the variant for the request's values.
    Varies(&'a [HeaderName]),
    /// Its metadata cannot be read.
    Damaged,
}

/// Decides about an object under the primary key `key` at `now_ms`.
#[inline]
pub(super) fn look_at<'a>(
    worker: &Worker,
    key: &[u8],
    object: &'a Object,
    directives: &RequestDirectives,
    now_ms: u64,
) -> Lookup<'a> {
    match object.decoded(|bytes| Found::read(bytes, key, &worker.policy)) {
        Found::Response(stored) => match decide(&stored.stored, directives, now_ms) {
            Verdict::Serve { age_s, ttl_s } => Lookup::Serve(stored, age_s, ttl_s),
            Verdict::ServeAndValidate { age_s, ttl_s } => Lookup::ServeAndValidate(age_s, ttl_s),
            Verdict::Validate(why) => Lookup::Validate(why),
        },
        Found::Marker(names) => Lookup::Varies(names),
        Found::Damaged => Lookup::Damaged,
    }
}
