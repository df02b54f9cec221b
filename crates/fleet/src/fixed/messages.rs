//! What fixed members say to each other, and the lines of a node's file.
//!
//! Owns: their JSON. Promises: what is written is read as the same value; every reader is total and bounded. The page is
//! `docs/formats/fleet.md`.

use std::sync::Arc;

use nectary_host::fleet::{FleetNode, NodeName, RulesHash, ZONE_MAX};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::known_logs::{FixedPurge, FixedStep, LOGS_MAX, LogExtent, LogExtents};
use crate::records::PurgeValue;

/// The version of messages and files.
const VERSION: u32 = 1;
/// The longest message that is read. *Units*: bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// No purge has a greater number.
const NUMBER_MAX: u64 = 1 << 48;
/// The purges of a message are at most so long, but for one. *Units*: bytes, about.
pub(super) const PURGES_BYTES_MAX: u64 = 1 << 20;

/// What a node says of itself, asking or answering.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SyncMessage {
    /// The name of the fleet.
    pub fleet: String,
    /// The hash of the list of its members.
    pub members: u64,
    /// The node.
    pub node: FleetNode,
    /// Whether it serves from its store, so it had asked the others since it came.
    pub serves: bool,
    /// What it has of each log, durably.
    pub extents: LogExtents,
    /// Purges that the other one may lack, in the order in which the node has them.
    pub purges: Vec<Arc<FixedPurge>>,
}

#[derive(Serialize, Deserialize)]
struct MessageValue {
    version: u32,
    fleet: String,
    members: String,
    node: String,
    zone: String,
    weight: u64,
    rules: String,
    run: String,
    serves: bool,
    logs: Vec<(String, u64, u64)>,
    purges: Vec<LoggedValue>,
}

/// A purge of a log.
#[derive(Serialize, Deserialize)]
struct LoggedValue {
    log: String,
    number: u64,
    accepted: u64,
    purge: PurgeValue,
}

impl LoggedValue {
    fn of(logged: &FixedPurge) -> LoggedValue {
        let FixedPurge { log, number, accepted_s, purge } = logged;
        LoggedValue { log: hex(*log), number: *number, accepted: *accepted_s, purge: PurgeValue::of(purge) }
    }

    fn read(&self) -> Option<Arc<FixedPurge>> {
        let (log, number) = (unhex(&self.log)?, Some(self.number).filter(|number| (1..=NUMBER_MAX).contains(number))?);
        let purge = self.purge.purge()?;
        Some(Arc::new(FixedPurge { log, number, accepted_s: self.accepted, purge }))
    }
}

/// The hash of a list of members, in any order.
pub(super) fn members_hash(names: &[NodeName]) -> u64 {
    let mut names: Vec<&str> = names.iter().map(NodeName::as_str).collect();
    names.sort_unstable();
    xxh3_64(names.join("\n").as_bytes())
}

/// Writes a message.
pub(super) fn write_message(message: &SyncMessage) -> Vec<u8> {
    let SyncMessage { fleet, members, node, serves, extents, purges } = message;
    let value = MessageValue {
        version: VERSION,
        fleet: fleet.clone(),
        members: hex(*members),
        node: node.name.to_string(),
        zone: node.zone.clone(),
        weight: node.weight,
        rules: node.rules.to_string(),
        run: hex(node.run),
        serves: *serves,
        logs: logs_of(extents),
        purges: purges.iter().map(|purge| LoggedValue::of(purge)).collect(),
    };
    serde_json::to_vec(&value).unwrap_or_default()
}

/// Reads a message. *Errors*: what is wrong with it.
pub(super) fn read_message(bytes: &[u8]) -> Result<SyncMessage, String> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(format!("a message between nodes has at most {MESSAGE_BYTES_MAX} bytes"));
    }
    let value: MessageValue =
        serde_json::from_slice(bytes).map_err(|error| format!("this is no message of a node: {error}"))?;
    if value.version != VERSION {
        return Err(format!("a message of version {}, of a later program", value.version));
    }
    message_of(&value).ok_or_else(|| "a message between nodes has a value out of bounds".to_owned())
}

