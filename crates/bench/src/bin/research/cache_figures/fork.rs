//! A lower bound on the distance of any policy from the best of several, because no policy knows the future.
//!
//! Owns: the *forks* of a trace, and their bound. Leaves to others: the choice of traces and sizes.
//!
//! # Idea
//! Stop a trace when two of the policies hold different blocks. The trace may continue with the blocks that the first
//! policy holds, each referenced once, or with the blocks that the second policy holds. The policy that holds these
//! blocks misses none of them. A third policy does not know which continuation comes, and cannot hold both sets. Let
//! the cache have `C` blocks, and let `U` be the number of blocks that at least one of the two policies holds. Let `M`
//! and `N` be the misses of the two so far, and `F` the fewest misses that any policy could have (those of MIN with
//! bypassing). The misses of the third policy on both continuations sum to at least `2 F + (U - C)`, because it misses
//! each block of `U` that it does not hold on the continuation that references it. On its own continuation the first
//! policy has `M` misses in total, and the second one has `N`. So on one of the two continuations the third policy is
//! above the better policy by at least
//!
//! ```text
//! (2 F + U - C) / (M + N) - 1
//! ```
//!
//! This holds for each policy that does not know the continuation; for a randomised policy it holds on average. The
//! bound does not claim that real traces continue in this way. The bound shows that no policy without knowledge of the
//! future can promise a smaller distance.
//!
//! # What is checked
//! Both continuations are replayed with every policy except MIN, which knows the future. On one of the two
//! continuations, each policy must have more misses than the policy whose blocks follow, by at least the bound.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use hashbrown::{HashMap, HashSet};

use nectary_cache::{AccessResult, Min, Policy, StreamId, by_name};
use nectary_trace::simulate::{TraceWorkload, misses, policies};

use super::misses::POINT_PERCENT_MAX;
use super::{CacheFiguresOptions, JudgedWorkload, known};

/// The number of references from one stop of a trace to the next is the largest of three numbers: the capacity divided
/// by `STOPS`, the references so far divided by `STOPS_OF_PAST`, and `REFERENCES_MIN`.
const STOPS: usize = 16;
const STOPS_OF_PAST: usize = 64;
const REFERENCES_MIN: usize = 16;
/// The largest number of policies that are compared; further policies are ignored.
const POLICIES_MAX: usize = 8;

