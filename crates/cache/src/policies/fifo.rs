//! FIFO: evicts the oldest id.
//!
//! Ids form one queue, ordered by insertion; a hit changes nothing. So hits need no lock and no write, and data stored
//! in insertion order (a log, a ring of segments) can be truncated at the oldest end. But a popular id is evicted as
//! early as an id that is never referenced again. FIFO is here as the simplest baseline, and because S3-FIFO, CLOCK and
//! SIEVE are this queue with a second chance.
//!
//! # Invariants
//! 1. The queue holds exactly the resident ids.
//! 2. An id is newer than every id that was inserted before it; a refused victim counts as inserted again.
//!
//! # Cost
//! A hit: one look-up. A miss: O(1), plus O(1) per victim. 30 to 59 bytes per resident id.
//!
//! # Source
//! L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966.

use crate::policies::ordered::{OrderDiscipline, OrderedPolicy};

/// First in, first out, over weighted ids.
pub type Fifo = OrderedPolicy<FirstIn>;

/// The rule that makes an order FIFO.
#[derive(Debug)]
pub struct FirstIn;

impl OrderDiscipline for FirstIn {
    const NAME: &'static str = "fifo";
    const HIT_RENEWS: bool = false;
    const NEWEST_LEAVES: bool = false;
}
