//! Headers that a route sets or removes.
//!
//! Owns: the changes of one direction, to an origin or to clients. They are the same for every request of a route, so
//! they never need to be in a key.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Headers to remove, and headers to set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HeaderEdits {
    removed: Vec<HeaderName>,
    set: Vec<(HeaderName, HeaderValue)>,
}

impl HeaderEdits {
    /// Edits that remove and then set headers. A header that is set replaces every line with its name.
    pub fn new(removed: Vec<HeaderName>, set: Vec<(HeaderName, HeaderValue)>) -> HeaderEdits {
        HeaderEdits { removed, set }
    }

    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.set.is_empty()
    }

    /// Whether lines with this name are removed or replaced.
    pub fn concerns(&self, name: &HeaderName) -> bool {
        self.removed.contains(name) || self.set.iter().any(|(set, _)| set == name)
    }

    /// Changes headers.
    pub fn apply(&self, headers: &mut HeaderMap) {
        self.removed.iter().for_each(|name| _ = headers.remove(name));
        self.set.iter().for_each(|(name, value)| _ = headers.insert(name, value.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    #[test]
    fn what_is_set_replaces_every_line() {
        let (a, b) = (HeaderName::from_static("a"), HeaderName::from_static("b"));
        let edits = HeaderEdits::new(vec![a.clone()], vec![(b.clone(), HeaderValue::from_static("new"))]);
        let mut map = headers(&[("a", "1"), ("b", "2"), ("b", "3"), ("c", "4")]);
        edits.apply(&mut map);
        assert_eq!(map, headers(&[("b", "new"), ("c", "4")]));
        assert!(edits.concerns(&a) && edits.concerns(&b) && !edits.is_empty());
        assert!(HeaderEdits::default().is_empty() && !edits.concerns(&HeaderName::from_static("c")));
    }
}
