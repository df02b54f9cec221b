//! Tests of the shared volume, with real mounts and servers that are killed.

mod access_lists;
mod certificates;
mod durable;
mod early;
mod kept;
mod killed;
mod lost_server;
mod maps;
mod mounting;
mod posix;
mod programs;
mod recalls;
mod removed;
mod second_server;
mod sessions;
mod shared;
mod takeover;
mod trees;
