//! What of a URL's query is in the key.
//!
//! Owns: the choice of the parameters, by their names as they are written: nothing is decoded, so two spellings of a name
//! are two names, and the worst that a client gets from one is a copy of its own. A parameter that is not in the key is
//! not sent to the origin either when the response may be stored: else a client could choose by it what others get.

use super::NameRule;

/// A rule about the parameters of a query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QueryRule(pub NameRule);

impl QueryRule {
    /// Whether the whole query is in the key, byte for byte.
    pub fn is_all(&self) -> bool {
        self.0.is_all()
    }

    /// Appends a path and what counts of its query. *Cost*: no allocation beyond `out`.
    pub fn push(&self, path_and_query: &[u8], out: &mut Vec<u8>) {
        if self.is_all() {
            return out.extend_from_slice(path_and_query);
        }
        let Some(mark) = memchr::memchr(b'?', path_and_query) else { return out.extend_from_slice(path_and_query) };
        out.extend_from_slice(&path_and_query[..mark]);
        let mut separator = b'?';
        for parameter in path_and_query[mark + 1..].split(|byte| *byte == b'&') {
            let name = &parameter[..memchr::memchr(b'=', parameter).unwrap_or(parameter.len())];
            if self.0.keeps(name) {
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
            let pushed = |rule: NameRule| {
                let mut out = Vec::new();
                QueryRule(rule).push(path.as_bytes(), &mut out);
                String::from_utf8(out).expect("text")
            };
            assert_eq!(pushed(NameRule::All), path);
            assert_eq!(pushed(NameRule::without(&names)), without, "{path}");
            assert_eq!(pushed(NameRule::only(&names)), only, "{path}");
        }
    }
}
