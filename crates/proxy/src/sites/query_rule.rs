//! What of a URL's query is in the key.
//!
//! Owns: the choice of the parameters, by their names as they are written: nothing is decoded, so two spellings of a name
//! are two names, and the worst that a client gets from one is a copy of its own. A parameter that is not in the key is
//! not sent to the origin either when the response may be stored: else a client could choose by it what others get.

/// A rule about the parameters of a query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum QueryRule {
    /// The whole query, byte for byte.
    #[default]
    All,
    /// All parameters but those with these names.
    Without(Vec<ParameterName>),
    /// Only the parameters with these names.
    Only(Vec<ParameterName>),
}

/// The name of a parameter, or the beginning of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParameterName {
    text: Box<[u8]>,
    is_prefix: bool,
}

impl ParameterName {
    /// A name; one that ends with `*` stands for all names that begin so.
    pub fn new(text: &str) -> ParameterName {
        let (text, is_prefix) = text.strip_suffix('*').map_or((text, false), |begin| (begin, true));
        ParameterName { text: text.as_bytes().into(), is_prefix }
    }

    fn matches(&self, name: &[u8]) -> bool {
        if self.is_prefix { name.starts_with(&self.text) } else { *self.text == *name }
    }
}

impl QueryRule {
    /// A rule that ignores the parameters with these names.
    pub fn without(names: &[String]) -> QueryRule {
        QueryRule::Without(names.iter().map(|name| ParameterName::new(name)).collect())
    }

    /// A rule that keeps only the parameters with these names.
    pub fn only(names: &[String]) -> QueryRule {
        QueryRule::Only(names.iter().map(|name| ParameterName::new(name)).collect())
    }

    /// Whether the whole query is in the key.
    pub fn is_all(&self) -> bool {
        *self == QueryRule::All
    }

    /// Appends a path and what counts of its query. *Cost*: no allocation beyond `out`.
    pub fn push(&self, path_and_query: &[u8], out: &mut Vec<u8>) {
        let (names, keeps_named) = match self {
            QueryRule::All => return out.extend_from_slice(path_and_query),
            QueryRule::Without(names) => (names, false),
            QueryRule::Only(names) => (names, true),
        };
        let Some(mark) = memchr::memchr(b'?', path_and_query) else { return out.extend_from_slice(path_and_query) };
        out.extend_from_slice(&path_and_query[..mark]);
        let mut separator = b'?';
        for parameter in path_and_query[mark + 1..].split(|byte| *byte == b'&') {
            let name = &parameter[..memchr::memchr(b'=', parameter).unwrap_or(parameter.len())];
            if names.iter().any(|known| known.matches(name)) == keeps_named {
                out.push(separator);
                out.extend_from_slice(parameter);
                separator = b'&';
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_count_by_their_names() {
        let names = ["a".to_owned(), "utm_*".to_owned()];
        let table = [
            ("/x", "/x", "/x"),
            ("/x?", "/x?", "/x"),
            ("/x?a=1", "/x", "/x?a=1"),
            ("/x?utm_=1", "/x", "/x?utm_=1"),
            ("/x?a&b=2&utm_source=y&a=3", "/x?b=2", "/x?a&utm_source=y&a=3"),
            ("/x?b=2?a=1&aa=1", "/x?b=2?a=1&aa=1", "/x"),
            ("/x?%61=1", "/x?%61=1", "/x"),
            ("/x?c&&d", "/x?c&&d", "/x"),
        ];
        for (path, without, only) in table {
            let pushed = |rule: QueryRule| {
                let mut out = Vec::new();
                rule.push(path.as_bytes(), &mut out);
                String::from_utf8(out).expect("text")
            };
            assert_eq!(pushed(QueryRule::All), path);
            assert_eq!(pushed(QueryRule::without(&names)), without, "{path}");
            assert_eq!(pushed(QueryRule::only(&names)), only, "{path}");
        }
    }
}
