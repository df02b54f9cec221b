//! The promises of the proxy, one file each, in one binary.

mod administration;
mod admission;
mod clients_at_fault;
mod clients_from_elsewhere;
mod collapsed_misses;
mod common;
mod conditional_and_range;
mod cookies;
mod forward_and_reverse;
mod forwarding;
mod framing_refused;
mod https_origin;
mod informational;
mod limits;
mod locality;
mod log_of_requests;
mod miss_then_hit;
mod origin_faults;
mod purge_and_invalidation;
mod shutdown;
mod start_errors;
mod tags;
mod tunnels;
mod validation;
mod vary;
mod ways_agree;
