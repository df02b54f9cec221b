//! The tests of this crate from the outside, in one program: its modules are the files of this folder.

mod held_calls;
mod memory_file_system;
mod support;
