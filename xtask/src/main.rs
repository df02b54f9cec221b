//! Runs checks and tests.
fn main() {}
