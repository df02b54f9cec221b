//! The tests of traces, in one program: formats, recording, simulation, and policies on the traces of the papers.

mod adaptive;
mod common;
mod curve;
mod dear;
mod formats;
mod record;
mod record_data;
mod record_programs;
mod simulation;
