//! The meaning of the columns of a CSV file.
//!
//! Owns: [`CsvColumns`] and its text form, the presets for published traces, and the names by which a header is
//! recognised.

use super::values::{LineValues, ValueSeparator};
use crate::formats::{TraceOperation, lines_of_head};

/// The highest number of a column.
pub(super) const COLUMN_MAX: usize = 1000;

/// The meaning of the columns of a file. Columns are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CsvColumns {
    /// What is between two values; if `None`, the first line tells.
    pub separator: Option<ValueSeparator>,
    /// What the columns of the target say.
    pub target: TargetColumn,
    /// The columns of the target: one, or for keys any number that are joined.
    pub place: Vec<usize>,
    /// The columns whose sum is the size; if there are none, a request is one block.
    pub size: Vec<usize>,
    /// The unit of the size columns. *Units*: bytes.
    pub size_unit_bytes: u64,
    /// The column of the operation; if there is none, every request is a read.
    pub operation: Option<usize>,
    /// The column of the time.
    pub time: Option<usize>,
    /// The number of units of the time column in a second.
    pub ticks_per_second: u64,
    /// The column of the time to live, in seconds.
    pub ttl: Option<usize>,
    /// The column that says how often a request is repeated.
    pub count: Option<usize>,
    /// The columns that name the stream; if there are none, the volume is the stream.
    pub stream: Vec<usize>,
    /// The columns that name the volume; if there are none, all blocks are on one volume.
    pub volume: Vec<usize>,
    /// Values of the column of the operation, and what they mean; other values have their usual meanings.
    pub operations: Vec<(String, TraceOperation)>,
    /// Names in the header. If there are any, a column number N stands for the column with the N-th of these names.
    pub names: Vec<String>,
}

/// What the column of the accessed block or object says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TargetColumn {
    /// An offset in bytes.
    #[default]
    Offset,
    /// The number of a sector of 512 bytes.
    Sector,
    /// The number of a block.
    Block,
    /// The key of an object, which may be any text.
    Key,
}

/// What a column is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnRole {
    Target(TargetColumn),
    /// A size in units of this number of bytes.
    Size(u64),
    Operation,
    /// A time in units of which a second has this number.
    Time(u64),
    Ttl,
    Count,
    Stream,
    Volume,
}

/// Each name that `--columns` knows, with the names by which a header is recognised: in small letters, without anything
/// but letters and digits.
const ROLES: [(&str, ColumnRole, &[&str]); 16] = [
    ("offset", ColumnRole::Target(TargetColumn::Offset), &["offset", "byteoffset"]),
    ("sector", ColumnRole::Target(TargetColumn::Sector), &["sector", "lba"]),
    ("block", ColumnRole::Target(TargetColumn::Block), &["block", "blockid", "blocknumber"]),
    (
        "key",
        ColumnRole::Target(TargetColumn::Key),
        &[
            "key",
            "cachekey",
            "anonymizedkey",
            "id",
            "objid",
            "objectid",
            "object",
            "url",
            "hashedpathquery",
            "hashedhostpathquery",
        ],
    ),
    (
        "size",
        ColumnRole::Size(1),
        &["size", "bytes", "length", "objsize", "objectsize", "responsesize", "valuesize", "keysize"],
    ),
    ("sectors", ColumnRole::Size(512), &["sectors", "sectorcount"]),
    ("op", ColumnRole::Operation, &["op", "operation", "opcode", "optype", "type", "method"]),
    ("time", ColumnRole::Time(1), &["time", "timestamp", "optime", "relativeunix", "unixtime"]),
    ("time_ms", ColumnRole::Time(1_000), &["timems", "timestampms"]),
    ("time_us", ColumnRole::Time(1_000_000), &["timeus", "timestampus"]),
    ("time_ns", ColumnRole::Time(1_000_000_000), &["timens", "timestampns"]),
    // The clock of Windows, which the traces of MSR Cambridge have.
    ("time_100ns", ColumnRole::Time(10_000_000), &["time", "timestamp", "time100ns"]),
    ("ttl", ColumnRole::Ttl, &["ttl"]),
    ("count", ColumnRole::Count, &["count", "opcount"]),
    ("stream", ColumnRole::Stream, &["stream"]),
    ("volume", ColumnRole::Volume, &["volume", "asu", "hostname", "host", "disknumber", "disk"]),
];