/// The position in a trace at which the bound is highest, with the results there.
#[derive(Debug, Clone, PartialEq)]
struct TraceFork {
    trace: String,
    size: u64,
    /// The number of references before the fork.
    after: usize,
    /// The policies whose blocks follow on the first and on the second continuation.
    policies: [&'static str; 2],
    /// The bound: no policy can be certain to stay below this distance. *Units*: percent.
    bound: f64,
    /// The distance of the judged policy from the policy whose blocks follow, on the continuation on which this
    /// distance is larger. *Units*: percent.
    judged: f64,
    /// A policy that is below the bound on both continuations, which disproves the bound.
    refuted_by: Option<&'static str>,
}

/// Prints the worst forks of all workloads at all sizes. *Returns* a line for each fork whose bound a policy disproves.
pub fn forks(judged: &[JudgedWorkload], options: &CacheFiguresOptions) -> Vec<String> {
    let Ok(policy) = known(&options.policy) else { return Vec::new() };
    let against: Vec<&'static str> = options.against.iter().filter_map(|name| known(name).ok()).collect();
    let forks = all(judged, policy, &against, options.threads);
    let mut refuted = Vec::new();
    for fork in &forks {
        let TraceFork { trace, size, after, policies: [one, other], bound, judged, refuted_by } = fork;
        if !options.is_quiet {
            println!(
                "FORK {trace} {size}: after {after} references the blocks of {one} or of {other}: nobody is nearer than {bound:+.2} % for \
                 certain; {policy} {judged:+.2} %"
            );
        }
        refuted.extend(
            refuted_by.map(|by| format!("fork of {trace} {size}: {by} is nearer than {bound:+.2} % on both ways")),
        );
    }
    let beyond = forks.iter().filter(|fork| fork.bound > POINT_PERCENT_MAX).count();
    let median = |of: fn(&TraceFork) -> f64| {
        let mut values: Vec<f64> = forks.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    println!(
        "forks: {} points, at {beyond} of which no policy can promise {POINT_PERCENT_MAX} %; medians: the bound {:+.2} %, {policy} {:+.2} %",
        forks.len(),
        median(|fork| fork.bound),
        median(|fork| fork.judged)
    );
    refuted
}

/// The worst fork of each workload at each size; there is none if all policies hold the same blocks.
fn all(
    judged: &[JudgedWorkload],
    policy: &'static str,
    against: &[&'static str],
    threads: Option<usize>,
) -> Vec<TraceFork> {
    let points: &Vec<(&TraceWorkload, u64)> =
        &judged.iter().flat_map(|judged| judged.sizes.iter().map(move |size| (&judged.workload, *size))).collect();
    let threads = threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)).max(1);
    let next = &AtomicUsize::new(0);
    thread::scope(|scope| {
        let work = || {
            let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|index| *index < points.len());
            let fork = |index: usize| Some((index, fork(points[index].0, points[index].1, policy, against)?));
            std::iter::from_fn(take).filter_map(fork).collect::<Vec<_>>()
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut forks: Vec<_> =
            running.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect();
        forks.sort_unstable_by_key(|(index, _)| *index);
        forks.into_iter().map(|(_, fork)| fork).collect()
    })
}

/// The worst fork of one workload at one size.
fn fork(workload: &TraceWorkload, size: u64, policy: &'static str, against: &[&'static str]) -> Option<TraceFork> {
    let against = &against[..against.len().min(POLICIES_MAX)];
    let (mut bound, mut after, mut pair) = (f64::NEG_INFINITY, 0, (0, 0));
    let mut ghosts: Vec<Box<dyn Policy>> = against.iter().filter_map(|name| by_name(name, size)).collect();
    let mut misses = vec![0; ghosts.len()];
    let mut min = Min::bypassing(size, workload.future()?);
    let (mut fewest, mut seen, mut next) = (0, HashSet::new(), 0);
    for (now, &id) in (1..).zip(workload.blocks()) {
        seen.insert(id);
        fewest += u64::from(refer(&mut min, id));
        for (misses, ghost) in misses.iter_mut().zip(&mut ghosts) {
            *misses += u64::from(refer(&mut **ghost, id));
        }
        if now < next || seen.len() as u64 <= size {
            continue;
        }
        next = now + (size as usize / STOPS).max(now / STOPS_OF_PAST).max(REFERENCES_MIN);
        let held = holders(&ghosts, seen.iter());
        for (first, second) in (0..ghosts.len()).flat_map(|second| (0..second).map(move |first| (first, second))) {
            let by_either = |holders: usize| holders & (1 << first | 1 << second) != 0;
            let union: u64 =
                held.iter().enumerate().filter(|(holders, _)| by_either(*holders)).map(|held| held.1).sum();
            let least = 2 * fewest + union.saturating_sub(size);
            let above = 100.0 * (least as f64 / (misses[first] + misses[second]) as f64 - 1.0);
            if above > bound {
                (bound, after, pair) = (above, now, (first, second));
            }
        }
    }
    let policies = [against[pair.0], against.get(pair.1).copied().filter(|_| after > 0)?];
    let mut fork =
        TraceFork { trace: workload.name().to_owned(), size, after, policies, bound, judged: 0.0, refuted_by: None };
    fork.check(workload, policy);
    Some(fork)
}

/// References an id. *Returns* whether it missed.
fn refer(policy: &mut dyn Policy, id: u64) -> bool {
    policy.reference(id, 1, StreamId(0), &mut |_| true) != AccessResult::Hit
}

