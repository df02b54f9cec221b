//! Why bytes of a donor's metadata area cannot be used.
//!
//! Owns: the kinds of refusal; each names the field and what was found.

use thiserror::Error;

/// A metadata area that is not a record this version can use. The donor counts as one without the device's data.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The area is shorter than the fields it must have.
    #[error("metadata area: {found} bytes where {needed} are needed")]
    Short {
        /// Bytes that the fields need.
        needed: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// The first bytes are not those of a record.
    #[error("metadata area: no record of a device with redundancy (wrong magic)")]
    Magic,
    /// The checksum does not fit.
    #[error("metadata area: checksum {found:#018x} where {expected:#018x} belongs: damaged")]
    Checksum {
        /// Computed over the record.
        expected: u64,
        /// Stored at its end.
        found: u64,
    },
    /// A newer version, or features that this one does not know.
    #[error("metadata area: {what} {found} is not understood: use a newer nectary")]
    Unsupported {
        /// The field.
        what: &'static str,
        /// Its value.
        found: u64,
    },
    /// A field out of its range.
    #[error("metadata area: {what} {found} is out of range")]
    Range {
        /// The field.
        what: &'static str,
        /// Its value.
        found: u64,
    },
}
