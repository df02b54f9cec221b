//! The keys that a command line names.
//!
//! Owns: the form of keys that are URLs, which is the proxy's, and their bounds.

use nectary_proxy::by_hand::{is_url, key_of_url};
use nectary_store::{KeyRef, PRIMARY_BYTES_MAX, VARIANT_BYTES_MAX};

use crate::exit::{CommandFailure, USAGE};

/// The keys that a text may mean: the text itself, and the proxy's key if the text is a URL in another form.
pub fn keys(text: &str) -> Result<Vec<Vec<u8>>, CommandFailure> {
    let mut keys = vec![text.as_bytes().to_vec()];
    keys.extend(is_url(text).then(|| key_of_url(text)).flatten().filter(|key| key != text.as_bytes()));
    for key in &keys {
        bounded(KeyRef::new(key, b""))?;
    }
    Ok(keys)
}

/// The key under which an object is put: of a URL, the proxy's key.
pub fn key_to_put(text: &str) -> Result<Vec<u8>, CommandFailure> {
    let key = match is_url(text) {
        true => key_of_url(text).ok_or_else(|| {
            let remedy = "write it as in http://example.org/a?b: no spaces, no user, a valid port";
            CommandFailure::new(USAGE, format!("{text:?} is no URL that a request can have"), remedy)
        })?,
        false => text.as_bytes().to_vec(),
    };
    bounded(KeyRef::new(&key, b""))?;
    Ok(key)
}

/// Returns the key if its length is within the bounds.
pub fn bounded(key: KeyRef<'_>) -> Result<KeyRef<'_>, CommandFailure> {
    if key.primary.is_empty() || !key.is_bounded() {
        let (primary, variant) = (key.primary.len(), key.variant.len());
        let message = match primary {
            1..=PRIMARY_BYTES_MAX => {
                format!("the headers of a variant have at most {VARIANT_BYTES_MAX} bytes, these have {variant}")
            }
            _ => format!("a key has 1 to {PRIMARY_BYTES_MAX} bytes, this one has {primary}"),
        };
        let remedy = if primary == 0 { "name a key" } else { "use a shorter one" };
        return Err(CommandFailure::new(USAGE, message, remedy));
    }
    Ok(key)
}
