//! MRU: evicts the id that was referenced last.
//!
//! Ids form one queue, ordered by the last reference, and the victim is the newest id. For a loop over more ids than
//! fit this is the best policy that does not know the future: it keeps a part of the loop and evicts the rest
//! immediately, while LRU and FIFO evict each id just before its next reference and never hit. For everything else it
//! is very bad, because it keeps the oldest blocks for ever. So it is meant as a part of policies that detect loops,
//! not as a default.
//!
//! # Invariants
//! 1. The queue holds exactly the resident ids.
//! 2. An id is newer than every id that was last referenced before it, except that a refused victim becomes the oldest:
//!    it is offered again only when all others are gone or refused.
//!
//! # Cost
//! O(1) per reference plus O(1) per victim; 30 to 108 bytes per resident id, less if few ids are hit.
//!
//! # Source
//! H.-T. Chou, D. J. DeWitt, "An evaluation of buffer management strategies for relational database systems", VLDB
//! 1985.

use crate::policies::ordered::{OrderDiscipline, OrderedPolicy};

/// Most recently used, over weighted ids.
pub type Mru = OrderedPolicy<MostRecent>;

/// The rule that makes an order MRU.
#[derive(Debug)]
pub struct MostRecent;

impl OrderDiscipline for MostRecent {
    const NAME: &'static str = "mru";
    const HIT_RENEWS: bool = true;
    const NEWEST_LEAVES: bool = true;
}
