//! The common parts of the tests of promises: a proxy in this process, an origin that does what a test says, a client
//! on a raw socket.
#![allow(dead_code, unused_imports)]

pub mod client;
pub mod origin;
pub mod proxy;

pub use client::{Client, Reply, get, request};
pub use origin::{Origin, Script};
pub use proxy::{AUTHORIZATION, TestProxy, options, token};
