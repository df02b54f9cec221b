//! Reads cache sizes from text, in blocks, bytes or percent of distinct blocks, and lists and ranges of sizes.
//!
//! Owns: the grammar `SIZE[,SIZE…]` with `A..B:STEP` for ranges (both ends included). Promises: a size of 0, and a size
//! in bytes that is less than one block, are refused with a message.

use super::workload::TraceWorkload;

/// What sizes of caches depend on in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceShape {
    /// Whether it has objects with sizes.
    pub has_sizes: bool,
    /// The number of distinct blocks or objects.
    pub distinct: u64,
    /// The sum of the sizes of all distinct objects. *Units*: bytes.
    pub distinct_bytes: u64,
}

impl TraceWorkload {
    /// What sizes of caches depend on.
    pub fn shape(&self) -> TraceShape {
        TraceShape { has_sizes: self.has_sizes(), distinct: self.distinct(), distinct_bytes: self.distinct_bytes() }
    }
}

/// The maximum number of sizes in one list.
pub const SIZES_MAX: usize = 10_000;

/// The unit of a capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum CapacityUnit {
    /// Blocks, or objects whatever their sizes.
    #[default]
    Blocks,
    /// Bytes of objects.
    Bytes,
}

impl CapacityUnit {
    /// The name of the unit for a trace that has objects or not.
    pub fn name(self, has_objects: bool) -> &'static str {
        match self {
            CapacityUnit::Blocks if has_objects => "objects",
            CapacityUnit::Blocks => "blocks",
            CapacityUnit::Bytes => "bytes",
        }
    }
}

/// A size of a cache, which may depend on the trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CacheSize {
    /// A number of blocks.
    Blocks(u64),
    /// A number of bytes; the cache has as many blocks as fit in them.
    Bytes(u64),
    /// A share of the trace's distinct blocks, in percent. The number of blocks is rounded down, but is at least one.
    Percent(f64),
}

impl CacheSize {
    /// Reads `768`, `6MiB` (or `6M`) or `10%`.
    pub fn parse(text: &str) -> Result<CacheSize, String> {
        let wrong = || {
            format!("\"{text}\" is not a size; write blocks (768), bytes (6MiB) or percent of distinct blocks (10%)")
        };
        let size = if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = number(percent).and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
            CacheSize::Percent(percent)
        } else if let Some(blocks) = number(text).filter(|text| !text.contains('.')) {
            CacheSize::Blocks(blocks.parse().map_err(|_| format!("\"{text}\" is more than 2^64 blocks"))?)
        } else {
            let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
            let scale: u64 = match text[end..].to_ascii_lowercase().as_str() {
                "b" => 1,
                "k" | "kb" | "kib" => 1 << 10,
                "m" | "mb" | "mib" => 1 << 20,
                "g" | "gb" | "gib" => 1 << 30,
                "t" | "tb" | "tib" => 1 << 40,
                _ => return Err(wrong()),
            };
            let count: f64 = number(&text[..end]).and_then(|text| text.parse().ok()).ok_or_else(wrong)?;
            let bytes = count * scale as f64;
            if bytes >= u64::MAX as f64 {
                return Err(format!("\"{text}\" is more than 2^64 bytes"));
            }
            CacheSize::Bytes(bytes as u64)
        };
        match size {
            CacheSize::Blocks(0) => Err("a size of 0 blocks caches nothing; give at least 1".to_owned()),
            CacheSize::Bytes(0) => Err(format!("\"{text}\": a size of 0 bytes caches nothing")),
            CacheSize::Percent(percent) if percent <= 0.0 => Err(format!("\"{text}\": a size of 0 % caches nothing")),
            size => Ok(size),
        }
    }

    /// The size in blocks for a trace with `distinct` distinct blocks of `block_bytes` bytes.
    ///
    /// *Errors*: a size in bytes is less than one block.
    pub fn blocks(self, distinct: u64, block_bytes: u64) -> Result<u64, String> {
        match self {
            CacheSize::Blocks(blocks) => Ok(blocks),
            CacheSize::Percent(percent) => Ok(((distinct as f64 * percent / 100.0) as u64).max(1)),
            CacheSize::Bytes(bytes) => match bytes / block_bytes.max(1) {
                0 => Err(format!("a size of {bytes} bytes is less than a block of {block_bytes}")),
                blocks => Ok(blocks),
            },
        }
    }

    /// The size for a trace; its blocks have `block_bytes` bytes. If the trace has objects with sizes, bytes are bytes of
    /// objects, and a share is that of the bytes of all distinct objects.
    ///
    /// *Errors*: a size in bytes is less than one block.
    pub fn of(self, shape: TraceShape, block_bytes: u64) -> Result<(CapacityUnit, u64), String> {
        if shape.has_sizes {
            match self {
                CacheSize::Blocks(_) => {}
                CacheSize::Bytes(bytes) => return Ok((CapacityUnit::Bytes, bytes)),
                CacheSize::Percent(percent) => {
                    let bytes = (shape.distinct_bytes as f64 * percent / 100.0) as u64;
                    return Ok((CapacityUnit::Bytes, bytes.max(1)));
                }
            }
        }
        Ok((CapacityUnit::Blocks, self.blocks(shape.distinct, block_bytes)?))
    }

    /// The number of the size, without its unit.
    fn value(self) -> f64 {
        match self {
            CacheSize::Blocks(count) | CacheSize::Bytes(count) => count as f64,
            CacheSize::Percent(percent) => percent,
        }
    }

    /// A size with the same unit and another number.
    fn with(self, value: f64) -> CacheSize {
        match self {
            CacheSize::Blocks(_) => CacheSize::Blocks(value as u64),
            CacheSize::Bytes(_) => CacheSize::Bytes(value as u64),
            CacheSize::Percent(_) => CacheSize::Percent(value),
        }
    }
}