/// The words for operations in the text form.
const OPERATIONS: [(&str, TraceOperation); 3] =
    [("read", TraceOperation::Read), ("write", TraceOperation::Write), ("delete", TraceOperation::Delete)];

impl CsvColumns {
    /// The columns of the MSR Cambridge traces: time, host, disk, operation, offset, size, response time.
    pub fn msr() -> CsvColumns {
        CsvColumns { separator: Some(ValueSeparator::Byte(b',')), ..known("volume=2+3,op=4,offset=5,size=6") }
    }

    /// The columns of Twitter's cache traces. The size of an object is that of its key and its value.
    pub fn twitter() -> CsvColumns {
        CsvColumns { separator: Some(ValueSeparator::Byte(b',')), ..known("time,key,size,size,-,op,ttl") }
    }

    /// The columns of the Storage Performance Council's trace files: application unit, sector, bytes, operation, time.
    pub fn spc() -> CsvColumns {
        known("volume,sector,size,op,time")
    }

    /// Reads a text such as `time,key,size,op` (the columns in their order, `-` for an unused one),
    /// `volume=2+3,offset=5,size=6` (by numbers) or `key=object_id,size=bytes` (by names of the file's header); `sep=`
    /// gives the separator, and `read=`, `write=` and `delete=` say what values of the operation mean.
    ///
    /// *Errors*: a sentence about what is wrong.
    pub fn parse(text: &str) -> Result<CsvColumns, String> {
        let mut columns = CsvColumns { ticks_per_second: 1, ..CsvColumns::default() };
        let mut form = None;
        let mut number = 0;
        let mut after_separator = false;
        for part in text.split(',') {
            if std::mem::take(&mut after_separator) && part.is_empty() {
                continue;
            }
            let (name, value) = part.split_once('=').map_or((part, None), |(name, value)| (name, Some(value)));
            if name == "sep" {
                columns.separator = Some(ValueSeparator::parse(value.unwrap_or_default())?);
                after_separator = true;
                continue;
            }
            if let Some((_, operation)) = OPERATIONS.iter().find(|known| known.0 == name) {
                let values = value.filter(|value| !value.is_empty());
                let values = values.ok_or_else(|| format!("\"{part}\": expected a value, as {name}=1"))?;
                columns.operations.extend(values.split('+').map(|value| (value.to_owned(), *operation)));
                continue;
            }
            number += 1;
            let role = match ROLES.iter().find(|role| role.0 == name) {
                Some(role) => Some(role.1),
                None if name == "-" && value.is_none() => None,
                None => {
                    let known: Vec<&str> = ROLES.iter().map(|role| role.0).collect();
                    return Err(format!(
                        "\"{name}\" is no column; expected one of {}, sep, read, write, delete",
                        known.join(", ")
                    ));
                }
            };
            let has_letters = |value: &str| value.bytes().any(|byte| !byte.is_ascii_digit() && byte != b'+');
            let of_part = match value {
                None => ColumnForm::InOrder,
                Some(value) if has_letters(value) => ColumnForm::ByName,
                Some(_) => ColumnForm::ByNumber,
            };
            if *form.get_or_insert(of_part) != of_part {
                return Err(format!("\"{part}\": give all columns in order, or all by number, or all by name"));
            }
            let Some(role) = role else { continue };
            for value in value.map_or(vec![""], |value| value.split('+').collect()) {
                let column = match of_part {
                    ColumnForm::InOrder => Some(number).filter(|&number| number <= COLUMN_MAX),
                    ColumnForm::ByNumber => value.parse().ok().filter(|number| (1..=COLUMN_MAX).contains(number)),
                    ColumnForm::ByName => {
                        columns.names.push(value.trim().to_owned());
                        Some(columns.names.len()).filter(|_| !value.trim().is_empty())
                    }
                };
                let column = column.ok_or_else(|| format!("\"{part}\": columns are counted from 1 to {COLUMN_MAX}"))?;
                columns.add(role, column).map_err(|what| format!("\"{part}\": {what}"))?;
            }
        }
        columns.checked()
    }

