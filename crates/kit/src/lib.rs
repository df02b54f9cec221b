//! What the tests of all crates share.
//!
//! Owns: `wait`, the waits for a state, each with a deadline; `random`, numbers from a seed. Leaves to others:
//! everything that knows a part of the house.

mod random;
mod wait;

pub use random::SeededRandom;
pub use wait::{LIMIT, PAUSE, find, find_async, until, until_async, within};
