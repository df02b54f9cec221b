//! The label at the start of a donor's export: it says which device the donor belongs to.
//!
//! Owns: the encoding of `docs/formats/ram.md`, section "Label of a donor", and the choice between two copies.
//! Promises: no bytes cause a panic, and only bytes with a correct checksum are trusted.

use crate::donor::name::{ID_BYTES_MAX, check_id};
use crate::placement::RedundancyPolicy;

/// The area at the start of a donor's export that is reserved for labels, in bytes.
pub const LABEL_AREA_BYTES: u64 = 64 << 10;
/// The length of one copy of the label, in bytes.
pub const LABEL_BYTES: usize = 4096;
/// The length of a unit: this many bytes of a device are on one donor before the next donor follows.
pub const UNIT_BYTES: u64 = 64 << 10;
/// The maximum number of donors of a device.
pub const DONORS_MAX: usize = 64;

const MAGIC: [u8; 8] = *b"NECTRAML";
const VERSION: u16 = 1;
const CHECKSUM_AT: usize = LABEL_BYTES - 4;
const SHARES_AT: usize = 128;
const FORMERS_AT: usize = SHARES_AT + 8 * DONORS_MAX;
/// The device has grown: the label has its former shares.
const FEATURE_GROWN: u64 = 1;
/// The maximum number of times that a device grows.
pub const GROWTHS_MAX: usize = 6;

/// The kind of redundancy, by which a device survives the loss of a donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redundancy {
    /// There is no redundancy.
    None,
    /// Every block is on two donors. Devices with redundancy have no labels; their donors have records (`format`).
    Mirror,
    /// Each stripe has a parity, which is changed in place.
    Parity,
    /// Blocks are appended to groups with parity; `parity-log`, `parity-cache` or `adaptive`.
    Log(RedundancyPolicy),
}

impl Redundancy {
    /// Returns the name of the redundancy in a SPEC.
    pub fn name(self) -> &'static str {
        match self {
            Redundancy::None => "none",
            Redundancy::Mirror => "mirror",
            Redundancy::Parity => "parity",
            Redundancy::Log(policy) => policy.name(),
        }
    }
}

/// One donor's label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DonorLabel {
    /// The number of this donor in the device, from 0.
    pub number: usize,
    /// The redundancy of the device.
    pub redundancy: Redundancy,
    /// A random number, drawn when the device was made.
    pub identity: [u8; 16],
    /// The size of the device, in bytes.
    pub size_bytes: u64,
    /// The number of openings plus 1: it is 1 when the device is made.
    pub generation: u64,
    /// The random number of the client that opened the device last.
    pub client: u64,
    /// The name of the device.
    pub id: String,
    /// The bytes of data on each donor.
    pub shares: Vec<u64>,
    /// The shares before each growth, in their order.
    pub formers: Vec<Vec<u64>>,
}

/// The contents of a label area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelContent {
    /// The area is all zeroes.
    Empty,
    /// The area has a label.
    Label(Box<DonorLabel>),
    /// The area has a label that cannot be used, for this reason.
    Unusable(String),
    /// The area has other bytes.
    SomethingElse,
}

impl DonorLabel {
    /// Whether two donors belong to one device. If growing was interrupted, their sizes may differ.
    pub fn is_same_device(&self, other: &DonorLabel) -> bool {
        let part = |label: &DonorLabel| (label.identity, label.id.clone(), label.shares.len());
        part(self) == part(other)
    }

    /// Returns the offset of this copy in the label area, in bytes.
    pub fn offset(&self) -> u64 {
        self.generation % 2 * LABEL_BYTES as u64
    }

