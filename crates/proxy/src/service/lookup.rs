//! Whether an object of the store answers a request: one decision for all code that serves hits.
//!
//! Owns: that decision. Its callers differ in how they write the answer: `direct` writes bytes, `hit` and `cached` make
//! responses with `reply`. Only `cached` can wait. The decision waits for nothing, and the metadata of an object are
//! decoded only once.

use http::HeaderName;
use nectary_store::Object;

use crate::rules::cache_control::RequestDirectives;
use crate::rules::cache_status::Forward;
use crate::rules::policy::Policy;
use crate::rules::serve::{Stored, Verdict, decide};
use crate::stored::response::{Found, StoredResponse};

/// The treatment of an object that was found.
pub(super) enum Lookup<'a> {
    /// The object is the answer. The numbers are its age and its remaining lifetime in seconds.
    Serve(&'a StoredResponse, u64, i64),
    /// The object is the answer, and must be validated for the next request. The numbers are its age and its remaining
    /// lifetime in seconds.
    ServeAndValidate(u64, i64),
    /// The object must be validated first, for this reason.
    Validate(Forward),
    /// The URL varies by these headers: look up the variant for the request's values.
    Varies(&'a [HeaderName]),
    /// The object's metadata cannot be read.
    Damaged,
}

impl Lookup<'_> {
    /// Whether the object is a marker, and not a response.
    pub fn is_marker(&self) -> bool {
        matches!(self, Lookup::Varies(_))
    }
}

/// The facts by which `policy` decides at `now_ms` about an object and the response in it.
pub(super) fn facts_of(policy: &Policy, key: &[u8], object: &Object, stored: &StoredResponse, now_ms: u64) -> Stored {
    let facts = stored.facts(key, policy);
    object.stale_since_s().map_or(facts, |purged_s| facts.purged_at(purged_s, now_ms))
}

/// Decides about an object under the primary key `key` at `now_ms`.
#[inline]
pub(super) fn look_at<'a>(
    policy: &Policy,
    key: &[u8],
    object: &'a Object,
    directives: &RequestDirectives,
    now_ms: u64,
) -> Lookup<'a> {
    match object.decoded(|bytes| Found::read(bytes, key, policy)) {
        Found::Response(stored) => {
            let verdict = match (stored.judged_anew(key, policy), object.stale_since_s()) {
                (None, None) => decide(&stored.stored, directives, now_ms),
                (Some(facts), None) => decide(&facts, directives, now_ms),
                (facts, Some(purged_s)) => {
                    decide(&facts.unwrap_or(stored.stored).purged_at(purged_s, now_ms), directives, now_ms)
                }
            };
            match verdict {
                Verdict::Serve { age_s, ttl_s } => Lookup::Serve(stored, age_s, ttl_s),
                Verdict::ServeAndValidate { age_s, ttl_s } => Lookup::ServeAndValidate(age_s, ttl_s),
                Verdict::Validate(why) => Lookup::Validate(why),
            }
        }
        Found::Marker(names) => Lookup::Varies(names),
        Found::Damaged => Lookup::Damaged,
    }
}
