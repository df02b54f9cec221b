//! Reading from the store: finding an object, reading it, and its neighbours.

pub mod lookup;
pub mod neighbours;
pub mod object;
pub mod reads;
