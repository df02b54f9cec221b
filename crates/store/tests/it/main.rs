//! The tests of this crate from the outside, in one program: its modules are the files of this folder.

mod admission;
mod basics;
mod clusters;
mod common;
mod crashes_in_a_row;
mod damage;
mod fills;
mod fleet_marks;
mod flushes;
mod golden_images;
mod older_copy_of_a_span;
mod overlapping;
mod purge_records;
mod purges;
mod read_ahead;
mod read_only;
mod regroup;
mod reinsertion;
mod shards;
mod silence;
mod soft_purges;
mod tags;
mod trouble;
mod unpolled;
mod unreadable;
mod warm;
