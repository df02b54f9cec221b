//! Tests that the simulator's counts equal those of other programs, on the traces of the literature and on generated
//! ones, and those of the simple policies written here, on random traces.

mod anchors;
mod generated;
mod golden;
mod naive;
mod table;
