//! The nodes of a fleet.
//!
//! Owns: names of nodes, the hash of the rules that make keys, and the view: which nodes live, and which of them share the
//! keys. Leaves to others: which node owns a key (`nectary-fleet`).

use std::fmt;
use std::sync::Arc;

/// The longest name of a node. *Units*: bytes.
pub const NODE_NAME_MAX: usize = 128;
/// The longest name of a zone. *Units*: bytes.
pub const ZONE_MAX: usize = 128;

/// The name of a node, which no other node of its fleet has: letters, digits and `._:[]-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// The name that a text is; `None` if a node cannot have it.
    pub fn new(text: &str) -> Option<NodeName> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:[]-".contains(&byte);
        let is_name = (1..=NODE_NAME_MAX).contains(&text.len()) && text.bytes().all(is_allowed);
        is_name.then(|| NodeName(text.into()))
    }

    /// The name as a text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The hash of the rules that make keys: names of sites, hosts that are sent, queries and cookies. Nodes whose rules
/// differ would store the same URL under different keys, so that purges miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RulesHash(pub u128);

impl RulesHash {
    /// Its lower half, and never 0, where that says that there are no rules.
    pub fn half(self) -> u64 {
        (self.0 as u64).max(1)
    }

    /// Reads 32 hexadecimal digits.
    pub fn parse(text: &str) -> Option<RulesHash> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        u128::from_str_radix(text, 16).ok().filter(|_| is_hex).map(RulesHash)
    }
}

impl fmt::Display for RulesHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A living node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetNode {
    /// Its name.
    pub name: NodeName,
    /// Where other nodes reach it: host and port. Empty if it shares no keys.
    pub address: String,
    /// Its zone; empty for none.
    pub zone: String,
    /// The size of its store, by which keys are shared. *Units*: bytes; at least 1.
    pub weight: u64,
    /// Its rules.
    pub rules: RulesHash,
    /// The random number of its process.
    pub run: u64,
    /// Since when it is a member: a revision, or 0 in a fleet without revisions. The lowest is the oldest.
    pub since: u64,
}

/// The living nodes, as this node knows them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FleetView {
    /// Grows with each change that this node learns of.
    pub number: u64,
    /// The living nodes by name; this one is among them if it has joined.
    pub nodes: Vec<FleetNode>,
    /// The rules that count: those of most nodes. Nodes with other rules own no keys.
    pub rules: RulesHash,
}

impl FleetView {
    /// Makes a view. The nodes may be in any order.
    pub fn new(number: u64, mut nodes: Vec<FleetNode>) -> FleetView {
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        let rules = common_rules(&nodes);
        FleetView { number, nodes, rules }
    }

    /// The node of this name.
    pub fn node(&self, name: &NodeName) -> Option<&FleetNode> {
        let found = self.nodes.binary_search_by(|node| node.name.cmp(name)).ok()?;
        self.nodes.get(found)
    }

    /// The nodes that own keys, each with its index in [`nodes`](FleetView::nodes).
    pub fn sharing(&self) -> impl Iterator<Item = (usize, &FleetNode)> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.rules == self.rules && !node.address.is_empty())
    }
}

/// The rules of most nodes; of equally many, those of the oldest node.
fn common_rules(nodes: &[FleetNode]) -> RulesHash {
    let count = |rules| nodes.iter().filter(|node| node.rules == rules).count();
    let best = nodes.iter().max_by(|one, other| {
        let by_count = count(one.rules).cmp(&count(other.rules));
        by_count.then(other.since.cmp(&one.since)).then(other.name.cmp(&one.name))
    });
    best.map(|node| node.rules).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, rules: u128, since: u64) -> FleetNode {
        FleetNode {
            name: NodeName::new(name).expect("a name"),
            address: format!("{name}:7443"),
            zone: String::new(),
            weight: 1,
            rules: RulesHash(rules),
            run: 1,
            since,
        }
    }

    #[test]
    fn node_names_are_short_and_plain() {
        for good in ["a", "10.0.0.1:7443", "[::1]:7443", &"x".repeat(NODE_NAME_MAX)] {
            assert_eq!(NodeName::new(good).expect("a name").as_str(), good);
        }
        for bad in ["", "a/b", "a b", "ü", "a\n", &"x".repeat(NODE_NAME_MAX + 1)] {
            assert_eq!(NodeName::new(bad), None, "{bad}");
        }
    }

    #[test]
    fn rules_of_most_nodes_count() {
        let rules = |nodes: Vec<FleetNode>| FleetView::new(1, nodes).rules.0;
        assert_eq!(rules(vec![node("a", 1, 5), node("b", 2, 6), node("c", 2, 7)]), 2);
        assert_eq!(rules(vec![node("a", 1, 9), node("b", 2, 6)]), 2, "of the oldest one");
        assert_eq!(rules(vec![node("b", 2, 0), node("a", 1, 0)]), 1, "of the first name");
        assert_eq!(rules(Vec::new()), 0);
    }

    #[test]
    fn views_find_nodes_by_name() {
        let alone = FleetNode { address: String::new(), ..node("d", 1, 4) };
        let view = FleetView::new(1, vec![node("b", 1, 1), node("a", 2, 2), alone, node("c", 1, 3)]);
        let name = NodeName::new("b").expect("a name");
        assert_eq!(view.node(&name).map(|node| node.since), Some(1));
        let sharing: Vec<_> = view.sharing().map(|(index, node)| (index, node.name.as_str())).collect();
        assert_eq!(sharing, [(1, "b"), (2, "c")]);
    }

    #[test]
    fn rules_hash_reads_back() {
        let hash = RulesHash(0x0123);
        assert_eq!(RulesHash::parse(&hash.to_string()), Some(hash));
        for bad in ["", "12", "+0000000000000000000000000000012", &"A".repeat(32)] {
            assert_eq!(RulesHash::parse(bad), None, "{bad}");
        }
    }
}
