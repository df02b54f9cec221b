//! Tests with damaged files: each decoder returns references, or an error that names the file, and never panics.
//!
//! The environment variable `MUTATIONS_SEED` sets the seed of a run, and `MUTATIONS` sets the number of files per
//! format.

use nectary_trace::Error;

use super::encode::{files, gzip, options, read, requests, xz, zstd};

struct MutationRandom(u64);

impl MutationRandom {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound.max(1)
    }
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Damages the bytes in one to four places: flips a bit, overwrites, cuts, removes, doubles or inserts bytes.
fn mutate(bytes: &[u8], random: &mut MutationRandom) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(6) {
            _ if bytes.is_empty() => {}
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = [0, 0xff, b'-', b'\n', b'9', b','][random.below(6)],
            2 => bytes.truncate(at),
            3 => {
                bytes.drain(at..(at + 1 + random.below(20)).min(bytes.len()));
            }
            4 => {
                let copied = bytes[at..(at + 1 + random.below(40)).min(bytes.len())].to_vec();
                bytes.splice(at..at, copied);
            }
            _ => {
                let inserted: Vec<u8> = (0..random.below(30)).map(|_| random.below(256) as u8).collect();
                bytes.splice(at..at, inserted);
            }
        }
    }
    bytes
}

/// Damaged files end in references or errors.
#[test]
fn damaged_files_never_panic() {
    let seed = from_environment("MUTATIONS_SEED", 1).max(1);
    let count = from_environment("MUTATIONS", 300);
    let mut random = MutationRandom(seed);
    let (mut refused, mut read_whole) = (0, 0);
    for (name, plain) in files(&requests(3, 120)) {
        for (ending, sound) in [("", plain.clone()), (".gz", gzip(&plain)), (".xz", xz(&plain)), (".zst", zstd(&plain))]
        {
            for _ in 0..count {
                let bytes = mutate(&sound, &mut random);
                let name_of = format!("{name}{ending}");
                match read(&name_of, &bytes, &options(name)).1 {
                    Ok(()) => read_whole += 1,
                    Err(error @ Error::Malformed { .. }) => {
                        refused += 1;
                        let text = error.to_string();
                        assert!(text.starts_with(&name_of) && text.len() < 400, "{text}");
                        assert!(text.chars().all(|c| !c.is_control()), "{text:?}");
                    }
                    Err(error) => panic!("{name_of}: {error:?}"),
                }
            }
        }
    }
    println!("seed {seed}: {refused} damaged files refused, {read_whole} read");
    assert!(refused > read_whole / 4, "mutations that change nothing test nothing");
}

/// Random bytes end in references or errors.
#[test]
fn random_bytes_never_panic() {
    let mut random = MutationRandom(7);
    for magic in
        [&[][..], &[0x1f, 0x8b, 8], &[0x28, 0xb5, 0x2f, 0xfd], b"\xfd7zXZ\0", b"NECTTRC\0", b"1 2 3 4\n", b"7\n"]
    {
        for name in ["a", "a.trace", "a.lis", "a.csv", "a.vscsi", "a.oracleGeneral"] {
            for _ in 0..60 {
                let bytes: Vec<u8> = (0..random.below(300)).map(|_| random.below(256) as u8).collect();
                let _ = read(name, &[magic, &bytes].concat(), &options(name));
            }
        }
    }
}
