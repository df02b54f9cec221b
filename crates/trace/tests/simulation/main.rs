//! The simulator's counts: equal to those of other programs on the traces of the literature and on generated ones, and
//! equal to policies written here in the plainest way on random traces.

mod anchors;
mod generated;
mod golden;
mod naive;
mod table;
