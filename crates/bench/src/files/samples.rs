//! The measured times of a run, with medians over rounds and ratios of pairs.

use serde::Serialize;

use super::loops::{DeletionOrder, LoopTimes, ms_a_file};
use super::network::LinkRate;
use crate::statistics::{IntervalEstimate, median, paired_ratio};

/// The times of two loops of one contender.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LoopSample {
    pub contender: &'static str,
    /// `None` for contenders on this machine.
    pub link: Option<LinkRate>,
    pub round: usize,
    /// Whether the file system was mounted synchronously.
    pub is_synchronous: bool,
    pub order: DeletionOrder,
    pub files: u32,
    pub taken: LoopTimes,
    /// Processor time of the donors and of the process that serves the block device. *Units*: seconds.
    pub processor_s: f64,
}

/// The settings under which contenders are compared: everything except contender and round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LoopCondition {
    pub is_synchronous: bool,
    pub files: u32,
    pub order: DeletionOrder,
}

/// A step of the loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoopStep {
    Create,
    Delete,
}

impl LoopStep {
    /// The name in figures.
    pub fn name(self) -> &'static str {
        match self {
            LoopStep::Create => "create",
            LoopStep::Delete => "delete",
        }
    }

    /// The time of the step with the sync that follows it. *Units*: seconds.
    pub fn written_s(self, taken: &LoopTimes) -> f64 {
        match self {
            LoopStep::Create => taken.create_s + taken.create_sync_s,
            LoopStep::Delete => taken.delete_s + taken.delete_sync_s,
        }
    }
}

/// All samples of a run.
pub(super) struct LoopSamples(pub Vec<LoopSample>);

impl LoopSamples {
    /// The samples of a contender over a link, in the order of rounds. A contender without a link has the same samples
    /// for every link.
    pub fn of(&self, contender: &str, link: Option<LinkRate>, which: LoopCondition) -> Vec<&LoopSample> {
        let is_it = |sample: &&LoopSample| {
            let LoopCondition { is_synchronous, files, order } = which;
            sample.contender == contender
                && (sample.link == link || sample.link.is_none())
                && (sample.is_synchronous, sample.files, sample.order) == (is_synchronous, files, order)
        };
        let mut found: Vec<&LoopSample> = self.0.iter().filter(is_it).collect();
        found.sort_by_key(|sample| sample.round);
        found
    }

    /// The time of `other` divided by that of `contender`, over pairs of the same round.
    pub fn ratio(
        &self,
        link: Option<LinkRate>,
        which: LoopCondition,
        other: &str,
        contender: &str,
        step: LoopStep,
    ) -> Option<IntervalEstimate> {
        let times = |name| -> Vec<f64> {
            self.of(name, link, which).iter().map(|sample| step.written_s(&sample.taken)).collect()
        };
        let (above, below) = (times(other), times(contender));
        (!below.is_empty() && above.len() == below.len()).then(|| paired_ratio(&above, &below))
    }

    /// All loops, in the order in which the tables have them.
    pub fn which(&self) -> Vec<LoopCondition> {
        let which = |sample: &LoopSample| {
            let LoopSample { is_synchronous, files, order, .. } = *sample;
            LoopCondition { is_synchronous, files, order }
        };
        let mut list: Vec<LoopCondition> = self.0.iter().map(which).collect();
        list.sort_unstable();
        list.dedup();
        list
    }

    /// The median of a time over `samples`, in milliseconds per file.
    pub fn median_ms(samples: &[&LoopSample], of: impl Fn(&LoopSample) -> f64) -> f64 {
        median(&samples.iter().map(|sample| ms_a_file(of(sample), sample.files)).collect::<Vec<_>>())
    }
}
