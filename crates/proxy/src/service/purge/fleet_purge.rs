//! Purges in a fleet: the answers to them.
//!
//! Owns: what a purge of a fleet is answered with. A purge that every living node has applied gets 200; one that is in the
//! log, or waits for etcd, gets 202 and says who has not confirmed it. Leaves to others: the order of purges, and applying
//! them (the fleet).

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use nectary_host::fleet::{FleetError, PurgeScope, PurgeWish};
use nectary_store::PurgeEffect;
use serde_json::Value;

use super::super::reply::own;
use super::super::request::ClientRequest;
use super::purge_answer;
use crate::body::ReplyBody;
use crate::fleet::{FleetSeat, outcome_json, outcome_text};

/// The header of a purge that says what its answer waits for: `accepted` or `applied`.
const WAIT: &str = "nectary-purge-wait";

/// What a purge is about, for its answer.
pub(super) struct PurgedThings {
    /// As JSON.
    pub json: Value,
    /// As text.
    pub text: String,
}

/// What a purge wishes to wait for; `Err` if its header is unclear.
pub(super) fn wish_of(headers: &HeaderMap) -> Result<Option<PurgeWish>, &'static str> {
    let mut values = headers.get_all(WAIT).iter();
    match (values.next().map(|value| value.as_bytes().trim_ascii()), values.next()) {
        (None, None) => Ok(None),
        (Some(b"applied"), None) => Ok(Some(PurgeWish::Applied)),
        (Some(b"accepted"), None) => Ok(Some(PurgeWish::Accepted)),
        _ => Err("The header Nectary-Purge-Wait of a purge is `applied` or `accepted`."),
    }
}

/// Purges on every node. *Durability*: as the answer says.
pub(super) async fn purge(
    request: &ClientRequest,
    seat: &FleetSeat,
    (scope, effect, wish): (PurgeScope, PurgeEffect, Option<PurgeWish>),
    PurgedThings { mut json, text }: PurgedThings,
) -> Response<ReplyBody> {
    let soft_since_s = match effect {
        PurgeEffect::Hard => None,
        PurgeEffect::Soft { since_s } => Some(since_s),
    };
    // The keys were made just now, by the same table.
    let rules = request.worker.sites.borrow().rules();
    let outcome = match seat.purge((scope, rules), soft_since_s, wish).await {
        Ok(outcome) => outcome,
        Err(error) => return failed(request, &error),
    };
    json["fleet"] = outcome_json(&outcome);
    let verb = if soft_since_s.is_some() { "stale from now on:" } else { "purged" };
    if soft_since_s.is_some() {
        json["soft"] = true.into();
    }
    let is_as_wished = outcome.is_applied || (seat.wish_of(wish) == PurgeWish::Accepted && !outcome.is_queued);
    let status = if is_as_wished { StatusCode::OK } else { StatusCode::ACCEPTED };
    let detail = match (outcome.is_queued, outcome.is_applied) {
        (true, _) => "purge-queued",
        (false, true) => "purge-applied",
        (false, false) => "purge-accepted",
    };
    purge_answer(request, (status, detail), json, &format!("{verb} {text}; {}", outcome_text(&outcome)))
}

/// The answer to a purge that the fleet has not accepted.
fn failed(request: &ClientRequest, error: &FleetError) -> Response<ReplyBody> {
    let (status, detail) = match error {
        FleetError::Away(_) => (StatusCode::SERVICE_UNAVAILABLE, "fleet-away"),
        FleetError::Unknown(_) => (StatusCode::GATEWAY_TIMEOUT, "purge-unknown"),
        FleetError::TooMany(_) => (StatusCode::TOO_MANY_REQUESTS, "purge-rate"),
        FleetError::QueueFull(_) => (StatusCode::SERVICE_UNAVAILABLE, "purge-queue"),
        FleetError::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "purge-too-large"),
        FleetError::RulesDiffer => (StatusCode::SERVICE_UNAVAILABLE, "rules-differ"),
        FleetError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        FleetError::Message(_) => (StatusCode::INTERNAL_SERVER_ERROR, "fleet"),
    };
    let mut response = own(request, status, detail, &error.to_string(), false);
    if matches!(error, FleetError::Away(_) | FleetError::TooMany(_) | FleetError::QueueFull(_)) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_header_is_applied_or_accepted() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(WAIT, HeaderValue::from_static(value));
            }
            wish_of(&headers)
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&["applied"]), Ok(Some(PurgeWish::Applied)));
        assert_eq!(of(&["accepted"]), Ok(Some(PurgeWish::Accepted)));
        for unclear in [&[""][..], &["yes"], &["applied", "accepted"]] {
            assert!(of(unclear).is_err(), "{unclear:?}");
        }
    }
}
