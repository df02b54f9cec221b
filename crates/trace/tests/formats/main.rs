//! Trace formats: what was written is read back, and nothing that is in a file makes the reader panic, hang or take
//! memory without end.

mod bad_input;
mod encode;
mod mutations;
mod read_back;
