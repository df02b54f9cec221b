//! The `nectary` program as users run it: one test program, one file for each group of commands.

mod a_running_proxy;
mod common;
mod experiments;
mod fleets;
mod interface;
mod objects;
mod proxies_and_logs;
mod ram_simulations;
mod recordings;
mod small_files;
mod stores_by_hand;
mod stores_looked_at;
mod stores_of_the_proxy;
mod traces;
