//! Purges over the control socket of a running proxy.
//!
//! Owns: the parameters of the method `purge`, which are one of `{"key": URL}`, `{"prefix": TEXT}`, `{"tags": [TAG,
//! …]}` and `{"all": true}`. Promises: a purge answered with `ok` is durable. Leaves to others: purging the store.

use nectary_host::{Fault, FaultKind};
use nectary_proxy::Reopener;
use nectary_store::{Error, ErrorKind, Spans};
use serde::Deserialize;
use serde_json::{Value, json};

/// The parameters of the method.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Purge {
    Key(String),
    Prefix(String),
    Tags(Vec<String>),
    All(bool),
}

/// Purges the objects that the parameters name.
pub async fn purge(store: &Spans, reopener: Option<&Reopener>, params: Value) -> Result<Value, Fault> {
    let wrong = |message: String| {
        let remedy = r#"say one of {"key": URL}, {"prefix": TEXT}, {"tags": [TAG]}, {"all": true}"#;
        Fault::new(FaultKind::Invalid, message, remedy)
    };
    let purge: Purge = serde_json::from_value(params).map_err(|error| wrong(format!("not a purge: {error}")))?;
    let purged = match &purge {
        Purge::Key(url) => purge_keys(store, keys(reopener, url, false)).await,
        Purge::Prefix(url) if !url.is_empty() => purge_prefixes(store, keys(reopener, url, true)).await,
        Purge::Tags(tags) if !tags.is_empty() => purge_tags(store, tags).await,
        Purge::All(true) => store.purge_all().await,
        _ => return Err(wrong("a purge of nothing".to_owned())),
    };
    purged.map(|()| json!({})).map_err(|error| {
        let kind = match error.kind {
            ErrorKind::Invalid => FaultKind::Invalid,
            ErrorKind::Busy => FaultKind::Busy,
            _ => FaultKind::Failed,
        };
        Fault::new(kind, error.message, "see `nectary status`")
    })
}

/// The keys of a URL: a site's are found by any of its names.
fn keys(reopener: Option<&Reopener>, url: &str, is_prefix: bool) -> Vec<Vec<u8>> {
    reopener.map_or_else(|| vec![url.as_bytes().to_vec()], |reopener| reopener.keys_of(url, is_prefix))
}

/// Purges keys. *Errors*: that of the first that fails; those after it were not begun.
async fn purge_keys(store: &Spans, keys: Vec<Vec<u8>>) -> Result<(), Error> {
    for key in keys {
        store.purge_key(&key).await?;
    }
    Ok(())
}

/// Purges all keys that begin so, as [`purge_keys`] does.
async fn purge_prefixes(store: &Spans, prefixes: Vec<Vec<u8>>) -> Result<(), Error> {
    for prefix in prefixes {
        store.purge_prefix(&prefix).await?;
    }
    Ok(())
}

/// Purges all objects that have one of these tags.
pub async fn purge_tags(store: &Spans, tags: &[String]) -> Result<(), Error> {
    for tag in tags {
        store.purge_tag(tag.as_bytes()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_says_one_thing() {
        let read = |params: Value| serde_json::from_value::<Purge>(params).ok();
        assert_eq!(read(json!({"key": "http://h/"})), Some(Purge::Key("http://h/".to_owned())));
        assert_eq!(read(json!({"tags": ["a", "b"]})), Some(Purge::Tags(vec!["a".to_owned(), "b".to_owned()])));
        assert_eq!(read(json!({"all": true})), Some(Purge::All(true)));
        for wrong in [json!(null), json!({}), json!({"key": "a", "all": true}), json!({"tags": "a"}), json!("all")] {
            assert_eq!(read(wrong.clone()), None, "{wrong}");
        }
    }
}