fn message_of(value: &MessageValue) -> Option<SyncMessage> {
    let name = NodeName::new(&value.node)?;
    let is_bounded = value.zone.len() <= ZONE_MAX && (1..=i64::MAX as u64).contains(&value.weight);
    let node = FleetNode {
        address: name.to_string(),
        name,
        zone: value.zone.clone(),
        weight: value.weight,
        rules: RulesHash::parse(&value.rules)?,
        run: unhex(&value.run)?,
        since: 0,
    };
    let purges = value.purges.iter().map(LoggedValue::read).collect::<Option<Vec<_>>>()?;
    let message = SyncMessage {
        fleet: value.fleet.clone(),
        members: unhex(&value.members)?,
        node,
        serves: value.serves,
        extents: extents_of(&value.logs)?,
        purges,
    };
    is_bounded.then_some(message)
}

fn logs_of(extents: &LogExtents) -> Vec<(String, u64, u64)> {
    extents.iter().map(|(log, extent)| (hex(*log), extent.through, extent.floor)).collect()
}

fn extents_of(logs: &[(String, u64, u64)]) -> Option<LogExtents> {
    let read = |(log, through, floor): &(String, u64, u64)| {
        let is_order = floor <= through && *through <= NUMBER_MAX;
        Some((unhex(log)?, LogExtent { through: *through, floor: *floor })).filter(|_| is_order)
    };
    logs.iter().map(read).collect::<Option<LogExtents>>().filter(|extents| extents.len() <= LOGS_MAX)
}

/// The first line of a file: whose it is, and what was before its other lines.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PurgeLogHead {
    /// The random identity of the file. Its lower half is the number of the node's log.
    pub identity: u128,
    /// The node whose file it is.
    pub node: NodeName,
    /// The place of the last step before the first line.
    pub base: u64,
    /// What was known then.
    pub extents: LogExtents,
}

