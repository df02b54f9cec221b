//! The way out of the store: finding an object, reading it, and what is read with it.

pub mod lookup;
pub mod neighbours;
pub mod object;
pub mod reads;
