//! What was perhaps meant by a word that is not allowed.
//!
//! Owns: the distance between words, and how near a suggestion must be. *Cost*: the product of the lengths, which are
//! bounded, for each candidate.

/// Longer words have no suggestion. *Units*: bytes.
const WORD_MAX: usize = 64;

/// The nearest candidate, if one is near: at most a third of its letters differ. Of several the first counts.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.is_empty() || word.len() > WORD_MAX {
        return None;
    }
    let word = word.to_ascii_lowercase().replace('_', "-");
    let near = candidates.into_iter().filter(|candidate| candidate.len() <= WORD_MAX).filter_map(|candidate| {
        let distance = distance(&word, &candidate.to_ascii_lowercase());
        (distance * 3 <= candidate.len().max(3)).then_some((distance, candidate))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// How many letters must be added, removed, replaced or exchanged with their neighbours to make one word of another.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before_last = vec![0; right.len() + 1];
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, from) in left.iter().enumerate() {
        let mut current = vec![row + 1; right.len() + 1];
        for (column, to) in right.iter().enumerate() {
            let replaced = last[column] + usize::from(from != to);
            current[column + 1] = replaced.min(last[column + 1] + 1).min(current[column] + 1);
            if row > 0 && column > 0 && *from == right[column - 1] && left[row - 1] == *to {
                current[column + 1] = current[column + 1].min(before_last[column - 1] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested() {
        let keys = ["device", "size", "memory", "default-ttl", "io"];
        for (word, expected) in [
            ("sise", Some("size")),
            ("devcie", Some("device")),
            ("default_ttl", Some("default-ttl")),
            ("Size", Some("size")),
            ("oi", Some("io")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, keys), expected, "{word}");
        }
        assert_eq!(nearest(&"x".repeat(1000), keys), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
