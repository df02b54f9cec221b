//! The traces to compare, of blocks and of objects: some are made from a seed, and those of the literature are read if they are present.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use nectary_cache::StreamId;
use nectary_trace::formats::ReadOptions;
use nectary_trace::simulate::{LoadOptions, TraceWorkload};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const REFERENCES: u64 = 20_000;
const OF_LITERATURE: [&str; 6] = ["cs", "gli", "cpp", "ps", "multi1", "sprite"];

/// A function that returns the block that is referenced at a given time.
type Next = fn(&mut TraceRandom, u64) -> u64;

struct TraceRandom(SplitMix64);

impl TraceRandom {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; low numbers are more frequent, because it is a power of a uniform random number.
    fn skewed(&mut self, bound: u64, power: u32) -> u64 {
        let uniform = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (bound as f64 * (0..power).fold(1.0, |product, _| product * uniform)) as u64
    }
}

/// One trace of each kind.
pub fn generated(seed: u64) -> Vec<TraceWorkload> {
    let kinds: [(&str, Next); 6] = [
        ("uniform", |random, _| random.next() % 3000),
        ("skewed", |random, _| random.skewed(4000, 4)),
        ("drifting", |random, time| time / 8 + random.skewed(1500, 3)),
        ("loops", |random, time| match random.next() % 20 {
            0 => 10_000 + random.next() % 500,
            _ if time < REFERENCES / 2 => time % 900,
            _ => 2000 + time % 1300,
        }),
        ("scanned", |random, time| match time / 1000 % 3 {
            0 => 100_000 + time,
            _ => random.skewed(2000, 3),
        }),
        ("mixed", |random, time| match random.next() % 10 {
            0..5 => random.skewed(1000, 3),
            5..8 => 2000 + time % 700,
            8 => 4000 + random.next() % 1000,
            _ => 100_000 + time,
        }),
    ];
    let made = kinds.iter().zip(0..).map(|((name, next), number)| {
        let mut random = TraceRandom(SplitMix64::seed_from_u64(seed.wrapping_mul(1000).wrapping_add(number)));
        TraceWorkload::new(*name, (0..REFERENCES).map(|time| (next(&mut random, time), StreamId(0))))
    });
    made.collect()
}

/// The keys of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKeyForm {
    /// Text with quotes and separators.
    Quoted,
    /// Plain text, which every program reads.
    Plain,
}

/// One trace of objects of each kind, as CSV. Their keys are text; their sizes differ much.
pub fn objects(seed: u64, keys: ObjectKeyForm) -> Vec<(&'static str, String)> {
    let kinds: [(&str, Next); 3] = [
        ("objects-skewed", |random, _| random.skewed(4000, 4)),
        ("objects-drifting", |random, time| time / 8 + random.skewed(1500, 3)),
        ("objects-looped", |random, time| match time % 4 {
            0 => 10_000 + time / 4 % 1500,
            _ => random.skewed(2000, 3),
        }),
    ];
    let made = kinds.iter().zip(100..).map(|((name, next), number)| {
        let mut random = TraceRandom(SplitMix64::seed_from_u64(seed.wrapping_mul(1000).wrapping_add(number)));
        let mut sizes: HashMap<u64, u64> = HashMap::new();
        let mut text = String::from("time,key,size\n");
        for time in 0..REFERENCES {
            let object = next(&mut random, time);
            let size = *sizes.entry(object).or_insert_with(|| 1 + random.skewed(1 << 20, 6));
            let _ = match keys {
                ObjectKeyForm::Quoted => writeln!(text, "{time},\"object \"\"{object}\"\", of {number}\",{size}"),
                ObjectKeyForm::Plain => writeln!(text, "{time},/images/{number}/{object}.png,{size}"),
            };
        }
        (*name, text)
    });
    made.collect()
}

/// The traces in `folder`. If the folder is absent, prints a line that says so, and returns none.
pub fn of_literature(folder: &Path) -> Result<Vec<TraceWorkload>, String> {
    if !folder.is_dir() {
        println!("NOT RUN: {} is absent", folder.display());
        return Ok(Vec::new());
    }
    let load = |name: &&str| {
        let path = folder.join(format!("{name}.trace.gz"));
        TraceWorkload::load(&path, &ReadOptions::default(), &LoadOptions::default())
    };
    OF_LITERATURE.iter().map(load).collect::<Result<_, _>>().map_err(|error| error.to_string())
}
