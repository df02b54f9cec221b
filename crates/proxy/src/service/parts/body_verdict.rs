//! What an answer to the request for a part says of the body that other parts are of.
//!
//! Owns: that judgement, and what follows from it before the next request. A stored part is validated first if another node
//! that asks for it has a part of another body, which may be a newer one, or if it is of a body that the origin is known to
//! have no longer. So the owner of a URL loses no part of its new body because a node had one of the old body. Leaves to
//! others: what is known of bodies (`part_purges`), and sending parts (`joined_body`).

use http::{HeaderValue, StatusCode};

use super::super::cached::{self, ReachedAnswer, UsableBody};
use super::super::request::ClientRequest;
use super::part_facts::PartFacts;
use super::part_range::PartRange;
use super::{facts_of, read};
use crate::access_log::CacheOutcome;

/// What an answer says of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyVerdict {
    /// It is a part of this body.
    Same,
    /// The origin has another body, or none.
    Other,
    /// Nothing.
    Unknown,
}

/// Judges what was reached for a part; `is_same` says whether a part with these facts is of the body.
pub(super) fn judge(
    request: &ClientRequest,
    part: PartRange,
    reached: &ReachedAnswer,
    is_same: impl Fn(&PartFacts) -> bool,
) -> BodyVerdict {
    let status = match reached {
        ReachedAnswer::Usable(found) => match facts_of(request, part, &found.body) {
            Some(facts) if is_same(&facts) => return BodyVerdict::Same,
            Some(_) => return BodyVerdict::Other,
            None => read(request, &found.body, |stored| stored.head.status),
        },
        // A part that is not stored is judged by those who use it.
        ReachedAnswer::Unstored(unstored, ..) => {
            Some(unstored.0.status()).filter(|status| *status != StatusCode::PARTIAL_CONTENT)
        }
        ReachedAnswer::Alone(..) | ReachedAnswer::Failed(..) => None,
        ReachedAnswer::NotStored | ReachedAnswer::NoPart => return BodyVerdict::Other,
    };
    if status.is_some_and(is_about_the_body) { BodyVerdict::Other } else { BodyVerdict::Unknown }
}

/// Whether an answer with this status, instead of a part, says that the origin has another body or none. Any other may
/// be about the client, as a `401`, or about the moment, as a `429`: no client may purge by it what others use.
fn is_about_the_body(status: StatusCode) -> bool {
    status.is_success() || matches!(status.as_u16(), 301 | 308 | 404 | 410 | 416)
}

/// Lets a stored part be validated if it may be of a body that the origin no longer has. `continued` is the validator of the
/// body of which the node that asks has another part.
pub(super) async fn doubt(of_part: &mut ClientRequest, part: PartRange, continued: Option<&HeaderValue>) {
    let purges = of_part.worker.part_purges.clone();
    if continued.is_none() && !purges.knows_gone(&of_part.key) {
        return;
    }
    let Some(object) = cached::stored_part(of_part).await else { return };
    let facts = facts_of(of_part, part, &UsableBody::Object(object, 0));
    let found = facts.as_ref().map(PartFacts::validator);
    let is_gone = found.is_some_and(|found| purges.is_gone(&of_part.key, found));
    if is_gone || continued.is_some_and(|continued| found != Some(continued)) {
        of_part.directives.no_cache = true;
    }
}

/// Notes which body the origin has by what was reached for a part, and that it has no longer the one that is `continued`.
pub(super) fn note_body(
    request: &ClientRequest,
    part: PartRange,
    continued: Option<&HeaderValue>,
    reached: &ReachedAnswer,
) {
    let purges = &request.worker.part_purges;
    if let ReachedAnswer::Usable(found) = reached {
        if matches!(found.outcome, CacheOutcome::Hit | CacheOutcome::Stale) {
            // The origin has not said it.
            return;
        }
        if purges.knows_gone(&request.key)
            && let Some(facts) = facts_of(request, part, &found.body)
        {
            purges.note_present(&request.key, facts.validator());
        }
    }
    let Some(continued) = continued else { return };
    if judge(request, part, reached, |facts| facts.validator() == continued) == BodyVerdict::Other {
        purges.note_gone(&request.key, continued);
    }
}
