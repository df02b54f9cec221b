//! The rules that a program can check without compiling anything: each file has one of them, and returns what breaks it.

pub mod circles;
pub mod features;
pub mod fields;
pub mod floors;
pub mod house;
pub mod licences;
pub mod names;
pub mod rooms;
