//! Tests of the crash states, and of a small log whose bugs they must find.

mod states;
mod toy;
