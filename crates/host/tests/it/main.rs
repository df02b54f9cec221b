//! The tests of this crate from the outside, in one program: its modules are the files of this folder.

mod control_socket;
mod signals_request_the_shutdown;
