//! The tests of this crate from the outside, in one program: its modules are the files of this folder.

mod attached;
mod conformance;
mod interrupted;
mod passthrough;
mod support;
mod tree;
