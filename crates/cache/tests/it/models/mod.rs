//! A naive model of every policy: it searches deques from end to end, and recomputes sums each time.

mod arc;
mod gdsf;
mod lfu;
mod lirs;
mod plain;
mod s3fifo;
mod two_q;
mod w_tinylfu;

use std::collections::VecDeque;

use nectary_cache::{AccessResult, REFUSALS_MAX};

pub use plain::PlainKind;

/// The function to which victims are offered.
pub type Evict<'a> = &'a mut dyn FnMut(u64) -> bool;

/// An id, its weight and a value of the model; queues are newest first.
pub type Item = (u64, u64, u64);
pub type Items = VecDeque<Item>;

/// The part that differs between models; the loop that makes room is the same for all.
pub trait PolicyModel {
    /// Handles a reference to a resident id; `false` if the id is not resident.
    fn hit(&mut self, id: u64) -> bool;
    /// Handles a reference to an id that is not resident, before room is made.
    fn miss(&mut self, _id: u64, _weight: u64) {}
    /// Offers at most one id. *Returns* `false` if the id was refused; `None` if there is no id to offer.
    fn step(&mut self, refusals: usize, evict: Evict<'_>) -> Option<bool>;
    /// Inserts an id; there is room for it.
    fn insert(&mut self, id: u64, weight: u64);
    /// Shrinks queues to their limits after a miss, even if no room was found.
    fn tidy(&mut self, _room: u64) {}
    fn remove(&mut self, id: u64) -> bool;
    /// Sets the capacity. *Returns* the number of refusals after which the model gives up while it enforces the
    /// capacity.
    fn resize(&mut self, capacity: u64) -> usize;
    fn capacity(&self) -> u64;
    fn resident(&self) -> Vec<Item>;
}

fn make_room(model: &mut dyn PolicyModel, room: u64, refusals_max: usize, evict: Evict<'_>) -> bool {
    let mut refusals = 0;
    while model.resident().iter().map(|item| item.1).sum::<u64>() + room > model.capacity() {
        match model.step(refusals, evict) {
            None => return false,
            Some(true) => {}
            Some(false) => {
                refusals += 1;
                if refusals >= refusals_max {
                    return false;
                }
            }
        }
    }
    true
}

pub fn reference(model: &mut dyn PolicyModel, id: u64, weight: u64, evict: Evict<'_>) -> AccessResult {
    if model.hit(id) {
        return AccessResult::Hit;
    }
    if weight > model.capacity() {
        return AccessResult::Bypassed;
    }
    model.miss(id, weight);
    let has_room = make_room(model, weight, REFUSALS_MAX, evict);
    model.tidy(if has_room { weight } else { 0 });
    if !has_room {
        return AccessResult::Bypassed;
    }
    model.insert(id, weight);
    AccessResult::Inserted
}

pub fn set_capacity(model: &mut dyn PolicyModel, capacity: u64, evict: Evict<'_>) {
    let refusals_max = model.resize(capacity);
    make_room(model, 0, refusals_max, evict);
    model.tidy(0);
}

/// The model of a policy; `None` if there is no model of the policy in this folder.
pub fn of(name: &str, capacity: u64) -> Option<Box<dyn PolicyModel>> {
    Some(match name {
        "fifo" => Box::new(plain::PlainModel::new(capacity, PlainKind::Fifo)),
        "lru" => Box::new(plain::PlainModel::new(capacity, PlainKind::Lru)),
        "mru" => Box::new(plain::PlainModel::new(capacity, PlainKind::Mru)),
        "clock" => Box::new(plain::PlainModel::new(capacity, PlainKind::Clock)),
        "sieve" => Box::new(plain::PlainModel::new(capacity, PlainKind::Sieve)),
        "lfu" => Box::new(lfu::LfuModel::new(capacity, false)),
        "lfu-aged" => Box::new(lfu::LfuModel::new(capacity, true)),
        "2q" => Box::new(two_q::TwoQ::new(capacity)),
        "arc" => Box::new(arc::ArcModel::new(capacity)),
        "lirs" => Box::new(lirs::LirsModel::new(capacity)),
        "gdsf" => Box::new(gdsf::GdsfModel::new(capacity)),
        "wtinylfu" => Box::new(w_tinylfu::WTinyLfu::new(capacity)),
        "s3fifo" => Box::new(s3fifo::S3Fifo::new(capacity)),
        _ => return None,
    })
}

fn weight_of(queue: &Items) -> u64 {
    queue.iter().map(|item| item.1).sum()
}

fn take(queue: &mut Items, id: u64) -> Option<Item> {
    let position = queue.iter().position(|item| item.0 == id)?;
    queue.remove(position)
}

/// Moves an id of `queue` to its newest end; `false` if the id is not in the queue.
fn refresh(queue: &mut Items, id: u64) -> bool {
    let found = take(queue, id);
    found.map(|item| queue.push_front(item)).is_some()
}
