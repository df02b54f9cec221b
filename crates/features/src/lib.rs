//! For tests: one set of features of the crates of others, whichever of ours are built.
//!
//! Cargo enables the features that the crates being built ask for, so a test of one crate would compile tokio, and
//! everything above it, anew. Each of our crates has this one as a dev-dependency; its manifest lists the features that the
//! whole workspace needs. Owns: nothing; no code uses it.
