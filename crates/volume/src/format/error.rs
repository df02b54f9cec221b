//! What is wrong with bytes of a volume.

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// There are fewer bytes than the structure has.
    #[error("{found} bytes are too few, {needed} are needed")]
    Short {
        /// Bytes that are needed.
        needed: usize,
        /// Bytes that are there.
        found: usize,
    },
    /// There are bytes behind its end.
    #[error("{0} bytes are left over")]
    LeftOver(usize),
    /// It begins with another magic: another structure, or none.
    #[error("its magic is {0:#010x}")]
    Magic(u32),
    /// Another version wrote it.
    #[error("its version is {0}, this program knows 1")]
    Version(u16),
    /// The checksum differs: torn, or damaged.
    #[error("its checksum is {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// The checksum of the bytes.
        expected: u32,
        /// The checksum in the header.
        found: u32,
    },
    /// It belongs to another volume.
    #[error("it is of another volume")]
    OtherVolume,
    /// It was written for another place, or moved.
    #[error("it is for block {found}, and lies in block {expected}")]
    Misplaced {
        /// Where it was read.
        expected: u64,
        /// What it says.
        found: u64,
    },
    /// A field is out of its bounds.
    #[error("{field} is {value}, {low} to {high} are allowed")]
    Bound {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The least.
        low: u64,
        /// The most.
        high: u64,
    },
    /// A kind, state or table that there is not.
    #[error("{field} {value} is not known")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// Records are not in order, or one is there twice.
    #[error("its records are not in order")]
    Order,
    /// A name or text that cannot be one.
    #[error("{0} is no valid text")]
    Text(&'static str),
}

/// A structure that cannot be decoded. *Remedy*: it is damage unless it ends a journal; `volume check` says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {problem}")]
pub struct FormatError {
    /// The structure.
    pub what: &'static str,
    /// What is wrong with it.
    pub problem: Problem,
}
