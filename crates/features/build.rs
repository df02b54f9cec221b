//! Nothing to do: without a build script, build-dependencies would not count.

fn main() {}
