//! The headers of requests between nodes, as `docs/formats/fleet.md` defines them.
//!
//! They are believed only where the peer has shown a certificate of the fleet; everywhere else they are removed.

/// `1` in a request to another node, which must answer itself.
pub const HOP: &str = "nectary-fleet-hop";
/// The name of the node that asks.
pub const FROM: &str = "nectary-fleet-from";
/// What the sender had applied before it looked for the object.
pub const REVISION: &str = "nectary-fleet-revision";
/// The fleet of that revision: the lower half of its identity, 16 hexadecimal digits.
pub const FLEET: &str = "nectary-fleet-identity";
/// The address of the client.
pub const CLIENT: &str = "nectary-fleet-client";
/// Whether the client used TLS: `0` or `1`.
pub const SECURE: &str = "nectary-fleet-secure";
/// `1` in a request for an object that the asking node has invalidated: the answering one purges what it has, and then
/// answers.
pub const FRESH: &str = "nectary-fleet-fresh";
/// The hash of the rules by which the asking node makes keys, 32 hexadecimal digits.
pub const RULES: &str = "nectary-fleet-rules";
/// `1` in a request whose `Range` is a part of the route's `part-size`, of which a copy may be kept.
pub const PART: &str = "nectary-fleet-part";
/// With [`PART`], if another part was requested before: the validator of that one. A stored part with another validator is
/// validated first. If the origin has another body, stored parts with the named validator are, too, when they are wanted.
pub const VALIDATOR: &str = "nectary-fleet-validator";
/// In a request that fills no store: the node answers with what it has stored, and does not ask the origin, which the
/// asking node does then. [`STORED_FRESH`], [`STORED_ON_ERROR`] or [`STORED_UNREACHABLE`].
pub const STORED: &str = "nectary-fleet-stored";
/// What may be served now.
pub const STORED_FRESH: &str = "fresh";
/// Also what may be served stale because the origin answers with errors.
pub const STORED_ON_ERROR: &str = "on-error";
/// Also what may be served stale because the origin cannot be reached.
pub const STORED_UNREACHABLE: &str = "unreachable";
/// What a response is: [`STATE_OK`], [`STATE_NONE`], [`STATE_FAILED`], [`STATE_BEHIND`] or [`STATE_AWAY`]. A response has also
/// the revision that its node had applied before it looked for the object, and its fleet.
pub const STATE: &str = "nectary-fleet-state";
/// A response of the store or the origin.
pub const STATE_OK: &str = "ok";
/// The node has stored nothing that may answer a request with [`STORED`].
pub const STATE_NONE: &str = "none";
/// The node has no response of the origin.
pub const STATE_FAILED: &str = "failed";
/// The node has not applied the revision of the request in time.
pub const STATE_BEHIND: &str = "behind";
/// The node may not serve from its store.
pub const STATE_AWAY: &str = "away";
/// Only in responses: [`TAGS_MORE`] if the object has tags that its headers do not name, so that only its owner can purge
/// it by all of them.
pub const TAGS: &str = "nectary-fleet-tags";
/// The object has tags that its headers do not name.
pub const TAGS_MORE: &str = "more";
/// Only in responses: `1` if the object was softly purged, so its age and its headers do not say how long it is fresh.
pub const STALE: &str = "nectary-fleet-stale";
/// Only in responses with [`STATE_OK`]: [`FOUND_HIT`], [`FOUND_MISS`] or [`FOUND_PASS`].
pub const FOUND: &str = "nectary-fleet-found";
/// The response is from the store.
pub const FOUND_HIT: &str = "hit";
/// The origin was asked.
pub const FOUND_MISS: &str = "miss";
/// The origin was asked, and the node keeps nothing of its answer.
pub const FOUND_PASS: &str = "pass";
/// What all of these headers begin with.
pub const PREFIX: &str = "nectary-fleet-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_headers_share_a_prefix() {
        let all = [
            HOP, FROM, REVISION, FLEET, CLIENT, SECURE, FRESH, RULES, PART, VALIDATOR, STORED, STATE, TAGS, STALE,
            FOUND,
        ];
        assert!(all.iter().all(|name| name.starts_with(PREFIX) && name.bytes().all(|byte| !byte.is_ascii_uppercase())));
    }
}