    /// Encodes the label.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; LABEL_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(10, &(self.number as u16).to_le_bytes());
        put(12, &(self.shares.len() as u16).to_le_bytes());
        put(14, &0u16.to_le_bytes());
        put(16, &self.identity);
        put(32, &self.size_bytes.to_le_bytes());
        put(40, &self.generation.to_le_bytes());
        put(48, &self.client.to_le_bytes());
        put(56, &(UNIT_BYTES as u32).to_le_bytes());
        put(60, &(self.formers.len() as u32).to_le_bytes());
        put(64, &if self.formers.is_empty() { 0 } else { FEATURE_GROWN }.to_le_bytes());
        put(80, self.id.as_bytes());
        for (table, shares) in std::iter::once(&self.shares).chain(&self.formers).enumerate() {
            for (index, share) in shares.iter().enumerate() {
                put(SHARES_AT + 8 * (table * DONORS_MAX + index), &share.to_le_bytes());
            }
        }
        let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes one copy. Returns `None` if magic number or checksum are wrong; *errors*: the field that cannot be used.
    fn decode(bytes: &[u8; LABEL_BYTES]) -> Option<Result<DonorLabel, String>> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..8] != MAGIC || half(CHECKSUM_AT) != crc32c::crc32c(&bytes[..CHECKSUM_AT]) {
            return None;
        }
        let (number, count) = (usize::from(short(10)), usize::from(short(12)));
        let id = &bytes[80..80 + ID_BYTES_MAX];
        let id = id.split(|&byte| byte == 0).next().unwrap_or_default();
        let id = String::from_utf8_lossy(id).into_owned();
        let (size_bytes, required) = (word(32), word(64));
        let table = |at: usize| -> Vec<u64> { (0..count.min(DONORS_MAX)).map(|index| word(at + index * 8)).collect() };
        let shares = table(SHARES_AT);
        let growths = if required & FEATURE_GROWN == 0 { 0 } else { half(60) as usize };
        let formers = (0..growths.min(GROWTHS_MAX)).map(|number| table(FORMERS_AT + number * 8 * DONORS_MAX));
        let formers: Vec<Vec<u64>> = formers.collect();
        let sum = shares.iter().try_fold(0u64, |sum, share| sum.checked_add(*share));
        let steps: Vec<&Vec<u64>> = formers.iter().chain([&shares]).collect();
        let is_growing = |step: &[&Vec<u64>]| step[0].iter().zip(step[1]).all(|(before, after)| before <= after);
        let has_grown_well = growths <= GROWTHS_MAX
            && steps.windows(2).all(is_growing)
            && formers.iter().flatten().all(|share| share.is_multiple_of(UNIT_BYTES));
        let unusable = if short(8) != VERSION {
            format!("its label has version {}, {VERSION} is known", short(8))
        } else if required & !FEATURE_GROWN != 0 {
            format!("its label needs features that are not known here ({required:#x})")
        } else if short(14) != 0 {
            format!("its redundancy is number {}, which is not known here", short(14))
        } else if !(1..=DONORS_MAX).contains(&count) || number >= count {
            format!("its label says that it is donor {number} of {count}")
        } else if u64::from(half(56)) != UNIT_BYTES {
            format!("its unit has {} bytes, {UNIT_BYTES} are known", half(56))
        } else if shares.iter().any(|share| !share.is_multiple_of(UNIT_BYTES)) || sum.is_none_or(|sum| sum < size_bytes)
        {
            "the shares of its donors do not fit the size".to_owned()
        } else if !has_grown_well {
            "its former sizes do not fit the present one".to_owned()
        } else if size_bytes == 0 || !size_bytes.is_multiple_of(4096) {
            format!("its size is {size_bytes}")
        } else if let Err(message) = check_id(&id) {
            message
        } else {
            let (generation, client) = (word(40), word(48));
            let identity = std::array::from_fn(|index| bytes[16 + index]);
            let redundancy = Redundancy::None;
            let label =
                DonorLabel { number, redundancy, identity, size_bytes, generation, client, id, shares, formers };
            return Some(Ok(label));
        };
        Some(Err(unusable))
    }
}

