//! Why bytes of a peer are refused.
//!
//! Owns: the reasons and their texts. Leaves to others: detecting them (`framing`), and the answer to the client
//! (`service/refusal`).

use std::fmt;

/// Why bytes are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// A line of a request ends in LF without CR.
    BareLineFeed,
    /// A header line begins with a space.
    FoldedLine,
    /// Both `Content-Length` and `Transfer-Encoding`.
    BothLengths,
    /// A `Content-Length` that is not a number, or several that differ.
    ContentLength,
    /// `chunked` twice or not last, an empty value, or any transfer coding in HTTP/1.0.
    TransferCoding,
    /// A transfer coding other than `chunked`.
    UnknownCoding,
    /// A space between a framing header's name and its colon.
    SpaceBeforeColon,
    /// A request's target is longer than a whole head may be.
    TargetTooLong,
    /// The head, a chunk's extensions or the trailers are too long.
    TooLong,
    /// A major version other than 1.
    Version,
    /// A chunk whose size line or end is wrong.
    Chunk,
    /// A status line that cannot be read.
    StatusLine,
    /// A `101`: the proxy never requests another protocol.
    Switching,
    /// More informational responses than may come before a final one.
    TooManyInformational,
    /// Unrequested bytes.
    Unexpected,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::BareLineFeed => "a line ends in a bare LF",
            Violation::FoldedLine => "a folded header line",
            Violation::BothLengths => "both Content-Length and Transfer-Encoding",
            Violation::ContentLength => "an invalid or ambiguous Content-Length",
            Violation::TransferCoding => "an invalid Transfer-Encoding",
            Violation::UnknownCoding => "a Transfer-Encoding other than chunked",
            Violation::SpaceBeforeColon => "a space before a colon",
            Violation::TargetTooLong => "the target is too long",
            Violation::TooLong => "the head or trailers are too long",
            Violation::Chunk => "bad chunked framing",
            Violation::Version => "an HTTP version other than 1.0 and 1.1",
            Violation::StatusLine => "a bad status line",
            Violation::Switching => "a switch to another protocol",
            Violation::TooManyInformational => "too many informational responses",
            Violation::Unexpected => "bytes that were not asked for",
        })
    }
}

impl std::error::Error for Violation {}
