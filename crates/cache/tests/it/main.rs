//! The tests of this crate from the outside, in one program: its modules are the files of this folder.

mod counting;
mod dear_agrees_with_its_model;
mod detector_agrees_with_its_model;
mod golden_counts;
mod min_is_optimal;
mod models;
mod naive;
mod policies_agree_with_their_models;
mod references_allocate_nothing_once_grown;
mod tables_take_what_is_charged;