    /// The columns that the header of a file names; `None` if the first line is no header with a name for the target.
    pub(super) fn of_header(head: &[u8]) -> Option<CsvColumns> {
        let line = lines_of_head(head).next()?;
        for separator in ValueSeparator::TRIED {
            let mut values = LineValues::default();
            values.split(line, separator, COLUMN_MAX).ok()?;
            let mut columns = CsvColumns { separator: Some(separator), ticks_per_second: 1, ..CsvColumns::default() };
            let mut has_size = false;
            for index in 0..values.len() {
                let name = plain(values.get(line, index)?);
                let role = ROLES.iter().find(|role| role.2.contains(&name.as_str())).map(|role| role.1);
                // A second column for the same purpose is left out; the size of the key is added to that of the value.
                let is_key_size = name == "keysize";
                let mut is_second = |role: &ColumnRole| match role {
                    ColumnRole::Target(_) => !columns.place.is_empty(),
                    ColumnRole::Size(_) => !is_key_size && std::mem::replace(&mut has_size, true),
                    _ => false,
                };
                if let Some(role) = role.filter(|role| !is_second(role)) {
                    let _ = columns.add(role, index + 1);
                }
            }
            if columns.place.is_empty() {
                continue;
            }
            if columns.target == TargetColumn::Key {
                columns.volume.clear();
            }
            columns.ttl = columns.ttl.filter(|_| columns.time.is_some());
            let (msr, found) = (CsvColumns::msr(), &columns);
            let is_msr = found.place == msr.place && found.size == msr.size && found.operation == msr.operation;
            if is_msr && found.target == msr.target && found.volume == msr.volume {
                return Some(msr);
            }
            return columns.checked().ok();
        }
        None
    }

    fn add(&mut self, role: ColumnRole, column: usize) -> Result<(), String> {
        let one = |place: &mut Option<usize>| match place {
            Some(_) => Err("expected one column".to_owned()),
            None => {
                *place = Some(column);
                Ok(())
            }
        };
        match role {
            ColumnRole::Target(target)
                if self.place.is_empty() || target == TargetColumn::Key && self.target == target =>
            {
                self.target = target;
                self.place.push(column);
                Ok(())
            }
            ColumnRole::Target(_) => Err("expected one column of offsets, sectors, blocks or keys".to_owned()),
            ColumnRole::Size(unit_bytes) => {
                if !self.size.is_empty() && self.size_unit_bytes != unit_bytes {
                    return Err("expected sizes in one unit".to_owned());
                }
                self.size_unit_bytes = unit_bytes;
                self.size.push(column);
                Ok(())
            }
            ColumnRole::Operation => one(&mut self.operation),
            ColumnRole::Time(ticks) => {
                one(&mut self.time)?;
                self.ticks_per_second = ticks;
                Ok(())
            }
            ColumnRole::Ttl => one(&mut self.ttl),
            ColumnRole::Count => one(&mut self.count),
            ColumnRole::Stream => {
                self.stream.push(column);
                Ok(())
            }
            ColumnRole::Volume => {
                self.volume.push(column);
                Ok(())
            }
        }
    }

    fn checked(self) -> Result<CsvColumns, String> {
        if self.place.is_empty() {
            return Err("expected a column of offsets (offset=N), sectors, blocks or keys".to_owned());
        }
        if self.target == TargetColumn::Key && !self.volume.is_empty() {
            return Err("keys have no volume; join the columns of the key (key=2+3)".to_owned());
        }
        if !self.operations.is_empty() && self.operation.is_none() {
            return Err("read=, write= and delete= are values of a column of operations (op=N)".to_owned());
        }
        if self.ttl.is_some() && self.time.is_none() {
            return Err("ttl needs a column of times (time=N)".to_owned());
        }
        Ok(self)
    }

    /// The highest number of a column.
    pub(super) fn last(&self) -> usize {
        self.used().map(|(_, column)| column).chain(self.volume.iter().chain(&self.stream).copied()).max().unwrap_or(0)
    }

    /// The columns whose values have a form that can be wrong, with their roles.
    fn used(&self) -> impl Iterator<Item = (ColumnRole, usize)> {
        let role = |role: ColumnRole, column: Option<usize>| column.map(|column| (role, column));
        let places = self.place.iter().map(|&column| (ColumnRole::Target(self.target), column));
        places
            .chain(self.size.iter().map(|&column| (ColumnRole::Size(self.size_unit_bytes), column)))
            .chain(role(ColumnRole::Operation, self.operation))
            .chain(role(ColumnRole::Time(self.ticks_per_second), self.time))
            .chain(role(ColumnRole::Ttl, self.ttl))
            .chain(role(ColumnRole::Count, self.count))
    }

