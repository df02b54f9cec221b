//! The reasons why bytes of a peer are refused.
//!
//! Owns: the reasons and their texts. Leaves to others: detecting them (`framing`), and the answer to the client
//! (`service/refusal`).

use std::fmt;

/// The reason why bytes are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FramingViolation {
    /// A line of a request ends in LF without CR.
    BareLineFeed,
    /// A header line begins with a space.
    FoldedLine,
    /// A message has both `BodyContent-Length` and `Transfer-Encoding`.
    BothLengths,
    /// A `BodyContent-Length` is not a number, or a message has several that differ.
    ContentLength,
    /// `Transfer-Encoding` has `chunked` twice or not last, is empty, or occurs in HTTP/1.0.
    TransferCoding,
    /// `Transfer-Encoding` has a coding other than `chunked`.
    UnknownCoding,
    /// There is a space between a framing header's name and its colon.
    SpaceBeforeColon,
    /// A request's target is longer than the limit on whole heads.
    TargetTooLong,
    /// The head, a chunk's extensions or the trailers are too long.
    TooLong,
    /// The major version is not 1.
    Version,
    /// The size line or the end of a chunk is wrong.
    Chunk,
    /// A status line cannot be read.
    StatusLine,
    /// The origin sent a `101`, although the request did not ask for another protocol.
    Switching,
    /// There are more informational responses before a final one than the limit allows.
    TooManyInformational,
    /// Bytes arrived that answer no request.
    Unexpected,
}

impl fmt::Display for FramingViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FramingViolation::BareLineFeed => "a line ends in a bare LF",
            FramingViolation::FoldedLine => "a folded header line",
            FramingViolation::BothLengths => "both Content-Length and Transfer-Encoding",
            FramingViolation::ContentLength => "an invalid or ambiguous Content-Length",
            FramingViolation::TransferCoding => "an invalid Transfer-Encoding",
            FramingViolation::UnknownCoding => "a Transfer-Encoding other than chunked",
            FramingViolation::SpaceBeforeColon => "a space before a colon",
            FramingViolation::TargetTooLong => "the target is too long",
            FramingViolation::TooLong => "the head or trailers are too long",
            FramingViolation::Chunk => "bad chunked framing",
            FramingViolation::Version => "an HTTP version other than 1.0 and 1.1",
            FramingViolation::StatusLine => "a bad status line",
            FramingViolation::Switching => "a switch to another protocol",
            FramingViolation::TooManyInformational => "too many informational responses",
            FramingViolation::Unexpected => "bytes that were not asked for",
        })
    }
}

impl std::error::Error for FramingViolation {}
