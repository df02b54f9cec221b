//! The values that nodes keep in etcd, and their keys.
//!
//! Owns: JSON with versions, and the form of bytes in it. Promises: what is written is read as the same value; every
//! reader is total and bounded. The page is `docs/formats/fleet.md`.

use nectary_host::fleet::{FleetNode, FleetPurge, NodeName, PURGE_BYTES_MAX, PurgeScope, RulesHash, ZONE_MAX};
use serde::{Deserialize, Serialize};

/// The version of all values.
const VERSION: u32 = 1;
/// The longest address of a node. *Units*: bytes.
const ADDRESS_MAX: usize = 300;
/// The longest text that says where people find a process. *Units*: bytes.
const PROCESS_MAX: usize = 300;

/// The keys of a fleet in etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetKeys {
    /// What all keys begin with.
    prefix: String,
}

/// What a key is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetKey {
    /// The identity of the fleet.
    Identity,
    /// A node.
    Node(NodeName),
    /// What a node has applied.
    Applied(NodeName),
    /// A process that would be a node whose name another one has.
    Claim(NodeName),
    /// A purge.
    Purge(PurgeKey),
    /// Purges up to a revision may be missing.
    Floor,
}

/// The name of a purge in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeKey {
    /// The node that accepted it.
    pub node: NodeName,
    /// The random number of its process.
    pub run: u64,
    /// The number of the purge in that process.
    pub number: u64,
    /// When it was accepted. *Units*: seconds since 1970.
    pub accepted_s: u32,
    /// The length of its value. *Units*: bytes.
    pub value_bytes: u32,
}

impl FleetKeys {
    /// The keys of the fleet of this name.
    pub fn new(name: &str) -> FleetKeys {
        FleetKeys { prefix: format!("/nectary/{name}/") }
    }

    /// What all keys begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The beginning of the keys of nodes.
    pub fn nodes(&self) -> String {
        format!("{}nodes/", self.prefix)
    }

    /// The beginning of the keys that say what nodes have applied.
    pub fn applied(&self) -> String {
        format!("{}applied/", self.prefix)
    }

    /// The beginning of the keys of purges.
    pub fn purges(&self) -> String {
        format!("{}purges/", self.prefix)
    }

    /// A key as etcd has it.
    pub fn write(&self, key: &FleetKey) -> String {
        match key {
            FleetKey::Identity => format!("{}fleet", self.prefix),
            FleetKey::Floor => format!("{}floor", self.prefix),
            FleetKey::Node(name) => format!("{}{name}", self.nodes()),
            FleetKey::Applied(name) => format!("{}{name}", self.applied()),
            FleetKey::Claim(name) => format!("{}claims/{name}", self.prefix),
            FleetKey::Purge(PurgeKey { node, run, number, accepted_s, value_bytes }) => {
                format!("{}{node}/{run:016x}-{number:016x}-{accepted_s:08x}-{value_bytes:08x}", self.purges())
            }
        }
    }

    /// Reads a key; `None` if it is not one of these.
    pub fn read(&self, key: &[u8]) -> Option<FleetKey> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        let found = match rest.split_once('/') {
            None if rest == "fleet" => FleetKey::Identity,
            None if rest == "floor" => FleetKey::Floor,
            Some(("nodes", name)) => FleetKey::Node(NodeName::new(name)?),
            Some(("applied", name)) => FleetKey::Applied(NodeName::new(name)?),
            Some(("claims", name)) => FleetKey::Claim(NodeName::new(name)?),
            Some(("purges", rest)) => {
                let (name, numbers) = rest.split_once('/')?;
                let mut numbers = numbers.split('-');
                let mut next = |digits: usize| {
                    let text = numbers.next().filter(|text| text.len() == digits)?;
                    u64::from_str_radix(text, 16).ok().filter(|_| !text.starts_with('+'))
                };
                let (run, number, accepted_s, value_bytes) = (next(16)?, next(16)?, next(8)?, next(8)?);
                FleetKey::Purge(PurgeKey {
                    node: NodeName::new(name)?,
                    run,
                    number,
                    accepted_s: u32::try_from(accepted_s).ok()?,
                    value_bytes: u32::try_from(value_bytes).ok()?,
                })
            }
            _ => return None,
        };
        (self.write(&found).as_bytes() == key).then_some(found)
    }
}