#[derive(Serialize, Deserialize)]
struct HeadValue {
    version: u32,
    identity: String,
    node: String,
    base: u64,
    logs: Vec<(String, u64, u64)>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StepValue {
    Purge(LoggedValue),
    Everything { everything: Vec<(String, u64, u64)> },
}

/// The first line.
pub(super) fn write_head(head: &PurgeLogHead) -> Vec<u8> {
    let (identity, node, logs) = (RulesHash(head.identity).to_string(), head.node.to_string(), logs_of(&head.extents));
    line(&HeadValue { version: VERSION, identity, node, base: head.base, logs })
}

/// Reads the first line; `None` if it is damaged, or of a later version.
pub(super) fn read_head(bytes: &[u8]) -> Option<PurgeLogHead> {
    let value: HeadValue = serde_json::from_slice(checked(bytes)?).ok()?;
    let identity = RulesHash::parse(&value.identity)?.0;
    let (node, extents) = (NodeName::new(&value.node)?, extents_of(&value.logs)?);
    let is_good = value.version == VERSION && identity as u64 != 0 && value.base < u64::MAX / 2;
    is_good.then_some(PurgeLogHead { identity, node, base: value.base, extents })
}

/// The line of a step.
pub(super) fn write_step(step: &FixedStep) -> Vec<u8> {
    line(&match step {
        FixedStep::Purge(purge) => StepValue::Purge(LoggedValue::of(purge)),
        FixedStep::Everything(extents) => StepValue::Everything { everything: logs_of(extents) },
    })
}

/// Reads a line of a step; `None` if it is damaged.
pub(super) fn read_step(bytes: &[u8]) -> Option<FixedStep> {
    match serde_json::from_slice(checked(bytes)?).ok()? {
        StepValue::Purge(logged) => logged.read().map(FixedStep::Purge),
        StepValue::Everything { everything } => extents_of(&everything).map(FixedStep::Everything),
    }
}

/// A line: the hash of the JSON, a space, the JSON, and the end of the line.
fn line(value: &impl Serialize) -> Vec<u8> {
    let json = serde_json::to_vec(value).unwrap_or_default();
    let mut line = format!("{:016x} ", xxh3_64(&json)).into_bytes();
    line.extend_from_slice(&json);
    line.push(b'\n');
    line
}

/// The JSON of a line without its end; `None` if its hash is another one.
fn checked(line: &[u8]) -> Option<&[u8]> {
    let (hash, rest) = line.split_at_checked(16)?;
    let json = rest.strip_prefix(b" ")?;
    (unhex(std::str::from_utf8(hash).ok()?)? == xxh3_64(json)).then_some(json)
}

fn hex(number: u64) -> String {
    format!("{number:016x}")
}

fn unhex(text: &str) -> Option<u64> {
    let is_hex = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    u64::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nectary_host::fleet::{FleetPurge, PurgeScope};

    fn purge(number: u64) -> Arc<FixedPurge> {
        let scope = PurgeScope::Keys(vec![b"http://a/\xff".to_vec()]);
        let purge = FleetPurge { scope, soft_since_s: Some(5), rules: RulesHash(0xabc) };
        Arc::new(FixedPurge { log: 7, number, accepted_s: 9, purge })
    }

    fn message() -> SyncMessage {
        let name = NodeName::new("10.0.0.1:7443").expect("a name");
        let (zone, rules) = ("z".to_owned(), RulesHash(3));
        let node = FleetNode { address: name.to_string(), name, zone, weight: 1, rules, run: u64::MAX, since: 0 };
        SyncMessage {
            fleet: "edge".to_owned(),
            members: 5,
            node,
            serves: true,
            extents: LogExtents::from([(7, LogExtent { through: 9, floor: 2 })]),
            purges: vec![purge(8), purge(9)],
        }
    }

    #[test]
    fn node_messages_read_back() {
        let message = message();
        assert_eq!(read_message(&write_message(&message)), Ok(message.clone()));
        let text = String::from_utf8(write_message(&message)).expect("text");
        for (part, other) in [
            ("\"version\":1,\"fleet\"", "\"version\":2,\"fleet\""),
            ("\"node\":\"10.0.0.1:7443\"", "\"node\":\"a/b\""),
            ("\"weight\":1", "\"weight\":0"),
            ("\"number\":8", "\"number\":0"),
            (",9,2]", ",1,2]"),
            ("\"run\":\"f", "\"run\":\"+"),
            ("\"hard\"", "\"hard"),
        ] {
            let changed = text.replace(part, other);
            assert!(changed == text || read_message(changed.as_bytes()).is_err(), "{part}");
        }
        assert!(read_message(b"").is_err() && read_message(&vec![b' '; MESSAGE_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn lines_of_a_file_are_checked() {
        let node = NodeName::new("a").expect("a name");
        let extents = LogExtents::from([(7, LogExtent { through: 9, floor: 2 })]);
        let head = PurgeLogHead { identity: 1 << 64 | 7, node, base: 12, extents: extents.clone() };
        let text = write_head(&head);
        assert_eq!(read_head(text.trim_ascii_end()), Some(head));
        for step in [FixedStep::Purge(purge(3)), FixedStep::Everything(extents)] {
            let mut text = write_step(&step);
            assert_eq!(text.pop(), Some(b'\n'));
            assert_eq!(read_step(&text), Some(step));
            for at in 0..text.len() {
                let mut flipped = text.clone();
                flipped[at] ^= 1;
                assert_eq!(read_step(&flipped), None, "byte {at}");
                assert_eq!(read_step(&text[..at]), None, "{at} bytes");
            }
        }
    }
}
