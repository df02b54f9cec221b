//! Errors of decoding the structures of a volume.

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatProblem {
    /// There are fewer bytes than the structure needs.
    #[error("{found} bytes are too few, {needed} are needed")]
    Short {
        /// The number of bytes that are needed.
        needed: usize,
        /// The number of bytes that are present.
        found: usize,
    },
    /// Bytes follow the end of the structure.
    #[error("{0} bytes are left over")]
    LeftOver(usize),
    /// The magic number is wrong: this is another structure, or none.
    #[error("its magic is {0:#010x}")]
    Magic(u32),
    /// The structure has another format version.
    #[error("its version is {0}, this program knows 1")]
    Version(u16),
    /// The checksum does not match: the structure is torn or damaged.
    #[error("its checksum is {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// The checksum computed from the bytes.
        expected: u32,
        /// The checksum in the header.
        found: u32,
    },
    /// The structure belongs to another volume.
    #[error("it is of another volume")]
    OtherVolume,
    /// The structure was written for another block, or was moved.
    #[error("it is for block {found}, and lies in block {expected}")]
    Misplaced {
        /// The block at which it was read.
        expected: u64,
        /// The block that it contains.
        found: u64,
    },
    /// The value of a field is out of its bounds.
    #[error("{field} is {value}, {low} to {high} are allowed")]
    Bound {
        /// The field.
        field: &'static str,
        /// The value of the field.
        value: u64,
        /// The least allowed value.
        low: u64,
        /// The most allowed value.
        high: u64,
    },
    /// The number of a kind, state or table is unknown.
    #[error("{field} {value} is not known")]
    Unknown {
        /// The field.
        field: &'static str,
        /// The value of the field.
        value: u64,
    },
    /// Records are not in order, or occur twice.
    #[error("its records are not in order")]
    Order,
    /// A name or text is not valid.
    #[error("{0} is no valid text")]
    Text(&'static str),
}

/// The error of a structure that cannot be decoded. *Remedy*: the structure is damaged, unless it is a torn append at
/// the end of a journal; `volume check` tells which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {problem}")]
pub struct FormatError {
    /// The kind of structure.
    pub what: &'static str,
    /// The problem.
    pub problem: FormatProblem,
}
