//! Tests of trace formats: written references are read back, and no file makes the reader panic, hang or use unbounded
//! memory.

mod bad_input;
mod columns;
mod encode;
mod mutations;
mod read_back;