    /// Whether a line has a known name in each column that has a form, and so is a header.
    pub(super) fn is_header<'a>(&self, value: impl Fn(usize) -> Option<&'a [u8]>) -> bool {
        let is_name = |role: ColumnRole, column: usize| {
            let name = value(column).map(plain);
            ROLES.iter().any(|known| known.1 == role && known.2.iter().any(|text| name.as_deref() == Some(*text)))
        };
        self.used().all(|(role, column)| is_name(role, column))
    }

    /// The names by which the header of the column of the target is recognised.
    pub(super) fn names_of_target(&self) -> &'static [&'static str] {
        ROLES.iter().find(|role| role.1 == ColumnRole::Target(self.target)).map_or(&[], |role| role.2)
    }
}

/// How the text form names columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnForm {
    InOrder,
    ByNumber,
    ByName,
}

/// A preset, whose text is right.
fn known(text: &str) -> CsvColumns {
    CsvColumns::parse(text).unwrap_or_default()
}

/// A name in small letters, without anything but letters and digits.
fn plain(name: &[u8]) -> String {
    let letters = name.iter().filter(|byte| byte.is_ascii_alphanumeric());
    letters.map(|byte| char::from(byte.to_ascii_lowercase())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_by_number_or_header() {
        let columns = CsvColumns::parse("time,key,size,op").expect("in order");
        assert_eq!((columns.target, &columns.place[..], &columns.size[..]), (TargetColumn::Key, &[2][..], &[3][..]));
        assert_eq!((columns.time, columns.operation), (Some(1), Some(4)));
        let columns = CsvColumns::parse("time_ms=1,key=2+3,size=4+5,sep=tab").expect("by number");
        assert_eq!((&columns.place[..], &columns.size[..]), (&[2, 3][..], &[4, 5][..]));
        assert_eq!((columns.ticks_per_second, columns.separator), (1000, Some(ValueSeparator::Byte(b'\t'))));
        let columns = CsvColumns::parse("key=object_id,size=body bytes").expect("by name");
        assert_eq!((&columns.place[..], &columns.size[..]), (&[1][..], &[2][..]));
        assert_eq!(columns.names, ["object_id", "body bytes"]);
        assert_eq!(
            CsvColumns::parse("block=1,sep=,").map(|columns| columns.separator),
            Ok(Some(ValueSeparator::Byte(b',')))
        );
        for wrong in [
            "",
            "size",
            "key,size=2",
            "key=2,size=b",
            "key,key=",
            "offset,sector",
            "key,ttl",
            "volume,key",
            "op,op,key",
            "key,write=1",
            "key,size,sectors",
            "key,op,write=",
            "key,op,write",
        ] {
            assert!(CsvColumns::parse(wrong).is_err(), "{wrong}");
        }
        for preset in [CsvColumns::msr(), CsvColumns::twitter(), CsvColumns::spc()] {
            assert!(!preset.place.is_empty());
        }
    }

    #[test]
    fn headers_of_published_traces_are_known() {
        let cachelib = b"op_time,key,key_size,op,op_count,size,cache_hits,ttl\n1,a,2,GET,1,4,0,\n";
        let columns = CsvColumns::of_header(cachelib).expect("CacheLib's");
        assert_eq!((&columns.place[..], &columns.size[..], columns.count), (&[2][..], &[3, 6][..], Some(5)));
        assert_eq!((columns.time, columns.operation, columns.ttl), (Some(1), Some(4), Some(8)));
        let wikimedia = b"relative_unix\thashed_path_query\timage_type\tresponse_size\ttime_firstbyte\n";
        let columns = CsvColumns::of_header(wikimedia).expect("Wikimedia's");
        assert_eq!((columns.target, &columns.place[..], &columns.size[..]), (TargetColumn::Key, &[2][..], &[4][..]));
        let both = b"timestamp,cacheKey,OpType,objectSize,responseSize\n";
        assert_eq!(
            CsvColumns::of_header(both).map(|columns| (columns.size, columns.operation)),
            Some((vec![4], Some(3)))
        );
        let msr = b"Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n";
        assert_eq!(CsvColumns::of_header(msr), Some(CsvColumns::msr()));
        for other in [&b"1,2,3\n"[..], b"a,b,c\n", b"", b"time,size\n"] {
            assert_eq!(CsvColumns::of_header(other), None);
        }
    }
}
