//! All possible states, and a small log whose bugs they have to find.

mod states;
mod toy;
