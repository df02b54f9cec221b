//! The model of LIRS: one stack and a queue, which are searched from end to end; the stack stores each id's state with
//! the id.

use super::{Evict, Item, Items, PolicyModel, refresh, take, weight_of};

const LIR: u64 = 0;
const HIR: u64 = 1;
const GHOST: u64 = 2;

pub struct LirsModel {
    capacity: u64,
    stack: Items,
    queue: Items,
    /// The ghosts in the order of eviction; each ghost is in the stack too.
    ghosts: Items,
    last: Option<u64>,
}

impl LirsModel {
    pub fn new(capacity: u64) -> LirsModel {
        LirsModel { capacity, stack: Items::new(), queue: Items::new(), ghosts: Items::new(), last: None }
    }

    fn lir_share(&self) -> u64 {
        self.capacity.saturating_sub((self.capacity / 100).max(2))
    }

    fn lir(&self) -> impl Iterator<Item = &Item> {
        self.stack.iter().filter(|item| item.2 == LIR)
    }

    fn prune(&mut self) {
        while let Some(oldest) = self.stack.pop_back() {
            if oldest.2 == LIR {
                self.stack.push_back(oldest);
                return;
            }
            take(&mut self.ghosts, oldest.0);
        }
    }

    fn demote(&mut self) {
        if let Some((id, weight, _)) = self.stack.pop_back() {
            self.queue.push_front((id, weight, HIR));
            self.prune();
        }
    }

    fn make_lir(&mut self, id: u64, weight: u64) {
        take(&mut self.stack, id);
        self.stack.push_front((id, weight, LIR));
        self.enforce_share();
    }

    fn enforce_share(&mut self) {
        while self.lir().map(|item| item.1).sum::<u64>() > self.lir_share() {
            self.demote();
        }
        self.prune();
    }

    fn push_hir(&mut self, id: u64, weight: u64) {
        if self.lir().next().is_some() {
            take(&mut self.stack, id);
            self.stack.push_front((id, weight, HIR));
        }
        take(&mut self.queue, id);
        self.queue.push_front((id, weight, HIR));
    }
}

impl PolicyModel for LirsModel {
    fn hit(&mut self, id: u64) -> bool {
        let is_repeated = self.last.replace(id) == Some(id);
        let Some((_, weight, _)) = self.resident().into_iter().find(|item| item.0 == id) else { return false };
        if is_repeated {
            return true;
        }
        let in_stack = self.stack.iter().find(|item| item.0 == id).copied();
        match in_stack {
            Some((_, _, LIR)) => {
                refresh(&mut self.stack, id);
                self.prune();
            }
            Some(_) if weight <= self.lir_share() => {
                take(&mut self.queue, id);
                self.make_lir(id, weight);
            }
            _ => self.push_hir(id, weight),
        }
        true
    }

    fn step(&mut self, _: usize, evict: Evict<'_>) -> Option<bool> {
        let Some((id, weight, _)) = self.queue.pop_back() else {
            self.stack.back()?;
            self.demote();
            return Some(true);
        };
        let is_given_up = evict(id);
        if !is_given_up {
            self.demote();
            self.queue.push_front((id, weight, HIR));
        } else if let Some(item) = self.stack.iter_mut().find(|item| item.0 == id) {
            item.2 = GHOST;
            self.ghosts.push_front((id, weight, GHOST));
            self.tidy(0);
        }
        Some(is_given_up)
    }

    fn insert(&mut self, id: u64, weight: u64) {
        let was_ghost = take(&mut self.ghosts, id).is_some();
        take(&mut self.stack, id);
        let used: u64 = self.resident().iter().map(|item| item.1).sum();
        let is_filling = used + weight <= self.lir_share();
        if is_filling || (was_ghost && weight <= self.lir_share()) {
            self.make_lir(id, weight);
        } else {
            self.push_hir(id, weight);
        }
    }

    fn tidy(&mut self, _: u64) {
        while weight_of(&self.ghosts) > 3 * self.capacity {
            if let Some((id, ..)) = self.ghosts.pop_back() {
                take(&mut self.stack, id);
            }
        }
    }

    fn remove(&mut self, id: u64) -> bool {
        let was_ghost = take(&mut self.ghosts, id).is_some();
        let was_in_stack = take(&mut self.stack, id).is_some();
        let was_in_queue = take(&mut self.queue, id).is_some();
        self.prune();
        was_in_queue || (was_in_stack && !was_ghost)
    }

    fn resize(&mut self, capacity: u64) -> usize {
        self.capacity = capacity;
        self.enforce_share();
        2 * self.resident().len()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn resident(&self) -> Vec<Item> {
        self.lir().chain(&self.queue).copied().collect()
    }
}
