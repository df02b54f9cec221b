//! The tables of a volume, and the encoding of their keys. Integers in keys are big-endian, so that bytewise order is
//! numeric order.

use super::error::{FormatError, Problem};

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
pub enum Table {
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

impl Table {
    /// All tables; the first has number 1.
    pub const ALL: [Table; 13] = [
        Table::Volume,
        Table::Inodes,
        Table::Entries,
        Table::Extents,
        Table::Xattrs,
        Table::Space,
        Table::Sessions,
        Table::Replies,
        Table::Grants,
        Table::Orphans,
        Table::Projects,
        Table::Epochs,
        Table::Runs,
    ];

    /// Returns the number of the table on disk.
    pub fn number(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the table with a number.
    pub fn of(number: u8) -> Option<Table> {
        Table::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// A key of any table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
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

impl Key {
    /// Returns the table of the key.
    pub fn table(&self) -> Table {
        match self {
            Key::Volume => Table::Volume,
            Key::Inode(_) => Table::Inodes,
            Key::Entry(..) => Table::Entries,
            Key::Extent(..) => Table::Extents,
            Key::Xattr(..) => Table::Xattrs,
            Key::Space(_) => Table::Space,
            Key::Session(_) => Table::Sessions,
            Key::Reply(..) => Table::Replies,
            Key::Grant(..) => Table::Grants,
            Key::Orphan(_) => Table::Orphans,
            Key::Project(_) => Table::Projects,
            Key::Epoch(_) => Table::Epochs,
            Key::Run(_) => Table::Runs,
        }
    }

    /// Encodes the key.
    pub fn encode(&self) -> Vec<u8> {
        let two = |left: u64, right: u64| [left.to_be_bytes(), right.to_be_bytes()].concat();
        match self {
            Key::Volume => vec![0],
            Key::Inode(number) | Key::Space(number) | Key::Session(number) => number.to_be_bytes().to_vec(),
            Key::Orphan(number) | Key::Epoch(number) | Key::Run(number) => number.to_be_bytes().to_vec(),
            Key::Entry(left, right) | Key::Extent(left, right) | Key::Reply(left, right) => two(*left, *right),
            Key::Xattr(inode, name) => [&inode.to_be_bytes()[..], name].concat(),
            Key::Grant(session, kind, start) => {
                [&session.to_be_bytes()[..], &[*kind], &start.to_be_bytes()[..]].concat()
            }
            Key::Project(number) => number.to_be_bytes().to_vec(),
        }
    }

    /// Decodes a key of a table.
    pub fn decode(table: Table, bytes: &[u8]) -> Result<Key, FormatError> {
        let error = |problem| FormatError { what: "key", problem };
        let number = |at: usize| -> Result<u64, FormatError> {
            let part = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
            part.map(u64::from_be_bytes).ok_or(error(Problem::Short { needed: at + 8, found: bytes.len() }))
        };
        let key = match table {
            Table::Volume => Key::Volume,
            Table::Inodes => Key::Inode(number(0)?),
            Table::Entries => Key::Entry(number(0)?, number(8)?),
            Table::Extents => Key::Extent(number(0)?, number(8)?),
            Table::Xattrs => Key::Xattr(number(0)?, bytes.get(8..).unwrap_or_default().to_vec()),
            Table::Space => Key::Space(number(0)?),
            Table::Sessions => Key::Session(number(0)?),
            Table::Replies => Key::Reply(number(0)?, number(8)?),
            Table::Grants => {
                let kind = bytes.get(8).copied().ok_or(error(Problem::Short { needed: 17, found: bytes.len() }))?;
                Key::Grant(number(0)?, kind, number(9)?)
            }
            Table::Orphans => Key::Orphan(number(0)?),
            Table::Projects => {
                let part = bytes.get(..4).and_then(|part| part.try_into().ok());
                let short = error(Problem::Short { needed: 4, found: bytes.len() });
                Key::Project(part.map(u32::from_be_bytes).ok_or(short)?)
            }
            Table::Epochs => Key::Epoch(number(0)?),
            Table::Runs => Key::Run(number(0)?),
        };
        match &key {
            Key::Entry(_, cookie) if *cookie >= COOKIES => {
                return Err(error(Problem::Bound { field: "cookie", value: *cookie, low: 0, high: COOKIES - 1 }));
            }
            Key::Grant(_, kind, _) if !(1..=4).contains(kind) => {
                return Err(error(Problem::Unknown { field: "kind", value: u64::from(*kind) }));
            }
            Key::Xattr(_, name) if !(1..=XATTR_NAME_BYTES_MAX).contains(&name.len()) || name.contains(&0) => {
                return Err(error(Problem::Text("name")));
            }
            _ => {}
        }
        // The two differ if bytes follow the key, or if the key of `Table::Volume` is not a single zero byte.
        match key.encode() == bytes {
            true => Ok(key),
            false => Err(error(Problem::LeftOver(bytes.len().saturating_sub(key.encode().len())))),
        }
    }
}
