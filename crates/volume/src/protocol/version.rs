//! The versions of the messages that this program supports.
//!
//! A change of a message gets a new version here, in the release that makes the change. So a server and a mount of
//! different builds report that their versions differ, instead of misreading each other's messages.

use std::ops::RangeInclusive;

/// The supported versions.
pub const VERSIONS: RangeInclusive<u16> = 9..=9;

/// Returns the newest version that both sides support, if there is one.
pub fn common_version(other: &RangeInclusive<u16>) -> Option<u16> {
    let (low, high) = (*VERSIONS.start().max(other.start()), *VERSIONS.end().min(other.end()));
    (low <= high).then_some(high)
}

/// Returns the message for people when there is no common version, with what to do.
pub fn versions_differ(server: &RangeInclusive<u16>, mount: &RangeInclusive<u16>) -> String {
    let shown = |versions: &RangeInclusive<u16>| match versions.start() == versions.end() {
        true => format!("version {}", versions.start()),
        false => format!("versions {} to {}", versions.start(), versions.end()),
    };
    let older = if server.end() < mount.end() { "server" } else { "mount" };
    format!(
        "the server speaks {} of the protocol, and the mount {}: use the same release of nectary on both hosts (the \
         {older} has the older one)",
        shown(server),
        shown(mount)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The refusal names the versions of both sides.
    #[test]
    fn newest_common_version_is_chosen() {
        let (own, next) = (*VERSIONS.end(), *VERSIONS.end() + 1);
        assert_eq!(common_version(&VERSIONS), Some(own));
        assert_eq!(common_version(&(1..=next)), Some(own));
        assert_eq!((common_version(&(1..=1)), common_version(&(next..=next))), (None, None));
        let words = versions_differ(&VERSIONS, &(1..=1));
        assert!(words.contains(&format!("server speaks version {own} ")) && words.contains("mount version 1:"));
        assert!(words.contains("the mount has the older one"), "{words}");
        let words = versions_differ(&(1..=1), &(2..=3));
        assert!(words.contains("versions 2 to 3") && words.contains("the server has the older one"), "{words}");
    }
}
