//! Purges over the control socket of a running proxy.
//!
//! Owns: the answer to the method `purge`, whose parameters are those of a purge over HTTP ([`PurgeRequest`]).
//! Promises: a purge answered with `ok` is durable. Leaves to others: purging the store.

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use nectary_host::fleet::{FleetError, PurgeScope};
use nectary_host::{ControlFault, ControlMethods, FaultKind};
use nectary_proxy::{FleetSeat, ProxyReopener, PurgeRequest, PurgeSubject, outcome_json};
use nectary_store::{Error, PurgeEffect, SpanSet, StoreErrorKind};
use serde_json::{Value, json};

use crate::health;

/// The method by which a process that ends tells the next one what unsafe requests have changed: these invalidate at
/// one node alone, also in a fleet.
pub const PURGE_HERE: &str = "purge-here";

/// Registers the methods that purge: on this node alone, and in a fleet on every node.
pub fn register_purges(
    methods: &mut ControlMethods,
    store: &SpanSet,
    proxy: &Arc<OnceLock<health::RunningProxy>>,
    fleet: Option<&FleetSeat>,
) {
    let mut register_local = |method| {
        let (store, proxy) = (store.clone(), proxy.clone());
        methods.register(method, "purges a key, a prefix, tags, or all here; durable when answered", move |params| {
            let (store, proxy) = (store.clone(), proxy.clone());
            async move { purge(&store, proxy.get().map(|running| &running.reopener), params).await }
        });
    };
    register_local(PURGE_HERE);
    if fleet.is_none() {
        register_local("purge");
    }
    let Some(fleet) = fleet.cloned() else { return };
    let proxy = proxy.clone();
    methods.register("purge", "purges a key, a prefix, tags, or all on every node of the fleet", move |params| {
        let (fleet, proxy) = (fleet.clone(), proxy.clone());
        async move { purge_fleet(&fleet, proxy.get().map(|running| &running.reopener), params).await }
    });
}

/// Purges the objects that the parameters name.
pub async fn purge(store: &SpanSet, reopener: Option<&ProxyReopener>, params: Value) -> Result<Value, ControlFault> {
    let PurgeRequest { subject, is_soft, .. } = read(params)?;
    let effect = if is_soft { PurgeEffect::Soft { since_s: now_s() } } else { PurgeEffect::Hard };
    let purged = match &subject {
        PurgeSubject::Url(url) => purge_keys(store, keys(reopener, url, false), effect).await,
        PurgeSubject::Prefix(url) => purge_prefixes(store, keys(reopener, url, true), effect).await,
        PurgeSubject::Tags(tags) => purge_tags(store, tags, effect).await,
        PurgeSubject::All => store.purge_all_as(effect).await,
    };
    purged.map(|()| noted(json!({}), reopener, &subject)).map_err(|error| {
        let kind = match error.kind {
            StoreErrorKind::Invalid => FaultKind::Invalid,
            StoreErrorKind::Busy => FaultKind::Busy,
            _ => FaultKind::Failed,
        };
        ControlFault::new(kind, error.message, "see `nectary status`")
    })
}

/// Adds to the answer why the purge finds nothing that the sites of now have stored, if that is so.
fn noted(mut answer: Value, reopener: Option<&ProxyReopener>, subject: &PurgeSubject) -> Value {
    let doubt = reopener.and_then(|reopener| match subject {
        PurgeSubject::Url(url) => reopener.doubt_of(url, false),
        PurgeSubject::Prefix(url) => reopener.doubt_of(url, true),
        PurgeSubject::Tags(_) | PurgeSubject::All => None,
    });
    if let Some(doubt) = doubt {
        answer["note"] = doubt.into();
    }
    answer
}

fn read(params: Value) -> Result<PurgeRequest, ControlFault> {
    PurgeRequest::from_value(params).map_err(|message| {
        let remedy =
            r#"say one of {"key": URL}, {"prefix": URL}, {"tags": [TAG]}, {"all": true}, also with "soft": true"#;
        ControlFault::new(FaultKind::Invalid, message, remedy)
    })
}

/// Purges on every node of a fleet. The answer says what has become of the purge.
pub async fn purge_fleet(
    fleet: &FleetSeat,
    reopener: Option<&ProxyReopener>,
    params: Value,
) -> Result<Value, ControlFault> {
    let PurgeRequest { subject, is_soft, wish } = read(params)?;
    let Some(reopener) = reopener else {
        let message = "this proxy starts, and does not know yet which keys a URL has: nothing is purged";
        return Err(ControlFault::new(FaultKind::Busy, message, "send it again"));
    };
    let (keys, rules) = (|url: &str, is_prefix| reopener.keys_by_rules(url, is_prefix), reopener.rules());
    let purged = match &subject {
        PurgeSubject::Url(url) => {
            let (keys, rules) = keys(url, false);
            (PurgeScope::Keys(keys), rules)
        }
        PurgeSubject::Prefix(url) => {
            let (keys, rules) = keys(url, true);
            (PurgeScope::Prefixes(keys), rules)
        }
        PurgeSubject::Tags(tags) => (PurgeScope::Tags(tags.iter().map(|tag| tag.as_bytes().to_vec()).collect()), rules),
        PurgeSubject::All => (PurgeScope::All, rules),
    };
    match fleet.purge(purged, is_soft.then(now_s), wish).await {
        Ok(outcome) => Ok(noted(json!({ "fleet": outcome_json(&outcome) }), Some(reopener), &subject)),
        Err(error) => {
            let kind = match error {
                FleetError::TooLarge(_) => FaultKind::Invalid,
                FleetError::TooMany(_) | FleetError::QueueFull(_) => FaultKind::Busy,
                _ => FaultKind::Failed,
            };
            Err(ControlFault::new(kind, error.to_string(), "see `nectary fleet status`"))
        }
    }
}

/// The time in seconds since 1970.
fn now_s() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

/// The keys of a URL: a site's are found by any of its names.
fn keys(reopener: Option<&ProxyReopener>, url: &str, is_prefix: bool) -> Vec<Vec<u8>> {
    reopener.map_or_else(|| vec![url.as_bytes().to_vec()], |reopener| reopener.keys_of(url, is_prefix))
}

/// Purges keys. *Errors*: that of the first that fails; those after it were not begun.
async fn purge_keys(store: &SpanSet, keys: Vec<Vec<u8>>, effect: PurgeEffect) -> Result<(), Error> {
    for key in keys {
        store.purge_key_as(&key, effect).await?;
    }
    Ok(())
}

/// Purges all keys that begin so, as [`purge_keys`] does.
async fn purge_prefixes(store: &SpanSet, prefixes: Vec<Vec<u8>>, effect: PurgeEffect) -> Result<(), Error> {
    for prefix in prefixes {
        store.purge_prefix_as(&prefix, effect).await?;
    }
    Ok(())
}

/// Purges all objects that have one of these tags.
pub async fn purge_tags(store: &SpanSet, tags: &[String], effect: PurgeEffect) -> Result<(), Error> {
    for tag in tags {
        store.purge_tag_as(tag.as_bytes(), effect).await?;
    }
    Ok(())
}
