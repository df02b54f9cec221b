//! Licences: every package that is built must be available under permissive licences.
//!
//! Owns: the allow list, and the parser of the SPDX expressions that crates use (`OR`, the older `/`, `AND`, `WITH` as
//! part of a name, parentheses).

use crate::metadata::Package;

const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// The packages whose licences are not allowed, one line each.
pub fn problems(packages: &[Package]) -> Vec<String> {
    let refused = packages.iter().filter(|package| !is_allowed(&package.licence));
    refused
        .map(|package| {
            let licence = if package.licence.is_empty() { "none named" } else { &package.licence };
            format!("{} {}: licence {licence:?} is not on the allow list", package.name, package.version)
        })
        .collect()
}

/// Whether an SPDX expression can be satisfied with licences on the list.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = LicenceParser { words: &words, position: 0 };
    parser.any() == Some(true) && parser.position == words.len()
}

struct LicenceParser<'a> {
    words: &'a [&'a str],
    position: usize,
}

impl LicenceParser<'_> {
    fn take(&mut self, word: &str) -> bool {
        let taken = self.words.get(self.position) == Some(&word);
        self.position += usize::from(taken);
        taken
    }

    fn any(&mut self) -> Option<bool> {
        let mut allowed = self.all()?;
        while self.take("OR") {
            allowed |= self.all()?;
        }
        Some(allowed)
    }

    fn all(&mut self) -> Option<bool> {
        let mut allowed = self.one()?;
        while self.take("AND") {
            allowed &= self.one()?;
        }
        Some(allowed)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let allowed = self.any()?;
            return self.take(")").then_some(allowed);
        }
        let mut name = (*self.words.get(self.position)?).to_owned();
        self.position += 1;
        if self.take("WITH") {
            name = format!("{name} WITH {}", self.words.get(self.position)?);
            self.position += 1;
        }
        Some(ALLOWED.contains(&name.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions_follow_spdx() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "Apache-2.0 AND ISC",
            "(MIT OR GPL-2.0) AND (Apache-2.0 WITH LLVM-exception OR X)",
        ] {
            assert!(is_allowed(good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0-only",
            "MIT AND GPL-2.0",
            "MIT OR",
            "(MIT",
            "MIT)",
            "Apache-2.0 WITH other-exception",
            "MIT MIT",
        ] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }
}
