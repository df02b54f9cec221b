//! The tests of this crate from the outside, in one program: its modules are the files of this folder.

mod loopback;
mod protocol;
mod returning;
mod script;
mod servers;
#[path = "../support/mod.rs"]
mod support;
