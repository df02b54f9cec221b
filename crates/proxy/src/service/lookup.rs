//! Whether an object of the store answers a request: one decision for all code that serves hits.
//!
//! Owns: that decision. Its callers differ in how they write the answer: `direct` writes bytes, `hit` and `cached` make
//! responses with `reply`. Only `cached` can wait. The decision waits for nothing, and the metadata of an object are
//! decoded only once.

use http::HeaderName;
use nectary_store::StoredObject;

use crate::rules::cache_control::RequestDirectives;
use crate::rules::cache_status::ForwardReason;
use crate::rules::policy::ResponsePolicy;
use crate::rules::serve::{ServeVerdict, StoredFacts, decide};
use crate::stored::response::{ObjectView, StoredResponse};

/// The treatment of an object that was found.
pub(super) enum LookupVerdict<'a> {
    /// The object is the answer. The numbers are its age and its remaining lifetime in seconds.
    Serve(&'a StoredResponse, u64, i64),
    /// The object is the answer, and must be validated for the next request. The numbers are its age and its remaining
    /// lifetime in seconds.
    ServeAndValidate(u64, i64),
    /// The object must be validated first, for this reason.
    Validate(ForwardReason),
    /// The URL varies by these headers: look up the variant for the request's values.
    Varies(&'a [HeaderName]),
    /// The object's metadata cannot be read.
    Damaged,
}

impl LookupVerdict<'_> {
    /// Whether the object is a marker, and not a response.
    pub fn is_marker(&self) -> bool {
        matches!(self, LookupVerdict::Varies(_))
    }
}

/// The facts by which `policy` decides at `now_ms` about an object and the response in it.
pub(super) fn facts_of(
    policy: &ResponsePolicy,
    key: &[u8],
    object: &StoredObject,
    stored: &StoredResponse,
    now_ms: u64,
) -> StoredFacts {
    let facts = stored.facts(key, policy);
    object.stale_since_s().map_or(facts, |purged_s| facts.purged_at(purged_s, now_ms))
}

/// Decides about an object under the primary key `key` at `now_ms`.
#[inline]
pub(super) fn look_at<'a>(
    policy: &ResponsePolicy,
    key: &[u8],
    object: &'a StoredObject,
    directives: &RequestDirectives,
    now_ms: u64,
) -> LookupVerdict<'a> {
    match object.decoded(|bytes| ObjectView::read(bytes, key, policy)) {
        ObjectView::Response(stored) => {
            let verdict = match (stored.judged_anew(key, policy), object.stale_since_s()) {
                (None, None) => decide(&stored.stored, directives, now_ms),
                (Some(facts), None) => decide(&facts, directives, now_ms),
                (facts, Some(purged_s)) => {
                    decide(&facts.unwrap_or(stored.stored).purged_at(purged_s, now_ms), directives, now_ms)
                }
            };
            match verdict {
                ServeVerdict::Serve { age_s, ttl_s } => LookupVerdict::Serve(stored, age_s, ttl_s),
                ServeVerdict::ServeAndValidate { age_s, ttl_s } => LookupVerdict::ServeAndValidate(age_s, ttl_s),
                ServeVerdict::Validate(why) => LookupVerdict::Validate(why),
            }
        }
        ObjectView::Marker(names) => LookupVerdict::Varies(names),
        ObjectView::Damaged => LookupVerdict::Damaged,
    }
}
