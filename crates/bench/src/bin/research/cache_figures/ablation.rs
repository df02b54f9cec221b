//! Measures the worth of each part and constant of `adaptive`: it runs all points (traces at a cache size) with the
//! constant halved or doubled, or without the part.
//!
//! Owns: the variants and their table. Leaves to others: the points, and the fewest misses of the other policies at
//! these points.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use nectary_cache::{Adaptive, AdaptiveTuning, Policy};
use nectary_trace::simulate::misses;

use super::misses::{MissPoint, POINT_PERCENT_MAX};
use super::{CacheFiguresOptions, JudgedWorkload};
use crate::page;

type Variant = (&'static str, fn(&mut AdaptiveTuning));

const VARIANTS: [Variant; 24] = [
    ("**as it is**", |_| ()),
    ("without W-TinyLFU", |tuning| tuning.candidates = &["lirs", "lru", "s3fifo"]),
    ("without S3-FIFO", |tuning| tuning.candidates = &["lirs", "lru", "wtinylfu"]),
    ("without LRU", |tuning| tuning.candidates = &["lirs", "s3fifo", "wtinylfu"]),
    ("without a choice: LIRS, and the division", |tuning| tuning.candidates = &["lirs"]),
    ("without the division between streams", |tuning| tuning.is_divided = false),
    ("`sample_max` half", |tuning| tuning.sample_max /= 2),
    ("`sample_max` twice", |tuning| tuning.sample_max *= 2),
    ("`window` half", |tuning| tuning.window /= 2.0),
    ("`window` twice", |tuning| tuning.window *= 2.0),
    ("`roots` 0: no sign test", |tuning| tuning.roots = 0.0),
    ("`roots` twice", |tuning| tuning.roots *= 2.0),
    ("`prior` 0", |tuning| tuning.prior = 0.0),
    ("`prior` twice", |tuning| tuning.prior *= 2.0),
    ("large: S3-FIFO alone", |tuning| tuning.candidates_sampled = &["s3fifo"]),
    ("large: without W-TinyLFU", |tuning| tuning.candidates_sampled = &["s3fifo", "lru"]),
    ("large: without LRU", |tuning| tuning.candidates_sampled = &["s3fifo", "wtinylfu"]),
    ("large: with LIRS", |tuning| tuning.candidates_sampled = &["s3fifo", "wtinylfu", "lru", "lirs"]),
    ("`change` half", |tuning| tuning.change /= 2.0),
    ("`change` twice", |tuning| tuning.change *= 2.0),
    ("`steps` half", |tuning| tuning.steps /= 2),
    ("`steps` twice", |tuning| tuning.steps *= 2),
    ("`curve_max` half", |tuning| tuning.curve_max /= 2),
    ("`curve_max` twice", |tuning| tuning.curve_max *= 2),
];

/// Prints the table, and writes it into a page if the options name one.
pub fn ablation(judged: &[JudgedWorkload], points: &[MissPoint], options: &CacheFiguresOptions) -> Vec<String> {
    let runs: Vec<(usize, usize)> =
        (0..VARIANTS.len()).flat_map(|variant| (0..points.len()).map(move |point| (variant, point))).collect();
    let places: Vec<(usize, u64)> = judged
        .iter()
        .enumerate()
        .flat_map(|(index, judged)| judged.sizes.iter().map(move |size| (index, *size)))
        .collect();
    let next = AtomicUsize::new(0);
    let threads = options.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)).max(1);
    let work = || {
        let mut done = Vec::new();
        while let Some(&(variant, point)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (index, size) = places[point];
            let mut tuning = AdaptiveTuning::default();
            VARIANTS[variant].1(&mut tuning);
            let missed = misses(&mut Adaptive::with(size, tuning) as &mut dyn Policy, &judged[index].workload);
            done.push((variant, point, missed));
        }
        done
    };
    let mut missed = vec![vec![0; points.len()]; VARIANTS.len()];
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in running {
            let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            done.into_iter().for_each(|(variant, point, count)| missed[variant][point] = count);
        }
    });
    let table = table(points, &missed);
    println!("{table}");
    match &options.write {
        Some(page) => page::write(page, "cache-figures", &table).err().into_iter().collect(),
        None => Vec::new(),
    }
}

/// For each variant and group, the table has the number of points over the limit, and the percentages by which the
/// misses of all points together and of the worst point exceed the best.
fn table(points: &[MissPoint], missed: &[Vec<u64>]) -> String {
    let mut groups: Vec<&str> = points.iter().map(|point| point.group).collect();
    groups.dedup();
    let count = |group: &str| points.iter().filter(|point| point.group == group).count();
    let mut text = String::from("| |");
    groups.iter().for_each(|group| write!(text, " {group}, {} |", count(group)).unwrap_or(()));
    text += "\n|---|";
    groups.iter().for_each(|_| text += "---|");
    for ((name, _), missed) in VARIANTS.iter().zip(missed) {
        write!(text, "\n| {name} |").unwrap_or(());
        for group in &groups {
            let of = || points.iter().zip(missed).filter(|(point, _)| point.group == *group);
            let (own, best) = of().fold((0, 0), |sum, (point, missed)| (sum.0 + missed, sum.1 + point.best));
            let above = |own: u64, best: u64| 100.0 * (own as f64 / best as f64 - 1.0);
            let over = of().filter(|(point, missed)| above(**missed, point.best) > POINT_PERCENT_MAX).count();
            let worst = of().map(|(point, missed)| above(*missed, point.best)).fold(f64::MIN, f64::max);
            write!(text, " {over}, {:+.2} %, {worst:+.1} |", above(own, best)).unwrap_or(());
        }
    }
    text
}
