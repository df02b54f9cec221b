//! What the answer to a purge says of the fleet.
//!
//! Owns: the words, for HTTP and for the control socket.

use nectary_host::fleet::{NodeName, PurgeOutcome};
use serde_json::{Value, json};

/// The outcome of a purge as JSON: `state` is `applied` (every living node has it), `accepted` (it is in the log) or
/// `queued` (it waits in the memory of this process).
pub fn outcome_json(outcome: &PurgeOutcome) -> Value {
    json!({
        "state": state_of(outcome),
        "revision": outcome.revision,
        "nodes": outcome.nodes,
        "missing": outcome.missing.iter().map(NodeName::as_str).collect::<Vec<_>>(),
    })
}

/// The outcome of a purge as a sentence.
pub fn outcome_text(outcome: &PurgeOutcome) -> String {
    let PurgeOutcome { revision, nodes, missing, .. } = outcome;
    match state_of(outcome) {
        "applied" => {
            format!("all {nodes} living nodes have applied it (revision {revision}); others will before they serve")
        }
        "queued" => {
            "etcd is away: it is made on this node, and waits in the memory of this process for the others".to_owned()
        }
        _ if missing.is_empty() => format!("it is in the log (revision {revision}), and every node will apply it"),
        _ => {
            let names: Vec<_> = missing.iter().map(NodeName::as_str).collect();
            format!("it is in the log (revision {revision}); not confirmed in time by: {}", names.join(", "))
        }
    }
}

/// What has become of a purge, in one word.
fn state_of(outcome: &PurgeOutcome) -> &'static str {
    match outcome {
        PurgeOutcome { is_queued: true, .. } => "queued",
        PurgeOutcome { is_applied: true, .. } => "applied",
        _ => "accepted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_name_who_did_not_confirm() {
        let missing = vec![NodeName::new("b").expect("a name")];
        let late = PurgeOutcome { revision: 7, nodes: 3, missing, is_applied: false, is_queued: false };
        let expected = json!({ "state": "accepted", "revision": 7, "nodes": 3, "missing": ["b"] });
        assert_eq!(outcome_json(&late), expected);
        assert!(outcome_text(&late).ends_with("not confirmed in time by: b"));
        let applied = PurgeOutcome { missing: Vec::new(), is_applied: true, ..late.clone() };
        assert_eq!((state_of(&applied), outcome_json(&applied)["missing"].clone()), ("applied", json!([])));
        assert!(outcome_text(&applied).starts_with("all 3 living nodes"));
        let queued = PurgeOutcome { revision: 0, missing: Vec::new(), is_queued: true, ..late };
        assert_eq!(state_of(&queued), "queued");
    }
}