/// Decodes the two copies at the start of a label area, of at least `2 * LABEL_BYTES`.
pub fn read(area: &[u8]) -> LabelContent {
    let (copies, _) = area.as_chunks::<LABEL_BYTES>();
    let mut found: Vec<Result<DonorLabel, String>> = copies.iter().take(2).filter_map(DonorLabel::decode).collect();
    // A copy that cannot be used may be the newer one, so the older one is not used either.
    if let Some(Err(why)) = found.iter().find(|copy| copy.is_err()) {
        return LabelContent::Unusable(why.clone());
    }
    found.sort_by_key(|copy| copy.as_ref().map_or(0, |label| label.generation));
    match found.pop() {
        Some(Ok(label)) => LabelContent::Label(Box::new(label)),
        _ if area.iter().all(|&byte| byte == 0) => LabelContent::Empty,
        _ => LabelContent::SomethingElse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> DonorLabel {
        DonorLabel {
            number: 1,
            redundancy: Redundancy::None,
            identity: *b"0123456789abcdef",
            size_bytes: 3 * UNIT_BYTES - 4096,
            generation: 6,
            client: 9,
            id: "build-1".to_owned(),
            shares: vec![2 * UNIT_BYTES, UNIT_BYTES],
            formers: Vec::new(),
        }
    }

    /// A label of a grown device is read back; former shares that do not fit, or are too many, are refused.
    #[test]
    fn grown_label_round_trips() {
        let formers = vec![vec![UNIT_BYTES, 0], vec![UNIT_BYTES, UNIT_BYTES]];
        let grown = DonorLabel { formers, ..label() };
        assert_eq!(read(&area(&[&grown])), LabelContent::Label(Box::new(grown.clone())));
        assert!(grown.is_same_device(&label()));
        let shrunk = vec![vec![3 * UNIT_BYTES, 0], vec![1, UNIT_BYTES]];
        for formers in shrunk.into_iter().map(|former| vec![former]) {
            let found = read(&area(&[&DonorLabel { formers, ..label() }]));
            assert!(matches!(&found, LabelContent::Unusable(why) if why.contains("former sizes")), "{found:?}");
        }
        let mut most = area(&[&grown]);
        most[60] = GROWTHS_MAX as u8 + 1;
        let checksum = crc32c::crc32c(&most[..CHECKSUM_AT]);
        most[CHECKSUM_AT..LABEL_BYTES].copy_from_slice(&checksum.to_le_bytes());
        assert!(matches!(read(&most), LabelContent::Unusable(_)));
    }

    fn area(copies: &[&DonorLabel]) -> Vec<u8> {
        let mut area = vec![0; 2 * LABEL_BYTES];
        for label in copies {
            area[label.offset() as usize..][..LABEL_BYTES].copy_from_slice(&label.encode());
        }
        area
    }

    #[test]
    fn newer_intact_label_copy_wins() {
        let (old, new) = (label(), DonorLabel { generation: 7, client: 10, ..label() });
        let mut both = area(&[&old, &new]);
        assert_eq!(read(&both), LabelContent::Label(Box::new(new.clone())));
        both[LABEL_BYTES + 100] ^= 1;
        assert_eq!(read(&both), LabelContent::Label(Box::new(old.clone())));
        both[100] ^= 1;
        assert_eq!(read(&both), LabelContent::SomethingElse);
        assert_eq!(read(&vec![0; 2 * LABEL_BYTES]), LabelContent::Empty);
        assert!(old.is_same_device(&new) && !old.is_same_device(&DonorLabel { id: "other".into(), ..new }));
    }

    /// The error names the field whose value is unknown or out of bounds.
    #[test]
    fn unknown_label_values_are_refused() {
        let change = |at: usize, value: &[u8]| {
            let mut bytes = label().encode();
            bytes[at..at + value.len()].copy_from_slice(value);
            let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
            bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
            bytes.resize(2 * LABEL_BYTES, 0);
            match read(&bytes) {
                LabelContent::Unusable(why) => why,
                other => panic!("{other:?}"),
            }
        };
        assert!(change(8, &[2, 0]).contains("version 2"));
        assert!(change(64, &[2]).contains("features"));
        assert!(change(14, &[3]).contains("redundancy is number 3"));
        assert!(change(10, &[2]).contains("donor 2 of 2"));
        assert!(change(12, &[65]).contains("of 65"));
        assert!(change(12, &[0]).contains("of 0"));
        assert!(change(56, &[1]).contains("unit"));
        assert!(change(32, &[0xff; 8]).contains("shares"));
        assert!(change(SHARES_AT, &[0xff; 8]).contains("shares"));
        assert!(change(32, &[1, 0, 0, 0, 0, 0, 0, 0]).contains("size is 1"));
        assert!(change(80, b"a b").contains("no id"));
    }

    #[test]
    fn damaged_labels_never_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for round in 0..2000 {
            let mut bytes = area(&[&label(), &DonorLabel { generation: 7, ..label() }]);
            for _ in 0..1 + next() % 8 {
                let at = next() as usize % bytes.len();
                bytes[at] = next() as u8;
            }
            if round % 2 == 0 {
                // The changed label gets a correct checksum.
                let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
                bytes[CHECKSUM_AT..LABEL_BYTES].copy_from_slice(&checksum.to_le_bytes());
            }
            bytes.truncate(next() as usize % 3 * LABEL_BYTES + next() as usize % 2);
            if let LabelContent::Label(label) = read(&bytes) {
                assert!(label.number < label.shares.len() && label.shares.len() <= DONORS_MAX);
                assert!(label.shares.iter().sum::<u64>() >= label.size_bytes);
            }
        }
    }
}
