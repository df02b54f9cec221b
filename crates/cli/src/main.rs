//! The `nectary` command.
fn main() {}
