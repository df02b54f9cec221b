//! The tests of this crate from the outside, in one program: its modules are the files of this folder.

mod check;
mod conformance;
mod damage;
mod devices_on_donors;
mod mirror;
mod parity_in_place;
mod patience;
mod placement_invariants;
mod replace;
mod scrub;
#[path = "../support/mod.rs"]
mod support;
#[path = "../world/mod.rs"]
mod world;
