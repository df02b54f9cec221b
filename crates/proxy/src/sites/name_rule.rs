//! Which of several things with names count: the parameters of a query, the cookies of a request.
//!
//! Owns: the names, and the beginnings of names. They are compared byte by byte, and capital letters count. Leaves to
//! others: what has a name, and what happens to that which does not count (`query_rule`, `cookie_rule`).

/// A rule about things with names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum NameRule {
    /// All count.
    #[default]
    All,
    /// All but those with these names.
    Without(Vec<KnownName>),
    /// Only those with these names.
    Only(Vec<KnownName>),
}

/// A name, or the beginning of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KnownName {
    text: Box<[u8]>,
    is_prefix: bool,
}

impl KnownName {
    /// A name; one that ends with `*` stands for all names that begin so.
    pub fn new(text: &str) -> KnownName {
        let (text, is_prefix) = text.strip_suffix('*').map_or((text, false), |begin| (begin, true));
        KnownName { text: text.as_bytes().into(), is_prefix }
    }

    fn matches(&self, name: &[u8]) -> bool {
        if self.is_prefix { name.starts_with(&self.text) } else { *self.text == *name }
    }

    /// Like [`matches`](KnownName::matches), where capital letters do not count.
    fn matches_any_case(&self, name: &[u8]) -> bool {
        let begins = name.get(..self.text.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(&self.text));
        begins && (self.is_prefix || name.len() == self.text.len())
    }
}

impl NameRule {
    /// A rule by which all but these names count.
    pub fn without(names: &[String]) -> NameRule {
        NameRule::Without(names.iter().map(|name| KnownName::new(name)).collect())
    }

    /// A rule by which only these names count.
    pub fn only(names: &[String]) -> NameRule {
        NameRule::Only(names.iter().map(|name| KnownName::new(name)).collect())
    }

    /// Whether every name counts.
    #[inline]
    pub fn is_all(&self) -> bool {
        matches!(self, NameRule::All)
    }

    /// Whether something counts that has this name, and perhaps others for those who read it otherwise: all of them must
    /// count. A name that does not count is recognised whatever its case.
    pub fn keeps_all<'a>(&self, name: &[u8], others: impl Iterator<Item = &'a [u8]>) -> bool {
        match self {
            NameRule::All => true,
            NameRule::Without(names) => {
                let is_named = |name: &[u8]| names.iter().any(|known| known.matches_any_case(name));
                !is_named(name) && !others.into_iter().any(is_named)
            }
            NameRule::Only(_) => self.keeps(name) && others.into_iter().all(|other| self.keeps(other)),
        }
    }

    /// Whether a name counts. *Cost*: one comparison for each name of the rule.
    pub fn keeps(&self, name: &[u8]) -> bool {
        match self {
            NameRule::All => true,
            NameRule::Without(names) => !names.iter().any(|known| known.matches(name)),
            NameRule::Only(names) => names.iter().any(|known| known.matches(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_whole_or_by_beginning() {
        let names = ["a".to_owned(), "utm_*".to_owned()];
        let table =
            [("a", true), ("utm_", true), ("utm_x", true), ("", false), ("A", false), ("aa", false), ("utm", false)];
        for (name, is_named) in table {
            let name = name.as_bytes();
            assert!(NameRule::All.keeps(name));
            assert_eq!(NameRule::only(&names).keeps(name), is_named, "{name:?}");
            assert_eq!(NameRule::without(&names).keeps(name), !is_named, "{name:?}");
        }
        let every = ["*".to_owned()];
        assert!(NameRule::only(&every).keeps(b"") && !NameRule::without(&every).keeps(b"x"));
        assert!(NameRule::All.is_all() && !NameRule::only(&[]).is_all() && !NameRule::only(&[]).keeps(b"a"));
    }
}
