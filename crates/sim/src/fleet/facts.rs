//! What a run knows that no node does: the origin, and every purge with what became of it.
//!
//! Owns: keys, tags and versions of the objects. Each purge names its number in a further key, prefix or tag, so that
//! it is known again in the log.

use nectary_host::fleet::{FleetPurge, NodeName, PurgeScope, RulesHash};

/// The URLs of the origin.
pub const URLS: usize = 4;

/// A purge of the run.
#[derive(Debug, Clone)]
pub struct PurgeFact {
    /// The node, its process and the ticket.
    pub key: (usize, u64, u64),
    /// The URLs that it purges, as a set of bits.
    pub urls: u32,
    /// The rules by which its keys were made; `None` if it is about tags or everything.
    pub rules: Option<RulesHash>,
    /// What each URL shows at least once the purge is applied.
    pub versions: [u64; URLS],
    /// When it was in the log. *Units*: microseconds.
    pub logged_us: Option<u64>,
    /// When it was answered as applied.
    pub applied_us: Option<u64>,
}

impl PurgeFact {
    /// Whether it purges a URL.
    pub fn has(&self, url: usize) -> bool {
        self.urls & 1 << url != 0
    }
}

/// The key of a URL.
pub fn key_of(rules: RulesHash, url: usize) -> Vec<u8> {
    format!("http://a/{:x}/{url}", rules.0).into_bytes()
}

/// The tag of a URL.
pub fn tag_of(url: usize) -> Vec<u8> {
    format!("t{}", url % 2).into_bytes()
}

/// What a purge is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeSelection {
    Url(usize),
    Site,
    Tag(usize),
    All,
}

impl PurgeSelection {
    /// The URLs of the target, as a set of bits.
    pub fn urls(self) -> u32 {
        match self {
            PurgeSelection::Url(url) => 1 << url,
            PurgeSelection::Tag(tag) => (0..URLS).filter(|url| url % 2 == tag).map(|url| 1 << url).sum(),
            PurgeSelection::Site | PurgeSelection::All => (1 << URLS) - 1,
        }
    }

    /// The scope of a purge with this number, with keys by these rules.
    pub fn scope(self, rules: RulesHash, number: usize) -> PurgeScope {
        let name = format!("number/{number}").into_bytes();
        match self {
            PurgeSelection::Url(url) => PurgeScope::Keys(vec![key_of(rules, url), name]),
            PurgeSelection::Site => PurgeScope::Prefixes(vec![format!("http://a/{:x}/", rules.0).into_bytes(), name]),
            PurgeSelection::Tag(tag) => PurgeScope::Tags(vec![tag_of(tag), name]),
            PurgeSelection::All => PurgeScope::All,
        }
    }
}

/// The number of a purge; `None` if it is of everything.
pub fn number_of(purge: &FleetPurge) -> Option<usize> {
    let last = purge.scope.texts().last()?;
    std::str::from_utf8(last).ok()?.strip_prefix("number/")?.parse().ok()
}

/// The name of a node.
pub fn name_of(node: usize) -> NodeName {
    let names = ["a", "b", "c", "d", "e"];
    NodeName::new(names[node % names.len()]).expect("a name")
}
