//! The tasks that are not done yet.
//!
//! Owns: them, and which of them have not begun. Leaves to others: what each writes, and when it may begin (`tasks`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::stores::DonorWrite;
use crate::placement::MemberSet;

/// The work of a task.
#[derive(Debug)]
pub(super) enum TaskWork {
    Fetch { block: u32 },
    Send { life: u64, member: usize },
    Parity { life: u64, members: MemberSet, spare: Option<u64> },
    Trim { first: u32, count: u32, sequence: u64 },
    Put,
}

/// A task that is not done yet.
#[derive(Debug)]
pub(super) struct PlacementTask {
    pub work: TaskWork,
    pub has_begun: bool,
    pub stages: VecDeque<Vec<DonorWrite>>,
    /// The number of unfinished writes of the present stage.
    pub left: usize,
    /// Slots that wait for the data that this task fetches: life and member.
    pub awaiting: Vec<(u64, usize)>,
}

impl PlacementTask {
    fn new(work: TaskWork) -> PlacementTask {
        PlacementTask { work, has_begun: false, stages: VecDeque::new(), left: 0, awaiting: Vec::new() }
    }
}

/// The tasks that are not done yet.
#[derive(Debug)]
pub(super) struct StepQueue {
    pub tasks: BTreeMap<u64, PlacementTask>,
    /// Tasks that have not begun.
    pub unbegun: BTreeSet<u64>,
    /// Whether one of them may be able to begin now, because a step or a read has ended or time has passed.
    pub may_begin: bool,
    /// The number of the next task.
    pub next: u64,
    /// Tasks whose next stage waits for the members of their group.
    pub held: BTreeSet<u64>,
}

impl StepQueue {
    pub fn new() -> StepQueue {
        StepQueue { tasks: BTreeMap::new(), unbegun: BTreeSet::new(), may_begin: false, next: 1, held: BTreeSet::new() }
    }

    /// Adds a task; returns its number.
    pub fn add(&mut self, work: TaskWork) -> u64 {
        let number = self.next;
        self.next += 1;
        self.tasks.insert(number, PlacementTask::new(work));
        self.unbegun.insert(number);
        self.may_begin = true;
        number
    }

    /// Returns the number of the first step that is not done.
    pub fn done_below(&self) -> u64 {
        self.tasks.keys().next().copied().unwrap_or(self.next)
    }
}
