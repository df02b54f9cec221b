//! Tests of running caches: the mounted directory, and the commands that show and change a cache.

mod commands;
mod crowd;
mod growth;
mod mount;
mod tree;