/// Reads a list of sizes and ranges, such as `512,768,1024`, `10%..60%:10%` or `1M..8M:1M`.
///
/// *Errors*: the list has a mistake, or more than [`SIZES_MAX`] sizes; the error is a sentence about it.
pub fn parse_list(text: &str) -> Result<Vec<CacheSize>, String> {
    let mut sizes = Vec::new();
    for part in text.split(',').map(str::trim) {
        match part.split_once("..") {
            None => sizes.push(CacheSize::parse(part)?),
            Some((first, rest)) => {
                let (last, step) = rest.split_once(':').ok_or_else(|| {
                    format!("\"{part}\": a range is written FIRST..LAST:STEP, as 100..1000:100 or 10%..60%:10%")
                })?;
                // A step of zero would be refused as a size, but it needs a different message.
                let is_zero = number(step.trim_end_matches(|c: char| c == '%' || c.is_ascii_alphabetic()))
                    .and_then(|step| step.parse::<f64>().ok())
                    .is_some_and(|step| step == 0.0);
                if is_zero {
                    return Err(format!("\"{part}\": a step of 0 never reaches the last size; give a larger step"));
                }
                range(part, CacheSize::parse(first)?, CacheSize::parse(last)?, CacheSize::parse(step)?, &mut sizes)?;
            }
        }
        if sizes.len() > SIZES_MAX {
            return Err(too_many());
        }
    }
    Ok(sizes)
}

fn range(
    text: &str,
    first: CacheSize,
    last: CacheSize,
    step: CacheSize,
    to: &mut Vec<CacheSize>,
) -> Result<(), String> {
    let unit = std::mem::discriminant(&first);
    if unit != std::mem::discriminant(&last) || unit != std::mem::discriminant(&step) {
        return Err(format!("\"{text}\": first, last and step are of one unit"));
    }
    // The margin lets steps of a tenth of a percent reach the last size in spite of rounding.
    let count = (last.value() - first.value()) / step.value() + 1e-6;
    if count < 0.0 {
        return Err(format!("\"{text}\": the last size is below the first"));
    }
    if count >= SIZES_MAX as f64 {
        return Err(too_many());
    }
    to.extend((0..=count as u64).map(|index| first.with(first.value() + index as f64 * step.value())));
    Ok(())
}

fn too_many() -> String {
    format!("more than {SIZES_MAX} sizes; use larger steps")
}

/// *Returns* the text if it consists of digits with at most one point.
fn number(text: &str) -> Option<&str> {
    let is_number = text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        && text.bytes().filter(|&byte| byte == b'.').count() <= 1;
    is_number.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_blocks_bytes_or_percent() {
        let blocks = |text: &str| CacheSize::parse(text).and_then(|size| size.blocks(1409, 8192));
        assert_eq!(blocks("768"), Ok(768));
        assert_eq!(blocks("6MiB"), Ok(768));
        assert_eq!(blocks("1.5m"), Ok(192));
        assert_eq!(blocks("10%"), Ok(140));
        assert_eq!(blocks("0.001%"), Ok(1));
        assert_eq!(blocks("400%"), Ok(5636));
        assert_eq!(blocks("8192B"), Ok(1));
    }

    /// What is no size or no block is refused.
    #[test]
    fn invalid_size_is_refused() {
        for text in ["", "0", "-5", "0%", "0M", "ten", "1..2", "5X", "1e3", "nan%", "inf%", ".", "18446744073709551616"]
        {
            assert!(CacheSize::parse(text).is_err(), "{text}");
        }
        assert!(CacheSize::parse("8191B").and_then(|size| size.blocks(1, 8192)).is_err());
    }

    #[test]
    fn ranges_include_both_ends() {
        let blocks = |text: &str| {
            let sizes = parse_list(text)?;
            sizes.into_iter().map(|size| size.blocks(1000, 8192)).collect::<Result<Vec<u64>, String>>()
        };
        assert_eq!(blocks("1,100..300:100"), Ok(vec![1, 100, 200, 300]));
        assert_eq!(blocks("10%..60%:25%"), Ok(vec![100, 350, 600]));
        assert_eq!(blocks("1%..2%:0.1%").map(|sizes| sizes.len()), Ok(11));
        for text in ["1..5", "5..1:1", "1..9:0", "1%..9:1", "1..1000000000:1", "1,,2", "1..9:1..3"] {
            assert!(blocks(text).is_err(), "{text}");
        }
        for text in ["1..9:0", "1%..9%:0%", "1M..9M:0.0M"] {
            let error = blocks(text).expect_err("no step");
            assert!(error.contains("a step of 0"), "{error}");
        }
    }
}
