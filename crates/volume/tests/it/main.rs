//! The tests of this crate from the outside, in one program: its modules are the files of this folder.

mod access_lists;
mod access_times;
mod common;
mod crowded;
mod kept_names;
mod leader_lease;
mod local_names;
mod lock_claims;
mod model;
mod refusals;
mod removed;
mod reserved;
mod restart;
mod synced;
mod versions;
mod waits;
