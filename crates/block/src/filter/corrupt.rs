//! `corrupt(A,rate=1%,seed=N,when=FILE)`: flips one bit in a share of the reads.
//!
//! Promises: the filter flips one bit in each chosen read, in the returned bytes and not in the stored bytes. With the
//! same seed and the same order of reads, the same bits are flipped.

use std::path::PathBuf;

use super::{Filter, SeededChance, TriggerFile, options_text};
use crate::buffer::Buffer;
use crate::device::{IoContext, IoFuture, SharedDevice};
use crate::spec::quoted;

/// The settings of the `corrupt` filter.
#[derive(Debug, Clone, PartialEq)]
pub struct CorruptOptions {
    /// The share of reads that are changed, from 0 to 1.
    pub rate: f64,
    /// If set, reads are changed only while this file exists.
    pub when: Option<PathBuf>,
    /// The seed that decides which reads are changed, and at which bit.
    pub seed: u64,
}

impl Default for CorruptOptions {
    fn default() -> CorruptOptions {
        CorruptOptions { rate: 1.0, when: None, seed: 0 }
    }
}

/// The `corrupt` filter; see the comment at the head of this file.
pub struct CorruptFilter {
    inner: SharedDevice,
    options: CorruptOptions,
    chance: SeededChance,
    trigger: TriggerFile,
}

impl CorruptFilter {
    /// Makes a filter that changes some of the bytes read from `inner`.
    pub fn new(inner: SharedDevice, options: CorruptOptions) -> CorruptFilter {
        let chance = SeededChance::new(options.rate, options.seed);
        let trigger = TriggerFile(options.when.clone());
        CorruptFilter { inner, options, chance, trigger }
    }
}

impl Filter for CorruptFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }
    fn spec(&self) -> String {
        let CorruptOptions { rate, when, seed } = &self.options;
        let options = options_text([
            ("rate", Some(format!("{}%", rate * 100.0))),
            ("when", when.as_ref().map(|path| quoted(&path.to_string_lossy()))),
            ("seed", Some(seed.to_string())),
        ]);
        format!("corrupt({}{options})", self.inner.spec())
    }
    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let bits = if self.trigger.is_on() { self.chance.draw() } else { None };
        let read = self.inner.read_at(offset, buffers, context);
        let Some(bits) = bits else { return read };
        Box::pin(async move {
            let mut buffers = read.await?;
            flip(&mut buffers, bits);
            Ok(buffers)
        })
    }
}

/// Flips the bit that `bits` select.
fn flip(buffers: &mut [Buffer], bits: u64) {
    let length: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let Some(mut index) = (bits >> 3).checked_rem(length as u64) else { return };
    for buffer in buffers {
        if index < buffer.len() as u64 {
            buffer[index as usize] ^= 1 << (bits & 7);
            return;
        }
        index -= buffer.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use crate::{OpenOptions, open, read};

    /// Each chosen read has one wrong bit, and the device below keeps the right bytes.
    #[tokio::test]
    async fn chosen_read_has_one_wrong_bit() {
        let spec = "corrupt(memory:1M,rate=100%,seed=5)";
        let device = open(spec, &OpenOptions::default()).await.unwrap();
        assert_eq!(device.spec(), spec);
        let mut places = std::collections::BTreeSet::new();
        for _ in 0..50 {
            let buffer = read(&*device, 0, 8192).await.unwrap();
            assert_eq!(buffer.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
            places.insert(buffer.iter().position(|&byte| byte != 0));
        }
        assert!(places.len() > 25, "{places:?}");
        let none = open("corrupt(memory:1M,rate=0%)", &OpenOptions::default()).await.unwrap();
        assert!(read(&*none, 0, 8192).await.unwrap().iter().all(|&byte| byte == 0));
    }
}
