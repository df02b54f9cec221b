//! The reasons why tests fail with Nectary.
//!
//! Owns: a sentence for each failing test, by the suite's name of the test. A test that fails because it depends on
//! another failed test is explained by that test. A failure without an explanation fails the run.

use super::SuiteTestResult;

const COOKIE: &str = "Nobody gets another's cookie from the store: a response with `Set-Cookie` is stored only where it says `public` or \
                      `no-cache=\"set-cookie\"`, or the operator wants it (`--store-set-cookie`).";
const PARTIAL: &str = "The `206` of the test contradicts itself: `Content-Range: bytes 4-9/10` names six bytes, its body has \
                       five, and the test wants the last byte of ten to be the last of those five. It is passed on, and not \
                       stored.";
const ORDER: &str = "Origins may take the order of languages for a preference (RFC 9110, 12.5.4), and which language an origin \
                     would choose only the origin knows.";
const AGE: &str = "The package's test is older than RFC 9111, 5.1 on an `Age` that is no number; the repository wants what Nectary does.";
const STALE: &str = "The package's test takes an error that the cache makes itself for a stored response, and has been mended in \
                     the repository.";
const UPDATE: &str =
    "Describes the body, which a `304` does not replace; required by the package alone, a check in the repository.";

/// The failing tests, each with the reason.
const EXPLANATIONS: &[(&str, &str)] = &[
    ("headers-store-Set-Cookie", COOKIE),
    ("other-set-cookie", COOKIE),
    (
        "headers-store-Transfer-Encoding",
        "An unknown transfer coding is refused: nobody could tell where such a body ends.",
    ),
    (
        "method-POST",
        "A response to `POST` is passed on and not stored, also where it says that it could be: to store it safely, the \
         proxy would have to know that no other unsafe request for the URL, at any worker, reached the origin meanwhile. \
         Hardly an origin sends one.",
    ),
    (
        "conditional-lm-fresh-no-lm",
        "Without `Last-Modified` the stored response is as old as its `Date` (RFC 9111, 4.3.2), which is later than the \
         date that the test asks about.",
    ),
    ("vary-normalise-lang-order", ORDER),
    ("vary-normalise-lang-select", ORDER),
    ("partial-store-partial-reuse-partial", PARTIAL),
    ("partial-store-partial-reuse-partial-byterange", PARTIAL),
    ("partial-store-partial-reuse-partial-absent", PARTIAL),
    ("partial-store-partial-reuse-partial-suffix", PARTIAL),
    (
        "partial-store-partial-complete",
        "The `206` of the test has no validator, and parts must not be combined without one (RFC 9110, 15.3.7.3). Its \
         `Content-Range` is not the requested range either.",
    ),
    ("age-parse-nonnumeric", AGE),
    ("age-parse-negative", AGE),
    ("age-parse-float", AGE),
    ("age-parse-prefix-twoline", AGE),
    ("age-parse-dup-0", AGE),
    ("age-parse-dup-0-twoline", AGE),
    ("age-parse-dup-old", AGE),
    ("age-parse-parameter", AGE),
    ("age-parse-numeric-parameter", AGE),
    ("stale-close-must-revalidate", STALE),
    ("stale-close-proxy-revalidate", STALE),
    ("stale-close-no-cache", STALE),
    ("stale-close-s-maxage=2", STALE),
    ("304-etag-update-response-Content-MD5", UPDATE),
    ("304-etag-update-response-Set-Cookie", COOKIE),
    (
        "304-etag-update-response-ETag",
        "The package's test answers with a `304` of another `ETag`, which confirms nothing, so the whole is requested; \
         the repository has made it a check.",
    ),
];

/// Returns the reason why a test fails, if it is known.
pub fn of(row: &SuiteTestResult) -> Option<String> {
    if let Some((_, text)) = EXPLANATIONS.iter().find(|(id, _)| *id == row.id) {
        return Some((*text).to_owned());
    }
    let names: Vec<String> = row.failed.iter().map(|id| format!("`{id}`")).collect();
    (row.result == "dependency" && !names.is_empty()).then(|| format!("Depends on {}.", names.join(", ")))
}

/// The tests that have an explanation.
pub fn ids() -> impl Iterator<Item = &'static str> {
    EXPLANATIONS.iter().map(|(id, _)| *id)
}
