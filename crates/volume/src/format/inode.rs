//! The record of an inode.

use super::cursor::{BoundedReader, BoundedWriter};
use super::error::FormatError;

/// The maximum number of bytes that an inode itself holds. *Units*: bytes.
pub const INLINE_BYTES_MAX: usize = 2048;
/// The longest target of a symbolic link. *Units*: bytes.
pub const TARGET_BYTES_MAX: usize = 4095;
/// The maximum number of links of an inode.
const LINKS_MAX: u64 = (1 << 31) - 1;
/// The size of the largest file. *Units*: bytes.
const SIZE_MAX: u64 = (1 << 63) - 1;

/// The flag of an inode that has extended attributes. Records do not have it: the server sets it in answers.
pub const HAS_XATTRS: u32 = 32;
/// The flag of an inode without a name that no other session has open or may open. Records do not have it: the server sets
/// it in the answer to an *Unlink*.
pub const LOST_TO_OTHERS: u32 = 128;

/// The record of a file: everything except its names and its data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inode {
    /// Type and permissions, as in `stat`.
    pub mode: u32,
    /// The number of names.
    pub links: u32,
    /// The owner's user number.
    pub owner: u32,
    /// The group's number.
    pub group: u32,
    /// The project whose limits count the inode.
    pub project: u32,
    /// 1 immutable, 2 append only, 4 no dump, 8 project is inherited, 16 data inline, 32 has xattrs (in answers alone), 64 has an ACL, 128 lost to
    /// others (in answers alone).
    pub flags: u32,
    /// The generation of the inode number: it grows by one at each reuse.
    pub generation: u64,
    /// The length of the file. *Units*: bytes.
    pub size: u64,
    /// Grows by one at each truncation.
    pub truncate_generation: u64,
    /// Grows by one each time a program sets a time.
    pub time_generation: u64,
    /// The times of access, modification, change and birth. *Units*: nanoseconds since 1970.
    pub times_ns: [i64; 4],
    /// Grows by one at each change.
    pub version: u64,
    /// The directory of the name that the inode got last.
    pub parent: u64,
    /// The length of all extents. *Units*: blocks.
    pub blocks: u64,
    /// The number of a device node; for a directory, the number of its entries.
    pub device: u64,
    /// The target of a symbolic link, or the data of a small file.
    pub inline: Vec<u8>,
}

impl Inode {
    /// Encodes the value of the table. *Errors*: a field exceeds its bound.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        self.check(&BoundedReader::new("inode", &[]))?;
        let mut writer = BoundedWriter::default();
        writer.u32(self.mode).u32(self.links).u32(self.owner).u32(self.group).u32(self.project).u32(self.flags);
        writer.u64(self.generation).u64(self.size).u64(self.truncate_generation).u64(self.time_generation);
        for time in self.times_ns {
            writer.i64(time);
        }
        writer.u64(self.version).u64(self.parent).u64(self.blocks).u64(self.device);
        writer.u32(self.inline.len() as u32).u32(0).put(&self.inline);
        Ok(writer.bytes)
    }

    /// Decodes a value of the table.
    pub fn decode(bytes: &[u8]) -> Result<Inode, FormatError> {
        let mut reader = BoundedReader::new("inode", bytes);
        let mut inode = Inode {
            mode: reader.u32()?,
            links: reader.u32()?,
            owner: reader.u32()?,
            group: reader.u32()?,
            project: reader.u32()?,
            flags: reader.u32()?,
            generation: reader.u64()?,
            size: reader.u64()?,
            truncate_generation: reader.u64()?,
            time_generation: reader.u64()?,
            times_ns: [reader.i64()?, reader.i64()?, reader.i64()?, reader.i64()?],
            version: reader.u64()?,
            parent: reader.u64()?,
            blocks: reader.u64()?,
            device: reader.u64()?,
            inline: Vec::new(),
        };
        let inline_bytes = u64::from(reader.u32()?);
        let inline_bytes = reader.within("inline_bytes", inline_bytes, 0, INLINE_BYTES_MAX as u64)? as usize;
        reader.skip(4)?;
        inode.inline = reader.take(inline_bytes)?.to_vec();
        reader.end()?;
        inode.check(&reader)?;
        Ok(inode)
    }

    fn check(&self, reader: &BoundedReader<'_>) -> Result<(), FormatError> {
        reader.within("links", self.links.into(), 0, LINKS_MAX)?;
        reader.within("size", self.size, 0, SIZE_MAX)?;
        reader.within("inline_bytes", self.inline.len() as u64, 0, INLINE_BYTES_MAX as u64)?;
        let kind = u64::from(self.mode >> 12);
        // The valid types: pipe, character device, directory, block device, file, symbolic link, socket.
        match [1, 2, 4, 6, 8, 10, 12].contains(&kind) {
            true => Ok(()),
            false => Err(reader.unknown("type in mode", kind)),
        }
    }
}
