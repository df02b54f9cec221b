//! The states that there are, and a small log whose bugs they have to find.

mod states;
mod toy;
