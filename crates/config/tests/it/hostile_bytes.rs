//! Bytes that are no configuration, and configurations that are cut, mixed and repeated: no panic, bounded time, and what
//! is read is written and read again.

use std::time::{Duration, Instant};

use nectary_config::{FILE_BYTES_MAX, ProxyConfig, fuzzing};
use proptest::prelude::*;

use crate::cases::cases;

/// The size of a large file; of those that are refused at once the largest is read, too. *Units*: bytes.
const LARGE_BYTES: usize = FILE_BYTES_MAX / 4;

/// The texts of all cases.
fn texts() -> Vec<String> {
    ["valid.txt", "wrong.txt"].iter().flat_map(|file| cases(file)).map(|case| case.text).collect()
}

/// A text of which some parts are cut out, repeated, or replaced by parts of another.
fn mixed(texts: &[String], edits: &[(usize, usize, usize, u8)]) -> String {
    let mut lines: Vec<String> = texts[edits[0].0 % texts.len()].lines().map(str::to_owned).collect();
    for &(which, from, to, kind) in edits {
        let other: Vec<&str> = texts[which % texts.len()].lines().collect();
        let (at, taken) = (from % (lines.len() + 1), other.get(to % (other.len() + 1)).copied().unwrap_or_default());
        match kind % 5 {
            0 => lines.insert(at, taken.to_owned()),
            1 if at < lines.len() => drop(lines.remove(at)),
            2 if at < lines.len() => {
                let cut = lines[at].char_indices().nth(to % 20).map_or(0, |(index, _)| index);
                lines[at].truncate(cut);
            }
            3 if at < lines.len() => {
                let key = lines[at].split('=').next().unwrap_or_default().to_owned();
                lines[at] = format!("{key}={}", taken.split_once('=').map_or("[", |(_, value)| value));
            }
            _ => lines.iter_mut().skip(at).take(1).for_each(|line| line.push_str(taken)),
        }
    }
    lines.join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzzing::parse(&bytes);
    }

    #[test]
    fn random_text_does_no_harm(text in "[a-z\\[\\]{}=\"'.,#\\\\ \n0-9-]{0,200}") {
        fuzzing::parse(text.as_bytes());
    }

    #[test]
    fn mixed_files_do_no_harm(
        edits in prop::collection::vec((any::<usize>(), any::<usize>(), any::<usize>(), any::<u8>()), 1..6),
    ) {
        fuzzing::parse(mixed(&texts(), &edits).as_bytes());
    }
}

#[test]
fn largest_files_take_bounded_time() {
    let fill = |part: &dyn Fn(usize) -> String| {
        let mut text = String::new();
        for index in 0.. {
            let next = part(index);
            if text.len() + next.len() > LARGE_BYTES {
                break;
            }
            text.push_str(&next);
        }
        text
    };
    let texts = [
        fill(&|_| "[".to_owned()),
        fill(&|_| "a.".to_owned()),
        fill(&|_| "a={".to_owned()),
        fill(&|index| format!("k{index}=1\n")),
        fill(&|_| "a=1\n".to_owned()),
        fill(&|_| "=\n".to_owned()),
        fill(&|_| "[[site]]\n".to_owned()),
        fill(&|index| format!("[origins.o{index}]\nservers=[\"http://a\"]\n")),
        fill(&|index| format!("[[site]]\nnames=[\"s{index}\"]\nroute=[{{origin=\"o\"}}]\n")),
        format!("[server]\ntrust-forwarded=[{}]", "\"ä\",".repeat(FILE_BYTES_MAX / 5 - 10)),
        format!("[server]\ntrust-forwarded=[{}]", "\"ä\",".repeat(10_000)),
        format!("[origins.a]\nservers=[{}]", "\"http://a\",".repeat(1000)),
        "\u{1}".repeat(LARGE_BYTES),
        "x".repeat(FILE_BYTES_MAX),
    ];
    for (index, text) in texts.iter().enumerate() {
        let begun = Instant::now();
        let problems = ProxyConfig::parse("proxy.toml", text).expect_err("nothing of this is right");
        assert!(problems.len() <= 101, "{index}");
        assert!(problems.iter().all(|problem| problem.to_string().len() < 5000), "{index}");
        assert!(begun.elapsed() < Duration::from_secs(20), "text {index} took {:?}", begun.elapsed());
    }
}
