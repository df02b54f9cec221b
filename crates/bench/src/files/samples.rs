//! The measured times of a run, with medians over rounds and ratios of pairs.

use serde::Serialize;

use super::loops::{Order, Taken, ms_a_file};
use super::network::Link;
use crate::statistics::{Estimate, median, paired_ratio};

/// The times of two loops of one contender.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Sample {
    pub contender: &'static str,
    /// `None` for contenders on this machine.
    pub link: Option<Link>,
    pub round: usize,
    /// Whether the file system was mounted synchronously.
    pub is_synchronous: bool,
    pub order: Order,
    pub files: u32,
    pub taken: Taken,
    /// Processor time of the donors and of the process that serves the block device. *Units*: seconds.
    pub processor_s: f64,
}

/// The settings under which contenders are compared: everything except contender and round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Which {
    pub is_synchronous: bool,
    pub files: u32,
    pub order: Order,
}

/// A step of the loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    Delete,
}

impl Step {
    /// The name in figures.
    pub fn name(self) -> &'static str {
        match self {
            Step::Create => "create",
            Step::Delete => "delete",
        }
    }

    /// The time of the step with the sync that follows it. *Units*: seconds.
    pub fn written_s(self, taken: &Taken) -> f64 {
        match self {
            Step::Create => taken.create_s + taken.create_sync_s,
            Step::Delete => taken.delete_s + taken.delete_sync_s,
        }
    }
}

/// All samples of a run.
pub(super) struct Samples(pub Vec<Sample>);

impl Samples {
    /// The samples of a contender over a link, in the order of rounds. A contender without a link has the same samples
    /// for every link.
    pub fn of(&self, contender: &str, link: Option<Link>, which: Which) -> Vec<&Sample> {
        let is_it = |sample: &&Sample| {
            let Which { is_synchronous, files, order } = which;
            sample.contender == contender
                && (sample.link == link || sample.link.is_none())
                && (sample.is_synchronous, sample.files, sample.order) == (is_synchronous, files, order)
        };
        let mut found: Vec<&Sample> = self.0.iter().filter(is_it).collect();
        found.sort_by_key(|sample| sample.round);
        found
    }

    /// The time of `other` divided by that of `contender`, over pairs of the same round.
    pub fn ratio(
        &self,
        link: Option<Link>,
        which: Which,
        other: &str,
        contender: &str,
        step: Step,
    ) -> Option<Estimate> {
        let times = |name| -> Vec<f64> {
            self.of(name, link, which).iter().map(|sample| step.written_s(&sample.taken)).collect()
        };
        let (above, below) = (times(other), times(contender));
        (!below.is_empty() && above.len() == below.len()).then(|| paired_ratio(&above, &below))
    }

    /// All loops, in the order in which the tables have them.
    pub fn which(&self) -> Vec<Which> {
        let which = |sample: &Sample| {
            let Sample { is_synchronous, files, order, .. } = *sample;
            Which { is_synchronous, files, order }
        };
        let mut list: Vec<Which> = self.0.iter().map(which).collect();
        list.sort_unstable();
        list.dedup();
        list
    }

    /// The median of a time over `samples`, in milliseconds per file.
    pub fn median_ms(samples: &[&Sample], of: impl Fn(&Sample) -> f64) -> f64 {
        median(&samples.iter().map(|sample| ms_a_file(of(sample), sample.files)).collect::<Vec<_>>())
    }
}
