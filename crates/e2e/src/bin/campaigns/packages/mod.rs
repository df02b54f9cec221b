//! Campaigns with packages: those of others through the proxy, and our own on a fresh machine.

pub mod clients;
pub mod installed;
