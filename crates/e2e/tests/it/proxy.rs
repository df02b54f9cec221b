//! Tests of the proxy: its clients, its origins, its store, kills under load, and its shutdown.

mod apt;
mod curl;
mod descriptors;
mod failover;
mod faulty_calls;
mod faulty_origin;
mod faulty_store;
mod full_store;
mod idle_tunnels;
mod npm;
mod pressure;
mod restart;
mod shutdown;
mod sigkill;
mod sigkill_lapping;
mod silent_disk;
mod slow_disk_ends;
mod spans;
mod status_keys;
mod tls;
