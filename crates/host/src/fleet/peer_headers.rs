//! The headers of requests between nodes, as `docs/formats/fleet.md` defines them.
//!
//! They are believed only where the peer has shown a certificate of the fleet; everywhere else they are removed.

/// `1` in a request to another node, which must answer itself.
pub const HOP: &str = "nectary-fleet-hop";
/// The name of the node that asks.
pub const FROM: &str = "nectary-fleet-from";
/// The number of the view by which it chose the node.
pub const VIEW: &str = "nectary-fleet-view";
/// What the sender had applied before it looked for the object.
pub const REVISION: &str = "nectary-fleet-revision";
/// The fleet of that revision: the lower half of its identity, 16 hexadecimal digits.
pub const FLEET: &str = "nectary-fleet-identity";
/// The address of the client.
pub const CLIENT: &str = "nectary-fleet-client";
/// Whether the client used TLS: `0` or `1`.
pub const SECURE: &str = "nectary-fleet-secure";
/// What a response is: [`STATE_OK`], [`STATE_BEHIND`] or [`STATE_AWAY`].
pub const STATE: &str = "nectary-fleet-state";
/// A response of the store or the origin.
pub const STATE_OK: &str = "ok";
/// The node has not applied the revision of the request in time.
pub const STATE_BEHIND: &str = "behind";
/// The node may not serve from its store.
pub const STATE_AWAY: &str = "away";
/// What all of these headers begin with.
pub const PREFIX: &str = "nectary-fleet-";
/// What the paths of messages between nodes begin with.
pub const MESSAGE_PATH: &str = "/.well-known/nectary-fleet/";
/// The longest body of a message. *Units*: bytes.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_headers_share_a_prefix() {
        let all = [HOP, FROM, VIEW, REVISION, FLEET, CLIENT, SECURE, STATE];
        assert!(all.iter().all(|name| name.starts_with(PREFIX) && name.bytes().all(|byte| !byte.is_ascii_uppercase())));
    }
}
