//! Public traces, on which `adaptive` is judged below and above 4,096 blocks.
//!
//! Owns: their list, each with a checksum of its references, and the sizes. Leaves to others: getting them
//! (`crates/bench/public-traces.py`); they are not part of the project. With the first group the constants for large
//! caches were chosen; the second is for the verdict.

use std::collections::HashMap;
use std::path::Path;

use nectary_trace::Error;
use nectary_trace::formats::ReadOptions;
use nectary_trace::simulate::{LoadOptions, TraceWorkload};

use super::JudgedWorkload;

/// The largest cache that is called small: its shadow caches see all ids. *Units*: blocks.
const SMALL_MAX: u64 = 4096;
/// The sizes of the caches, as shares of the distinct blocks. *Units*: a thousandth.
const PERMILLE: [u64; 6] = [1, 10, 50, 100, 200, 400];
/// The fewest blocks for which a cache is judged.
const BLOCKS_MIN: u64 = 64;

/// The traces for choosing constants and those for the verdict: name, and CRC-32C of the references, numbered in the
/// order of their first appearance.
const CHOOSING: [(&str, u32); 7] = [
    ("cloudphysics", 0x2cee_51c8),
    ("oltp", 0xf40e_824c),
    ("scarab", 0xd927_ac2a),
    ("orm-busy", 0x2773_19b6),
    ("web07", 0xf975_da1c),
    ("multi2", 0x1e78_ed1d),
    ("p3", 0xbee6_d2e2),
];
const VERDICT: [(&str, u32); 10] = [
    ("corda", 0x20a7_5d63),
    ("web12", 0xce47_0780),
    ("2-pools", 0xf693_d565),
    ("multi3", 0x0633_cd1a),
    ("adapt", 0xfb84_29d8),
    ("orm-night", 0xa9da_bab3),
    ("w106", 0xeb57_4dc0),
    ("p2", 0xde0c_6fc9),
    ("p6", 0x7efd_46ec),
    ("p12", 0x4761_9207),
];

/// The points on the traces in a folder. A trace that is not there is named as not run.
///
/// *Errors*: a trace that cannot be read, or that is not the one of the list.
pub fn judged(directory: &Path) -> Result<Vec<JudgedWorkload>, Error> {
    let mut judged = Vec::new();
    let groups = [("public small", "public large"), ("public small, verdict", "public large, verdict")];
    for ((small, large), traces) in groups.into_iter().zip([&CHOOSING[..], &VERDICT[..]]) {
        let mut of_large = Vec::new();
        for (name, checksum) in traces {
            let path = directory.join(format!("{name}.trace.gz"));
            if !path.exists() {
                println!("NOT RUN: {name}, because {} is not there", path.display());
                continue;
            }
            let workload = TraceWorkload::load(&path, &ReadOptions::default(), &LoadOptions::default())?;
            if checksum_of(&workload) != *checksum {
                return Err(Error::Usage(format!("{}: the references are not those of the list", path.display())));
            }
            let sizes = PERMILLE.map(|permille| workload.distinct() * permille / 1000);
            let mut sizes: Vec<u64> = sizes.into_iter().filter(|size| *size >= BLOCKS_MIN).collect();
            if workload.distinct() > 4 * SMALL_MAX {
                sizes.extend([SMALL_MAX, SMALL_MAX + 1]);
            }
            let (of_small, rest) = sizes.into_iter().partition(|size| *size <= SMALL_MAX);
            judged.push(JudgedWorkload { group: small, workload: workload.clone(), sizes: of_small });
            of_large.push(JudgedWorkload { group: large, workload, sizes: rest });
        }
        judged.append(&mut of_large);
    }
    Ok(judged)
}

fn checksum_of(workload: &TraceWorkload) -> u32 {
    let mut numbers = HashMap::new();
    workload.blocks().iter().fold(0, |checksum, block| {
        let next = numbers.len() as u32;
        let number: u32 = *numbers.entry(*block).or_insert(next);
        crc32c::crc32c_append(checksum, &number.to_le_bytes())
    })
}
