//! A caching HTTP/1.1 proxy over a store.
//!
//! Owns: how HTTP is cached (the pure rules in [`rules`]), what a stored response looks like (`metadata`), the server, the
//! client to origins, tunnels, purges and the access log.
//!
//! Promises: nothing partial is stored or passed on as whole; framing that could be read in two ways is refused on both
//! sides; every queue, wait, head and memo has a limit; a hit in memory copies no body and waits for nothing.
//!
//! Leaves to others: keeping objects and collapsing fetches (`nectary-store`), arguments and signals (`nectary`).
#![forbid(unsafe_code)]

pub mod rules;
