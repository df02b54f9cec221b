//! The tables of a volume, and the encoding of their keys. Integers in keys are big-endian, so that bytewise order is
//! numeric order.

use super::error::{FormatError, FormatProblem};

/// The bytes that are stored before the value of an extended attribute.
pub const XATTR_HEAD_BYTES: usize = 8;
/// The longest value of an extended attribute, which is that of the kernel. *Units*: bytes.
pub const XATTR_VALUE_BYTES_MAX: usize = 65536;
/// The longest key. *Units*: bytes.
pub(super) const KEY_BYTES_MAX: u64 = 512;
/// The longest value: that of an extended attribute. *Units*: bytes.
pub(super) const VALUE_BYTES_MAX: u64 = XATTR_HEAD_BYTES as u64 + XATTR_VALUE_BYTES_MAX as u64;
/// The longest name of an extended attribute. *Units*: bytes.
const XATTR_NAME_BYTES_MAX: usize = 255;
/// Cookies are below this, because programs treat a cookie as a signed number.
const COOKIES: u64 = 1 << 63;

/// The tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TableKind {
    Volume,
    Inodes,
    Entries,
    Extents,
    Xattrs,
    Space,
    Sessions,
    Replies,
    Grants,
    Orphans,
    Projects,
    Epochs,
    Runs,
}

impl TableKind {
    /// All tables; the first has number 1.
    pub const ALL: [TableKind; 13] = [
        TableKind::Volume,
        TableKind::Inodes,
        TableKind::Entries,
        TableKind::Extents,
        TableKind::Xattrs,
        TableKind::Space,
        TableKind::Sessions,
        TableKind::Replies,
        TableKind::Grants,
        TableKind::Orphans,
        TableKind::Projects,
        TableKind::Epochs,
        TableKind::Runs,
    ];

    /// Returns the number of the table on disk.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the table with a number.
    pub fn of(number: u8) -> Option<TableKind> {
        TableKind::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// A key of any table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableKey {
    /// The only record of the volume's variable properties.
    Volume,
    /// An inode: its number.
    Inode(u64),
    /// A name in a directory: inode of the directory, cookie of the name.
    Entry(u64, u64),
    /// An extent: inode, block of the file.
    Extent(u64, u64),
    /// An extended attribute: inode, name.
    Xattr(u64, Vec<u8>),
    /// A used extent of the disk: its first block.
    Space(u64),
    /// A session: its number.
    Session(u64),
    /// A stored reply: session, number of the operation.
    Reply(u64, u64),
    /// A grant: session, kind, first block or inode number.
    Grant(u64, u8, u64),
    /// An inode without a name: its number.
    Orphan(u64),
    /// A project: its number.
    Project(u32),
    /// An epoch: its number.
    Epoch(u64),
    /// A run: its number.
    Run(u64),
}

impl TableKey {
    /// Returns the table of the key.
    pub fn table(&self) -> TableKind {
        match self {
            TableKey::Volume => TableKind::Volume,
            TableKey::Inode(_) => TableKind::Inodes,
            TableKey::Entry(..) => TableKind::Entries,
            TableKey::Extent(..) => TableKind::Extents,
            TableKey::Xattr(..) => TableKind::Xattrs,
            TableKey::Space(_) => TableKind::Space,
            TableKey::Session(_) => TableKind::Sessions,
            TableKey::Reply(..) => TableKind::Replies,
            TableKey::Grant(..) => TableKind::Grants,
            TableKey::Orphan(_) => TableKind::Orphans,
            TableKey::Project(_) => TableKind::Projects,
            TableKey::Epoch(_) => TableKind::Epochs,
            TableKey::Run(_) => TableKind::Runs,
        }
    }

    /// Encodes the key.
    pub fn encode(&self) -> Vec<u8> {
        let two = |left: u64, right: u64| [left.to_be_bytes(), right.to_be_bytes()].concat();
        match self {
            TableKey::Volume => vec![0],
            TableKey::Inode(number) | TableKey::Space(number) | TableKey::Session(number) => {
                number.to_be_bytes().to_vec()
            }
            TableKey::Orphan(number) | TableKey::Epoch(number) | TableKey::Run(number) => number.to_be_bytes().to_vec(),
            TableKey::Entry(left, right) | TableKey::Extent(left, right) | TableKey::Reply(left, right) => {
                two(*left, *right)
            }
            TableKey::Xattr(inode, name) => [&inode.to_be_bytes()[..], name].concat(),
            TableKey::Grant(session, kind, start) => {
                [&session.to_be_bytes()[..], &[*kind], &start.to_be_bytes()[..]].concat()
            }
            TableKey::Project(number) => number.to_be_bytes().to_vec(),
        }
    }

    /// Decodes a key of a table.
    pub fn decode(table: TableKind, bytes: &[u8]) -> Result<TableKey, FormatError> {
        let error = |problem| FormatError { what: "key", problem };
        let number = |at: usize| -> Result<u64, FormatError> {
            let part = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
            part.map(u64::from_be_bytes).ok_or(error(FormatProblem::Short { needed: at + 8, found: bytes.len() }))
        };
        let key = match table {
            TableKind::Volume => TableKey::Volume,
            TableKind::Inodes => TableKey::Inode(number(0)?),
            TableKind::Entries => TableKey::Entry(number(0)?, number(8)?),
            TableKind::Extents => TableKey::Extent(number(0)?, number(8)?),
            TableKind::Xattrs => TableKey::Xattr(number(0)?, bytes.get(8..).unwrap_or_default().to_vec()),
            TableKind::Space => TableKey::Space(number(0)?),
            TableKind::Sessions => TableKey::Session(number(0)?),
            TableKind::Replies => TableKey::Reply(number(0)?, number(8)?),
            TableKind::Grants => {
                let kind =
                    bytes.get(8).copied().ok_or(error(FormatProblem::Short { needed: 17, found: bytes.len() }))?;
                TableKey::Grant(number(0)?, kind, number(9)?)
            }
            TableKind::Orphans => TableKey::Orphan(number(0)?),
            TableKind::Projects => {
                let part = bytes.get(..4).and_then(|part| part.try_into().ok());
                let short = error(FormatProblem::Short { needed: 4, found: bytes.len() });
                TableKey::Project(part.map(u32::from_be_bytes).ok_or(short)?)
            }
            TableKind::Epochs => TableKey::Epoch(number(0)?),
            TableKind::Runs => TableKey::Run(number(0)?),
        };
        match &key {
            TableKey::Entry(_, cookie) if *cookie >= COOKIES => {
                return Err(error(FormatProblem::Bound { field: "cookie", value: *cookie, low: 0, high: COOKIES - 1 }));
            }
            TableKey::Grant(_, kind, _) if !(1..=4).contains(kind) => {
                return Err(error(FormatProblem::Unknown { field: "kind", value: u64::from(*kind) }));
            }
            TableKey::Xattr(_, name) if !(1..=XATTR_NAME_BYTES_MAX).contains(&name.len()) || name.contains(&0) => {
                return Err(error(FormatProblem::Text("name")));
            }
            _ => {}
        }
        // The two differ if bytes follow the key, or if the key of `TableKind::Volume` is not a single zero byte.
        match key.encode() == bytes {
            true => Ok(key),
            false => Err(error(FormatProblem::LeftOver(bytes.len().saturating_sub(key.encode().len())))),
        }
    }
}