/// For each set of policies, the number of blocks that exactly these policies hold. A set is a number with a bit for
/// each policy.
fn holders<'a>(ghosts: &[Box<dyn Policy>], ids: impl Iterator<Item = &'a u64>) -> [u64; 1 << POLICIES_MAX] {
    let mut held = [0; 1 << POLICIES_MAX];
    for id in ids {
        let bits = ghosts.iter().enumerate().map(|(bit, ghost)| usize::from(ghost.contains(*id)) << bit);
        held[bits.sum::<usize>()] += 1;
    }
    held
}

impl TraceFork {
    /// Replays both continuations with every policy except MIN, and compares the results with the bound.
    fn check(&mut self, workload: &TraceWorkload, judged: &'static str) {
        let ways = self.policies.map(|holder| way(workload, self.after, self.size, holder));
        let play = |name: &str, way: &TraceWorkload| {
            policies::make(name, self.size, way).map_or(u64::MAX, |mut policy| misses(&mut *policy, way))
        };
        let best = [play(self.policies[0], &ways[0]), play(self.policies[1], &ways[1])];
        for name in policies::names().into_iter().filter(|name| *name != policies::MIN) {
            let above = |way: usize| 100.0 * (play(name, &ways[way]) as f64 / best[way] as f64 - 1.0);
            let worse = above(0).max(above(1));
            if name == judged {
                self.judged = worse;
            }
            // The margin allows for the rounding of the quotients.
            if worse < self.bound - 1e-9 {
                self.refuted_by = Some(name);
            }
        }
    }
}

/// A continued trace: the beginning of a workload, then the blocks that a policy holds, each with the stream that
/// referenced it last.
fn way(workload: &TraceWorkload, after: usize, size: u64, holder: &str) -> TraceWorkload {
    let blocks = &workload.blocks()[..after];
    let stream = |position: usize| workload.streams().get(position).copied().unwrap_or(StreamId(0));
    let mut policy = by_name(holder, size);
    let mut last = HashMap::new();
    for (position, &id) in blocks.iter().enumerate() {
        last.insert(id, stream(position));
        if let Some(policy) = &mut policy {
            refer(&mut **policy, id);
        }
    }
    let mut held: Vec<(u64, StreamId)> =
        last.into_iter().filter(|(id, _)| policy.as_ref().is_some_and(|policy| policy.contains(*id))).collect();
    held.sort_unstable_by_key(|(id, _)| *id);
    let before = blocks.iter().enumerate().map(|(position, &id)| (id, stream(position)));
    TraceWorkload::new(workload.name(), before.chain(held))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE: [&str; 5] = ["lru", "arc", "s3fifo", "lirs", "wtinylfu"];

    fn scan(blocks: u64) -> TraceWorkload {
        TraceWorkload::new("scan", (0..blocks).map(|id| (id, StreamId(0))))
    }

    /// After a scan of twice the cache, no policy can be nearer to the best than about 25 %.
    #[test]
    fn fork_bounds_distance_after_scan() {
        let fork = fork(&scan(1000), 100, "adaptive", &FIVE).expect("they differ");
        // LRU holds the last hundred blocks. LIRS holds the first blocks, and the last block in its queue.
        assert!((22.0..=25.0).contains(&fork.bound) && (190..=220).contains(&fork.after), "{fork:?}");
        assert!(fork.refuted_by.is_none() && fork.judged >= fork.bound, "{fork:?}");
    }

    #[test]
    fn what_fits_does_not_fork() {
        assert_eq!(fork(&scan(100), 100, "adaptive", &FIVE), None);
    }

    #[test]
    fn excessive_fork_bound_is_refuted() {
        let workload = scan(1000);
        let mut fork = fork(&workload, 100, "adaptive", &FIVE).expect("they differ");
        // A policy that misses all references is 50 % above the best here, so a bound of 51 % must be disproved.
        fork.bound = 51.0;
        fork.check(&workload, "adaptive");
        assert!(fork.refuted_by.is_some());
    }
}
