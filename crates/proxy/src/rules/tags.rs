//! Tags of responses: names by which an operator or an origin purges many responses at once.
//!
//! Owns: the list of headers that name tags, how they are read, and how a cache group becomes a tag. `Surrogate-Key`
//! (separated by spaces) and `NameCache-Tag` (by commas) name the same kind of tag, which belongs to no origin; tags
//! compare byte by byte. A cache group belongs to one origin: its tag consists of a zero byte, which no header can
//! contain, the origin, another zero byte and the group's name. *Source*: RFC 9875; RFC 9651, 4.2, for lists of strings
//! (a list that does not parse is ignored as a whole).

use http::{HeaderMap, HeaderName};

use super::structured::{StructuredValue, field, list};

/// Tags, separated by spaces.
const SURROGATE_KEY: HeaderName = HeaderName::from_static("surrogate-key");
/// Tags, separated by commas.
const CACHE_TAG: HeaderName = HeaderName::from_static("cache-tag");
/// The groups of a response.
pub const CACHE_GROUPS: HeaderName = HeaderName::from_static("cache-groups");
/// The groups that a response to an unsafe request makes invalid.
const CACHE_GROUP_INVALIDATION: HeaderName = HeaderName::from_static("cache-group-invalidation");

/// The tags that the headers name. Cache groups become tags of `origin`, which is `scheme://authority`.
pub fn tags_of(headers: &HeaderMap, origin: &[u8]) -> Vec<Vec<u8>> {
    let mut tags = plain_tags_of(headers);
    tags.extend(groups_of(headers, &CACHE_GROUPS, origin));
    tags
}

/// Whether one of the headers names tags, even with an empty value.
pub fn are_about_tags(headers: &HeaderMap) -> bool {
    [SURROGATE_KEY, CACHE_TAG, CACHE_GROUPS].iter().any(|name| headers.contains_key(name))
}

/// The tags of the groups that a response's headers make invalid.
pub fn invalidated_groups_of(headers: &HeaderMap, origin: &[u8]) -> Vec<Vec<u8>> {
    groups_of(headers, &CACHE_GROUP_INVALIDATION, origin)
}

/// Removes `Surrogate-Key` and `NameCache-Tag`. `NameCache-Groups` stays: it is for every cache on the way to the client.
pub fn strip(headers: &mut HeaderMap) {
    headers.remove(SURROGATE_KEY);
    headers.remove(CACHE_TAG);
}

fn plain_tags_of(headers: &HeaderMap) -> Vec<Vec<u8>> {
    let lines = headers.get_all(SURROGATE_KEY);
    let keys = lines.iter().flat_map(|value| value.as_bytes().split(|byte| matches!(byte, b' ' | b'\t')));
    let members = headers.get_all(CACHE_TAG).into_iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    keys.chain(members).map(<[u8]>::trim_ascii).filter(|tag| !tag.is_empty()).map(<[u8]>::to_vec).collect()
}

fn groups_of(headers: &HeaderMap, name: &HeaderName, origin: &[u8]) -> Vec<Vec<u8>> {
    let values = field(headers, name).and_then(|field| list(&field)).unwrap_or_default();
    let names: Option<Vec<Vec<u8>>> = values
        .into_iter()
        .map(|value| if let StructuredValue::Text(name) = value { Some(name) } else { None })
        .collect();
    names.unwrap_or_default().into_iter().map(|name| [b"\0", origin, b"\0", &name[..]].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    fn texts(tags: Vec<Vec<u8>>) -> Vec<String> {
        tags.into_iter().map(|tag| String::from_utf8(tag).expect("text")).collect()
    }

    #[test]
    fn tags_are_read_per_field_syntax() {
        type Lines<'a> = &'a [(&'a str, &'a str)];
        let table: &[(Lines, &[&str])] = &[
            (&[], &[]),
            (&[("surrogate-key", "")], &[]),
            (&[("surrogate-key", " a  b,c\t\"d ")], &["a", "b,c", "\"d"]),
            (&[("surrogate-key", "a"), ("surrogate-key", "b")], &["a", "b"]),
            (&[("cache-tag", "a, b c ,,d")], &["a", "b c", "d"]),
            (&[("cache-tag", "a"), ("surrogate-key", "b")], &["b", "a"]),
            (&[("cache-groups", "\"a\", \"b\\\"c,d\";x=1")], &["\0http://o\0a", "\0http://o\0b\"c,d"]),
            (&[("cache-groups", "\"a\""), ("cache-groups", "\"b\"")], &["\0http://o\0a", "\0http://o\0b"]),
            (&[("cache-groups", "\"a\", b"), ("cache-tag", "c")], &["c"]),
            (&[("cache-groups", "\"a")], &[]),
            (&[("cache-groups", "\"a\" x")], &[]),
            (&[("cache-groups", "\"a\\x\"")], &[]),
            (&[("cache-group-invalidation", "\"a\"")], &[]),
        ];
        for (lines, expected) in table {
            assert_eq!(texts(tags_of(&headers(lines), b"http://o")), *expected, "{lines:?}");
        }
        let invalid = headers(&[("cache-group-invalidation", "\"a\"")]);
        assert_eq!(texts(invalidated_groups_of(&invalid, b"http://o")), ["\0http://o\0a"]);
    }

    #[test]
    fn tags_stripped_groups_kept() {
        let mut stripped = headers(&[("surrogate-key", "a"), ("cache-tag", "a"), ("cache-groups", "\"a\"")]);
        strip(&mut stripped);
        assert_eq!(stripped, headers(&[("cache-groups", "\"a\"")]));
    }
}
