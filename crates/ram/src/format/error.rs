//! Errors of decoding a donor's metadata area.
//!
//! Owns: the kinds of errors; each names the field and the value that was found.

use thiserror::Error;

/// The metadata area has no record that this version can use. The donor counts as one without the device's data.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The area is shorter than the fields that it must have.
    #[error("metadata area: {found} bytes where {needed} are needed")]
    Short {
        /// The number of bytes that the fields need.
        needed: usize,
        /// The number of bytes present.
        found: usize,
    },
    /// The first bytes are not those of a record.
    #[error("metadata area: no record of a device with redundancy (wrong magic)")]
    Magic,
    /// The checksum does not match.
    #[error("metadata area: checksum {found:#018x} where {expected:#018x} belongs: damaged")]
    Checksum {
        /// The checksum computed over the record.
        expected: u64,
        /// The checksum stored at the end of the record.
        found: u64,
    },
    /// The record has a newer version, or features that this version does not know.
    #[error("metadata area: {what} {found} is not understood: use a newer nectary")]
    Unsupported {
        /// The field.
        what: &'static str,
        /// The value of the field.
        found: u64,
    },
    /// A field is out of its range.
    #[error("metadata area: {what} {found} is out of range")]
    Range {
        /// The field.
        what: &'static str,
        /// The value of the field.
        found: u64,
    },
}
