//! Tests that the simulator counts as many misses as other programs, on the traces of the literature and on generated
//! traces, and as many as the simple policies in `naive.rs`, on random traces.

mod anchors;
mod generated;
mod golden;
mod naive;
mod objects;
mod streams;
mod table;