#[derive(Serialize, Deserialize)]
struct IdentityValue {
    version: u32,
    id: String,
}

#[derive(Serialize, Deserialize)]
struct RevisionValue {
    version: u32,
    revision: u64,
}

#[derive(Serialize, Deserialize)]
struct NodeValue {
    version: u32,
    address: String,
    zone: String,
    weight: u64,
    rules: String,
    run: String,
    #[serde(default)]
    process: String,
}

#[derive(Serialize, Deserialize)]
struct ClaimValue {
    version: u32,
    process: String,
}

/// A purge, as the log has it.
#[derive(Serialize, Deserialize)]
pub(crate) struct PurgeValue {
    version: u32,
    effect: String,
    since: u32,
    rules: String,
    scope: String,
    of: Vec<String>,
}

/// Writes a value. The types above are always written.
fn written(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// Writes the identity of a fleet.
pub fn write_identity(identity: u128) -> Vec<u8> {
    written(&IdentityValue { version: VERSION, id: format!("{identity:032x}") })
}

/// Reads the identity of a fleet; `None` if it is none, or of a later version.
pub fn read_identity(bytes: &[u8]) -> Option<u128> {
    let value: IdentityValue = serde_json::from_slice(bytes).ok()?;
    let identity = RulesHash::parse(&value.id)?.0;
    (value.version == VERSION && identity != 0).then_some(identity)
}

/// Writes a revision, as `applied/` and `floor` have it.
pub fn write_revision(revision: u64) -> Vec<u8> {
    written(&RevisionValue { version: VERSION, revision })
}

/// Reads a revision.
pub fn read_revision(bytes: &[u8]) -> Option<u64> {
    let value: RevisionValue = serde_json::from_slice(bytes).ok()?;
    (value.version == VERSION).then_some(value.revision)
}

/// Writes a node, with where people find its process.
pub fn write_node(node: &FleetNode, process: &str) -> Vec<u8> {
    written(&NodeValue {
        version: VERSION,
        address: node.address.clone(),
        zone: node.zone.clone(),
        weight: node.weight,
        rules: node.rules.to_string(),
        run: format!("{:016x}", node.run),
        process: process.to_owned(),
    })
}

/// Where people find the process of a node; empty if it does not say.
pub fn read_process(bytes: &[u8]) -> String {
    let value = serde_json::from_slice::<NodeValue>(bytes).ok();
    value.map(|value| value.process).filter(|process| process.len() <= PROCESS_MAX).unwrap_or_default()
}

/// Writes that a process would be a node.
pub fn write_claim(process: &str) -> Vec<u8> {
    written(&ClaimValue { version: VERSION, process: process.to_owned() })
}

/// Reads where people find the process that would be a node.
pub fn read_claim(bytes: &[u8]) -> Option<String> {
    let value: ClaimValue = serde_json::from_slice(bytes).ok()?;
    (value.version == VERSION && value.process.len() <= PROCESS_MAX).then_some(value.process)
}

/// Reads a node of this name, whose key was created at the revision `since`.
pub fn read_node(name: NodeName, since: u64, bytes: &[u8]) -> Option<FleetNode> {
    let value: NodeValue = serde_json::from_slice(bytes).ok()?;
    let is_bounded = value.address.len() <= ADDRESS_MAX && value.zone.len() <= ZONE_MAX;
    let is_weight = (1..=i64::MAX as u64).contains(&value.weight);
    if value.version != VERSION || !is_bounded || !is_weight || value.run.len() != 16 {
        return None;
    }
    let run = u64::from_str_radix(&value.run, 16).ok()?;
    let rules = RulesHash::parse(&value.rules)?;
    Some(FleetNode { name, address: value.address, zone: value.zone, weight: value.weight, rules, run, since })
}

/// Writes a purge. *Errors*: `None` if it is out of bounds.
pub fn write_purge(purge: &FleetPurge) -> Option<Vec<u8>> {
    Some(written(&PurgeValue::of(purge))).filter(|bytes| purge.is_bounded() && bytes.len() <= PURGE_BYTES_MAX)
}

/// Reads a purge; `None` if it is damaged, or of a later version.
pub fn read_purge(bytes: &[u8]) -> Option<FleetPurge> {
    if bytes.len() > PURGE_BYTES_MAX {
        return None;
    }
    serde_json::from_slice::<PurgeValue>(bytes).ok()?.purge()
}

impl PurgeValue {
    /// The value of a purge.
    pub fn of(purge: &FleetPurge) -> PurgeValue {
        let (scope, texts) = match &purge.scope {
            PurgeScope::Keys(texts) => ("keys", &texts[..]),
            PurgeScope::Prefixes(texts) => ("prefixes", &texts[..]),
            PurgeScope::Tags(texts) => ("tags", &texts[..]),
            PurgeScope::All => ("all", &[][..]),
        };
        PurgeValue {
            version: VERSION,
            effect: if purge.soft_since_s.is_some() { "soft" } else { "hard" }.to_owned(),
            since: purge.soft_since_s.unwrap_or(0),
            rules: purge.rules.to_string(),
            scope: scope.to_owned(),
            of: texts.iter().map(|text| escaped(text)).collect(),
        }
    }

    /// The purge of a value; `None` if it is damaged, or of a later version.
    pub fn purge(&self) -> Option<FleetPurge> {
        let texts = self.of.iter().map(|text| unescaped(text)).collect::<Option<Vec<_>>>()?;
        let scope = match self.scope.as_str() {
            "keys" => PurgeScope::Keys(texts),
            "prefixes" => PurgeScope::Prefixes(texts),
            "tags" => PurgeScope::Tags(texts),
            "all" if texts.is_empty() => PurgeScope::All,
            _ => return None,
        };
        let soft_since_s = match self.effect.as_str() {
            "hard" if self.since == 0 => None,
            "soft" => Some(self.since),
            _ => return None,
        };
        let purge = FleetPurge { scope, soft_since_s, rules: RulesHash::parse(&self.rules)? };
        (self.version == VERSION && purge.is_bounded()).then_some(purge)
    }
}

/// Bytes as visible ASCII: all others, and `\`, as `\xNN`.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'\\' => text.push_str("\\x5c"),
            byte if byte.is_ascii_graphic() => text.push(char::from(*byte)),
            byte => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

/// The bytes of a text that [`escaped`] has written.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'\\' => {
                let (digits, after) = after.strip_prefix(b"x")?.split_at_checked(2)?;
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = after;
            }
            byte if byte.is_ascii_graphic() => bytes.push(*byte),
            _ => return None,
        }
    }
    (escaped(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NodeName {
        NodeName::new(text).expect("a name")
    }

    #[test]
    fn fleet_keys_read_back() {
        let keys = FleetKeys::new("edge");
        let purge = PurgeKey { node: name("[::1]:7443"), run: 1, number: u64::MAX, accepted_s: 7, value_bytes: 90 };
        for key in [
            FleetKey::Identity,
            FleetKey::Floor,
            FleetKey::Node(name("a")),
            FleetKey::Applied(name("10.0.0.1:7443")),
            FleetKey::Claim(name("a")),
            FleetKey::Purge(purge),
        ] {
            assert_eq!(keys.read(keys.write(&key).as_bytes()), Some(key));
        }
        assert_eq!(keys.write(&FleetKey::Node(name("a"))), "/nectary/edge/nodes/a");
        for bad in ["", "/nectary/edge/", "/nectary/edge/nodes/", "/nectary/other/nodes/a", "/nectary/edge/nodes/a/b"] {
            assert_eq!(keys.read(bad.as_bytes()), None, "{bad}");
        }
        for bad in ["a", "a/1-2-3-4", "a/+000000000000001-0000000000000001-00000007-0000005a"] {
            assert_eq!(keys.read(format!("/nectary/edge/purges/{bad}").as_bytes()), None, "{bad}");
        }
        assert_eq!(keys.read(b"/nectary/edge/\xff"), None);
    }

    #[test]
    fn purge_values_read_back() {
        let all_bytes: Vec<u8> = (0..=255).collect();
        for scope in [
            PurgeScope::Keys(vec![b"http://example.org/a%20b\\".to_vec(), all_bytes.clone()]),
            PurgeScope::Prefixes(vec![b"http://".to_vec()]),
            PurgeScope::Tags(vec![all_bytes]),
            PurgeScope::All,
        ] {
            for soft_since_s in [None, Some(0), Some(u32::MAX)] {
                let purge = FleetPurge { scope: scope.clone(), soft_since_s, rules: RulesHash(u128::MAX - 7) };
                assert_eq!(read_purge(&write_purge(&purge).expect("within bounds")), Some(purge));
            }
        }
        let scope = PurgeScope::Keys(vec![b"http://a/\xff".to_vec()]);
        let one = FleetPurge { scope, soft_since_s: Some(5), rules: RulesHash(0xabc) };
        let text = concat!(
            r#"{"version":1,"effect":"soft","since":5,"rules":"00000000000000000000000000000abc","#,
            r#""scope":"keys","of":["http://a/\\xff"]}"#
        );
        assert_eq!(String::from_utf8(write_purge(&one).expect("within bounds")), Ok(text.to_owned()));
    }

    #[test]
    fn purges_out_of_bounds_are_refused() {
        let of = |count: usize, bytes: usize| {
            let scope = PurgeScope::Keys(vec![vec![b'a'; bytes]; count]);
            write_purge(&FleetPurge { scope, ..FleetPurge::EVERYTHING })
        };
        assert!(of(1, 8192).is_some() && of(1, 8193).is_none() && of(1024, 200).is_some());
        assert!(of(1024, 300).is_none() && of(1025, 1).is_none() && of(0, 1).is_none());
        let value = |version, effect, since, scope, of: &str| {
            format!(
                r#"{{"version":{version},"effect":"{effect}","since":{since},"rules":"{:032x}","scope":"{scope}","of":[{of}]}}"#,
                5
            )
        };
        let good = value(1, "hard", 0, "keys", r#""a""#);
        assert!(
            read_purge(good.as_bytes()).is_some() && read_purge(value(1, "soft", 1, "all", "").as_bytes()).is_some()
        );
        for bad in [
            String::new(),
            "{}".to_owned(),
            value(2, "hard", 0, "all", ""),
            value(1, "hard", 1, "all", ""),
            value(1, "hard", 0, "all", r#""a""#),
            value(1, "hard", 0, "keys", ""),
            value(1, "hard", 0, "keys", r#""a b""#),
            value(1, "hard", 0, "keys", r#""\\x41""#),
            value(1, "hard", 0, "keys", r#""\\x5""#),
            good.replace("rules", "other"),
            good.replace("000005", "00005"),
        ] {
            assert_eq!(read_purge(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn node_values_read_back() {
        let node = FleetNode {
            name: name("a"),
            address: "10.0.0.1:7443".to_owned(),
            zone: String::new(),
            weight: 1 << 36,
            rules: RulesHash(7),
            run: 0x1234,
            since: 99,
        };
        let bytes = write_node(&node, "host web1, process 7");
        assert_eq!(
            (read_node(name("a"), 99, &bytes), read_process(&bytes).as_str()),
            (Some(node), "host web1, process 7")
        );
        let text = String::from_utf8(bytes).expect("UTF-8");
        for (from, to) in [("68719476736", "0"), ("\"version\":1", "\"version\":2"), ("1234", "123")] {
            assert_eq!(read_node(name("a"), 1, text.replace(from, to).as_bytes()), None, "{to}");
        }
        let earlier = text.replace(r#","process":"host web1, process 7""#, "");
        assert!(read_node(name("a"), 1, earlier.as_bytes()).is_some() && read_process(earlier.as_bytes()).is_empty());
        assert_eq!((read_claim(&write_claim("x")), read_claim(b"{}")), (Some("x".to_owned()), None));
        assert_eq!((read_revision(&write_revision(7)), read_revision(b"7")), (Some(7), None));
        assert_eq!((read_identity(&write_identity(9)), read_identity(&write_identity(0))), (Some(9), None));
    }
}
