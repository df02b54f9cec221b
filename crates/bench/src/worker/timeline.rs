//! Computes how long each of several threads on a virtual clock waits for each disk.
//!
//! Owns: the times of modelled threads, of the contender's daemon, and of its disks. Requests are executed one at a
//! time. The next request is that of the thread with the earliest time, because this thread would be first in real
//! time, too. The cost of each request is measured ([`CallCost`]), and its end is computed: after its processor time the
//! request waits for its disks, and each disk serves requests in order. The disks of one request work in parallel, as
//! in a stripe. A single thread waits for the daemon, whose work is done between its requests. Several threads do not
//! wait, because the daemon is modelled as a separate thread. But a thread that has more work for a busy daemon waits,
//! as a process that dirties pages does when the kernel throttles it. Promises: the same costs give the same times,
//! whatever else the machine does. The model includes neither a disk's choice among waiting requests nor locks inside a
//! contender; this is the same for all contenders.

use std::time::Duration;

use crate::disk::CallCost;

/// Threads, daemon and disks of one contender.
#[derive(Debug, Clone)]
pub struct ThreadTimeline {
    threads: Vec<Duration>,
    daemon: Duration,
    /// The time at which each disk has completed all its requests.
    free: Vec<Duration>,
    /// How long requests waited for each disk.
    waited: Vec<Duration>,
}

impl ThreadTimeline {
    /// A timeline with all times at 0.
    pub fn new(threads: usize, disks: usize) -> ThreadTimeline {
        ThreadTimeline {
            threads: vec![Duration::ZERO; threads.max(1)],
            daemon: Duration::ZERO,
            free: vec![Duration::ZERO; disks],
            waited: vec![Duration::ZERO; disks],
        }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// The time of a thread.
    pub fn now(&self, thread: usize) -> Duration {
        self.threads[thread]
    }

    /// The thread that begins next, among the threads with work left.
    pub fn next(&self, has_more: impl Fn(usize) -> bool) -> Option<usize> {
        (0..self.threads.len()).filter(|thread| has_more(*thread)).min_by_key(|thread| self.threads[*thread])
    }

    /// Charges a cost to a thread; returns how long it took.
    pub fn run(&mut self, thread: usize, cost: &CallCost) -> Duration {
        let began = self.threads[thread];
        self.threads[thread] = self.served(began, cost);
        self.threads[thread] - began
    }

    /// Charges a cost to the daemon; `thread` found that the daemon's work was due.
    pub fn run_daemon(&mut self, thread: usize, cost: &CallCost) {
        if self.threads.len() == 1 {
            self.run(thread, cost);
            return;
        }
        if cost.disks.iter().all(Duration::is_zero) {
            return;
        }
        self.threads[thread] = self.threads[thread].max(self.daemon);
        self.daemon = self.served(self.threads[thread], cost);
    }

    /// Makes all threads wait until all work is done, and then until a call with this cost is done. Returns the time
    /// from the last thread's end to the end of the call.
    pub fn join(&mut self, cost: &CallCost) -> Duration {
        let last = self.threads.iter().copied().max().unwrap_or_default();
        let all = self.free.iter().fold(last.max(self.daemon), |all, free| all.max(*free));
        let end = self.served(all, cost);
        self.threads.fill(end);
        self.daemon = end;
        end - last
    }

    /// How long requests have waited for disks so far, summed over all disks.
    pub fn waited(&self) -> Duration {
        self.waited.iter().sum()
    }

    fn served(&mut self, began: Duration, cost: &CallCost) -> Duration {
        let asked = began + cost.processor;
        let mut end = asked;
        for (disk, busy) in cost.disks.iter().enumerate().filter(|entry| !entry.1.is_zero()) {
            let begins = asked.max(self.free[disk]);
            self.waited[disk] += begins - asked;
            self.free[disk] = begins + *busy;
            end = end.max(self.free[disk]);
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(processor_ms: u64, disks_ms: &[u64]) -> CallCost {
        let disks = disks_ms.iter().map(|ms| Duration::from_millis(*ms)).collect();
        CallCost { processor: Duration::from_millis(processor_ms), disks }
    }

    fn ms(time: Duration) -> u128 {
        time.as_millis()
    }

    #[test]
    fn thread_time_is_sum_of_costs() {
        let mut line = ThreadTimeline::new(1, 1);
        assert_eq!(ms(line.run(0, &cost(1, &[10]))), 11);
        line.run_daemon(0, &cost(1, &[5]));
        assert_eq!(ms(line.now(0)), 17);
        assert_eq!((ms(line.join(&cost(0, &[3]))), ms(line.waited())), (3, 0));
    }

    /// Two threads wait for one disk, but not if each has its own.
    #[test]
    fn threads_wait_for_shared_disk() {
        let mut one = ThreadTimeline::new(2, 1);
        assert_eq!([ms(one.run(0, &cost(0, &[10]))), ms(one.run(1, &cost(0, &[10])))], [10, 20]);
        assert_eq!((ms(one.waited()), one.next(|_| true)), (10, Some(0)));
        let mut two = ThreadTimeline::new(2, 2);
        assert_eq!([ms(two.run(0, &cost(0, &[10, 0]))), ms(two.run(1, &cost(0, &[0, 10])))], [10, 10]);
        assert_eq!(ms(two.run(0, &cost(0, &[10, 10]))), 10, "both disks at once");
        assert_eq!((two.next(|thread| thread == 0), two.next(|_| false)), (Some(0), None));
    }

    /// Threads continue during the daemon's work until it gets more work.
    #[test]
    fn threads_run_beside_daemon() {
        let mut line = ThreadTimeline::new(2, 2);
        line.run_daemon(0, &cost(0, &[100, 0]));
        assert_eq!(ms(line.now(0)), 0);
        assert_eq!(ms(line.run(0, &cost(0, &[0, 10]))), 10, "the other disk is free");
        line.run_daemon(0, &cost(1, &[0, 0]));
        assert_eq!(ms(line.now(0)), 10, "nothing was due");
        line.run_daemon(0, &cost(0, &[0, 7]));
        assert_eq!(ms(line.now(0)), 100, "it waited for the daemon");
        assert_eq!(ms(line.join(&cost(0, &[0, 0]))), 7);
        assert_eq!(ms(line.now(1)), 107);
    }
}
