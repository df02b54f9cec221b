//! Reading from the store: finding an object, and reading the object and its neighbours.

pub mod lookup;
pub mod neighbours;
pub mod object;
pub mod read_ahead;
pub mod reads;
