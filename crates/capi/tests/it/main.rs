//! The tests of this crate from the outside, in one program: its modules are the files of this folder.

mod c_programs;
mod calls;
mod errors;
mod header;
